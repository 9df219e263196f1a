"""What all schemas share, and what all stages that train have in common."""

from __future__ import annotations

import re
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from rewardlab.config.parts import refuse_unused_keys

TRACKERS = ("tensorboard", "wandb", "trackio")


class Schema(BaseModel):
    """Refuses unknown keys, and keys without effect (:mod:`rewardlab.config.parts`)."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="after")
    def _no_unused_keys(self) -> Self:
        refuse_unused_keys(self)
        return self


def nested(schema: type[BaseModel], description: str) -> Any:
    """Return the field of a mapping that is always there, with its schema's defaults."""
    return Field(default_factory=lambda: schema.model_validate({}), description=description)


class LoraConfig(Schema):
    """Low-rank adapters on every linear layer (peft's "all-linear") unless named otherwise."""

    r: int = Field(16, ge=1, description="Rank of the adapters.")
    alpha: int = Field(32, ge=1, description="Scale of the adapters: their output is multiplied by alpha / r.")
    dropout: float = Field(0.0, ge=0, lt=1, description="Fraction of an adapter's inputs that is dropped in SFT; RL needs 0.")
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
    patience: int = Field(
        5, ge=1, description="Number of consecutive logs that must fail a check; a non-finite loss needs one."
    )
    window: int = Field(20, ge=1, description="Number of logs that a trend is averaged over.")
    min_entropy: float = Field(0.005, ge=0, description="Entropy below which rollouts count as collapsed, in nats per token.")
    max_invalid_frac: float = Field(0.95, gt=0, le=1, description="Maximum fraction of invalid or unreadable verdicts.")
    length_factor: float = Field(4.0, gt=1, description="Maximum ratio of the rollouts' length to that in the first logs.")
    max_position_bias: float = Field(
        0.45, gt=0, le=0.5, description="Maximum distance of the fraction of first-position verdicts from 0.5."
    )
    min_explained_variance: float = Field(
        0.03, lt=1, description="Minimum explained variance of a fitted critic: pretraining does not end below it."
    )
    max_advantage_bias: float = Field(
        1.0, gt=0, description="Maximum difference of mean advantages, last minus first tenth, in standard deviations."
    )
    hacking_drop: float = Field(0.1, gt=0, description="Drop of accuracy that counts as reward hacking if the reward rises.")
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
    seed: int = Field(
        0, description="Seed of the selection, independent of the run's seed: all stages hold out the same pairs."
    )
    every_steps: int = Field(200, ge=1, description="Optimizer steps between evaluations.")
    metric: Literal["accuracy", "consistent_accuracy"] = Field(
        "accuracy", description="Metric of the best checkpoint and of early stopping."
    )
    blank_images: bool = Field(
        True, description="Also judge with grey images, to measure accuracy without sight. Doubles the time."
    )
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
