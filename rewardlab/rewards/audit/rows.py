"""The rows of an audit: prompts with their truth and a response, and how each is rewarded."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rewardlab.config import RLConfig
from rewardlab.config.judge import JudgeConfig
from rewardlab.data.images import read_image
from rewardlab.data.row_files import rows_of
from rewardlab.data.rows import truth_text
from rewardlab.errors import ConfigError, DataError
from rewardlab.judging.engines import open_model_judge
from rewardlab.judging.judge import ModelJudge
from rewardlab.rewards.judgment import JudgedCompletion, compose, terms_of
from rewardlab.rewards.scorer import JudgmentScorer
from rewardlab.rewards.verifiable.extraction import AnswerStatus, Contract
from rewardlab.rewards.verifiable.hybrid import (
    JudgeScore,
    PairJudge,
    Prompt,
    Route,
    all_verifiers,
    check_truth,
    hybrid_reward,
    route_of,
)
from rewardlab.rewards.verifiable.rules import PLACES, Compare, Domain, Problem
from rewardlab.types import Choice, Completion, FinishReason, Order, PreferencePair, VerdictStatus
from rewardlab.verdicts.parse import parse_verdict
from rewardlab.verdicts.votes import both_orders_or_none

VERDICT = "verdict"  # the domain of a judge's own judgments: truth "1" or "2", the better answer as presented
PUBLISHED = terms_of(RLConfig.model_validate({}))  # R1-Reward's terms and weights
FIELDS = "domain, question, response, truth (or best), and optionally reward, images, id"


@dataclass(frozen=True)
class AuditRow:
    """A prompt, one response, and the recorded reward, if any. ``consistency`` is another model's recorded answer, -1, 0 or
    +1."""

    prompt: Prompt
    response: str
    recorded: float | None
    consistency: int = 0


@dataclass(frozen=True)
class RewardResult:
    """A reward, who paid it (a :class:`Route`, "verdict" or "recorded"), how the answer was read, and what was read."""

    reward: float
    source: str
    status: str
    extracted: str = ""


def read_audit(path: Path, *, images: Path | None, contract: str, thinking: bool) -> list[AuditRow]:
    """Return all rows of a ``.parquet`` or ``.jsonl`` file. Raise DataError for the first bad row and for an empty file,
    ConfigError for an unknown contract."""
    if contract not in list(Contract):
        raise ConfigError(f"unknown contract {contract!r}; expected one of {', '.join(Contract)}")
    if path.suffix not in (".parquet", ".jsonl"):
        raise DataError(f"{path}: expected a .parquet or .jsonl file with {FIELDS}")
    if not path.is_file():
        raise DataError(f"{path}: no such file; expected rows with {FIELDS}")
    folder = images or path.parent
    with closing(rows_of(path)) as raw:
        rows = [_row(row, n, f"{path}, row {n}", folder, Contract(contract), thinking) for n, row in enumerate(raw)]
    if not rows:
        raise DataError(f"{path}: holds no rows")
    return rows


def _row(row: Any, index: int, where: str, folder: Path, contract: Contract, thinking: bool) -> AuditRow:
    if not isinstance(row, Mapping):
        raise DataError(f"{where}: expected an object with {FIELDS}, got {row!r:.80}")
    if {"pair_id", "text", "correct", "status", "consistency"} <= row.keys():
        return _rollout(row)
    for name in ("domain", "question", "response"):
        if not isinstance(row.get(name), str):
            raise DataError(f"{where}: {name!r} must be a string, got {row.get(name)!r:.80}; a row has {FIELDS}")
    if not row["domain"].strip():
        raise DataError(f"{where}: 'domain' is empty; expected math, number, choice, ..., or a name of your own")
    reward = row.get("reward")
    if reward is not None and (isinstance(reward, bool) or not isinstance(reward, int | float) or not math.isfinite(reward)):
        raise DataError(f"{where}: 'reward' is {reward!r:.80}; expected a finite number, or nothing")
    prompt = Prompt(
        prompt_id=str(row.get("id") or f"row-{index}"),
        domain=row["domain"],
        question=row["question"],
        truth=truth_text(row.get("truth")),
        best=truth_text(row.get("best")),
        images=tuple(read_image(folder / name) for name in row.get("images") or ()),
        contract=contract,
        thinking=thinking,
    )
    if prompt.domain == VERDICT and prompt.truth not in ("1", "2"):
        raise DataError(f"{where}: the truth of a verdict is {prompt.truth!r}; expected 1 or 2, the better answer as shown")
    return AuditRow(prompt, row["response"], None if reward is None else float(reward))


def _rollout(row: Mapping[str, Any]) -> AuditRow:
    """Return a line of the ``samples.jsonl`` of `rewardlab rl` as a row. The better answer follows from the verdict and whether
    it was right; without a verdict there is no truth, and the reward stays as recorded."""
    choice = parse_verdict(row["text"], "think_answer").choice if row["status"] == VerdictStatus.OK else None
    better = None if choice is None else choice if row["correct"] else choice.swap()
    truth = {None: None, Choice.FIRST: "1", Choice.SECOND: "2"}[better]
    prompt = Prompt(f"step {row['step']}, {row['order']}", VERDICT, f"pair {row['pair_id']}", truth)
    return AuditRow(prompt, row["text"], float(row["reward"]), int(row["consistency"]))


class _RecordedConsistency:
    """A consistency judge that repeats a recorded answer."""

    rounds = 1

    def __init__(self, consistency: int) -> None:
        self._consistency = consistency

    async def score(self, question: str, reasoning: str, verdict: Choice) -> int:
        return self._consistency


class Rewarder:
    """Gives the rewards of training: rules and the judge by :mod:`rewardlab.rewards.verifiable.hybrid`, verdicts by
    :mod:`rewardlab.rewards.scorer` with R1-Reward's weights and the recorded consistency."""

    def __init__(self, verifiers: Mapping[str, Compare], judge: PairJudge | None) -> None:
        self._verifiers, self._judge = verifiers, judge

    def source(self, prompt: Prompt) -> str | None:
        """Return the route of a prompt; None without one, or if it needs a judge and there is none."""
        if prompt.truth is None and prompt.best is None:
            return None
        if prompt.domain == VERDICT:
            return VERDICT
        route = route_of(prompt, self._verifiers)
        return None if route is not Route.VERIFIER and self._judge is None else route.value

    def reward(self, prompt: Prompt, completion: Completion, consistency: int = 0) -> RewardResult:
        if prompt.domain == VERDICT:
            judged = JudgedCompletion(completion, prompt.question, Order.GIVEN, preferred=int(prompt.truth == "2"))
            scorer = JudgmentScorer("think_answer", _RecordedConsistency(consistency))
            (part,) = compose(asyncio.run(scorer.score([judged])), [judged], PUBLISHED)
            return RewardResult(part.total, VERDICT, part.status)
        result = hybrid_reward(prompt, completion, verifiers=self._verifiers, judge=self._judge)
        return RewardResult(result.score, result.route.value, result.status.value, result.extracted)

    def check(self, row: AuditRow) -> None:
        """Raise DataError for a row that nothing rewards (no verifier, no judge for its reference, no recorded reward) and for
        tests or constraints that their rule cannot read; no probe would show these."""
        prompt = row.prompt
        if prompt.domain in PLACES and prompt.truth and self.source(prompt) == Route.VERIFIER.value:
            problem = Problem(Domain(prompt.domain), prompt.question, prompt.truth, prompt.contract)
            check_truth(problem, self._verifiers, prompt.prompt_id)
        if row.recorded is None and self.source(row.prompt) is None:
            route_of(row.prompt, self._verifiers)
            raise DataError(
                f"{row.prompt.prompt_id}: domain {row.prompt.domain!r} has no "
                "verifier, and the row has no reward; give --judge, "
                f"or use one of {', '.join(sorted(self._verifiers))}, {VERDICT}"
            )

    def reward_row(self, row: AuditRow) -> RewardResult:
        """Return the row's reward, computed again where possible, else as recorded."""
        if self.source(row.prompt) is not None:
            return self.reward(row.prompt, Completion(row.response, FinishReason.STOP), row.consistency)
        assert row.recorded is not None
        return RewardResult(row.recorded, "recorded", "recorded")


def pair_judge(judge: ModelJudge, *, num_votes: int) -> PairJudge:
    """Return a generative judge as a reward: the fraction of its valid votes for the response, over both orders. A response
    equal to the reference is at parity without a query. UNREADABLE if no vote of an order names a response, or if fewer than
    half of the votes are valid.
    """

    def score(prompt: Prompt, solution: str, reference: str) -> JudgeScore:
        if solution.strip() == reference.strip():
            return JudgeScore(0.5)
        pair = PreferencePair(prompt.prompt_id, prompt.question, (solution, reference), None, prompt.images)
        share = both_orders_or_none(judge.compare(pair, num_votes=num_votes, seed=0)).share_0
        return JudgeScore(0.0, AnswerStatus.UNREADABLE) if share is None else JudgeScore(share)

    return score


def open_rewarder(judge: JudgeConfig | None) -> Rewarder:
    """Return a rewarder with every rule, and the judge if there is one."""
    score: PairJudge | None = None
    if judge is not None:
        opened = open_model_judge(judge)
        opened.check()
        score = pair_judge(opened, num_votes=judge.votes or 1)
    return Rewarder(all_verifiers(), score)
