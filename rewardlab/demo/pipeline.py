"""The demonstration's stages: each is a command of ``rewardlab`` in a process of its own, run into one folder.

Stages that do not need each other run side by side, one core each: the teacher is asked while the base model learns to
see, and a judge is benchmarked while the next one trains.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from rewardlab.config import find_configs, name_of_config
from rewardlab.data.files import lock_folder, write_atomic
from rewardlab.demo.build import BASE, TEST, TRAIN, DemoConfig, build_pairs
from rewardlab.errors import ConfigError, EndpointError, RewardlabError
from rewardlab.judging.spec import JudgeSpec
from rewardlab.models.checkpoints import commit
from rewardlab.processes import end_with_parent, num_cores
from rewardlab.samplers.base import HF

console = Console()
RUN = "quickstart.json"


# Exit statuses of a command that did its work; 1 is a benchmark's of a judge without any verdict, as a base model may be.
DONE = (0, 1)


@dataclass(frozen=True)
class Stage:
    """A command of ``rewardlab``; it is skipped if the file ``result`` exists already. ``threads``: None for any number."""

    name: str
    arguments: tuple[str, ...]
    result: Path
    threads: int | None = None


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


def cpu_seconds_of_children() -> float:
    """Return the CPU seconds of all child processes that have ended and been waited for, and of theirs."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def stop_process(process: subprocess.Popen[bytes]) -> float:
    """End a process and wait until it is gone; return its CPU seconds, 0 if it had been waited for before."""
    before = cpu_seconds_of_children()
    process.terminate()
    try:
        process.wait(timeout=30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    return cpu_seconds_of_children() - before


@dataclass
class Times:
    """Seconds of the clock and of CPU by stage; a stage's CPU seconds are those of its process and of that one's children."""

    seconds: dict[str, float]
    cpu_seconds: dict[str, float]

    def line(self, name: str) -> str:
        """Return the times of one stage in words."""
        return f"{self.seconds[name]:.0f} s, {self.cpu_seconds[name]:.0f} s of CPU"

    def write(self, out: Path) -> None:
        """Write them into the run's record."""
        record = json.loads((out / RUN).read_text(encoding="utf-8"))
        rounded = {
            "seconds": {name: round(s, 1) for name, s in self.seconds.items()},
            "cpu_seconds": {name: round(s, 1) for name, s in self.cpu_seconds.items()},
        }
        write_atomic(out / RUN, json.dumps({**record, **rounded}, indent=1) + "\n")


def _open_run(out: Path, configs: Path, seed: int) -> Times:
    """Return the times of stages that earlier calls finished. Raise ConfigError if ``out`` holds another quickstart."""
    used = (configs / f"{name}.yaml" for name in ("distill", "rl", "sft", "demo"))  # the stage itself reports a missing one
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in used if path.is_file())).hexdigest()[:16]
    settings = {"seed": seed, "configs": digest}
    path = out / RUN
    if path.exists():
        record = json.loads(path.read_text(encoding="utf-8"))
        if differing := [name for name, value in settings.items() if record[name] != value]:
            raise ConfigError(f"{out}: holds a quickstart that differs in {' and '.join(differing)}; use another --out")
        return Times(dict(record["seconds"]), dict(record.get("cpu_seconds", {})))
    write_atomic(path, json.dumps({**settings, "commit": commit(), "seconds": {}, "cpu_seconds": {}}, indent=1) + "\n")
    return Times({}, {})


class Pipeline:
    """Runs stages into one folder. ``threads``: of each stage; by default the first of several side by side has every core."""

    def __init__(self, out: Path, configs: Path, seed: int, *, threads: int | None = None) -> None:
        self.out, self.configs, self.seed, self.threads = out, configs, seed, threads
        self.resumed = (out / RUN).exists()
        self.times = _open_run(out, configs, seed)

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
                threads = stage.threads or self.threads or (1 if running else num_cores())
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
                    before = cpu_seconds_of_children()
                    if process.poll() is None:
                        continue
                    self.times.cpu_seconds[stage.name] = cpu_seconds_of_children() - before
                    running.remove((stage, process))
                    if process.returncode not in DONE or not stage.result.exists():
                        tail = self._log(stage).read_text(encoding="utf-8", errors="replace")[-2000:]
                        raise RewardlabError(f"stage {stage.name} failed; the end of {self._log(stage)}:\n{tail}")
                    self.times.seconds[stage.name] = time.monotonic() - start_time
                    self.times.write(self.out)
                    console.print(f"  {stage.name}: {self.times.line(stage.name)}", highlight=False)
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


@contextmanager
def remote_models(run: Pipeline) -> Iterator[str]:
    """Make the pairs, and serve the demonstration's teacher and checker of them; yield the URL of their API."""
    demo = run.out / "demo"
    build_pairs(demo, DemoConfig.load(run.config("demo"), seed=run.seed))
    port = free_port()
    url = f"http://127.0.0.1:{port}/v1"
    arguments = ("demo", "serve", "--folder", str(demo), "--port", str(port), "--seed", str(run.seed))
    server = start(arguments, run.out / "logs" / "demo.log", threads=1)
    try:
        wait_until_up(f"{url}/models", server)
        yield url
    finally:
        run.times.cpu_seconds["teacher and checker"] = stop_process(server)


def open_pipeline(out: Path, configs: str | Path, seed: int, *, threads: int | None = None) -> Pipeline:
    """Return a pipeline into ``out``, which is this process's alone from now on.

    ``configs`` is the folder of the stages' configs, by path or by name (:func:`rewardlab.config.find_configs`).
    """
    lock_folder(out)
    folder = find_configs(configs)
    if (folder / "world.yaml").exists() and not (folder / "demo.yaml").exists():
        raise ConfigError(f"{folder}: world.yaml is now called demo.yaml; rename it")
    return Pipeline(out, folder, seed, threads=threads)


@dataclass(frozen=True)
class TrainingStages:
    """What makes the judge: ``base`` and ``distill`` need nothing, ``sft`` both, ``rl`` the three."""

    base: Stage
    distill: Stage
    sft: Stage
    rl: Stage


def training_stages(run: Pipeline, url: str) -> TrainingStages:
    """Return the stages whose last leaves the judge in ``rl/final``; ``url`` answers for the teacher and the checker."""
    out, seed = run.out, str(run.seed)
    demo, distilled = out / "demo", str(out / "distill" / "distilled.parquet")

    def train(stage: str, model: Path, *more: str) -> Stage:
        return run.stage(
            stage,
            f"{stage}/final/rewardlab.json",
            *(stage, "--data", distilled, "--model", str(model), "--config", run.config(stage), "--seed", seed, *more),
            *("--out", str(out / stage)),
        )

    base = run.stage(
        "base model",
        f"demo/{BASE}/config.json",
        *("demo", "build", "--config", run.config("demo"), "--seed", seed, "--out", str(demo)),
    )
    return TrainingStages(
        base=replace(base, threads=1),  # with two it takes nearly twice the CPU seconds, and no less by the clock
        distill=run.stage(
            "distill",
            "distill/statistics.json",
            *("distill", "--data", str(demo / TRAIN), "--config", run.config("distill"), "--base-url", url),
            *("--seed", seed, "--out", str(out / "distill")),
        ),
        sft=train("sft", demo / BASE),
        rl=train("rl", out / "sft" / "final", "--consistency-url", url),
    )


def bench_stage(
    run: Pipeline, name: str, judge: Path, *, votes: int, controls: str = "greedy,blank,other", pairs: str = TEST
) -> Stage:
    """Return the stage that benchmarks a judge on a file of held-out pairs into ``bench/NAME``."""
    return run.stage(
        f"bench-{name}",
        f"bench/{name}/report.html",
        *("bench", "run", "pairs", "--data", str(run.out / "demo" / pairs), "template=plain"),
        *("--judge", str(JudgeSpec(HF, str(judge)))),
        *("--votes", str(votes), "max_tokens=64", "batch_size=480", "--controls", controls),
        *("--seed", str(run.seed), "--out", str(run.out / "bench" / name)),
    )
