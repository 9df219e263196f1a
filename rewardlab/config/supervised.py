"""Stages that fit a model to labels: a judge, a scalar head, a process reward model."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from rewardlab.config.base import EvaluationConfig, TrainConfig, nested


class SFTConfig(TrainConfig):
    """Cold start on the teacher's kept judgments: one epoch, lr 1e-5, batches of 256 (paper, section 5).

    With ``template: verdict`` it trains a classifier on labels instead, each pair in both orders.
    """

    learning_rate: float = Field(1e-5, gt=0, description="Peak learning rate of AdamW (paper, section 5).")
    batch_size: int = Field(256, ge=1, description="Sequences of an optimizer step, of all processes together.")
    micro_batch_size: int = Field(4, ge=1, description="Sequences per forward pass of a process; changes memory, not results.")
    evaluation: EvaluationConfig = nested(EvaluationConfig, "Held-out pairs judged during the run.")

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if self.batch_size % self.micro_batch_size:
            raise ValueError(f"batch_size {self.batch_size} must be a multiple of micro_batch_size {self.micro_batch_size}")
        return self


class RMConfig(SFTConfig):
    """A Bradley-Terry scalar head. ``batch_size`` counts responses, two per pair, so that a step reads as many sequences as one
    of SFT; rates and batches are SFT's, for a comparison in which only the head differs."""

    template: str = Field("single", description="Prompt template of a single response.")

    @model_validator(mode="after")
    def _pairs(self) -> Self:
        if self.micro_batch_size % 2:
            raise ValueError(f"micro_batch_size {self.micro_batch_size} counts both responses of each pair; make it even")
        if self.lora:
            raise ValueError("the scalar head trains the whole model; set lora: null")
        if self.evaluation.metric != "accuracy":
            raise ValueError("a scalar head scores each response alone, in no order; set evaluation.metric to accuracy")
        return self


class PRMConfig(TrainConfig):
    """A process reward model: squared error at the ends of steps. The paper leaves rate and batch open; these are SFT's."""

    learning_rate: float = Field(1e-5, gt=0, description="Peak learning rate of AdamW.")
    batch_size: int = Field(64, ge=1, description="Judgments of an optimizer step, of all processes together.")
    micro_batch_size: int = Field(4, ge=1, description="Judgments per forward pass of a process; changes memory, not results.")

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if self.batch_size % self.micro_batch_size:
            raise ValueError(f"batch_size {self.batch_size} must be a multiple of micro_batch_size {self.micro_batch_size}")
        if self.lora:
            raise ValueError("a process reward model is trained whole; set lora: null")
        return self
