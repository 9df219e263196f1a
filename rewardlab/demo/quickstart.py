"""The whole pipeline by one command: it runs the stages' commands, as printed, and reports their results.

Stages that do not need each other run side by side, one core each: the teacher is asked while the base model learns to
see, and a judge is benchmarked while the next one trains.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from rewardlab.config import find_configs, name_of_config
from rewardlab.data.files import lock_folder, write_atomic
from rewardlab.data.images import to_data_url
from rewardlab.data.pairs import read_pairs
from rewardlab.demo.build import BASE, TEST, TRAIN, DemoConfig, build_pairs
from rewardlab.demo.page import write_page
from rewardlab.demo.summary import Summary, print_tables, summarize
from rewardlab.errors import ConfigError, EndpointError, RewardlabError
from rewardlab.judging.spec import JudgeSpec
from rewardlab.models.checkpoints import commit
from rewardlab.processes import end_with_parent
from rewardlab.samplers.base import HF

console = Console()
RUN = "quickstart.json"


@dataclass(frozen=True)
class Stage:
    """A command of ``rewardlab``; it is skipped if the file ``result`` exists already."""

    name: str
    arguments: tuple[str, ...]
    result: Path


def num_cores() -> int:
    """Return the number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(arguments: Sequence[str], log: Path, *, threads: int) -> subprocess.Popen[bytes]:
    """Start a `rewardlab` command in another process, its output in ``log``."""
    log.parent.mkdir(parents=True, exist_ok=True)
    # Waiting threads may spin for a moment only: two processes on two cores else slow each other several-fold, and one
    # whose threads never spin loses a quarter of its speed.
    env = {**os.environ, "OMP_NUM_THREADS": str(threads), "GOMP_SPINCOUNT": "1000", "HF_HUB_OFFLINE": "1"}
    env["NO_PROXY"] = ",".join(filter(None, [os.environ.get("NO_PROXY"), "127.0.0.1"]))
    with log.open("ab") as sink:
        return subprocess.Popen(
            [sys.executable, "-m", "rewardlab.cli", *arguments],
            stdout=sink,
            stderr=sink,
            env=env,
            preexec_fn=end_with_parent,
        )


def open_url(request: str | urllib.request.Request, timeout: float) -> Any:
    """Open a URL of this machine, never through a proxy."""
    return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=timeout)


def stop_process(process: subprocess.Popen[bytes]) -> None:
    """End a process and wait until it is gone."""
    process.terminate()
    try:
        process.wait(timeout=30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _open_run(out: Path, configs: Path, seed: int) -> dict[str, float]:
    """Return the seconds of stages that earlier calls finished. Raise ConfigError if ``out`` holds another quickstart."""
    used = (configs / f"{name}.yaml" for name in ("distill", "rl", "sft", "demo"))  # the stage itself reports a missing one
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in used if path.is_file())).hexdigest()[:16]
    settings = {"seed": seed, "configs": digest}
    path = out / RUN
    if path.exists():
        record = json.loads(path.read_text(encoding="utf-8"))
        if differing := [name for name, value in settings.items() if record[name] != value]:
            raise ConfigError(f"{out}: holds a quickstart that differs in {' and '.join(differing)}; use another --out")
        return dict(record["seconds"])
    write_atomic(path, json.dumps({**settings, "commit": commit(), "seconds": {}}, indent=1) + "\n")
    return {}


def _record(out: Path, seconds: dict[str, float]) -> None:
    record = json.loads((out / RUN).read_text(encoding="utf-8"))
    write_atomic(out / RUN, json.dumps({**record, "seconds": {n: round(s, 1) for n, s in seconds.items()}}, indent=1) + "\n")


class Pipeline:
    """Runs stages into one folder."""

    def __init__(self, out: Path, configs: Path, seed: int) -> None:
        self.out, self.configs, self.seed = out, configs, seed
        self.resumed = (out / RUN).exists()
        self.seconds: dict[str, float] = _open_run(out, configs, seed)

    def config(self, stage: str) -> str:
        """Return a stage's config as its command takes it."""
        return name_of_config(self.configs / f"{stage}.yaml")

    def stage(self, name: str, result: str, *arguments: str) -> Stage:
        return Stage(name, tuple(arguments), self.out / result)

    def run(self, *stages: Stage) -> None:
        """Run stages side by side, sharing the cores. Raise RewardlabError, with the end of the log, if one fails."""
        pending = [stage for stage in stages if not stage.result.exists()]
        start_time = time.monotonic()
        running: list[tuple[Stage, subprocess.Popen[bytes]]] = []
        for stage in stages:
            note = "" if stage in pending else "   [green](done before)[/]"
            console.print(f"[dim]$ rewardlab {' '.join(stage.arguments)}[/]{note}", highlight=False, soft_wrap=True)
            if stage in pending:
                # The first stage is the long one: it gets every core as soon as the others are done.
                threads = 1 if running else num_cores()
                running.append((stage, start(stage.arguments, self._log(stage), threads=threads)))
        try:
            self._wait(running, start_time)
        finally:
            for _, process in running:
                stop_process(process)

    def _log(self, stage: Stage) -> Path:
        return self.out / "logs" / f"{stage.name}.log"

    def _wait(self, running: list[tuple[Stage, subprocess.Popen[bytes]]], start_time: float) -> None:
        names = " + ".join(stage.name for stage, _ in running)
        with console.status(f"{names} ...") as status:
            while running:
                for stage, process in list(running):
                    if process.poll() is None:
                        continue
                    running.remove((stage, process))
                    if process.returncode:
                        tail = self._log(stage).read_text(encoding="utf-8", errors="replace")[-2000:]
                        raise RewardlabError(f"stage {stage.name} failed; the end of {self._log(stage)}:\n{tail}")
                    self.seconds[stage.name] = time.monotonic() - start_time
                    _record(self.out, self.seconds)
                    console.print(f"  {stage.name}: {self.seconds[stage.name]:.0f} s", highlight=False)
                status.update(f"{names} ... {time.monotonic() - start_time:.0f} s")
                time.sleep(0.2)


def wait_until_up(url: str, process: subprocess.Popen[bytes], *, deadline_s: float = 90.0) -> None:
    """Raise EndpointError unless ``url`` answers before the deadline, while the process lives."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end and process.poll() is None:
        try:
            with open_url(url, timeout=2):
                return
        except OSError:
            time.sleep(0.2)
    raise EndpointError(f"{url} did not come up within {deadline_s:g} s")


def ask_endpoint(judge: Path, test: Path, out: Path) -> dict[str, Any]:
    """Serve a judge, send it one held-out pair over HTTP, and stop it again; return its answer."""
    port = free_port()
    spec = ("serve", "--judge", str(JudgeSpec(HF, str(judge))), "--port", str(port), "--max-tokens", "64")
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
        with open_url(request, timeout=60) as answer:
            return dict(json.load(answer))
    finally:
        stop_process(process)


def quickstart(out: Path, configs: str | Path, seed: int) -> Summary:
    """Run every stage that is not done, write ``out/report.html`` and ``out/summary.json``; return the summary.

    ``configs`` is the folder of the stages' configs, by path or by name (:func:`rewardlab.config.find_configs`).
    """
    start_time = time.monotonic()
    lock_folder(out)
    folder = find_configs(configs)
    if (folder / "world.yaml").exists() and not (folder / "demo.yaml").exists():
        raise ConfigError(f"{folder}: world.yaml is now called demo.yaml; rename it")
    demo, run = out / "demo", Pipeline(out, folder, seed)
    build_pairs(demo, DemoConfig.load(run.config("demo"), seed=seed))
    port = free_port()
    url = f"http://127.0.0.1:{port}/v1"
    server = start(
        ("demo", "serve", "--folder", str(demo), "--port", str(port), "--seed", str(seed)),
        out / "logs" / "demo.log",
        threads=1,
    )
    try:
        wait_until_up(f"{url}/models", server)
        _stages(run, demo, url)
        served = ask_endpoint(out / "rl" / "final", demo / TEST, out)
    finally:
        stop_process(server)
    # A total is that of one undisturbed call: of a resumed one it would leave out what was done before.
    if not run.resumed:
        run.seconds["total"] = time.monotonic() - start_time
    _record(out, run.seconds)
    started_at = json.loads((out / RUN).read_text(encoding="utf-8"))["commit"]
    commits = " and ".join(dict.fromkeys((started_at, commit())))
    summary = summarize(out, seed=seed, commits=commits, seconds=run.seconds, served=served)
    write_page(summary, out)
    print_tables(summary, console)
    return summary


def _stages(run: Pipeline, demo: Path, url: str) -> None:
    out, seed = run.out, str(run.seed)
    distilled = str(out / "distill" / "distilled.parquet")

    def bench(name: str, judge: Path, votes: int) -> Stage:
        return run.stage(
            f"bench-{name}",
            f"bench/{name}/report.html",
            *("bench", "run", "pairs", "--data", str(demo / TEST), "--template", "plain"),
            *("--judge", str(JudgeSpec(HF, str(judge)))),
            *("--votes", str(votes), "--max-tokens", "64", "--batch-size", "480", "--controls", "greedy,blank,other"),
            *("--seed", seed, "--out", str(out / "bench" / name)),
        )

    def train(name: str, stage: str, model: Path) -> Stage:
        extra = ("--consistency-url", url) if stage == "rl" else ()
        return run.stage(
            name,
            f"{stage}/final/rewardlab.json",
            *(stage, "--data", distilled, "--model", str(model), "--config", run.config(stage), "--seed", seed, *extra),
            *("--out", str(out / stage)),
        )

    run.run(
        run.stage(
            "base model",
            f"demo/{BASE}/config.json",
            *("demo", "build", "--config", run.config("demo"), "--seed", seed, "--out", str(demo)),
        ),
        run.stage(
            "distill",
            "distill/statistics.json",
            *("distill", "--data", str(demo / TRAIN), "--config", run.config("distill"), "--base-url", url),
            *("--seed", seed, "--out", str(out / "distill")),
        ),
    )
    run.run(train("sft", "sft", demo / BASE), bench("base", demo / BASE, 1))
    run.run(train("rl", "rl", out / "sft" / "final"), bench("sft", out / "sft" / "final", 15))
    run.run(bench("rl", out / "rl" / "final", 15))
