"""A benchmark run from a Python program: what `rewardlab bench run` does, with its report as a value."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from rewardlab.benchmarks.base import Row
from rewardlab.benchmarks.registry import VARIANTS, split_variant
from rewardlab.benchmarks.report import write_reports
from rewardlab.benchmarks.report_model import Report
from rewardlab.benchmarks.runner import run_bench
from rewardlab.benchmarks.settings import BenchSettings, bench_settings, variant_judge
from rewardlab.config.judge import JudgeConfig


def run_benchmark(settings: BenchSettings, out: Path) -> tuple[Report, list[Row]]:
    """Run a benchmark or a variant of one; return and raise what :func:`rewardlab.benchmarks.runner.run_bench` does."""
    name, variant, selected = split_variant(settings.benchmark)
    if not variant:
        return run_bench(settings, out)
    module, _, function = VARIANTS[variant].run.partition(":")
    settings = replace(settings, benchmark=name, judge=variant_judge(settings.judge, variant))
    result: tuple[Report, list[Row]] = getattr(import_module(module), function)(settings, out, selected)
    return result


def benchmark(name: str, *, judge: str | JudgeConfig, out: str | Path, data: str | Path | None = None, **values: Any) -> Report:
    """Return the report of a judge on a benchmark, as :func:`rewardlab.benchmarks.runner.run_bench` makes it.

    ``name``: a packaged benchmark, one of an installed package or a Python file; ``pairs`` is a labelled file of your own.
    ``judge``: a specification, a YAML file, the folder of a run or a config (:func:`rewardlab.judging.spec.judge_config`);
    ``data``: the benchmark's file, by default what `bench prepare` has fetched. ``out`` holds the report as JSON, Markdown and
    HTML, and every vote: the same call continues an interrupted run. ``values``: keys of
    :class:`rewardlab.config.judge.JudgeConfig`, such as ``votes`` and ``temperature``, and fields of
    :class:`rewardlab.benchmarks.settings.BenchSettings`, such as ``limit``, ``controls`` and ``prices``.

    ``report.scores.accuracy.micro`` is the accuracy (0..1), ``report.scores.interval`` its 95 % interval. ``report.failure`` is
    not empty if more than the fraction ``max_failed`` of the votes failed at the endpoint: its figures then say nothing about
    the judge. Raise what the judge and the loader raise, EndpointError if request after request fails or a budget is spent.
    """
    report, rows = run_benchmark(bench_settings(name, data, judge, **values), Path(out))
    write_reports(report, rows, Path(out))
    return report
