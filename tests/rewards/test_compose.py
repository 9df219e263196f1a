"""The one composition of a judgment's reward, term by term, and that trainer, verl plug-in and audit pay the same by it."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rewardlab.config import ConsistencyConfig
from rewardlab.errors import ConfigError
from rewardlab.integrations.judge_rewards import JudgeRewards
from rewardlab.rewards.audit.rows import VERDICT, Rewarder
from rewardlab.rewards.judgment import JudgedCompletion, RewardParts, RewardWeights, compose, load_terms
from rewardlab.rewards.judgment_function import JudgmentReward
from rewardlab.rewards.rollout import Rollout, Trajectory
from rewardlab.rewards.scorer import EndpointConsistencyJudge, JudgmentScorer
from rewardlab.rewards.verifiable.hybrid import Prompt
from rewardlab.types import Choice, Completion, FinishReason, Order
from rewardlab.verdicts.parse import format_verdict

RIGHT = RewardParts(format=True, correct=True, consistency=1, status="ok")
WRONG = RewardParts(format=True, correct=False, consistency=0, status="ok")
FAILED = RewardParts(format=False, correct=False, consistency=0, status="error")
END = 7
EXAMPLE = Path(__file__).parents[1] / "support" / "example_reward_term.py"


def judged(length: int = 5) -> JudgedCompletion:
    return JudgedCompletion(Completion("text", FinishReason.STOP, length), "Which color?", Order.GIVEN, 0)


def total(part: RewardParts, weights: RewardWeights, *, length: int = 5, **more: Any) -> float:
    return compose([part], [judged(length)], weights, **more)[0].total


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (RIGHT, 0.3 + 1 + 0.2),
        (replace(RIGHT, consistency=0), 0.3 + 1),
        (replace(RIGHT, consistency=-1), 0.3 + 1 - 0.2),
        (replace(RIGHT, format=False), 1 + 0.2),
        (WRONG, 0.3),
        (replace(WRONG, format=False), 0.0),
        (replace(WRONG, consistency=1), 0.3),  # consistency is worth nothing where the verdict is wrong
    ],
)
def test_format_verdict_and_consistency(part: RewardParts, expected: float) -> None:
    assert total(part, RewardWeights(format=0.3, consistency=0.2)) == pytest.approx(expected)


def test_the_swap_term() -> None:
    """Its weight times the agreement, right or wrong; of weight 0 no agreement is looked at."""
    weights = RewardWeights(swap=0.4)
    right, wrong = compose([RIGHT, WRONG], [judged()] * 2, weights, agreements=[0.5, 1.0])
    assert (right.total, right.swap_agreement) == (pytest.approx(2.0 + 0.4 * 0.5), 0.5)
    assert (wrong.total, wrong.swap_agreement) == (pytest.approx(0.5 + 0.4), 1.0)
    assert compose([RIGHT], [judged()], RewardWeights(), agreements=[1.0])[0] == replace(RIGHT, total=2.0)


@pytest.mark.parametrize(("length", "cost"), [(5, 0.0), (10, 0.0), (15, -0.5), (20, -1.0), (25, -1.0)])
def test_the_overlong_term(length: int, cost: float) -> None:
    """Nothing up to 10 tokens, then linearly to -1 at 20, and -1 beyond."""
    (part,) = compose([RIGHT], [judged(length)], RewardWeights(overlong=(20, 10)))
    assert (part.total, part.overlong) == (pytest.approx(2.0 + cost), pytest.approx(cost))
    assert total(RIGHT, RewardWeights(), length=length) == 2.0


def test_all_terms_add_up() -> None:
    weights = RewardWeights(format=0.3, consistency=0.2, swap=0.4, overlong=(20, 10))
    assert total(RIGHT, weights, agreements=[0.25], length=15) == pytest.approx(0.3 + 1.2 + 0.1 - 0.5)


def test_what_could_not_be_scored_earns_nothing() -> None:
    """Though its parts should claim something; only agreement, which it cannot have, and length are looked at."""
    claims = replace(RIGHT, status="error")
    for part in (FAILED, claims):
        assert total(part, RewardWeights()) == 0.0
        assert total(part, RewardWeights(swap=0.4, overlong=(20, 10)), agreements=[0.0], length=20) == -1.0


def test_what_a_term_needs() -> None:
    with pytest.raises(ValueError, match="agreement"):
        compose([RIGHT], [judged()], RewardWeights(swap=0.5))


def test_a_term_from_a_file() -> None:
    """Its weight times what it says; what it raises, or says that is no number, earns 0 and is told apart."""
    (term,) = load_terms([str(EXAMPLE)])
    short = replace(judged(), completion=Completion("Red. Blue.", FinishReason.STOP, 5))
    (part,) = compose([RIGHT], [short], RewardWeights(terms=(term,)))
    assert part.terms == {"short_sentences": 1.0}
    assert part.total == pytest.approx(2.0 + 0.2)
    for broken in (lambda judged, part: 1 / 0, lambda judged, part: math.nan):
        (part,) = compose([RIGHT], [short], RewardWeights(terms=(replace(term, score=broken),)))
        assert part.terms == {"short_sentences": None}
        assert part.total == 2.0
    (part,) = compose([FAILED], [short], RewardWeights(terms=(term,)))
    assert part.total == 0.0


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


def by_the_trainer(cases: Any, answer: int, weights: RewardWeights, out: Path) -> list[float | None]:
    judge = FixedJudge(answer)
    scorer = JudgmentScorer("think_answer", judge)
    reward = JudgmentReward(scorer, judge, weights, ends=frozenset({END}), samples=out / "samples.jsonl")
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


def by_verl(cases: Any, answer: int, weights: RewardWeights) -> list[float]:
    rewards = JudgeRewards(FixedJudge(answer), weights, num_samples=len(cases) // 2)

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
    assert by_the_trainer(cases, answer, RewardWeights(), tmp_path) == by_verl(cases, answer, RewardWeights()) == audited
    assert audited[:3] == [1.5 + 0.5 * answer, 0.5, 0.0]


def test_trainer_and_plugin_pay_every_term_alike(tmp_path: Path) -> None:
    cases = [(*case, order) for order in ("given", "swapped") for case in CASES]
    weights = RewardWeights(format=0.3, consistency=0.2, swap=0.4, overlong=(20, 10))
    paid = by_the_trainer(cases, 1, weights, tmp_path)
    assert paid == by_verl(cases, 1, weights)
    assert len(set(paid)) > 4


def test_names_and_weights_of_terms(tmp_path: Path) -> None:
    """A file may declare dataclasses; a name that metrics have, or a weight that is no number, is refused."""
    text = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "from rewardlab.rewards.judgment import RewardTerm\n\n"
        "@dataclass\nclass Bonus:\n    size: float\n    def __call__(self, judged, part):\n        return self.size\n\n"
        "REWARD_TERM = RewardTerm({name!r}, {weight}, Bonus(1.0))\n"
    )
    path = tmp_path / "term.py"
    path.write_text(text.format(name="bonus", weight="0.5"))
    (term,) = load_terms([str(path)])
    assert compose([RIGHT], [judged()], RewardWeights(terms=(term,)))[0].total == 2.5
    for name, weight, message in (("accuracy", "1.0", "is taken"), ("bonus", "float('nan')", "finite")):
        path.write_text(text.replace("{name!r}", repr(name)).replace("{weight}", weight))
        with pytest.raises(ConfigError, match=f"reward_terms: .*{message}"):
            load_terms([str(path)])
