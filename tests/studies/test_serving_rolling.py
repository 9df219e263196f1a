"""The drill of a judge that is replaced on two endpoints: a mixture, a loss and another reward the second time are counted."""

from __future__ import annotations

import httpx
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from eval.endpoints import free_port, served
from eval.serving_rolling import Answer, Balancer, Group, tally

FIRST, SECOND = [1.0, -1.0], [-1.0, 1.0]


def group(*answers: tuple[int, int, float | None, str]) -> Group:
    return Group("single", "q", (), ["a", "b"], 0.0, [Answer(*answer) for answer in answers])


def test_what_is_counted() -> None:
    groups = {
        "of_the_first_judge_alone": group((0, 0, 1.0, "x"), (1, 0, -1.0, "x"), (0, 1, 1.0, "x")),
        "of_the_second_judge_alone": group((0, 0, -1.0, "y"), (1, 0, None, ""), (1, 1, 1.0, "y")),
        "with_other_weights_than_named": group((0, 0, 1.0, "y"), (1, 0, -1.0, "y")),
        "mixed": group((0, 0, 1.0, "x"), (1, 0, 1.0, "y")),
        "lost": group((0, 0, 1.0, "x"), (1, 0, None, "")),
        "with_other_rewards_when_sent_again": group((0, 0, 1.0, "x"), (1, 0, -1.0, "x"), (1, 1, 0.0, "x")),
    }
    counts = tally([*groups.values()], [[FIRST] * 6, [SECOND] * 6], ["x", "y"])
    assert counts == {
        "groups": 6,
        "groups_of_the_first_judge_alone": 3,
        "groups_of_the_second_judge_alone": 1,
        "groups_that_both_reward_alike": 0,
        "groups_of_neither": 2,
        "groups_with_other_weights_than_named": 2,
        "responses": 12,
        "rewards_lost": 1,
        "responses_of_which_the_judge_has_no_verdict": 0,
        "responses_sent_again": 3,
        "copies_without_an_answer": 1,
        "groups_with_other_rewards_when_sent_again": 1,
    }


def test_the_balancer_takes_turns_and_passes_over_the_dead() -> None:
    def app(name: str) -> Starlette:
        return Starlette(routes=[Route("/", lambda request: PlainTextResponse(name))])

    with served(app("a")) as one, served(app("b")) as two:
        ports = [int(url.rpartition(":")[2]) for url in (one, two)]
        with Balancer([ports[0], free_port(), ports[1]]).running() as url:
            assert [httpx.get(url).text for _ in range(4)] == ["a", "b", "b", "a"]
