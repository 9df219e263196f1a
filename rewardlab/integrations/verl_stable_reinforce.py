"""verl: StableReinforce (arXiv 2505.02835, section 4.1) in verl's own registries, for judges that outgrow one node.

    actor_rollout_ref.model.external_lib=rewardlab.integrations.verl_stable_reinforce
    algorithm.adv_estimator=stable_reinforce
    actor_rollout_ref.actor.policy_loss.loss_mode=stable_reinforce
    actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean

``external_lib`` is imported wherever verl 0.9.1 builds its ``HFModelConfig``: in the task runner, where the advantages are
computed, in the agent loops and in every actor. The legacy trainer (``trainer.use_v1=False``) does so, too. Another way, for
whatever imports verl, is the environment variable ``VERL_USE_EXTERNAL_MODULES``, which Ray's processes must be given:

    +ray_kwargs.ray_init.runtime_env.env_vars.VERL_USE_EXTERNAL_MODULES=rewardlab.integrations.verl_stable_reinforce

Advantages are whitened over all response tokens of the training batch, of all nodes: the task runner holds the whole of it.
Those beyond 3 deviations become 0 there: such tokens stay in the denominator of the loss and push nothing. The loss counts them
as ``actor/zero_advantage_frac``; the share by sign is logged. Loss and metrics are per micro-batch, averaged as verl does.
``+algorithm.outlier_sigma=4`` and ``+algorithm.outliers=clip`` (delete, clip, keep) change the filter, and

    actor_rollout_ref.actor.policy_loss._target_=rewardlab.integrations.verl_stable_reinforce.StableReinforceLossConfig
    +actor_rollout_ref.actor.policy_loss.preclip_low=1e-4
    +actor_rollout_ref.actor.policy_loss.preclip_high=1e4

the pre-clip. There is no dual clip in the paper: ``clip_ratio_c`` is not looked at. A whole launch is
``configs/verl/stable_reinforce_7b.sh``, the reward :mod:`rewardlab.integrations.verl_judge_reward`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import agg_loss, register_adv_est, register_policy_loss
from verl.workers.config.actor import PolicyLossConfig

from rewardlab.errors import ConfigError
from rewardlab.rl.advantages import filter_outliers, returns_to_go, whiten
from rewardlab.rl.objectives import finite_ratio, mean_of_tokens, ppo_clip, preclip, preclip_fraction

NAME = "stable_reinforce"
logger = logging.getLogger(__name__)


@dataclass
class StableReinforceLossConfig(PolicyLossConfig):
    """verl's own fields, and the bounds of the probability ratio, clamped before it is exponentiated."""

    loss_mode: str = NAME
    preclip_low: float = 1e-3
    preclip_high: float = 1e3


@register_adv_est(NAME)  # type: ignore[untyped-decorator]
def stable_reinforce_advantages(
    token_level_rewards: Tensor, response_mask: Tensor, config: Any = None, **unused: Any
) -> tuple[Tensor, Tensor]:
    """Advantages and returns [N, T] of the whole batch: returns-to-go, whitened over its tokens, outliers treated.

    A reward on a token that verl masked out still counts for those before it. Raise ConfigError for a gamma other than 1 and
    for an unknown treatment.
    """
    if (gamma := getattr(config, "gamma", 1.0)) != 1:
        raise ConfigError(f"algorithm.gamma is {gamma}; stable_reinforce does not discount: set it to 1")
    sigma, treatment = float(getattr(config, "outlier_sigma", 3.0)), getattr(config, "outliers", "delete")
    if treatment not in ("delete", "clip", "keep"):
        raise ConfigError(f"algorithm.outliers is {treatment!r}; expected delete, clip or keep")
    with torch.no_grad():
        returns_NT = returns_to_go(token_level_rewards, response_mask)
        advantages_NT, metrics = filter_outliers(whiten(returns_NT, response_mask), response_mask, sigma, treatment)
    logger.info("%s, beyond %g deviations: %s; %s", NAME, sigma, treatment, metrics)
    return advantages_NT, returns_NT


@register_policy_loss(NAME)  # type: ignore[untyped-decorator]
def stable_reinforce_loss(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "seq-mean-token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """Loss of a micro-batch [N, T] by verl's aggregation, and metrics: PPO's clip on the pre-clipped ratio.

    A token beyond the pre-clip has no gradient. ``actor/pg_clipfrac`` is, as in verl, the share of tokens where the clip
    decides, and ``actor/ppo_kl`` the mean of -log ratio within +-20. Raise ConfigError for bounds that are none.
    """
    assert config is not None, "verl gives its ActorConfig"
    bounds = (float(getattr(config.policy_loss, "preclip_low", 1e-3)), float(getattr(config.policy_loss, "preclip_high", 1e3)))
    if not 0 < bounds[0] < 1 < bounds[1]:
        raise ConfigError(f"preclip_low and preclip_high bound the probability ratio on both sides of 1, got {bounds}")
    low = config.clip_ratio if config.clip_ratio_low is None else config.clip_ratio_low
    high = config.clip_ratio if config.clip_ratio_high is None else config.clip_ratio_high
    ratio_NT = finite_ratio(preclip(log_prob, old_log_prob, bounds))
    loss_NT = ppo_clip(ratio_NT, advantages, low, high)
    with torch.no_grad():
        metrics = {
            "actor/pg_clipfrac": mean_of_tokens((loss_NT > -ratio_NT * advantages).float(), response_mask).item(),
            "actor/ppo_kl": mean_of_tokens((old_log_prob - log_prob).clamp(-20, 20), response_mask).item(),
            "actor/preclip_frac": preclip_fraction(log_prob, old_log_prob, response_mask, bounds),
            "actor/zero_advantage_frac": mean_of_tokens((advantages == 0).float(), response_mask).item(),
        }
    if rollout_is_weights is not None:
        loss_NT = loss_NT * rollout_is_weights
    loss = agg_loss(loss_mat=loss_NT, loss_mask=response_mask, loss_agg_mode=loss_agg_mode, **config.global_batch_info)
    return loss, metrics
