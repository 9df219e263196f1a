"""From the votes of several judges on a pair to the judgment of all of them, one voice each. Pure.

A member's voice is what its own votes of both orders come to. One that names no response in an order that was asked abstains,
since the other order alone would carry its position bias, and so does one with fewer than half valid votes. A member that
abstains stays in the count of members: a winner needs more than half of those asked.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from rewardlab.types import BOTH_ORDERS, Judgment, Outcome, Vote
from rewardlab.verdicts.votes import both_orders_or_none, in_order, majority, outcome_of, reduce_votes

ROUNDING = 1e-12  # a mean of log-odds nearer to 0 is 0 but for the order of its sums
LOG_ODDS_LIMIT = math.log((1 - 1e-4) / 1e-4)  # of a member that tells probabilities, as of verdicts.margins


def member_judgments(votes: Sequence[Vote]) -> dict[str, Judgment]:
    """Return the judgment of each member's own votes; one that abstains has no ``share_0``."""
    by_member: dict[str, list[Vote]] = {}
    for vote in votes:
        by_member.setdefault(vote.member, []).append(vote)
    return {
        name: both_orders_or_none(reduce_votes("", of_member), tuple({vote.order for vote in of_member}))
        for name, of_member in by_member.items()
    }


def votes_with_voice(votes: Sequence[Vote]) -> list[Vote]:
    """Return the votes without those of members that abstain."""
    judged = member_judgments(votes)
    return [vote for vote in votes if judged[vote.member].share_0 is not None]


def panel_judgment(pair_id: str, votes: Sequence[Vote], *, by_log_odds: bool = False) -> Judgment:
    """Return the panel's judgment of votes that name their ``member``; members are counted as votes are.

    By majority: more than half of the members name the winner, those that abstain or find a tie included; ``share_0`` is the
    mean of the members' shares. By log-odds, a logarithmic opinion pool of equal weights (Genest and Zidek 1986): ``share_0``
    is sigmoid of the mean of the members' log-odds, of a member that counts votes those of (n + 1/2) / (N + 1), and a member
    that abstains adds to neither response. ``share_0`` is None if fewer than half of the members have a voice; NO_VALID_VOTE
    if every member's outcome is.
    """
    judged = list(member_judgments(votes).values())
    voices = [member for member in judged if member.share_0 is not None]
    if all(member.outcome is Outcome.NO_VALID_VOTE for member in judged):
        return Judgment(pair_id, tuple(votes), Outcome.NO_VALID_VOTE, None)
    share = _pooled(voices) if by_log_odds else _mean(voices)
    if by_log_odds:
        answered = len(voices) / len(judged)
        outcome = outcome_of(share * answered, (1 - share) * answered, 1)
    else:
        counts = Counter(member.outcome for member in judged)
        outcome = outcome_of(counts[Outcome.RESPONSE_0], counts[Outcome.RESPONSE_1], len(judged), counts[Outcome.TIE])
    return Judgment(pair_id, tuple(votes), outcome, share if 2 * len(voices) >= len(judged) else None)


def _mean(voices: Sequence[Judgment]) -> float:
    return math.fsum(member.share_0 for member in voices if member.share_0 is not None) / max(1, len(voices))


def _pooled(voices: Sequence[Judgment]) -> float:
    odds = math.fsum(map(log_odds_of, voices)) / max(1, len(voices))
    return 0.5 if abs(odds) < ROUNDING else 0.5 + math.tanh(odds / 2) / 2


def log_odds_of(judged: Judgment) -> float:
    """Return the log-odds of response 0 of a judgment that has a share."""
    assert judged.share_0 is not None
    if any(vote.margin is not None for vote in judged.votes):
        p = judged.share_0
        odds = math.log(p / (1 - p)) if 0 < p < 1 else math.copysign(math.inf, p - 0.5)
        return min(max(odds, -LOG_ODDS_LIMIT), LOG_ODDS_LIMIT)
    num = sum(vote.winner is not None for vote in judged.votes)
    return math.log((judged.share_0 * num + 0.5) / ((1 - judged.share_0) * num + 0.5))


def orders_consistent(votes: Sequence[Vote]) -> bool | None:
    """Return whether the majorities of both orders name the same response; one that is even names none. None if no vote of an
    order names one. Votes of members that abstain do not count."""
    votes = votes_with_voice(votes)
    if not all(any(vote.winner is not None for vote in in_order(votes, order)) for order in BOTH_ORDERS):
        return None
    first, second = (majority(in_order(votes, order)).winner for order in BOTH_ORDERS)
    return first is not None and first == second
