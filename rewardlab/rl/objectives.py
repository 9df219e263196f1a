"""Policy losses per token, how they are averaged, and estimates of KL(policy || reference) per token.

Shapes: ``N`` rollouts, ``T`` tokens, ``mask_NT`` as in advantages. The estimates are of the log-probs of what the policy
sampled. Source: Schulman, "Approximating KL divergence" (2020), as used by arXiv 2402.03300 (k3 in the loss) and 2501.03262
(k1 in the reward). ``d`` is logp - ref_logp. k1 belongs into the reward, k2 and k3 into the loss: k1's gradient there is noise
about 0, and k2 or k3 as a reward would punish the square of what k1 measures.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus


def k1(logprobs_NT: Tensor, ref_logprobs_NT: Tensor) -> Tensor:
    """d: unbiased, of either sign. In a loss its gradient has expectation 0: it belongs into the reward."""
    return logprobs_NT - ref_logprobs_NT


def k2(logprobs_NT: Tensor, ref_logprobs_NT: Tensor) -> Tensor:
    """d^2 / 2: biased as a value, but its gradient d * grad logp is that of the KL itself."""
    return (logprobs_NT - ref_logprobs_NT) ** 2 / 2


def k3(logprobs_NT: Tensor, ref_logprobs_NT: Tensor) -> Tensor:
    """exp(-d) - 1 + d: unbiased, never negative; GRPO's. ``d`` is held within +-20, beyond which exp ends in infinity."""
    d_NT = (logprobs_NT - ref_logprobs_NT).clamp(-20, 20)
    return (-d_NT).exp() - 1 + d_NT


ESTIMATORS = {"k1": k1, "k2": k2, "k3": k3}


def preclip(logprobs_NT: Tensor, old_logprobs_NT: Tensor, bounds: tuple[float, float]) -> Tensor:
    """log-ratio clamped to [ln bounds[0], ln bounds[1]] *before* it is exponentiated (arXiv 2505.02835, eq. 5).

    Within the bounds this is the identity. Outside, the ratio is finite whatever the policies, and the token's gradient
    is exactly 0.
    """
    return (logprobs_NT - old_logprobs_NT).clamp(math.log(bounds[0]), math.log(bounds[1]))


def preclip_fraction(logprobs_NT: Tensor, old_logprobs_NT: Tensor, mask_NT: Tensor, bounds: tuple[float, float]) -> float:
    """Return the share of tokens that :func:`preclip` clamps."""
    log_ratio_NT = logprobs_NT - old_logprobs_NT
    hit_NT = (log_ratio_NT < math.log(bounds[0])) | (log_ratio_NT > math.log(bounds[1]))
    return ((hit_NT & (mask_NT > 0)).sum() / mask_NT.sum().clamp(min=1)).item()


def finite_ratio(log_ratio_NT: Tensor) -> Tensor:
    """exp of the log-ratio clamped to +-20: what was meant up to half a billion, and a number whatever the policies.

    Without it one token in float32 (a log-ratio above 88) makes the loss of its batch infinite, or nan where it is masked.
    """
    return log_ratio_NT.clamp(-20, 20).exp()


def sequence_log_ratio(log_ratio_NT: Tensor, mask_NT: Tensor) -> Tensor:
    """Each token's log-ratio replaced by the mean over its rollout (GSPO, arXiv 2507.18071), in value and gradient."""
    mean_N = (log_ratio_NT * mask_NT).sum(1) / mask_NT.sum(1).clamp(min=1)
    return mean_N[:, None].expand_as(log_ratio_NT)


def response_log_ratio(log_ratio_NT: Tensor, mask_NT: Tensor) -> Tensor:
    """Each token's log-ratio replaced by the sum over its rollout: the response as one action (RLOO, arXiv 2402.14740).

    Its exponential is the probability ratio of the whole response. With the mean over rollouts every token's gradient is then
    that of its own log-prob times the rollout's advantage, however long the rollout is.
    """
    return (log_ratio_NT * mask_NT).sum(1, keepdim=True).expand_as(log_ratio_NT)


@dataclass(frozen=True)
class Ratio:
    """One reading of the probability ratio: (log-ratios [N, T], mask [N, T]) -> log-ratios [N, T]. ``one_action``: the whole
    response has one ratio, of its importance weight too."""

    log_ratio: Callable[[Tensor, Tensor], Tensor]
    one_action: bool = False


RATIOS = {
    "token": Ratio(lambda log_ratio_NT, mask_NT: log_ratio_NT),
    "sequence": Ratio(sequence_log_ratio),
    "product": Ratio(response_log_ratio, one_action=True),
}


def ppo_clip(
    ratio_NT: Tensor, advantages_NT: Tensor, clip_low: float, clip_high: float | None = None, dual_clip: float | None = None
) -> Tensor:
    """-min(ratio A, clip(ratio, 1 - clip_low, 1 + clip_high) A) per token (PPO, arXiv 1707.06347, eq. 7).

    ``clip_high`` above ``clip_low`` lets unlikely tokens grow (DAPO, arXiv 2503.14476, eq. 8); None: the same as
    ``clip_low``. ``dual_clip`` c > 1 bounds the loss of a token of negative advantage at -c A (arXiv 1912.09729),
    where the ratio, and with it the push, has no other bound.
    """
    high = clip_low if clip_high is None else clip_high
    clipped_NT = ratio_NT.clamp(1 - clip_low, 1 + high)
    loss_NT = -torch.minimum(ratio_NT * advantages_NT, clipped_NT * advantages_NT)
    if dual_clip is None:
        return loss_NT
    return torch.where(advantages_NT < 0, torch.minimum(loss_NT, -dual_clip * advantages_NT), loss_NT)


def importance_weights(
    old_logprobs_NT: Tensor, sampled_logprobs_NT: Tensor, mask_NT: Tensor, cap: float, *, whole: bool = False
) -> tuple[Tensor, dict[str, float]]:
    """min(pi_old / pi_sampler, cap) per token, without gradient: corrects for an engine that samples unlike the trainer.

    ``old_logprobs_NT`` are the trainer's of the weights that sampled, ``sampled_logprobs_NT`` the engine's of the same
    tokens. Truncated importance sampling (Ionides, 2008); a ``cap`` of 2 is usual. With ``whole`` a response is one action: all
    of its tokens have the bounded ratio of the whole response.

    A log-prob that an engine does not give is nan: its token is left uncorrected, with a ratio of 1, as in TRL, and counted.
    """
    missing_NT = sampled_logprobs_NT.isnan() & (mask_NT > 0)
    gap_NT = (old_logprobs_NT - sampled_logprobs_NT).detach()
    gap_NT = gap_NT.masked_fill(missing_NT | (mask_NT == 0), 0)  # padding may hold anything, and nan * 0 is nan
    log_weights_NT = gap_NT.sum(1, keepdim=True).expand_as(gap_NT) if whole else gap_NT
    ratio_NT = log_weights_NT.clamp(-20, 20).exp()
    hit_NT = (ratio_NT > cap) & (mask_NT > 0)
    weights_NT = torch.where(mask_NT > 0, ratio_NT.clamp(max=cap), torch.ones_like(ratio_NT))
    tokens = mask_NT.sum().clamp(min=1)
    return weights_NT, {
        "importance/capped_frac": (hit_NT.sum() / tokens).item(),
        "importance/mean": ((ratio_NT * mask_NT).sum() / tokens).item(),
        "importance/gap": gap_NT.abs().sum().item() / tokens.item(),
        "importance/missing_frac": (missing_NT.sum() / tokens).item(),
    }


def positive_nll(logprobs_NT: Tensor, mask_NT: Tensor, correct_N: Tensor, num_tokens: Tensor | None = None) -> Tensor:
    """Mean negative log-likelihood over the tokens of correct rollouts (VAPO, arXiv 2504.05118); 0 without any.

    ``num_tokens`` of correct rollouts, where these are a part of a larger batch.
    """
    chosen_NT = mask_NT * correct_N[:, None]
    return -(logprobs_NT * chosen_NT).sum() / (chosen_NT.sum() if num_tokens is None else num_tokens).clamp(min=1)


def clipped_value_loss(
    values_NT: Tensor, old_values_NT: Tensor, targets_NT: Tensor, clip: float, clip_high: float | None = None
) -> Tensor:
    """0.5 max((V - G)^2, (clip(V, V_old +- clip) - G)^2) per token: PPO's, which keeps V near what it was when sampling.

    ``clip_high`` is how far V may rise where that is not ``clip`` (T-PPO, arXiv 2506.15050: 0.5 down and 0.6 up).
    """
    near_NT = old_values_NT + (values_NT - old_values_NT).clamp(-clip, clip if clip_high is None else clip_high)
    return 0.5 * torch.maximum((values_NT - targets_NT) ** 2, (near_NT - targets_NT) ** 2)


def mean_of_sequence_means(values_NT: Tensor, mask_NT: Tensor) -> Tensor:
    """Mean over each rollout's tokens, then over rollouts that have any: every one weighs the same, whatever its length."""
    return sum_of_sequence_means(values_NT, mask_NT) / mask_NT.any(1).sum().clamp(min=1)


def sum_of_sequence_means(values_NT: Tensor, mask_NT: Tensor) -> Tensor:
    """Sum over rollouts of the means over their tokens; 0 for one without tokens."""
    return ((values_NT * mask_NT).sum(1) / mask_NT.sum(1).clamp(min=1)).sum()


def mean_of_tokens(values_NT: Tensor, mask_NT: Tensor) -> Tensor:
    """Mean over all tokens of the batch: long rollouts weigh more (DAPO, arXiv 2503.14476)."""
    return (values_NT * mask_NT).sum() / mask_NT.sum().clamp(min=1)


def sum_over_constant(values_NT: Tensor, mask_NT: Tensor, length: int) -> Tensor:
    """Sum over a rollout's tokens by one constant ``length``, then mean over rollouts (Dr. GRPO, arXiv 2503.20783)."""
    return ((values_NT * mask_NT).sum(1) / length).mean()


def bradley_terry_loss(chosen_B: Tensor, rejected_B: Tensor) -> Tensor:
    """Mean of -log sigmoid(r(chosen) - r(rejected)): what a scalar head is fitted to. The margin of a pair is the
    difference."""
    return softplus(rejected_B - chosen_B).mean()
