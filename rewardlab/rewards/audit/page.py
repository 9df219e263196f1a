"""An audit to read: the probes' table for a terminal, and one self-contained page with samples of every reward value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rewardlab.data.files import write_atomic
from rewardlab.reporting.pages import page_environment

REPORT, PAGE = "report.json", "report.html"


def value(reward: float) -> str:
    """0.0 as "0", 0.3333 as "0.33"."""
    return f"{reward:.2f}".rstrip("0").rstrip(".") if reward else "0"


def allowed(cell: dict[str, Any]) -> str:
    """What a probe may earn, in words: "0", "at most 0.5", "1.5", "over 0.5"."""
    if cell["least"] == cell["most"]:
        return value(cell["most"])
    return f"at most {value(cell['most'])}" if cell["least"] == 0 else f"over {value(cell['least'])}"


def matrices(report: dict[str, Any]) -> list[dict[str, Any]]:
    """The probes as tables, domain x probe: domains that have the same probes with the same allowance share one.

    Each has ``domains`` and ``rows`` of (probe, allowance, one cell per domain).
    """
    probes: dict[str, dict[str, dict[str, Any]]] = {}
    for cell in report["probes"]:
        probes.setdefault(cell["domain"], {})[cell["probe"]] = cell
    shared: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for domain, cells in sorted(probes.items()):
        shared.setdefault(tuple((name, allowed(cell)) for name, cell in cells.items()), []).append(domain)
    return [
        {"domains": names, "rows": [(name, may, [probes[domain][name] for domain in names]) for name, may in key]}
        for key, names in shared.items()
    ]


def sentences(report: dict[str, Any]) -> list[str]:
    """One sentence for every probe that did not hold, worst overpayment first, every difference, and what was not probed."""
    broken = sorted((c for c in report["probes"] if not c["held"]), key=lambda cell: cell["most"] - cell["worst"]["reward"])
    said = []
    for cell in broken:
        said.append(
            f"{cell['domain']}: {cell['probe']} earned {value(cell['worst']['reward'])} and may earn {allowed(cell)} "
            f"({cell['paid_wrongly']} of {cell['tried']} tries)."
        )
    for name, domain in report["domains"].items():
        if domain["num_differ"]:
            said.append(f"{name}: {domain['num_differ']} of {domain['num_recorded']} recorded rewards differ from ours.")
    for name in report["unprobed"]:
        said.append(f"{name}: nothing was probed, for no verifier or judge pays it here; give --judge.")
    return said


def markdown(report: dict[str, Any]) -> str:
    """The highest reward each probe got, per domain; one that was paid wrongly is marked, with its worst case."""
    lines = [f"{report['num_rows']:,} rows; the highest reward that each probe earned:"]
    for matrix in matrices(report):
        rows = [["probe", "may earn", *matrix["domains"]]]
        rows += [[name, may, *map(_mark, cells)] for name, may, cells in matrix["rows"]]
        widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
        padded = ["| " + " | ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) + " |" for row in rows]
        lines += ["", padded[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *padded[1:]]
    return "\n".join(lines) + "\n"


def _mark(cell: dict[str, Any]) -> str:
    earned = value(cell["worst"]["reward"])
    return earned if cell["held"] else f"{earned} (!)"


def html(report: dict[str, Any]) -> str:
    """One self-contained page."""
    env = page_environment("rewardlab.rewards.audit")
    env.filters["value"] = value
    return env.get_template("audit.html").render(
        report=report, matrices=matrices(report), sentences=sentences(report), allowed=allowed
    )


def write_audit(report: dict[str, Any], out: Path) -> None:
    """Write ``report.json`` and ``report.html``."""
    write_atomic(out / REPORT, json.dumps(report, indent=1, allow_nan=False) + "\n")
    write_atomic(out / PAGE, html(report))
