"""Corrected means: the paper's formulas, coverage where a judge is biased, never worse than labels alone."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit, logit
from scipy.stats import t as student

from rewardlab.metrics.prediction_powered import corrected_mean

Sample = tuple[np.ndarray, np.ndarray]


def world(dice: np.random.Generator, num: int, *, bias: float = 0.0, sign: float = 1.0) -> Sample:
    """People's scores (0 or 1) and a judge's fraction of 8 votes; ``bias`` in logits, ``sign`` -1 for a judge that is wrong."""
    ease = dice.normal(0.25, 1, num)
    people = (dice.random(num) < expit(2 * ease)).astype(float)
    return people, dice.binomial(8, expit(sign * 2 * ease + bias)) / 8


def test_it_is_the_papers_estimator() -> None:
    """PPI++ (arXiv 2311.01453): the mean of eq. 4, the weight of eq. 7 with sample moments, the variance of both parts; with
    two further disagreements."""
    dice = np.random.default_rng(0)
    people, judged = world(dice, 120)
    _, rest = world(dice, 900)
    result = corrected_mean(people, judged, rest)
    n, others = len(people), len(rest)
    ratio = n / others
    moment = np.cov(people, judged, bias=True)
    weight = moment[0, 1] / (moment[1, 1] + ratio * rest.var() + 2 / n)
    assert result.weight == pytest.approx(weight)
    mean = people.mean() + weight * (rest.mean() - judged.mean())
    assert result.corrected.accuracy == pytest.approx(mean)
    variance = ((people - weight * judged).var() / n + weight**2 * (rest.var() / others + 2 / n**2)) * n / (n - 1)
    half = student.ppf(0.975, n - 1) * np.sqrt(variance) / (mean * (1 - mean))
    assert result.corrected.interval == pytest.approx((expit(logit(mean) - half), expit(logit(mean) + half)))
    assert result.saved == pytest.approx(1 - variance / (people.var() / (n - 1)))


@pytest.mark.parametrize("bias", [0.0, 1.5])
def test_it_covers_where_the_judge_is_biased(bias: float) -> None:
    truth = world(np.random.default_rng(9), 400_000)[0].mean()
    dice, covered, judge_covered, widths = np.random.default_rng(1), 0, 0, []
    for _ in range(400):
        people, judged = world(dice, 1000, bias=bias)
        result = corrected_mean(people[:100], judged[:100], judged[100:])
        low, high = result.corrected.interval
        covered += low <= truth <= high
        judge_covered += result.judge_only.interval[0] <= truth <= result.judge_only.interval[1]
        widths.append((high - low) / (result.label_only.interval[1] - result.label_only.interval[0]))
    assert 0.93 <= covered / 400 <= 0.975
    assert np.mean(widths) < 0.9
    assert judge_covered / 400 > 0.9 if bias == 0 else judge_covered / 400 < 0.05


@pytest.mark.parametrize("wrong", [0.02, 0.05])
def test_it_covers_where_few_labels_show_an_error(wrong: float) -> None:
    """Of a hundred labels two or five disagree with such a judge, or none; it still saves a third of the labels."""
    dice, covered, saved = np.random.default_rng(1), 0, []
    for _ in range(400):
        people = (dice.random(1000) < 0.95).astype(float)
        judged = np.where(dice.random(1000) < wrong, 1 - people, people)
        result = corrected_mean(people[:100], judged[:100], judged[100:])
        low, high = result.corrected.interval
        covered += low <= 0.95 <= high
        saved.append(result.saved)
    assert covered / 400 >= 0.93
    assert np.mean(saved) > 0.25


def test_a_judge_that_is_wrong_saves_nothing_and_costs_nothing() -> None:
    dice = np.random.default_rng(2)
    people, judged = world(dice, 600, sign=-1.0)
    result = corrected_mean(people[:150], judged[:150], judged[150:])
    assert (result.weight, result.saved) == (0.0, 0.0)
    assert result.corrected.accuracy == result.label_only.accuracy
    assert result.corrected.interval == pytest.approx(result.label_only.interval)


def test_items_of_one_prompt_are_one_draw() -> None:
    dice = np.random.default_rng(3)
    people, judged = world(dice, 60)
    _, rest = world(dice, 300)
    names, other_names = [f"a{n}" for n in range(60)], [f"b{n}" for n in range(300)]
    once = corrected_mean(people, judged, rest, names, other_names)
    assert corrected_mean(people, judged, rest, np.array(names), np.array(other_names)) == once
    copies = corrected_mean(np.repeat(people, 5), np.repeat(judged, 5), rest, [n for n in names for _ in range(5)], other_names)
    assert copies.corrected.accuracy == pytest.approx(once.corrected.accuracy)
    assert copies.corrected.interval == pytest.approx(once.corrected.interval)


def test_how_many_labels_a_width_needs() -> None:
    """With that many labels the interval is as wide, by the plain scale; a width below the judged pairs' own cannot be had."""
    dice = np.random.default_rng(4)
    people, judged = world(dice, 4000)
    result = corrected_mean(people[:200], judged[:200], judged[200:])
    needed = result.labels_for(0.05)
    assert needed is not None
    wider = corrected_mean(people[:needed], judged[:needed], judged[needed:])
    low, high = wider.corrected.interval
    assert (high - low) / 2 == pytest.approx(0.05, rel=0.1)
    assert result.labels_for(1e-4) is None


def test_too_few_labels() -> None:
    with pytest.raises(ValueError, match="labels of at least 4 prompts and one pair without a label, got 3 and 2"):
        corrected_mean([0, 1, 1], [0, 1, 1], [1, 0])
    with pytest.raises(ValueError, match="got 5 and 0"):
        corrected_mean([0, 1, 1, 0, 1], [0, 1, 1, 0, 1], [])
    with pytest.raises(ValueError, match="got those of one part"):
        corrected_mean([0, 1, 1, 0], [0, 1, 1, 0], [1], ["a", "a", "b", "b"])


def test_the_interval_is_never_wider_than_that_of_labels() -> None:
    """Also of few labels, nearly all of one kind: there a corrected mean may leave 0..1, and its interval would be wide."""
    dice, wider = np.random.default_rng(4), 0
    for _ in range(300):
        people, judged = world(dice, 60, bias=1.5)
        people = np.maximum(people, dice.random(60) < 0.7)
        result = corrected_mean(people[:8], np.where(people[:8] == 1, judged[:8], 0), judged[8:])
        (low, high), (least, most) = result.corrected.interval, result.label_only.interval
        wider += high - low > most - least
        assert result.saved >= 0
    assert wider == 0
