"""Reports of studies: intervals over seeds, cells and tables in Markdown, and the files of a report."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from eval.studies.study import Record
from rewardlab.data.files import write_atomic

Mean = dict[str, Any]  # mean, interval (None for one seed)


def t_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return Student's 95 % interval of the mean over seeds; None for fewer than two values."""
    if len(values) < 2:
        return None
    half = float(stats.t.ppf(0.975, len(values) - 1)) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return float(np.mean(values)) - half, float(np.mean(values)) + half


def mean_of(values: Sequence[float | None], *, is_fraction: bool = False) -> Mean | None:
    """Return the mean with its interval over seeds; None if a value is missing, or if there are none. The interval of a
    fraction ends at 0 and 1."""
    present = [float(value) for value in values if value is not None]
    if not present or len(present) < len(values):
        return None
    interval = t_interval(present)
    if interval and is_fraction:
        interval = max(0.0, interval[0]), min(1.0, interval[1])
    return {"mean": float(np.mean(present)), "interval": None if interval is None else list(interval)}


def cell(value: Mean | None, scale: float = 1.0, digits: int = 1, *, sign: bool = False) -> str:
    """Return a mean with its interval as text; without the interval if ``digits`` is 0; a dash for None."""
    if value is None:
        return "–"
    form = f"{'+' if sign else ''},.{digits}f"
    text = f"{scale * value['mean']:{form}}"
    if value["interval"] is None or not digits:
        return text
    low, high = (f"{scale * bound:{form}}" for bound in value["interval"])
    return f"{text} [{low}, {high}]"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table between empty lines."""
    return ["", f"| {' | '.join(head)} |", "|---" * len(head) + "|", *(f"| {' | '.join(row)} |" for row in rows), ""]


def page(title: str, facts: Sequence[str], parts: Sequence[str]) -> str:
    """Return a report: its title, what all trials share as a list, and its parts, with single empty lines between them."""
    text = "\n".join([f"# {title}", "", *(f"- {fact}" for fact in facts), "", *parts]).rstrip("\n") + "\n"
    while "\n\n\n" in text:
        text = text.replace("\n\n\n", "\n\n")
    return text


def trial_facts(records: Sequence[Record], start: Record, num_workers: int) -> dict[str, Any]:
    """Return what every report says of its trials. Raise ValueError without a record."""
    if not records:
        raise ValueError("there is no finished trial to summarise")
    cpu = start["cpu_s"] + sum(record["cpu_s"] for record in records)
    wall = start["wall_s"] + sum(record["wall_s"] for record in records) / num_workers
    return {
        "commits": sorted({r["commit"] for r in records}),
        "identity": start["identity"],
        "seeds": sorted({r["seed"] for r in records}),
        "num_trials": len(records),
        "num_workers": num_workers,
        "minutes": {"by_cpu_seconds": round(cpu / num_workers / 60, 1), "by_the_clock": round(wall / 60, 1)},
    }


def common_lines(summary: dict[str, Any]) -> tuple[str, str]:
    """Return the first and the last line of what all trials share: their origin, and the time they took."""
    minutes = summary["minutes"]
    return (
        f"Commit {', '.join(summary['commits'])}; judge {summary['identity']['judge']}; seeds "
        f"{', '.join(map(str, summary['seeds']))}; {summary['num_trials']} trials.",
        f"Time: {minutes['by_cpu_seconds']} minutes by CPU seconds on {summary['num_workers']} cores, "
        f"{minutes['by_the_clock']} by the clock.",
    )


def write_report(
    name: str, summary: dict[str, Any], out: Path, *, markdown: Callable[[dict[str, Any]], str], draw: Callable[..., None]
) -> Path:
    """Write ``name.md``, ``.json`` and ``.png`` into ``out``; return the first."""
    out.mkdir(parents=True, exist_ok=True)
    draw(summary, out / f"{name}.png")
    write_atomic(out / f"{name}.json", json.dumps(summary, indent=1) + "\n")
    write_atomic(out / f"{name}.md", markdown(summary))
    return out / f"{name}.md"
