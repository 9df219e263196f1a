"""What all schemas share, and what all stages that train have in common."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

ROLLOUT_SIGNS = (
    "health.window health.min_entropy health.max_invalid_frac health.length_factor health.max_position_bias "
    "health.hacking_drop health.min_explained_variance health.max_advantage_bias health.max_sampler_gap"
)


@dataclass(frozen=True)
class ConfigPart:
    """A part of the configs of ``schema`` and of the schemas below it.

    ``keys`` are dotted and separated by blanks, ``is_present`` takes a config, and ``cure`` says how the part is switched on
    ("" if it cannot be).
    """

    schema: str
    name: str
    keys: str
    is_present: Callable[[Any], bool]
    cure: str = ""


PARTS = (
    ConfigPart("TrainConfig", "a cosine", "min_lr_ratio", lambda c: c.lr_scheduler == "cosine", "set lr_scheduler to cosine"),
    ConfigPart("HealthConfig", "rollbacks", "max_rollbacks", lambda c: c.policy == "roll_back", "set policy to roll_back"),
    # without batch_size, which is memory: recipes set it for whoever switches evaluation on
    ConfigPart(
        "EvaluationConfig",
        "an evaluation",
        "images num_pairs seed every_steps metric blank_images patience keep_best max_tokens",
        lambda c: c.is_on,
        "set data or fraction",
    ),
    ConfigPart("EvaluationConfig", "a file of held-out pairs", "images", lambda c: c.data is not None, "set data"),
    ConfigPart("SFTConfig", "rollouts", ROLLOUT_SIGNS, lambda c: False),
    ConfigPart("PRMConfig", "rollouts", ROLLOUT_SIGNS, lambda c: False),
    ConfigPart("DPOConfig", "rollouts", ROLLOUT_SIGNS, lambda c: False),
    ConfigPart("DPOConfig", "SimPO", "margin", lambda c: "simpo" in c.losses, "add simpo to losses"),
    ConfigPart("RMConfig", "judgments in words", "evaluation.max_tokens", lambda c: False),
    ConfigPart(
        "Method",
        "whitened advantages",
        "whiten_by outliers outlier_sigma",
        lambda c: c.estimator.by_token,
        "set advantage to reinforce_pp, reinforce_pp_baseline or gae",
    ),
    ConfigPart(
        "Method",
        "a clip of ratios",
        "clip_low",
        lambda c: c.objective not in ("cispo", "sapo"),
        "set objective to ppo_clip, gspo, response_clip or gmpo",
    ),
    ConfigPart("Method", "an upper clip", "clip_high", lambda c: c.objective != "sapo", "set another objective than sapo"),
    ConfigPart(
        "Method",
        "PPO's clip",
        "dual_clip",
        lambda c: c.objective in ("ppo_clip", "gspo", "response_clip"),
        "set objective to ppo_clip, gspo or response_clip",
    ),
    ConfigPart("Method", "SAPO", "sapo_temperatures", lambda c: c.objective == "sapo", "set objective to sapo"),
    ConfigPart("Method", "a KL divergence", "kl", lambda c: c.kl_coef > 0, "set kl_coef above 0"),
    ConfigPart(
        "Method",
        "a critic",
        "gae_lambda gae_lambda_critic length_alpha value_clip value_clip_high window",
        lambda c: c.estimator.critic,
        "set advantage to gae",
    ),
    ConfigPart("Method", "a fixed lambda", "gae_lambda", lambda c: c.length_alpha is None, "set length_alpha to null"),
    ConfigPart("Method", "windows", "window_tail", lambda c: c.window is not None, "set window"),
    ConfigPart(
        "MethodConfig",
        "a critic",
        "value_learning_rate value_init value_pretrain_steps value_pretrain_batch_size value_patience "
        "health.min_explained_variance health.max_advantage_bias",
        lambda c: c.estimator.critic,
        "set advantage to gae",
    ),
    ConfigPart(
        "MethodConfig",
        "a pretrained critic",
        "value_pretrain_batch_size value_patience",
        lambda c: c.value_pretrain_steps > 0,
        "set value_pretrain_steps",
    ),
    ConfigPart(
        "MethodConfig",
        "a correction for the sampler",
        "health.max_sampler_gap",
        lambda c: c.importance is not None,
        "set engine or importance",
    ),
    ConfigPart(
        "MethodConfig",
        "dynamic sampling",
        "max_sampling_rounds difficulty_weighted",
        lambda c: c.dynamic_sampling != "off",
        "set dynamic_sampling to refill or oversample",
    ),
    ConfigPart(
        "MethodConfig",
        "the trainer's own decoder",
        "sampling_batch_size hot_token",
        lambda c: c.engine is None,
        "set engine to null",
    ),
    ConfigPart("CovarianceConfig", "Clip-Cov", "low high", lambda c: c.kind == "clip", "set kind to clip"),
    ConfigPart("CovarianceConfig", "KL-Cov", "coef", lambda c: c.kind == "kl", "set kind to kl"),
    ConfigPart("EntropyConfig", "a target", "step max", lambda c: c.target is not None, "set target"),
    ConfigPart("EngineConfig", "kind serve", "args devices deadline_s ahead", lambda c: c.kind == "serve", "set kind to serve"),
    ConfigPart("EngineConfig", "kind server", "base_url", lambda c: c.kind == "server", "set kind to server"),
    ConfigPart(
        "EngineConfig",
        "kind colocate",
        "gpu_memory_utilization tensor_parallel",
        lambda c: c.kind == "colocate",
        "set kind to colocate",
    ),
    ConfigPart("RLConfig", "self-verification", "revision_bonus", lambda c: c.self_verify, "set self_verify to true"),
    ConfigPart(
        "RLConfig",
        "a process reward model",
        "process_wrong_weight process_correct_weight",
        lambda c: c.process_reward is not None,
        "set process_reward",
    ),
    ConfigPart("RLConfig", "easy pairs to add", "easy_ratio", lambda c: "1" not in c.attempts, 'leave "1" out of attempts'),
    ConfigPart("PolicyConfig", "verdicts to learn", "health.max_position_bias health.hacking_drop", lambda c: False),
    ConfigPart("PolicyConfig", "a judge", "judge_batch_size", lambda c: c.judge is not None, "set judge"),
    ConfigPart(
        "PolicyConfig",
        "a judge that compares",
        "other_judges judge_votes judge_max_tokens anchor anchor_samples phi health.max_invalid_frac signs.sample "
        "signs.canaries signs.second_judge signs.max_disagreement signs.max_blank_fall signs.max_second_gap "
        "signs.max_canary_fall",
        lambda c: c.judge is not None and not c.judge.startswith("rm:"),
        "set judge to hf:, prob: or openai:",
    ),
    ConfigPart(
        "PolicyConfig", "anchors of several samples", "anchor_samples", lambda c: c.anchor == "best", "set anchor to best"
    ),
    ConfigPart("PolicyConfig", "rewards by rule", "verified_kl_coef thinking", lambda c: c.verified, "set verified to true"),
    ConfigPart(
        "PolicyConfig",
        "answers that a rule reads",
        "contract",
        lambda c: c.verified or c.signs.truth == "rules",
        "set verified to true, or signs.truth to rules",
    ),
    ConfigPart("PolicyConfig", "a KL divergence", "verified_kl_coef", lambda c: c.kl_coef > 0, "set kl_coef above 0"),
    ConfigPart(
        "SignsConfig",
        "a sample",
        "second_judge max_blank_fall max_second_gap",
        lambda c: c.sample > 0,
        "set sample above 0",
    ),
    ConfigPart("SignsConfig", "a second judge", "max_second_gap", lambda c: c.second_judge is not None, "set second_judge"),
    ConfigPart("SignsConfig", "canaries", "max_canary_fall", lambda c: c.canaries > 0, "set canaries above 0"),
    ConfigPart("SignsConfig", "known answers", "max_overpaid", lambda c: c.truth != "none", "set truth to exact or rules"),
    ConfigPart(
        "DistillConfig",
        "single requests",
        "concurrency try_s deadline_s retries",
        lambda c: c.transport == "chat",
        "set transport to chat",
    ),
    ConfigPart(
        "DistillConfig",
        "batches of requests",
        "batch_requests batch_bytes poll_s",
        lambda c: c.transport == "batch",
        "set transport to batch",
    ),
    ConfigPart("DistillConfig", "sampling", "top_p", lambda c: c.temperature > 0, "set temperature above 0"),
    ConfigPart(
        "StepsConfig", "judgments to sample", "judgments_per_order", lambda c: c.source == "judge", "set source to judge"
    ),
    ConfigPart(
        "MappingConfig",
        "two responses with a label",
        "responses preferred first second ties",
        lambda c: c.chosen is None and c.rejected is None,
        "leave out chosen and rejected",
    ),
)


def parts_of(schema: type[BaseModel]) -> list[ConfigPart]:
    """Return the parts of a schema: its own, and those of the schemas above it."""
    names = {base.__name__ for base in schema.__mro__}
    return [part for part in PARTS if part.schema in names]


def refuse_unused_keys(config: BaseModel) -> None:
    """Raise ValueError for a key of an absent part that does not have its default."""
    for part in parts_of(type(config)):
        if part.is_present(config):
            continue
        for key in part.keys.split():
            value, default = _value_and_default(config, key)
            if value != default:
                cure = f"{part.cure}, or leave" if part.cure else "leave"
                raise ValueError(f"{key} {value!r} has no effect without {part.name}: {cure} {key} at its default, {default!r}")


def _value_and_default(config: BaseModel, key: str) -> tuple[Any, Any]:
    *above, last = key.split(".")
    for name in above:
        config = getattr(config, name)
    return getattr(config, last), type(config).model_fields[last].get_default(call_default_factory=True)


TRACKERS = ("tensorboard", "wandb", "trackio")


class Schema(BaseModel):
    """Refuses unknown keys, and keys without effect (:mod:`rewardlab.config.base`)."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="after")
    def _no_unused_keys(self) -> Self:
        refuse_unused_keys(self)
        return self


def nested(schema: type[BaseModel], description: str) -> Any:
    """Return the field of a mapping that is always there, with its schema's defaults."""
    return Field(default_factory=lambda: schema.model_validate({}), description=description)


class LoraConfig(Schema):
    """Low-rank adapters on every linear layer (peft's "all-linear") and on the experts of a mixture, unless named otherwise."""

    r: int = Field(16, ge=1, description="Rank of the adapters.")
    alpha: int = Field(32, ge=1, description="Scale of the adapters: their output is multiplied by alpha / r.")
    dropout: float = Field(0.0, ge=0, lt=1, description="Fraction of an adapter's inputs that SFT drops; DPO and RL need 0.")
    target_modules: str | list[str] = Field("all-linear", description="Adapted layers: `all-linear`, names, or a regex.")
    quantize: Literal["nf4"] | None = Field(None, description="QLoRA: `nf4` keeps the frozen weights in 4 bits; null: as is.")


class PixelConfig(Schema):
    """Size of a shown image, as pixels of area; it is resized into the bounds. The checkpoint's processor keeps it, so that
    trainer, benchmark and server show the same. A token of Qwen2.5-VL has 784 pixels, of Qwen3-VL 1,024."""

    min: int = Field(3_136, ge=1, description="Minimum area of an image in pixels; a smaller image is enlarged.")
    max: int = Field(1_003_520, ge=1, description="Maximum area of an image in pixels; a larger image is reduced.")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min {self.min} is more than max {self.max}")
        return self


class HealthConfig(Schema):
    """Signs of a run that goes wrong, and the response: ``stop`` ends it, ``roll_back`` resumes from the checkpoint before with
    half the rate and other samples (at most ``max_rollbacks`` times), ``warn`` only logs."""

    policy: Literal["stop", "roll_back", "warn"] = Field(
        "stop", description="What a triggered check does: stop the run, roll back, or warn."
    )
    patience: int = Field(5, ge=1, description="Consecutive logs that must fail a check; for a non-finite loss, one.")
    window: int = Field(20, ge=1, description="Number of logs that a trend is averaged over.")
    min_entropy: float = Field(0.005, ge=0, description="Entropy below which rollouts count as collapsed, in nats per token.")
    max_invalid_frac: float = Field(0.95, gt=0, le=1, description="Maximum fraction of invalid or unreadable verdicts.")
    length_factor: float = Field(4.0, gt=1, description="Maximum ratio of the rollouts' length to that in the first logs.")
    max_position_bias: float = Field(0.45, gt=0, le=0.5, description="Maximum distance of first-position verdicts from 0.5.")
    min_explained_variance: float = Field(
        0.03, lt=1, description="Minimum explained variance of a fitted critic: pretraining does not end below it."
    )
    max_advantage_bias: float = Field(1.0, gt=0, description="Maximum gap of mean advantages, last to first tenth, in std.")
    hacking_drop: float = Field(0.1, gt=0, description="Drop of accuracy that counts as reward hacking if the reward rises.")
    max_sampler_gap: float = Field(
        0.1, gt=0, description="Maximum distance of the sampler's log-probabilities from the trainer's, in nats per token."
    )
    max_rollbacks: int = Field(2, ge=1, description="Number of rollbacks before the run ends.")


class TrainConfig(Schema):
    """The keys of all stages. ``batch_size`` counts the sequences of an optimizer step on all processes, so that a run is the
    same on any number of them."""

    model: str = Field("Qwen/Qwen2.5-VL-7B-Instruct", description="Checkpoint folder or hub id to start from.")
    template: str = Field("r1_reward", description="Prompt template: a name (r1_reward, plain, verdict, ...), or FORMAT:FILE.")
    learning_rate: float = Field(gt=0, description="Peak learning rate of AdamW.")
    warmup_steps: int = Field(0, ge=0, description="Optimizer steps over which the rate rises from 0.")
    warmup_ratio: float = Field(0.0, ge=0, lt=1, description="Warm-up as a fraction of all steps; not with warmup_steps.")
    lr_scheduler: Literal["cosine", "linear", "constant", "constant_with_warmup", "polynomial", "inverse_sqrt"] = Field(
        "cosine", description="Schedule of the learning rate after the warm-up."
    )
    min_lr_ratio: float = Field(0.0, ge=0, lt=1, description="Final rate of the cosine, as a fraction of the peak rate.")
    epochs: float = Field(1.0, gt=0, description="Passes over the data; max_steps overrides it.")
    max_steps: int = Field(-1, ge=-1, description="Optimizer steps of the run; -1: set by the epochs.")
    batch_size: int = Field(ge=1, description="Sequences of an optimizer step, of all processes together.")
    micro_batch_size: int = Field(ge=1, description="Sequences per forward pass of a process; changes memory, not results.")
    micro_batch_tokens: int | None = Field(
        None,
        ge=1,
        description="Maximum positions per forward pass, padding included: larger micro-batches are split; null: no limit.",
    )
    max_grad_norm: float = Field(1.0, gt=0, description="Norm to which gradients are clipped.")
    adam_beta2: float = Field(0.95, gt=0, lt=1, description="Decay of AdamW's second moment.")
    weight_decay: float = Field(0.0, ge=0, description="Weight decay of AdamW.")
    gradient_checkpointing: bool = Field(True, description="Recompute activations: less memory, about a third more time.")
    lora: LoraConfig | None = Field(None, description="Train low-rank adapters; null: train all weights.")
    freeze: list[str] = Field([], description="Frozen parts: `vision`, `merger`, `language`, or regexes of weight names.")
    dtype: Literal["auto", "bfloat16", "float32"] = Field(
        "auto", description="Type of the weights in OUT/final; `auto`: the model's. Training is in float32."
    )
    attn_implementation: Literal["auto", "flash_attention_2", "flash_attention_3", "sdpa", "eager"] = Field(
        "auto", description="Attention of every model; `auto`: flash attention if it is installed and supported, else sdpa."
    )
    pixels: PixelConfig | None = Field(None, description="Size at which images are shown; null: as in the checkpoint.")
    frames: int = Field(8, ge=1, description="Maximum frames of a video, evenly spaced (Qwen: as qwen-vl-utils).")
    data_workers: int = Field(
        4, ge=0, description="Threads (RL) or processes per process that load samples; at most one a core."
    )
    max_tokens: int | None = Field(
        None, ge=1, description="Maximum length of a sample; longer ones are left out. null: the context length."
    )
    save_steps: int = Field(100, ge=1, description="Optimizer steps between checkpoints.")
    save_total_limit: int = Field(2, ge=1, description="Number of checkpoints to keep; older ones are deleted.")
    logging_steps: int = Field(1, ge=1, description="Optimizer steps between lines of metrics.jsonl.")
    report_to: str = Field("none", description="Trackers: none, tensorboard, wandb, trackio, or several with commas.")
    health: HealthConfig = nested(HealthConfig, "Signs of a run that goes wrong.")
    seed: int = Field(0, description="Random seed of the run.")

    @field_validator("freeze")
    @classmethod
    def _patterns(cls, parts: list[str]) -> list[str]:
        for part in parts:
            try:
                re.compile(part)
            except re.error as error:
                raise ValueError(
                    f"{part!r} is neither vision, merger or language nor a regular expression ({error})"
                ) from error
        return parts

    @field_validator("report_to")
    @classmethod
    def _known_trackers(cls, named: str) -> str:
        named = named.replace(" ", "")
        if unknown := set(named.split(",")) - {"none", *TRACKERS}:
            raise ValueError(
                f"{', '.join(sorted(unknown))} is not a tracker; expected none, {', '.join(TRACKERS)}, comma-separated"
            )
        return named

    @model_validator(mode="after")
    def _one_schedule(self) -> Self:
        if self.max_steps == 0:
            raise ValueError("max_steps 0 trains nothing; set the number of optimizer steps, or -1 to use epochs")
        if self.warmup_steps and self.warmup_ratio:
            raise ValueError(
                f"warmup_steps {self.warmup_steps} and warmup_ratio {self.warmup_ratio} both set the length of "
                "the warm-up; keep one of them"
            )
        if self.lr_scheduler == "constant" and (self.warmup_ratio or self.warmup_steps):
            name = "warmup_ratio" if self.warmup_ratio else "warmup_steps"
            raise ValueError(f"lr_scheduler constant has no warm-up; set it to constant_with_warmup, or {name} to 0")
        return self

    @property
    def steps_of_rollouts(self) -> int:
        """Optimizer steps between two lines that log rollouts."""
        return 1

    @model_validator(mode="after")
    def _can_go_back(self) -> Self:
        apart = max(self.logging_steps, self.steps_of_rollouts)
        builds_up, kept = self.health.patience * apart, (self.save_total_limit - 1) * self.save_steps
        if self.health.policy == "roll_back" and builds_up > kept:
            raise ValueError(
                f"health.policy roll_back goes back by patience x {apart} steps between logs = {builds_up} steps, and "
                f"save_total_limit {self.save_total_limit} keeps the last {kept} at least; raise save_total_limit, or lower "
                "patience"
            )
        return self


class EvaluationConfig(Schema):
    """Held-out pairs, judged greedily in both orders at the start, every `every_steps` optimizer steps and at the end; off
    without `data` or `fraction`. The metrics are `eval/...` in metrics.jsonl. A judge with `self_verify` is evaluated by its
    first judgment.
    """

    data: str | None = Field(None, description="Held-out pairs: a .parquet or .jsonl file, or a folder of shards.")
    images: str | None = Field(None, description="Folder of relative media paths in `data`; null: that of the file.")
    fraction: float | None = Field(
        None, gt=0, lt=1, description="Fraction of the labelled pairs to hold out, with all about the same question and images."
    )
    num_pairs: int = Field(64, ge=1, description="Maximum pairs to evaluate, chosen by seed.")
    seed: int = Field(0, description="Seed of the selection, not the run's: all stages hold out the same pairs.")
    every_steps: int = Field(200, ge=1, description="Optimizer steps between evaluations.")
    metric: Literal["accuracy", "consistent_accuracy"] = Field(
        "accuracy", description="Metric of the best checkpoint and of early stopping."
    )
    blank_images: bool = Field(True, description="Also judge with grey images (accuracy without sight). Doubles the time.")
    patience: int | None = Field(None, ge=1, description="Evaluations without a new best before the run ends; null: never.")
    keep_best: bool = Field(True, description="Keep the weights of the best evaluation in OUT/best.")
    max_tokens: int | None = Field(None, ge=1, description="Maximum tokens of a judgment; null: as for a rollout, 1024 in SFT.")
    batch_size: int | None = Field(
        None, ge=2, description="Judgments that a process decodes at a time; null: sampling_batch_size, or 64."
    )

    @property
    def is_on(self) -> bool:
        """Return whether anything is evaluated."""
        return self.data is not None or self.fraction is not None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.data is not None and self.fraction is not None:
            raise ValueError("data already names a held-out set; set fraction or data, not both")
        return self
