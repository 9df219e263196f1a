"""Run the stages of a pipeline into one folder: each a command in a process of its own, side by side where they may be.

A finished stage is recorded in ``pipeline.json`` with its seconds, so that the same call after a kill runs what is left; a
failed one is recorded with its status. A stage's output is in ``logs/``; if a stage fails, the error has the end of it.
"""

from __future__ import annotations

import json
import os
import resource
import shlex
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any, Protocol

from rewardlab.config.pipeline import StageConfig
from rewardlab.data.files import lock_folder, write_atomic
from rewardlab.errors import ConfigError, EndpointError, RewardlabError
from rewardlab.models.checkpoints import commit
from rewardlab.processes import end_with_parent
from rewardlab.reporting.progress import log_line

RECORD, LOGS = "pipeline.json", "logs"
TAIL = 2000  # characters of a failed stage's log
LINE_S = 60.0  # between two lines that say what runs
UP_S = 90.0  # that a server may take to come up


class Process(Protocol):
    """A running command, as ``subprocess.Popen`` is one."""

    returncode: Any

    def poll(self) -> int | None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...
    def wait(self, timeout: float | None = None) -> int: ...


@dataclass(frozen=True)
class Stage:
    """A stage of a pipeline whose values are filled in: ``words`` are its command line."""

    name: str
    words: tuple[str, ...]
    config: StageConfig

    @property
    def line(self) -> str:
        return shlex.join(self.words)


@dataclass(frozen=True)
class RunningStage:
    """A stage that runs ``since`` a moment of the monotonic clock."""

    stage: Stage
    process: Process
    since: float


def fill_stages(stages: Mapping[str, StageConfig], values: Mapping[str, Any]) -> list[Stage]:
    """Return the stages with ``{name}`` replaced by a value, in their command lines, results and URLs. A word that is one list
    becomes its items. Raise ConfigError for a command that is neither `rewardlab` nor `python`, and for an unknown value."""
    filled = []
    for name, stage in stages.items():
        try:
            words = [part for word in shlex.split(stage.run) for part in _fill(word, values)]
            config = stage.model_copy(update={"result": stage.result.format(**values), "ready": stage.ready.format(**values)})
        except (LookupError, ValueError, AttributeError, TypeError) as error:
            raise ConfigError(
                f"stage {name}: {stage.run!r} cannot be filled in ({error}); values are {', '.join(values)}"
            ) from error
        if not words or words[0] not in ("rewardlab", "python"):
            raise ConfigError(f"stage {name}: {stage.run!r}: expected a command line of rewardlab or python")
        filled.append(Stage(name, tuple(words), config))
    return filled


def _fill(word: str, values: Mapping[str, Any]) -> list[str]:
    value = values.get(word[1:-1]) if word.startswith("{") and word.endswith("}") else None
    return [str(item) for item in value] if isinstance(value, list | tuple) else [word.format(**values)]


def launcher_words(launcher: str) -> list[str]:
    """Return the words of a launcher, none without one. Raise ConfigError for a program that is not installed."""
    try:
        words = shlex.split(launcher)
    except ValueError as error:
        raise ConfigError(f"launcher {launcher}: cannot be read ({error}); expected a command line") from error
    if words and shutil.which(words[0]) is None:
        raise ConfigError(
            f"launcher {launcher}: cannot find the program {words[0]}; expected a command line such as `accelerate launch "
            "--num_processes 8`"
        )
    return words


def start_process(words: Sequence[str], log: Path, env: Mapping[str, str], folder: Path | None) -> subprocess.Popen[bytes]:
    """Start a command in a process that ends with this one, its output in ``log``; ``env`` is laid over the environment."""
    log.parent.mkdir(parents=True, exist_ok=True)
    local = ",".join(filter(None, [os.environ.get("NO_PROXY"), "127.0.0.1"]))
    with log.open("ab") as sink:
        return subprocess.Popen(
            words,
            stdout=sink,
            stderr=sink,
            env={**os.environ, "NO_PROXY": local, **env},
            cwd=folder,
            preexec_fn=end_with_parent,
        )


Start = Callable[[Sequence[str], Path, Mapping[str, str], Path | None], Process]


def cpu_seconds_of_children() -> float:
    """Return the CPU seconds of all child processes that have ended and been waited for, and of theirs."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def end_process(process: Process) -> float:
    """End a process and wait until it is gone; return its CPU seconds, 0 if it had been waited for before."""
    before = cpu_seconds_of_children()
    process.terminate()  # a launcher that is killed would leave its processes
    try:
        process.wait(timeout=30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    return cpu_seconds_of_children() - before


def open_url(request: str | urllib.request.Request, timeout: float) -> Any:
    """Open a URL of this machine, never through a proxy."""
    return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=timeout)


@dataclass
class Pipeline:
    """A folder of stages, which is this process's alone from now on; ``settings`` are what its results depend on.

    At most ``parallel`` stages run at a time, with ``env`` laid over the environment. ``folder`` is their working directory, by
    default this process's.
    Raise ConfigError if ``out`` was begun with other settings.
    """

    out: Path
    settings: Mapping[str, Any]
    parallel: int = 1
    folder: Path | None = None
    launcher: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    start: Start = start_process
    seconds: dict[str, float] = field(default_factory=dict)
    cpu_seconds: dict[str, float] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._launcher = launcher_words(self.launcher)
        lock_folder(self.out)
        path = self.out / RECORD
        self.resumed = path.exists()
        if not self.resumed:
            self.commit = commit()
            self.write()
            return
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            before, self.commit = dict(record["settings"]), record["commit"]
            self.seconds, self.cpu_seconds = dict(record["seconds"]), dict(record["cpu_seconds"])
            self.failed = dict(record["failed"])
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path}: the file is corrupt; delete it (finished stages then run again)") from error
        settings = json.loads(json.dumps(dict(self.settings)))
        if changed := [name for name in settings if settings[name] != before.get(name)]:
            raise ConfigError(
                f"{self.out}: was started with other settings "
                f"({', '.join(changed)}); choose another --out, or give the same ones"
            )

    def write(self) -> None:
        """Write the record of stages that have ended."""
        times = {
            "seconds": {name: round(s, 1) for name, s in self.seconds.items()},
            "cpu_seconds": {name: round(s, 1) for name, s in self.cpu_seconds.items()},
        }
        record = {"settings": dict(self.settings), "commit": self.commit, **times, "failed": self.failed}
        write_atomic(self.out / RECORD, json.dumps(record, indent=1) + "\n")

    def is_done(self, stage: Stage) -> bool:
        """Return whether a stage was finished before. A kill may come between its result and its record."""
        is_finished = stage.name in self.seconds or (stage.config.is_atomic and stage.name not in self.failed)
        return is_finished and (self.out / stage.config.result).exists()

    def run(self, stages: Sequence[Stage]) -> None:
        """Run the stages that are not done, each once those are that it needs. Raise RewardlabError, with the end of the log,
        if one fails, and EndpointError for a server that does not come up; the others are ended then."""
        waiting = dict[str, Stage]()
        for stage in stages:
            done = not stage.config.ready and self.is_done(stage)
            log_line(f"$ {stage.line}{'   (done before)' if done else ''}")
            if not done:
                waiting[stage.name] = stage
        running = dict[str, RunningStage]()
        last = time.monotonic()
        try:
            while any(not stage.config.ready for stage in [*waiting.values(), *(run.stage for run in running.values())]):
                chosen = self._next(waiting, running)
                if not chosen and all(run.stage.config.ready for run in running.values()):
                    raise ConfigError(f"stages {', '.join(waiting)} form a cycle; remove one of their needs")
                for stage in chosen:
                    running[stage.name] = RunningStage(waiting.pop(stage.name), self._start(stage), time.monotonic())
                    if stage.config.ready:
                        self._wait_until_up(running[stage.name])
                self._collect(running)
                self._stop_servers(waiting, running)
                if time.monotonic() - last > LINE_S:
                    last = time.monotonic()
                    log_line(" + ".join(f"{name} {last - run.since:.0f} s" for name, run in running.items()) + " ...")
                time.sleep(0.05)
        finally:
            for name, run in running.items():
                self._stop(name, run)
            self.write()

    def _stop(self, name: str, run: RunningStage) -> None:
        self.cpu_seconds[name] = self.cpu_seconds.get(name, 0.0) + end_process(run.process)

    def _stop_servers(self, waiting: Mapping[str, Stage], running: dict[str, RunningStage]) -> None:
        """End the servers that no stage needs any more."""
        needed = {
            need for stage in (*waiting.values(), *(run.stage for run in running.values())) for need in stage.config.needs
        }
        for name, run in list(running.items()):
            if run.stage.config.ready and name not in needed:
                self._stop(name, running.pop(name))

    def _next(self, waiting: Mapping[str, Stage], running: Mapping[str, RunningStage]) -> list[Stage]:
        """Return the stages to start now: servers that are needed, else as many others as there is room for."""
        unmet = {*waiting, *(name for name, run in running.items() if not run.stage.config.ready)}
        startable = [stage for stage in waiting.values() if not unmet.intersection(stage.config.needs)]
        needed = {need for stage in waiting.values() for need in stage.config.needs}
        servers = [stage for stage in startable if stage.config.ready and stage.name in needed]
        free = self.parallel - sum(not run.stage.config.ready for run in running.values())
        return servers or [stage for stage in startable if not stage.config.ready][: max(0, free)]

    def _start(self, stage: Stage) -> Process:
        program, *rest = stage.words
        launcher = self._launcher if stage.config.launched else []
        python = launcher or [sys.executable]
        words = [*python, "-m", "rewardlab.cli", *rest] if program == "rewardlab" else [*python, *rest]
        env = dict(self.env)
        if threads := stage.config.threads:
            # Waiting threads may spin for a moment only: two processes on two cores else slow each other several-fold, and one
            # whose threads never spin loses a quarter of its speed.
            env |= {"OMP_NUM_THREADS": str(threads), "GOMP_SPINCOUNT": "1000"}
        return self.start(words, self.log(stage), env, self.folder)

    def log(self, stage: Stage) -> Path:
        return self.out / LOGS / f"{stage.name}.log"

    def _wait_until_up(self, server: RunningStage) -> None:
        url, end = server.stage.config.ready, time.monotonic() + UP_S
        while time.monotonic() < end and server.process.poll() is None:
            try:
                with open_url(url, timeout=2):
                    return
            except (OSError, HTTPException):
                time.sleep(0.1)
        name = server.stage.name
        raise EndpointError(f"stage {name}: {url} did not come up within {UP_S:g} s; {self._end_of_log(server.stage)}")

    def _collect(self, running: dict[str, RunningStage]) -> None:
        """Record the stages that have ended; a server that ends by itself has failed."""
        for name, run in list(running.items()):
            before = cpu_seconds_of_children()
            if run.process.poll() is None:
                continue
            del running[name]
            self.cpu_seconds[name] = self.cpu_seconds.get(name, 0.0) + cpu_seconds_of_children() - before
            status, config = run.process.returncode, run.stage.config
            if config.ready or status not in config.statuses:
                self.failed[name] = status
                self.seconds.pop(name, None)  # of an earlier call, whose result is gone
                raise RewardlabError(f"stage {name} failed with status {status}; {self._end_of_log(run.stage)}")
            if not (self.out / config.result).exists():
                raise RewardlabError(f"stage {name} did not write {config.result}; {self._end_of_log(run.stage)}")
            self.failed.pop(name, None)
            self.seconds[name] = time.monotonic() - run.since
            self.write()
            log_line(f"  {name}: {self.seconds[name]:.0f} s, {self.cpu_seconds[name]:.0f} s of CPU")

    def _end_of_log(self, stage: Stage) -> str:
        path = self.log(stage)
        text = path.read_text(encoding="utf-8", errors="replace")[-TAIL:] if path.exists() else ""
        return f"run the same command again to resume; the end of {path}:\n{text}"
