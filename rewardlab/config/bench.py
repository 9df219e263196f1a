"""Schema of ``eval/*.yaml``: the benchmarks of a suite and how each is asked."""

from __future__ import annotations

from pydantic import Field, JsonValue

from rewardlab.config.base import Schema


class BenchEntry(Schema):
    """One benchmark; ``data`` and ``images`` are names within the suite's folder of data. The rest as in ``bench run``."""

    benchmark: str = Field(description="Name of the benchmark, as in `bench run`.")
    data: str = Field(description="Its data file, by its name within the suite's folder of data.")
    images: str | None = Field(None, description="Its folder of images, by its name there; null: images are in the data file.")
    votes: int = Field(1, ge=1, description="Samples of each pair in each order.")
    orders: str = Field("both", description="`both`, `random` (one for each pair, drawn), `given` or `recorded` (of a replay).")
    temperature: float = Field(1.0, ge=0, description="Sampling temperature; 0 is greedy.")
    top_p: float = Field(1.0, gt=0, le=1, description="Nucleus of sampling; 1 draws from all tokens.")
    max_tokens: int = Field(1024, ge=1, description="Most tokens of a judgment.")
    stop_error: float | None = Field(
        None,
        ge=0,
        lt=0.5,
        description="Ask in turns until the majority is settled but for this probability (on average over pairs); "
        "null: all at once.",
    )
    template: str | None = Field(None, description="Prompt template; null: the checkpoint's.")
    controls: tuple[str, ...] = Field(
        ("blank",), description="Extra greedy passes: `greedy`, `blank` (blank images), `other` (another pair's images)."
    )
    max_failed: float = Field(
        0.02, ge=0, le=1, description="Share of votes that may fail at the endpoint before the report is marked as failed."
    )
    concurrency: int | None = Field(None, ge=1, description="Requests to an `openai:` judge at a time; null: 32.")
    deadline_s: float | None = Field(None, gt=0, description="Seconds that a request may take, retries included; null: 120.")
    reasoning_effort: str | None = Field(
        None, description="Reasoning effort of an `openai:` judge, such as `low`; null: its own default."
    )
    body: dict[str, JsonValue] = Field({}, description="Further fields of every request to an `openai:` judge.")
    cluster: str | None = Field(
        None,
        description="Own pairs: what intervals draw as one: `prompt`, `image`, `question`, `pair`, a column; null: prompt.",
    )
    allow_columns: tuple[str, ...] = Field((), description="Of own pairs: columns that are not read and may be there; `all`.")
    allow_without_images: bool = Field(False, description="Also judge own pairs whose question speaks of an image not there.")
    limit: int | None = Field(None, ge=1, description="Only the first so many rows; null: all.")


class SuiteConfig(Schema):
    """What a suite is for, and its benchmarks in order."""

    title: str = Field(description="What the suite is for; the heading of its report.")
    benchmarks: tuple[BenchEntry, ...] = Field(min_length=1, description="The benchmarks in the order they are run.")
    seed: int = Field(0, description="Seed of everything random.")
