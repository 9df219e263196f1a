"""The quickstart's page: the table, the curves of the run, and judgments before and after."""

from __future__ import annotations

import json
from pathlib import Path

from rewardlab.benchmarks.browser import evenly_spread, judgments_to_show
from rewardlab.benchmarks.pairs.loader import load_labelled_pairs
from rewardlab.data.files import read_lines, write_atomic
from rewardlab.demo.build import TEST
from rewardlab.demo.summary import STAGES, TITLES, Summary, summary_sentences, summary_table
from rewardlab.reporting.pages import page_environment
from rewardlab.reporting.plots import GOLD, INK, LEAF, WARM, Line, Series, figure_uri, plot_curve, plot_series

NUM_EXAMPLES = 12  # judgments, the same pairs before and after


CURVES = {
    "Reward and its parts, per rollout batch": {
        "reward": ("reward", INK),
        "reward/accuracy": ("right verdicts", LEAF),
        "reward/consistency_of_correct": ("reasoning\nagrees", WARM),
        "reward/format": ("form kept", GOLD),
    },
    "Policy: entropy, filtered advantages, pre-clipped tokens": {
        "entropy": ("entropy", INK),
        "advantage/outlier_frac": ("filtered\nadvantages", WARM),
        "loss/preclip_frac": ("pre-clipped\ntokens", GOLD),
        "reward/invalid_frac": ("invalid\nanswers", LEAF),
    },
    "Tokens per rollout": {"completions/mean_length": ("tokens", INK)},
}


def training_curves(out: Path) -> list[tuple[str, str]]:
    """Return (caption, SVG data URL) of each plot of the RL metrics: the parts of the reward, and the policy's health."""
    rows, plots = [json.loads(line) for line in read_lines(out / "rl" / "metrics.jsonl")], []
    for caption, metrics in CURVES.items():
        series = []
        for metric, (label, color) in metrics.items():
            points = [(row["step"], float(row[metric])) for row in rows if metric in row]
            if points:
                series.append(Series(label, [step for step, _ in points], [value for _, value in points], color))
        plots.append((caption, figure_uri(plot_series(series, xlabel="optimizer step"))))
    return plots


def plot_stages(summary: Summary) -> str:
    """Return a plot of accuracy against votes, a line per stage, as a data URL."""
    lines = [
        Line(TITLES[stage].replace("Reinforce", "\nReinforce"), [int(k) for k in curve], list(curve.values()), color)
        for stage, color in (("sft", WARM), ("rl", INK))
        if (curve := summary.stages[stage].votes)
    ]
    return figure_uri(plot_curve(lines, None, xlabel="votes per order"))


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
