"""Requests and responses of the HTTP API, with the bounds of a request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar, Unpack

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

MAX_VOTES, MAX_IMAGES, MAX_VIDEOS, MAX_CHARS, MAX_RESPONSES = 64, 16, 2, 100_000, 1024
MAX_PARTS = 64  # of a response


JsonObject = dict[str, Any]  # an object in the format of another framework
T = TypeVar("T")
Items = Annotated[list[T], Field(fail_fast=True)]  # only the first wrong item has an error


def example_config(example: JsonObject, **config: Unpack[ConfigDict]) -> ConfigDict:
    """Return the configuration of a schema that is documented with an ``example``."""
    return {**config, "json_schema_extra": {"example": example}}


class _Schema(BaseModel):
    model_config = ConfigDict(extra="forbid")


Answer = str | Items[JsonObject]  # a text, or parts: {"type": "text", "text"}, {"type": "image", "image"}, ...


def text_of_answer(answer: Answer) -> str:
    """Return the texts of an answer, whose length is bounded."""
    if isinstance(answer, str):
        return answer
    return "".join(text for part in answer for key in ("text", "value") if isinstance(text := part.get(key), str))


def check_lengths(answers: Sequence[Answer]) -> None:
    """Raise ValueError for an answer with too many characters or parts."""
    if any(len(text_of_answer(answer)) > MAX_CHARS for answer in answers):
        raise ValueError(f"a response is longer than {MAX_CHARS} characters")
    if any(len(answer) > MAX_PARTS for answer in answers if not isinstance(answer, str)):
        raise ValueError(f"a response has more than {MAX_PARTS} parts")


class CriterionItem(_Schema):
    """A criterion; ``weight`` says how much it counts beside the others."""

    name: str = Field(max_length=80)
    weight: float = Field(1.0, gt=0, lt=1000)
    description: str = Field("", max_length=1000)


class RequestBase(_Schema):
    """Fields of every request. An image or video is a data URL, ``upload:ID`` with an id from ``POST /v1/uploads``, or, if the
    server allows it, a URL or ``media:NAME``, a file in its folder. A video is shown as frames after the images."""

    question: str = Field(min_length=1, max_length=MAX_CHARS)
    images: list[str] = Field(default_factory=list, max_length=MAX_IMAGES)
    videos: list[str] = Field(default_factory=list, max_length=MAX_VIDEOS)
    criteria: list[str | CriterionItem] = Field(
        default_factory=list,
        max_length=16,
        description="what to judge by: names, or objects with a weight and a description; judges with the template checklist "
        "answer with a result for each",
    )
    frames: int = Field(8, ge=1, le=32, description="frames of each video, evenly spread")
    votes: int = Field(1, ge=1, le=MAX_VOTES, description="samples in each order; with the policy sequential, at most")
    policy: Literal["majority", "weighted", "sequential"] | None = Field(
        None,
        description="majority: more than half of the requested votes; weighted: by the probability of each verdict; "
        "sequential: vote by vote until the majority is settled; default: the judge's own",
    )
    stop_error: float = Field(0.05, ge=0, lt=1, description="with the policy sequential: probability of stopping too early")
    error: float | None = Field(
        None,
        gt=0,
        lt=0.5,
        description="largest fraction of the verdicts that may be wrong, by the server's guarantee; other comparisons are "
        "abstained. Both orders, as many votes as certified, and the judge's own policy",
    )
    seed: int = Field(
        0, ge=0, lt=2**63, description="seed of the samples, if the engine samples each pair independently (vllm, openai)"
    )
    priority: int = Field(0, ge=-9, le=9, description="lower goes first")
    timeout_s: float = Field(
        120.0, ge=1, le=3600, description="deadline in seconds; a request that cannot meet it is refused at once"
    )


def _pair(responses: Any) -> Any:
    """Raise ValueError for a list of another length than two."""
    if isinstance(responses, list) and len(responses) != 2:
        raise ValueError(f"expected two responses, got {len(responses)}; /v1/rewards compares more")
    return responses


class JudgeRequest(RequestBase):
    """One pair."""

    responses: Annotated[tuple[Answer, Answer], BeforeValidator(_pair)] = Field(
        description="the two responses, texts or lists of parts (text, image, video); index 0 and 1 in the answer refer to them"
    )
    orders: Literal["both", "given", "swapped"] = "both"

    model_config = example_config(
        {
            "question": "What color is the star?",
            "responses": ["The star is red.", "The star is blue."],
            "images": ["data:image/png;base64,iVBORw0KGgo..."],
            "votes": 3,
            "orders": "both",
        }
    )

    @model_validator(mode="after")
    def _sizes(self) -> JudgeRequest:
        check_lengths(self.responses)
        return self


class CheckResult(_Schema):
    """A check of a checklist: a claim that speaks for ``response`` if its ``finding`` is true, against it if false."""

    response: Literal[0, 1]
    criterion: str
    weight: float
    claim: str
    finding: Literal["true", "false", "cannot be seen"]
    reason: str


class VoteResult(_Schema):
    """One sample: the order of the responses, the status of the verdict, the response it is for (null: none), and its checks,
    if it is a checklist.

    ``p_first_shown`` is the probability of the response shown first, with the policy weighted. ``error`` is the reason of a
    vote with the status error.
    """

    order: Literal["given", "swapped"]
    status: str
    winner: Literal[0, 1] | None
    text: str
    num_tokens: int
    p_first_shown: float | None = None
    error: str = ""
    checks: list[CheckResult] = []


class CriterionResult(_Schema):
    """The result of the votes by one criterion, as for the pair; ``swap_consistent``: the majorities of both orders name the
    same response (null: an order names none)."""

    outcome: str
    p_first_better: float | None
    swap_consistent: bool | None


class JudgeResponse(_Schema):
    """``p_first_better``: share of valid votes for response 0, both orders weighted equally; null if fewer than half of the
    requested votes are valid, or no vote of an order names a response: the other order alone carries its position bias.

    ``outcome``: response_0 or response_1, named by more than half of the requested votes; tie; no_majority; no_valid_vote,
    if no vote of an order names a response; or abstained, if ``error`` was requested and the confidence does not suffice.
    """

    p_first_better: float | None
    outcome: str
    num_valid: int
    votes: list[VoteResult]
    criteria: dict[str, CriterionResult] = Field({}, description="by the criteria that the judge's checks name")
    num_tokens: int
    judge: str
    weights: str | None = Field(None, description="name of the weights of a local checkpoint")
    template_hash: str
    judge_hash: str = Field(description="covers everything that judgments depend on except the request")
    seconds: float


class RewardsRequest(RequestBase):
    """One question and a group of responses to it, compared two at a time in both orders."""

    responses: Items[Answer] = Field(
        min_length=1, max_length=MAX_RESPONSES, description="as many as `--limit responses` allows, 128 by default"
    )
    strategy: Literal["all_pairs", "circular", "anchor", "knockout", "bradley_terry", "whole"] = Field(
        "all_pairs",
        description="which comparisons are made; anchor: each response against ``anchor``; whole: one judgment of the whole "
        "list, by judges that rate or order lists",
    )
    anchor: Answer | None = Field(None, description="a response to beat, for the strategy anchor")
    budget: int | None = Field(
        None, ge=1, le=1024, description="maximum comparisons, for bradley_terry and knockout (default: two for each response)"
    )

    model_config = example_config(
        {
            "question": "What color is the star?",
            "responses": ["The star is red.", "The star is blue.", "Red."],
            "images": ["data:image/png;base64,iVBORw0KGgo..."],
            "strategy": "all_pairs",
        }
    )

    @model_validator(mode="after")
    def _fits(self) -> RewardsRequest:
        if (self.strategy == "anchor") != (self.anchor is not None):
            raise ValueError("the strategy anchor needs an anchor, and no other strategy accepts one")
        if self.strategy != "anchor" and len(self.responses) < 2:
            raise ValueError("a single response cannot be compared; give two or more, or an anchor")
        if self.budget is not None and self.strategy not in ("knockout", "bradley_terry"):
            raise ValueError(f"budget is for the strategies knockout and bradley_terry, not {self.strategy}; leave it out")
        check_lengths([*self.responses, *([] if self.anchor is None else [self.anchor])])
        return self


class MatchResult(_Schema):
    """One comparison: ``share_first`` is the share of votes, or the probability, for ``first``; null if fewer than half of the
    votes, or none of an order, are valid (see their ``statuses``). With the strategy anchor, ``second`` is null.
    """

    first: int
    second: int | None
    share_first: float | None
    outcome: str | None
    statuses: dict[str, int]


class RewardsResponse(_Schema):
    """``rewards``: net win rate in -1..1, with ``bradley_terry`` strength in logits (its standard deviation in ``deviations``);
    null if no comparison of a response could be judged. ``tiers``: responses by comparisons won, best first; those with equally
    many share a tier, though their rewards may differ by the shares of votes. ``num_failed``: comparisons without a verdict,
    abstained ones among them."""

    rewards: list[float | None]
    deviations: list[float | None]
    tiers: list[list[int]]
    matches: list[MatchResult]
    components: dict[str, list[float | None]] = Field({}, description="the rewards by each criterion of the judge's checks")
    num_failed: int
    num_tokens: int
    judge: str
    weights: str | None = Field(None, description="name of the weights of a local checkpoint")
    template_hash: str
    judge_hash: str = Field(description="covers everything that judgments depend on except the request")
    seconds: float


class UploadResponse(_Schema):
    """The id to name an uploaded image or video by, as ``upload:ID``."""

    id: str


class StatusResponse(_Schema):
    """The state of the engine, and of this key's part of the queue, for a person to watch."""

    ready: bool
    failing: bool
    version: int = Field(description="number of the judge since the start: 2 after the first was replaced")
    weights: str | None = Field(description="name of the weights of a local checkpoint")
    num_draining: int = Field(description="judges that were replaced and still have requests to answer")
    waiting: int
    max_waiting: int
    group_members_waiting: int = Field(description="responses that wait for the others of their group")
    judge: str
    template: str
    weighs: bool = Field(description="whether the policy weighted is available")
    policy: Literal["majority", "weighted"] = Field(description="of a request that names none")
    loading: str | None = Field(description="the judge that is being loaded, to serve in place of this one")
    load_error: str | None = Field(description="why the last judge that was loaded does not serve")
    labels: tuple[str, str] = Field(description="what the template calls the two responses, the one shown first first")
    batch_seconds: float
    counts: dict[str, int]
    median_ms: float | None = Field(description="of the last 500 judged pairs")
    p95_ms: float | None
    certified_error: float | None = Field(description="least error that a request can name; null without a guarantee")
    certificate: str | None = Field(description="id of the judge's certificate (/v1/certificate); null without one that fits")
    drift: dict[str, str] = Field(description="which of confidence, order agreement and questions left what was certified")


class HealthResponse(_Schema):
    """The server answers. Clients with a key see its judge: ``version`` counts the judges since the start,
    ``verdict_temperature`` divides the log-odds of its verdicts if it has probabilities, ``judge_hash`` covers everything that
    judgments depend on except the request, ``judge_config`` has the keys of the judge that differ
    from their defaults, without credentials, and ``judge_config_hash`` is that of a benchmark's ``report.json``."""

    status: Literal["ok"]
    judge: str | None = None
    weights: str | None = None
    version: int | None = None
    template: str | None = None
    template_hash: str | None = None
    judge_hash: str | None = None
    judge_config: dict[str, Any] | None = None
    judge_config_hash: str | None = None
    verdict_temperature: float | None = None


class ReadyResponse(_Schema):
    """Whether a request is likely to be judged, how many pairs wait, whether the engine fails."""

    ready: bool
    waiting: int
    failing: bool


class ModelCard(_Schema):
    """The judge as an entry in OpenAI's list of models."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "rewardlab"


class ModelList(_Schema):
    """OpenAI's list of models."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


class ErrorResponse(_Schema):
    """A failure: a sentence, its kind, and the seconds after which a retry may succeed."""

    error: str
    status: str
    retry_after_s: int | None = None
