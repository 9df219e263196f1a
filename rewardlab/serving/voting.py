"""The votes on a pair and their judgment: sampled all at once, weighted by probability, or until the majority is settled."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from rewardlab.errors import ConfigError
from rewardlab.serving.jobs import JudgeJob
from rewardlab.serving.queue import JudgeQueue
from rewardlab.types import BOTH_ORDERS, Judgment, Order, PreferencePair, Vote
from rewardlab.verdicts.early_stopping import votes_settled
from rewardlab.verdicts.votes import both_orders_or_none, enough_valid, judgment, reduce_votes


@dataclass(frozen=True)
class VotingOptions:
    """``votes`` in each of ``orders``. The ``policy`` sequential stops as soon as the majority of all of them is settled with
    error probability ``error``, or more than half of them are invalid; None is the judge's own policy. ``priority``,
    ``deadline`` and ``waits_for_room`` are those of :meth:`JudgeQueue.submit`, ``is_new_draw`` is that of a job."""

    votes: int = 1
    policy: str | None = None
    error: float = 0.05
    orders: tuple[Order, ...] = BOTH_ORDERS
    seed: int = 0
    priority: int = 0
    deadline: float | None = None
    waits_for_room: bool = False
    is_new_draw: bool = False


class VoteCollector:
    """Collects the votes on pairs from a queue. A winner needs more than half of the requested votes. A pair without a vote for
    a response in one order has no outcome: the votes of the other order alone carry its position bias.

    Raise what :meth:`JudgeQueue.submit` raises, and ConfigError for the policy weighted and a judge without probabilities.
    """

    def __init__(self, queue: JudgeQueue) -> None:
        self._queue = queue

    @property
    def has_probabilities(self) -> bool:
        """Return whether the judge of the request has probabilities of its verdicts."""
        return self._queue.versions.current.probability_judge is not None

    async def collect(self, pair: PreferencePair, options: VotingOptions) -> Judgment:
        """Return the judgment of all votes, sampled at once; with a sequential policy round by round."""
        if options.policy != "sequential":
            return await self._vote(pair, options, options.votes, options.seed)
        return [judgment_so_far async for judgment_so_far in self.rounds(pair, options)][-1]

    async def rounds(self, pair: PreferencePair, options: VotingOptions) -> AsyncIterator[Judgment]:
        votes: list[Vote] = []
        for turn in range(options.votes):
            votes += (await self._vote(pair, options, 1, options.seed + turn)).votes
            judgment_so_far = self._reduce(pair, votes, options)
            yield judgment_so_far
            left = len(options.orders) * (options.votes - turn - 1)
            if options.policy != "sequential":
                continue
            has_share, can_have_share = judgment_so_far.share_0 is not None, enough_valid(votes, left)
            if not can_have_share or (has_share and votes_settled(votes, left, options.error)):
                return

    async def _vote(self, pair: PreferencePair, options: VotingOptions, num_votes: int, seed: int) -> Judgment:
        if options.policy == "weighted" and not self.has_probabilities:
            raise ConfigError("this judge has no verdict probabilities: use the policy majority or sequential")
        by_probability, new = options.policy == "weighted", options.is_new_draw
        job = JudgeJob(pair, options.orders, num_votes, seed, by_probability=by_probability, is_new_draw=new)
        result: Judgment = await self._queue.submit(
            job, priority=options.priority, deadline=options.deadline, waits_for_room=options.waits_for_room
        )
        return self._reduce(pair, result.votes, options)

    @staticmethod
    def _reduce(pair: PreferencePair, votes: list[Vote] | tuple[Vote, ...], options: VotingOptions) -> Judgment:
        by_count = options.policy in ("majority", "sequential")
        result = judgment(pair.pair_id, votes) if by_count else reduce_votes(pair.pair_id, votes)
        return both_orders_or_none(result, options.orders)
