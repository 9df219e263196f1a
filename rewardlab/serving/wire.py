"""The native wire shapes, with the bounds a request is held to."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

MAX_VOTES, MAX_IMAGES, MAX_CHARS = 64, 16, 100_000


class _Wire(BaseModel):
    model_config = ConfigDict(extra="forbid")


class JudgeRequest(_Wire):
    """One pair. An image is a data URL, or ``upload:ID`` with an id from ``POST /v1/uploads``."""

    question: str = Field(min_length=1, max_length=MAX_CHARS)
    responses: tuple[str, str] = Field(description="the two responses; index 0 and 1 in the answer refer to them")
    images: list[str] = Field(default_factory=list, max_length=MAX_IMAGES)
    votes: int = Field(1, ge=1, le=MAX_VOTES, description="samples in each order")
    orders: Literal["both", "given", "swapped"] = "both"
    seed: int = Field(0, ge=0, lt=2**63)

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "example": {
                "question": "What color is the star?",
                "responses": ["The star is red.", "The star is blue."],
                "images": ["data:image/png;base64,iVBORw0KGgo..."],
                "votes": 3,
                "orders": "both",
            }
        },
    )

    @model_validator(mode="after")
    def _sizes(self) -> JudgeRequest:
        if any(len(response) > MAX_CHARS for response in self.responses):
            raise ValueError(f"a response is longer than {MAX_CHARS} characters")
        return self


class WireVote(_Wire):
    """One sample: the order it was shown in, what was read and how, which response it is for (null: none)."""

    order: Literal["given", "swapped"]
    status: str
    winner: Literal[0, 1] | None
    text: str
    num_tokens: int


class JudgeResponse(_Wire):
    """``p_first_better``: share of valid votes for response 0, both orders weighing the same; null without a valid vote.

    ``outcome`` is the majority of all valid votes: response_0, response_1, tie or no_valid_vote.
    """

    p_first_better: float | None
    outcome: str
    num_valid: int
    votes: list[WireVote]
    judge: str
    template_hash: str
    seconds: float


class Upload(_Wire):
    """The id to name an uploaded image by, as ``upload:ID``."""

    id: str


class Health(_Wire):
    """The server answers and holds this judge."""

    status: Literal["ok"]
    judge: str
    template: str
    template_hash: str
