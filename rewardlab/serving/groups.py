"""From comparisons of two to a reward each: a group of responses to one prompt is played out on a plan, match by match."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from rewardlab.errors import ConfigError
from rewardlab.judging.ranking import PLANS, Match, PlayedMatch, Ranking, fitted_strengths, net_win_rates
from rewardlab.serving.errors import DeadlineExceededError, EngineFailedError
from rewardlab.serving.gather import gather_bounded
from rewardlab.types import Candidates, Judgment, PreferencePair

# Strategy of a request -> plan of comparisons.
STRATEGIES = {
    "all_pairs": "round_robin",
    "circular": "circular",
    "anchor": "anchored",
    "knockout": "knockout",
    "bradley_terry": "adaptive",
}


@dataclass(frozen=True)
class JudgedMatch:
    """``judgment`` of responses ``first`` (its 0) and ``second`` (its 1); None with the reason in ``error`` where it failed."""

    first: int
    second: int
    judgment: Judgment | None
    error: str = ""


@dataclass(frozen=True)
class GroupRewards:
    """[N] rewards, None where no match of a response could be judged; [N] standard deviations (Bradley-Terry only)."""

    rewards: list[float | None]
    deviations: list[float | None]
    ranking: Ranking
    matches: list[JudgedMatch]


async def group_rewards(
    compare: Callable[[PreferencePair], Awaitable[Judgment]], group: Candidates, *, strategy: str, budget: int | None = None
) -> GroupRewards:
    """Return the rewards of a group's responses; with ``anchor`` the last response is the anchor and has no reward itself.

    A reward is the net win rate over a response's matches (-1..1), by the share of votes or the probability; with
    ``bradley_terry`` the fitted strength in logits. A match that fails counts for nothing; what was never judged has None.
    Raises ConfigError for a budget that does not suffice.
    """
    num = len(group.responses)
    try:
        plan = PLANS[STRATEGIES[strategy]](num, budget)
        matches = next(plan)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    results: list[JudgedMatch] = []
    while True:
        round_results = await gather_bounded(partial(_play, compare, group, match) for match in matches)
        results += round_results
        try:
            matches = plan.send([_winner(match) for match in round_results])
        except StopIteration as end:
            ranking: Ranking = end.value
            break
    matches_played = [PlayedMatch(m.first, m.second, None if m.judgment is None else m.judgment.share_0) for m in results]
    rewards = net_win_rates(num, matches_played)
    deviations: list[float | None] = [None] * num
    if strategy == "bradley_terry":
        rewards, deviations = fitted_strengths(num, matches_played)
    if strategy == "anchor":
        rewards, deviations = rewards[:-1], deviations[:-1]
    return GroupRewards(rewards, deviations, ranking, results)


async def _play(compare: Callable[[PreferencePair], Awaitable[Judgment]], group: Candidates, match: Match) -> JudgedMatch:
    """A failing engine is a match without a judgment; a full queue is an error of the whole group."""
    try:
        return JudgedMatch(*match, await compare(group.pair(*match)))
    except (EngineFailedError, DeadlineExceededError) as error:
        return JudgedMatch(*match, None, str(error))


def _winner(match: JudgedMatch) -> int | None:
    winner = match.judgment.outcome.winner if match.judgment else None
    return None if winner is None else (match.first, match.second)[winner]
