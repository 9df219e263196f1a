"""Evaluation while training: which pairs are held out, how often they are judged, and what follows."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from rewardlab.config.base import Schema


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
        if self.patience and not self.is_on:
            raise ValueError("patience counts evaluations, and nothing is evaluated: set data or fraction")
        return self


def no_evaluation() -> EvaluationConfig:
    """Return the default: none."""
    return EvaluationConfig.model_validate({})
