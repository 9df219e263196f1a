"""The whole pipeline by one command: it runs the stages' commands, as printed, and reports their results on one page."""

from __future__ import annotations

import hashlib
import json
import shlex
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from rewardlab.benchmarks.browser import JudgmentView, evenly_spread, judgments_to_show
from rewardlab.benchmarks.pairs import load_labelled_pairs
from rewardlab.config import RLConfig, SFTConfig, configs_folder, find_configs, load_config
from rewardlab.config.pipeline import PipelineConfig
from rewardlab.data.files import read_lines, write_atomic
from rewardlab.demo.build import TEST
from rewardlab.demo.summary import STAGES, TITLES, Summary, print_tables, summarize, summary_sentences, summary_table
from rewardlab.models.checkpoints import commit
from rewardlab.pipelines.runner import Pipeline, Stage, fill_stages
from rewardlab.processes import num_cores
from rewardlab.reporting.pages import page_environment
from rewardlab.reporting.plots import GOLD, INK, LEAF, WARM, Series, figure_uri, plot_fractions, plot_series

NUM_EXAMPLES = 12  # judgments, the same pairs before and after
SHOWN_KINDS = {"right": "Right in both orders", "flipped": "Another winner in the other order"}
MAIN_ROWS = ("invalid answers", "one sampled vote", "majority of 15", "one greedy vote", "  blank image", "  swap consistency")
WORDS = {
    "invalid answers": "fraction of sampled answers without a readable verdict; each counts as wrong",
    "one sampled vote": "accuracy of one answer sampled at temperature 1, each order a trial",
    "majority of N": "accuracy of the majority of N sampled answers to one order",
    "one greedy vote": "accuracy of the greedy answer; the indented rows belong to it",
    "digits (scans)": "of the pairs about scanned handwritten digits",
    "blank image": "with the picture replaced by a grey one: 50 is guessing; above it the texts reveal the answer",
    "another's image": "with the picture of another pair",
    "swap consistency": "fraction of pairs whose two orders name the same response",
    "consistent": "fraction of right verdicts whose reasoning names the same response",
    "position bias": "fraction of verdicts for the response shown first, minus one half",
}
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


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def digest_of(configs: Path) -> str:
    """Return a hash of the stages' configs."""
    used = (configs / f"{name}.yaml" for name in ("distill", "rl", "sft", "demo"))  # the stage itself reports a missing one
    return hashlib.sha256(b"".join(path.read_bytes() for path in used if path.is_file())).hexdigest()[:16]


def keys_of_processes(schema: type[SFTConfig] | type[RLConfig], path: Path, processes: int) -> list[str]:
    """Return KEY=VALUE by which a stage's batch is divided among processes."""
    config = load_config(schema, path)
    most = config.batch_size // processes
    return [f"micro_batch_size={most}"] if processes > 1 and config.micro_batch_size > most else []


def open_quickstart(
    out: Path,
    configs: str | Path,
    seed: int,
    *,
    from_scratch: bool = False,
    build: Sequence[str] = ("rewardlab", "demo", "build"),
    processes: int | None = None,
    pipeline: str | Path = "pipelines/quickstart",
) -> tuple[Pipeline, dict[str, Stage]]:
    """Return the quickstart's pipeline into ``out`` and its stages by name.

    ``configs`` is the folder of the stages' configs, by path or by name (:func:`rewardlab.config.find_configs`). ``build`` is
    the command that makes the pairs and the base model, which is trained if ``from_scratch``; ``pipeline`` has the stages. SFT
    and RL train in so many ``processes`` of one thread each, by default two: products of so small a model gain nothing from
    threads.
    """
    folder = find_configs(configs)
    ports, processes = [free_port() for _ in range(2)], processes or min(2, num_cores())
    launcher = shlex.join([sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"])
    values = {
        "out": out,
        "configs": folder.relative_to(configs_folder()) if folder.is_relative_to(configs_folder()) else folder,
        "seed": seed,
        "build": list(build),
        "base": ["--from-scratch"] if from_scratch else [],
        "port": ports[0],
        "url": f"http://127.0.0.1:{ports[0]}/v1",
        "sft_keys": keys_of_processes(SFTConfig, folder / "sft.yaml", processes),
        "rl_keys": keys_of_processes(RLConfig, folder / "rl.yaml", processes),
        "served_port": ports[1],
        "served": f"http://127.0.0.1:{ports[1]}",
    }
    settings = {"seed": seed, "configs": digest_of(folder), "from_scratch": from_scratch, "build": list(build)}
    offline = {"HF_HUB_OFFLINE": "1"}
    run = Pipeline(out, settings, parallel=num_cores(), launcher=launcher if processes > 1 else "", env=offline)
    stages = load_config(PipelineConfig, pipeline).stages
    return run, {stage.name: stage for stage in fill_stages(stages, values)}


def quickstart(out: Path, configs: str | Path, seed: int, **how: Any) -> Summary:
    """Run every stage that is not done, write ``out/report.html`` and ``out/summary.json``; return the summary. ``how`` is
    that of :func:`open_quickstart`."""
    start_time, start_cpu = time.monotonic(), time.process_time()
    run, stages = open_quickstart(out, configs, seed, **how)
    run.run(list(stages.values()))
    # A total is that of one undisturbed call: that of a resumed one would leave out what was done before.
    if not run.resumed:
        run.cpu_seconds["quickstart itself"] = time.process_time() - start_cpu
        run.cpu_seconds["total"] = sum(run.cpu_seconds.values())
        run.seconds["total"] = time.monotonic() - start_time
        run.write()
    commits = " and ".join(dict.fromkeys((run.commit, commit())))
    summary = summarize(out, seed=seed, commits=commits, seconds=run.seconds, cpu_seconds=run.cpu_seconds)
    write_page(summary, out)
    print_tables(summary, Console())
    return summary


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
        Series.of(TITLES[stage].replace("Reinforce", "\nReinforce"), [int(k) for k in curve], list(curve.values()), color)
        for stage, color in (("sft", WARM), ("rl", INK))
        if (curve := summary.stages[stage].votes)
    ]
    return figure_uri(plot_fractions(lines, xlabel="votes per order"))


def two_judgments(views: Sequence[JudgmentView]) -> list[tuple[str, JudgmentView]]:
    """Return (what it is, a judgment) of a pair that is right in both orders and of one whose winner changes with the order;
    fewer where there is none."""
    of_kind = {kind: next((view for view in views if kind in view.kinds), None) for kind in SHOWN_KINDS}
    return [(SHOWN_KINDS[kind], view) for kind, view in of_kind.items() if view is not None]


def write_page(summary: Summary, out: Path) -> None:
    """Write ``summary.json`` and the page ``report.html``."""
    write_atomic(out / "summary.json", json.dumps(summary.to_json(), indent=1, allow_nan=False) + "\n")
    all_rows = load_labelled_pairs(out / "demo" / TEST, images=None, with_images=True)
    rows, table = evenly_spread(all_rows, NUM_EXAMPLES), summary_table(summary)
    page = (
        page_environment("rewardlab.demo", "rewardlab.benchmarks")
        .get_template("quickstart.html")
        .render(
            summary=summary,
            titles=[TITLES[stage] for stage in STAGES],
            table=[row for row in table if row[0] in MAIN_ROWS],
            more=[row for row in table if row[0] not in MAIN_ROWS],
            words=WORDS,
            shown=two_judgments(judgments_to_show(all_rows, out / "bench" / "rl", 1)[0]),
            sentences=summary_sentences(summary),
            plots=[("Accuracy against votes", plot_stages(summary)), *training_curves(out)],
            before=judgments_to_show(rows, out / "bench" / "sft", NUM_EXAMPLES)[0],
            after=judgments_to_show(rows, out / "bench" / "rl", NUM_EXAMPLES)[0],
        )
    )
    write_atomic(out / "report.html", page)
