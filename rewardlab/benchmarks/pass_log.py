"""The votes of a benchmark run on disk, by pass and row, and what they came to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from rewardlab.benchmarks.base import PARTIAL_VOTES, VOTES
from rewardlab.benchmarks.report_model import Cost
from rewardlab.config.data import NO_PRICES, Prices
from rewardlab.data.votes import VoteEntry, VoteLog
from rewardlab.types import Completion, Vote


@dataclass
class Spending:
    """Requests that were answered or failed, and their tokens; ``cached`` are among ``prompt``. ``longest`` is the longest
    prompt in tokens."""

    requests: int = 0
    prompt: int = 0
    cached: int = 0
    completion: int = 0
    longest: int = 0

    def add(self, completion: Completion) -> None:
        """Count a completion; an answer of an earlier run costs nothing now."""
        if completion.from_cache:
            return
        self.requests += 1
        self.prompt += completion.num_prompt_tokens
        self.cached += completion.num_cached_tokens
        self.completion += completion.num_tokens
        self.longest = max(self.longest, completion.num_prompt_tokens)

    def plus(self, cost: Cost) -> Spending:
        """Return what this and another run came to; the longest prompt is this one's."""
        prompt, completion = self.prompt + cost.prompt_tokens, self.completion + cost.completion_tokens
        return Spending(self.requests + cost.requests, prompt, self.cached + cost.cached_tokens, completion, self.longest)

    def usd(self, prices: Prices) -> float:
        """Return the price in US dollars."""
        return prices.usd(self.prompt, self.completion, self.cached)

    def cost(self, prices: Prices) -> Cost:
        """Return what a report holds of it; without prices no money."""
        usd = None if prices == NO_PRICES else self.usd(prices)
        return Cost(self.requests, self.prompt, self.completion, self.cached, usd)


def sum_costs(costs: Sequence[Cost]) -> Cost:
    """Return what several runs came to; money where it is known of all."""
    known = [cost.usd for cost in costs if cost.usd is not None]
    return Cost(
        sum(cost.requests for cost in costs),
        sum(cost.prompt_tokens for cost in costs),
        sum(cost.completion_tokens for cost in costs),
        sum(cost.cached_tokens for cost in costs),
        sum(known) if known and len(known) == len(costs) else None,
    )


class PassLog:
    """The log of a run in a folder, opened or continued (:class:`rewardlab.data.votes.VoteLog`): a line per row and pass.

    ``spending`` is what all votes of the run came to so far. Raise what the log raises.
    """

    def __init__(self, folder: Path, identity: Mapping[str, object]) -> None:
        self._log = VoteLog(folder / VOTES, folder / PARTIAL_VOTES, identity, {"pass": str, "row": int})
        self.spending = self._spent()

    def entries(self, pass_name: str) -> list[VoteEntry]:
        """Return the rows of a pass that were whole when the log was opened, in the order they were written; a row that was
        asked again is there again."""
        return [entry for entry in self._log.entries if entry.key[0] == pass_name]

    def answered(self, pass_name: str, row: int) -> dict[int, tuple[Vote, float]]:
        """Return the votes of a row that need not be asked for again, by place, each with the seconds it took that are in no
        line yet."""
        return self._log.answered((pass_name, row))

    def _spent(self) -> Spending:
        """Return what was paid for: what need not be asked again, and what failed."""
        spending = Spending()
        for key in self._log.keys:
            for vote in [vote for vote, _ in self._log.answered(key).values()] + self._log.failed(key):
                spending.add(vote.completion)
        return spending

    def write_row(self, pass_name: str, row: int, votes: Sequence[Vote], seconds: float | None) -> None:
        """Append a row that has all of its votes."""
        self._log.write_all((pass_name, row), votes, seconds)

    def write_vote(self, pass_name: str, row: int, place: int, vote: Vote, seconds: float) -> None:
        """Append a vote of a row that may lack others."""
        self._log.write_vote((pass_name, row), place, vote, seconds)

    def finish(self) -> None:
        """Remove what only an unfinished run needs."""
        self._log.finish()

    def close(self) -> None:
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
