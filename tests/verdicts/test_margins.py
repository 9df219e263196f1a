"""Pairwise probabilities: the numbers worked by hand, the traps avoided, and a temperature against scikit-learn's fit."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from rewardlab.rewards.pairwise import rewards_of, without_thinking
from rewardlab.rl.objectives import bradley_terry_loss
from rewardlab.verdicts.margins import (
    TemperatureFit,
    both_orders,
    fit_temperature,
    over_rationales,
    readable,
    verdict_margins,
)


def logit(p: float) -> float:
    return math.log(p / (1 - p))


def test_two_tokens_spell_each_verdict() -> None:
    """Tokens 1, 3 have probability .2 + .1, tokens 2, 4 .4 + .2, the rest .1: margin log(.3 / .6), coverage .9."""
    logits = torch.tensor([[0.1, 0.2, 0.4, 0.1, 0.2]]).log() + 5
    margins, coverage = verdict_margins(logits, [1, 3], [2, 4])
    assert margins.item() == pytest.approx(math.log(0.5), abs=1e-6)
    assert coverage.item() == pytest.approx(0.9, abs=1e-6)
    assert margins.sigmoid().item() == pytest.approx(1 / 3, abs=1e-6)
    for first, second in (([1], [1, 2]), ([], [1]), ([1], [])):
        with pytest.raises(
            ValueError, match=f"^each verdict needs tokens of its own, got {re.escape(f'{first} and {second}')}$"
        ):
            verdict_margins(logits, first, second)


def test_coverage_is_a_probability() -> None:
    """Of a model that can write verdicts alone it is 1, and never above, whatever its logits round to."""
    _, coverage = verdict_margins(torch.randn(1000, 2, generator=torch.Generator().manual_seed(0)), [0], [1])
    assert coverage.max().item() == 1.0
    assert coverage.min().item() == pytest.approx(1)


def test_little_coverage_is_no_verdict() -> None:
    """A model about to write token 0 with .98: whatever the .02 prefer, it is not readable; .55 is."""
    _, coverage = verdict_margins(torch.tensor([[0.98, 0.019, 0.001], [0.45, 0.25, 0.3]]).log(), [1], [2])
    assert readable(coverage).tolist() == [False, True]
    assert readable(torch.tensor([0.5, 0.49])).tolist() == [True, False]


def test_golden_numbers_of_a_position_bias() -> None:
    """True margin 1, bias 2: truth .731, one order .953 (or .269 of the other), mean .611, log-odds .731.

    By hand: sigmoid(1) = .7311; sigmoid(3) = .9526; sigmoid(-1 + 2) = .7311, so 1 - .7311 = .2689 and (.9526 + .2689) / 2 =
    .6107.
    """
    given, swapped = torch.tensor([1.0 + 2.0]), torch.tensor([-1.0 + 2.0])
    assert given.sigmoid().item() == pytest.approx(0.953, abs=5e-4)
    assert both_orders(given, swapped, "mean").sigmoid().item() == pytest.approx(0.611, abs=5e-4)
    assert both_orders(given, swapped, "logit").sigmoid().item() == pytest.approx(0.731, abs=5e-4)


def test_mean_over_rationales() -> None:
    """.9 and .5 make .7; an unreadable one does not count; without any the answer is nan, never 1/2."""
    margins = torch.tensor([[logit(0.9), 0.0, 7.0], [3.0, 3.0, 3.0]], dtype=torch.float64)
    got = over_rationales(margins, torch.tensor([[True, True, False], [False, False, False]]))
    assert got[0].sigmoid().item() == pytest.approx(0.7)
    assert got[1].isnan()
    assert both_orders(got, got.flip(0)).isnan().all()


def test_temperature_equals_logistic_regression() -> None:
    """scikit-learn without intercept or penalty finds 1 / tau; margins made three times too sharp come back."""
    rng = np.random.default_rng(0)
    truth = rng.normal(0, 1.5, 2000)
    labels = (rng.random(2000) > 1 / (1 + np.exp(-truth))).astype(int)  # 1: response 1 is preferred
    margins = torch.tensor(truth * 3)
    found = fit_temperature(margins, torch.tensor(labels))
    theirs = LogisticRegression(C=np.inf, fit_intercept=False, tol=1e-10).fit(truth[:, None] * 3, 1 - labels)
    assert found.fit is TemperatureFit.FITTED
    assert 1 / found.tau == pytest.approx(theirs.coef_[0, 0], rel=1e-4)
    assert found.tau == pytest.approx(3, rel=0.15)
    for other in (found.tau * 0.9, found.tau * 1.1):
        right = margins * (1 - 2 * torch.tensor(labels)) / other
        assert found.nll < torch.nn.functional.softplus(-right).mean().item()
    divided = found(margins)
    assert divided.tolist() == (margins / found.tau).tolist()
    assert found.nll == pytest.approx(torch.nn.functional.softplus(-divided * (1 - 2 * torch.tensor(labels))).mean().item())


def test_a_temperature_of_several_rationales() -> None:
    """The mean of their probabilities is fitted, as it is used: scipy finds the same; repeated margins change nothing, and
    where a pair has fewer they count as they are."""
    rng = np.random.default_rng(1)
    margins = 4 * rng.normal(0.4, 1, (300, 1)) + rng.normal(0, 3, (300, 4))
    margins[::3, 2:] = np.nan
    labels = np.zeros(300, dtype=int)

    def nll(log_tau: float) -> float:
        return float(-np.log(np.nanmean(expit(margins / np.exp(log_tau)), 1)).mean())

    theirs = minimize_scalar(nll, bounds=(-3, 4), method="bounded", options={"xatol": 1e-8})
    found = fit_temperature(torch.tensor(margins), torch.tensor(labels))
    assert found.tau == pytest.approx(np.exp(theirs.x), rel=1e-4)
    assert found.nll == pytest.approx(theirs.fun)
    one = torch.tensor(margins[:, :1])
    alone, repeated = (fit_temperature(m, torch.tensor(labels)) for m in (one[:, 0], one.repeat(1, 5)))
    assert (alone.tau, alone.nll) == pytest.approx((repeated.tau, repeated.nll))


def test_a_temperature_that_has_no_minimum_says_so() -> None:
    """All right: the sharper the better. Wrong more often than right: the flatter the better. Neither is called a fit."""
    ones, zeros = torch.ones(3), torch.zeros(3, dtype=torch.long)
    assert (fit_temperature(ones, zeros).fit, fit_temperature(ones, zeros).tau) == (
        TemperatureFit.SEPARABLE,
        pytest.approx(0.01),
    )
    assert (fit_temperature(-ones, zeros).fit, fit_temperature(-ones, zeros).tau) == (
        TemperatureFit.NO_SIGNAL,
        pytest.approx(100),
    )
    assert fit_temperature(0 * ones, zeros).fit is TemperatureFit.NO_SIGNAL
    assert fit_temperature(20 * ones, zeros).fit is TemperatureFit.SEPARABLE  # so sharp that nothing is left to win
    assert [fit_temperature(margins, zeros, (0.5, 8.0)).tau for margins in (ones, -ones)] == pytest.approx([0.5, 8])
    for margins in (torch.tensor([1.0, math.nan]), torch.tensor([1.0, math.inf]), torch.empty(0)):
        with pytest.raises(ValueError, match=r"^a temperature needs finite margins, at least one$"):
            fit_temperature(margins, torch.zeros(len(margins)))


def test_rewards() -> None:
    """Margin 5 and -1 and 0: by hand; what the logit clip met is counted; unreadable is refused."""
    margins = torch.tensor([5.0, -1.0, 0.0])
    assert rewards_of(margins)[0].tolist() == pytest.approx([0.99331, 0.26894, 0.5], abs=1e-5)
    assert rewards_of(margins, "centered")[0].tolist() == pytest.approx([0.49331, -0.23106, 0], abs=1e-5)
    clipped, metrics = rewards_of(margins, "logit")
    assert clipped.tolist() == [4, -1, 0]
    assert metrics["reward/clipped_frac"] == pytest.approx(1 / 3)
    assert rewards_of(margins, "binary")[0].tolist() == [1, 0, 0]
    with pytest.raises(ValueError, match="unreadable"):
        rewards_of(torch.tensor([math.nan]))


@pytest.mark.parametrize("text", ["It is red.", "<think>red? yes</think>It is red.", "<think>a</think> b</think>\nIt is red."])
def test_the_reward_does_not_see_the_thinking(text: str) -> None:
    """The answer alone is judged; thinking that never ends leaves no answer."""
    assert without_thinking(text) == "It is red."
    assert without_thinking(f"{text}<think>or blue") == ""


def test_bradley_terry_loss_by_hand() -> None:
    """-log sigmoid(2) = .126928, -log sigmoid(-1) = 1.313262: mean .720095."""
    loss = bradley_terry_loss(torch.tensor([1.0, 0.5]), torch.tensor([-1.0, 1.5]))
    assert loss.item() == pytest.approx(0.720095, abs=1e-6)
