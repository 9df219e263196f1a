"""What the trainer is told: TRL's arguments and those that tell one method from another."""

from __future__ import annotations

from dataclasses import dataclass, field

from trl import GRPOConfig


@dataclass
class PolicyGradientConfig(GRPOConfig):
    """GRPOConfig plus the method. One sample per prompt is allowed where no group is needed."""

    advantage: str = field(default="reinforce_pp", metadata={"help": "reinforce_pp[_baseline], grpo, dr_grpo, rloo, gae"})
    whiten_by: str = field(default="token", metadata={"help": "what counts alike when whitening: token or sequence"})
    outliers: str = field(default="delete", metadata={"help": "whitened advantages beyond sigma: delete, clip or keep"})
    sigma: float = field(default=3.0, metadata={"help": "how many deviations are beyond"})
    preclip_min: float | None = field(default=1e-3, metadata={"help": "lower bound of the ratio before exp; None: no pre-clip"})
    preclip_max: float = field(default=1e3, metadata={"help": "upper bound of the ratio before exp"})
    clip_high: float | None = field(default=None, metadata={"help": "upper clip; None: the same as epsilon"})
    dual_clip: float | None = field(default=None, metadata={"help": "bound on the loss of tokens of negative advantage"})
    ratio: str = field(default="token", metadata={"help": "token or sequence"})
    average: str = field(default="sequence", metadata={"help": "sequence, token or constant"})
    kl: str = field(default="k1_reward", metadata={"help": "k1_reward, k2_loss or k3_loss"})
    positive_nll: float = field(default=0.0, metadata={"help": "weight of the likelihood of right rollouts"})
    orders_together: bool = field(default=False, metadata={"help": "both orders of a pair in one rollout batch"})

    importance_cap: float | None = field(default=None, metadata={"help": "bound on pi_old / pi_sampler; None: no correction"})
    gae_lambda: float = field(default=0.95, metadata={"help": "of the policy's advantages"})
    gae_lambda_critic: float = field(default=1.0, metadata={"help": "of the critic's targets"})
    length_alpha: float | None = field(default=None, metadata={"help": "lambda = 1 - 1 / (alpha l), by rollout"})
    value_clip: float = field(default=0.2, metadata={"help": "how far a value may move from what it was when sampling"})
    value_learning_rate: float | None = field(default=None, metadata={"help": "of the critic; None: the policy's"})
    revision_bonus: float = field(default=1.0, metadata={"help": "times the gain of a revised judgment over the first one"})
    window: int | None = field(default=None, metadata={"help": "tokens a rollout grows by in one step; None: all"})

    def __post_init__(self) -> None:
        asked = self.num_generations
        if asked == 1:  # TRL refuses 1 because of its group baseline; this trainer has none
            self.num_generations = 2
        super().__post_init__()
        self.num_generations = asked
