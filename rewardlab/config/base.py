"""What all schemas share, and what all stages that train have in common."""

from __future__ import annotations

import re
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

TRACKERS = ("tensorboard", "wandb", "trackio")


class Schema(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class LoraConfig(Schema):
    """Low-rank adapters on every linear layer (peft's "all-linear") unless named otherwise."""

    r: int = Field(16, ge=1)
    alpha: int = Field(32, ge=1)
    dropout: float = Field(0.0, ge=0, lt=1)
    target_modules: str | list[str] = "all-linear"
    quantize: Literal["nf4"] | None = Field(None, description="QLoRA: the weights below the adapter in 4 bits")


class PixelConfig(Schema):
    """How large an image is shown, in pixels of area: what is smaller or larger is resized.

    The checkpoint's processor keeps it, so that trainer, benchmark and server show the same. Qwen2.5-VL makes one token of 784
    pixels, Qwen3-VL one of 1,024."""

    min: int = Field(3_136, ge=1)
    max: int = Field(1_003_520, ge=1)

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

    policy: Literal["stop", "roll_back", "warn"] = "stop"
    patience: int = Field(5, ge=1, description="logs in a row that must show a sign; no number for a loss is one at once")
    window: int = Field(20, ge=1, description="logs that are averaged where a trend is a sign")
    min_entropy: float = Field(0.005, ge=0, description="nats a token, of rollouts")
    max_invalid_frac: float = Field(0.95, gt=0, le=1)
    length_factor: float = Field(4.0, gt=1, description="times the mean length of the first logs")
    max_position_bias: float = Field(0.45, gt=0, le=0.5, description="of verdicts for the response shown first, from a half")
    hacking_drop: float = Field(0.1, gt=0, description="of accuracy over a window in which the reward rises")
    max_rollbacks: int = Field(2, ge=1)


class TrainConfig(Schema):
    """What SFT and RL have in common. ``batch_size`` counts the sequences of an optimizer step, on however many processes, so
    that a run is the same run on any number of them; ``micro_batch_size`` those that one process reads at once."""

    model: str = "Qwen/Qwen2.5-VL-7B-Instruct"
    template: str = "r1_reward"
    learning_rate: float = Field(gt=0)
    warmup_steps: int = Field(0, ge=0)
    lr_scheduler: Literal["cosine", "linear", "constant", "constant_with_warmup", "polynomial", "inverse_sqrt"] = "cosine"
    epochs: float = Field(1.0, gt=0)
    max_steps: int = Field(-1, description="-1: decided by epochs")
    batch_size: int = Field(ge=1)
    micro_batch_size: int = Field(ge=1)
    max_grad_norm: float = Field(1.0, gt=0)
    adam_beta2: float = Field(0.95, gt=0, lt=1)
    weight_decay: float = Field(0.0, ge=0)
    gradient_checkpointing: bool = True
    lora: LoraConfig | None = None
    freeze: list[str] = Field([], description="do not learn: vision, merger, language, or patterns of weights' names")
    pixels: PixelConfig | None = Field(None, description="how large images are shown; null: as the checkpoint has it")
    frames: int = Field(
        8,
        ge=1,
        description="of each video, at most: evenly spread, of Qwen's families as qwen-vl-utils samples; each is an image",
    )
    max_tokens: int | None = Field(
        None,
        ge=1,
        description="longest sample trained on; longer ones are left out and listed. null: none may be",
    )
    save_steps: int = Field(100, ge=1)
    save_total_limit: int = Field(2, ge=1)
    logging_steps: int = Field(1, ge=1)
    report_to: str = Field("none", description="none, tensorboard, wandb, trackio, or several with commas")
    health: HealthConfig = Field(default_factory=lambda: HealthConfig.model_validate({}))
    seed: int = 0

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
    def _can_go_back(self) -> Self:
        builds_up, kept = self.health.patience * self.logging_steps, (self.save_total_limit - 1) * self.save_steps
        if self.health.policy == "roll_back" and builds_up > kept:
            raise ValueError(
                f"health.policy roll_back goes back by patience x logging_steps = {builds_up} steps, and save_total_limit "
                f"{self.save_total_limit} keeps the last {kept} at least; raise save_total_limit, or lower patience"
            )
        return self
