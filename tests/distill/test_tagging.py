"""What a pair's answers come to, and the luck that each of its requests is asked with."""

from __future__ import annotations

import pytest

from rewardlab.distill.journal import Answer
from rewardlab.distill.teacher import agrees, order_of, seed_of, tag
from rewardlab.types import BOTH_ORDERS, FinishReason, Order, PreferencePair, choice_of
from rewardlab.verdicts.parse import format_verdict
from tests.support.distillation import config_for

PAIR = PreferencePair("p", "which?", ("x", "y"), 1, order=Order.GIVEN, judgment="an older one", attempts="2", teacher_share=0.1)


def test_each_request_has_a_seed_of_its_own() -> None:
    """By pair, attempt and the run's seed; the same in every run and process, for a run that goes on asks the same."""
    seeds = {seed_of(f"p{pair}", seed, attempt) for pair in range(200) for seed in (0, 1) for attempt in (1, 2, 3)}
    assert len(seeds) == 200 * 2 * 3
    assert seed_of("p", 7, 1) == 243_893_737
    assert all(0 <= seed < 2**28 for seed in seeds)


def test_orders_take_turns() -> None:
    """From a coin of the pair's own, which falls either way."""
    firsts = [order_of(f"p{pair}", 0, 1) for pair in range(200)]
    assert 60 < sum(order is BOTH_ORDERS[0] for order in firsts) < 140
    assert firsts != [order_of(f"p{pair}", 1, 1) for pair in range(200)]
    for attempt in (2, 3):
        turned = [order if attempt % 2 else order.swap() for order in firsts]
        assert [order_of(f"p{pair}", 0, attempt) for pair in range(200)] == turned


def answer(says: str, attempt: int = 1, finish: FinishReason = FinishReason.STOP) -> Answer:
    """That names the preferred response of ``PAIR`` (R), the other (W) or none (-); the orders take turns."""
    order = order_of(PAIR.pair_id, 5, attempt)
    choices = {"R": choice_of(1, order), "W": choice_of(0, order)}
    text = format_verdict(choices[says], f"reasons {attempt}") if says in choices else "I cannot say"
    return Answer(attempt, order, text, finish, 20, 100)


@pytest.mark.parametrize("attempt", [1, 2])
def test_agreement_is_with_the_label_in_the_order_shown(attempt: int) -> None:
    """What cannot be read, or was cut off, agrees with nothing."""
    assert agrees(PAIR, answer("R", attempt), "think_answer")
    for other in (answer("W", attempt), answer("-", attempt), answer("R", attempt, FinishReason.LENGTH)):
        assert not agrees(PAIR, other, "think_answer")
    assert not agrees(PAIR, answer("R", attempt), "overall_judgment")


@pytest.mark.parametrize(
    ("says", "votes", "most", "attempts", "share"),
    [
        ("", 0, 3, None, None),
        ("W", 0, 3, None, None),
        ("W-", 0, 3, None, None),
        ("R", 0, 3, "1", None),
        ("R", 0, 1, "1", None),
        ("WR", 0, 3, "2", None),
        ("W-R", 0, 3, "3", None),
        ("WWW", 0, 3, "unsolved", None),
        ("W", 0, 1, "unsolved", None),
        ("WWR", 0, 2, "unsolved", None),  # an answer that was not asked for solves nothing
        ("R", 2, 3, None, None),  # more votes are asked for
        ("RW", 2, 3, "1", 0.5),
        ("WR", 2, 3, "2", 0.5),
        ("WW", 2, 3, None, None),
        ("WWR", 2, 3, "3", 0.0),  # the third is no vote
        ("WWW", 2, 3, "unsolved", 0.0),
        ("WWWR", 4, 3, "unsolved", 0.25),  # agrees too late for a judgment, and counts as a vote
        ("R-RR", 4, 3, "1", 0.75),
    ],
)
def test_what_the_answers_come_to(says: str, votes: int, most: int, attempts: str | None, share: float | None) -> None:
    """The first answer that agrees is kept, with the order it was given in; an unsolved pair is as it would be first shown."""
    config = config_for("http://none", template="r1_reward", votes=votes, max_attempts=most, seed=5)
    answers = [answer(letter, attempt) for attempt, letter in enumerate(says, 1)]
    tagged = tag(PAIR, answers, config)
    if attempts is None:
        assert tagged is None
        return
    assert tagged is not None
    kept = None if attempts == "unsolved" else answers[int(attempts) - 1]
    text, order = (kept.text, kept.order) if kept else ("", order_of("p", 5, 1))
    assert (tagged.attempts, tagged.teacher_share, tagged.judgment, tagged.order) == (attempts, share, text, order)
    assert (tagged.pair_id, tagged.responses, tagged.preferred) == ("p", ("x", "y"), 1)


def test_an_unsolved_pair_is_shown_in_its_first_order() -> None:
    """By its own coin and the run's seed, whatever its order was before."""
    for seed in range(8):
        config = config_for("http://none", template="r1_reward", max_attempts=1, seed=seed)
        for before in BOTH_ORDERS:
            pair = PreferencePair("p", "which?", ("x", "y"), 1, order=before)
            tagged = tag(pair, [answer("W")], config)
            assert tagged is not None
            assert tagged.order is order_of("p", seed, 1)
