"""The machinery of studies: trials of arms, rates and seeds on processes of one thread each, and the quickstart before them.

A finished trial is a file in ``OUT/trials``. A study that was killed resumes with the same command; more arms, rates or seeds
add to the finished ones.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Protocol

import torch
from pydantic import BaseModel
from transformers import TrainerCallback

from rewardlab.data.files import lock_folder, write_atomic
from rewardlab.demo.build import BASE, TEST, TRAIN
from rewardlab.errors import ConfigError, RewardlabError
from rewardlab.processes import end_with_parent
from rewardlab.reporting.progress import bar
from rewardlab.training.run.folder import FINAL, is_finished

START, TRIALS, LOG = "start.json", "trials", "workers.log"
NUM_THREADS = 1  # per process: the matrices are small, and two processes of one thread are faster than one of two
Record = dict[str, Any]


@dataclass(frozen=True)
class Trial:
    """One training run; its name is that of its file."""

    seed: int
    arm: str
    learning_rate: float | None = None

    @property
    def name(self) -> str:
        return "-".join([self.arm, *([] if self.learning_rate is None else [f"{self.learning_rate:g}"]), str(self.seed)])


def check_arms(known: Collection[str], arms: Sequence[str]) -> None:
    """Raise ConfigError for an arm that is not ``known``, or for none."""
    if unknown := [arm for arm in arms if arm not in known]:
        raise ConfigError(f"unknown arm {', '.join(map(repr, unknown))}; expected some of {', '.join(known)}")
    if not arms:
        raise ConfigError("a study needs at least one arm")


def plan(
    known: Collection[str], arms: Sequence[str], seeds: Sequence[int], rates: Sequence[float | None] = (None,)
) -> list[Trial]:
    """Return every arm at every rate with every seed, seed by seed, so that a study that was stopped has whole seeds.

    Raise ConfigError for an unknown arm, or an empty plan.
    """
    check_arms(known, arms)
    trials = [Trial(seed, arm, rate) for seed in seeds for rate in rates for arm in dict.fromkeys(arms)]
    if not trials:
        raise ConfigError("a study needs at least one arm, one rate and one seed")
    return trials


class StudyContext(Protocol):
    """The models and pairs that a study's trials share, loaded once per process."""

    def identity(self) -> dict[str, Any]:
        """Return what two trials must share to be compared: settings, judge, pairs."""
        ...

    def start(self) -> dict[str, Any]:
        """Return what is measured once before all trials."""
        ...

    def prepare(self, start: dict[str, Any]) -> None:
        """Prepare for trials, given the record of the start."""
        ...

    def config_of(self, trial: Trial) -> BaseModel:
        """Return the training config of a trial."""
        ...

    def run(self, trial: Trial) -> dict[str, Any]:
        """Run a trial and return its record."""
        ...


Opener = Callable[[], StudyContext]  # picklable: every worker process opens its own


def path_of(trial: Trial, out: Path) -> Path:
    return out / TRIALS / f"{trial.name}.json"


def read_json(path: Path) -> dict[str, Any]:
    """Return the object of a JSON file. Raise ConfigError if it is damaged."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{path}: damaged ({error}); remove it, and the study makes it again") from error


def read_records(out: Path) -> list[Record]:
    """Return the finished trials of a study's folder, by name. Raise ConfigError for a damaged one."""
    return [read_json(path) for path in sorted((out / TRIALS).glob("*.json"))]


def open_study(context: StudyContext, out: Path) -> dict[str, Any]:
    """Return the record of the start, measured or read from ``out``. Raise ConfigError if ``out`` holds another study."""
    torch.set_num_threads(NUM_THREADS)  # with one worker the trials run in this process
    lock_folder(out)
    identity, path = json.loads(json.dumps(context.identity())), out / START
    if not path.exists():
        wall, cpu = time.perf_counter(), time.process_time()
        start = {"identity": identity, **context.start()}
        start |= {"wall_s": round(time.perf_counter() - wall, 1), "cpu_s": round(time.process_time() - cpu, 1)}
        write_atomic(path, json.dumps(start, indent=1) + "\n")
    start = read_json(path)
    theirs, ours = flat(start.get("identity", {})), flat(identity)
    if names := [name for name in sorted(theirs.keys() | ours.keys()) if theirs.get(name) != ours.get(name)]:
        shown = ", ".join(f"{name} ({theirs.get(name)} there, {ours.get(name)} here)" for name in names)
        raise ConfigError(f"{out}: holds a study that differs in {shown}; use another --out")
    return start


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the leaves of nested dicts by their dotted names."""
    leaves: dict[str, Any] = {}
    for name, value in values.items():
        leaves |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) and value else {f"{prefix}{name}": value}
    return leaves


def config_facts(config: BaseModel, **kwargs: Any) -> dict[str, Any]:
    """Return a config without the folders of this machine, and without the watchdog, which only warns."""
    return config.model_dump(mode="json", exclude={"model", "value_init", "health"}, **kwargs)


def config_digest(config: BaseModel) -> str:
    """Return a hash of :func:`config_facts`."""
    return hashlib.sha256(json.dumps(config_facts(config), sort_keys=True).encode()).hexdigest()[:16]


def config_changes(record: Record, config: BaseModel) -> str:
    """Return the keys of a trial's config that have other values now. A key that is new since then, and at its default, is not
    among them."""
    kept = record.get("config")
    theirs = flat(kept, "config.") if isinstance(kept, dict) else {"config": kept}
    ours, changed = (flat(config_facts(config, exclude_defaults=only), "config.") for only in (False, True))
    names = [name for name in theirs if name not in ours or theirs[name] != ours[name]]
    names += [name for name in changed if name not in theirs]
    return ", ".join(f"{name} ({theirs.get(name)} there, {ours.get(name)} here)" for name in sorted(names))


def work(context: StudyContext, trial: Trial, out: Path) -> None:
    """Run one trial and write its record. Print the traceback of an error: in a worker process it goes to the log."""
    wall, cpu = time.perf_counter(), time.process_time()
    try:
        result = context.run(trial)
    except Exception:
        traceback.print_exc()
        raise
    record = {"name": trial.name, "arm": trial.arm, "seed": trial.seed, "learning_rate": trial.learning_rate, **result}
    record |= {"wall_s": round(time.perf_counter() - wall, 1), "cpu_s": round(time.process_time() - cpu, 1)}
    record["config"] = config_facts(context.config_of(trial))
    write_atomic(path_of(trial, out), json.dumps(record, indent=1, allow_nan=False) + "\n")


_context: StudyContext  # of a worker process


def _begin(opener: Opener, start: dict[str, Any], out: Path) -> None:
    """Prepare a worker process: one thread, ended with its parent, its output in a file."""
    global _context
    end_with_parent()
    torch.set_num_threads(NUM_THREADS)
    with (out / LOG).open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    _context = opener()
    _context.prepare(start)


def _work(trial: Trial, out: Path) -> None:
    work(_context, trial, out)


def _results(
    context: StudyContext, opener: Opener, start: dict[str, Any], todo: Sequence[Trial], out: Path, workers: int
) -> Iterator[tuple[Trial, BaseException | None]]:
    """Yield the trials as they end, with the error of one that failed."""
    if workers == 1 or len(todo) == 1:
        context.prepare(start)
        for trial in todo:
            try:
                work(context, trial, out)
                yield trial, None
            except Exception as error:  # the boundary: a failed trial does not end the others
                yield trial, error
        return
    with ProcessPoolExecutor(workers, get_context("spawn"), _begin, (opener, start, out)) as pool:
        running = {pool.submit(_work, trial, out): trial for trial in todo}
        try:
            for done in as_completed(running):
                if isinstance(error := done.exception(), BrokenProcessPool):
                    raise RewardlabError(f"a worker process ended: see the end of {out / LOG}; run again to resume") from error
                yield running[done], error
        finally:
            pool.shutdown(cancel_futures=True)


def run_trials(opener: Opener, trials: Sequence[Trial], out: Path, *, workers: int) -> dict[str, Any]:
    """Run the trials without a record; return the record of the start.

    Raise ConfigError if a finished trial had another config. A trial that fails does not end the others: raise RewardlabError
    with the names of the failed ones at the end.
    """
    context = opener()
    start = open_study(context, out)
    todo = [trial for trial in trials if not path_of(trial, out).exists()]
    for trial in trials:
        if trial not in todo and (changes := config_changes(read_json(path := path_of(trial, out)), context.config_of(trial))):
            raise ConfigError(f"{path}: run with another config of its arm: {changes}; remove it to run the trial again")
    failed: list[str] = []
    with bar("trials", len(trials)) as advance:
        advance(len(trials) - len(todo))
        for trial, error in _results(context, opener, start, todo, out, workers) if todo else ():
            failed += [f"{trial.name} ({type(error).__name__}: {error})"] if error else []
            advance(1, note=trial.name)
    if failed:
        raise RewardlabError(f"{len(failed)} trials failed: {'; '.join(failed)}; the others are kept, run again for these")
    return start


def make_once(marker: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return what ``make`` returns, kept in ``marker``: the first process that needs it makes it, others wait."""
    marker.parent.mkdir(parents=True, exist_ok=True)
    with (marker.parent / ".making").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed, however the process ends
        if not marker.exists():
            write_atomic(marker, json.dumps(make(), indent=1) + "\n")
        return read_json(marker)


@dataclass(frozen=True)
class Quickstart:
    """The folder of a quickstart: its judges and its pairs."""

    run: Path

    def require(self, *stages: str, files: Sequence[Path]) -> None:
        """Raise ConfigError unless the stages are finished and the files exist."""
        if not all(is_finished(self.run / stage) for stage in stages) or not all(path.exists() for path in files):
            raise ConfigError(f"{self.run}: no finished quickstart; make one with `rewardlab quickstart --out {self.run}`")

    def judge(self, stage: str) -> Path:
        return self.run / stage / FINAL

    @property
    def base(self) -> Path:
        return self.run / "demo" / BASE

    @property
    def train(self) -> Path:
        return self.run / "demo" / TRAIN

    @property
    def distilled(self) -> Path:
        return self.run / "distill" / "distilled.parquet"

    @property
    def test(self) -> Path:
        return self.run / "demo" / TEST


def digest(path: Path) -> str:
    """Return a hash of a file, or of the weights of a checkpoint."""
    return hashlib.sha256((path / "model.safetensors" if path.is_dir() else path).read_bytes()).hexdigest()[:16]


class FiniteWeights(TrainerCallback):
    """Stops a training whose weights are no longer numbers."""

    def __init__(self) -> None:
        self.finite = True

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self.finite = all(bool(weight.isfinite().all()) for weight in model.parameters())
        control.should_training_stop |= not self.finite


def is_numeric_failure(error: RuntimeError) -> bool:
    """Return whether torch refused to sample from probabilities that are not finite."""
    return "probability tensor contains" in str(error)


def rounded(value: float | None) -> float | None:
    """Return a number to four significant digits; None for one that is missing or not finite."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.4g}")
