"""From comparisons of two to a reward each: a group of responses to one prompt is played out on a plan, match by match."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from rewardlab.errors import ConfigError
from rewardlab.judging.judge import Judge
from rewardlab.judging.lists import matches_of, require_lists
from rewardlab.judging.ranking import PLANS, WHOLE, Match, Plan, PlayedMatch, Ranking, fitted_strengths, net_win_rates
from rewardlab.types import BOTH_ORDERS, Candidates, Criterion, Judgment
from rewardlab.verdicts.checklist import judgments_by_criterion
from rewardlab.verdicts.votes import both_orders_or_none

# Strategy of a request -> plan of comparisons.
STRATEGIES = {
    "all_pairs": "round_robin",
    "circular": "circular",
    "anchor": "anchored",
    "knockout": "knockout",
    "bradley_terry": "adaptive",
    WHOLE: WHOLE,
}


@dataclass(frozen=True)
class JudgedMatch:
    """``judgment`` of responses ``first`` (its 0) and ``second`` (its 1); None where it failed."""

    first: int
    second: int
    judgment: Judgment | None

    @property
    def winner(self) -> int | None:
        """Return the response that won, None where none did."""
        winner = self.judgment.outcome.winner if self.judgment else None
        return None if winner is None else (self.first, self.second)[winner]


@dataclass(frozen=True)
class GroupRewards:
    """[N] rewards, None where no match of a response could be judged; [N] standard deviations (Bradley-Terry only).
    ``components``: the rewards by each criterion that the judgments name, of the same matches."""

    rewards: list[float | None]
    deviations: list[float | None]
    ranking: Ranking
    matches: list[JudgedMatch]
    components: Mapping[str, list[float | None]] = field(default_factory=dict)


def start_plan(strategy: str, num: int, budget: int | None) -> tuple[Plan, list[Match]]:
    """Return the plan of a strategy for ``num`` responses, and its first round; it plays :func:`most_matches` at most. Raise
    ConfigError for an unknown strategy and a budget that does not suffice."""
    if strategy not in STRATEGIES:
        raise ConfigError(f"unknown strategy {strategy!r}; expected one of {', '.join(STRATEGIES)}")
    if strategy == "knockout" and budget is None:
        budget = most_matches(strategy, num)
    try:
        plan = PLANS[STRATEGIES[strategy]](num, budget)
        return plan, next(plan)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def most_matches(strategy: str, num: int, budget: int | None = None) -> int:
    """Return how many matches a strategy of :data:`STRATEGIES` plays among ``num`` responses, at most: of a knockout and
    Bradley-Terry the budget, by default two each."""
    every_pair, budget = num * (num - 1) // 2, 2 * num if budget is None else budget
    if strategy == WHOLE:
        return num  # responses, each rated or in a list
    if strategy == "bradley_terry":
        return max(num, budget)
    if strategy == "knockout":  # num - 1 where all are decided; both sides of an undecided match go on
        return min(every_pair, budget)
    return every_pair if strategy == "all_pairs" else num


def judged_list(group: Candidates, judged: Judgment, verdict_format: str) -> list[JudgedMatch]:
    """Return every match that a judgment of a whole list holds. Raise ConfigError for a judge of pairs."""
    return [JudgedMatch(*match, judgment) for match, judgment in matches_of(group.listed(), judged, verdict_format)]


def rewards_of_matches(
    strategy: str, num: int, ranking: Ranking, matches: Sequence[JudgedMatch], criteria: Sequence[Criterion] = ()
) -> GroupRewards:
    """Return the rewards of ``num`` responses; with ``anchor`` the last response is the anchor and has no reward itself.

    A reward is the net win rate over a response's matches (-1..1), by the share of votes or the probability; with
    ``bradley_terry`` the fitted strength in logits. A match that failed counts for nothing; what was never judged has None.
    ``criteria`` are those that were requested: each has a component.
    """
    by_criterion = [judgments_by_criterion(match.judgment) if criteria and match.judgment else {} for match in matches]
    components = {}
    for name in [criterion.name for criterion in criteria if any(criterion.name in named for named in by_criterion)]:
        judgments = [both_orders_or_none(of[name]) if name in of else None for of in by_criterion]
        of_criterion = [replace(match, judgment=judged) for match, judged in zip(matches, judgments, strict=True)]
        components[name] = _rewards(strategy, num, of_criterion)[0]
    return GroupRewards(*_rewards(strategy, num, matches), ranking, list(matches), components)


def _rewards(strategy: str, num: int, matches: Sequence[JudgedMatch]) -> tuple[list[float | None], list[float | None]]:
    """Return the rewards and their deviations."""
    played = [PlayedMatch(m.first, m.second, None if m.judgment is None else m.judgment.share_0) for m in matches]
    rewards = net_win_rates(num, played)
    deviations: list[float | None] = [None] * num
    if strategy == "bradley_terry":
        rewards, deviations = fitted_strengths(num, played)
    if strategy == "anchor":
        rewards, deviations = rewards[:-1], deviations[:-1]
    return rewards, deviations


def reward_group(
    judge: Judge, group: Candidates, *, strategy: str, budget: int | None, num_votes: int, seed: int
) -> GroupRewards:
    """Return the rewards of a group, every match judged in both orders; the matches of a round are one call of the judge.

    A match of which no vote of an order names a response, or fewer than half of the votes are valid, counts for nothing. Raise
    ConfigError as :func:`start_plan` does.
    """
    if strategy == WHOLE:
        require_lists(judge.verdict_format, len(group.responses))
    plan, round_matches = start_plan(strategy, len(group.responses), budget)
    matches: list[JudgedMatch] = []
    while True:
        pairs = [group.listed()] if strategy == WHOLE else [group.pair(*match) for match in round_matches]
        judgments = judge.compare_many(pairs, orders=[BOTH_ORDERS] * len(pairs), num_votes=num_votes, seed=seed)
        if strategy == WHOLE:
            judged = judged_list(group, judgments[0], judge.verdict_format)
        else:
            of_round = zip(round_matches, judgments, strict=True)
            judged = [JudgedMatch(*match, both_orders_or_none(judgment)) for match, judgment in of_round]
        matches += judged
        try:
            round_matches = plan.send([match.winner for match in judged])
        except StopIteration as end:
            return rewards_of_matches(strategy, len(group.responses), end.value, matches, group.criteria)
