"""What runs have shown, as figures, tables and limits."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eval.rehearsals.runs import Case, Observation, last_step, named

GIB = 2**30
# Each with the name of its figure, and what it must not exceed.
LIMITS = {
    "start_up_s": 180.0,
    "above_model_gib": 3.0,
    "decodes_per_row": 1.05,
    "data_share": 0.10,
    "padding": 0.10,
}


def figures(case: Case, seen: Observation, *, model_bytes: int) -> dict[str, Any]:
    """Return the figures of a run: those that it did not live to show are None.

    ``model_bytes``: of weights, gradients and the optimizer's state. Memory is given above them and above what a process has
    after its imports, with all of its children. Rates are those between two moments of the same kind, the last one and the
    second (or first), so that what is prefetched at the end is made up for by what was at the start.
    """
    own = seen.events[0] if seen.events else []
    work = named(own, "sampling") or named(own, "training")
    result = {
        "run": case.name,
        "processes": case.processes,
        "status": seen.status,
        "wall_s": seen.ended - seen.begun,
        "start_up_s": work[0]["time"] - seen.begun if work else None,
        "start_up_cpu_s": work[0]["cpu_s"] if work else None,
        **_memory(seen, model_bytes),
        "steps": last_step(case.out),
        "checkpoint_mb": _checkpoint_bytes(case.out) / 1e6,
        "decode_ms": 1000 * statistics.fmean(cpu for _, cpu, _ in seen.decodes) if seen.decodes else None,
        "padding": _padding(seen.events),
    }
    if any(len(_ticks(events)) < 2 for events in seen.events or [[]]):
        return result
    return result | _rates(seen)


def _rates(seen: Observation) -> dict[str, Any]:
    """Return what is counted between two moments of each process, which are not the same moments for all."""
    rows, decodes, shares, seconds = 0, 0, [], []
    for rank, own in enumerate(seen.events):
        ticks = _ticks(own)
        start, end = ticks[min(1, len(ticks) - 2)], ticks[-1]
        rows += _rows(own, start, end)
        decodes += sum(start < at <= end and of == rank for at, _, of in seen.decodes)
        seconds.append(end - start)
        shares.append(_data_seconds(own, start, end) / (end - start))
    return {
        "rows": rows,
        "decodes_per_row": decodes / rows if rows else None,
        "decodes_per_s": decodes / statistics.fmean(seconds),
        "data_share": max(shares),
    }


def _ticks(events: list[dict[str, Any]]) -> list[float]:
    """Return when samplings began; of a run without, when an optimizer step had its batch."""
    sampling = [event["time"] for event in named(events, "sampling")]
    return sampling or [event["time"] for event in named(events, "data") if event["section"] == "batch"]


def _rows(events: list[dict[str, Any]], start: float, end: float) -> int:
    """Return how many rollouts were sampled, or sequences trained on where nothing is sampled."""
    name, number = ("sampling", "prompts") if named(events, "sampling") else ("training", "rows")
    return sum(event[number] for event in named(events, name) if start <= event["time"] < end)


def _data_seconds(events: list[dict[str, Any]], start: float, end: float) -> float:
    return float(sum(event["seconds"] for event in named(events, "data") if start < event["time"] <= end))


def _memory(seen: Observation, model_bytes: int) -> dict[str, float | None]:
    imported = [event["bytes"] for own in seen.events for event in named(own, "imported")]
    if not imported or not seen.peaks:
        return {"peak_gib": None, "above_model_gib": None}
    peak = max(seen.peaks.values())
    return {"peak_gib": peak / GIB, "above_model_gib": (peak - max(imported) - model_bytes) / GIB}


def _padding(processes: Sequence[list[dict[str, Any]]]) -> float | None:
    passes = [event for own in processes for event in named(own, "positions")]
    return sum(event["padding"] for event in passes) / sum(event["positions"] for event in passes) if passes else None


def _checkpoint_bytes(out: Path) -> int:
    folders = sorted(out.glob("checkpoint-*"), key=lambda path: int(path.name.rsplit("-", 1)[1]))
    return sum(path.stat().st_size for path in folders[-1].rglob("*") if path.is_file()) if folders else 0


COLUMNS = {
    "start_up_s": ("start-up, s", "{:.0f}"),
    "start_up_cpu_s": ("of it CPU, s", "{:.0f}"),
    "peak_gib": ("memory at its height, GiB", "{:.2f}"),
    "above_model_gib": ("above the model, GiB", "{:.2f}"),
    "decodes_per_row": ("decodes a row", "{:.2f}"),
    "decodes_per_s": ("decodes a second", "{:.1f}"),
    "data_share": ("of a step on data", "{:.1%}"),
    "padding": ("padding", "{:.1%}"),
    "checkpoint_mb": ("checkpoint, MB", "{:.0f}"),
}


def table(runs: Sequence[dict[str, Any]]) -> str:
    """Return the figures of runs as a Markdown table; a dash where a run did not get so far."""
    lines = ["| run | " + " | ".join(title for title, _ in COLUMNS.values()) + " | ended |"]
    lines.append("|---" * (len(COLUMNS) + 2) + "|")
    for run in runs:
        cells = ["–" if run.get(name) is None else form.format(run[name]) for name, (_, form) in COLUMNS.items()]
        lines.append(f"| {run['run']} | {' | '.join(cells)} | {run['outcome']} |")
    return "\n".join(lines) + "\n"


def limits(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return for every limit the worst figure of this project's runs, and whether it holds: not where no run has shown it."""
    rows = []
    for name, limit in LIMITS.items():
        # at full speed data are all that takes time, and padding is the same in every run
        shown = [run for run in runs if run["ours"] and (name != "data_share" or run["paced"])]
        values = [run[name] for run in shown if run.get(name) is not None]
        worst = max(values, default=None)
        rows.append({"figure": name, "limit": limit, "worst": worst, "holds": worst is not None and worst <= limit})
    return rows
