"""Agreement of raters with each other and of a judge with them. Pure functions; numpy only.

A choice is any value that can be compared: 0, 1 or a tie. A judge shown both orders has two choices on an item, each of half
the weight, as if one order were drawn; a choice of None (no verdict) agrees with nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rewardlab.metrics.intervals import (
    FEWEST_CLUSTERS,
    AccuracyEstimate,
    cluster_numbers,
    mean_estimate,
    spread_of,
    student_tail,
)

Choices = Mapping[str, Hashable]  # of one rater, by item
JudgeChoices = Mapping[str, Sequence[Hashable | None]]  # by item, one for each order shown
LEAST_ITEMS = 30  # that a rater shares with another: with fewer there is no test of whether the judge may replace this rater
LEVEL = 0.05  # false discovery rate of the test


def cohens_kappa(first: Sequence[Hashable], second: Sequence[Hashable], weights: Sequence[float] | None = None) -> float | None:
    """Return Cohen's kappa (-1..1; Cohen, 1960) of two raters' choices on the same items; None if chance agreement is 1.

    1 is full agreement and 0 the agreement of raters who choose at random with their own frequencies.
    """
    weight = np.ones(len(first)) if weights is None else np.asarray(weights, dtype=float)
    codes = {choice: code for code, choice in enumerate(dict.fromkeys([*first, *second]))}
    table = np.zeros((len(codes), len(codes)))
    np.add.at(table, ([codes[c] for c in first], [codes[c] for c in second]), weight / max(weight.sum(), 1e-300))
    chance = float(table.sum(0) @ table.sum(1))
    return (float(np.trace(table)) - chance) / (1 - chance) if chance < 1 - 1e-12 else None


def krippendorffs_alpha(items: Iterable[Sequence[Hashable]]) -> float | None:
    """Return Krippendorff's alpha (nominal; Krippendorff, 2011) of the choices on each item; None unless two choices differ.

    Raters may be missing: an item with fewer than two choices is left out.
    """
    totals, observed = Counter[Hashable](), 0.0
    for choices in items:
        if (num := len(choices)) >= 2:
            counts = Counter(choices)
            totals += counts
            observed += (num**2 - sum(count**2 for count in counts.values())) / (num - 1)
    num = sum(totals.values())
    expected = num**2 - sum(count**2 for count in totals.values())
    return 1 - (num - 1) * observed / expected if expected else None


@dataclass(frozen=True)
class RaterAgreement:
    """One rater against the other raters, on the ``num_items`` that another has rated and the judge has judged.

    ``rater_accuracy``: the fraction of the others' choices that equal the rater's. ``judge_accuracy``: the same of the judge in
    the rater's place. ``kappa`` is between judge and rater. ``advantage`` is the fraction of items on which the judge agrees
    with the others at least as often as the rater does, ``p_value`` of the hypothesis that it falls behind by epsilon; None of
    fewer than :data:`LEAST_ITEMS` items.
    """

    rater: str
    num_items: int
    rater_accuracy: AccuracyEstimate
    judge_accuracy: AccuracyEstimate
    kappa: float | None
    advantage: float
    p_value: float | None
    replaceable: bool = False


@dataclass(frozen=True)
class AlternativeAnnotatorTest:
    """The alternative annotator test (Calderon et al., arXiv 2501.10970) of a judge at ``epsilon``.

    ``winning_rate`` (0..1) is the fraction of raters whom the judge may replace, at a false discovery rate of 5 %; the test is
    passed at 0.5. ``advantage`` (0..1) is the mean over raters of the probability that the judge agrees with the others at
    least as often as the rater does. Both are None without a rater of :data:`LEAST_ITEMS` items.
    """

    epsilon: float
    winning_rate: float | None
    advantage: float | None
    raters: tuple[RaterAgreement, ...]


def alternative_annotator_test(
    ratings: Mapping[str, Choices], judge: JudgeChoices, *, epsilon: float = 0.1, clusters: Mapping[str, str] | None = None
) -> AlternativeAnnotatorTest:
    """Return the test of ``judge`` against each rater of ``ratings`` (at least two), who is compared with the others.

    ``epsilon`` (0..1) is by how much the judge may fall behind for what it saves: 0.2 where raters are experts, 0.1 for crowd
    workers. ``clusters`` names items that share a prompt; the t-test is over clusters.
    """
    by_item: dict[str, dict[str, Hashable]] = {}
    for rater, choices in ratings.items():
        for item in choices.keys() & judge.keys():
            by_item.setdefault(item, {})[rater] = choices[item]
    names = clusters or {}
    compared = []
    for rater, choices in ratings.items():
        items = [item for item in choices if len(by_item.get(item, ())) >= 2]
        if items:
            others = [[choice for other, choice in by_item[item].items() if other != rater] for item in items]
            compared.append(_compare(rater, items, choices, judge, others, epsilon, [names.get(item, item) for item in items]))
    tested = sorted((result for result in compared if result.p_value is not None), key=lambda result: result.p_value or 0.0)
    harmonic = sum(1 / rank for rank in range(1, len(tested) + 1))
    bound = LEVEL / harmonic / len(tested) if tested else 0.0  # Benjamini and Yekutieli (2001)
    num_won = max((rank for rank, result in enumerate(tested, start=1) if (result.p_value or 0.0) <= rank * bound), default=0)
    won = {result.rater for result in tested[:num_won]}
    return AlternativeAnnotatorTest(
        epsilon,
        num_won / len(tested) if tested else None,
        sum(result.advantage for result in tested) / len(tested) if tested else None,
        tuple(replace(result, replaceable=result.rater in won) for result in compared),
    )


def _compare(
    rater: str,
    items: Sequence[str],
    choices: Choices,
    judge: JudgeChoices,
    others: Sequence[Sequence[Hashable]],
    epsilon: float,
    clusters: Sequence[str],
) -> RaterAgreement:
    human = np.array([rest.count(choices[item]) / len(rest) for item, rest in zip(items, others, strict=True)])
    by_order = [[rest.count(choice) / len(rest) for choice in judge[item]] for item, rest in zip(items, others, strict=True)]
    machine = np.array([math.fsum(scores) / len(scores) for scores in by_order])
    gaps = [[score - human_score for score in scores] for scores, human_score in zip(by_order, human, strict=True)]
    wins, losses = (np.array([np.mean([sign * gap >= 0 for gap in of_item]) for of_item in gaps]) for sign in (1, -1))
    pairs = [(choice, choices[item], 1 / len(judge[item])) for item in items for choice in judge[item]]
    return RaterAgreement(
        rater,
        len(items),
        mean_estimate(human, clusters),
        mean_estimate(machine, clusters),
        cohens_kappa(*map(list, zip(*pairs, strict=True))),
        float(wins.mean()),
        _p_value_below(losses - wins, epsilon, clusters) if len(items) >= LEAST_ITEMS else None,
    )


def _p_value_below(values: np.ndarray, bound: float, clusters: Sequence[str]) -> float:
    """Return the one-sided p-value of the hypothesis that the mean of ``values`` is ``bound`` or more: Student's t over
    clusters (:func:`rewardlab.metrics.intervals.spread_of`), which is the plain t-test if each value is its own cluster. 1 of
    fewer than :data:`FEWEST_CLUSTERS`, which show nothing."""
    numbers = cluster_numbers(clusters, len(values))
    sums, counts = np.bincount(numbers, values), np.bincount(numbers).astype(float)
    if counts.size < FEWEST_CLUSTERS:
        return 1.0
    squares = float(((values - values.mean()) ** 2).sum())
    spread = spread_of(sums, counts, squares, float(values.size))
    if spread.variance == 0:
        return 0.0 if values.mean() < bound else 1.0
    return student_tail((bound - float(values.mean())) / math.sqrt(spread.variance), spread.freedom)
