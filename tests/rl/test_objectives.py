"""The clipped objective, its averages and what corrects it, against arithmetic on paper; against TRL in test_trl_losses.py."""

from __future__ import annotations

import math

import pytest
import torch

from rewardlab.rl.objectives import (
    cispo,
    clip_by_sign,
    clipped_value_loss,
    finite_ratio,
    high_covariance,
    importance_weights,
    k1,
    k2,
    k3,
    mean_of_sequence_means,
    mean_of_tokens,
    positive_nll,
    ppo_clip,
    preclip,
    preclip_fraction,
    response_log_ratio,
    sapo,
    sequence_log_ratio,
    sum_over_constant,
)

BOUNDS = (1e-3, 1e3)


def test_a_ratio_is_a_number_whatever_the_policies() -> None:
    """exp(100) is infinite in float32, and nan behind a mask; held at 20 it is neither, and moves nothing."""
    log_ratio = torch.tensor([-100.0, 0.0, 1.0, 100.0], requires_grad=True)
    ratio = finite_ratio(log_ratio)
    ratio.sum().backward()
    assert ratio.tolist() == pytest.approx([2.061e-9, 1.0, 2.71828, 4.8517e8], rel=1e-3)
    assert log_ratio.grad is not None
    assert log_ratio.grad.tolist() == pytest.approx([0.0, 1.0, 2.71828, 0.0], rel=1e-4)


@pytest.mark.parametrize(
    ("log_ratio", "ratio"), [(0.0, 1.0), (1.0, math.e), (-6.0, math.exp(-6)), (6.9, math.exp(6.9)), (8.0, 1e3), (-8.0, 1e-3)]
)
def test_preclip_bounds_the_ratio(log_ratio: float, ratio: float) -> None:
    """Identity inside [ln 1e-3, ln 1e3], the bound outside."""
    new = torch.tensor([[-1.0 + log_ratio]])
    assert preclip(new, torch.tensor([[-1.0]]), BOUNDS).exp().item() == pytest.approx(ratio, rel=1e-4)


def test_preclip_keeps_a_far_policy_finite() -> None:
    """exp(200) overflows float32; pre-clipped, loss and gradient are finite, and the clamped token's gradient is 0."""
    new = torch.tensor([[-1.0, -1.0]], requires_grad=True)
    old = torch.tensor([[-201.0, -1.5]])
    assert (new - old).exp().isinf().any()
    loss = ppo_clip(preclip(new, old, BOUNDS).exp(), torch.tensor([[-1.0, -1.0]]), 0.2).sum()
    loss.backward()
    assert loss.item() == pytest.approx(1000 + math.exp(0.5), rel=1e-4)
    assert new.grad is not None
    assert new.grad.tolist() == [[0.0, pytest.approx(math.exp(0.5))]]
    assert preclip_fraction(new.detach(), old, torch.ones(1, 2), BOUNDS) == 0.5
    assert preclip_fraction(new.detach(), old, torch.tensor([[0, 1]]), BOUNDS) == 0.0


def test_a_token_at_a_bound_is_not_clamped() -> None:
    """Three log-ratios of 0, -1 and 1, one token after the other; 0 is at a bound of 1, on whichever side."""
    new, old, ones = torch.tensor([[-2.0, -3.0, -1.0]]), torch.full((1, 3), -2.0), torch.ones(1, 3)
    for bounds, clamped in (
        ((1.0, 2.0), (0, 1, 1)),
        ((0.5, 1.0), (0, 1, 1)),
        ((0.1, 10.0), (0, 0, 0)),
        ((0.1, 1.5), (0, 0, 1)),
    ):
        for token, hit in enumerate(clamped):
            one = (new[:, [token]], old[:, [token]], ones[:, [token]], bounds)
            assert preclip_fraction(*one) == hit
            assert (preclip(*one[:2], bounds) != one[0] - one[1]).item() == hit
        assert preclip_fraction(new, old, ones, bounds) == pytest.approx(sum(clamped) / 3)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss"),
    [
        (1.5, 2.0, -2.4),  # good, already much likelier: no more pull than 1.2
        (1.5, -2.0, 3.0),  # bad and likelier: full push
        (0.5, 2.0, -1.0),  # good and unlikelier: full pull
        (0.5, -2.0, 1.6),  # bad, already much unlikelier: no more push than 0.8
        (1.1, 2.0, -2.2),
    ],
)
def test_ppo_clip(ratio: float, advantage: float, loss: float) -> None:
    """Equation 7 of the PPO paper, each of its cases."""
    assert ppo_clip(torch.tensor(ratio), torch.tensor(advantage), 0.2).item() == pytest.approx(loss)


def test_every_rollout_weighs_the_same() -> None:
    """A rollout of one token and one of three."""
    values = torch.tensor([[4.0, 9, 9], [1.0, 2, 3]])
    assert mean_of_sequence_means(values, torch.tensor([[1, 0, 0], [1, 1, 1]])).item() == 3.0


def test_a_rollout_without_tokens_weighs_nothing() -> None:
    assert mean_of_sequence_means(torch.tensor([[1.0, 1.0], [7.0, 7.0]]), torch.tensor([[1, 1], [0, 0]])).item() == 1.0


@pytest.mark.parametrize(
    ("ratio", "advantage", "dual", "loss"),
    [
        (1.25, 1.0, None, -1.25),  # DAPO's upper bound of 1.28 leaves it alone; 0.2 would cut it at 1.2
        (1.4, 1.0, None, -1.28),
        (0.7, -1.0, None, 0.8),
        (100.0, -1.0, None, 100.0),
        (100.0, -1.0, 10.0, 10.0),
        (100.0, 1.0, 10.0, -1.28),  # dual clip is for bad tokens only
        (5.0, -2.0, 10.0, 10.0),
        (1.1, 0.5, 10.0, -0.55),
    ],
)
def test_higher_and_dual_clip(ratio: float, advantage: float, dual: float | None, loss: float) -> None:
    """Clip-higher 0.2 / 0.28, and the bound on what a bad token may cost."""
    assert ppo_clip(torch.tensor(ratio), torch.tensor(advantage), 0.2, 0.28, dual).item() == pytest.approx(loss)


def test_one_ratio_for_a_whole_rollout() -> None:
    """The mean log-ratio on every token; its gradient is shared by the rollout's tokens, none goes outside the mask."""
    log_ratio = torch.tensor([[0.3, -0.1, 9.0]], requires_grad=True)
    shared = sequence_log_ratio(log_ratio, torch.tensor([[1, 1, 0]]))
    assert shared.tolist() == [[pytest.approx(0.1)] * 3]
    shared[0, 0].backward()
    assert log_ratio.grad is not None
    assert log_ratio.grad.tolist() == [[0.5, 0.5, 0.0]]


def test_one_action_a_response() -> None:
    """The sum of the log-ratios on every token; its gradient on each of them is that of the sum, none goes to padding."""
    log_ratio = torch.tensor([[0.3, -0.1, 9.0]], requires_grad=True)
    shared = response_log_ratio(log_ratio, torch.tensor([[1, 1, 0]]))
    assert shared.tolist() == [[pytest.approx(0.2)] * 3]
    shared[0, 0].backward()
    assert log_ratio.grad is not None
    assert log_ratio.grad.tolist() == [[1.0, 1.0, 0.0]]


def test_rollouts_have_ratios_of_their_own() -> None:
    """Neither another row's tokens nor its length: the mean of 0.2 and 0.4, of 0.5 alone, and 0 where there is no token."""
    log_ratio = torch.tensor([[0.2, 0.4], [0.5, 9.0], [9.0, 9.0]])
    mask = torch.tensor([[1, 1], [1, 0], [0, 0]])
    assert sequence_log_ratio(log_ratio, mask).tolist() == [[pytest.approx(value)] * 2 for value in (0.3, 0.5, 0.0)]
    assert response_log_ratio(log_ratio, mask).tolist() == [[pytest.approx(value)] * 2 for value in (0.6, 0.5, 0.0)]
    weights, *_ = importance_weights(log_ratio, torch.zeros(3, 2), mask, "sequence_truncate", cap=10.0)
    assert weights.tolist() == [[pytest.approx(math.exp(0.6))] * 2, [pytest.approx(math.exp(0.5)), 1.0], [1.0, 1.0]]


@pytest.mark.parametrize("mode", ["token_truncate", "sequence_truncate"])
def test_a_logprob_that_the_engine_leaves_out(mode: str) -> None:
    """Its token is not corrected, and counted; the others are as they would be without it; padding may hold anything."""
    nan = torch.nan
    trainer = torch.log(torch.tensor([[0.4, 0.5, 0.8, 0.9]]))
    engine = torch.tensor([[math.log(0.2), nan, math.log(0.5), nan]])
    weights, _, metrics = importance_weights(trainer, engine, torch.tensor([[1, 1, 1, 0]]), mode, cap=4.0)
    expected = [2.0 * 1.6] * 3 if mode == "sequence_truncate" else [2.0, 1.0, 1.6]
    assert weights.tolist() == [[*(pytest.approx(value) for value in expected), 1.0]]
    assert metrics["importance/missing_frac"] == pytest.approx(1 / 3)
    assert metrics["importance/gap"] == pytest.approx((math.log(2) + math.log(1.6)) / 3)
    assert metrics["importance/relative_gap"] == pytest.approx((math.log(2) + math.log(1.6)) / (0.6 + 0.2))
    assert metrics["importance/mean"] == pytest.approx(sum(expected) / 3)
    assert importance_weights(trainer, trainer, torch.ones(1, 4), mode, cap=4.0)[2]["importance/missing_frac"] == 0.0


def test_rounding_has_one_relative_gap_however_certain_the_policy() -> None:
    """Noise on logits moves a certain policy's log-probs by a twentieth of an uncertain one's; relative to 1 - p by as much."""
    noise, places = torch.randn(2000, 8), torch.ones(1, 2000)
    gaps, relative = [], []
    for margin in (2.0, 5.0):  # of the sampled token's logit over the others'
        logits = torch.zeros(2000, 8)
        logits[:, 0] = margin
        logprobs = [values.log_softmax(-1)[None, :, 0] for values in (logits, logits + 0.01 * noise)]
        metrics = importance_weights(*logprobs, places, "token_mask", cap=3.0)[2]
        gaps.append(metrics["importance/gap"])
        relative.append(metrics["importance/relative_gap"])
    assert gaps[0] > 10 * gaps[1]
    assert relative[0] == pytest.approx(relative[1], rel=0.05)


def test_a_policy_that_is_certain_of_every_token_has_a_small_relative_gap() -> None:
    """What float32 leaves of log-probs near 0 is no sign of other weights."""
    trainer, sampler = torch.full((4, 500), -1e-7), torch.full((4, 500), -1e-6)
    metrics = importance_weights(trainer, sampler, torch.ones(4, 500), "token_mask", cap=3.0)[2]
    assert metrics["importance/relative_gap"] < 0.01


def test_an_engine_that_samples_otherwise() -> None:
    """Twice as likely for the trainer: weight 2; eight times: the cap, counted; padding counts for nothing."""
    trainer = torch.log(torch.tensor([[0.4, 0.8, 0.8, 0.9]]))
    engine = torch.log(torch.tensor([[0.2, 0.1, 0.8, 0.001]]))
    mask = torch.tensor([[1, 1, 1, 0]])
    weights, kept, metrics = importance_weights(trainer, engine, mask, "token_truncate", cap=4.0)
    assert weights.tolist() == [[pytest.approx(2.0), pytest.approx(4.0), pytest.approx(1.0), 1.0]]
    assert torch.equal(kept, mask)
    assert metrics["importance/capped_frac"] == pytest.approx(1 / 3)
    assert metrics["importance/mean"] == pytest.approx(11 / 3)


def test_weights_are_held_within_twenty() -> None:
    """exp(-20) below, and above the cap, a number for the metrics; at the cap a weight is not capped, nor is padding."""
    far = torch.tensor([[-100.0, 100.0]])
    weights, _, metrics = importance_weights(far, torch.zeros(1, 2), torch.ones(1, 2), "token_truncate", cap=4.0)
    assert weights.tolist() == [[pytest.approx(math.exp(-20)), 4.0]]
    assert metrics["importance/mean"] == pytest.approx(math.exp(20) / 2)
    assert metrics["importance/gap"] == 100.0
    assert importance_weights(far, far, torch.ones(1, 2), "token_mask", cap=1.0)[2]["importance/capped_frac"] == 0.0
    one = importance_weights(far[:, [1, 1]], torch.zeros(1, 2), torch.tensor([[1, 0]]), "sequence_mask", cap=4.0)[2]
    assert (one["importance/capped_frac"], one["importance/gap"]) == (1.0, 100.0)
    assert set(importance_weights(far, far, torch.zeros(1, 2), "token_mask", cap=4.0)[2].values()) == {0.0}


def test_masked_rollouts() -> None:
    """Rollouts with ratios of 2 and 1/4, 1 and 1, 4 and 4: the geometric mean, its two bounds, and the veto of a token below
    0.3, in a mode that masks and in one that truncates."""
    gaps = torch.log(torch.tensor([[2.0, 0.25], [1.0, 1.0], [4.0, 4.0]]))
    ones = torch.ones(3, 2)
    for mode, bounds, weights in (
        ("geometric_mask", {"cap": 3.0}, [[0.5**0.5] * 2, [1.0] * 2, [0.0] * 2]),
        ("geometric_mask", {"cap": 5.0, "floor": 0.8}, [[0.0] * 2, [1.0] * 2, [4.0] * 2]),
        ("geometric_truncate", {"cap": 3.0, "floor": 0.8}, [[0.8] * 2, [1.0] * 2, [3.0] * 2]),
        ("sequence_mask", {"cap": 20.0, "veto": 0.3}, [[0.0] * 2, [1.0] * 2, [16.0] * 2]),
        ("token_truncate", {"cap": 3.0, "veto": 0.3}, [[0.0] * 2, [1.0] * 2, [3.0] * 2]),
        ("token_mask", {"cap": 3.0}, [[2.0, 0.25], [1.0] * 2, [0.0] * 2]),
    ):
        found, kept, metrics = importance_weights(gaps, torch.zeros(3, 2), ones, mode, **bounds)
        torch.testing.assert_close(found, torch.tensor(weights))
        assert torch.equal(kept, (found > 0).float())
        if mode.endswith("mask"):
            assert metrics["importance/capped_frac"] == pytest.approx(1 / 3)


def test_other_objectives_than_ppos() -> None:
    """CISPO's weight has an upper bound and no gradient; SAPO's gate has slope A at ratio 1; GMPO cuts what leads away."""
    logprobs = torch.log(torch.tensor([3.0, 0.5])).requires_grad_()
    cispo(logprobs.exp(), logprobs, torch.tensor([2.0, -1.0]), 0.28).sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([-1.28 * 2, 0.5])
    ratio = torch.tensor([1.0, 1.0, 1e9, 1e9], requires_grad=True)
    loss = sapo(ratio, torch.tensor([2.0, -1.0, 1.0, -1.0]), (1.0, 2.0))
    assert loss.tolist() == pytest.approx([-2 * 2.0, 1.0, -4.0, 2.0])
    loss.sum().backward()
    assert ratio.grad is not None
    assert ratio.grad.tolist() == pytest.approx([-2.0, 1.0, 0.0, 0.0])
    log_ratios, advantages = torch.tensor([0.9, -0.9, 0.9, -0.9, 0.9]), torch.tensor([1.0, 1.0, -1.0, -1.0, 0.0])
    assert clip_by_sign(log_ratios, advantages, 0.4, 0.5).tolist() == pytest.approx([0.5, -0.9, 0.9, -0.4, 0.0])


def test_how_many_tokens_have_a_high_covariance() -> None:
    """The fraction of tokens, rounded down, and at least one, as in the authors' code; none of no tokens."""
    advantages, logprobs = torch.randn(2, 1, 10, generator=torch.Generator().manual_seed(0))
    tokens, same = torch.cat([advantages, logprobs]), torch.zeros(1, 10)
    for fraction, number in ((0.01, 1), (0.19, 1), (0.2, 2), (0.55, 5)):
        clip, hold = high_covariance(advantages, logprobs, tokens, torch.arange(10)[None] / 10, fraction, (-99.0, 99.0))
        assert hold.sum() == number
        assert clip.sum() == number
    assert not any(chosen.any() for chosen in high_covariance(same, same, torch.zeros(2, 0), same, 0.5, (0.0, 1.0)))


def test_the_likelihood_of_right_rollouts() -> None:
    """Mean over their tokens together; nothing, and no gradient, without any."""
    logprobs = torch.tensor([[-1.0, -2.0], [-3.0, -9.0], [-5.0, -7.0]], requires_grad=True)
    mask = torch.tensor([[1, 1], [1, 0], [1, 1]])
    assert positive_nll(logprobs, mask, torch.tensor([1.0, 1.0, 0.0])).item() == 2.0
    assert positive_nll(logprobs, mask, torch.tensor([1.0, 1.0, 0.0]), torch.tensor(100)).item() == pytest.approx(
        2.0 * (mask[:2].sum() / 100).item()
    )
    assert positive_nll(logprobs, mask, torch.tensor([0.0, 1.0, 0.0])).item() == 3.0
    nothing = positive_nll(logprobs, mask, torch.zeros(3))
    nothing.backward()
    assert nothing.item() == 0.0
    assert logprobs.grad is not None
    assert not logprobs.grad.any()


def test_a_critic_moves_a_step_at_a_time() -> None:
    """Inside the clip half the squared error; beyond it the larger of both, whose gradient is 0 where V has gone far enough."""
    values = torch.tensor([0.1, 0.9, -0.9], requires_grad=True)
    loss = clipped_value_loss(values, torch.zeros(3), torch.ones(3), 0.2)
    assert loss.tolist() == pytest.approx([0.405, 0.32, 1.805])
    loss.sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == pytest.approx([-0.9, 0.0, -1.9])
    steps = clipped_value_loss(torch.tensor([2.0, 4.0, 2.0]), torch.full((3,), 3.0), torch.tensor([2.0, 4.0, 4.0]), 0.2)
    assert steps.tolist() == pytest.approx([0.32, 0.32, 2.0])  # 2.8 and 3.2 are as far as it goes; back is no step at all
    sides = clipped_value_loss(torch.tensor([2.0, -2.0]), torch.zeros(2), torch.tensor([2.0, -2.0]), 0.5, 0.6)
    assert sides.tolist() == pytest.approx([0.98, 1.125])  # as far as 0.6 and -0.5


def test_averages() -> None:
    """By-token averages: a rollout of three weighs three times one of one; by a constant neither is divided by its length."""
    values, mask = torch.tensor([[4.0, 9, 9], [1.0, 2, 3]]), torch.tensor([[1, 0, 0], [1, 1, 1]])
    assert mean_of_tokens(values, mask).item() == 2.5
    assert sum_over_constant(values, mask, 10).item() == pytest.approx(0.5)
    for average in (mean_of_tokens, mean_of_sequence_means):
        assert average(values[1:], mask[1:]).item() == 2.0
        assert average(values, torch.zeros_like(mask)).item() == 0.0
        assert average(values[:1], mask[:1]).item() == 4.0


def test_k3_is_held_where_exp_would_be_infinite() -> None:
    """exp(20) - 1 - 20 from -20 on downwards, exp(-20) - 1 + 20 from 20 on upwards."""
    d = torch.tensor([-1000.0, -20.0, 20.0, 1000.0], dtype=torch.float64)
    least, most = math.exp(20) - 21, math.exp(-20) + 19
    assert k3(d, torch.zeros(4, dtype=torch.float64)).tolist() == pytest.approx([least, least, most, most], rel=1e-12)


def test_kl_estimators_average_to_the_kl() -> None:
    """Over two known distributions, exactly: E k1 = E k3 = KL, k3 never negative, and the gradient of E k2 is that of KL."""
    logits = torch.tensor([0.2, -0.5, 1.0, 0.3], requires_grad=True)
    ref = torch.tensor([0.1, 0.4, -0.2, 0.6]).log_softmax(0)
    policy = logits.log_softmax(0)
    kl = (policy.exp() * (policy - ref)).sum()
    (true_gradient,) = torch.autograd.grad(kl, logits, retain_graph=True)
    weights = policy.exp().detach()
    assert (weights * k1(policy, ref)).sum().item() == pytest.approx(kl.item(), abs=1e-6)
    assert (weights * k3(policy, ref)).sum().item() == pytest.approx(kl.item(), abs=1e-6)
    assert (k3(policy, ref) >= 0).all()
    (gradient,) = torch.autograd.grad((weights * k2(policy, ref)).sum(), logits, retain_graph=True)
    torch.testing.assert_close(gradient, true_gradient)
    (nothing,) = torch.autograd.grad((weights * k1(policy, ref)).sum(), logits)
    torch.testing.assert_close(nothing, torch.zeros(4), atol=1e-6, rtol=0)
