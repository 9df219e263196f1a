"""The one composition of a judgment's reward, term by term, and that trainer, verl plug-in and audit pay the same by it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from rewardlab.config import ConsistencyConfig, RLConfig, load_config
from rewardlab.errors import ConfigError
from rewardlab.integrations.judge_rewards import JudgeRewards
from rewardlab.rewards.audit.rows import VERDICT, Rewarder
from rewardlab.rewards.consistency import EndpointConsistencyJudge
from rewardlab.rewards.judgment import SHIPPED, JudgedCompletion, RewardParts, RewardTerm, compose, load_terms, terms_of
from rewardlab.rewards.rollout import Rollout, Trajectory
from rewardlab.rewards.scorer import JudgmentReward, JudgmentScorer
from rewardlab.rewards.verifiable.hybrid import Prompt
from rewardlab.types import Choice, Completion, FinishReason, Order, VerdictStatus
from rewardlab.verdicts.parse import format_verdict
from tests.support.rewards import reward_terms

RIGHT = RewardParts(format=True, correct=True, consistency=1, status=VerdictStatus.OK)
WRONG = RewardParts(format=True, correct=False, consistency=0, status=VerdictStatus.OK)
FAILED = RewardParts(format=False, correct=False, consistency=0, status=VerdictStatus.ERROR)
END = 7
OVERLONG = {"max_completion_length": 20, "overlong_margin": 10}
ALL_TERMS = reward_terms(format_weight=0.3, consistency={"weight": 0.2}, swap_weight=0.4, **OVERLONG)
EXAMPLE = Path(__file__).parents[1] / "support" / "example_reward_term.py"


def judged(length: int = 5) -> JudgedCompletion:
    return JudgedCompletion(Completion("text", FinishReason.STOP, length), "Which color?", Order.GIVEN, 0)


def total(part: RewardParts, terms: Sequence[RewardTerm], *, length: int = 5) -> float:
    return compose([part], [judged(length)], terms)[0].total


@pytest.mark.parametrize("status", [VerdictStatus.OK, VerdictStatus.NO_VERDICT])
@pytest.mark.parametrize(("format_ok", "correct", "consistency"), list(product([True, False], [True, False], [-1, 0, 1])))
def test_the_published_table(format_ok: bool, correct: bool, consistency: int, status: VerdictStatus) -> None:
    """R = 0.5 F + correct (1 + 0.5 C), all twelve cases; consistency is worth nothing for a wrong verdict."""
    part = RewardParts(format_ok, correct, consistency, status)
    expected = {(True, -1): 0.5, (True, 0): 1.0, (True, 1): 1.5}.get((correct, consistency), 0.0) + 0.5 * format_ok
    assert total(part, reward_terms()) == expected


def test_the_swap_term() -> None:
    """Its weight times the agreement, for right and wrong verdicts. Without the agreement it raises."""
    terms = reward_terms(swap_weight=0.4)
    assert total(replace(RIGHT, agreement=0.5), terms) == pytest.approx(2.0 + 0.4 * 0.5)
    assert total(replace(WRONG, agreement=1.0), terms) == pytest.approx(0.5 + 0.4)
    assert total(replace(RIGHT, agreement=1.0), reward_terms()) == 2.0
    with pytest.raises(ValueError, match="agreement"):
        total(RIGHT, terms)


@pytest.mark.parametrize(("length", "cost"), [(5, 0.0), (10, 0.0), (15, -0.5), (20, -1.0), (25, -1.0)])
def test_the_overlong_term(length: int, cost: float) -> None:
    """Nothing up to 10 tokens, then linearly to -1 at 20, and -1 beyond."""
    (part,) = compose([RIGHT], [judged(length)], reward_terms(**OVERLONG))
    assert (part.total, part.scores["overlong"]) == (pytest.approx(2.0 + cost), pytest.approx(cost))
    assert total(RIGHT, reward_terms(), length=length) == 2.0


def test_all_terms_add_up() -> None:
    assert total(replace(RIGHT, agreement=0.25), ALL_TERMS, length=15) == pytest.approx(0.3 + 1.2 + 0.1 - 0.5)


def test_a_rollout_that_could_not_be_scored_earns_nothing() -> None:
    """Whatever its parts say; only the agreement, which it cannot have, and the length count."""
    for part in (FAILED, replace(RIGHT, status=VerdictStatus.ERROR)):
        assert total(part, reward_terms()) == 0.0
        assert total(replace(part, agreement=0.0), reward_terms(swap_weight=0.4, **OVERLONG), length=20) == -1.0


def test_every_shipped_term_is_paid_by_its_key() -> None:
    """A key of the table that is set to 0 or none removes its term, and the term alone."""
    paid = {"format_weight": 0.3, "consistency.weight": 0.2, "swap_weight": 0.4, "overlong_margin": 3}
    assert paid.keys() <= SHIPPED.keys()
    terms = {term.key: term for term in terms_of(load_config(RLConfig, None, paid))}
    assert terms.keys() == paid.keys()
    for key in paid.keys() - {"consistency.weight"}:
        without = terms_of(load_config(RLConfig, None, paid | {key: None if key == "overlong_margin" else 0}))
        assert {term.key for term in without} == paid.keys() - {key}


def test_a_term_from_a_file() -> None:
    """Its weight times its score; an exception, or a score that is no finite number, earns 0 and is recorded as none."""
    (term,) = load_terms([str(EXAMPLE)])
    short = replace(judged(), completion=Completion("Red. Blue.", FinishReason.STOP, 5))
    terms = reward_terms(reward_terms=[str(EXAMPLE)])
    (part,) = compose([RIGHT], [short], terms)
    assert part.scores["short_sentences"] == 1.0
    assert part.total == pytest.approx(2.0 + 0.2)
    for broken in (lambda judged, part: 1 / 0, lambda judged, part: math.nan):
        (part,) = compose([RIGHT], [short], [*reward_terms(), replace(term, score=broken)])
        assert part.scores["short_sentences"] is None
        assert part.total == 2.0
    assert total(FAILED, terms) == 0.0


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "no such file"), ("REWARD_TERM = 1", "has no REWARD_TERM"), ("1 / 0", "ZeroDivisionError")],
)
def test_a_file_without_a_term(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "term.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_terms([str(path)])
    with pytest.raises(ConfigError, match="reward_terms: unknown 'nobody'"):
        load_terms(["nobody"])
    with pytest.raises(ConfigError, match="is taken"):
        load_terms([str(EXAMPLE), str(EXAMPLE)])


class FixedJudge(EndpointConsistencyJudge):
    """Answers the same of every judgment."""

    def __init__(self, answer: int) -> None:
        super().__init__(ConsistencyConfig.model_validate({}))
        self.answer = answer

    async def check(self) -> None:
        pass

    async def score(self, question: str, reasoning: str, verdict: Choice) -> int:
        return self.answer


GOOD, BAD = format_verdict(Choice.FIRST, "It is red."), format_verdict(Choice.SECOND, "It is red.")
CASES = [(GOOD, True), (BAD, True), (GOOD, False), ("<answer>1</answer>", True), ("Hm.", True), ("", True)]


def by_the_trainer(cases: Any, answer: int, terms: Sequence[RewardTerm], out: Path) -> list[float | None]:
    judge = FixedJudge(answer)
    scorer = JudgmentScorer("think_answer", judge)
    reward = JudgmentReward(scorer, judge, terms, ends=frozenset({END}), samples=out / "samples.jsonl")
    rollouts = [
        Rollout(
            {"question": "q", "order": order, "preferred": 0, "pair_id": "p"},
            [],
            Trajectory([1] * 14 + ([END] if ends else [2])),
            text,
        )
        for text, ends, order in cases
    ]
    scored = reward(rollouts, 0)
    reward.close()
    return scored.rewards


def completion_of(text: str, ends: bool) -> Completion:
    return Completion(text, FinishReason.STOP if ends else FinishReason.LENGTH, 15)


def by_verl(cases: Any, answer: int, terms: Sequence[RewardTerm]) -> list[float]:
    rewards = JudgeRewards(FixedJudge(answer), terms, num_samples=len(cases) // 2)

    async def main() -> list[dict[str, float]]:
        judged = [JudgedCompletion(completion_of(text, ends), "q", Order(order), 0) for text, ends, order in cases]
        return await asyncio.gather(*(rewards.reward(one, "p", "think_answer") for one in judged))

    return [result["score"] for result in asyncio.run(main())]


@pytest.mark.parametrize("answer", [-1, 0, 1])
def test_trainer_plugin_and_audit_pay_the_same(tmp_path: Path, answer: int) -> None:
    """For the same completions, by the published weights: right, wrong, cut off, in bad format, without a verdict, empty."""
    cases = [(*case, "given") for case in CASES]
    rewarder, prompt = Rewarder({}, None), Prompt("p", VERDICT, "q", "1")
    audited = [rewarder.reward(prompt, completion_of(text, ends), answer).reward for text, ends in CASES]
    assert by_the_trainer(cases, answer, reward_terms(), tmp_path) == by_verl(cases, answer, reward_terms()) == audited
    assert audited[:3] == [1.5 + 0.5 * answer, 0.5, 0.0]


def test_trainer_and_plugin_pay_every_term_alike(tmp_path: Path) -> None:
    cases = [(*case, order) for order in ("given", "swapped") for case in CASES]
    paid = by_the_trainer(cases, 1, ALL_TERMS, tmp_path)
    assert paid == by_verl(cases, 1, ALL_TERMS)
    assert len(set(paid)) > 4


def test_names_and_weights_of_terms(tmp_path: Path) -> None:
    """A file may declare dataclasses; a name that metrics have, or a weight that is no number, is refused."""
    text = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "from rewardlab.rewards.judgment import RewardTerm\n\n"
        "@dataclass\nclass Bonus:\n    size: float\n    def __call__(self, judged, part):\n        return self.size\n\n"
        "REWARD_TERM = RewardTerm({name!r}, {weight}, Bonus(1.0), key='seed')\n"
    )
    path = tmp_path / "term.py"
    path.write_text(text.format(name="bonus", weight="0.5"))
    (term,) = load_terms([str(path)])
    assert total(RIGHT, [*reward_terms(), term]) == 2.5
    assert term.key is None  # a term from a file may fail
    for name, weight, message in (("accuracy", "1.0", "is taken"), ("bonus", "float('nan')", "finite")):
        path.write_text(text.replace("{name!r}", repr(name)).replace("{weight}", weight))
        with pytest.raises(ConfigError, match=f"reward_terms: .*{message}"):
            load_terms([str(path)])
