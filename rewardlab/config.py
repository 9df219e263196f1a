"""Schemas of ``configs/*.yaml``. Class defaults are the paper's recipe (arXiv 2505.02835); a YAML holds only differences.

An unknown key is an error. Numbers without a source in the paper carry a reason beside them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from rewardlab.errors import ConfigError

Attempts = Literal["1", "2", "3", "unsolved"]


class _Schema(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DistillConfig(_Schema):
    """The teacher stage. The paper's text says temperature 0 and its authors' notes 1; retrying at 0 asks the same again."""

    model: str = "gpt-4o"
    base_url: str = "https://api.openai.com/v1"
    api_key_env: str = Field("OPENAI_API_KEY", description="environment variable that holds the key")
    template: str = "r1_reward"
    max_attempts: int = Field(3, ge=1, le=3)
    temperature: float = Field(1.0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    max_tokens: int = Field(2048, ge=1, description="twice R1-Reward's generation length, so that few are cut off")
    concurrency: int = Field(32, ge=1)
    deadline_s: float = Field(120.0, gt=0, description="one request, retries included")
    retries: int = Field(4, ge=0)
    usd_per_million_prompt_tokens: float = Field(0.0, ge=0)
    usd_per_million_completion_tokens: float = Field(0.0, ge=0)
    seed: int = 0


class LoraConfig(_Schema):
    """Low-rank adapters on every linear layer (peft's "all-linear") unless named otherwise."""

    r: int = Field(16, ge=1)
    alpha: int = Field(32, ge=1)
    dropout: float = Field(0.0, ge=0, lt=1)
    target_modules: str | list[str] = "all-linear"


class TrainConfig(_Schema):
    """What SFT and RL have in common. ``batch_size`` counts sequences per optimizer step on one process."""

    model: str = "Qwen/Qwen2.5-VL-7B-Instruct"
    template: str = "r1_reward"
    learning_rate: float = Field(gt=0)
    warmup_steps: int = Field(0, ge=0)
    lr_scheduler: str = "cosine"
    epochs: float = Field(1.0, gt=0)
    max_steps: int = Field(-1, description="-1: decided by epochs")
    batch_size: int = Field(ge=1)
    micro_batch_size: int = Field(ge=1)
    max_grad_norm: float = Field(1.0, gt=0)
    adam_beta2: float = Field(0.95, gt=0, lt=1)
    weight_decay: float = Field(0.0, ge=0)
    gradient_checkpointing: bool = True
    lora: LoraConfig | None = None
    save_steps: int = Field(100, ge=1)
    save_total_limit: int = Field(2, ge=1)
    logging_steps: int = Field(1, ge=1)
    report_to: str = "none"
    seed: int = 0


class SFTConfig(TrainConfig):
    """Cold start on the teacher's kept judgments: one epoch, lr 1e-5, batches of 256 (paper, section 5)."""

    learning_rate: float = Field(1e-5, gt=0)
    batch_size: int = Field(256, ge=1)
    micro_batch_size: int = Field(4, ge=1)

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if self.batch_size % self.micro_batch_size:
            raise ValueError(f"batch_size {self.batch_size} must be a multiple of micro_batch_size {self.micro_batch_size}")
        return self


class ConsistencyConfig(_Schema):
    """Who says whether reasoning and verdict agree. ``weight`` 0 switches the reward and its requests off."""

    base_url: str = "http://127.0.0.1:8000/v1"
    model: str = "Qwen/Qwen2.5-VL-7B-Instruct"
    api_key_env: str = "OPENAI_API_KEY"
    weight: float = Field(0.5, ge=0)
    concurrency: int = Field(64, ge=1)
    deadline_s: float = Field(20.0, gt=0, description="after it the consistency is 0 and counted as failed")
    max_tokens: int = Field(8, ge=1)


class HotTokenConfig(_Schema):
    """FIRE (arXiv 2410.21236): one early token is drawn hot, for rollouts that differ; the defaults are verl's."""

    temperature: float = Field(30.0, gt=0)
    top_k: int = Field(16, ge=1)
    position: int = Field(1, ge=0, description="0 is the first token; 1 the one after an opening <think>")


class StepsConfig(_Schema):
    """Step labels by completing prefixes (arXiv 2410.17621): 20 completions each, of which a guesser gets half right."""

    source: Literal["judge", "pairs"] = Field("judge", description="whose judgments: sampled from the judge, or the pairs' own")
    completions: int = Field(20, ge=1, description="of each prefix asked about")
    alpha: float = Field(0.025, gt=0, lt=0.5, description="chance that a guesser passes for knowing; 15 right of 20")
    judgments_per_order: int = Field(1, ge=1, description="of the judge's own, at most completions")
    temperature: float = Field(1.0, gt=0)
    top_p: float = Field(1.0, gt=0, le=1)
    max_tokens: int = Field(1024, ge=1, description="of a completion, its prefix not counted")
    batch_size: int = Field(64, ge=1, description="sequences at a time")
    pairs_per_batch: int = Field(16, ge=1, description="pairs searched side by side; a kill loses one such batch")
    seed: int = 0

    @model_validator(mode="after")
    def _can_tell(self) -> Self:
        if 0.5**self.completions > self.alpha:
            raise ValueError(
                f"a guesser gets all of {self.completions} right with chance {0.5**self.completions:.3g}, more than alpha "
                f"{self.alpha}: raise completions"
            )
        if self.judgments_per_order > self.completions:
            raise ValueError("judgments_per_order are taken from the completions of the empty prefix and cannot be more")
        return self


class PRMConfig(TrainConfig):
    """A process reward model: squared error at the ends of steps. The paper leaves rate and batch open; these are SFT's."""

    learning_rate: float = Field(1e-5, gt=0)
    batch_size: int = Field(64, ge=1, description="judgments per optimizer step")
    micro_batch_size: int = Field(4, ge=1)

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if self.batch_size % self.micro_batch_size:
            raise ValueError(f"batch_size {self.batch_size} must be a multiple of micro_batch_size {self.micro_batch_size}")
        if self.lora:
            raise ValueError("a process reward model is trained whole; set lora: null")
        return self


class RLConfig(TrainConfig):
    """StableReinforce: lr 1e-6, no KL term, one sample per prompt, rollouts of 256 trained in batches of 128 (section 5).

    Every other method is a few differences from it: see ``configs/rl/``.
    """

    learning_rate: float = Field(1e-6, gt=0)
    epochs: float = Field(5.0, gt=0)
    rollout_batch_size: int = Field(256, ge=2, description="rollouts between two samplings, on one process")
    batch_size: int = Field(128, ge=2, description="rollouts per optimizer step")
    micro_batch_size: int = Field(2, ge=1)
    samples_per_prompt: int = Field(1, ge=1)
    iterations: int = Field(1, ge=1, description="passes over each rollout batch")
    max_completion_length: int = Field(1024, ge=1)
    temperature: float = Field(1.0, gt=0)
    hot_token: HotTokenConfig | None = None
    importance_cap: float | None = Field(None, gt=0, description="bound on p_trainer / p_sampler, multiplied in; null: trusted")
    dynamic_sampling: Literal["off", "refill", "oversample"] = Field(
        "off", description="train on groups neither all right nor all wrong: drawn until there are enough, or once, in excess"
    )
    max_sampling_rounds: int = Field(10, ge=1, description="of refill; then the undecided groups found are repeated")
    difficulty_weighted: bool = Field(False, description="dynamic sampling draws prompts of middling pass rate more often")
    window: int | None = Field(None, ge=1, description="tokens a rollout grows by per step (T-PPO); null: all at once")
    advantage: Literal["reinforce_pp", "reinforce_pp_baseline", "grpo", "dr_grpo", "rloo", "gae"] = "reinforce_pp"
    outliers: Literal["delete", "clip", "keep"] = Field("delete", description="of whitened advantages beyond advantage_sigma")
    advantage_sigma: float = Field(3.0, gt=0, description="in deviations")
    clip_eps: float = Field(0.2, gt=0)
    clip_eps_high: float | None = Field(None, gt=0, description="upper clip where it differs (DAPO's clip-higher)")
    dual_clip: float | None = Field(None, gt=1, description="bound on the loss of a token of negative advantage")
    preclip: tuple[float, float] | None = Field((1e-3, 1e3), description="of the probability ratio, before exp; null: none")
    ratio: Literal["token", "sequence"] = "token"
    average: Literal["sequence", "token", "constant"] = Field(
        "sequence", description="of token losses: by rollout, over all tokens, or the sum over max_completion_length"
    )
    kl: Literal["k1_reward", "k2_loss", "k3_loss"] = "k1_reward"
    kl_coef: float = Field(0.0, ge=0)
    positive_nll: float = Field(0.0, ge=0, description="weight of the likelihood of right rollouts")
    gae_lambda: float = Field(0.95, ge=0, le=1, description="of the policy's advantages (advantage: gae)")
    gae_lambda_critic: float = Field(1.0, ge=0, le=1, description="of what the critic is fitted to")
    length_adaptive_alpha: float | None = Field(None, gt=0, description="lambda 1 - 1 / (alpha length), at least 0.95 (VAPO)")
    value_clip: float = Field(0.2, gt=0)
    value_learning_rate: float | None = Field(None, gt=0, description="null: twice learning_rate, as VAPO has it")
    value_pretrain_steps: int = Field(0, ge=0, description="at most so many steps of the critic alone, before the policy moves")
    value_patience: int = Field(5, ge=1, description="pre-training ends when explained variance has not risen for so many logs")
    value_init: str | None = Field(None, description="checkpoint or value model to start the critic from; null: the policy's")
    format_weight: float = Field(0.5, ge=0)
    overlong_margin: int | None = Field(None, ge=1, description="tokens before the longest over which length costs up to 1")
    swap_weight: float = Field(0.0, ge=0, description="paid for naming the winner that the other order's rollouts name")
    process_reward: str | None = Field(
        None, description="process reward model (`rewardlab prm`) that pays at step ends; null: none"
    )
    process_wrong_weight: float = Field(0.25, ge=0, description="of its mean score where the verdict is not right")
    process_right_weight: float = Field(0.025, ge=0, description="where it is")
    consistency: ConsistencyConfig = Field(default_factory=lambda: ConsistencyConfig.model_validate({}))
    attempts: list[Attempts] = Field(["2", "3", "unsolved"], description="difficulty tags to train on")
    both_orders: bool = Field(True, description="show each pair once in each order, instead of in the teacher's")
    easy_ratio: float = Field(0.0, ge=0, description="easy pairs (attempts 1) added per hard one")

    @field_validator("preclip")
    @classmethod
    def _around_one(cls, bounds: tuple[float, float] | None) -> tuple[float, float] | None:
        if bounds is not None and not 0 < bounds[0] < 1 < bounds[1]:
            raise ValueError(f"preclip bounds the probability ratio on both sides of 1, got {bounds}")
        return bounds

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if self.batch_size % self.micro_batch_size or self.rollout_batch_size % self.batch_size:
            raise ValueError(
                f"rollout_batch_size {self.rollout_batch_size} must be a multiple of batch_size {self.batch_size}, and that "
                f"of micro_batch_size {self.micro_batch_size}"
            )
        if self.rollout_batch_size % self.samples_per_prompt:
            raise ValueError("rollout_batch_size must be a multiple of samples_per_prompt")
        if self.swap_weight and (not self.both_orders or self.rollout_batch_size % (2 * self.samples_per_prompt)):
            raise ValueError(
                "swap_weight compares the two orders of a pair: set both_orders, and make rollout_batch_size a multiple of "
                "twice samples_per_prompt"
            )
        if self.advantage not in ("reinforce_pp", "gae") and self.samples_per_prompt < 2:
            raise ValueError(f"advantage {self.advantage} compares a group's rollouts; set samples_per_prompt to 2 or more")
        if self.kl == "k1_reward" and self.kl_coef and self.advantage in ("grpo", "dr_grpo", "rloo"):
            raise ValueError(f"advantage {self.advantage} is one number per rollout; use kl: k2_loss or k3_loss")
        if self.process_reward and (self.advantage not in ("reinforce_pp", "reinforce_pp_baseline", "gae") or self.window):
            raise ValueError(
                "process_reward pays single tokens of whole rollouts: it needs advantage reinforce_pp, reinforce_pp_baseline "
                "or gae, and no window"
            )
        self._check_sampling()
        period = self.rollout_batch_size // self.batch_size * self.iterations
        if self.save_steps % period:
            raise ValueError(
                f"save_steps {self.save_steps} must be a multiple of {period}, the optimizer steps per rollout batch: a "
                "checkpoint in the middle of a rollout batch could not be resumed exactly"
            )
        return self

    def _check_sampling(self) -> None:
        if self.advantage == "gae" and self.lora:
            raise ValueError("advantage gae trains a critic of the policy's full size; set lora: null")
        if self.dynamic_sampling != "off" and (self.samples_per_prompt < 2 or self.swap_weight or self.window):
            raise ValueError("dynamic_sampling needs samples_per_prompt of 2 or more, and neither swap_weight nor window")
        if self.difficulty_weighted and self.dynamic_sampling == "off":
            raise ValueError("difficulty_weighted is a part of dynamic_sampling; set it to refill or oversample")
        if self.overlong_margin and self.overlong_margin > self.max_completion_length:
            raise ValueError("overlong_margin is a part of max_completion_length and cannot be longer")
        if self.window and (
            self.advantage != "gae" or self.max_completion_length % self.window or self.kl_coef or self.importance_cap
        ):
            raise ValueError(
                "window needs advantage gae, a max_completion_length that is a multiple of it, and neither kl_coef nor "
                "importance_cap"
            )


Config = TypeVar("Config", bound=BaseModel)


def load_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file. Raises ConfigError."""
    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); expected a YAML file") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML ({error})") from error
    if not isinstance(value or {}, dict):
        raise ConfigError(f"{path}: expected key: value lines, got a {type(value).__name__}")
    return value or {}


def load_config(schema: type[Config], path: Path | None, **overrides: Any) -> Config:
    """``schema`` with the YAML's differences and then the non-None ``overrides``. Raises ConfigError naming every bad key."""
    values = load_yaml(path) if path else {}
    values |= {name: value for name, value in overrides.items() if value is not None}
    try:
        return schema(**values)
    except ValidationError as error:
        raise ConfigError(_explain(error, schema, str(path) if path else "options")) from error


def _explain(error: ValidationError, schema: type[BaseModel], where: str) -> str:
    lines = []
    for item in error.errors():
        key = ".".join(map(str, item["loc"])) or "(whole)"
        if item["type"] == "extra_forbidden":
            lines.append(f"unknown key {key!r}; {schema.__name__} knows {', '.join(sorted(schema.model_fields))}")
        else:
            lines.append(f"{key}: {item['msg']}")
    return f"{where}: " + "; ".join(lines)
