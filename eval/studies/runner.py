"""All trials of a study, on processes of one thread each; a finished trial is one file, so that a killed study continues."""

from __future__ import annotations

import fcntl
import json
import math
import os
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Protocol

import torch

from rewardlab.data.files import lock_folder, read_complete_lines, write_atomic
from rewardlab.errors import ConfigError, RewardlabError
from rewardlab.processes import end_with_parent
from rewardlab.reporting.progress import bar, log_line

START, TRIALS, LOG = "start.json", "trials", "workers.log"
NUM_THREADS = 1  # of a process: the matrices are small, and two processes of one thread outrun one of two


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


def open_study(context: StudyContext, out: Path, records: Path | None = None) -> dict[str, Any]:
    """Return the record of the start, measured or read from ``out`` or from ``records``. Raise ConfigError if either holds
    another study."""
    torch.set_num_threads(NUM_THREADS)  # here too: with one worker the trials are run in this process
    identity, path = context.identity(), out / START
    if records is not None and (records.suffix != ".jsonl" or records.is_dir()):
        raise ConfigError(f"{records}: expected a file that ends in .jsonl; the report is written beside it")
    lock_folder(out)
    if records is not None:
        restore(records, out, identity)
    if path.exists():
        try:
            start = dict(json.loads(path.read_text(encoding="utf-8")))
            theirs = dict(start["identity"])
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{path}: damaged ({error}); use another --out, or remove it to measure the start again"
            ) from error
        refuse_other(theirs, identity, out)
        return start
    wall, cpu = time.perf_counter(), time.process_time()
    start = {"identity": identity, **context.start()}
    start |= {"wall_s": round(time.perf_counter() - wall, 1), "cpu_s": round(time.process_time() - cpu, 1)}
    write_atomic(path, json.dumps(start, indent=1) + "\n")
    return start


def refuse_other(theirs: dict[str, Any], ours: dict[str, Any], where: Path) -> None:
    """Raise ConfigError, naming what differs, where two identities are not one."""
    if theirs == ours:
        return
    names = []
    for name in sorted(theirs.keys() | ours.keys()):
        a, b = theirs.get(name), ours.get(name)
        if isinstance(a, dict) and isinstance(b, dict):
            names += [
                f"{name}.{key} ({a.get(key)} there, {b.get(key)} here)" for key in sorted(a | b) if a.get(key) != b.get(key)
            ]
        elif a != b:
            names.append(f"{name} ({a} there, {b} here)")
    raise ConfigError(f"{where}: holds a study that differs in {', '.join(names)}; use another --out, or other records")


def make_once(marker: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return what ``make`` returns, kept in ``marker``: made by the first process that needs it, others wait for it."""
    marker.parent.mkdir(parents=True, exist_ok=True)
    with (marker.parent / ".making").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # let go when the file is closed, however the process ends
        if not marker.exists():
            write_atomic(marker, json.dumps(make(), indent=1) + "\n")
        return dict(json.loads(marker.read_text(encoding="utf-8")))


def read_records(out: Path) -> list[dict[str, Any]]:
    """Return the finished trials in a study's folder, by name. Raise ConfigError for a damaged one."""
    records = []
    for path in sorted((out / TRIALS).glob("*.json")):
        try:
            records.append(dict(json.loads(path.read_text(encoding="utf-8"))))
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{path}: damaged ({error}); remove it, and its trial is run again") from error
    return records


def path_of(trial: Trial, out: Path) -> Path:
    return out / TRIALS / f"{trial.name}.json"


def work(context: StudyContext, trial: Trial, out: Path) -> Trial:
    """Run one trial and leave its record. What goes wrong is printed, with its place: in the log of a worker process."""
    try:
        record = {"name": trial.name, **context.run(trial)}
    except Exception:
        traceback.print_exc()
        raise
    write_atomic(path_of(trial, out), json.dumps(record, indent=1, allow_nan=False) + "\n")
    return trial


def _begin(opener: Opener, start: dict[str, Any], out: Path) -> None:
    """A worker process: one thread, ended with its parent, its chatter in a file."""
    global _context
    end_with_parent()
    torch.set_num_threads(NUM_THREADS)
    with (out / LOG).open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    _context = opener()
    _context.prepare(start)


def _work(trial: Trial, out: Path) -> Trial:
    return work(_context, trial, out)


def _in_turn(context: StudyContext, todo: Sequence[Trial], out: Path, end: float) -> Iterator[tuple[Trial, str]]:
    """The trials as they are done, in this process; those that would begin after ``end`` are left."""
    for trial in todo:
        if time.monotonic() >= end:
            return
        try:
            yield work(context, trial, out), ""
        except Exception as error:  # the boundary: one trial's fault is not that of the others
            yield trial, f"{type(error).__name__}: {error}"


def _side_by_side(
    opener: Opener, start: dict[str, Any], todo: Sequence[Trial], out: Path, workers: int, end: float
) -> Iterator[tuple[Trial, str]]:
    """:func:`_in_turn` in processes of their own, as many trials at a time."""
    waiting, running = list(todo), dict[Future[Trial], Trial]()
    pool = ProcessPoolExecutor(workers, get_context("spawn"), _begin, (opener, start, out))
    try:
        while running or (waiting and time.monotonic() < end):
            while waiting and len(running) < workers and time.monotonic() < end:
                trial = waiting.pop(0)
                running[pool.submit(_work, trial, out)] = trial
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                trial, error = running.pop(done), done.exception()
                if isinstance(error, BrokenProcessPool):
                    text = f"a worker process ended; the end of {out / LOG} says why; run again to continue"
                    raise RewardlabError(text) from error
                yield trial, f"{type(error).__name__}: {error}" if error else ""
    finally:
        pool.shutdown(cancel_futures=True)


def run_rest(
    opener: Opener,
    start: dict[str, Any],
    trials: Sequence[Trial],
    out: Path,
    *,
    workers: int,
    records: Path | None = None,
    end: float = math.inf,
) -> bool:
    """Run the trials without a record, and keep ``records`` complete; return whether none is left.

    No trial begins after ``end`` (of :func:`time.monotonic`). One that fails does not end the others: raise RewardlabError,
    naming those that failed, once the rest is done.
    """
    todo = [trial for trial in trials if not path_of(trial, out).exists()]
    failed: list[str] = []
    if todo and time.monotonic() < end:
        if workers == 1 or len(todo) == 1:
            context = opener()
            context.prepare(start)
            results = _in_turn(context, todo, out, end)
        else:
            results = _side_by_side(opener, start, todo, out, workers, end)
        with bar("trials", len(trials)) as advance:
            advance(len(trials) - len(todo))
            for trial, error in results:
                failed += [f"{trial.name} ({error})"] if error else []
                if records is not None and not error:
                    keep(records, out)
                advance(1, note=trial.name)
    if failed:
        raise RewardlabError(f"{len(failed)} trials failed: {'; '.join(failed)}; the others are kept, run again for these")
    return all(path_of(trial, out).exists() for trial in trials)


def run_trials(opener: Opener, trials: Sequence[Trial], out: Path, *, workers: int) -> dict[str, Any]:
    """Run the trials without a record; return the record of the start."""
    start = open_study(opener(), out)
    run_rest(opener, start, trials, out, workers=workers)
    return start


def keep(records: Path, out: Path) -> None:
    """Write the start and all finished trials of ``out`` into one file, a line each, beside those that are in it: it replaces
    the file as a whole, so that whoever is killed leaves the old or the new one, and studies that share it add to it."""
    start = json.loads((out / START).read_text(encoding="utf-8"))
    records.parent.mkdir(parents=True, exist_ok=True)
    folder = os.open(records.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)  # not of the file, which is replaced
        theirs = {line["name"]: line for line in _lines_of(records, start["identity"])}
        trials = theirs | {record["name"]: record for record in read_records(out)}
        lines = [{"kind": "start", **start}, *({"kind": "trial", **trials[name]} for name in sorted(trials))]
        write_atomic(records, "".join(f"{json.dumps(line, separators=(',', ':'))}\n" for line in lines))
    finally:
        os.close(folder)


def restore(records: Path, out: Path, identity: dict[str, Any]) -> None:
    """Bring what ``records`` holds into ``out``, where it is not there yet. Raise ConfigError if it is of another study, or no
    study's."""
    for line in _lines_of(records, identity, with_start=True):
        path = out / TRIALS / f"{line['name']}.json" if "name" in line else out / START
        if not path.exists():
            write_atomic(path, json.dumps(line, indent=1) + "\n")


def _lines_of(records: Path, identity: dict[str, Any], *, with_start: bool = False) -> list[dict[str, Any]]:
    """Return the trials in ``records``, with the start's line first if that is asked for; [] where there is no file. A last
    line that was cut off is left out, and said. Raise ConfigError for what is no study's records, or another's."""
    if not records.exists() or not (content := records.read_bytes()):
        return []
    try:
        lines = read_complete_lines(records)
        if not lines or [line.pop("kind") for line in lines] != ["start", *["trial"] * (len(lines) - 1)]:
            raise ValueError("expected a line of its start, and then one for each trial")
        start, *trials = lines
        theirs = dict(start["identity"])
        if not all(line["arm"] and Path(line["name"]).name == line["name"] for line in trials):
            raise ValueError("a trial has a name that is none of a file")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"lacks {error}" if isinstance(error, KeyError) else str(error)
        raise ConfigError(
            f"{records}: not the records of a study ({what}); give another --records, which need not exist"
        ) from error
    if not content.endswith(b"\n"):
        log_line(f"{records}: its last line was cut off and is left out; that trial is run again")
    refuse_other(theirs, identity, records)
    return [start, *trials] if with_start else trials
