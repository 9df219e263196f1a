"""Several runs side by side: a leaderboard with intervals, and each run against the first, pair by pair."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rewardlab.data.files import read_lines
from rewardlab.errors import ConfigError, DataError
from rewardlab.metrics.intervals import difference_interval, sign_flip_p
from rewardlab.reporting.tables import percent, table, with_interval

REPORT, SCORES = "report.json", "scores.jsonl"


@dataclass(frozen=True)
class Run:
    """A finished run: its report, and ``{"row", "group", "cluster", "score"}`` of each row, scores in 0..1."""

    name: str
    report: dict[str, Any]
    rows: list[dict[str, Any]]

    @property
    def scores(self) -> dict[int, float]:
        return {row["row"]: row["score"] for row in self.rows}


def read_run(folder: Path) -> Run:
    """Raises DataError where ``folder`` holds no finished run."""
    try:
        report = json.loads((folder / REPORT).read_text(encoding="utf-8"))
        rows = [json.loads(line) for line in read_lines(folder / SCORES)]
        if not all({"row", "group", "cluster", "score"} <= row.keys() for row in rows):
            raise ValueError(f"a line of {SCORES} lacks row, group, cluster or score")
        if lacks := [name for name in ("decision", "stop_error", "controls", "baselines") if name not in report]:
            raise ValueError(f"its {REPORT} lacks {', '.join(lacks)}: run the same command again, it is scored anew")
    except (OSError, ValueError, KeyError, TypeError) as error:
        if (folder / REPORT).exists() and not (folder / SCORES).exists():
            raise DataError(
                f"{folder}: was written by an older version, without {SCORES}; run the same command again, or score its "
                f"votes with --judge replay:{folder}/votes.jsonl"
            ) from error
        raise DataError(f"{folder}: holds no finished run of `rewardlab bench run` ({error})") from error
    return Run(str(folder), report, rows)


def against(base: Run, other: Run) -> dict[str, Any]:
    """The difference other - base in accuracy, over the rows of both, with its 95 % interval and p-value.

    Rows that share a prompt stay together, in the resampling and in the test (sign flips, two-sided: how often so large a
    difference comes about where the two are exchangeable). Raises ConfigError where the runs are not of the same rows.
    """
    if (base.report["benchmark"], base.report["data_sha256"]) != (other.report["benchmark"], other.report["data_sha256"]):
        raise ConfigError(f"{base.name} and {other.name} are not of the same benchmark and data file; compare like with like")
    before, after = base.scores, other.scores
    if before.keys() != after.keys():
        raise ConfigError(f"{base.name} judged {len(before):,} rows and {other.name} {len(after):,}; use the same --limit")
    gaps, clusters = [after[row["row"]] - before[row["row"]] for row in base.rows], [row["cluster"] for row in base.rows]
    low, high = difference_interval(gaps, clusters)
    return {
        "difference": sum(gaps) / len(gaps),
        "interval": [low, high],
        "p_value": sign_flip_p(gaps, clusters),
        "better": sum(gap > 0 for gap in gaps),
        "worse": sum(gap < 0 for gap in gaps),
    }


def leaderboard(runs: Sequence[Run]) -> tuple[list[str], list[list[str]]]:
    """(column names, a row of cells per run): best accuracy first, the comparison being with the run named first; then the
    baselines, which any run of the same rows has."""
    ranked = sorted(runs, key=lambda one: -one.report["accuracy"]["micro"])
    table = [_run_cells(run, runs[0]) for run in ranked]
    for name, one in runs[0].report["baselines"].items():
        whole = one["all_right"]
        told = {"judge": f"baseline: {name}", "accuracy": with_interval(one["micro"], one["interval"])}
        table.append(
            told
            | {"macro": percent(one["macro"]), "Acc+": with_interval(whole["accuracy"], whole["interval"]) if whole else ""}
        )
    columns = [name for name in table[0] if name != "Acc+" or any(run.report["all_right"] for run in runs)]
    return columns, [[row.get(name, "") for name in columns] for row in table]


def _run_cells(run: Run, base: Run) -> dict[str, str]:
    """What stands of a run in each column; the differences come early, where a narrow screen shows them."""
    r, found = run.report, None if run is base else against(base, run)
    lean, blank, whole = r["position_bias"], r["controls"].get("blank"), r["all_right"]
    until = "" if r["stop_error"] is None else f", until {100 * r['stop_error']:g} %"
    low, high = found["interval"] if found else (0.0, 0.0)
    return {
        "judge": f"{run.name} ({r['judge']})",
        "accuracy": with_interval(r["accuracy"]["micro"], r["interval"]),
        f"against {base.name}": f"{100 * found['difference']:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]" if found else "",
        "p": p_text(found["p_value"]) if found else "",
        "both orders": with_interval(**r["decision"]) if r["decision"] else "–",
        "Acc+": with_interval(whole["accuracy"], whole["interval"]) if whole else "–",
        "macro": percent(r["accuracy"]["macro"]),
        "text-only": "–" if blank is None else with_interval(blank["accuracy"]["micro"], blank["interval"]),
        "invalid, %": f"{100 * r['invalid_rate']:.2f}",
        "swap consistency": percent(r["swap_consistency"]),
        "lean": "–" if lean is None else f"{100 * lean:+.1f}",
        "votes": f"{r['votes']} × {r['orders']}{until}",
        "tokens a vote": f"{r['tokens_per_vote']:.0f}",
    }


def p_text(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


NOTES = (
    "Accuracies and differences are of the rewardlab protocol (each order a trial, failures count as wrong), intervals 95 %, "
    "over prompts. Both orders: each pair decided once, by all its votes, or by their probabilities. "
    "Text-only: the same judge with blank images, one greedy vote. "
    "p: two-sided sign-flip test over prompts, not corrected for the number of judges."
)


def title(runs: Sequence[Run]) -> str:
    first = runs[0].report
    return f"{first['benchmark']}: {len(runs)} judge{'s' if len(runs) > 1 else ''} on {first['num_pairs']:,} pairs"


def markdown(runs: Sequence[Run]) -> str:
    """The leaderboard as Markdown. Raises ConfigError where the runs are not of one benchmark and data file."""
    columns, rows = leaderboard(runs)
    commands = [f"- {run.name}: {run.report['command'] or '–'} (commit {run.report['commit'][:12]})" for run in runs]
    return "\n".join([f"# {title(runs)}", "", *table(columns, rows), "", NOTES, "", *commands]) + "\n"


def html(runs: Sequence[Run]) -> str:
    """The leaderboard as one self-contained page, with the intervals drawn. Raises ConfigError as :func:`markdown`."""
    from rewardlab.reporting.pages import page_environment
    from rewardlab.reporting.plots import plot_leaderboard

    columns, rows = leaderboard(runs)
    return (
        page_environment("rewardlab.benchmarks")
        .get_template("leaderboard.html")
        .render(title=title(runs), columns=columns, rows=rows, notes=NOTES, runs=runs, plot=plot_leaderboard(runs))
    )
