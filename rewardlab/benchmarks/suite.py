"""Several benchmarks in one go, one folder each, and a table over all."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rewardlab.benchmarks.base import VOTES
from rewardlab.benchmarks.benchmark import run_benchmark
from rewardlab.benchmarks.figures import best_baseline
from rewardlab.benchmarks.leaderboard import FAULTS, ONE_VOTE, metric_cells
from rewardlab.benchmarks.pass_log import PassLog, sum_costs
from rewardlab.benchmarks.report import cost_text, write_reports
from rewardlab.benchmarks.report_model import NO_COST, Cost, Report, has_majorities
from rewardlab.benchmarks.settings import BenchSettings, check_names
from rewardlab.config import SuiteConfig
from rewardlab.config.data import NO_BUDGET
from rewardlab.config.judge import JUDGE_KEYS, JudgeConfig
from rewardlab.config.loading import merge, nest
from rewardlab.data.files import write_atomic
from rewardlab.errors import DataError
from rewardlab.judging.spec import effective_keys, judge_config
from rewardlab.reporting.tables import markdown_table, percent, with_interval

FAILED, UNREAD = "**failed**", "**no verdict read**"  # in place of an accuracy
BASELINE = "best baseline"
COLUMNS = (
    "benchmark",
    "accuracy",
    FAULTS,
    "macro",
    "both orders",
    ONE_VOTE,
    "text-only",
    BASELINE,
    "invalid, %",
    "swap consistency",
    "position bias",
)


def entry_settings(
    suite: SuiteConfig, root: Path, judge: str | JudgeConfig, keys: Mapping[str, Any] | None = None, **shared: Any
) -> list[BenchSettings]:
    """Return the settings of each benchmark of a suite whose data is in ``root``.

    A key of the judge is that of ``keys``, else of the benchmark's entry if it has an effect on this judge, else of ``judge``;
    ``shared`` are other fields of :class:`BenchSettings`. Raise DataError that names every missing file, and ConfigError for an
    unknown benchmark, control or key: before anything is queried.
    """
    places = [root / entry.data for entry in suite.benchmarks]
    if missing := [str(place) for place in places if not place.exists()]:
        raise DataError(
            f"{len(missing)} of {len(places)} data files are missing: {', '.join(missing)}; "
            "see `rewardlab bench prepare --help`"
        )
    settings, used = [], effective_keys(judge_config(judge).judge)
    for entry, place in zip(suite.benchmarks, places, strict=True):
        values = entry.model_dump(exclude_unset=True)
        of_judge = {name: values.pop(name) for name in JUDGE_KEYS if name in values}
        of_judge = {name: value for name, value in of_judge.items() if name in used}
        config = judge_config(judge, merge(of_judge, nest(keys or {})))
        check_names(entry.benchmark, entry.controls, config)
        values |= {"data": place, "images": root / entry.images if entry.images else None, "seed": suite.seed}
        settings.append(BenchSettings(**{**values, "judge": config, **shared}))
    return settings


def run_suite(suite: SuiteConfig, settings: Sequence[BenchSettings], out: Path) -> tuple[str, dict[str, Report]]:
    """Run each benchmark to ``out/NAME``, its reports included, and write ``out/suite.md``; returns its text, and the reports
    by NAME.

    What is finished is only scored again. An entry of a benchmark that came before has a further ``_`` in its name. A budget is
    one of all together: what the logs of all folders have spent counts from the start. Raise what :func:`run_benchmark` raises.
    """
    entries: dict[str, BenchSettings] = {}
    for entry in settings:
        name = Path(entry.benchmark).name.removesuffix(".py")
        while name in entries:
            name += "_"
        entries[name] = entry
    costs = {name: _logged_cost(entry, out / name) for name, entry in entries.items() if entry.budget != NO_BUDGET}
    reports: dict[str, Report] = {}
    for name, entry in entries.items():
        spent = sum_costs([entry.spent, *(cost for other, cost in costs.items() if other != name)])
        reports[name], rows = run_benchmark(replace(entry, spent=spent), out / name)
        costs[name] = reports[name].cost or NO_COST
        write_reports(reports[name], rows, out / name)
    text = suite_markdown(suite.title, reports)
    write_atomic(out / "suite.md", text)
    return text, reports


def _logged_cost(entry: BenchSettings, folder: Path) -> Cost:
    """Return what the run in ``folder`` has spent so far, whoever's it is; nothing where there is none."""
    try:
        with (folder / VOTES).open("rb") as file:
            first = file.readline()
    except FileNotFoundError:
        return NO_COST
    if not first.endswith(b"\n"):
        return NO_COST  # killed before it asked
    try:
        identity = json.loads(first)["identity"]
    except (ValueError, TypeError, KeyError):
        identity = {}  # the log says what is wrong with it
    with PassLog(folder, identity) as log:
        return log.spending.cost(entry.prices)


def is_unread(report: Report) -> bool:
    """Return whether no verdict was read in any answer, so that its figures say nothing of the judge."""
    return report.scores.invalid_rate == 1


def suite_markdown(title: str, reports: Mapping[str, Report]) -> str:
    """Return the table over the reports of a suite, by the name of their folder, their notes and commits. A run that failed has
    no figure in it."""
    left_out = set() if any(map(has_majorities, reports.values())) else {ONE_VOTE}
    columns, rows = [name for name in COLUMNS if name not in left_out], []
    for name, report in reports.items():
        rule, best = best_baseline(report.baselines)
        accuracy = with_interval(report.scores.accuracy.micro, report.scores.interval)
        cells = {"accuracy": accuracy, **metric_cells(report)}
        if report.failure:
            cells = {**dict.fromkeys(COLUMNS, "–"), "accuracy": FAILED}
        elif is_unread(report):
            cells |= {"accuracy": UNREAD, **dict.fromkeys(("macro", "both orders", ONE_VOTE), "–")}
        cells |= {"benchmark": f"[{name}]({name}/report.md)", BASELINE: f"{rule} {percent(best)}"}
        rows.append([cells[column] for column in columns])
    judge = next(iter(reports.values())).judge
    lines = [f"# {title}: {judge}", "", *markdown_table(columns, rows)]
    lines += [
        "",
        "Percent, 95 % intervals over prompts; failures count as wrong. No mean over benchmarks: they differ in kind.",
    ]
    failures = [f"- **{name}: FAILED: {report.failure}**" for name, report in reports.items() if report.failure]
    costs = [report.cost for report in reports.values() if report.cost is not None]
    total = [f"- cost of all: {cost_text(sum_costs(costs))}"] if costs else []
    notes = total + failures + [f"- {name}: {note}" for name, report in reports.items() for note in report.notes]
    commits = [f"- {name}: commit {report.commit}" for name, report in reports.items()]
    return "\n".join([*lines, "", *notes, *commits]) + "\n"
