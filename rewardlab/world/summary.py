"""What the quickstart found: one summary, printed as a table and drawn as one page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from rewardlab.checkpoints import commit, versions
from rewardlab.metrics import mean_interval, paired_difference
from rewardlab.types import choice_of, Order, Choice
from rewardlab.data.pairs import read_pairs
from rewardlab.verdicts import reasoning_of
from rewardlab.world.build import TEST
from rewardlab.world.server import favoured

STAGES = ("base", "sft", "rl")
TITLES = {"base": "base model", "sft": "after SFT", "rl": "after StableReinforce"}


def _report(out: Path, stage: str) -> dict[str, Any]:
    return dict(json.loads((out / "bench" / stage / "report.json").read_text(encoding="utf-8")))


def _votes(out: Path, stage: str) -> dict[int, list[dict[str, Any]]]:
    lines = (out / "bench" / stage / "votes.jsonl").read_text(encoding="utf-8").splitlines()[1:]
    entries = [json.loads(line) for line in lines]
    return {entry["row"]: entry["votes"] for entry in entries if entry["pass"] == "votes"}


def _is_right(vote: dict[str, Any], preferred: int) -> bool:
    return vote["choice"] == choice_of(preferred, Order(vote["order"])).value


def consistency(votes: dict[int, list[dict[str, Any]]], preferred: list[int]) -> dict[str, float]:
    """Among right verdicts: the share whose reasoning favours the same response, the opposite one, neither (by pair)."""
    counts = {"agrees": 0, "contradicts": 0, "unclear": 0}
    for row, cast in votes.items():
        for vote in cast:
            if _is_right(vote, preferred[row]):
                side = favoured(reasoning_of(vote["text"]))
                said = 1 if vote["choice"] == Choice.FIRST.value else 2
                counts["unclear" if side is None else "agrees" if side == said else "contradicts"] += 1
    total = max(1, sum(counts.values()))
    return {name: count / total for name, count in counts.items()}


def sampled_scores(votes: dict[int, list[dict[str, Any]]], preferred: list[int]) -> dict[str, float]:
    """Accuracy of a single sampled vote, per pair, over all its votes in both orders."""
    return {str(row): sum(_is_right(v, preferred[row]) for v in cast) / len(cast) for row, cast in votes.items()}


def stage_summary(report: dict[str, Any], votes: dict[int, list[dict[str, Any]]], preferred: list[int]) -> dict[str, Any]:
    """The numbers of one stage's row."""
    curve = {str(c["k"]): {"accuracy": c["accuracy"], "interval": c["interval"]} for c in report["k_curve"]}
    controls = report["controls"]
    digits = controls["greedy"]["slices"]["source"].get("digits")
    return {
        "num_pairs": report["num_pairs"],
        "invalid_rate": report["invalid_rate"],
        "sampled_at_1": curve["1"],
        "votes": curve,
        **{name: {"accuracy": c["accuracy"]["micro"], "interval": c["interval"]} for name, c in controls.items()},
        "digits_greedy": digits,
        "swap_consistency_greedy": controls["greedy"]["swap_consistency"],
        "swap_consistency": report["swap_consistency"],
        "position_lean": report["position_lean"],
        "reasoning": consistency(votes, preferred),
        "tokens_per_vote": report["tokens_per_vote"],
    }


def summarize(out: Path, *, seed: int, seconds: dict[str, float], total_s: float, served: dict[str, Any]) -> dict[str, Any]:
    """Everything the quickstart reports, from the files its stages wrote."""
    preferred = [int(pair.preferred or 0) for pair in read_pairs(out / "world" / TEST)]
    votes = {stage: _votes(out, stage) for stage in STAGES}
    scores = {stage: sampled_scores(votes[stage], preferred) for stage in STAGES}
    gain, gain_interval = paired_difference(scores["sft"], scores["rl"])
    return {
        "seed": seed,
        "commit": commit(),
        "versions": versions(),
        "seconds": {**{name: round(s, 1) for name, s in seconds.items()}, "total": round(total_s, 1)},
        "teacher": json.loads((out / "distill" / "statistics.json").read_text(encoding="utf-8")),
        "stages": {stage: stage_summary(_report(out, stage), votes[stage], preferred) for stage in STAGES},
        "rl_gain_sampled_at_1": {"mean": gain, "interval": list(gain_interval)},
        "baselines": _report(out, "rl")["baselines"],
        "served": served,
    }


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        low, high = value["interval"]
        return f"{100 * value['accuracy']:.1f} [{100 * low:.1f}, {100 * high:.1f}]"
    return "–" if value is None or value != value else f"{100 * value:.1f}"


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
        row("  of these, digits (real scans)", "digits_greedy"),
        row("  with a blank image", "blank"),
        row("  with another pair's image", "other"),
        row("reasoning supports a right verdict", "reasoning", "agrees"),
        row("swap consistency, greedy", "swap_consistency_greedy"),
        row("position lean (points)", "position_lean"),
    ]


def print_tables(summary: dict[str, Any], console: Console) -> None:
    """The table, and the sentences around it."""
    num_pairs = summary["stages"]["rl"]["num_pairs"]
    shown = Table(title=f"{num_pairs:,} held-out pairs, each in both orders; percent, 95 % intervals over pairs")
    shown.add_column("accuracy of ...")
    for stage in STAGES:
        shown.add_column(TITLES[stage], justify="right")
    for name, cells in table(summary):
        shown.add_row(name, *cells)
    console.print(shown)
    gain = summary["rl_gain_sampled_at_1"]
    low, high = gain["interval"]
    console.print(f"StableReinforce over SFT, one sampled vote, paired: {100 * gain['mean']:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}] points")
    teacher = summary["teacher"]
    tags = ", ".join(f"{tag}: {count:,}" for tag, count in teacher["attempts"].items())
    console.print(f"teacher: {teacher['num_requests']:,} requests; attempts {tags}; Spearman of level and tag {teacher['level_tag_spearman']:.2f}")
    lines = ", ".join(f"{name} {100 * b['micro']:.1f}" for name, b in summary["baselines"].items())
    console.print(f"baselines: {lines}")
    served = summary["served"]
    console.print(f"endpoint: outcome {served['outcome']}, p(first better) {served['p_first_better']}, {served['num_valid']} valid votes")
    console.print(f"total {summary['seconds']['total'] / 60:.1f} minutes")


def training_curves(out: Path) -> list[tuple[str, str]]:
    """(caption, SVG data URL) of what RL logged: every part of the reward, and the policy's health."""
    from matplotlib import pyplot as plt

    from rewardlab.benchmarks.report import figure_uri

    rows = [json.loads(line) for line in (out / "rl" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    groups = {
        "Reward and its parts, per rollout batch": ("reward", "reward/accuracy", "reward/consistency_of_right", "reward/format"),
        "Policy: entropy, filtered advantages, pre-clipped tokens": (
            "entropy",
            "advantage/filtered_frac",
            "loss/preclip_frac",
            "reward/invalid_frac",
        ),
        "Tokens per rollout": ("completions/mean_length",),
    }
    plots = []
    for caption, names in groups.items():
        figure, axes = plt.subplots(figsize=(6, 3))
        for name in names:
            points = [(row["step"], float(row[name])) for row in rows if name in row]
            if points:
                axes.plot(*zip(*points, strict=True), label=name)
        axes.set(xlabel="optimizer step")
        axes.legend(frameon=False, fontsize=8)
        axes.grid(alpha=0.3)
        plots.append((caption, figure_uri(figure)))
    return plots


def plot_stages(summary: dict[str, Any]) -> str:
    """Accuracy against votes, a line per stage."""
    from matplotlib import pyplot as plt

    from rewardlab.benchmarks.report import figure_uri

    figure, axes = plt.subplots(figsize=(6, 3.4))
    for stage in ("sft", "rl"):
        curve = summary["stages"][stage]["votes"]
        ks = [int(k) for k in curve]
        axes.plot(ks, [100 * c["accuracy"] for c in curve.values()], "o-", label=TITLES[stage])
        low, high = ([100 * c["interval"][side] for c in curve.values()] for side in (0, 1))
        axes.fill_between(ks, low, high, alpha=0.2)
    axes.axhline(50, color="#888", ls="--", lw=1)
    axes.set(xlabel="K, votes per order", ylabel="accuracy, %")
    axes.legend(frameon=False)
    axes.grid(alpha=0.3)
    return figure_uri(figure)


def write_summary(summary: dict[str, Any], out: Path) -> None:
    """Write ``summary.json`` and the page ``report.html``."""
    from rewardlab.benchmarks.base import Row
    from rewardlab.benchmarks.own_pairs import OwnPairs
    from rewardlab.benchmarks.report import environment, judgments

    (out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    rows: list[Row] = OwnPairs().load(out / "world" / TEST, images=None, with_images=True)
    page = environment().get_template("quickstart.html").render(
        summary=summary,
        titles=[TITLES[stage] for stage in STAGES],
        table=table(summary),
        plots=[("Accuracy against votes", plot_stages(summary)), *training_curves(out)],
        before=judgments(rows, out / "bench" / "sft" / "votes.jsonl"),
        after=judgments(rows, out / "bench" / "rl" / "votes.jsonl"),
    )
    (out / "report.html").write_text(page, encoding="utf-8")
