"""Queries to the teacher and the tags that its answers give a pair: transports' interface, request fields, tags."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Protocol, Self

from rewardlab.config import DistillConfig
from rewardlab.distill.budget import BudgetGuard
from rewardlab.distill.journal import Answer
from rewardlab.prompts import load_template
from rewardlab.types import BOTH_ORDERS, Order, PreferencePair, choice_of
from rewardlab.verdicts.parse import verdict_of


def order_of(pair_id: str, seed: int, attempt: int) -> Order:
    """Return the order of an attempt (from 1): the first by a coin of seed and pair, then alternating."""
    first = random.Random(f"order {seed} {pair_id}").choice(BOTH_ORDERS)
    return first if attempt % 2 else first.swap()


def seed_of(pair_id: str, seed: int, attempt: int) -> int:
    """Return the seed of an attempt's request."""
    return int(hashlib.sha256(f"{seed} {pair_id}/{attempt}".encode()).hexdigest()[:7], 16)


def agrees(pair: PreferencePair, answer: Answer, verdict_format: str) -> bool:
    """Return whether a teacher's answer names the preferred response; an invalid answer does not."""
    verdict = verdict_of(answer.completion(), verdict_format, pair.criteria)
    assert pair.preferred is not None
    return verdict.choice is choice_of(pair.preferred, answer.order)


def tag(pair: PreferencePair, answers: Sequence[Answer], config: DistillConfig) -> PreferencePair | None:
    """Return the pair with its difficulty and kept judgment, or None if more answers are needed.

    ``attempts`` is "1".."3" for the attempt that agreed with the label, whose order and text are kept, else "unsolved" after
    the last one. ``teacher_share`` is the fraction of the first ``votes`` answers that agree, half of them in each order; None
    without votes. ``answers`` are those of attempts 1, 2, ... without a gap.
    """
    verdict_format = load_template(config.template).verdict_format
    correct = [agrees(pair, answer, verdict_format) for answer in answers]
    first = next((n for n, hit in enumerate(correct[: config.max_attempts]) if hit), None)
    if len(answers) < config.votes or (first is None and len(answers) < config.max_attempts):
        return None
    share = sum(correct[: config.votes]) / config.votes if config.votes else None
    if first is None:
        order = order_of(pair.pair_id, config.seed, 1)
        return replace(pair, attempts="unsolved", judgment="", order=order, teacher_share=share)
    agreeing = answers[first]
    return replace(pair, attempts=str(first + 1), judgment=agreeing.text, order=agreeing.order, teacher_share=share)


PASSES = 3  # over pairs whose requests failed; also rounds of batches in a row without an answer


@dataclass
class Progress:
    """Progress of a run: pairs with all their answers, pairs with a judgment to keep, pairs with failed requests; and the
    fields that are left out because the teacher refuses them."""

    done: int = 0
    kept: int = 0
    failed: set[str] = field(default_factory=set)
    out_of_budget: bool = False
    left_out: frozenset[str] = frozenset()

    def count(self, tagged: PreferencePair) -> None:
        self.done += 1
        self.kept += bool(tagged.judgment)
        self.failed.discard(tagged.pair_id)


class Transport(Protocol):
    """A way to query the teacher, used as ``async with``: every answer is in the journal, and none exceeds the budget."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...

    async def run(self, pairs: Iterable[PreferencePair]) -> Progress:
        """Query until every pair has its answers, the budget is spent, or requests keep failing; ``pairs`` are iterated more
        than once. Raises EndpointError if the endpoint is down or refuses."""
        ...


def request_fields(config: DistillConfig, pair_id: str, attempt: int) -> dict[str, float | int]:
    """Return the fields of a request beside model and messages."""
    return {**config.sampling, "seed": seed_of(pair_id, config.seed, attempt)}


def progress_note(progress: Progress, budget: BudgetGuard) -> str:
    """Return the text beside the progress bar."""
    share = f"{progress.kept / progress.done:.1%} kept" if progress.done else "none yet"
    money = f", ${budget.usd:,.2f}" if budget.usd else f", {budget.tokens:,} tokens"
    return share + money + (f", {len(progress.failed):,} failed" if progress.failed else "")
