"""A benchmark run from a Python program: what `rewardlab bench run` does, with its report as a value."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rewardlab.benchmarks.report import write_reports
from rewardlab.benchmarks.report_model import Report
from rewardlab.benchmarks.runner import run_bench
from rewardlab.benchmarks.settings import BenchSettings
from rewardlab.config.data import NO_BUDGET, NO_PRICES, Budget, Prices
from rewardlab.samplers.failures import MAX_FAILED
from rewardlab.samplers.request_options import RequestOptions


def benchmark(
    name: str,
    *,
    judge: str,
    data: str | Path,
    out: str | Path,
    images: str | Path | None = None,
    votes: int | None = None,
    orders: str = "auto",
    limit: int | None = None,
    seed: int = 0,
    template: str | None = None,
    temperature: float = 1.0,
    top_p: float = 1.0,
    max_tokens: int = 1024,
    stop_error: float | None = None,
    batch_size: int = 64,
    controls: Sequence[str] = ("blank",),
    max_failed: float = MAX_FAILED,
    api_key: str | None = None,
    concurrency: int | None = None,
    deadline_s: float | None = None,
    reasoning_effort: str | None = None,
    body: Mapping[str, Any] | None = None,
    cluster: str | None = None,
    allow_columns: Sequence[str] = (),
    allow_without_images: bool = False,
    prices: Prices = NO_PRICES,
    budget: Budget = NO_BUDGET,
    cache: str | Path | None = None,
) -> Report:
    """Return the report of a judge on a benchmark, as :func:`rewardlab.benchmarks.runner.run_bench` makes it.

    ``name``: a packaged benchmark, one of an installed package or a Python file; ``pairs`` is a labelled file of your own.
    ``judge`` is a specification, ``data`` the benchmark's file. ``out`` holds the report as JSON, Markdown and HTML, and every
    vote: the same call continues an interrupted run. ``report.scores.accuracy.micro`` is the accuracy (0..1),
    ``report.scores.interval`` its 95 % interval. ``concurrency``, ``deadline_s``, ``reasoning_effort`` and ``body`` (further
    fields of a request) are of ``openai:`` judges (:class:`rewardlab.samplers.request_options.RequestOptions`), and so are
    ``prices`` (``report.cost`` then has the money) and ``budget``: EndpointError is raised where it is spent.
    ``cache`` is a folder of answers that runs share: what is in it is not asked for again.
    ``cluster``, ``allow_columns`` and ``allow_without_images`` are of own pairs, as the flags of `bench run`.
    ``report.failure`` is not empty where more than the share ``max_failed`` of the votes failed at the endpoint: its figures
    then say nothing of the judge. Raise what the judge and the loader raise, EndpointError where request after request fails.
    """
    settings = BenchSettings(
        benchmark=name,
        data=Path(data),
        judge=judge,
        images=None if images is None else Path(images),
        votes=votes,
        orders=orders,
        limit=limit,
        seed=seed,
        template=template,
        temperature=temperature,
        top_p=top_p,
        max_tokens=max_tokens,
        stop_error=stop_error,
        batch_size=batch_size,
        controls=tuple(controls),
        max_failed=max_failed,
        api_key=api_key or os.environ.get("OPENAI_API_KEY") or "none",
        request=RequestOptions(concurrency, deadline_s, reasoning_effort, body or {}),
        cluster=cluster,
        allow_columns=tuple(allow_columns),
        allow_without_images=allow_without_images,
        prices=prices,
        budget=budget,
        cache=None if cache is None else Path(cache),
    )
    report, rows = run_bench(settings, Path(out))
    write_reports(report, rows, Path(out))
    return report
