"""The demonstration's consistency checker within this process: the answers of `rewardlab demo serve`, without a server."""

from __future__ import annotations

from rewardlab.demo.server import check_consistency
from rewardlab.rewards.consistency import consistency_prompt, read_consistency
from rewardlab.types import Choice


class LocalChecker:
    """A :class:`rewardlab.rewards.scorer.ConsistencyJudge` that nobody has to wait for."""

    rounds = 1

    async def score(self, question: str, reasoning: str, verdict: Choice) -> int:
        """Return 1 where the reasoning supports the verdict, -1 where it does not, 0 where it takes no side."""
        return read_consistency(check_consistency(consistency_prompt(question, reasoning, verdict)))
