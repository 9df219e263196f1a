"""All trials of a study, on processes of one thread each; a finished trial is one file, so that a killed study continues."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Protocol

import torch

from rewardlab.data.files import lock_folder, write_atomic
from rewardlab.errors import ConfigError, RewardlabError
from rewardlab.processes import end_with_parent
from rewardlab.progress import bar

START, TRIALS, LOG = "start.json", "trials", "workers.log"


class Trial(Protocol):
    """One run of a study; its name is that of its file."""

    @property
    def name(self) -> str: ...


class StudyContext(Protocol):
    """The shared data of a study's trials, loaded once per process."""

    def identity(self) -> dict[str, Any]:
        """Return what two trials must share to be compared; trials may be added to a study."""
        ...

    def start(self) -> dict[str, Any]:
        """Return what is measured, or made, once before all trials."""
        ...

    def prepare(self, start: dict[str, Any]) -> None:
        """Prepare for trials, given the record of the start."""
        ...

    def run(self, trial: Any) -> dict[str, Any]:
        """Run a trial and return its record."""
        ...


Opener = Callable[[], StudyContext]  # picklable: every worker process opens its own
_context: StudyContext  # of a worker process


def open_study(context: StudyContext, out: Path) -> dict[str, Any]:
    """Return the record of the start, measured or read from ``out``. Raise ConfigError if ``out`` holds another study."""
    identity, path = context.identity(), out / START
    lock_folder(out)
    if path.exists():
        start = dict(json.loads(path.read_text(encoding="utf-8")))
        if start["identity"] != identity:
            names = sorted(name for name in identity if start["identity"].get(name) != identity[name])
            raise ConfigError(f"{out}: holds a study that differs in {', '.join(names)}; use another --out")
        return start
    wall, cpu = time.perf_counter(), time.process_time()
    start = {"identity": identity, **context.start()}
    start |= {"wall_s": round(time.perf_counter() - wall, 1), "cpu_s": round(time.process_time() - cpu, 1)}
    write_atomic(path, json.dumps(start, indent=1) + "\n")
    return start


def read_records(out: Path) -> list[dict[str, Any]]:
    """The finished trials in a study's folder, by name."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted((out / TRIALS).glob("*.json"))]


def path_of(trial: Trial, out: Path) -> Path:
    return out / TRIALS / f"{trial.name}.json"


def work(context: StudyContext, trial: Trial, out: Path) -> Trial:
    """Run one trial and leave its record."""
    write_atomic(path_of(trial, out), json.dumps(context.run(trial), indent=1, allow_nan=False) + "\n")
    return trial


def _begin(opener: Opener, start: dict[str, Any], out: Path) -> None:
    """A worker process: one thread, ended with its parent, its chatter in a file."""
    global _context
    end_with_parent()
    torch.set_num_threads(1)  # the matrices are small: two processes of one thread outrun one of two
    with (out / LOG).open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    _context = opener()
    _context.prepare(start)


def _work(trial: Trial, out: Path) -> Trial:
    return work(_context, trial, out)


def _results(opener: Opener, start: dict[str, Any], todo: Sequence[Trial], out: Path, workers: int) -> Iterator[Trial]:
    """The trials as they are done; with one worker, in this process."""
    if workers == 1 or len(todo) == 1:
        context = opener()
        context.prepare(start)
        yield from (work(context, trial, out) for trial in todo)
        return
    pool = ProcessPoolExecutor(workers, get_context("spawn"), _begin, (opener, start, out))
    try:
        yield from (done.result() for done in as_completed([pool.submit(_work, trial, out) for trial in todo]))
    except BrokenProcessPool as error:
        raise RewardlabError(f"a worker process ended; the end of {out / LOG} says why; run again to continue") from error
    finally:
        pool.shutdown(cancel_futures=True)


def run_trials(opener: Opener, trials: Sequence[Trial], out: Path, *, workers: int) -> dict[str, Any]:
    """Run the trials without a record; return the record of the start."""
    start = open_study(opener(), out)
    todo = [trial for trial in trials if not path_of(trial, out).exists()]
    with bar("trials", len(trials)) as advance:
        advance(len(trials) - len(todo))
        for trial in _results(opener, start, todo, out, workers):
            advance(1, note=trial.name)
    return start
