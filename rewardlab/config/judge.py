"""Schema of a judge: who judges, and how it is queried. Its hash is the same in a benchmark's report and at an endpoint."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, JsonValue, field_validator

from rewardlab.config.base import Schema

MAX_TOKENS, MAX_COMPLETION_TOKENS = "max_tokens", "max_completion_tokens"
OPTIONAL_FIELDS = ("temperature", "top_p", "seed")  # fields without which an endpoint can be queried
# Fields of a request that a key of the judge, or of the run, sets.
_SET_BY = {name: name for name in ("temperature", "top_p", "max_tokens", "seed", "reasoning_effort")}
_SET_BY |= {"model": "judge", "messages": "template", "n": "votes", MAX_COMPLETION_TOKENS: "max_tokens"}


class RequestConfig(Schema):
    """How an OpenAI-compatible endpoint is queried, beside what is sampled. Only ``openai:`` judges have these keys."""

    concurrency: int | None = Field(None, ge=1, description="Requests in flight at a time; null: 32, or 256 when serving.")
    deadline_s: float | None = Field(None, gt=0, description="Seconds for one request, retries included; null: 120.")
    reasoning_effort: str | None = Field(
        None, description="Reasoning effort of the model, such as low; null: the model's default."
    )
    body: dict[str, JsonValue] = Field(
        {}, description="Additional fields of every request, such as {verbosity: low}; null omits temperature, top_p or seed."
    )
    max_tokens_field: Literal["auto", "max_tokens", "max_completion_tokens"] = Field(
        "auto", description="Name of the token limit in a request; `auto` takes the second where the first is refused."
    )

    @field_validator("body")
    @classmethod
    def _only_further_fields(cls, body: dict[str, JsonValue]) -> dict[str, JsonValue]:
        for name, value in body.items():
            if name in _SET_BY and not (name in OPTIONAL_FIELDS and value is None):
                raise ValueError(f"sets {name}, which {_SET_BY[name]} sets; remove it from the body")
        if body.get("stream"):
            raise ValueError("asks for streaming, but answers are read as a whole; leave out stream")
        return body

    @property
    def fields(self) -> dict[str, Any]:
        """Return the further fields of every request."""
        effort = {"reasoning_effort": self.reasoning_effort} if self.reasoning_effort else {}
        return {**effort, **self.body}

    @property
    def request_identity(self) -> str:
        """Return the fields that influence the answers, as text; "" if there are none."""
        effort = [f"reasoning_effort={self.reasoning_effort}"] if self.reasoning_effort else []
        body = [f"body={json.dumps(self.body, sort_keys=True)}"] if self.body else []
        return " ".join(effort + body)

    @property
    def omitted_fields(self) -> frozenset[str]:
        """Return the fields of :data:`OPTIONAL_FIELDS` that the body omits."""
        return frozenset(name for name in OPTIONAL_FIELDS if name in self.body and self.body[name] is None)


class SamplingConfig(Schema):
    """How judgments are sampled."""

    temperature: float = Field(1.0, ge=0, description="Sampling temperature; 0 is greedy.")
    top_p: float = Field(1.0, gt=0, le=1, description="Nucleus sampling; 1 samples from all tokens.")
    max_tokens: int = Field(1024, ge=1, description="Token limit of a judgment.")

    @property
    def sampling(self) -> dict[str, Any]:
        """Return the keys of this schema with their values."""
        return {name: getattr(self, name) for name in SamplingConfig.model_fields}


class _Counted(SamplingConfig):
    template: str | None = Field(
        None,
        description="Prompt template: a name such as r1_reward, a verdict format such as double_brackets, or FORMAT:FILE with "
        "your own wording; null: the checkpoint's, r1_reward for endpoints. For a replay: the format to read it by.",
    )
    votes: int | None = Field(None, ge=1, description="Samples per pair and order; null: 1, for a replay all it has.")
    orders: Literal["auto", "both", "random", "given", "recorded"] = Field(
        "auto",
        description="Orders in which a pair is shown: both, random (one per pair, sampled), given, recorded (those of a "
        "replay). auto: recorded for a replay that lacks one order of many pairs, else both.",
    )
    policy: Literal["majority", "weighted", "sequential"] | None = Field(
        None, description="How an endpoint aggregates the votes of a framework's request; null: as the judge does."
    )
    stop_error: float | None = Field(
        None,
        ge=0,
        lt=0.5,
        description="Sample vote by vote, and stop once the majority of all `votes` is settled up to this probability of "
        "error (averaged over pairs), such as 0.05; null: sample all votes.",
    )
    batch_size: int = Field(64, ge=1, description="Sequences per batch of an hf: judge.")
    engine_args: str = Field(
        "",
        description="Options of `vllm serve` for a vllm: judge; `--dtype` and `--attn-implementation` for an hf: judge.",
    )
    cache: Path | None = Field(
        None,
        description="Folder in which runs share the answers of openai: judges: a request with the same seed is not repeated; "
        "null: the folder that REWARDLAB_CACHE names, if any.",
    )
    api_key_env: str = Field("OPENAI_API_KEY", description="Environment variable with the API key of an openai: judge.")


class QueryConfig(RequestConfig, _Counted):
    """How a judge is queried, whoever it is."""


class _Named(Schema):
    judge: str = Field(description="The judge, such as hf:PATH, vllm:PATH, openai:MODEL@URL, http://HOST:PORT or panel:A,B.")


class JudgeConfig(QueryConfig, _Named):
    """A judge as a value."""

    @classmethod
    def of(cls, judge: str) -> Self:
        """Return the judge of a specification, with the defaults of every key."""
        return cls.model_validate({"judge": judge})

    @property
    def hash(self) -> str:
        """Return 16 hex digits of everything but what only concerns speed, money and the place of files."""
        values = self.model_dump(mode="json", exclude=set(_WITHOUT_INFLUENCE), exclude_defaults=True)
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def changed(self) -> frozenset[str]:
        """Return the keys beside ``judge`` that differ from their defaults."""
        return frozenset(self.model_dump(exclude_defaults=True)) - {"judge"}


_WITHOUT_INFLUENCE = ("concurrency", "deadline_s", "max_tokens_field", "batch_size", "cache", "api_key_env")
JUDGE_KEYS = tuple(QueryConfig.model_fields)  # keys of a judge beside its name


class BenchEntry(QueryConfig):
    """One benchmark; ``data`` and ``images`` are names within the suite's folder of data. The
    keys of a judge are those of its queries on this benchmark."""

    benchmark: str = Field(description="Name of the benchmark, as in `bench run`.")
    data: str = Field(description="Its data file, relative to the suite's data folder.")
    images: str | None = Field(None, description="Its image folder, in the same folder; null: images are in the data file.")
    controls: tuple[str, ...] = Field(
        ("blank",), description="Extra greedy passes: `greedy`, `blank` (blank images), `other` (another pair's images)."
    )
    max_failed: float = Field(
        0.02, ge=0, le=1, description="Fraction of votes that may fail at the endpoint before the report is marked as failed."
    )
    cluster: str | None = Field(
        None,
        description="Own pairs: unit that intervals resample: `prompt`, `image`, `question`, `pair`, a column; null: prompt.",
    )
    allow_columns: tuple[str, ...] = Field((), description="Own pairs: columns to ignore; `all`.")
    allow_without_images: bool = Field(
        False, description="Also judge pairs of your own whose question mentions a missing image."
    )
    limit: int | None = Field(None, ge=1, description="Only the first N rows; null: all.")


class SuiteConfig(Schema):
    """What a suite is for, and its benchmarks in order."""

    title: str = Field(description="Purpose of the suite; the heading of its report.")
    benchmarks: tuple[BenchEntry, ...] = Field(min_length=1, description="The benchmarks in the order they are run.")
    seed: int = Field(0, description="Random seed.")
