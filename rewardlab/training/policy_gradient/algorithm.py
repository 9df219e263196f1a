"""From scored rollouts to advantages, and from advantages to the loss: the methods, without a trainer.

The formulas are those of ``rewardlab/rl``, composed here once. ``rl/reference.py`` is the same step as one readable file that
shares nothing with this one; a test holds the two equal for every recipe.

Shapes: ``N`` rollouts of this process, ``T`` tokens, ``G`` rollouts of all processes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rewardlab.config import EntropyConfig, Method, ObjectiveName
from rewardlab.metrics.running import Metric
from rewardlab.rl import advantages as rl_advantages
from rewardlab.rl.advantages import (
    Moments,
    explained_variance_of,
    gae,
    length_adaptive_lambda,
    returns_to_go,
    token_rewards,
    value_sums,
    value_targets,
    weights,
    whiten,
)
from rewardlab.rl.groups import fill_unscored, varying_frac
from rewardlab.rl.objectives import (
    ESTIMATORS,
    cispo,
    clip_by_sign,
    clipped_value_loss,
    finite_ratio,
    importance_weights,
    k1,
    mean_of_tokens,
    positive_nll,
    ppo_clip,
    preclip,
    preclip_fraction,
    response_log_ratio,
    sapo,
    sequence_log_ratio,
    sum_of_sequence_means,
    sum_over_constant,
)
from rewardlab.rl.self_verification import at_turn_ends
from rewardlab.training.policy_gradient.batch import RolloutBatch, ValueTargets

SumProcesses = Callable[[Tensor], Tensor]
"""Return the sum of a tensor over all processes."""

OutlierFilter = Callable[[Tensor, Tensor, Moments, Method], tuple[Tensor, dict[str, float]]]
"""(whitened advantages [N, T], mask [N, T], moments before whitening, method) -> (advantages, metrics)."""

MetricMap = dict[str, Metric]


def apply_outlier_rule(
    whitened_NT: Tensor, mask_NT: Tensor, moments: Moments, method: Method
) -> tuple[Tensor, dict[str, float]]:
    """Apply ``method.outliers`` to whitened advantages beyond ``method.outlier_sigma``."""
    return rl_advantages.filter_outliers(whitened_NT, mask_NT, method.outlier_sigma, method.outliers)


@dataclass(frozen=True)
class Rewards:
    """``rewards_G``: of the rollouts of all processes, nan if not scored. ``local``: this process's among them. ``groups_G``:
    group numbers, None if no groups are compared. ``kl_NT``: k1 against the reference, if it is subtracted from the reward;
    ``kl_penalty_G``: its sum over each rollout times the coefficient, if a rollout is one action. ``steps_NT``: rewards of
    single tokens.
    """

    rewards_G: Tensor
    local: slice
    groups_G: Tensor | None = None
    kl_NT: Tensor | None = None
    kl_penalty_G: Tensor | None = None
    steps_NT: Tensor | None = None


@dataclass(frozen=True)
class AdvantageOutputs:
    """Advantages [N, T], 0 on tokens that are not trained on; what the critic is fitted to, if there is one; metrics."""

    advantages_NT: Tensor
    metrics: MetricMap
    values: ValueTargets | None = None


def sampled_kl(batch: RolloutBatch, old_NT: Tensor, method: Method) -> tuple[Tensor, MetricMap]:
    """Return k1 [N, T] of the policy that sampled, of log-probs ``old_NT``, against the reference, and its mean."""
    assert batch.ref_logprobs_NT is not None
    # with a critic every token of the policy earns, trained on or not, and none of the user's
    mask_NT = torch.stack(batch.segments).sum(0) if method.estimator.critic else batch.loss_mask_NT
    kl_NT = k1(old_NT, batch.ref_logprobs_NT).masked_fill(mask_NT == 0, 0)
    return kl_NT, {"kl/sampled_k1": Metric(mean_of_tokens(kl_NT, mask_NT).item(), float(mask_NT.sum()))}


def compute_advantages(
    batch: RolloutBatch,
    rewards: Rewards,
    method: Method,
    *,
    sum_processes: SumProcesses,
    values_NT: Tensor | None = None,
    outliers: OutlierFilter = apply_outlier_rule,
) -> AdvantageOutputs:
    """Return the advantages of ``method.advantage``; ``values_NT`` are the critic's before each token, if there is one."""
    rewards_G, mask_NT = rewards.rewards_G, batch.loss_mask_NT
    metrics: MetricMap = {}
    if rewards.groups_G is not None:
        varying = varying_frac(fill_unscored(rewards_G, rewards.groups_G), rewards.groups_G)
        if rewards.kl_penalty_G is not None:  # off the reward of the whole response, before any baseline
            rewards_G = rewards_G - rewards.kl_penalty_G
        rewards_G = fill_unscored(rewards_G, rewards.groups_G)
        metrics["advantage/varying_groups_frac"] = Metric(varying, float(mask_NT.sum()))
        rewards_G = method.estimator.relative(rewards_G, rewards.groups_G)
        if not method.estimator.by_token:
            return AdvantageOutputs(rewards_G[rewards.local][:, None] * mask_NT, metrics)
    rewards_N = rewards_G[rewards.local].nan_to_num()
    if method.estimator.critic:
        assert values_NT is not None
        return _actor_critic(batch, rewards_N, rewards, method, values_NT, sum_processes, outliers)
    returns_NT = returns_to_go(_token_rewards(batch, rewards_N, rewards, mask_NT, method), mask_NT)
    advantages_NT, treated = _whiten_by_role(returns_NT, batch, method, sum_processes, outliers)
    return AdvantageOutputs(advantages_NT, metrics | treated)


def kl_coefficient(batch: RolloutBatch, method: Method) -> float | Tensor:
    """Return the weight of the KL divergence: the method's, or [N, 1] where each rollout has its own."""
    return method.kl_coef if batch.kl_coefs_N is None else batch.kl_coefs_N[:, None]


def _token_rewards(batch: RolloutBatch, rewards_N: Tensor, rewards: Rewards, mask_NT: Tensor, method: Method) -> Tensor:
    """[N, T] the reward on the last token of the mask (or of each turn), what steps earn, less the KL penalty of each token."""
    if batch.turns_NT is not None and batch.turn_rewards_NK is not None:
        rewards_NT = at_turn_ends(batch.turn_rewards_NK, batch.turns_NT)
        if rewards.kl_NT is not None:
            rewards_NT = rewards_NT - kl_coefficient(batch, method) * rewards.kl_NT * mask_NT
    else:
        rewards_NT = token_rewards(rewards_N, mask_NT, rewards.kl_NT, kl_coefficient(batch, method))
    return rewards_NT if rewards.steps_NT is None else rewards_NT + rewards.steps_NT * mask_NT


def _whiten_by_role(
    raw_NT: Tensor, batch: RolloutBatch, method: Method, sum_processes: SumProcesses, outliers: OutlierFilter
) -> tuple[Tensor, MetricMap]:
    """Whiten over the tokens, or the rollouts, of all processes, each role apart, and treat outliers."""
    total_NT, metrics = torch.zeros_like(raw_NT, dtype=torch.float32), {}
    for prefix, mask_NT in batch.roles.items():
        moments = Moments(sum_processes(Moments.of(raw_NT, weights(mask_NT, method.whiten_by)).values_3))
        treated_NT, treated = outliers(whiten(raw_NT, mask_NT, moments), mask_NT, moments, method)
        total_NT = total_NT + treated_NT
        tokens = float(mask_NT.sum())
        for name, value in treated.items():
            largest = name.endswith("/max_abs")
            metrics[f"{prefix}{name}"] = Metric(value, tokens, "max" if largest else "mean")
    return total_NT, metrics


def _actor_critic(
    batch: RolloutBatch,
    rewards_N: Tensor,
    rewards: Rewards,
    method: Method,
    values_NT: Tensor,
    sum_processes: SumProcesses,
    outliers: OutlierFilter,
) -> AdvantageOutputs:
    """Return GAE's advantages (arXiv 1506.02438), turn by turn, and the targets of the critic."""
    assert batch.finished_N is not None
    rewards_NT = _token_rewards(batch, rewards_N, rewards, batch.completion_mask_NT, method)
    fitted_N = batch.finished_N * batch.loss_mask_NT.any(1)  # rollouts that the critic may be fitted to
    raw_NT, targets_NT, returns_NT, value_mask_NT = (torch.zeros_like(values_NT) for _ in range(4))
    for segment_NT in batch.segments:
        lam: float | Tensor = method.gae_lambda
        if method.length_alpha is not None:
            lengths_N = segment_NT.sum(1)
            if method.window:  # half a window more is expected of what is not finished, as T-PPO's authors have it
                lengths_N = lengths_N + method.window / 2 * (1 - batch.finished_N)
            lam = length_adaptive_lambda(lengths_N, alpha=method.length_alpha)
        raw_NT += gae(rewards_NT, values_NT, segment_NT, lam=lam, finished_N=batch.finished_N)
        targets_NT += value_targets(rewards_NT, values_NT, segment_NT, lam=method.gae_lambda_critic)
        returns_NT += value_targets(rewards_NT, values_NT, segment_NT)
        value_mask_NT += segment_NT * fitted_N[:, None]
    advantages_NT, treated = _whiten_by_role(raw_NT, batch, method, sum_processes, outliers)
    metrics = _by_position(raw_NT, advantages_NT, batch.segments, batch.loss_mask_NT) | treated
    # Of returns, whatever the critic's lambda: targets below lambda 1 hold the critic's own values. Of all processes: they must
    # stop pre-training at once.
    sums_5 = sum_processes(value_sums(values_NT, returns_NT, value_mask_NT))
    explained = explained_variance_of(sums_5)
    if explained is not None:  # of rollouts that the critic has not been fitted to yet
        metrics["value/explained_variance"] = Metric(explained, float(batch.loss_mask_NT.sum()))
    num_tokens, num_rows = count_tokens(value_mask_NT, sum_processes)
    return AdvantageOutputs(advantages_NT, metrics, ValueTargets(values_NT, targets_NT, value_mask_NT, num_tokens, num_rows))


def _by_position(bare_NT: Tensor, treated_NT: Tensor, segments: Sequence[Tensor], mask_NT: Tensor) -> MetricMap:
    """Return the mean advantage, before whitening, of the first and last tenth of each rollout or turn, and the difference of
    the whitened ones: far from 0, the critic's error depends on the position."""
    first_NT, last_NT = torch.zeros_like(bare_NT), torch.zeros_like(bare_NT)
    for segment_NT in segments:
        trained_NT = segment_NT * mask_NT
        total_N1, place_NT = trained_NT.sum(1, keepdim=True), trained_NT.cumsum(1) - 1
        first_NT += trained_NT * (place_NT < 0.1 * total_N1)
        last_NT += trained_NT * (total_N1 - 1 - place_NT < 0.1 * total_N1)
    num_first, num_last = float(first_NT.sum()), float(last_NT.sum())
    if not num_first or not num_last:
        return {}
    bias = (treated_NT * last_NT).sum() / num_last - (treated_NT * first_NT).sum() / num_first
    return {
        "advantage/first_tenth": Metric(float((bare_NT * first_NT).sum()) / num_first, num_first),
        "advantage/last_tenth": Metric(float((bare_NT * last_NT).sum()) / num_last, num_last),
        "advantage/position_bias": Metric(float(bias), num_last),
    }


def count_tokens(mask_NT: Tensor, sum_processes: SumProcesses) -> tuple[Tensor, Tensor]:
    """Return (tokens, rollouts with any) of a mask over all processes, without a dimension, so that TRL does not split them."""
    totals_2 = sum_processes(torch.stack([mask_NT.sum(), mask_NT.any(1).sum()]).long())
    return totals_2[0], totals_2[1]


@dataclass(frozen=True)
class LossScale:
    """Scales a micro-batch's sum to its part of an optimizer step's loss. ``minibatches``: optimizer steps per pass over a
    rollout batch; ``processes`` whose gradients are averaged; ``micro_batches`` per optimizer step; ``rows_frac``: fraction of
    the micro-batch's rollouts, if it is read in several passes.
    """

    minibatches: float
    processes: int
    micro_batches: int
    rows_frac: float = 1.0

    @property
    def share(self) -> float:
        return self.minibatches * self.processes


@dataclass(frozen=True)
class EntropyControl:
    """The state of an entropy bonus: its weight, and the mean entropy of the last optimizer step (infinite: none yet)."""

    coef: float
    entropy: float = math.inf

    def weight(self, config: EntropyConfig) -> float:
        """Return the weight of the entropy in the loss of this step."""
        return self.coef if config.target is None or self.entropy <= config.target else 0.0

    def after(self, entropy: float, config: EntropyConfig) -> EntropyControl:
        """Return the state after a step of this mean entropy, in nats per token."""
        if config.target is None:
            return self
        change = config.step if entropy <= config.target else -config.step
        return EntropyControl(min(config.max, max(0.0, self.coef + change)), entropy)


@dataclass(frozen=True)
class LossInputs:
    """A micro-batch, the policy's log-probs and entropies of its completions [N, T], with gradient, the scale of its sums, and
    the weight of the entropy in the loss."""

    batch: RolloutBatch
    logprobs_NT: Tensor
    entropies_NT: Tensor
    scale: LossScale
    entropy_coef: float = 0.0


@dataclass(frozen=True)
class LossOutputs:
    """A micro-batch's share in the loss of its optimizer step, without a dimension, and metrics."""

    loss: Tensor
    metrics: MetricMap


def _ppo(ratio_NT: Tensor, logprobs_NT: Tensor, advantages_NT: Tensor, method: Method) -> Tensor:
    return ppo_clip(ratio_NT, advantages_NT, method.clip_low, method.clip_high, method.dual_clip)


@dataclass(frozen=True)
class Objective:
    """A policy loss. ``log_ratio`` is (log-ratios of tokens, mask, advantages, method) -> the log-ratio that each token is
    trained by; ``loss`` is (ratio, log-probs, advantages, method) -> loss; all tensors are [N, T]."""

    log_ratio: Callable[[Tensor, Tensor, Tensor, Method], Tensor] = lambda d_NT, mask_NT, a_NT, method: d_NT
    loss: Callable[[Tensor, Tensor, Tensor, Method], Tensor] = _ppo


OBJECTIVES: dict[ObjectiveName, Objective] = {
    "ppo_clip": Objective(),
    "gspo": Objective(lambda d_NT, mask_NT, a_NT, method: sequence_log_ratio(d_NT, mask_NT)),
    "response_clip": Objective(lambda d_NT, mask_NT, a_NT, method: response_log_ratio(d_NT, mask_NT)),
    "cispo": Objective(loss=lambda ratio_NT, logprobs_NT, a_NT, method: cispo(ratio_NT, logprobs_NT, a_NT, method.upper_clip)),
    "sapo": Objective(loss=lambda ratio_NT, logprobs_NT, a_NT, method: sapo(ratio_NT, a_NT, method.sapo_temperatures)),
    "gmpo": Objective(
        lambda d_NT, mask_NT, a_NT, method: sequence_log_ratio(
            clip_by_sign(d_NT, a_NT, method.clip_low, method.upper_clip), mask_NT
        ),
        lambda ratio_NT, logprobs_NT, a_NT, method: -ratio_NT * a_NT,
    ),
}


def correct_importance(batch: RolloutBatch, old_NT: Tensor, method: Method) -> tuple[RolloutBatch, MetricMap]:
    """Return the batch with the importance weights of ``method.importance``, without the tokens that it masks, and metrics.
    ``old_NT`` are the log-probs of the policy before its update."""
    sampled_NT, config = batch.sampling_logprobs_NT, method.importance
    if config is None or sampled_NT is None:
        return batch, {}
    bounds = {"cap": config.cap, "floor": config.floor, "veto": config.veto}
    weights_NT, kept_NT, metrics = importance_weights(old_NT, sampled_NT, batch.loss_mask_NT, config.mode, **bounds)
    tokens = float(batch.loss_mask_NT.sum())
    corrected = replace(batch, loss_mask_NT=kept_NT, importance_NT=weights_NT)
    return corrected, {name: Metric(value, tokens) for name, value in metrics.items()}


def policy_loss(inputs: LossInputs, method: Method) -> LossOutputs:
    """Return the objective on the (pre-clipped) ratio, corrected for the sampler, with KL and likelihood terms."""
    batch, logprobs_NT, mask_NT = inputs.batch, inputs.logprobs_NT, inputs.batch.loss_mask_NT
    assert batch.advantages_NT is not None
    tokens = float(mask_NT.sum())
    metrics: MetricMap = {}
    old_NT = logprobs_NT.detach() if batch.old_logprobs_NT is None else batch.old_logprobs_NT
    log_ratio_NT = logprobs_NT - old_NT
    if method.preclip is not None:
        beyond = preclip_fraction(logprobs_NT.detach(), old_NT, mask_NT, method.preclip)
        metrics["loss/preclip_frac"] = Metric(beyond, tokens)
        log_ratio_NT = preclip(logprobs_NT, old_NT, method.preclip)
    objective = OBJECTIVES[method.objective]
    ratio_NT = finite_ratio(objective.log_ratio(log_ratio_NT, mask_NT, batch.advantages_NT, method))
    loss_NT = objective.loss(ratio_NT, logprobs_NT, batch.advantages_NT, method)
    if batch.importance_NT is not None:
        loss_NT = loss_NT * batch.importance_NT
    if method.covariance and batch.held_NT is not None:
        loss_NT = loss_NT + method.covariance.coef * batch.held_NT * (logprobs_NT - old_NT).abs()
    if method.kl_coef and not method.subtracts_kl:
        assert batch.ref_logprobs_NT is not None
        kl_NT = ESTIMATORS[method.kl[:2]](logprobs_NT, batch.ref_logprobs_NT)
        if method.kl == "k3_corrected":  # DeepSeek-V3.2 (arXiv 2512.02556, eq. 7): the ratio makes its gradient unbiased
            kl_NT = kl_NT * ratio_NT
        metrics["kl/loss"] = Metric(mean_of_tokens(kl_NT.detach(), mask_NT).item(), tokens)
        loss_NT = loss_NT + kl_coefficient(batch, method) * kl_NT
    clipped_NT = (ratio_NT < 1 - method.clip_low) | (ratio_NT > 1 + method.upper_clip)
    metrics["loss/clip_frac"] = Metric(mean_of_tokens(clipped_NT.float(), mask_NT).item(), tokens)
    metrics["entropy"] = Metric(mean_of_tokens(inputs.entropies_NT.detach(), mask_NT).item(), tokens)
    assert batch.num_tokens is not None
    assert batch.num_rows is not None
    loss = average(loss_NT, mask_NT, batch.num_tokens, batch.num_rows, method, inputs.scale)
    if inputs.entropy_coef:  # a mean over tokens, whatever the average of the objective
        total = (inputs.entropies_NT * mask_NT).sum()
        loss = loss - inputs.entropy_coef * total * inputs.scale.share / batch.num_tokens.clamp(min=1)
    if method.positive_nll:
        assert batch.correct_N is not None
        nll = positive_nll(logprobs_NT, mask_NT, batch.correct_N, batch.num_correct_tokens)
        loss = loss + method.positive_nll * nll * inputs.scale.minibatches * inputs.scale.processes
    return LossOutputs(loss, metrics)


def value_loss(values_NT: Tensor, targets: ValueTargets | None, method: Method, scale: LossScale) -> Tensor:
    """Return the critic's share in the loss: its clipped squared error over finished rollouts."""
    assert targets is not None
    clips = (method.value_clip, method.value_clip_high)
    token_loss_NT = clipped_value_loss(values_NT, targets.old_values_NT, targets.targets_NT, *clips)
    return average(token_loss_NT, targets.mask_NT, targets.num_tokens, targets.num_rows, method, scale)


def average(
    values_NT: Tensor, mask_NT: Tensor, num_tokens: Tensor, num_rows: Tensor, method: Method, scale: LossScale
) -> Tensor:
    """Return a micro-batch's part of the mean that ``method.average`` names; the counts are of the whole rollout batch. By
    token every token of the rollout batch has the same weight, by sequence every rollout with any, whatever the micro-batch."""
    if method.average == "token":
        return (values_NT * mask_NT).sum() * scale.share / num_tokens.clamp(min=1)
    if method.average == "constant":
        mean = sum_over_constant(values_NT, mask_NT, method.max_completion_length)
        return mean * scale.rows_frac / scale.micro_batches
    return sum_of_sequence_means(values_NT, mask_NT) * scale.share / num_rows.clamp(min=1)
