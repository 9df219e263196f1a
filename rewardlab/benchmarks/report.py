"""A report to read: Markdown for a terminal or a pull request, one self-contained HTML file to look at."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rewardlab.benchmarks.arithmetic import addition
from rewardlab.benchmarks.base import Row
from rewardlab.benchmarks.browser import MOST_OF_A_KIND, judgments
from rewardlab.benchmarks.kinds import KINDS
from rewardlab.benchmarks.runner import REPORT
from rewardlab.data.files import write_atomic
from rewardlab.reporting.pages import page_environment
from rewardlab.reporting.plots import NAMES, plots
from rewardlab.reporting.tables import percent, table, with_interval


def table_rows(report: dict[str, Any]) -> list[tuple[str, str, str]]:
    """(name, accuracy with interval in percent, number of pairs): groups, overall, baselines, controls."""
    n = report["num_pairs"]
    rows = [
        (name, with_interval(cell["accuracy"], cell["interval"]), f"{cell['n']:,}") for name, cell in report["groups"].items()
    ]
    rows.append(("micro average", with_interval(report["accuracy"]["micro"], report["interval"]), f"{n:,}"))
    rows.append(("macro average", percent(report["accuracy"]["macro"]), f"{n:,}"))
    if told := report["decision"]:
        how = "by probability" if "verdict_probability" in report["confidence"] else "one majority"
        rows.append((f"{how} over both orders", with_interval(told["accuracy"], told["interval"]), f"{n:,}"))
    if whole := report["all_right"]:
        rows.append(
            ("prompts with all pairs right (Acc+)", with_interval(whole["accuracy"], whole["interval"]), f"{whole['n']:,}")
        )
    labels = {"greedy": "one greedy vote", "blank": "text-only (blank image)", "other": "another pair's image"}
    for name, control in report["controls"].items():
        rows.append((labels[name], with_interval(control["accuracy"]["micro"], control["interval"]), f"{n:,}"))
    for name, baseline in report["baselines"].items():
        rows.append((f"baseline: {name}", with_interval(baseline["micro"], baseline["interval"]), f"{n:,}"))
        if whole := baseline["all_right"]:
            rows.append((f"baseline: {name}, Acc+", with_interval(whole["accuracy"], whole["interval"]), f"{whole['n']:,}"))
    return rows


def facts(report: dict[str, Any]) -> list[tuple[str, str]]:
    """What stands beside every accuracy."""
    sampling = [report[name] for name in ("temperature", "top_p", "max_tokens")]
    lean, longer, seconds = report["position_bias"], report["length_bias"], report["seconds_per_vote"]
    votes, error = str(report["votes"]), report["stop_error"]
    if error is not None:
        samples = report["num_votes_total"] / report["num_pairs"]
        votes = f"up to {votes}, until settled but for {100 * error:g} %: {samples:.2f} samples per pair"
    return [
        ("judge", report["judge"]),
        ("orders shown", report["orders"]),
        ("votes per order", votes),
        ("invalid rate", f"{percent(report['invalid_rate'], 2)} %"),
        ("swap consistency", f"{percent(report['swap_consistency'])} %"),
        ("position bias (share of first, minus 50)", "–" if lean is None else f"{100 * lean:+.1f} points"),
        ("length bias (named longer, less labelled longer)", "–" if longer is None else f"{100 * longer:+.1f} points"),
        ("tokens per vote", f"{report['tokens_per_vote']:.1f}"),
        ("seconds per vote", "–" if seconds is None else f"{seconds:.3f}"),
        ("data", report["data"]),
        ("template, verdicts read as", f"{report['template'] or '–'}, {report['verdict_format'] or '–'}"),
        ("temperature, top p, most tokens", ", ".join("–" if value is None else f"{value:g}" for value in sampling)),
        ("seed", str(report["seed"])),
        ("command", report["command"] or "–"),
        ("commit", report["commit"]),
    ]


def markdown(report: dict[str, Any]) -> str:
    """The report as Markdown; accuracies in percent with 95 % intervals."""
    lines = [f"# {report['benchmark']}: {report['judge']}", ""]
    lines += table(("", "accuracy, 95 % interval", "pairs"), table_rows(report))
    lines += ["", f"The groups add up to the overall: {addition(report)}."]
    if len(report["k_curve"]) > 1:
        lines += ["", "What more votes buy. One order: the majority of K votes, each order a trial. Both: one majority (or one"]
        lines += ["probability) of K votes of each. An even vote is not right, so that 2K votes, and even K, can score lower."]
        lines += ["", *table(CURVE, [_curve_cells(cell, report) for cell in report["k_curve"]])]
    if report["sequential"]:
        lines += [
            "",
            "One majority over both orders (an even one is not right), votes taken in turns until that of all of them is",
        ]
        lines += ["settled but for an error:", "", *table(STOPPING, [_stopping_cells(cell) for cell in report["sequential"]])]
    if told := confidence_rows(report):
        lines += ["", "Confidence in the response named, both orders together; undecided pairs name none:", ""]
        lines += table(CONFIDENCE, told)
    if report["official"]:
        lines += [
            "",
            "What the benchmark's own scorer prints on these votes, translated where the judge was not asked in its words "
            "(`rewardlab/benchmarks/official/` names its quirks):",
            "",
        ]
        lines += ["```text", *report["official"], "```"]
    lines += ["", *(f"- {name}: {value}" for name, value in facts(report))]
    lines += [f"- note: {note}" for note in report["notes"]]
    return "\n".join(lines) + "\n"


CURVE = ("votes K", "one order", "any of K right", "both orders, K each", "by probability", "tokens of K")


def _curve_cells(cell: dict[str, Any], report: dict[str, Any]) -> tuple[str, ...]:
    both = ["–" if cell[name] is None else with_interval(**cell[name]) for name in ("balanced", "weighted")]
    tokens = f"{cell['k'] * report['tokens_per_vote']:.0f}"
    return str(cell["k"]), with_interval(cell["accuracy"], cell["interval"]), percent(cell["any_correct"]), *both, tokens


CONFIDENCE = ("confidence", "mean", "right when named", "ECE (if exact)", "Brier", "undecided")


def confidence_rows(report: dict[str, Any]) -> list[tuple[str, ...]]:
    """A row of percentages for each confidence a judge has; Brier in 0..1."""
    rows = []
    for name, told in report["confidence"].items():
        undecided = f"{told['undecided']:,} of {told['num_pairs']:,}"
        if "ece" not in told:
            rows.append((NAMES[name], "–", "–", "–", "–", undecided))
            continue
        ece = f"{with_interval(told['ece'], told['ece_interval'])} ({percent(told['ece_if_exact'])})"
        cells = percent(told["mean_confidence"]), percent(told["accuracy"]), ece, f"{told['brier']:.3f}"
        rows.append((NAMES[name], *cells, undecided))
    return rows


STOPPING = ("stopping error", "samples per pair", "tokens", "accuracy of the pair's majority", "against all samples")


def _stopping_cells(cell: dict[str, Any]) -> tuple[str, ...]:
    name = "none: all" if cell["error"] is None else f"{100 * cell['error']:g} %"
    low, high = cell["difference_interval"]
    gap = "" if cell["error"] is None else f"{100 * cell['difference']:+.2f} [{100 * low:+.2f}, {100 * high:+.2f}]"
    accuracy = with_interval(cell["accuracy"], cell["interval"])
    return name, f"{cell['samples']:.2f}", f"{cell['tokens']:.0f}", accuracy, gap


def html(report: dict[str, Any], rows: Sequence[Row], out: Path) -> str:
    """One self-contained page about the run in ``out``."""
    shown, totals = judgments(rows, out)
    return (
        page_environment("rewardlab.benchmarks")
        .get_template("report.html")
        .render(
            report=report,
            table=table_rows(report),
            facts=facts(report),
            addition=addition(report),
            plots=plots(report),
            stopping=[_stopping_cells(cell) for cell in report["sequential"]],
            stopping_columns=STOPPING,
            confidence=confidence_rows(report),
            confidence_columns=CONFIDENCE,
            judgments=shown,
            totals=totals,
            kinds=KINDS,
            most=MOST_OF_A_KIND,
        )
    )


def write_reports(report: dict[str, Any], rows: Sequence[Row], out: Path) -> None:
    """Write ``report.md`` and ``report.html`` beside ``report.json``."""
    assert (out / REPORT).exists()
    write_atomic(out / "report.md", markdown(report))
    write_atomic(out / "report.html", html(report, rows, out))
