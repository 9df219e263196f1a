"""Who rewards a prompt, and what no response can talk its way around."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardlab.errors import DataError
from rewardlab.rewards.verifiable.extraction import AnswerStatus
from rewardlab.rewards.verifiable.hybrid import HybridReward, JudgeScore, Prompt, Route, hybrid_reward, route_of
from rewardlab.rewards.verifiable.rules import RULES
from rewardlab.types import Completion, FinishReason

COUNT = Prompt("p", "count", "How many?", truth="7")
POEM = Prompt("p", "poem", "Write a line.", truth="Rain.")
BEST = Prompt("p", "poem", "Write a line.", best="Rain.")


def done(text: str) -> Completion:
    return Completion(text, FinishReason.STOP)


def always(prompt: Prompt, solution: str, reference: str) -> JudgeScore:
    return JudgeScore(0.75)


def test_routes() -> None:
    """A rule before a judge, the truth before the best of N."""
    assert route_of(COUNT, RULES) is Route.VERIFIER
    assert route_of(replace(COUNT, best="8"), RULES) is Route.VERIFIER
    assert route_of(replace(POEM, best="Snow."), RULES) is Route.JUDGE_TRUTH
    assert route_of(BEST, RULES) is Route.JUDGE_BEST
    assert route_of(replace(COUNT, truth=None, best="7"), RULES) is Route.JUDGE_BEST
    assert route_of(COUNT, {}) is Route.JUDGE_TRUTH


@pytest.mark.parametrize("nothing", [None, "", "  "])
def test_a_prompt_that_nothing_rewards(nothing: str | None) -> None:
    """Named when the data are loaded, with the cure."""
    with pytest.raises(DataError, match=r"'p' \(count\) has neither a truth nor a best-of-N reference.*drop the prompt"):
        route_of(replace(COUNT, truth=nothing, best=nothing), RULES)


def test_a_prompt_that_needs_a_judge() -> None:
    """Where there is none, it is an error and no 0."""
    with pytest.raises(DataError, match="needs a judge"):
        hybrid_reward(POEM, done("<think>a</think>b"), verifiers=RULES, judge=None)


def test_rewards() -> None:
    """The rule's score, or the judge's probability; who is asked what."""
    asked = []

    def judge(prompt: Prompt, solution: str, reference: str) -> JudgeScore:
        asked.append((prompt.question, solution, reference))
        return JudgeScore(0.75)

    right = hybrid_reward(COUNT, done(r"<think>a</think>It is \boxed{7}"), verifiers=RULES, judge=judge)
    assert right == HybridReward(1.0, AnswerStatus.OK, Route.VERIFIER, "7")
    assert not asked
    for prompt, route in [(POEM, Route.JUDGE_TRUTH), (BEST, Route.JUDGE_BEST)]:
        found = hybrid_reward(prompt, done("<think>a</think> It rains."), verifiers=RULES, judge=judge)
        assert found == HybridReward(0.75, AnswerStatus.OK, route)
    assert asked == [("Write a line.", "It rains.", "Rain.")] * 2


@pytest.mark.parametrize("prompt", [COUNT, POEM, BEST])
@pytest.mark.parametrize(
    ("completion", "status"),
    [
        (done(r"\boxed{7}"), AnswerStatus.BAD_FORMAT),
        (done(r"<think>\boxed{7}"), AnswerStatus.BAD_FORMAT),
        (done(r"<think></think>\boxed{7}"), AnswerStatus.BAD_FORMAT),
        (Completion(r"<think>a</think>\boxed{7}", FinishReason.LENGTH), AnswerStatus.TRUNCATED),
        (Completion(r"<think>a</think>\boxed{7}", FinishReason.ERROR), AnswerStatus.ERROR),
        (Completion(r"<think>a</think>\boxed{7}", FinishReason.TIMEOUT), AnswerStatus.TIMEOUT),
    ],
)
def test_what_is_broken_earns_nothing(prompt: Prompt, completion: Completion, status: AnswerStatus) -> None:
    """Whatever it says, and whoever would pay."""
    found = hybrid_reward(prompt, completion, verifiers=RULES, judge=always)
    assert (found.score, found.status) == (0.0, status)


@given(st.text(max_size=30).filter(lambda t: t.strip() and "<" not in t))
def test_the_thinking_does_not_matter(thought: str) -> None:
    """Neither to the rule nor to the judge."""

    def by_length(prompt: Prompt, solution: str, reference: str) -> JudgeScore:
        return JudgeScore(1 / (1 + len(solution)))

    for prompt in (COUNT, POEM, BEST):
        found = {
            hybrid_reward(prompt, done(rf"<think>{said}</think>\boxed{{7}}"), verifiers=RULES, judge=by_length)
            for said in (thought, "a", r"\boxed{8}")
        }
        assert len(found) == 1


def test_a_judge_that_fails() -> None:
    """A status, an exception, a number that is no probability, silence: each is 0 and none a coin flip."""

    def broken(prompt: Prompt, solution: str, reference: str) -> JudgeScore:
        raise ConnectionError

    judges = [
        (lambda *_: JudgeScore(0.9, AnswerStatus.TIMEOUT), AnswerStatus.TIMEOUT),
        (broken, AnswerStatus.ERROR),
        (lambda *_: JudgeScore(1.5), AnswerStatus.ERROR),
        (lambda *_: JudgeScore(float("nan")), AnswerStatus.ERROR),
    ]
    for judge, status in judges:
        found = hybrid_reward(POEM, done("<think>a</think>b"), verifiers=RULES, judge=judge)
        assert (found.score, found.status) == (0.0, status)
    assert hybrid_reward(POEM, done("<think>a</think> "), verifiers=RULES, judge=always).status is AnswerStatus.EMPTY
