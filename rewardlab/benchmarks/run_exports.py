"""Figures and tables of finished runs as files: SVG, PDF and PNG; CSV of every number, LaTeX and Markdown of the main ones."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from rewardlab.benchmarks.comparison import Run, short_names
from rewardlab.benchmarks.figures import leaderboard_figure, report_figures
from rewardlab.benchmarks.report_model import Report
from rewardlab.data.files import write_atomic
from rewardlab.errors import ConfigError
from rewardlab.metrics.intervals import Interval
from rewardlab.reporting.plots import SUFFIXES, save_figure
from rewardlab.reporting.tables import markdown_table, percent, signed, with_interval

TABLES = (".csv", ".tex", ".md")
COLUMNS = ("run", "benchmark", "judge", "failure", "figure", "of", "value", "low", "high", "n")
Line = tuple[str, str, float, Interval | None, int | None]
_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--"}
_LATEX |= {letter: f"\\{letter}" for letter in "&%$#_{}"}


def write_figures(runs: Sequence[Run], out: Path, formats: Sequence[str], *, dpi: int = 200) -> list[Path]:
    """Write each figure of each run to ``out/RUN-FIGURE.FORMAT`` (one run: ``out/FIGURE.FORMAT``), and of several their
    accuracies side by side; returns the files. Raise ConfigError for a format other than svg, pdf and png."""
    if unknown := [name for name in formats if f".{name}" not in SUFFIXES]:
        raise ConfigError(f"unknown format {', '.join(unknown)}; expected {', '.join(suffix[1:] for suffix in SUFFIXES)}")
    out.mkdir(parents=True, exist_ok=True)
    names, written = _names(runs), list[Path]()
    prefixes = [f"{re.sub(r'[^A-Za-z0-9._]+', '-', name).strip('-')}-" for name in names]
    if len(set(prefixes)) < len(runs):
        prefixes = [f"{number}-{prefix}" for number, prefix in enumerate(prefixes, 1)]
    for run, prefix in zip(runs, prefixes if len(runs) > 1 else [""], strict=True):
        for one in report_figures(run.report):
            for suffix in formats:
                written.append(out / f"{prefix}{one.name}.{suffix}")
                save_figure(one.figure, written[-1], dpi=dpi)
    if len(runs) > 1 and len({run.report.data_sha256 for run in runs}) == 1:
        figure = leaderboard_figure({name: run.report for run, name in zip(runs, names, strict=True)})
        for suffix in formats:
            written.append(out / f"judges.{suffix}")
            save_figure(figure, written[-1], dpi=dpi)
    return written


def _names(runs: Sequence[Run]) -> list[str]:
    return short_names([run.name for run in runs])


def write_table(runs: Sequence[Run], out: Path) -> None:
    """Write the runs to a file of one of :data:`TABLES`. Raise ConfigError for another."""
    texts = {".csv": csv_text, ".tex": latex_text, ".md": markdown_text}
    if out.suffix not in texts:
        raise ConfigError(f"--out {out}: expected a file that ends in {', '.join(TABLES)}")
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(out, texts[out.suffix](runs))


def numbers(report: Report) -> Iterator[Line]:
    """Yield (figure, what it is of, value, interval, pairs) of every number of a report; shares as in its JSON, 0..1."""
    scores, n = report.scores, report.scores.num_pairs
    yield "accuracy", "", scores.accuracy.micro, scores.interval, n
    yield "accuracy, macro", "", scores.accuracy.macro, None, n
    yield "accuracy, majority of the valid votes", "", scores.valid_majority.accuracy, scores.valid_majority.interval, n
    yield "accuracy, one vote", "", scores.one_vote.accuracy, scores.one_vote.interval, n
    if scores.decision:
        yield "accuracy over both orders", "", scores.decision.accuracy, scores.decision.interval, n
    if scores.all_right:
        yield "prompts all right", "", scores.all_right.accuracy, scores.all_right.interval, scores.all_right.n
    for name, group in scores.groups.items():
        yield "accuracy", name, group.accuracy, group.interval, group.n
    for way, cells in scores.slices.items():
        for name, cell in cells.items():
            yield "accuracy", f"{way}={name}", cell.accuracy, cell.interval, cell.n
    for point in scores.k_curve:
        yield f"accuracy at K={point.k}", "", point.accuracy, point.interval, n
    for name, control in report.controls.items():
        yield "accuracy", f"control: {name}", control.accuracy.micro, control.interval, n
    for name, baseline in report.baselines.items():
        yield "accuracy", f"baseline: {name}", baseline.micro, baseline.interval, n
    habits = {
        "invalid rate": scores.invalid_rate,
        "undecided trials": scores.undecided_rate,
        "trials that the valid votes decide": scores.valid_majority.decided,
        "swap consistency": scores.swap_consistency,
        "position bias": scores.position_bias,
        "length bias": scores.length_bias,
    }
    for name, value in habits.items():
        if value is not None:
            yield name, "", value, None, n


def csv_text(runs: Sequence[Run]) -> str:
    """Return every number of the runs, one a line; shares in 0..1, to the last digit."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for run, name in zip(runs, _names(runs), strict=True):
        report = run.report
        for figure, of, value, interval, n in numbers(report):
            low, high = interval or ("", "")
            writer.writerow([name, report.benchmark, report.judge, report.failure, figure, of, value, low, high, n])
    return text.getvalue()


def main_table(runs: Sequence[Run]) -> tuple[list[str], list[list[str]]]:
    """Return (columns, a row of cells per run) as papers have them: groups, overall, macro, and what stands beside them."""
    groups = list(dict.fromkeys(name for run in runs for name in run.report.scores.groups))
    groups = groups if len(groups) > 1 else []
    columns = ["judge", "n", *groups, "overall [95 %]", "macro", "invalid", "swap consistency", "position bias"]
    rows = []
    for run, name in zip(runs, _names(runs), strict=True):
        scores, bias = run.report.scores, run.report.scores.position_bias
        cells = [percent(scores.groups[group].accuracy) if group in scores.groups else "–" for group in groups]
        cells += [with_interval(scores.accuracy.micro, scores.interval), percent(scores.accuracy.macro)]
        cells += [percent(scores.invalid_rate), percent(scores.swap_consistency)]
        cells += [signed(bias)]
        if run.report.failure:
            cells = ["failed"] * len(cells)
        rows.append([name, f"{scores.num_pairs:,}", *cells])
    return columns, rows


def markdown_text(runs: Sequence[Run]) -> str:
    """Return :func:`main_table` as Markdown."""
    return "\n".join(markdown_table(*main_table(runs))) + "\n"


def latex_text(runs: Sequence[Run]) -> str:
    """Return :func:`main_table` as a ``tabular`` of the package booktabs, with how to read it in comments."""
    columns, rows = main_table(runs)
    lines = [" & ".join(map(latex_escape, row)) + r" \\" for row in [columns, *rows]]
    comments = [f"% {name}: {run.report.command or '–'}" for run, name in zip(runs, _names(runs), strict=True)]
    comments = [" ".join(comment.split()) for comment in comments]
    return "\n".join(
        [
            "% Percent; each order shown is a trial, decided by more than half of the votes asked; an undecided one is wrong.",
            *comments,
            f"\\begin{{tabular}}{{l{'r' * (len(columns) - 1)}}}",
            r"\toprule",
            lines[0],
            r"\midrule",
            *lines[1:],
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


def latex_escape(text: str) -> str:
    """Return text as LaTeX shows it: its special characters escaped."""
    return "".join(_LATEX.get(letter, letter) for letter in text)
