"""Policy losses per token, how they are averaged, and estimates of KL(policy || reference) per token.

Shapes: ``N`` rollouts, ``T`` tokens, ``mask_NT`` as in advantages. The estimates are of the log-probs of what the policy
sampled. Source: Schulman, "Approximating KL divergence" (2020), as used by arXiv 2402.03300 (k3 in the loss) and 2501.03262
(k1 in the reward). ``d`` is logp - ref_logp. k1 belongs into the reward, k2 and k3 into the loss: k1's gradient there is noise
about 0, and k2 or k3 as a reward would punish the square of what k1 measures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

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


def cispo(ratio_NT: Tensor, logprobs_NT: Tensor, advantages_NT: Tensor, clip_high: float) -> Tensor:
    """-sg(min(ratio, 1 + clip_high)) A logp per token (CISPO, MiniMax-M1, arXiv 2506.13585, eq. 4 and 5): the weight is clipped
    and has no gradient, so every token keeps one. The weight has no lower bound, as in the paper's runs."""
    return -ratio_NT.clamp(max=1 + clip_high).detach() * advantages_NT * logprobs_NT


def sapo(ratio_NT: Tensor, advantages_NT: Tensor, temperatures: tuple[float, float]) -> Tensor:
    """-sigmoid(tau (ratio - 1)) (4 / tau) A per token (SAPO, arXiv 2511.20347): a soft gate instead of a clip. ``temperatures``
    are tau of positive advantages, and of the others; both above 0, the higher the narrower."""
    tau_NT = torch.where(advantages_NT > 0, torch.full_like(advantages_NT, temperatures[0]), temperatures[1])
    return -torch.sigmoid(tau_NT * (ratio_NT - 1)) * 4 / tau_NT * advantages_NT


def clip_by_sign(log_ratio_NT: Tensor, advantages_NT: Tensor, low: float, high: float) -> Tensor:
    """Each token's log-ratio, at most ``high`` if its advantage is positive, at least -``low`` if it is negative, 0 if it is 0
    (GMPO, arXiv 2507.20673: PPO's clip of tokens, before the geometric mean over a rollout)."""
    sign_NT = advantages_NT.sign()
    return sign_NT * torch.minimum(sign_NT * log_ratio_NT, sign_NT * log_ratio_NT.clamp(-low, high))


def top_bound(values_K: Tensor, fraction: float) -> float:
    """Return the value that the highest ``fraction`` of ``values_K`` reach, at least one; infinity for no values. The 80/20
    rule trains the tokens whose entropy does (arXiv 2506.01939; ``fraction`` 0.2)."""
    if not len(values_K):
        return math.inf
    below = math.ceil((1 - fraction) * (len(values_K) - 1) - 1e-9)  # TRL interpolates here, with the same tokens above
    return values_K.kthvalue(below + 1).values.item()


def high_covariance(
    advantages_NT: Tensor,
    logprobs_NT: Tensor,
    tokens_2K: Tensor,
    uniforms_NT: Tensor,
    fraction: float,
    bounds: tuple[float, float],
) -> tuple[Tensor, Tensor]:
    """Return two choices [N, T] of tokens by (A - mean A) (logp - mean logp): Clip-Cov's and KL-Cov's (arXiv 2505.22617).

    ``tokens_2K`` are advantages and log-probs of the tokens of all processes. The first choice are about ``fraction`` of their
    number, with covariances within ``bounds``, at random by ``uniforms_NT`` in [0, 1); the second the ``fraction`` of highest
    covariance. Neither looks at a mask.
    """
    means_2 = tokens_2K.mean(1)
    covariance_NT = (advantages_NT - means_2[0]) * (logprobs_NT - means_2[1])
    all_K = (tokens_2K - means_2[:, None]).prod(0)
    num_within = ((all_K > bounds[0]) & (all_K < bounds[1])).sum().clamp(min=1)
    is_within_NT = (covariance_NT > bounds[0]) & (covariance_NT < bounds[1])
    number = max(1, int(fraction * len(all_K)))
    highest = all_K.topk(number).values[-1] if len(all_K) else math.inf
    return is_within_NT & (uniforms_NT * num_within < number), covariance_NT >= highest


IMPORTANCE_LEVELS = {
    "token": lambda gap_NT, mask_NT: gap_NT,
    "sequence": response_log_ratio,
    "geometric": sequence_log_ratio,
}

LEAST_OPEN = 1e-3  # mean of 1 - p: a policy that is certain of every token differs from its sampler by float32's rounding alone


def importance_weights(
    old_logprobs_NT: Tensor,
    sampled_logprobs_NT: Tensor,
    mask_NT: Tensor,
    mode: str,
    *,
    cap: float | None = None,
    floor: float | None = None,
    veto: float | None = None,
) -> tuple[Tensor, Tensor, dict[str, float]]:
    """Return weights [N, T] pi_old / pi_sampler without gradient, the mask [N, T] of what they keep, and metrics: they correct
    for a sampler that is not the policy, such as an engine or older weights.

    ``old_logprobs_NT`` are the trainer's, ``sampled_logprobs_NT`` the sampler's of the same tokens. ``mode`` is LEVEL_RULE as
    in TRL. The level: the ratio of a ``token``, of its ``sequence`` (the product over the tokens), or its ``geometric`` mean.
    The rule: ratios above ``cap`` or below ``floor`` are held there by ``truncate`` (Ionides, 2008), and dropped from the mask
    by ``mask`` (tokens: IcePop, arXiv 2510.18855; sequences: TRL's default). ``veto`` drops each rollout that has a token of
    lower ratio. Dropped tokens have weight 0, padding has 1.

    A log-prob that an engine does not give is nan: its token has a ratio of 1, as in TRL, and is counted. The relative gap is
    the mean distance of the log-probs over the mean of 1 - p. Rounding changes logits, and these change log p in proportion to
    1 - p, so it stays the same while the policy gets more or less certain; of that mean at least :data:`LEAST_OPEN` counts.
    """
    level, rule = mode.split("_")
    missing_NT = sampled_logprobs_NT.isnan() & (mask_NT > 0)
    gap_NT = (old_logprobs_NT - sampled_logprobs_NT).detach()
    gap_NT = gap_NT.masked_fill(missing_NT | (mask_NT == 0), 0)  # padding may hold anything, and nan * 0 is nan
    ratio_NT = finite_ratio(IMPORTANCE_LEVELS[level](gap_NT, mask_NT))
    low, high = floor or 0.0, math.inf if cap is None else cap
    beyond_NT = (ratio_NT < low) | (ratio_NT > high)
    vetoed_N1 = (gap_NT < math.log(veto)).any(1, keepdim=True) if veto else torch.zeros_like(beyond_NT[:, :1])
    dropped_NT = (mask_NT > 0) & (vetoed_N1 | (beyond_NT if rule == "mask" else vetoed_N1))
    weights_NT = torch.where(mask_NT > 0, ratio_NT.clamp(low, high), torch.ones_like(ratio_NT)).masked_fill(dropped_NT, 0)
    hit_NT = (mask_NT > 0) & (beyond_NT | vetoed_N1)
    tokens = mask_NT.sum().clamp(min=1)
    gap = gap_NT.abs().sum().item()
    open_NT = (1 - old_logprobs_NT.detach().exp()).clamp(min=0).masked_fill(missing_NT | (mask_NT == 0), 0)
    return (
        weights_NT,
        mask_NT * ~dropped_NT,
        {
            "importance/capped_frac": (hit_NT.sum() / tokens).item(),
            "importance/mean": ((ratio_NT * mask_NT).sum() / tokens).item(),
            "importance/gap": gap / tokens.item(),
            "importance/relative_gap": gap / max(open_NT.sum().item(), LEAST_OPEN * tokens.item()),
            "importance/missing_frac": (missing_NT.sum() / tokens).item(),
        },
    )


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


def ranking_loss(scores_NK: Tensor, places: Sequence[Sequence[int]]) -> Tensor:
    """Mean over rows of the Bradley-Terry loss of every two responses. ``places[n]`` are those of row n, from the best to the
    worst; of two responses it is :func:`bradley_terry_loss`."""
    losses = []
    for scores_K, order in zip(scores_NK, places, strict=True):
        ranked = scores_K[list(order)]
        above, below = torch.triu_indices(len(order), len(order), 1, device=ranked.device)
        losses.append(softplus(ranked[below] - ranked[above]).mean())
    return torch.stack(losses).mean()


def bradley_terry_loss(chosen_B: Tensor, rejected_B: Tensor) -> Tensor:
    """Mean of -log sigmoid(r(chosen) - r(rejected)): what a scalar head is fitted to. The margin of a pair is the
    difference."""
    return softplus(rejected_B - chosen_B).mean()
