"""Brier, log loss and calibration error against scikit-learn and by hand; what an interval of a calibration error is worth."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss, log_loss

from rewardlab.metrics.calibration import (
    Bin,
    RiskPoint,
    area_under_risk,
    basic_interval,
    brier,
    calibration_error_interval,
    expected_calibration_error,
    least_calibration_error,
    nll,
    reliability,
    risk_coverage,
)
from rewardlab.metrics.intervals import mean_interval

RNG = np.random.default_rng(3)
SPREAD = RNG.random(700)
ON_EDGES = RNG.integers(0, 11, 700) / 10  # the bins' own borders, 0 and 1 among them


@pytest.mark.parametrize("p", [SPREAD, ON_EDGES], ids=["spread", "on the edges"])
@pytest.mark.parametrize("num_bins", [5, 10])
def test_equal_to_scikit_learn(p: np.ndarray, num_bins: int) -> None:
    """The same bins, edges included, and the same scores."""
    happened = (np.random.default_rng(1).random(700) < p**2).astype(int)
    freq, mean = calibration_curve(happened, p, n_bins=num_bins, strategy="uniform")
    bins = reliability(p, happened, num_bins)
    assert [b.happened for b in bins] == pytest.approx(freq.tolist())
    assert [b.predicted for b in bins] == pytest.approx(mean.tolist())
    assert brier(p, happened) == pytest.approx(brier_score_loss(happened, p))
    inside = p.clip(1e-6, 1 - 1e-6)
    assert nll(inside, happened) == pytest.approx(log_loss(happened, inside))


def test_by_hand() -> None:
    """.15 .15 (one of two), .8 (did), .9 (did not): |.15 - .5| * 2 + .2 + .9 over 4; Brier (.7225 + .0225 + .04 + .81) / 4."""
    p, happened = [0.15, 0.15, 0.8, 0.9], [1, 0, 1, 0]
    assert reliability(p, happened) == [
        Bin(2, pytest.approx(0.15), 0.5), Bin(1, pytest.approx(0.8), 1.0), Bin(1, pytest.approx(0.9), 0.0),
    ]  # fmt: skip
    assert expected_calibration_error(p, happened) == pytest.approx((0.7 + 0.2 + 0.9) / 4)
    assert brier(p, happened) == pytest.approx(1.595 / 4)
    assert nll(p, happened) == pytest.approx(-(math.log(0.15) + math.log(0.85) + math.log(0.8) + math.log(0.1)) / 4)


def test_halves_of_precision_say_the_same() -> None:
    """Probabilities of single precision, and truths, are counted in double precision."""
    p, happened = SPREAD.astype(np.float32), np.random.default_rng(1).random(700) < SPREAD
    for metric in (brier, nll, expected_calibration_error):
        assert metric(p, happened) == metric(p.tolist(), happened.astype(float))
        assert metric(p.tolist(), p > 0.5) == metric(p.tolist(), (p > 0.5).astype(np.float32))
    assert brier(p, p) == 0.0 != brier(SPREAD, p)


def test_a_sure_mistake_is_infinite_and_certainty_is_free() -> None:
    """Nothing is clipped on the way."""
    assert nll([1.0, 1.0], [1, 0]) == math.inf
    assert nll([1.0, 0.0], [1, 0]) == brier([1.0, 0.0], [1, 0]) == expected_calibration_error([1.0, 0.0], [1, 0]) == 0
    assert (nll([0.5], [1]), brier([0.5], [0])) == (pytest.approx(math.log(2)), 0.25)


@pytest.mark.parametrize("bad", [[math.nan], [1.2], [-0.1]])
def test_what_is_no_probability_is_refused(bad: list[float]) -> None:
    """An unreadable one is not scored as anything; nor are none."""
    with pytest.raises(ValueError, match=r"0\.\.1"):
        brier(bad, [1])
    with pytest.raises(ValueError, match="at least one"):
        nll([], [])
    with pytest.raises(ValueError, match="as many"):
        expected_calibration_error([0.5], [1, 0])


def test_what_is_no_probability_is_said() -> None:
    with pytest.raises(ValueError, match=r"^a probability is not within 0\.\.1 \(or is nan\); leave it out"):
        brier([1.5], [1])


def test_the_defaults() -> None:
    """Ten bins, seed 0, and as many resamples as the signatures say: the same numbers without them, and every time."""
    happened = (np.random.default_rng(5).random(700) < SPREAD**2).astype(int)
    names = [f"c{n // 3}" for n in range(700)]
    assert expected_calibration_error(SPREAD, happened) == expected_calibration_error(SPREAD, happened, 10)
    assert reliability(SPREAD, happened) == reliability(SPREAD, happened, 10)
    assert least_calibration_error(SPREAD) == least_calibration_error(SPREAD, 10, seed=0, resamples=200)
    of_mean = basic_interval(lambda n: float(SPREAD[n].mean()), 700)
    assert of_mean == basic_interval(lambda n: float(SPREAD[n].mean()), 700, seed=0, resamples=1000)
    of_error = calibration_error_interval(SPREAD, happened, names)
    assert of_error == calibration_error_interval(SPREAD, happened, names, 10, seed=0, resamples=1000)


def test_other_numbers_of_bins() -> None:
    """One bin: the error is that of the mean; so are what chance makes of it, and its interval."""
    happened = (np.random.default_rng(5).random(700) < SPREAD**2).astype(int)
    gap = float(abs(SPREAD.mean() - happened.mean()))
    assert expected_calibration_error(SPREAD, happened, 1) == pytest.approx(gap)
    chance = np.random.default_rng(0).random((200, 700)) < SPREAD
    assert least_calibration_error(SPREAD, 1) == pytest.approx(np.abs(SPREAD.mean() - chance.mean(1)).mean())
    low, high = calibration_error_interval(SPREAD, happened, list(map(str, range(700))), 1)
    assert low < gap < high
    assert (low + high) / 2 == pytest.approx(gap, abs=0.005)
    names = list(map(str, range(100)))  # wrong at both ends, and right on average
    assert calibration_error_interval([0.1, 0.9] * 50, [1, 0] * 50, names, 1)[1] < 0.1


def test_what_a_statistic_is_asked_for() -> None:
    """First the sample itself, then resamples of all its units, the first one among them."""
    asked: list[np.ndarray] = []

    def statistic(indices: np.ndarray) -> float:
        asked.append(indices)
        return float(indices.mean())

    basic_interval(statistic, 4, resamples=30)
    assert asked[0].tolist() == [0, 1, 2, 3]
    assert {indices.size for indices in asked} == {4}
    assert set(np.concatenate(asked[1:]).tolist()) == {0, 1, 2, 3}


def test_pairs_and_confidences_go_together() -> None:
    for right in ([True], [True, False, True]):
        with pytest.raises(ValueError, match="argument"):
            risk_coverage([0.5, 0.6], right)


def test_exchanging_the_responses_leaves_the_scores() -> None:
    """p becomes 1 - p and the event its opposite; with probabilities off the bins' borders the error is the same too."""
    happened = (np.random.default_rng(5).random(700) < SPREAD).astype(int)
    for metric in (brier, nll, expected_calibration_error):
        assert metric(SPREAD, happened) == pytest.approx(metric(1 - SPREAD, 1 - happened))


def test_right_probabilities_show_some_error() -> None:
    """What is least is what calibrated draws show on average: of 500 spread ones about .045, four times as many half of it."""
    rng = np.random.default_rng(0)
    p = rng.random(500)
    seen = [expected_calibration_error(p, rng.random(500) < p) for _ in range(200)]
    assert least_calibration_error(p) == pytest.approx(np.mean(seen), rel=0.1)
    assert least_calibration_error(rng.random(2000)) == pytest.approx(np.mean(seen) / 2, rel=0.15)


def test_the_basic_interval_of_a_mean_is_the_percentile_one_mirrored() -> None:
    """For a mean both are the same up to the draws; the bound is kept."""
    values = (np.random.default_rng(2).random(400) < 0.3).astype(float)
    low, high = basic_interval(lambda i: float(values[i].mean()), 400)
    assert (low, high) == pytest.approx(mean_interval(values.tolist()), abs=0.01)
    assert basic_interval(lambda i: float(values[i].mean()), 400, least=0.29)[0] == 0.29


@pytest.mark.slow
def test_the_interval_of_a_calibration_error_covers() -> None:
    """Probabilities twice as far from 1/2 as they should be: true error 1/8; the interval holds it in about 95 % of samples."""
    rng, hits = np.random.default_rng(0), 0
    for _ in range(100):
        p = rng.random(300)
        happened = rng.random(300) < 0.5 + (p - 0.5) / 2
        low, high = basic_interval(
            lambda i, p=p, y=happened: expected_calibration_error(p[i], y[i]), 300, resamples=150, least=0
        )
        hits += low <= 0.125 <= high
    assert hits >= 85


def test_interval_of_the_calibration_error_over_clusters() -> None:
    """For single pairs it is the basic interval by plain resampling; of pairs in threes that are alike it is wider."""
    p, happened = SPREAD, (np.random.default_rng(5).random(700) < SPREAD**2).astype(float)
    plain = basic_interval(lambda of: expected_calibration_error(p[of], happened[of]), 700, least=0.0)
    assert calibration_error_interval(p, happened, [str(n) for n in range(700)]) == pytest.approx(plain, abs=0.01)
    thrice = [np.repeat(one, 3) for one in (p, happened)]
    low, high = calibration_error_interval(*thrice, [str(n // 3) for n in range(2100)])
    alone = calibration_error_interval(*thrice, [str(n) for n in range(2100)])
    assert high - low > 1.4 * (alone[1] - alone[0])


def test_risk_and_coverage_by_hand() -> None:
    """Two sure ones, of which one is wrong, then one less sure and right; one pair of four is never decided."""
    curve = risk_coverage([0.9, 0.9, 0.7, None], [True, False, True, False])
    assert curve == [RiskPoint(0.9, 0.5, 0.5), RiskPoint(0.7, 0.75, 1 / 3)]
    assert area_under_risk(curve) == pytest.approx((0.5 * 0.5 + 0.25 / 3) / 0.75)
    assert risk_coverage([None], [False]) == []
    assert math.isnan(area_under_risk([]))


def test_confidence_that_knows_nothing_saves_no_risk() -> None:
    """Against a confidence drawn at random the area is the error rate; one that knows its mistakes is below it."""
    dice = np.random.default_rng(0)
    right = dice.random(20_000) < 0.8
    blind = area_under_risk(risk_coverage((0.5 + dice.random(20_000) / 2).tolist(), right.tolist()))
    knowing = area_under_risk(risk_coverage((0.5 + right * 0.2 + dice.random(20_000) * 0.1).tolist(), right.tolist()))
    assert blind == pytest.approx(0.2, abs=0.02)
    assert knowing < 0.05
