"""The votes on a pair and their judgment, and groups of responses, which are judged pair by pair.

Votes are sampled all at once, weighted by probability, or sampled until the majority is settled. A group comes as a whole, or
is collected from frameworks that send one response at a time.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, TypeVar

from rewardlab.config.judge import JudgeConfig
from rewardlab.errors import ConfigError
from rewardlab.judging.group_rewards import GroupRewards, JudgedMatch, judged_list, rewards_of_matches, start_plan
from rewardlab.judging.guarantee import Guarantee
from rewardlab.judging.lists import require_lists
from rewardlab.judging.ranking import WHOLE, Match, ranking_of
from rewardlab.serving.admission import separate_share
from rewardlab.serving.errors import EngineFailedError, GroupTimeoutError
from rewardlab.serving.jobs import JudgeJob
from rewardlab.serving.media import run_in_turn
from rewardlab.serving.queue import JudgeQueue
from rewardlab.serving.request_record import tenant_of_request
from rewardlab.types import BOTH_ORDERS, Candidates, Judgment, Order, PreferencePair, Vote
from rewardlab.verdicts.early_stopping import votes_settled
from rewardlab.verdicts.votes import both_orders_or_none, enough_valid, judgment, reduce_votes


@dataclass(frozen=True)
class VotingOptions:
    """``votes`` in each of ``orders``. The ``policy`` sequential stops as soon as the majority of all of them is settled with
    error probability ``stop_error``, or more than half of them are invalid; None is the judge's own policy. ``guarantee``
    abstains below its threshold. ``priority``, ``deadline`` and ``waits_for_room`` are those of :meth:`JudgeQueue.submit`."""

    votes: int = 1
    policy: str | None = None
    stop_error: float = 0.05
    orders: tuple[Order, ...] = BOTH_ORDERS
    seed: int = 0
    priority: int = 0
    deadline: float | None = None
    waits_for_room: bool = False
    guarantee: Guarantee | None = None

    @staticmethod
    def of(config: JudgeConfig) -> VotingOptions:
        """Return the options of a judge's config; an error of stopping means the policy sequential."""
        policy = config.policy or (None if config.stop_error is None else "sequential")
        options = VotingOptions(config.votes or 1, policy)
        return options if config.stop_error is None else replace(options, stop_error=config.stop_error)


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
            if not can_have_share or (has_share and votes_settled(votes, left, options.stop_error)):
                return

    async def _vote(self, pair: PreferencePair, options: VotingOptions, num_votes: int, seed: int) -> Judgment:
        if options.policy == "weighted" and not self.has_probabilities:
            raise ConfigError("this judge has no verdict probabilities: use the policy majority or sequential")
        job = JudgeJob(pair, options.orders, num_votes, seed, by_probability=options.policy == "weighted")
        result: Judgment = await self._queue.submit(
            job, priority=options.priority, deadline=options.deadline, waits_for_room=options.waits_for_room
        )
        return self._reduce(pair, result.votes, options)

    @staticmethod
    def _reduce(pair: PreferencePair, votes: list[Vote] | tuple[Vote, ...], options: VotingOptions) -> Judgment:
        by_count = options.policy in ("majority", "sequential")
        result = judgment(pair.pair_id, votes) if by_count else reduce_votes(pair.pair_id, votes)
        return options.guarantee.decide(result) if options.guarantee else both_orders_or_none(result, options.orders)


T = TypeVar("T")


BEGUN_TOGETHER = 16  # calls of one request in one turn of the event loop


async def gather_bounded(calls: Iterable[Callable[[], Coroutine[Any, Any, T]]], *, limit: int = 256) -> list[T]:
    """Return the results of all calls, of which ``limit`` run at a time: one large request must not fill the queue. Everything
    else that is ready runs between :data:`BEGUN_TOGETHER` calls and the next: with cached answers they end at once.

    If a call fails, the others are cancelled, and its exception is raised.
    """
    slots, tasks = asyncio.Semaphore(limit), list[asyncio.Task[T]]()

    async def run(call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        try:
            return await call()
        finally:
            slots.release()

    try:
        async with asyncio.TaskGroup() as group:
            for number, call in enumerate(calls, 1):
                await slots.acquire()
                tasks.append(group.create_task(run(call)))
                if number % BEGUN_TOGETHER == 0:
                    await asyncio.sleep(0)
    except BaseExceptionGroup as errors:
        errors.__traceback__ = None
        del tasks, group  # each holds an error whose frames, this one among them, hold the request
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


async def group_rewards(
    compare: Callable[[PreferencePair], Awaitable[Judgment]],
    group: Candidates,
    *,
    strategy: str,
    budget: int | None = None,
    verdict_format: str = "",
) -> GroupRewards:
    """Return the rewards of a group's responses (:func:`rewardlab.judging.group_rewards.rewards_of_matches`); a match without
    a verdict does not count. Raise ConfigError for a budget that is too small, and what ``compare`` raises: rewards over the
    matches that happened to succeed would not be comparable."""
    num = len(group.responses)
    plan, matches = start_plan(strategy, num, budget)
    results: list[JudgedMatch] = []
    if strategy == WHOLE:
        require_lists(verdict_format, num)
        judged = await compare(group.listed())
        results = await run_in_turn(judged_list, group, judged, verdict_format)
        ranking = ranking_of(plan, [match.winner for match in results])
        return await run_in_turn(rewards_of_matches, strategy, num, ranking, results, group.criteria)
    while True:
        round_results = await gather_bounded(partial(_play, compare, group, match) for match in matches)
        results += round_results
        try:
            matches = plan.send([match.winner for match in round_results])
        except StopIteration as end:
            return await run_in_turn(rewards_of_matches, strategy, num, end.value, results, group.criteria)


async def _play(compare: Callable[[PreferencePair], Awaitable[Judgment]], group: Candidates, match: Match) -> JudgedMatch:
    return JudgedMatch(*match, await compare(group.pair(*match)))


R = TypeVar("R")


@dataclass(eq=False)
class Member(Generic[T, R]):
    """A response in a group, with the future of each request that waits for its reward: one, or more if it was sent again."""

    value: T
    name: str
    futures: list[asyncio.Future[R]] = field(default_factory=list)


class Group(Generic[T, R]):
    """The members of a group; ``task`` is that of its reward, None before it is full."""

    def __init__(self) -> None:
        self.members: list[Member[T, R]] = []
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None

    def fail(self, error: Exception) -> None:
        for future in (future for member in self.members for future in member.futures if not future.done()):
            future.set_exception(error)

    def leave(self, member: Member[T, R], future: asyncio.Future[R]) -> bool:
        """End one request of a member. The last one removes the member from an open group. A group that is being rewarded keeps
        it, for the others are compared with it; its rewarding ends when the last request of all has left: return whether it
        has."""
        future.cancel()
        if self.task is None and all(other.done() for other in member.futures):
            self.members.remove(member)
        elif self.task is not None and all(other.done() for each in self.members for other in each.futures):
            return self.task.cancel()
        return False


UNIQUE = "key "  # begins a name that no other rollout ever has
KEPT_S, KEPT_REWARDS = 600.0, 65_536  # for how long, and how many rewards answer responses that are sent again


class GroupBuffer(Generic[T, R]):
    """Collect ``size`` members of a tenant's key, then call ``reward`` on all of them once; each caller gets its own reward.

    A member that is sent again under the ``name`` of a rollout gets its one reward, while it waits and for :data:`KEPT_S`
    seconds afterwards. If it was answered, only a name that begins with :data:`UNIQUE` counts: any other, such as a number, is
    given to new rollouts, too. A group that is not full after ``timeout_s`` is dissolved: every member gets GroupTimeoutError,
    unless all are equal, by ``digest``, to members of the last group: they lost their answers, and get these again.
    """

    def __init__(
        self,
        reward: Callable[[list[T]], Awaitable[list[R]]],
        *,
        size: int,
        timeout_s: float,
        digest: Callable[[T], str] = repr,
    ) -> None:
        self._reward, self.size, self.timeout_s, self._digest = reward, size, timeout_s, digest
        self._open: dict[tuple[str, str], Group[T, R]] = {}
        self._named: dict[tuple[str, str, str], tuple[Group[T, R], Member[T, R]]] = {}
        self._kept: OrderedDict[tuple[str, str], tuple[float, dict[str, R]]] = OrderedDict()
        self._num_kept = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self.num_dissolved = 0

    @property
    def num_waiting(self) -> int:
        return sum(len(group.members) for group in self._open.values())

    def num_waiting_of(self, tenant: str) -> int:
        return sum(len(group.members) for (owner, _), group in self._open.items() if owner == tenant)

    async def join(self, key: str, value: T, rollout: str = "") -> R:
        """Return the reward of ``value`` within its group; ``rollout`` names the rollout that it is of, "": not known. Raise
        GroupTimeoutError, EngineFailedError if the server stops, and what ``reward`` raises."""
        if self._closed:
            raise _stopping()
        loop, place = asyncio.get_running_loop(), (tenant_of_request(), key)
        name = f"{rollout} {self._digest(value)}" if rollout else ""
        if name and name in (rewards := self._kept_rewards(place)):
            return rewards[name]
        group, member = self._named.get((*place, name), (None, None))
        if group is None or member is None:
            group, member = self._add(place, Member(value, name))
        future: asyncio.Future[R] = loop.create_future()
        member.futures.append(future)
        try:
            return await future
        except asyncio.CancelledError:  # a client that disconnects makes room for another try of the same rollout
            if group.leave(member, future):
                self._forget(place, group.members)
            elif member not in group.members:
                self._forget(place, [member])
            if self._open.get(place) is group and not group.members:
                del self._open[place]
            raise

    def _add(self, place: tuple[str, str], member: Member[T, R]) -> tuple[Group[T, R], Member[T, R]]:
        """Add a member to the open group of its place; a full group begins to be rewarded."""
        loop = asyncio.get_running_loop()
        if (group := self._open.get(place)) is None:
            group = self._open[place] = Group()
            group.timer = loop.call_later(self.timeout_s, self._dissolve, place, group)
        group.members.append(member)
        if member.name:
            self._named[*place, member.name] = group, member
        if len(group.members) == self.size:
            del self._open[place]
            if group.timer:
                group.timer.cancel()
            group.task = loop.create_task(self._settle(place, group))
            self._tasks.add(group.task)
            group.task.add_done_callback(self._tasks.discard)
        return group, member

    def _kept_rewards(self, place: tuple[str, str]) -> dict[str, R]:
        """Return what :meth:`_keep` keeps of a place, for :data:`KEPT_S` seconds."""
        at, rewards = self._kept.get(place, (-math.inf, dict[str, R]()))
        return rewards if asyncio.get_running_loop().time() - at < KEPT_S else {}

    def close(self) -> None:
        self._closed = True
        for group in self._open.values():
            group.fail(_stopping())
        self._open.clear()

    async def _settle(self, place: tuple[str, str], group: Group[T, R]) -> None:
        try:
            with separate_share():  # not the share of the last member, which is released if that one disconnects
                rewards = await self._reward([member.value for member in group.members])
            rewarded = list(zip(group.members, rewards, strict=True))  # as many as there are members, or nobody has one
        except Exception as error:  # the boundary: every member gets it
            group.fail(error)
            return
        finally:
            self._forget(place, group.members)
        kept = dict[str, R]()
        for member, reward in rewarded:
            waiting = [future for future in member.futures if not future.done()]
            for future in waiting:
                future.set_result(reward)
            kept[self._digest(member.value)] = reward
            if member.name and (member.name.startswith(UNIQUE) or not waiting):
                kept[member.name] = reward
        self._keep(place, kept)

    def _keep(self, place: tuple[str, str], rewards: dict[str, R]) -> None:
        """Keep the rewards of the last group of a place, by the name and by the digest of each member."""
        before = self._kept.pop(place, (0.0, dict[str, R]()))[1]
        self._kept[place] = asyncio.get_running_loop().time(), rewards
        self._num_kept += len(rewards) - len(before)
        while self._num_kept > KEPT_REWARDS and len(self._kept) > 1:
            self._num_kept -= len(self._kept.popitem(last=False)[1][1])

    def _forget(self, place: tuple[str, str], members: list[Member[T, R]]) -> None:
        """Forget the names of members, but not of those that have come again since."""
        for member in members:
            if self._named.get(name := (*place, member.name), (None, None))[1] is member:
                del self._named[name]

    def _dissolve(self, place: tuple[str, str], group: Group[T, R]) -> None:
        if self._open.get(place) is not group:
            return
        del self._open[place]
        self._forget(place, group.members)
        kept = self._kept_rewards(place)
        if all(self._digest(member.value) in kept for member in group.members):
            for member in group.members:
                for future in member.futures:
                    if not future.done():
                        future.set_result(kept[self._digest(member.value)])
            return
        self.num_dissolved += 1
        group.fail(
            GroupTimeoutError(
                f"only {len(group.members)} of {self.size} responses to this prompt came within {self.timeout_s:g} s; "
                "send as many at a time as --group-size, or raise --limit group_timeout"
            )
        )


def _stopping() -> EngineFailedError:
    return EngineFailedError("the server is shutting down before the group is full; send its responses again")
