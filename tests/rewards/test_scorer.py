"""Scoring rollouts is fail-closed in every branch, and asks the consistency judge only where it can matter."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rewardlab.config import ConsistencyConfig
from rewardlab.demo.server import Faults
from rewardlab.rewards import scorer as reward_module
from rewardlab.rewards.consistency import EndpointConsistencyJudge
from rewardlab.rewards.judgment import JudgedCompletion, RewardParts, RewardTerm, checks_term, compose
from rewardlab.rewards.scorer import JudgmentScorer, as_completion, reward_metrics
from rewardlab.types import Choice, Completion, FinishReason, Order
from rewardlab.verdicts.checklist import ClaimCheck, ClaimFinding, write_checks
from rewardlab.verdicts.parse import format_verdict
from tests.support.openai_server import ChatServer, chat_server
from tests.support.rewards import reward_terms, values_of

GOOD = format_verdict(Choice.FIRST, "Response 1: red, correct. Response 2: blue, wrong.")
BAD = format_verdict(Choice.SECOND, "Response 1: red, correct. Response 2: blue, wrong.")


class FixedJudge:
    """Answers every question the same, and counts them."""

    rounds = 1

    def __init__(self, answer: int) -> None:
        self.answer, self.asked = answer, 0

    async def score(self, question: str, reasoning: str, verdict: Choice) -> int:
        self.asked += 1
        return self.answer


def rollout(
    text: str, *, preferred: int = 0, order: Order = Order.GIVEN, finish: FinishReason = FinishReason.STOP
) -> JudgedCompletion:
    return JudgedCompletion(Completion(text, finish, 10), "Which color?", order, preferred)


def score(judge: FixedJudge | None, *rollouts: JudgedCompletion) -> list[RewardParts]:
    return compose(asyncio.run(JudgmentScorer("think_answer", judge).score(rollouts)), rollouts, reward_terms())


def test_wrong_verdicts_earn_the_format_alone_and_are_not_asked_about() -> None:
    """Consistency is worth nothing where the verdict is wrong, so no request is spent on it."""
    judge = FixedJudge(1)
    parts = score(judge, rollout(GOOD, preferred=1))[0]
    assert (parts.total, parts.correct, parts.consistency, judge.asked) == (0.5, False, 0, 0)


@pytest.mark.parametrize("order", list(Order))
def test_the_verdict_is_read_in_the_order_shown(order: Order) -> None:
    """ "1" is right exactly when the preferred response was shown first."""
    shown_first = 0 if order is Order.GIVEN else 1
    right, wrong = score(
        None, rollout(GOOD, order=order, preferred=shown_first), rollout(GOOD, order=order, preferred=1 - shown_first)
    )
    assert (right.correct, wrong.correct) == (True, False)


@pytest.mark.parametrize(
    ("text", "finish", "status"),
    [
        ("", FinishReason.STOP, "empty"),
        ("Response 1 is better.", FinishReason.STOP, "no_verdict"),
        ("<think>a</think><answer>1 or 2</answer>", FinishReason.STOP, "not_a_choice"),
        (GOOD, FinishReason.LENGTH, "truncated"),
        (GOOD, FinishReason.ERROR, "error"),
        (GOOD, FinishReason.TIMEOUT, "timeout"),
    ],
)
def test_whatever_cannot_be_read_earns_nothing(text: str, finish: FinishReason, status: str) -> None:
    """A cut-off output earns nothing even where a whole verdict stands in it."""
    parts = score(FixedJudge(1), rollout(text, finish=finish))[0]
    assert (parts.total, parts.status) == (0.0, status)


def test_an_exception_earns_nothing_and_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The released code pays 1.0 for it."""

    def broken(*_: object) -> None:
        raise RuntimeError("parser")

    monkeypatch.setattr(reward_module, "verdict_of", broken)
    parts = score(FixedJudge(1), rollout(GOOD), rollout(BAD))
    assert [p.total for p in parts] == [0.0, 0.0]
    metrics = values_of(reward_metrics(parts))
    assert metrics["reward/invalid_frac"] == 1.0
    assert metrics["verdict/error"] == 1.0


def test_a_failing_consistency_judge_gives_zero_not_a_reward() -> None:
    """A late answer and a broken judge cost the bonus, never the reward of a right verdict; both are counted."""

    class Broken(FixedJudge):
        async def score(self, question: str, reasoning: str, verdict: Choice) -> int:
            raise RuntimeError("broken")

    class Slow(FixedJudge):
        async def score(self, question: str, reasoning: str, verdict: Choice) -> int:
            await asyncio.sleep(5)
            return 1

    scorer = JudgmentScorer("think_answer", Slow(1), deadline_s=0.05)
    assert compose(asyncio.run(scorer.score([rollout(GOOD)])), [rollout(GOOD)], reward_terms())[0].total == 1.5
    assert scorer.counts == {"late": 1}
    scorer = JudgmentScorer("think_answer", Broken(1))
    assert compose(asyncio.run(scorer.score([rollout(GOOD)])), [rollout(GOOD)], reward_terms())[0].total == 1.5
    assert scorer.counts == {"broken": 1}


@pytest.mark.slow
@pytest.mark.parametrize(("seconds", "deadline_s", "consistency"), [(0.2, 5.0, 1), (1.5, 0.4, 0)])
def test_waiting_for_others_is_not_being_late(seconds: float, deadline_s: float, consistency: int) -> None:
    """Sixteen questions, two at a time: all are answered, though the last waits longer than a round may take. Of a server that
    is too slow each fails by its own deadline, which begins when it is sent."""
    rollouts = [rollout(format_verdict(Choice.FIRST, f"Seen {n} times.")) for n in range(16)]

    async def ask(url: str) -> tuple[list[RewardParts], Counter[str], Counter[str]]:
        judge = EndpointConsistencyJudge(ConsistencyConfig(base_url=url, model="m", concurrency=2, deadline_s=deadline_s))
        scorer = JudgmentScorer("think_answer", judge, deadline_s=1.0)
        parts = await scorer.score(rollouts)
        await judge.aclose()
        return parts, scorer.counts, judge.counts

    with chat_server(ChatServer(text="1", delay_s=seconds)) as url:
        parts, waited, answered = asyncio.run(ask(url))
    assert [part.consistency for part in parts] == [consistency] * 16
    assert waited == {}
    assert answered["asked"] == 16
    assert answered["failed"] == 16 * (consistency == 0)


@pytest.mark.slow
def test_one_who_stops_waiting_does_not_cancel_the_question(demo_server: Callable[..., str]) -> None:
    """The next rollout with the same reasoning gets the answer, from the cache."""
    config = ConsistencyConfig(base_url=demo_server(Faults(hang=1.0, hang_s=0.5)), model="demo-checker", deadline_s=10)

    async def ask() -> tuple[list[float], dict[str, int]]:
        judge = EndpointConsistencyJudge(config)
        hasty = JudgmentScorer("think_answer", judge, deadline_s=0.1)
        patient = JudgmentScorer("think_answer", judge, deadline_s=10)
        parts = [(await scorer.score([rollout(GOOD)]))[0] for scorer in (hasty, patient)]
        totals = [part.total for part in compose(parts, [rollout(GOOD)] * 2, reward_terms())]
        await judge.aclose()
        return totals, dict(judge.counts)

    totals, counts = asyncio.run(ask())
    assert totals == [1.5, 1.5]
    assert counts == {"asked": 1, "cached": 1, "failed": 1}


def test_the_endpoint_judge_over_http(demo_server: Callable[..., str]) -> None:
    """Agreeing +1, contradicting -1, no side taken 0; the second time from the cache."""
    config = ConsistencyConfig(base_url=demo_server(), model="demo-checker")

    async def ask() -> tuple[list[int], dict[str, int]]:
        judge = EndpointConsistencyJudge(config)
        texts = ["Response 1: red, correct. Response 2: blue, wrong.", "Response 2 is clearer.", "Hm."] * 2
        scores = [await judge.score("Which color?", text, Choice.FIRST) for text in texts]
        await judge.aclose()
        return scores, dict(judge.counts)

    scores, counts = asyncio.run(ask())
    assert scores == [1, -1, 0] * 2
    assert counts == {"asked": 3, "cached": 3, "unclear": 1}


@pytest.mark.slow
def test_a_dead_or_broken_endpoint_is_counted(demo_server: Callable[..., str]) -> None:
    """Down, 500 and garbage: consistency 0, each counted as failed, and asked again the next time."""
    down = ConsistencyConfig(base_url="http://127.0.0.1:9/v1", model="demo-checker", deadline_s=5)
    broken = ConsistencyConfig(base_url=demo_server(Faults(broken=1.0)), model="demo-checker", deadline_s=5)
    garbage = ConsistencyConfig(base_url=demo_server(Faults(garbage=1.0)), model="demo-checker", deadline_s=5)
    for config in (down, broken, garbage):

        async def ask(config: ConsistencyConfig = config) -> tuple[int, dict[str, int]]:
            judge = EndpointConsistencyJudge(config)
            await judge.score("q", "Response 1 is clearer.", Choice.FIRST)
            value = await judge.score("q", "Response 1 is clearer.", Choice.FIRST)
            await judge.aclose()
            return value, dict(judge.counts)

        value, counts = asyncio.run(ask())
        assert value == 0
        assert counts["asked"] == counts["failed"] == 2


def test_a_completion_without_end_token_was_cut_off() -> None:
    """The last token of a truncated output is not a stop."""
    ends = frozenset({7})
    assert as_completion(GOOD, [1, 2, 7], ends).finish is FinishReason.STOP
    assert as_completion(GOOD, [1, 2, 3], ends).finish is FinishReason.LENGTH
    assert as_completion("", [], ends).finish is FinishReason.LENGTH


CHECKS = (ClaimCheck(Choice.FIRST, "red", ClaimFinding.TRUE), ClaimCheck(Choice.SECOND, "blue", ClaimFinding.FALSE))


def checklist_parts(choice: str, *terms: RewardTerm, checks: tuple[ClaimCheck, ...] = CHECKS, **keys: Any) -> RewardParts:
    text = f"<think>{write_checks(checks)}\n</think><answer>{choice}</answer>"
    rollouts = [rollout(text)]
    parts = asyncio.run(JudgmentScorer("checklist", None).score(rollouts))
    return compose(parts, rollouts, (*reward_terms(**{"consistency": {"weight": 0.0}} | keys), *terms))[0]


def test_a_verdict_that_follows_from_its_checks_is_rewarded() -> None:
    """Format 0.5, the verdict 1, and 0.25 if it follows; one against its own checks keeps its format alone."""
    assert checklist_parts("1", follows_weight=0.25).total == 1.75
    assert checklist_parts("2", follows_weight=0.25).total == 0.5
    wrong = (replace(CHECKS[0], finding=ClaimFinding.FALSE), replace(CHECKS[1], finding=ClaimFinding.TRUE))
    assert checklist_parts("2", follows_weight=0.25, checks=wrong).total == 0.75
    assert checklist_parts("1", follows_weight=0.25, checks=wrong).status == "contradicted"
    plain = compose(asyncio.run(JudgmentScorer("checklist", None).score([rollout(GOOD)])), [rollout(GOOD)], reward_terms())
    assert (plain[0].total, plain[0].status) == (0.0, "no_verdict")


def test_checks_are_rewarded_by_their_truth() -> None:
    """Half of the known ones are right; a claim that cannot be seen is not; without a known one there is no score."""
    truths = {"red": True, "blue": True}
    term = checks_term(lambda judged, check: truths.get(check.claim), 0.4)
    assert checklist_parts("1", term).total == pytest.approx(1.5 + 0.4 / 2)
    unseen = (replace(CHECKS[0], finding=ClaimFinding.UNSEEN), CHECKS[1])
    assert checklist_parts("1", term, checks=unseen).scores["checks"] == 0
    assert checklist_parts("1", checks_term(lambda judged, check: None, 0.4)).scores["checks"] is None


def test_the_blind_reader_reaches_its_own_verdict(tmp_path: Path) -> None:
    """It sees no verdict; the digit of the verdict is agreement, the other one contradiction, anything else unknown."""
    server = ChatServer(text="1")
    with chat_server(server) as url:
        config = ConsistencyConfig.model_validate({"base_url": url, "model": "m", "reader": "blind"})
        judge = EndpointConsistencyJudge(config)

        async def ask() -> list[int]:
            scores = [await judge.score("Which color?", "1. red: true", choice) for choice in Choice]
            server.text = "0"
            scores.append(await judge.score("Which color?", "2. blue: false", Choice.FIRST))
            await judge.aclose()
            return scores

        assert asyncio.run(ask()) == [1, -1, 0]
    prompt = str(server.bodies[0]["messages"])
    assert "1. red: true" in prompt
    assert "is better" not in prompt
