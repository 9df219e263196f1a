"""Schema of ``eval/*.yaml``: the benchmarks of a suite and how each is queried."""

from __future__ import annotations

from pydantic import Field

from rewardlab.config.base import Schema
from rewardlab.config.judge import QueryConfig


class BenchEntry(QueryConfig):
    """One benchmark; ``data`` and ``images`` are names within the suite's folder of data. The
    keys of a judge are those of its queries on this benchmark."""

    benchmark: str = Field(description="Name of the benchmark, as in `bench run`.")
    data: str = Field(description="Its data file, relative to the suite's data folder.")
    images: str | None = Field(
        None, description="Its image folder, relative to the same folder; null: images are in the data file."
    )
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
