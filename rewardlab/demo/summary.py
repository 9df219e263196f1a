"""What the quickstart found: one summary, printed as a table and drawn as one page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from rewardlab.benchmarks.report_model import Report, json_form
from rewardlab.checkpoints import versions
from rewardlab.data.files import read_lines
from rewardlab.data.pairs import read_pairs
from rewardlab.demo.build import TEST
from rewardlab.demo.server import favoured
from rewardlab.metrics.intervals import paired_difference
from rewardlab.types import Choice, Order, choice_of
from rewardlab.verdicts.parse import reasoning_of

STAGES = ("base", "sft", "rl")
TITLES = {"base": "base model", "sft": "SFT", "rl": "StableReinforce"}


def _report(out: Path, stage: str) -> Report:
    return Report.from_json(json.loads((out / "bench" / stage / "report.json").read_text(encoding="utf-8")))


def _votes(out: Path, stage: str) -> dict[int, list[dict[str, Any]]]:
    lines = read_lines(out / "bench" / stage / "votes.jsonl")[1:]
    entries = [json.loads(line) for line in lines]
    return {entry["row"]: entry["votes"] for entry in entries if entry["pass"] == "votes"}


def _is_right(vote: dict[str, Any], preferred: int) -> bool:
    return vote["choice"] == choice_of(preferred, Order(vote["order"])).value


def consistency(votes: dict[int, list[dict[str, Any]]], preferred: list[int]) -> dict[str, float | None]:
    """Among right verdicts: the share whose reasoning favours the same response, the opposite one, neither (None: no right)."""
    counts = {"agrees": 0, "contradicts": 0, "unclear": 0}
    for row, cast in votes.items():
        for vote in cast:
            if _is_right(vote, preferred[row]):
                side = favoured(reasoning_of(vote["text"]))
                said = 1 if vote["choice"] == Choice.FIRST.value else 2
                counts["unclear" if side is None else "agrees" if side == said else "contradicts"] += 1
    total = sum(counts.values())
    return {name: count / total if total else None for name, count in counts.items()}


def sampled_scores(votes: dict[int, list[dict[str, Any]]], preferred: list[int]) -> dict[str, float]:
    """Accuracy of a single sampled vote, per pair, over all its votes in both orders."""
    return {str(row): sum(_is_right(v, preferred[row]) for v in cast) / len(cast) for row, cast in votes.items()}


def stage_summary(report: Report, votes: dict[int, list[dict[str, Any]]], preferred: list[int]) -> dict[str, Any]:
    """The numbers of one stage's row."""
    scores, controls = report.scores, report.controls
    curve = {str(c.k): {"accuracy": c.accuracy, "interval": list(c.interval)} for c in scores.k_curve}
    digits = controls["greedy"].slices["source"].get("digits")
    return {
        "num_pairs": scores.num_pairs,
        "invalid_rate": scores.invalid_rate,
        "sampled_at_1": curve["1"],
        "votes": curve,
        **{
            name: {"accuracy": c.accuracy.micro, "interval": list(c.interval), "invalid_rate": c.invalid_rate}
            for name, c in controls.items()
        },
        "digits_greedy": json_form(digits),
        "swap_consistency_greedy": controls["greedy"].swap_consistency,
        "swap_consistency": scores.swap_consistency,
        "position_bias": scores.position_bias,
        "reasoning": consistency(votes, preferred),
        "tokens_per_vote": scores.tokens_per_vote,
    }


def summarize(out: Path, *, seed: int, commits: str, seconds: dict[str, float], served: dict[str, Any]) -> dict[str, Any]:
    """Everything the quickstart reports, from the files its stages wrote at ``commits``."""
    preferred = [int(pair.preferred or 0) for pair in read_pairs(out / "demo" / TEST)]
    votes = {stage: _votes(out, stage) for stage in STAGES}
    scores = {stage: sampled_scores(votes[stage], preferred) for stage in STAGES}
    gain, gain_interval = paired_difference(scores["sft"], scores["rl"])
    return {
        "seed": seed,
        "commit": commits,
        "versions": versions(),
        "seconds": {name: round(s, 1) for name, s in seconds.items()},
        "teacher": json.loads((out / "distill" / "statistics.json").read_text(encoding="utf-8")),
        "stages": {stage: stage_summary(_report(out, stage), votes[stage], preferred) for stage in STAGES},
        "rl_gain_sampled_at_1": {"mean": gain, "interval": list(gain_interval)},
        "baselines": json_form(_report(out, "rl").baselines),
        "served": served,
    }


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        low, high = value["interval"]
        return f"{100 * value['accuracy']:.1f} [{100 * low:.1f}, {100 * high:.1f}]"
    return "–" if value is None else f"{100 * value:.1f}"


def table(summary: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """(name, a cell per stage); percent, 95 % intervals over pairs."""
    stages = summary["stages"]

    def row(name: str, *path: str) -> tuple[str, list[str]]:
        cells = []
        for stage in STAGES:
            value: Any = stages[stage]
            for key in path:
                value = value.get(key) if value is not None else None
            cells.append(_cell(value))
        return name, cells

    return [
        row("invalid answers", "invalid_rate"),
        row("one sampled vote", "sampled_at_1"),
        row("majority of 5", "votes", "5"),
        row("majority of 15", "votes", "15"),
        row("one greedy vote", "greedy"),
        row("  digits (scans)", "digits_greedy"),
        row("  blank image", "blank"),
        row("  another's image", "other"),
        row("  swap consistency", "swap_consistency_greedy"),
        row("consistent", "reasoning", "agrees"),
        row("position bias", "position_bias"),
    ]


def _points(gain: dict[str, Any]) -> str:
    low, high = gain["interval"]
    return f"{100 * gain['mean']:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}] points"


def sentences(summary: dict[str, Any]) -> list[str]:
    """What stands below the table."""
    teacher = summary["teacher"]
    tags = ", ".join(f"{tag}: {count:,}" for tag, count in teacher["attempts"].items())
    baselines = ", ".join(f"{name} {100 * cell['micro']:.1f}" for name, cell in summary["baselines"].items())
    return [
        "indented: of one greedy vote; consistent: right verdicts whose reasoning agrees",
        f"StableReinforce over SFT, one sampled vote, paired: {_points(summary['rl_gain_sampled_at_1'])}",
        f"teacher: {teacher['num_requests']:,} requests; attempts {tags}; "
        f"Spearman of level and tag {teacher['level_tag_spearman']:.2f}",
        f"baselines: {baselines}",
        _time(summary["seconds"]),
    ]


def _time(seconds: dict[str, float]) -> str:
    if "total" in seconds:
        return f"total {seconds['total'] / 60:.1f} minutes"
    return "total: not measured, an earlier call had begun it; stages: " + ", ".join(
        f"{name} {s:.0f} s" for name, s in seconds.items()
    )


def print_tables(summary: dict[str, Any], console: Console) -> None:
    """The table, and the sentences below it."""
    num_pairs = summary["stages"]["rl"]["num_pairs"]
    shown = Table(title=f"{num_pairs:,} held-out pairs, each in both orders; percent, 95 % intervals over pairs")
    shown.add_column("percent")
    for stage in STAGES:
        shown.add_column(TITLES[stage], justify="right")
    for name, cells in table(summary):
        shown.add_row(name, *cells)
    console.print(shown)
    for sentence in sentences(summary):
        console.print(sentence, highlight=False)
