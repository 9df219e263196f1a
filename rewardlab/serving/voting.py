"""How many votes a pair gets and what they come to: all at once, by their probabilities, or until the majority is settled."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

from rewardlab.errors import ConfigError
from rewardlab.serving.jobs import Ask
from rewardlab.serving.queue import Batcher
from rewardlab.types import BOTH_ORDERS, Judgment, Order, Outcome, PreferencePair, Vote
from rewardlab.verdicts.early_stopping import votes_settled
from rewardlab.verdicts.votes import in_order, judgment, reduce_votes

POLICIES = ("majority", "weighted", "sequential")


@dataclass(frozen=True)
class Asking:
    """``votes`` in each of ``orders``, at most that many where the ``policy`` is sequential, which stops as soon as the
    majority of all of them is known but for a probability of ``error``. A policy of None is the judge's own."""

    votes: int = 1
    policy: str | None = None
    error: float = 0.05
    orders: tuple[Order, ...] = BOTH_ORDERS
    seed: int = 0
    priority: int = 0
    timeout_s: float = 120.0


class Asker:
    """Asks a queue about pairs. Where an order has no valid vote there is no outcome: the other one leans to a place.

    Raises what :meth:`Batcher.ask` raises, and ConfigError where the judge cannot weigh.
    """

    def __init__(self, batcher: Batcher, *, weighs: bool) -> None:
        self._batcher, self.weighs = batcher, weighs

    async def ask(self, pair: PreferencePair, how: Asking) -> Judgment:
        """All votes at once; of a sequential policy round by round."""
        if how.policy != "sequential":
            return await self._cast(pair, how, how.votes, how.seed)
        return [judged async for judged in self.rounds(pair, how)][-1]

    async def rounds(self, pair: PreferencePair, how: Asking) -> AsyncIterator[Judgment]:
        """What the votes so far come to, after each round of one vote in every order."""
        votes: list[Vote] = []
        for turn in range(how.votes):
            votes += (await self._cast(pair, how, 1, how.seed + turn)).votes
            judged = self._reduced(pair, votes, how)
            yield judged
            left = len(how.orders) * (how.votes - turn - 1)
            known = judged.share_0 is not None  # both orders have spoken
            if how.policy == "sequential" and known and votes_settled(votes, left, how.error):
                return

    async def _cast(self, pair: PreferencePair, how: Asking, num_votes: int, seed: int) -> Judgment:
        if how.policy == "weighted" and not self.weighs:
            raise ConfigError("this judge tells no probabilities of its verdicts: ask for the policy majority or sequential")
        ask = Ask(pair, how.orders, num_votes, seed, weighs=how.policy == "weighted")
        judged: Judgment = await self._batcher.ask(ask, priority=how.priority, timeout_s=how.timeout_s)
        return self._reduced(pair, judged.votes, how)

    @staticmethod
    def _reduced(pair: PreferencePair, votes: list[Vote] | tuple[Vote, ...], how: Asking) -> Judgment:
        by_count = how.policy in ("majority", "sequential")
        judged = judgment(pair.pair_id, votes) if by_count else reduce_votes(pair.pair_id, votes)
        one_sided = any(
            all(vote.winner is None and vote.margin is None for vote in in_order(votes, order)) for order in how.orders
        )
        return replace(judged, outcome=Outcome.NO_VALID_VOTE, share_0=None) if one_sided else judged
