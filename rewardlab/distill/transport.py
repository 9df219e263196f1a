"""What every way of asking the teacher has in common: its interface, how far it is, and the fields of a request."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

from rewardlab.config import DistillConfig
from rewardlab.distill.budget import BudgetGuard
from rewardlab.distill.tagging import seed_of
from rewardlab.types import PreferencePair

PASSES = 3  # over pairs whose requests failed; batches in a row that may bring no answer


@dataclass
class Progress:
    """How far a run is: pairs with all their answers, those with a judgment to keep, those of which a request failed; and the
    fields that the teacher refuses, and is asked without."""

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
    """A way to ask the teacher, used as ``async with``: every answer is in the journal, and none exceeds the budget."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...

    async def run(self, pairs: Iterable[PreferencePair]) -> Progress:
        """Ask until every pair has its answers, the budget is spent, or requests keep failing; ``pairs`` are iterated more than
        once. Raises EndpointError where the endpoint is down or refuses.
        """
        ...


def request_fields(config: DistillConfig, pair_id: str, attempt: int) -> dict[str, float | int]:
    """Return the fields of a request beside model and messages."""
    return {**config.sampling, "seed": seed_of(pair_id, config.seed, attempt)}


def progress_note(progress: Progress, budget: BudgetGuard) -> str:
    """Return the text beside the progress bar."""
    share = f"{progress.kept / progress.done:.1%} kept" if progress.done else "none yet"
    money = f", ${budget.usd:,.2f}" if budget.usd else f", {budget.tokens:,} tokens"
    return share + money + (f", {len(progress.failed):,} failed" if progress.failed else "")
