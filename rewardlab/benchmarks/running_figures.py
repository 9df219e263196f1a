"""What the votes of a pass came to so far, in a few words beside the progress bar."""

from __future__ import annotations

from dataclasses import dataclass

from rewardlab.benchmarks.spending import Spending
from rewardlab.config.data import NO_PRICES, Prices
from rewardlab.types import Vote
from rewardlab.verdicts.votes import VALID


@dataclass
class RunningFigures:
    """Counts of single votes, those of an earlier part of a run among them. ``num_right`` are those that
    named the better response, ``num_invalid`` those that were answered and cannot be read; a tie is neither."""

    num_votes: int = 0
    num_right: int = 0
    num_invalid: int = 0
    num_failed: int = 0

    def add(self, vote: Vote, preferred: int | None) -> None:
        """Count a vote on a pair whose better response has the index ``preferred``."""
        self.num_votes += 1
        self.num_right += vote.winner is not None and vote.winner == preferred
        if vote.completion.failed:
            self.num_failed += 1
        elif vote.verdict.status not in VALID:
            self.num_invalid += 1

    def note(self, spending: Spending, prices: Prices) -> str:
        """Return the figures in words: the share of all votes that are right, then what is not zero."""
        if not self.num_votes:
            return ""
        parts = [f"{100 * self.num_right / self.num_votes:.1f} % of votes right"]
        parts += [f"{num:,} {name}" for num, name in ((self.num_invalid, "invalid"), (self.num_failed, "failed")) if num]
        if prices != NO_PRICES:
            parts.append(f"${spending.usd(prices):,.2f}")
        elif tokens := spending.prompt + spending.completion:
            parts.append(f"{tokens:,} tokens")
        return ", ".join(parts)
