"""From the votes of several judges on a pair to the judgment of all of them, one voice each. Pure.

A member's voice is what its own votes of both orders come to. One that has no valid vote in an order that was asked abstains:
the other order alone would carry its position bias. Abstentions are counted, and nobody's place is taken by a coin.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from rewardlab.types import Judgment, Outcome, Vote
from rewardlab.verdicts.votes import both_orders_or_none, reduce_votes

ROUNDING = 1e-12  # a mean of log-odds nearer to 0 is 0 but for the order of its sums
LOG_ODDS_LIMIT = math.log((1 - 1e-4) / 1e-4)  # of a member that tells probabilities, as of verdicts.margins


def member_judgments(votes: Sequence[Vote]) -> dict[str, Judgment]:
    """Return the judgment of each member's own votes; NO_VALID_VOTE of one that abstains."""
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
    """Return the panel's judgment of votes that name their ``member``.

    By majority: more members name the winner than name the other; equal numbers, and members that all found a tie, are a TIE.
    ``share_0`` is the mean of the members' shares. By log-odds, a logarithmic opinion pool of equal weights (Genest and Zidek
    1986): ``share_0`` is sigmoid of the mean of the members' log-odds, of a member that counts votes those of
    (n + 1/2) / (N + 1). Without any voice NO_VALID_VOTE.
    """
    voices = [judged for judged in member_judgments(votes).values() if judged.share_0 is not None]
    if not voices:
        return Judgment(pair_id, tuple(votes), Outcome.NO_VALID_VOTE, None)
    if by_log_odds:
        odds = math.fsum(map(log_odds_of, voices)) / len(voices)
        if abs(odds) < ROUNDING:
            return Judgment(pair_id, tuple(votes), Outcome.TIE, 0.5)
        outcome = Outcome.RESPONSE_0 if odds > 0 else Outcome.RESPONSE_1
        return Judgment(pair_id, tuple(votes), outcome, 0.5 + math.tanh(odds / 2) / 2)
    share = math.fsum(judged.share_0 for judged in voices if judged.share_0 is not None) / len(voices)
    return Judgment(pair_id, tuple(votes), _majority(voices), share)


def _majority(voices: Sequence[Judgment]) -> Outcome:
    counts: Mapping[Outcome, int] = Counter(judged.outcome for judged in voices)
    for_0, for_1 = counts.get(Outcome.RESPONSE_0, 0), counts.get(Outcome.RESPONSE_1, 0)
    if for_0 == for_1:
        return Outcome.TIE
    return Outcome.RESPONSE_0 if for_0 > for_1 else Outcome.RESPONSE_1


def log_odds_of(judged: Judgment) -> float:
    """Return the log-odds of response 0 of a judgment that has a share."""
    assert judged.share_0 is not None
    if any(vote.margin is not None for vote in judged.votes):
        p = judged.share_0
        odds = math.log(p / (1 - p)) if 0 < p < 1 else math.copysign(math.inf, p - 0.5)
        return min(max(odds, -LOG_ODDS_LIMIT), LOG_ODDS_LIMIT)
    num = sum(vote.winner is not None for vote in judged.votes)
    return math.log((judged.share_0 * num + 0.5) / ((1 - judged.share_0) * num + 0.5))
