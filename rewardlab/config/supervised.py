"""Stages that fit a model to labels: a judge, a scalar head, a process reward model."""

from __future__ import annotations

from typing import Literal, Self

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


class DPOConfig(SFTConfig):
    """Preference optimisation: right judgments against wrong ones of the same pair and order. The defaults are DPO's (arXiv
    2305.18290). ``batch_size`` counts judgments, two per comparison, so that a step reads as many sequences as one of SFT."""

    learning_rate: float = Field(1e-6, gt=0, description="Peak learning rate of AdamW.")
    batch_size: int = Field(128, ge=2, description="Judgments of an optimizer step, two per comparison, of all processes.")
    losses: dict[Literal["dpo", "simpo", "bco", "sft"], float] = Field(
        {"dpo": 1.0}, min_length=1, description="Losses and their weights; `sft` is the likelihood of the right judgment."
    )
    beta: float = Field(0.1, gt=0, description="Scale of a log-ratio in the losses; SimPO: of a mean log-prob, 2 is common.")
    margin: float = Field(0.0, ge=0, description="Margin that SimPO asks for between the two, after beta.")
    comparisons_per_order: int = Field(1, ge=1, description="Maximum comparisons of one pair in one order, from --votes.")

    @property
    def has_reference(self) -> bool:
        """Return whether a loss compares with the model that training starts from."""
        return not {*self.losses}.isdisjoint(("dpo", "bco"))

    @model_validator(mode="after")
    def _compares(self) -> Self:
        if self.micro_batch_size % 2:
            raise ValueError(f"micro_batch_size {self.micro_batch_size} counts both judgments of a comparison; make it even")
        if not {*self.losses} - {"sft"}:
            raise ValueError("losses has sft alone, which compares nothing: add dpo, simpo or bco, or use `rewardlab sft`")
        if any(weight <= 0 for weight in self.losses.values()):
            raise ValueError("a weight in losses is not above 0; leave the loss out instead")
        if self.lora and self.lora.dropout:
            raise ValueError(f"lora.dropout {self.lora.dropout:g} has no effect: likelihoods are compared without; set it to 0")
        return self


class RMConfig(SFTConfig):
    """A head that scores responses. ``batch_size`` counts sequences, two per pair, so that a step reads as many as one of SFT;
    rates and batches are SFT's, for a comparison in which only the head differs.

    The template says what the head sees: one response (`single`), the two of a pair, each pair in both orders, or a whole list.
    With `reply` a response's score is its likelihood as the model's own answer.
    """

    template: str = Field(
        "single",
        description="Prompt template: of a response (`single`, `reply`), of a pair (`plain`, ...) or of a list (`ordering`).",
    )
    explain_weight: float = Field(
        0.0, ge=0, description="Weight of the likelihood of the pairs' judgments, or with `reply` of their preferred responses."
    )
    num_listed: int = Field(8, ge=2, le=26, description="Maximum responses of a list that the head scores (template of lists).")

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
