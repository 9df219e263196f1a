"""A group of responses to one prompt is played out through the queue (:mod:`rewardlab.judging.group_rewards`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from rewardlab.judging.group_rewards import GroupRewards, JudgedMatch, rewards_of_matches, start_plan
from rewardlab.judging.ranking import Match
from rewardlab.serving.gather import gather_bounded
from rewardlab.types import Candidates, Judgment, PreferencePair


async def group_rewards(
    compare: Callable[[PreferencePair], Awaitable[Judgment]], group: Candidates, *, strategy: str, budget: int | None = None
) -> GroupRewards:
    """Return the rewards of a group's responses (:func:`rewardlab.judging.group_rewards.rewards_of_matches`); a match without
    a verdict counts for nothing. Raises ConfigError for a budget that does not suffice, and what ``compare`` raises: rewards
    over what the engine happened to answer would not be comparable."""
    num = len(group.responses)
    plan, matches = start_plan(strategy, num, budget)
    results: list[JudgedMatch] = []
    while True:
        round_results = await gather_bounded(partial(_play, compare, group, match) for match in matches)
        results += round_results
        try:
            matches = plan.send([match.winner for match in round_results])
        except StopIteration as end:
            return rewards_of_matches(strategy, num, end.value, results)


async def _play(compare: Callable[[PreferencePair], Awaitable[Judgment]], group: Candidates, match: Match) -> JudgedMatch:
    return JudgedMatch(*match, await compare(group.pair(*match)))
