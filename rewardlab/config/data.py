"""Stages that make data."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from rewardlab.config.base import Schema


class DistillConfig(Schema):
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


class StepsConfig(Schema):
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
