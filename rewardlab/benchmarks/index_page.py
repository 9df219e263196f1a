"""A page that lists the finished runs below a folder: headline, what is wrong with each judge, and links to their pages."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

from rewardlab.benchmarks.base import REPORT, SCORES
from rewardlab.benchmarks.comparison import Run, read_run
from rewardlab.benchmarks.findings import key_phrase
from rewardlab.benchmarks.report_model import headline, judge_name
from rewardlab.data.files import write_atomic
from rewardlab.errors import DataError
from rewardlab.reporting.pages import page_environment

NAME = "index.html"
COLUMNS = ("run", "benchmark", "judge", "accuracy", "pairs", "written", "what is wrong")


def find_runs(folder: Path) -> tuple[list[Run], list[str]]:
    """Return the runs in ``folder`` and below, by their place, and a sentence for each that cannot be read.

    Raise DataError where there is no run at all.
    """
    runs, faults = list[Run](), list[str]()
    places = sorted(path.parent for path in folder.rglob(REPORT) if (path.parent / SCORES).exists())
    for place in places:
        try:
            runs.append(read_run(place))
        except DataError as error:
            faults.append(str(error))
    if not runs:
        raise DataError(
            f"{folder}: no finished run of `rewardlab bench run` in it or below; {'; '.join(faults) or 'give another'}"
        )
    return runs, faults


def write_index(folder: Path) -> tuple[Path, list[str]]:
    """Write ``folder/index.html``; returns it and the sentences of :func:`find_runs`. Raise as that does."""
    runs, faults = find_runs(folder)
    lines = []
    for run in runs:
        place, report, parts = Path(run.name), run.report, headline(run.report)
        written = datetime.fromtimestamp((place / REPORT).stat().st_mtime, UTC)
        wrong = f"FAILED: {report.failure}" if report.failure else "; ".join(map(key_phrase, report.findings)) or "–"
        cells = (
            report.benchmark,
            judge_name(report.judge),
            "failed" if report.failure else f"{parts.number} {parts.interval}",
            f"{report.scores.num_pairs:,}",
            f"{written:%Y-%m-%d %H:%M} UTC",
            wrong,
        )
        page = place / "report.html"
        link = os.path.relpath(page, folder) if page.exists() else ""
        lines.append((os.path.relpath(place, folder), link, cells))
    text = (
        page_environment("rewardlab.benchmarks")
        .get_template("index.html")
        .render(title=f"{len(runs)} runs in {folder.resolve().name}", columns=COLUMNS, lines=lines, faults=faults)
    )
    write_atomic(folder / NAME, text)
    return folder / NAME, faults
