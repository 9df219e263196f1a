"""What all schemas share, and what all stages that train have in common."""

from __future__ import annotations

import re
from typing import Literal, Self

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


class LoraConfig(Schema):
    """Low-rank adapters on every linear layer (peft's "all-linear") unless named otherwise."""

    r: int = Field(16, ge=1, description="Rank of the adapters.")
    alpha: int = Field(32, ge=1, description="Scale of the adapters: their output is multiplied by alpha / r.")
    dropout: float = Field(0.0, ge=0, lt=1, description="Share of an adapter's inputs that is dropped in SFT; RL takes 0.")
    target_modules: str | list[str] = Field(
        "all-linear", description="Layers that get an adapter: `all-linear`, names, or one regular expression."
    )
    quantize: Literal["nf4"] | None = Field(
        None, description="QLoRA: `nf4` keeps the weights below the adapter in 4 bits; null keeps them as they are."
    )


class PixelConfig(Schema):
    """How large an image is shown, in pixels of area: what is smaller or larger is resized.

    The checkpoint's processor keeps it, so that trainer, benchmark and server show the same. Qwen2.5-VL makes one token of 784
    pixels, Qwen3-VL one of 1,024."""

    min: int = Field(3_136, ge=1, description="Smallest area of an image in pixels; a smaller image is enlarged.")
    max: int = Field(1_003_520, ge=1, description="Largest area of an image in pixels; a larger image is reduced.")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min {self.min} is more than max {self.max}")
        return self


class HealthConfig(Schema):
    """When a run is taken to go wrong, and what is then done.

    ``stop`` ends it, ``roll_back`` goes on from the checkpoint before with half the rate and other draws (at most
    ``max_rollbacks`` times), ``warn`` only tells.
    """

    policy: Literal["stop", "roll_back", "warn"] = Field(
        "stop", description="What is done at a sign: `stop` the run, `roll_back` to an earlier checkpoint, or only `warn`."
    )
    patience: int = Field(
        5, ge=1, description="Logs in a row that must show a sign. A loss that is no number is a sign at once."
    )
    window: int = Field(20, ge=1, description="Logs that are averaged where a trend is a sign.")
    min_entropy: float = Field(
        0.005, ge=0, description="Entropy of rollouts below which they have collapsed, in nats per token."
    )
    max_invalid_frac: float = Field(
        0.95,
        gt=0,
        le=1,
        description="Share of rollouts without a verdict, or of comparisons that cannot be read, above which the run is ill.",
    )
    length_factor: float = Field(
        4.0, gt=1, description="Rollouts longer than this many times the mean length of the first logs are a sign."
    )
    max_position_bias: float = Field(
        0.45, gt=0, le=0.5, description="How far the share of verdicts for the response shown first may be from a half."
    )
    min_explained_variance: float = Field(
        0.03,
        lt=1,
        description="Explained variance of fresh rollouts' returns below which a critic is taken to be unfitted: its "
        "pretraining does not end at a plateau below it, and RL with lambda below 1 does not begin with it.",
    )
    max_advantage_bias: float = Field(
        1.0,
        gt=0,
        description="how far the mean advantage of the last tenth of rollouts may be from that in the first, in deviations.",
    )
    hacking_drop: float = Field(
        0.1, gt=0, description="Fall of accuracy over a window in which the reward rises that counts as reward hacking."
    )
    max_rollbacks: int = Field(2, ge=1, description="Times that a run is taken back before it is ended.")


class TrainConfig(Schema):
    """What SFT and RL have in common. ``batch_size`` counts the sequences of an optimizer step, on however many processes, so
    that a run is the same run on any number of them; ``micro_batch_size`` those that one process reads at once."""

    model: str = Field("Qwen/Qwen2.5-VL-7B-Instruct", description="Checkpoint folder or hub id to start from.")
    template: str = Field(
        "r1_reward", description="Prompt template: a name (r1_reward, plain, verdict, ...), or FORMAT:FILE with your own words."
    )
    learning_rate: float = Field(gt=0, description="Peak learning rate of AdamW.")
    warmup_steps: int = Field(0, ge=0, description="Optimizer steps over which the rate rises from 0.")
    warmup_ratio: float = Field(
        0.0, ge=0, lt=1, description="The same as a share of the run's optimizer steps; not beside warmup_steps."
    )
    lr_scheduler: Literal["cosine", "linear", "constant", "constant_with_warmup", "polynomial", "inverse_sqrt"] = Field(
        "cosine", description="Course of the rate after the warm-up."
    )
    min_lr_ratio: float = Field(
        0.0, ge=0, lt=1, description="Where the cosine ends, as a share of the peak rate; 0: it falls to 0."
    )
    epochs: float = Field(1.0, gt=0, description="Passes over the data; max_steps overrides it.")
    max_steps: int = Field(-1, ge=-1, description="Optimizer steps of the run; -1: epochs decide.")
    batch_size: int = Field(ge=1, description="Sequences of an optimizer step, of all processes together.")
    micro_batch_size: int = Field(
        ge=1, description="Sequences that one process reads at once; memory grows with it, results do not change."
    )
    micro_batch_tokens: int | None = Field(
        None,
        ge=1,
        description="Most positions that one process reads at once, padding too: a micro-batch is then read in as many parts "
        "as that takes, a longer sequence alone. With micro_batch_size at the process's share of batch_size, tokens alone "
        "decide. null: rows do.",
    )
    max_grad_norm: float = Field(1.0, gt=0, description="Norm to which gradients are clipped.")
    adam_beta2: float = Field(0.95, gt=0, lt=1, description="Decay of AdamW's second moment.")
    weight_decay: float = Field(0.0, ge=0, description="Weight decay of AdamW.")
    gradient_checkpointing: bool = Field(
        True, description="Compute activations twice and store fewer of them: less memory, about a third more time."
    )
    lora: LoraConfig | None = Field(
        None, description="Train low-rank adapters instead of all weights; null: all weights learn."
    )
    freeze: list[str] = Field(
        [], description="Parts that do not learn: `vision`, `merger`, `language`, or regular expressions of weights' names."
    )
    dtype: Literal["auto", "bfloat16", "float32"] = Field(
        "auto",
        description="Type that the weights in OUT/final are rounded to, once, for judges to read; `auto`: that of `model`. "
        "Weights and adapters learn in float32 whatever it says, and checkpoints to resume from are not rounded.",
    )
    attn_implementation: Literal["auto", "flash_attention_2", "flash_attention_3", "sdpa", "eager"] = Field(
        "auto",
        description="Attention of every model of the run. `auto`: flash attention where it is installed and card and family "
        "allow it, else sdpa; the log and run.json say which.",
    )
    pixels: PixelConfig | None = Field(None, description="How large images are shown; null: as the checkpoint has it.")
    frames: int = Field(
        8,
        ge=1,
        description="Frames of each video, at most: evenly spread, for Qwen as qwen-vl-utils samples; each is an image.",
    )
    data_workers: int = Field(
        4,
        ge=0,
        description="Threads (RL) or worker processes (other stages) of each process that read samples and decode pictures; "
        "no more than there are cores.",
    )
    max_tokens: int | None = Field(
        None,
        ge=1,
        description="Longest sample trained on; longer ones are left out and listed. null: the model's context is the limit.",
    )
    save_steps: int = Field(100, ge=1, description="Optimizer steps between checkpoints.")
    save_total_limit: int = Field(2, ge=1, description="Checkpoints that are kept; older ones are deleted.")
    logging_steps: int = Field(1, ge=1, description="Optimizer steps between lines of metrics.jsonl.")
    report_to: str = Field("none", description="Trackers: none, tensorboard, wandb, trackio, or several with commas.")
    health: HealthConfig = Field(
        default_factory=lambda: HealthConfig.model_validate({}),
        description="When a run is taken to go wrong, and what is then done.",
    )
    seed: int = Field(0, description="Seed of everything random in the run.")

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
            raise ValueError(f"{', '.join(sorted(unknown))} is no tracker; there are none, {', '.join(TRACKERS)}, with commas")
        return named

    @model_validator(mode="after")
    def _one_schedule(self) -> Self:
        if self.max_steps == 0:
            raise ValueError("max_steps 0 trains nothing; give the optimizer steps of the run, or -1 for epochs to decide")
        if self.warmup_steps and self.warmup_ratio:
            raise ValueError(
                f"warmup_steps {self.warmup_steps} and warmup_ratio {self.warmup_ratio} both say how long the rate rises; "
                "keep one of them"
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
    """Pairs that are not trained on, judged greedily in both orders while the run goes on. None without `data` or `fraction`.

    At the start, every `every_steps` optimizer steps and at the end; the metrics are `eval/...` in metrics.jsonl. A judge with
    `self_verify` is evaluated by its first judgment. For a judge of 7B on four cards this is under 1 % of the time, by
    arithmetic; `eval/time_frac` is what it is.
    """

    data: str | None = Field(
        None, description="Held-out pairs: a file (.parquet or .jsonl) or a folder of shards; null: see fraction."
    )
    images: str | None = Field(
        None, description="Folder where relative paths of images and videos in `data` start; null: that of its file."
    )
    fraction: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Share of the labelled training pairs that is held out, at most num_pairs; null: none. They and whatever "
        "is about the same question and images are not trained on.",
    )
    num_pairs: int = Field(64, ge=1, description="Most pairs that are evaluated, drawn by seed.")
    seed: int = Field(
        0, description="Seed of the draw; not the run's, so that stages and runs of other seeds hold out the same pairs."
    )
    every_steps: int = Field(200, ge=1, description="Optimizer steps between evaluations.")
    metric: Literal["accuracy", "consistent_accuracy"] = Field(
        "accuracy",
        description="Metric that decides the best checkpoint and early stopping: the mean `accuracy` over both orders, or "
        "`consistent_accuracy`, the share of pairs that are right in both.",
    )
    blank_images: bool = Field(
        True, description="Judge the pairs with grey images too: what is still right was not seen. Twice the time."
    )
    patience: int | None = Field(
        None,
        ge=1,
        description="Evaluations in a row without a new best metric after which the run ends early; null: never. None counts "
        "within the warm-up, nor before the first that has a verdict.",
    )
    keep_best: bool = Field(True, description="Keep the weights of the best evaluation in OUT/best, beside OUT/final.")
    max_tokens: int | None = Field(
        None, ge=1, description="Most tokens of a judgment; null: the rollouts' max_completion_length, in SFT 1024."
    )
    batch_size: int | None = Field(
        None,
        ge=2,
        description="Judgments that a process decodes side by side; null: the rollouts' sampling_batch_size, or else 64. A run "
        "may go on with another.",
    )

    @property
    def is_on(self) -> bool:
        """Return whether anything is evaluated."""
        return self.data is not None or self.fraction is not None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.data is not None and self.fraction is not None:
            raise ValueError("data is a held-out set already; leave fraction out, or data")
        return self


def no_evaluation() -> EvaluationConfig:
    """Return the default: none."""
    return EvaluationConfig.model_validate({})
