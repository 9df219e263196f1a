"""Win rates of the systems that wrote the responses: by the judge on many pairs, by people on few, and corrected.

A pair counts if it names two systems (:attr:`rewardlab.types.PreferencePair.systems`). Its labelled pairs are to be a random
sample of all; see :mod:`rewardlab.metrics.prediction_powered`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rewardlab.benchmarks.base import Row
from rewardlab.metrics.accuracy import Labeled, pair_score
from rewardlab.metrics.intervals import AccuracyEstimate, mean_estimate
from rewardlab.metrics.prediction_powered import CorrectedScore, Score, corrected_score
from rewardlab.types import Judgment, PreferencePair


def names_two_systems(pair: PreferencePair) -> bool:
    """Return whether two different systems wrote the responses of a pair."""
    return all(pair.systems) and pair.systems[0] != pair.systems[1]


def has_label(pair: PreferencePair) -> bool:
    """Return whether a pair has a better response, or is a tie."""
    return pair.preferred is not None or pair.tie is not None


@dataclass(frozen=True)
class SystemScores:
    """Scores on ``num_pairs`` pairs of two systems, ``num_labelled`` with a label, ``num_unnamed`` without a verdict.

    ``win_rates``: by system, the best first; a system's mean over its pairs, 1 for a win and 1/2 for a tie. ``pairs``: by "A
    over B", the win rate of A in the pairs of both. ``accuracy``: the judge's on all pairs, corrected by its confidence on
    those without a label; None if all have a label, or some are ties, which no confidence is about. ``confidence``: its mean
    on the pairs with a label, and on those without one, which differ if labels are no random sample; None if all have one.
    """

    num_pairs: int
    num_labelled: int
    num_unnamed: int
    win_rates: Mapping[str, CorrectedScore]
    pairs: Mapping[str, CorrectedScore]
    accuracy: CorrectedScore | None
    confidence: tuple[AccuracyEstimate, AccuracyEstimate] | None

    @property
    def is_doubtful(self) -> bool:
        """Return whether the judge's confidence on pairs with a label differs from that on others: the intervals are apart."""
        (low, high), (least, most) = (part.interval for part in self.confidence) if self.confidence else ((0.0, 1.0),) * 2
        return high < least or most < low


def system_scores(rows: Sequence[Row], judgments: Sequence[Judgment]) -> SystemScores | None:
    """Return the scores of the systems of ``rows``, by the labels and the judgments of these; None if none names two."""
    met = [pair for pair in zip(rows, judgments, strict=True) if names_two_systems(pair[0].pair)]
    if not met:
        return None
    by_system: dict[str, list[Score]] = {}
    by_pair: dict[str, list[Score]] = {}
    for row, judgment in met:
        people, judge = _peoples_score(row.pair), 0.5 if judgment.share_0 is None else judgment.share_0
        turned = None if people is None else 1 - people
        first, second = row.pair.systems
        sides = {first: (people, judge, row.cluster), second: (turned, 1 - judge, row.cluster)}
        for system, score in sides.items():
            by_system.setdefault(system, []).append(score)
        one, other = sorted(sides)
        by_pair.setdefault(f"{one} over {other}", []).append(sides[one])
    rates = {system: corrected_score(scores) for system, scores in by_system.items()}
    num_labelled = sum(has_label(row.pair) for row, _ in met)
    return SystemScores(
        num_pairs=len(met),
        num_labelled=num_labelled,
        num_unnamed=sum(judgment.share_0 is None for _, judgment in met),
        win_rates=dict(sorted(rates.items(), key=lambda rate: (-_rank_by(rate[1]), rate[0]))),
        pairs={names: corrected_score(scores) for names, scores in sorted(by_pair.items())},
        accuracy=_accuracy(met) if num_labelled < len(met) else None,
        confidence=_confidence(met) if 0 < num_labelled < len(met) else None,
    )


def _rank_by(score: CorrectedScore) -> float:
    """Return what systems are ordered by; those without a corrected win rate come last."""
    return score.corrected.accuracy if score.corrected else score.judge_only.accuracy - 1


def _peoples_score(pair: PreferencePair) -> float | None:
    """Return 1 if people prefer response 0, 0 if they prefer response 1, 1/2 for a tie, None without a label."""
    return 0.5 if pair.tie is not None else None if pair.preferred is None else float(pair.preferred == 0)


def _accuracy(met: Sequence[tuple[Row, Judgment]]) -> CorrectedScore | None:
    """Return the judge's accuracy, with its confidence in place of the judge's score."""
    if any(row.pair.tie is not None for row, _ in met):
        return None
    scores: list[Score] = []
    for row, judgment in met:
        preferred = row.pair.preferred
        right = None if preferred is None else pair_score(Labeled(judgment, preferred, row.group))
        scores.append((right, _certainty(judgment), row.cluster))
    return corrected_score(scores)


def _certainty(judgment: Judgment) -> float:
    """Return a judge's share for the response it prefers (0.5..1), 0 without a verdict."""
    return 0.0 if judgment.share_0 is None else max(judgment.share_0, 1 - judgment.share_0)


def _confidence(met: Sequence[tuple[Row, Judgment]]) -> tuple[AccuracyEstimate, AccuracyEstimate]:
    parts = (
        [(_certainty(judged), row.cluster) for row, judged in met if has_label(row.pair) is labelled]
        for labelled in (True, False)
    )
    labelled, others = (mean_estimate(*map(list, zip(*part, strict=True))) for part in parts)
    return labelled, others
