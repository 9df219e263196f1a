"""The whole pipeline by one command: it runs the stages' commands, as printed, and reports their results."""

from __future__ import annotations

import json
import time
import urllib.request
from pathlib import Path
from typing import Any

from rewardlab.data.images import to_data_url
from rewardlab.data.pairs import read_pairs
from rewardlab.demo.build import BASE, TEST, UNLIKE
from rewardlab.demo.page import write_page
from rewardlab.demo.pipeline import (
    RUN,
    Pipeline,
    bench_stage,
    console,
    free_port,
    open_pipeline,
    open_url,
    remote_models,
    start,
    stop_process,
    training_stages,
    wait_until_up,
)
from rewardlab.demo.summary import Summary, print_tables, summarize
from rewardlab.judging.spec import JudgeSpec
from rewardlab.models.checkpoints import commit
from rewardlab.processes import num_cores
from rewardlab.samplers.base import HF


def answer_over_http(judge: Path, test: Path, out: Path) -> tuple[dict[str, Any], float]:
    """Serve a judge, send it one held-out pair over HTTP, and stop it again; return its answer and the CPU seconds it took."""
    port = free_port()
    spec = ("serve", "--judge", str(JudgeSpec(HF, str(judge))), "--port", str(port), "max_tokens=64")
    console.print(f"[dim]$ rewardlab {' '.join(spec)}[/]", highlight=False, soft_wrap=True)
    process = start(spec, out / "logs" / "serve.log", threads=num_cores())
    try:
        wait_until_up(f"http://127.0.0.1:{port}/health", process)
        pair = read_pairs(test)[0]
        body = {
            "question": pair.question,
            "responses": pair.responses,
            "images": [to_data_url(image) for image in pair.images],
            "votes": 5,
        }
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/judge", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with open_url(request, timeout=60) as response:
            answer = dict(json.load(response))
    finally:
        cpu_seconds = stop_process(process)
    return answer, cpu_seconds


def quickstart(out: Path, configs: str | Path, seed: int) -> Summary:
    """Run every stage that is not done, write ``out/report.html`` and ``out/summary.json``; return the summary."""
    start_time, start_cpu = time.monotonic(), time.process_time()
    run = open_pipeline(out, configs, seed)
    times = run.times
    with remote_models(run) as url:
        _stages(run, url)
        served, times.cpu_seconds["endpoint"] = answer_over_http(out / "rl" / "final", out / "demo" / TEST, out)
    # A total is that of one undisturbed call: of a resumed one it would leave out what was done before.
    if not run.resumed:
        times.cpu_seconds["quickstart itself"] = time.process_time() - start_cpu
        times.cpu_seconds["total"] = sum(times.cpu_seconds.values())
        times.seconds["total"] = time.monotonic() - start_time
    times.write(out)
    started_at = json.loads((out / RUN).read_text(encoding="utf-8"))["commit"]
    commits = " and ".join(dict.fromkeys((started_at, commit())))
    summary = summarize(out, seed=seed, commits=commits, seconds=times.seconds, cpu_seconds=times.cpu_seconds, served=served)
    write_page(summary, out)
    print_tables(summary, console)
    return summary


def _stages(run: Pipeline, url: str) -> None:
    stages, sft, rl = training_stages(run, url), run.out / "sft" / "final", run.out / "rl" / "final"
    run.run(stages.base, stages.distill)
    # The base model says no verdict at all, whatever it is shown.
    run.run(stages.sft, bench_stage(run, "base", run.out / "demo" / BASE, votes=1, controls="greedy"))
    run.run(stages.rl, bench_stage(run, "sft", sft, votes=15))
    benches = [bench_stage(run, "rl", rl, votes=15)]
    if (run.out / "demo" / UNLIKE).exists():
        benches.append(bench_stage(run, "unlike", rl, votes=1, controls="greedy", pairs=UNLIKE))
    run.run(*benches)
