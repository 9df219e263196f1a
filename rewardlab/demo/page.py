"""The quickstart's page: the table, the curves of the run, and judgments before and after."""

from __future__ import annotations

import json
from pathlib import Path

from matplotlib import pyplot as plt

from rewardlab.benchmarks.browser import evenly_spread, judgments_to_show
from rewardlab.benchmarks.pairs.loader import load_labelled_pairs
from rewardlab.data.files import read_lines, write_atomic
from rewardlab.demo.build import TEST
from rewardlab.demo.summary import STAGES, TITLES, Summary, summary_sentences, summary_table
from rewardlab.reporting.pages import page_environment
from rewardlab.reporting.plots import figure_uri

NUM_EXAMPLES = 12  # judgments, the same pairs before and after


def training_curves(out: Path) -> list[tuple[str, str]]:
    """Return (caption, SVG data URL) of each plot of the RL metrics: the parts of the reward, and the policy's health."""
    rows = [json.loads(line) for line in read_lines(out / "rl" / "metrics.jsonl")]
    groups = {
        "Reward and its parts, per rollout batch": (
            "reward",
            "reward/accuracy",
            "reward/consistency_of_correct",
            "reward/format",
        ),
        "Policy: entropy, filtered advantages, pre-clipped tokens": (
            "entropy",
            "advantage/outlier_frac",
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


def plot_stages(summary: Summary) -> str:
    """Return a plot of accuracy against votes, a line per stage, as a data URL."""
    figure, axes = plt.subplots(figsize=(6, 3.4))
    for stage in ("sft", "rl"):
        curve = summary.stages[stage].votes
        ks = [int(k) for k in curve]
        axes.plot(ks, [100 * c.accuracy for c in curve.values()], "o-", label=TITLES[stage])
        low, high = ([100 * c.interval[side] for c in curve.values()] for side in (0, 1))
        axes.fill_between(ks, low, high, alpha=0.2)
    axes.axhline(50, color="#888", ls="--", lw=1)
    axes.set(xlabel="K, votes per order", ylabel="accuracy, %")
    axes.legend(frameon=False)
    axes.grid(alpha=0.3)
    return figure_uri(figure)


def write_page(summary: Summary, out: Path) -> None:
    """Write ``summary.json`` and the page ``report.html``."""
    write_atomic(out / "summary.json", json.dumps(summary.to_json(), indent=1, allow_nan=False) + "\n")
    rows = evenly_spread(load_labelled_pairs(out / "demo" / TEST, images=None, with_images=True), NUM_EXAMPLES)
    page = (
        page_environment("rewardlab.demo", "rewardlab.benchmarks")
        .get_template("quickstart.html")
        .render(
            summary=summary,
            titles=[TITLES[stage] for stage in STAGES],
            table=summary_table(summary),
            sentences=summary_sentences(summary),
            plots=[("Accuracy against votes", plot_stages(summary)), *training_curves(out)],
            before=judgments_to_show(rows, out / "bench" / "sft", NUM_EXAMPLES)[0],
            after=judgments_to_show(rows, out / "bench" / "rl", NUM_EXAMPLES)[0],
        )
    )
    write_atomic(out / "report.html", page)
