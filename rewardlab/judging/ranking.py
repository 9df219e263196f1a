"""Which of more than two responses is best, from comparisons of two: tournaments, and a Bradley-Terry fit with a budget.

A plan is a generator. It yields rounds of matches (i, j), is sent the winner of each (i, j, or None where the comparison came
to nothing), and returns a Ranking. No judge is called here: :func:`rewardlab.judging.best_of_n.rank_many` does.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

import numpy as np

Match = tuple[int, int]


@dataclass(frozen=True)
class Ranking:
    """``tiers``: indices of the responses, best first, those that cannot be told apart together. ``undecided`` comparisons are
    among ``num_matches``."""

    tiers: tuple[tuple[int, ...], ...]
    num_matches: int
    undecided: int

    @property
    def best(self) -> int | None:
        """Return the one best response; None if several share the first place."""
        return self.tiers[0][0] if len(self.tiers[0]) == 1 else None


Plan = Generator[list[Match], Sequence[int | None], Ranking]


def tiers_of(scores: Sequence[float]) -> tuple[tuple[int, ...], ...]:
    """Return indices by falling score; equal scores share a tier."""
    return tuple(tuple(n for n, s in enumerate(scores) if s == value) for value in sorted(set(scores), reverse=True))


def round_robin(num: int, budget: int | None = None) -> Plan:
    """Play every response against every other, num (num - 1) / 2 matches in one round; ranked by matches won.

    Raise ValueError if the budget does not suffice.
    """
    matches = [(i, j) for i in range(num) for j in range(i + 1, num)]
    _check(num, len(matches), budget, "round_robin")
    winners = yield matches
    won = Counter(winners)
    return Ranking(tiers_of([won[n] for n in range(num)]), len(matches), won[None])


def circular(num: int, budget: int | None = None) -> Plan:
    """Play every response against the next, in a ring: num matches (one of two) in one round; ranked by matches won less
    lost."""
    matches = [(n, (n + 1) % num) for n in range(num if num > 2 else 1)]
    _check(num, len(matches), budget, "circular")
    winners = yield matches
    won = Counter(winners)
    lost = Counter(i + j - winner for (i, j), winner in zip(matches, winners, strict=True) if winner is not None)
    return Ranking(tiers_of([won[n] - lost[n] for n in range(num)]), len(matches), won[None])


def anchored(num: int, budget: int | None = None) -> Plan:
    """Play every response against the last one, the anchor: num - 1 matches in one round; ranked by whether they beat it."""
    matches = [(n, num - 1) for n in range(num - 1)]
    _check(num, len(matches), budget, "anchored")
    winners = yield matches
    net = [0 if winner is None else 1 if winner == n else -1 for n, winner in enumerate(winners)]
    return Ranking(tiers_of([*net, 0]), len(matches), list(winners).count(None))


def knockout(num: int, budget: int | None = None) -> Plan:
    """Play knockout rounds: num - 1 matches if all are decided. Both sides of an undecided match go on, and do not meet again.

    Where nobody is left to meet, or the budget does not reach for another round, those left share the first place. Others
    rank by the round they left in. Raise ValueError if the budget is below num - 1.
    """
    _check(num, num - 1, budget, "knockout")
    left, out, num_matches = list(range(num)), [], 0
    drawn: set[Match] = set()
    while matches := _pairings(left, drawn):
        if budget is not None and num_matches + len(matches) > budget:
            break
        winners = yield matches
        num_matches += len(matches)
        drawn |= {match for match, winner in zip(matches, winners, strict=True) if winner is None}
        losers = [i + j - winner for (i, j), winner in zip(matches, winners, strict=True) if winner is not None]
        byes = [n for n in left if all(n not in match for match in matches)]  # they play first next time
        left = byes + [n for n in left if n not in losers and n not in byes]
        if losers:
            out.append(tuple(losers))
    return Ranking((tuple(sorted(left)), *reversed(out)), num_matches, len(drawn))


def _pairings(left: Sequence[int], drawn: set[Match]) -> list[Match]:
    """Return matches of neighbours among ``left``, as many as possible, without those in ``drawn``."""
    free, matches = list(left), []
    while free:
        first = free.pop(0)
        second = next((n for n in free if (first, n) not in drawn and (n, first) not in drawn), None)
        if second is not None:
            free.remove(second)
            matches.append((first, second))
    return matches


def ranking_of(plan: Plan, winners: Sequence[int | None]) -> Ranking:
    """Return the ranking of a plan with one round, given its winners. Raise RuntimeError for one with further rounds."""
    try:
        plan.send(winners)
    except StopIteration as end:
        ranking: Ranking = end.value
        return ranking
    raise RuntimeError("the plan has another round")


PRIOR = 1.5  # standard deviation of strengths, in logits: keeps the undefeated finite


def bradley_terry(wins: np.ndarray, prior: float = PRIOR) -> tuple[np.ndarray, np.ndarray]:
    """Return ([N] strengths in logits, [N, N] their covariance) from [N, N] ``wins`` (of row over column).

    P(i beats j) = sigmoid(s_i - s_j) (Bradley and Terry 1952), maximum a posteriori under independent normal priors, by
    Newton's method; the covariance is the inverse Hessian there (Laplace). Responses never compared stay at the prior, 0.
    """
    num = len(wins)
    strengths, games = np.zeros(num), wins + wins.T
    for _ in range(100):
        chance = 1 / (1 + np.exp(strengths[None, :] - strengths[:, None]))
        gradient = (wins - games * chance).sum(1) - strengths / prior**2
        weight = games * chance * (1 - chance)
        hessian = np.diag(weight.sum(1) + prior**-2) - weight
        step = np.linalg.solve(hessian, gradient)
        strengths = strengths + step * min(1.0, 2.0 / max(1e-12, float(np.abs(step).max())))
        if np.abs(step).max() < 1e-9:
            break
    return strengths, np.linalg.inv(hessian)


def adaptive(num: int, budget: int | None = None, *, repeats: bool = True) -> Plan:
    """Spend a budget of matches (default 2 num) where the first place is in doubt; ranked by Bradley-Terry strength.

    First everyone meets two others, in a ring. Then, match by match, the strongest meets whoever is likeliest to be stronger
    still, the less often the two have met the sooner. ``repeats`` False, for a judge that says the same when asked the same:
    nobody meets twice, and the plan ends where the strongest has met all. Raise ValueError if the budget is below num.
    """
    max_matches = 2 * num if budget is None else budget
    ring = [(n, (n + 1) % num) for n in range(num if num > 2 else 1)]
    _check(num, len(ring), max_matches, "adaptive")
    wins, met, num_matches, undecided = np.zeros((num, num)), np.zeros((num, num)), 0, 0
    matches = ring
    while True:
        for (i, j), winner in zip(matches, (yield matches), strict=True):
            met[i, j], met[j, i], num_matches = met[i, j] + 1, met[j, i] + 1, num_matches + 1
            if winner is None:
                undecided += 1
            else:
                wins[winner, i + j - winner] += 1
        strengths, covariance = bradley_terry(wins)
        match = _doubtful(strengths, covariance, met, repeats)
        if num_matches >= max_matches or match is None:
            return Ranking(tiers_of(strengths.round(9).tolist()), num_matches, undecided)
        matches = [match]


def _doubtful(strengths: np.ndarray, covariance: np.ndarray, met: np.ndarray, repeats: bool) -> Match | None:
    """Return the strongest, and the one that most likely is stronger still (normal approximation), fewer meetings first."""
    best = int(strengths.argmax())
    others = [n for n in range(len(strengths)) if n != best and (repeats or not met[best, n])]
    if not others:
        return None
    spread = [math.sqrt(covariance[n, n] + covariance[best, best] - 2 * covariance[n, best]) for n in others]
    gaps = [(strengths[best] - strengths[n]) / deviation for n, deviation in zip(others, spread, strict=True)]
    doubts = [math.erfc(gap / math.sqrt(2)) / (1 + met[best, n]) for n, gap in zip(others, gaps, strict=True)]
    return best, others[int(np.argmax(doubts))]


def _check(num: int, least: int, budget: int | None, plan: str) -> None:
    if num < 2:
        raise ValueError(f"nothing to rank: {num} responses; expected two or more")
    if budget is not None and budget < least:
        raise ValueError(f"{plan} of {num} responses needs at least {least} comparisons, but the budget is {budget}; raise it")


@dataclass(frozen=True)
class PlayedMatch:
    """A match that was judged: ``share`` is the share of votes, or the probability, for ``first`` (0..1); None: undecided by
    failure."""

    first: int
    second: int
    share: float | None


def net_win_rates(num: int, played: Sequence[PlayedMatch]) -> list[float | None]:
    """Return [num] means over a response's matches of 2 share - 1, in -1..1: with shares of 0 and 1 its wins less its losses
    by their number. None for a response of which no match could be judged: no reward is made up for it."""
    margins: list[list[float]] = [[] for _ in range(num)]
    for match in played:
        if match.share is not None:
            margins[match.first].append(2 * match.share - 1)
            margins[match.second].append(1 - 2 * match.share)
    return [sum(row) / len(row) if row else None for row in margins]


def fitted_strengths(num: int, played: Sequence[PlayedMatch]) -> tuple[list[float | None], list[float | None]]:
    """Return ([num] Bradley-Terry strengths in logits, mean 0; [num] their standard deviations), each match counting by its
    share for either side. None for a response of which no match could be judged."""
    wins, compared = np.zeros((num, num)), set()
    for match in played:
        if match.share is not None:
            wins[match.first, match.second] += match.share
            wins[match.second, match.first] += 1 - match.share
            compared |= {match.first, match.second}
    strengths, covariance = bradley_terry(wins)
    spread = np.sqrt(np.diag(covariance))
    return [float(strengths[n]) if n in compared else None for n in range(num)], [
        float(spread[n]) if n in compared else None for n in range(num)
    ]


WHOLE = "whole"  # a plan for judges of lists: one judgment of all responses holds every match
PLANS: dict[str, Callable[..., Plan]] = {
    "round_robin": round_robin,
    WHOLE: round_robin,
    "circular": circular,
    "anchored": anchored,
    "knockout": knockout,
    "adaptive": adaptive,
}
