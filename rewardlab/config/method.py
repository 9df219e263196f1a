"""The declaration of a policy-gradient method: its keys in YAML, what the trainer computes and what ``rl/reference.py`` checks.

Estimators of advantages and what they need are declared in ``rl/estimators.py``.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from rewardlab.config.base import Schema
from rewardlab.rl.estimators import ESTIMATORS, Advantage, Estimator


class Method(Schema):
    """What tells one method from another. The defaults are StableReinforce's (arXiv 2505.02835, section 4.1)."""

    advantage: Advantage = Field("reinforce_pp", description="Estimator of advantages.")
    group_size: int = Field(1, ge=1, description="Rollouts of each prompt.")
    max_completion_length: int = Field(1024, ge=1, description="Most tokens of a rollout; of each turn, where it has several.")
    whiten_by: Literal["token", "sequence"] = Field(
        "token", description="What counts alike in the mean and deviation of advantages: each `token`, or each `sequence`."
    )
    outliers: Literal["delete", "clip", "keep"] = Field(
        "delete", description="What becomes of whitened advantages beyond outlier_sigma: `delete`, `clip` or `keep`."
    )
    outlier_sigma: float = Field(3.0, gt=0, description="Deviations beyond which a whitened advantage is an outlier.")
    clip_low: float = Field(0.2, gt=0, description="How far below 1 the probability ratio may fall.")
    clip_high: float | None = Field(
        None, gt=0, description="How far above 1 the probability ratio may rise (DAPO's clip-higher); null: as clip_low."
    )
    dual_clip: float | None = Field(
        None, gt=1, description="Bound c on the loss of a token of negative advantage A: at most -c A; null: none."
    )
    preclip: tuple[float, float] | None = Field(
        (1e-3, 1e3), description="Bounds of the probability ratio before its logarithm is exponentiated; null: none."
    )
    ratio: Literal["token", "sequence", "product"] = Field(
        "token",
        description="Probability ratio of each `token`, its geometric mean over the `sequence` (GSPO), or its `product` over "
        "the whole response (RLOO: one action).",
    )
    average: Literal["sequence", "token", "constant"] = Field(
        "sequence",
        description="Mean of token losses: by rollout, over all tokens, or the sum over max_completion_length (`constant`).",
    )
    kl: Literal["k1_reward", "k2_loss", "k3_loss"] = Field(
        "k1_reward",
        description="Estimator of the KL divergence to the initial policy, and whether it stands in the reward or in the loss.",
    )
    kl_coef: float = Field(0.0, ge=0, description="Weight of the KL divergence; 0: none, and no reference model in memory.")
    positive_nll: float = Field(0.0, ge=0, description="Weight of the likelihood of correct rollouts in the loss.")
    importance_cap: float | None = Field(
        None, gt=0, description="Bound on p_trainer / p_sampler, which multiplies the loss; null: the sampler is trusted."
    )
    gae_lambda: float = Field(0.95, ge=0, le=1, description="GAE's lambda of the policy's advantages (advantage `gae`).")
    gae_lambda_critic: float = Field(1.0, ge=0, le=1, description="GAE's lambda of the returns that the critic is fitted to.")
    length_alpha: float | None = Field(
        None,
        gt=0,
        description="gae_lambda is 1 - 1 / (length_alpha x length), at least 0.95 (VAPO); null: gae_lambda as it stands.",
    )
    value_clip: float = Field(0.2, gt=0, description="How far a value may move from the value before the update.")
    value_clip_high: float | None = Field(
        None, gt=0, description="How far above the value before the update a value may rise (T-PPO); null: as value_clip."
    )
    window: int | None = Field(
        None, ge=1, description="Tokens by which a rollout grows in each step (T-PPO); null: whole rollouts."
    )
    window_tail: int = Field(
        0, ge=0, description="Last tokens of the window of an unfinished rollout, from which the policy learns nothing (T-PPO)."
    )

    @property
    def estimator(self) -> Estimator:
        """What ``advantage`` computes and needs."""
        return ESTIMATORS[self.advantage]

    @property
    def subtracts_kl(self) -> bool:
        """Whether the KL divergence is subtracted from the reward."""
        return bool(self.kl_coef) and self.kl == "k1_reward"

    @property
    def bootstraps(self) -> bool:
        """Whether a critic's errors reach the policy: with GAE's lambda below 1, or with windows; otherwise the critic is a
        baseline, and its errors only add noise."""
        short = self.gae_lambda < 1 or self.length_alpha is not None or self.window is not None
        return self.estimator.critic and short

    @field_validator("preclip")
    @classmethod
    def _around_one(cls, bounds: tuple[float, float] | None) -> tuple[float, float] | None:
        if bounds is not None and not 0 < bounds[0] < 1 < bounds[1]:
            raise ValueError(f"preclip bounds the probability ratio on both sides of 1, got {bounds}")
        return bounds

    @model_validator(mode="after")
    def _tail_in_a_window(self) -> Self:
        if self.window_tail and (self.window is None or self.window_tail >= self.window):
            size = "there is no window" if self.window is None else f"the window is {self.window}"
            raise ValueError(f"window_tail {self.window_tail} is a part of a window, and {size}: lower window_tail")
        return self

    @model_validator(mode="after")
    def _has_a_group(self) -> Self:
        if self.estimator.needs_groups and self.group_size < 2:
            raise ValueError(f"advantage {self.advantage} compares a group's rollouts; set group_size to 2 or more")
        if self.subtracts_kl and not self.estimator.kl_in_reward:
            raise ValueError(f"advantage {self.advantage} has no KL divergence in its reward; use kl: k2_loss or k3_loss")
        return self
