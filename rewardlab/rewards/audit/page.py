"""An audit to read: the probes' table for a terminal, and one self-contained page with samples of every reward value."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from rewardlab.data.files import write_atomic
from rewardlab.reporting.pages import page_environment
from rewardlab.rewards.audit.report import AuditReport, ProbeResult

REPORT, PAGE = "report.json", "report.html"


@dataclass(frozen=True)
class ProbeMatrix:
    """A table, probe x domain; ``rows`` are of (probe, allowance, one result per domain)."""

    domains: list[str]
    rows: list[tuple[str, str, list[ProbeResult]]]


def format_reward(reward: float) -> str:
    """Return 0.0 as "0", 0.3333 as "0.33"."""
    return f"{reward:.2f}".rstrip("0").rstrip(".") if reward else "0"


def allowance(probe: ProbeResult) -> str:
    """Return what a probe may earn, in words: "0", "at most 0.5", "1.5", "over 0.5"."""
    if probe.least == probe.most:
        return format_reward(probe.most)
    return f"at most {format_reward(probe.most)}" if probe.least == 0 else f"over {format_reward(probe.least)}"


def probe_matrices(report: AuditReport) -> list[ProbeMatrix]:
    """Return the probes as tables: domains that have the same probes with the same allowance share one."""
    probes: dict[str, dict[str, ProbeResult]] = {}
    for probe in report.probes:
        probes.setdefault(probe.domain, {})[probe.probe] = probe
    shared: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for domain, by_name in sorted(probes.items()):
        shared.setdefault(tuple((name, allowance(probe)) for name, probe in by_name.items()), []).append(domain)
    return [
        ProbeMatrix(domains, [(name, may, [probes[domain][name] for domain in domains]) for name, may in key])
        for key, domains in shared.items()
    ]


def audit_sentences(report: AuditReport) -> list[str]:
    """Return one sentence for every probe that failed, worst overpayment first, every difference, and what was not probed."""
    failures = sorted((p for p in report.probes if not p.passed), key=lambda probe: probe.most - probe.worst.reward)
    sentences = []
    for probe in failures:
        sentences.append(
            f"{probe.domain}: {probe.probe} earned {format_reward(probe.worst.reward)} and may earn {allowance(probe)} "
            f"({probe.paid_wrongly} of {probe.tried} tries)."
        )
    for name, domain in report.domains.items():
        if domain.num_differ:
            sentences.append(f"{name}: {domain.num_differ} of {domain.num_recorded} recorded rewards differ from ours.")
    for name in report.unprobed:
        sentences.append(f"{name}: nothing was probed, for no verifier or judge pays it here; give --judge.")
    return sentences


def audit_markdown(report: AuditReport) -> str:
    """Return the highest reward each probe got, per domain; one that was paid wrongly is marked, with its worst case."""
    lines = [f"{report.num_rows:,} rows; the highest reward that each probe earned:"]
    for matrix in probe_matrices(report):
        rows = [["probe", "may earn", *matrix.domains]]
        rows += [[name, may, *map(_mark, probes)] for name, may, probes in matrix.rows]
        widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
        padded = ["| " + " | ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) + " |" for row in rows]
        lines += ["", padded[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *padded[1:]]
    return "\n".join(lines) + "\n"


def _mark(probe: ProbeResult) -> str:
    reward = format_reward(probe.worst.reward)
    return reward if probe.passed else f"{reward} (!)"


def audit_html(report: AuditReport) -> str:
    """Return one self-contained page."""
    env = page_environment("rewardlab.rewards.audit")
    env.filters["value"] = format_reward
    return env.get_template("audit.html").render(
        report=report, matrices=probe_matrices(report), sentences=audit_sentences(report), allowance=allowance
    )


def write_audit(report: AuditReport, out: Path) -> None:
    """Write ``report.json`` and ``report.html``."""
    write_atomic(out / REPORT, json.dumps(report.to_json(), indent=1, allow_nan=False) + "\n")
    write_atomic(out / PAGE, audit_html(report))
