"""GAE and its descendants against sums written out, laws, and the mixture of n-step returns."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rewardlab.rl.advantages import (
    explained_variance,
    explained_variance_of,
    gae,
    length_adaptive_lambda,
    returns_to_go,
    value_sums,
    value_targets,
)


def drawn(rows: int = 6, width: int = 9, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Random rewards and values on rollouts of ragged length."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, width + 1, (rows,), generator=generator)
    mask = (torch.arange(width) < lengths[:, None]).float()
    rewards, values = (torch.randn(rows, width, generator=generator) for _ in range(2))
    return rewards * mask, values, mask


def test_by_hand() -> None:
    """Two tokens, gamma 0.5, lam 0.5: delta_1 = 1 - 0.4, delta_0 = 0 + 0.5 * 0.4 - 0.2, A_0 = delta_0 + 0.25 delta_1."""
    rewards, values = torch.tensor([[0.0, 1.0, 9.0]]), torch.tensor([[0.2, 0.4, 9.0]])
    got = gae(rewards, values, torch.tensor([[1, 1, 0]]), lam=0.5, gamma=0.5)
    assert got.tolist() == [[pytest.approx(0.15), pytest.approx(0.6), 0.0]]


@pytest.mark.parametrize(("lam", "gamma"), [(0.0, 1.0), (0.7, 1.0), (1.0, 0.9), (0.95, 0.99), (1.0, 1.0)])
def test_equals_the_definition(lam: float, gamma: float) -> None:
    """Sum of (gamma lam)^k delta_{t+k}, term by term."""
    rewards, values, mask = drawn()
    got = gae(rewards, values, mask, lam=lam, gamma=gamma)
    for row in range(len(mask)):
        length = int(mask[row].sum())
        after = [*values[row, 1:length].tolist(), 0.0]
        delta = [rewards[row, t].item() + gamma * after[t] - values[row, t].item() for t in range(length)]
        for t in range(length):
            expected = sum((gamma * lam) ** k * delta[t + k] for k in range(length - t))
            assert got[row, t].item() == pytest.approx(expected, abs=1e-5)
        assert not got[row, length:].any()


def test_at_lam_1_the_critic_is_fitted_to_the_discounted_return() -> None:
    """Whatever it says itself. By hand at gamma 0.5: 8, half of it a token before, a quarter two before."""
    rewards, mask = torch.tensor([[0.0, 0.0, 8.0]]), torch.ones(1, 3)
    for values in (torch.zeros(1, 3), torch.tensor([[5.0, -3.0, 1.0]])):
        assert value_targets(rewards, values, mask, lam=1.0, gamma=0.5).tolist() == [[2.0, 4.0, 8.0]]


def test_a_mixture_of_n_step_returns() -> None:
    """(1 - lam) sum lam^(h-1) G_h + lam^(T-t-1) G_T, less V: why any lam may be used with any critic (VC-PPO)."""
    rewards, values, mask = drawn(rows=3, width=6)
    lam = 0.8
    got = gae(rewards, values, mask, lam=lam)
    for row in range(3):
        length = int(mask[row].sum())
        for t in range(length):
            left = length - t
            n_step = [rewards[row, t : t + h].sum() + (values[row, t + h] if t + h < length else 0) for h in range(1, left + 1)]
            mixed = sum((1 - lam) * lam ** (h - 1) * n_step[h - 1] for h in range(1, left)) + lam ** (left - 1) * n_step[-1]
            assert got[row, t].item() == pytest.approx(float(mixed - values[row, t]), abs=1e-5)


def test_laws() -> None:
    """lam 1 is return to go less V; without values it is the return to go; lam 0 are the TD errors and sum to R - V_0."""
    rewards, values, mask = drawn()
    torch.testing.assert_close(gae(rewards, values, mask, lam=1.0), (returns_to_go(rewards, mask) - values) * mask)
    torch.testing.assert_close(gae(rewards, 0 * values, mask, lam=1.0), returns_to_go(rewards, mask))
    torch.testing.assert_close(gae(rewards, values, mask, lam=0.0).sum(1), rewards.sum(1) - values[:, 0], atol=1e-5, rtol=0)


def test_turns_of_others_are_passed_over() -> None:
    """GAE on a rollout with a foreign stretch inside equals GAE on the rollout without it."""
    rewards, values, _ = drawn(rows=1, width=7, seed=3)
    mask = torch.tensor([[1, 1, 0, 0, 1, 1, 0]])
    kept = mask[0] > 0
    short = gae(rewards[:, kept], values[:, kept], torch.ones(1, 4), lam=0.7, gamma=0.9)
    got = gae(rewards, values, mask, lam=0.7, gamma=0.9)
    torch.testing.assert_close(got[:, kept], short)
    assert not got[:, ~kept].any()


def test_the_critics_target_knows_nothing_of_the_policys_lambda() -> None:
    """At its own lam 1 it is the return to go."""
    rewards, values, mask = drawn()
    torch.testing.assert_close(value_targets(rewards, values, mask), returns_to_go(rewards, mask), atol=1e-5, rtol=0)


def test_a_cut_rollout_is_not_punished_for_the_cut() -> None:
    """EGAE: finished rows as GAE; unfinished ones have a last delta of r at gamma 1, and V_last - V_t at lam 1."""
    _, values, mask = drawn()
    rewards = torch.zeros_like(values)
    everything = torch.ones(len(mask), dtype=torch.bool)
    torch.testing.assert_close(gae(rewards, values, mask, lam=0.9, finished_N=everything), gae(rewards, values, mask, lam=0.9))
    cut = gae(rewards, values, mask, lam=1.0, finished_N=~everything)
    for row in range(len(mask)):
        last = int(mask[row].sum()) - 1
        torch.testing.assert_close(cut[row, : last + 1], values[row, last] - values[row, : last + 1], atol=1e-5, rtol=0)
        assert cut[row, last] == 0
    assert not gae(rewards, torch.full_like(values, 0.3), mask, lam=0.9, finished_N=~everything).any()
    mixed = torch.arange(len(mask)) % 2 == 0
    one = gae(rewards, values, mask, lam=0.9, finished_N=mixed)
    torch.testing.assert_close(one[mixed], gae(rewards, values, mask, lam=0.9)[mixed])


def test_lambda_by_length() -> None:
    """1 - 1 / (0.05 l): 0.9 at 200 tokens, 0.8 at 100, 0 at 20, less below; the floor; alpha without end is lam 1."""
    lengths = torch.tensor([1, 20, 100, 200, 800])
    bare = length_adaptive_lambda(lengths, floor=-1e9)
    assert bare.tolist() == pytest.approx([-19, 0, 0.8, 0.9, 0.975])
    assert length_adaptive_lambda(lengths).tolist() == pytest.approx([0.95, 0.95, 0.95, 0.95, 0.975])
    assert length_adaptive_lambda(lengths, alpha=1e12).tolist() == [1.0] * 5
    rewards, values, mask = drawn()
    lam = length_adaptive_lambda(mask.sum(1), alpha=1e12)
    torch.testing.assert_close(gae(rewards, values, mask, lam=lam), gae(rewards, values, mask, lam=1.0))
    lam = length_adaptive_lambda(mask.sum(1), alpha=0.5, floor=0.0)
    by_row = [gae(rewards[n : n + 1], values[n : n + 1], mask[n : n + 1], lam=lam[n].item()) for n in range(len(mask))]
    torch.testing.assert_close(gae(rewards, values, mask, lam=lam), torch.cat(by_row))


def test_explained_variance() -> None:
    """1 for a perfect critic, 0 for a constant one, below for a bad one, nothing where nothing varies."""
    returns, mask = torch.tensor([[1.0, 2.0, 3.0]]), torch.ones(1, 3)
    assert explained_variance(returns, returns, mask) == 1.0
    assert explained_variance(torch.full_like(returns, 2.0), returns, mask) == pytest.approx(0.0)
    assert explained_variance(-returns, returns, mask) == pytest.approx(-3.0)
    assert explained_variance(returns, torch.ones_like(returns), mask) is None
    assert explained_variance(returns, returns, torch.zeros(1, 3)) is None
    halves = value_sums(returns[:, :1], 3 * returns[:, :1], mask[:, :1]) + value_sums(
        returns[:, 1:], 3 * returns[:, 1:], mask[:, 1:]
    )
    assert explained_variance_of(halves) == pytest.approx(explained_variance(returns, 3 * returns, mask) or 0.0)


def test_lambda_keeps_its_digits() -> None:
    """Over 300 tokens lam^299 of the last reward comes back at the first; lam in single precision would be off by 3e-6."""
    rewards, none = torch.zeros(1, 300), torch.zeros(1, 300)
    rewards[0, -1] = 1.0
    assert gae(rewards, none, torch.ones(1, 300), lam=0.99)[0, 0].item() == pytest.approx(0.99**299, rel=3e-7)


def test_an_empty_row_has_a_lambda() -> None:
    """Of 0 tokens as of 1: 1 - 1 / 3; of 2 it is 5/6."""
    lam = length_adaptive_lambda(torch.tensor([0, 1, 2]), alpha=3.0, floor=0.0)
    assert lam.tolist() == pytest.approx([2 / 3, 2 / 3, 5 / 6])


def test_sums_are_over_tokens_alone() -> None:
    """Outside of the mask anything may stand."""
    values, returns = torch.tensor([[1.0, 5.0, 99.0]]), torch.tensor([[3.0, 4.0, -99.0]])
    assert value_sums(values, returns, torch.tensor([[1.0, 1.0, 0.0]])).tolist() == [2.0, 7.0, 25.0, 1.0, 5.0]


@pytest.mark.parametrize(
    ("mean", "variance", "varies"),
    [(0.0, 0.9e-9, False), (0.0, 1.5e-9, True), (1000.0, 0.5e-3, False), (1000.0, 1.5e-3, True), (1000.0, 3e-3, True)],
)
def test_variance_is_told_from_rounding(mean: float, variance: float, varies: bool) -> None:
    """Of four returns: above a billionth of 1 + their mean square it is one, and a critic that is always right explains it."""
    squares = variance + mean**2
    sums = torch.tensor([4.0, 4 * mean, 4 * squares, 0.0, 0.0], dtype=torch.float64)
    assert explained_variance_of(sums) == (1.0 if varies else None)
