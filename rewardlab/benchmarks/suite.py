"""Several benchmarks in one go, one folder each, and a table over all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from rewardlab.benchmarks.report import write_reports
from rewardlab.benchmarks.runner import BenchSettings, check_names, run_bench
from rewardlab.config import SuiteConfig
from rewardlab.data.files import write_atomic
from rewardlab.errors import DataError
from rewardlab.reporting.tables import percent, table, with_interval

COLUMNS = (
    "benchmark",
    "accuracy",
    "macro",
    "both orders",
    "text-only",
    "best baseline",
    "invalid, %",
    "swap consistency",
    "lean",
)


def entry_settings(suite: SuiteConfig, root: Path, **judge: Any) -> list[BenchSettings]:
    """The settings of each benchmark of a suite whose data is in ``root``; ``judge`` are those that all share.

    Raises DataError that names every file that is missing, and ConfigError for an unknown benchmark, control, order policy or
    template: before anything is asked.
    """
    places = [root / entry.data for entry in suite.benchmarks]
    if missing := [str(place) for place in places if not place.exists()]:
        raise DataError(
            f"{len(missing)} of {len(places)} data files are not there: {', '.join(missing)}; "
            "see `rewardlab bench prepare --help`"
        )
    for entry in suite.benchmarks:
        check_names(entry.benchmark, entry.controls, entry.orders, entry.template)
    names = {field.name for field in fields(BenchSettings)}
    made = []
    for entry, place in zip(suite.benchmarks, places, strict=True):
        own = {name: value for name, value in entry.model_dump().items() if name in names}
        own |= {"data": place, "images": root / entry.images if entry.images else None, "seed": suite.seed}
        made.append(BenchSettings(**{**own, **judge}))
    return made


def run_suite(suite: SuiteConfig, settings: Sequence[BenchSettings], out: Path) -> str:
    """Run each benchmark to ``out/NAME``, its reports included, and write ``out/suite.md``; returns its text.

    What is finished is only scored again. Two entries of one benchmark are numbered.
    """
    reports, folders = [], []
    for one in settings:
        name = one.benchmark
        while name in folders:
            name += "_"
        folders.append(name)
        report, rows = run_bench(one, out / name)
        write_reports(report, rows, out / name)
        reports.append(report)
    text = markdown(suite.title, folders, reports)
    write_atomic(out / "suite.md", text)
    return text


def markdown(title: str, names: Sequence[str], reports: Sequence[dict[str, Any]]) -> str:
    rows = []
    for name, report in zip(names, reports, strict=True):
        best = max(report["baselines"].items(), key=lambda item: item[1]["micro"])
        blank, lean, decided = report["controls"].get("blank"), report["position_bias"], report["decision"]
        row = (
            f"[{name}]({name}/report.md)",
            with_interval(report["accuracy"]["micro"], report["interval"]),
            percent(report["accuracy"]["macro"]),
            "–" if decided is None else with_interval(**decided),
            "–" if blank is None else with_interval(blank["accuracy"]["micro"], blank["interval"]),
            f"{best[0]} {percent(best[1]['micro'])}",
            percent(report["invalid_rate"], 2),
            percent(report["swap_consistency"]),
            "–" if lean is None else f"{100 * lean:+.1f}",
        )
        rows.append(row)
    lines = [f"# {title}: {reports[0]['judge']}", "", *table(COLUMNS, rows)]
    lines += [
        "",
        "Percent, 95 % intervals over prompts; failures count as wrong. No mean over benchmarks: they differ in kind.",
    ]
    notes = [f"- {name}: {note}" for name, report in zip(names, reports, strict=True) for note in report["notes"]]
    commands = [f"- {name}: commit {report['commit']}" for name, report in zip(names, reports, strict=True)]
    return "\n".join([*lines, "", *notes, *commands]) + "\n"
