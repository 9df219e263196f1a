"""Intervals against scipy's quantiles, plain resampling and simulation."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from scipy.special import expit, logit
from scipy.stats import binomtest, norm
from scipy.stats import t as student

from eval.coverage import accuracies
from rewardlab.metrics.intervals import (
    difference_interval,
    macro_interval,
    mean_estimate,
    mean_interval,
    ratio_interval,
    share_with_interval,
    spread_of,
    student_quantile,
    student_tail,
    wilson_interval,
)


@pytest.mark.parametrize("freedom", [1, 1.3, 3, 5.5, 40, 1e6, 1e8])
@pytest.mark.parametrize("tail", [0.025, 0.05])
def test_the_quantile_is_scipys(freedom: float, tail: float) -> None:
    assert student_quantile(freedom, tail) == pytest.approx(student.ppf(1 - tail, freedom), abs=1e-7)


@pytest.mark.parametrize("freedom", [1, 1.1, 2.5, 29, 1e3, 1e5, 1e6])
@pytest.mark.parametrize("value", [-2000, -3, 0, 1.7, 12, 300, 2000])
def test_the_tail_is_scipys(value: float, freedom: float) -> None:
    assert student_tail(value, freedom) == pytest.approx(student.sf(value, freedom), abs=1e-4 if freedom < 3 else 1e-9)


@pytest.mark.parametrize("number", [1, 2, 7, 40, 249])
def test_wilson_is_scipys(number: int) -> None:
    for hits in range(number + 1):
        theirs = binomtest(hits, number).proportion_ci(method="wilson")
        assert wilson_interval(hits, number) == (theirs.low, theirs.high)


def test_a_share_of_nothing() -> None:
    assert share_with_interval(0, 0) is None
    assert share_with_interval(1, 2) == [0.5, *wilson_interval(1, 2)]
    with pytest.raises(ValueError, match="got 3 of 2"):
        wilson_interval(3, 2)


def by_matrices(scores: np.ndarray, names: np.ndarray) -> tuple[float, float]:
    """The interval of a mean by its definitions: a regression on a constant, adjustment matrices by eigenvectors, degrees of
    freedom from the quadratic form under the estimated correlation, scipy's Student's t."""
    size, ratio, same = len(scores), scores.mean(), names[:, None] == names
    hat, error = np.full((size, size), 1 / size), scores - ratio
    pairs = same & ~np.eye(size, dtype=bool)
    shared = max(0.0, np.outer(error, error)[pairs].mean()) if pairs.any() else 0.0
    model = np.where(pairs, min(shared, (error**2).mean()), 0.0) + np.eye(size) * (error**2).mean()
    forms, variance = [], 0.0
    for name in np.unique(names):
        inside = names == name
        values, vectors = np.linalg.eigh(np.eye(inside.sum()) - hat[np.ix_(inside, inside)])
        weights = (vectors / np.sqrt(values)) @ vectors.T @ np.ones(inside.sum()) / size
        variance += float(weights @ error[inside]) ** 2
        forms.append(weights @ (np.eye(size) - hat)[inside])
    product = np.array(forms) @ model @ np.array(forms).T
    freedom = np.trace(product) ** 2 / (product**2).sum()
    half = student.ppf(0.975, freedom) * math.sqrt(variance) / (ratio * (1 - ratio))
    return float(expit(logit(ratio) - half)), float(expit(logit(ratio) + half))


@pytest.mark.parametrize("num", [4, 5, 6, 10, 46, 150])
def test_the_interval_is_cr2_on_the_logit_scale(num: int) -> None:
    dice = np.random.default_rng(num)
    counts = dice.integers(1, 9, num)
    sums = dice.binomial(counts, 0.8).astype(float)
    sums[0], counts[0] = 1.0, 2
    clusters = np.repeat([str(n) for n in range(num)], counts)
    scores = np.concatenate([np.arange(count) < right for right, count in zip(sums, counts, strict=True)]).astype(float)
    expected = by_matrices(scores, clusters)
    assert mean_interval(scores, clusters) == pytest.approx(expected, abs=1e-8)
    low, high = mean_interval(1 - scores, clusters)
    assert (1 - high, 1 - low) == pytest.approx(expected, abs=1e-8)


def test_many_pairs_give_what_plain_resampling_gives() -> None:
    dice = np.random.default_rng(0)
    names = [str(n) for n in dice.integers(0, 60, 200)]
    scores = (dice.random(200) < 0.7).astype(float)
    members = [np.flatnonzero(np.array(names) == name) for name in sorted(set(names))]
    means = [
        scores[np.concatenate([members[n] for n in dice.integers(0, len(members), len(members))])].mean() for _ in range(4000)
    ]
    assert mean_interval(scores.tolist(), names) == pytest.approx(np.quantile(means, (0.025, 0.975)), abs=0.012)


def test_the_interval_of_clusters_is_wider() -> None:
    """Ten copies of each answer carry the information of one."""
    scores = [float(n % 3 == 0) for n in range(60)]
    alone = mean_interval(scores)
    assert mean_interval(scores * 10, [str(n) for n in range(60)] * 10) == pytest.approx(alone)
    low, high = mean_interval(scores * 10)
    assert alone[1] - alone[0] == pytest.approx(math.sqrt(10) * (high - low), rel=0.15)


def test_equal_scores_and_too_few_prompts() -> None:
    """20 of 20: Wilson's bound, 83.9 %. Where all are one half a further prompt may differ. Three prompts say nothing."""
    assert mean_interval([1.0] * 20) == (pytest.approx(wilson_interval(20, 20)[0]), 1.0)
    assert mean_interval([0.0] * 20) == (0.0, pytest.approx(wilson_interval(0, 20)[1]))
    assert mean_interval([1.0] * 30, list("abcdefghij") * 3) == pytest.approx(mean_interval([1.0] * 10))
    slack = wilson_interval(0, 20)[1]
    assert mean_interval([0.5] * 20) == pytest.approx((0.5 - slack / 2, 0.5 + slack / 2))
    assert difference_interval([0.0] * 20) == pytest.approx((-slack, slack))
    assert difference_interval([-1.0] * 20) == pytest.approx((-1.0, -1.0 + 2 * slack))
    assert mean_interval([1.0, 0.0] * 9, list("abc") * 6) == (0.0, 1.0)
    assert difference_interval([1.0, -1.0], ["p", "p"]) == (-1.0, 1.0)
    assert all(map(math.isnan, mean_interval([])))
    with pytest.raises(ValueError, match=r"within 0\.\.1, got -0.5"):
        mean_interval([-1.0, 0.0] * 4)


def coverage(draws: list[tuple[tuple[float, float], float]]) -> float:
    return float(np.mean([low - 1e-9 <= truth <= high + 1e-9 for (low, high), truth in draws]))


@pytest.mark.parametrize(
    ("sizes", "share"), [([2, 3, 5, 6, 8, 10], 0.7), ([3, 4] * 5, 0.95), ([10] * 20, 0.7), ([1, 3, 5] * 15 + [2], 0.95)]
)
def test_the_interval_covers(sizes: list[int], share: float) -> None:
    """Prompts of unlike difficulty (beta, correlation 0.1), both orders: the truth is within in about 95 % of samples.

    ``eval/results/coverage.md`` has the whole table; percentile bootstraps hold it in 82 to 92 % of these.
    """
    dice, counts = np.random.default_rng(0), np.array(sizes)
    draws = []
    for _ in range(400):
        right = dice.binomial(2 * counts, dice.beta(9 * share, 9 * (1 - share), counts.size)) / 2
        draws.append((ratio_interval(right, counts), share))
    assert 0.92 <= coverage(draws) <= 0.995


def test_differences_are_covered() -> None:
    """A tenth of 46 x 4 pairs differ, four of five upwards."""
    dice, draws = np.random.default_rng(1), []
    for _ in range(400):
        gaps = (dice.random(184) < 0.1) * np.where(dice.random(184) < 0.8, 1.0, -1.0)
        draws.append((difference_interval(gaps.tolist(), [str(n // 4) for n in range(184)]), 0.06))
    assert 0.92 <= coverage(draws) <= 0.985


def test_macro_of_equal_groups_is_the_mean_and_shared_prompts_widen_it() -> None:
    """Two groups of the same prompts that rise and fall together vary as one; of other prompts, by the root of two less."""
    scores = [float(n % 3 > 0) for n in range(60)]
    names, groups = [str(n) for n in range(60)], ["a"] * 60 + ["b"] * 60
    alone = mean_interval(scores)
    together = macro_interval(scores * 2, groups, names * 2)
    assert together == pytest.approx(alone, abs=0.002)
    low, high = macro_interval(scores * 2, groups)
    assert (high - low) * math.sqrt(2) == pytest.approx(alone[1] - alone[0], rel=0.02)
    assert macro_interval(scores, ["a"] * 60, names) == pytest.approx(alone)
    few = macro_interval([*scores, 1.0], ["a"] * 60 + ["b"])  # the one pair of b may be anything in 0..1
    middle = (2 / 3 + 1) / 2
    assert few[0] == pytest.approx(middle - math.hypot((2 / 3 - alone[0]) / 2, 1 / 2), abs=1e-3)
    assert few[1] == pytest.approx(middle + (alone[1] - 2 / 3) / 2, abs=1e-3)
    assert all(map(math.isnan, macro_interval([], [])))


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [[60] * 3 + [1] * 43, [50, 50] + [2] * 18, [40] + [2] * 9], ids=len)
def test_a_few_prompts_with_most_of_the_pairs(sizes: list[int]) -> None:
    """They are as few draws as they are large: by the number of prompts alone 84 to 91 % of the intervals held the truth."""
    counts = np.array(sizes)
    chances = {0.7: accuracies(np.random.default_rng(1), counts, 0.7, 0.1, 0.7)}
    chances[0.95] = accuracies(np.random.default_rng(2), counts, 0.95, 0.3, 0.0)
    for truth, runs in chances.items():
        draws = [(mean_interval(*next(runs)), truth) for _ in range(800)]
        assert coverage(draws) >= 0.92


def test_prompts_alike_in_size_lose_nothing() -> None:
    """Their effective number is their number: Student's t of one less, by scipy."""
    scores = np.array([1.0, 0.0, 1.0, 1.0, 0.5, 1.0, 0.0, 1.0])
    ratio, error = scores.mean(), scores.std(ddof=1) / math.sqrt(8)
    half = student.ppf(0.975, 7) * error / (ratio * (1 - ratio))
    assert mean_interval(scores) == pytest.approx((expit(logit(ratio) - half), expit(logit(ratio) + half)), abs=1e-4)


def test_macro_of_one_group_is_its_mean_however_little_it_varies() -> None:
    scores = [0.5 + 0.001 * (n % 3) for n in range(30)]
    assert macro_interval(scores, ["a"] * 30) == pytest.approx(mean_interval(scores), abs=1e-9)


@pytest.mark.slow
def test_macro_of_thousands_of_groups_is_small_in_memory() -> None:
    """2,000 groups by 20,000 prompts would be 320 MB, as a table of both; only pairs that are there are kept."""
    dice = np.random.default_rng(0)
    scores, groups = dice.choice([0.0, 0.5, 1.0], 20_000), np.repeat(np.arange(2_000), 10)
    tracemalloc.start()
    try:
        low, high = macro_interval(scores.tolist(), groups.astype(str).tolist())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 32e6
    wide = 1.96 * scores.std() / math.sqrt(scores.size)
    assert high - low == pytest.approx(2 * wide, rel=0.25)


def test_groups_that_share_some_prompts() -> None:
    """By the whole table of groups and prompts: the reaches of the groups joined by the correlation of their influences."""
    dice, num = np.random.default_rng(5), 40
    groups, names = dice.integers(0, 4, 200), dice.integers(0, num, 200)
    scores = (dice.random(200) < np.linspace(0.3, 0.9, num)[names]).astype(float)
    low, high = macro_interval(scores.tolist(), groups.astype(str).tolist(), names.astype(str).tolist())
    inside = [groups == group for group in range(4)]
    means = np.array([scores[i].mean() for i in inside])
    influence = np.array(
        [np.bincount(names[i], scores[i] - mean, minlength=num) / i.sum() for i, mean in zip(inside, means, strict=True)]
    )
    correlation = influence @ influence.T / np.outer(*(2 * [np.sqrt((influence**2).sum(1))]))
    spreads = [
        spread_of(*(np.bincount(names[i], v)[np.unique(names[i])] for v in (scores[i], None)), i.sum() * m * (1 - m), i.sum())
        for i, m in zip(inside, means, strict=True)
    ]
    errors = np.array([math.sqrt(spread.variance) for spread in spreads])
    freedom = (errors**2).sum() ** 2 / sum(spread.variance**2 / spread.freedom for spread in spreads)
    half = student.ppf(0.975, freedom) * errors / (means * (1 - means))
    for end, side in ((low, -1), (high, 1)):
        reach = np.abs(expit(logit(means) + side * half) - means) / 4
        assert abs(means.mean() - end) == pytest.approx(math.sqrt(reach @ correlation @ reach), rel=1e-7)


@pytest.mark.parametrize("linked", [False, True])
def test_the_interval_of_macro_covers(linked: bool) -> None:
    """Groups of 60 and 30 prompts at 90 and 60 %, of own prompts or of the same ones."""
    dice, draws, groups = np.random.default_rng(2), [], ["a"] * 60 + ["b"] * 30
    names = [str(n) for n in (*range(60), *(range(30) if linked else range(60, 90)))]
    for _ in range(400):
        ease = dice.normal(size=90)
        ease[60:] = 0.7 * ease[:30] + math.sqrt(0.51) * ease[60:] if linked else ease[60:]
        scores = (ease < norm.ppf([0.9] * 60 + [0.6] * 30)).astype(float)
        draws.append((macro_interval(scores.tolist(), groups, names), 0.75))
    assert 0.92 <= coverage(draws) <= 0.985


def test_what_counts_nothing_is_left_out() -> None:
    """A denominator of 0, whatever stands above it."""
    assert ratio_interval([1, 0, 1, 1, 0, 7], [1, 2, 1, 1, 1, 0]) == ratio_interval([1, 0, 1, 1, 0], [1, 2, 1, 1, 1])
    assert ratio_interval([1, 0, 1, 7], [1, 1, 1, 0]) == (0.0, 1.0)  # three are too few


def test_what_rounding_adds_is_within_the_bounds() -> None:
    """A billionth is; half a unit is not. A ratio at a bound whose parts differ stays within it."""
    assert mean_interval([-1e-9] * 8)[1] == pytest.approx(mean_interval([0.0] * 8)[1])
    assert mean_interval([1 + 1e-9] * 8)[0] == pytest.approx(mean_interval([1.0] * 8)[0])
    with pytest.raises(ValueError, match=r"^expected a ratio within 0\.\.1, got 1\.5$"):
        mean_interval([1.5] * 8)
    for at_bound in ([1.5, 0.5, 1.0, 1.0, 1.0], [0.5, -0.5, 0.0, 0.0, 0.0]):
        assert ratio_interval(at_bound, np.ones(5)) == pytest.approx((0.0, 1.0), abs=1e-6)


def test_scores_alike_but_for_rounding_have_no_variance() -> None:
    """Off by a ten-millionth in one of a thousand they are alike; by a hundred-thousandth they are not."""
    alike = mean_interval([0.5] * 1000)
    assert mean_interval([0.5] * 999 + [0.5 + 1e-7]) == pytest.approx(alike)
    low, high = mean_interval([0.5] * 999 + [0.5 + 1e-5])
    assert high - low < 1e-6 < alike[1] - alike[0]


def test_halves_of_precision_say_the_same() -> None:
    """Scores of single precision, and truths, are summed in double precision."""
    scores = np.random.default_rng(3).random(50).astype(np.float32)
    groups, whole = ["a", "b"] * 25, scores.tolist()
    assert mean_interval(scores) == mean_interval(whole)
    assert macro_interval(scores, groups) == macro_interval(whole, groups)  # type: ignore[arg-type]
    assert mean_interval(scores > 0.3) == mean_interval((scores > 0.3).astype(float))


def test_a_mean_beside_its_interval() -> None:
    scores, names = [1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0], list("aabbccdd")
    estimate = mean_estimate(scores, names)
    assert (estimate.accuracy, estimate.interval) == (0.75, mean_interval(scores, names))
    assert mean_estimate(scores).interval == mean_interval(scores) != mean_interval(scores, names)


def test_macro_of_groups_without_variance() -> None:
    """All right in both: the reaches of their own bounds, joined as those of unlike groups."""
    low, high = macro_interval([1.0] * 10, ["a"] * 5 + ["b"] * 5)
    assert (1 - low, high) == pytest.approx((math.sqrt(2) * (1 - mean_interval([1.0] * 5)[0]) / 2, 1.0))
    whole = macro_interval([1.0] * 7, ["a"] * 4 + ["b"] * 3)  # three say nothing of b
    assert whole == pytest.approx((1 - math.hypot((1 - mean_interval([1.0] * 4)[0]) / 2, 1 / 2), 1.0))


def test_rows_that_say_the_same_are_one_draw() -> None:
    """Five equal differences of each of eight prompts are as wide as the eight: clusters reach the interval."""
    differences = [0.5, -0.25, 0.0, 1.0, 0.25, -0.5, 0.75, 0.1]
    many, names = np.repeat(differences, 5), np.repeat([f"p{n}" for n in range(8)], 5)
    assert difference_interval(many.tolist(), names.tolist()) == pytest.approx(difference_interval(differences))
    assert difference_interval(many.tolist())[0] > difference_interval(differences)[0] + 0.05
