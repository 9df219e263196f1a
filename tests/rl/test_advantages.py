"""REINFORCE++ advantages and the 3-sigma filter, on numbers worked out elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from rewardlab.config import Method
from rewardlab.rl import reference
from rewardlab.rl.advantages import Moments, filter_outliers, returns_to_go, token_rewards, weights, whiten


def one_token(rewards: list[float]) -> tuple[Tensor, Tensor]:
    """Rollouts of one token each: returns are the rewards."""
    values = torch.tensor(rewards)[:, None]
    return values, torch.ones_like(values)


def filtered(rewards: list[float], sigma: float = 3.0) -> tuple[Tensor, dict[str, float]]:
    values, mask = one_token(rewards)
    kept, metrics = filter_outliers(whiten(values, mask), mask, sigma)
    return kept[:, 0], metrics


def test_worked_example_of_the_paper() -> None:
    """Appendix: of 255 rewards of 1 and a single 0, the 0 has advantage -15.97; the filter removes it (|z| > 3)."""
    values, mask = one_token([1.0] * 255 + [0.0])
    whitened = whiten(values, mask)
    assert whitened[-1, 0].item() == pytest.approx(-15.97, abs=0.005)
    assert whitened[0, 0].item() == pytest.approx(0.0626, abs=1e-4)
    kept, metrics = filtered([1.0] * 255 + [0.0])
    assert kept[-1] == 0
    assert kept[0] > 0
    assert metrics["advantage/outlier_frac_negative"] == pytest.approx(1 / 256)
    assert metrics["advantage/outlier_frac_positive"] == 0
    assert metrics["advantage/max_abs"] == pytest.approx(15.97, abs=0.005)


@pytest.mark.parametrize(("accuracy", "survive"), [(0.5, True), (0.7, True), (0.8, True), (0.89, True), (0.91, False)])
def test_failures_survive_up_to_nine_in_ten(accuracy: float, survive: bool) -> None:
    """Rewards 2.0 and 0.5: bounds around the raw mean delete all failures from 68.5 % accuracy on; right ones from 90 %."""
    right = round(100 * accuracy)
    kept, _ = filtered([2.0] * right + [0.5] * (100 - right))
    assert bool((kept[right:] < 0).all()) is survive
    assert (kept[:right] > 0).all()


def test_rare_successes_are_filtered_below_one_in_ten() -> None:
    """The mirror of it: 9 of 100 right are outside 3 sigma, 11 of 100 are not."""
    assert (filtered([2.0] * 9 + [0.5] * 91)[0][:9] == 0).all()
    assert (filtered([2.0] * 11 + [0.5] * 89)[0][:11] > 0).all()


def test_nothing_varies_nothing_is_learned() -> None:
    """Equal rewards give exactly zero, not amplified rounding noise."""
    values, mask = one_token([0.1 + 0.2, 0.3] * 8)
    assert not whiten(values, mask).any()
    assert not whiten(*one_token([1.5])).any()


def test_whitening_is_over_tokens_and_equals_numpy() -> None:
    """Long rollouts weigh more; padding counts for nothing and stays 0."""
    mask = torch.tensor([[1.0, 1, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1]])
    values = torch.tensor([[2.0, 2, 2, 9], [0.5, 9, 9, 9], [1.0, 1, 1, 1]])
    tokens = values.numpy()[mask.numpy() > 0]
    expected = np.where(mask.numpy() > 0, (values.numpy() - tokens.mean()) / tokens.std(), 0)
    np.testing.assert_allclose(whiten(values, mask).numpy(), expected, atol=1e-6)


def test_moments_of_parts_add_up() -> None:
    """Two processes that exchange three numbers whiten as one would."""
    generator = torch.Generator().manual_seed(0)
    values, mask = torch.randn(8, 5, generator=generator), (torch.rand(8, 5, generator=generator) > 0.3).float()
    parts = Moments(Moments.of(values[:3], mask[:3]).values_3 + Moments.of(values[3:], mask[3:]).values_3)
    torch.testing.assert_close(whiten(values[:3], mask[:3], parts), whiten(values, mask)[:3])


def test_reward_stands_on_the_last_token() -> None:
    """Also of a cut-off rollout; k1 is taken off every token; what is outside the mask stays 0."""
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    kl = torch.full((2, 3), 0.5)
    rewards = token_rewards(torch.tensor([2.0, 1.0]), mask, kl, 0.1)
    torch.testing.assert_close(rewards, torch.tensor([[-0.05, 1.95, 0], [-0.05, -0.05, 0.95]]))
    torch.testing.assert_close(returns_to_go(rewards, mask), torch.tensor([[1.9, 1.95, 0], [0.85, 0.9, 0.95]]))


def test_a_hole_does_not_move_the_last_token() -> None:
    """The reward stands on the last token that is trained on, and nothing is lost with it."""
    mask = torch.tensor([[1, 0, 1, 1, 0], [1, 0, 1, 0, 0], [0, 0, 0, 0, 0]])
    assert token_rewards(torch.tensor([2.0, 3.0, 4.0]), mask).tolist() == [[0, 0, 0, 2, 0], [0, 0, 3, 0, 0], [0, 0, 0, 0, 0]]


@pytest.mark.parametrize("kl_coef", [0.0, 0.3])
def test_equal_to_the_reference_step(kl_coef: float) -> None:
    """Random lengths, rewards and log-probs, against the loops of ``rl/reference.py``."""
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(1, 9, (32,), generator=generator)
    mask = (torch.arange(8) < lengths[:, None]).long()
    rewards = torch.randint(0, 5, (32,), generator=generator) / 2
    old, ref = (-torch.rand(32, 8, generator=generator) for _ in range(2))
    rollouts = reference.Rollouts(mask, rewards, old, ref if kl_coef else None)
    kl = old - ref if kl_coef else None
    own = whiten(returns_to_go(token_rewards(rewards, mask, kl, kl_coef), mask), mask)
    kept, _ = filter_outliers(own, mask, 1.2)
    expected = reference.advantages(rollouts, Method(kl_coef=kl_coef, outlier_sigma=1.2))
    torch.testing.assert_close(kept, expected * mask, atol=1e-5, rtol=1e-5)
    assert (kept != own).any()


def test_rollouts_of_any_length_count_alike() -> None:
    """Rewards 1, 1, 0 on rollouts of 1, 1 and 8 tokens. By token the mean is 0.2; by rollout 2/3 with deviation 0.4714."""
    mask = torch.tensor([[1.0] + [0.0] * 7] * 2 + [[1.0] * 8])
    values = torch.tensor([1.0, 1.0, 0.0])[:, None] * mask
    by_token = whiten(values, mask, Moments.of(values, weights(mask, "token")))
    by_rollout = whiten(values, mask, Moments.of(values, weights(mask, "sequence")))
    assert by_token[:, 0].tolist() == pytest.approx([2.0, 2.0, -0.5])
    assert by_rollout[:, 0].tolist() == pytest.approx([0.70711, 0.70711, -1.41421], abs=1e-4)
    assert not by_rollout[:2, 1:].any()


def test_no_kl_and_no_coefficient_are_the_bare_reward() -> None:
    """One without the other takes nothing off."""
    rewards, mask, kl = torch.tensor([2.0]), torch.ones(1, 2), torch.ones(1, 2)
    for terms in ((None, 0.3), (kl,), (kl, 0.0)):
        assert token_rewards(rewards, mask, *terms).tolist() == [[0.0, 2.0]]


@pytest.mark.parametrize(
    ("mean", "deviation", "varies"), [(0.0, 1.5e-6, True), (0.0, 0.9e-6, False), (1000.0, 5e-4, False), (1000.0, 2e-3, True)]
)
def test_deviations_are_told_from_rounding(mean: float, deviation: float, varies: bool) -> None:
    """Above a millionth of 1 + the mean's size; zeros are single precision, too."""
    values = torch.tensor([[mean - deviation, mean + deviation]], dtype=torch.float64)
    whitened = whiten(values, torch.ones(1, 2))
    assert whitened.dtype is torch.float32
    assert whitened.tolist()[0] == pytest.approx([-1.0, 1.0] if varies else [0.0, 0.0], rel=1e-4)


def test_what_becomes_of_outliers() -> None:
    """Beyond 3, not at it, and within the mask alone; shares are of tokens, by sign."""
    advantages = torch.tensor([[-9.0, -3.0, 3.0, 4.0, 5.0, 1.0, 8.0]])
    mask = torch.tensor([[1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0]])
    became = {name: filter_outliers(advantages, mask, 3.0, name)[0].tolist()[0][:6] for name in ("delete", "clip", "keep")}
    assert became == {"delete": [0, -3, 3, 0, 0, 1], "clip": [-3, -3, 3, 3, 3, 1], "keep": [-9, -3, 3, 4, 5, 1]}
    for name in became:
        assert filter_outliers(advantages, mask, 3.0, name)[1] == pytest.approx(
            {
                "advantage/outlier_frac": 3 / 6,
                "advantage/outlier_frac_negative": 1 / 6,
                "advantage/outlier_frac_positive": 2 / 6,
                "advantage/max_abs": 9.0,
            }
        )
    assert filter_outliers(torch.tensor([[4.0]]), torch.ones(1, 1), 3.0)[1]["advantage/outlier_frac"] == 1.0
    assert set(filter_outliers(advantages, torch.zeros(1, 7), 3.0)[1].values()) == {0.0}
    assert filter_outliers(torch.zeros(2, 0), torch.zeros(2, 0), 3.0)[1]["advantage/max_abs"] == 0.0
