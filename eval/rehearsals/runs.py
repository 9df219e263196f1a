"""Runs as processes: begun, watched from outside, killed, and what they noted."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[2]
PROBE = Path(__file__).parent / "probe.py"


@dataclass(frozen=True)
class Case:
    """A run to make. ``command`` is that of `rewardlab`, ``seconds`` what a card takes (:mod:`eval.rehearsals.probe`);
    ``kill_step``: it is killed once this optimizer step is logged."""

    name: str
    command: tuple[str, ...]
    out: Path
    processes: int = 1
    seconds: dict[str, float] = field(default_factory=dict)
    kill_step: int | None = None
    limit_s: float = 1800.0


@dataclass(frozen=True)
class Observation:
    """What was seen of a run. ``events`` of each process of training, in order; ``peaks`` the largest memory of each with its
    children, that is no file's, in bytes; ``begun`` and ``ended`` are Unix times."""

    begun: float
    ended: float
    status: int
    tail: str
    events: list[list[dict[str, Any]]]
    decodes: list[tuple[float, float, float]]
    peaks: dict[int, int]
    killed: bool


def family_bytes(process: psutil.Process) -> int:
    """Return the memory of a process and its children that is no file's, pages they share counted once (Linux's PSS)."""
    total = 0
    for member in [process, *process.children(recursive=True)]:
        try:
            lines = Path(f"/proc/{member.pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
        except OSError:  # it has ended
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:"))) * 1024
    return total


def observe(case: Case, folder: Path) -> Observation:
    """Run a case and return what was seen; ``folder`` is for notes, and empty."""
    folder.mkdir(parents=True)
    threads = str(max(1, (os.cpu_count() or 1) // case.processes))
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": threads, "HF_HUB_OFFLINE": "1"}
    env["HF_DATASETS_CACHE"] = str(folder / "datasets")
    launcher = [sys.executable]
    if case.processes > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(case.processes)]
    command = [*launcher, str(PROBE), str(folder), json.dumps(case.seconds), *case.command]
    log, peaks, begun, killed = folder / "output.txt", dict[int, int](), time.time(), False
    with log.open("wb") as output, subprocess.Popen(command, env=env, stdout=output, stderr=output) as run:
        whole = psutil.Process(run.pid)
        while run.poll() is None:
            for rank, pid in _trainers(folder):
                try:
                    peaks[rank] = max(peaks.get(rank, 0), family_bytes(psutil.Process(pid)))
                except psutil.NoSuchProcess:
                    continue
            killed = _is_due(case)
            if killed or time.time() > begun + case.limit_s:
                _kill(whole)
            time.sleep(0.3)
    tail = log.read_text(encoding="utf-8", errors="replace")[-3000:]
    return Observation(begun, time.time(), run.returncode, tail, list(_events(folder)), _decodes(folder), peaks, killed)


def _trainers(folder: Path) -> Iterator[tuple[int, int]]:
    for number, path in enumerate(sorted(folder.glob("events-*.jsonl"))):
        with path.open(encoding="utf-8") as lines:
            if (line := lines.readline()).endswith("\n"):
                yield number, json.loads(line)["pid"]


def _is_due(case: Case) -> bool:
    return case.kill_step is not None and last_step(case.out) >= case.kill_step


def metrics_of(out: Path) -> list[dict[str, Any]]:
    """Return the whole lines of a run's metrics; [] before the first."""
    path = out / "metrics.jsonl"
    if not path.exists():
        return []
    whole, _, _ = path.read_text(encoding="utf-8").rpartition("\n")
    return [json.loads(line) for line in whole.splitlines()]


def last_step(out: Path) -> int:
    return max((int(line["step"]) for line in metrics_of(out) if "loss" in line), default=0)


def _kill(process: psutil.Process) -> None:
    """End a run as a power cut would: all of its processes at once, by SIGKILL."""
    for member in [*process.children(recursive=True), process]:
        try:
            member.send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            continue


def _events(folder: Path) -> Iterator[list[dict[str, Any]]]:
    for path in sorted(folder.glob("events-*.jsonl")):
        whole, _, _ = path.read_text(encoding="utf-8").rpartition("\n")
        yield [json.loads(line) for line in whole.splitlines()]


def _decodes(folder: Path) -> list[tuple[float, float, float]]:
    record, path = struct.Struct("<ddd"), folder / "decodes.bin"
    data = path.read_bytes() if path.exists() else b""
    return list(record.iter_unpack(data[: len(data) // record.size * record.size]))


def named(events: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [event for event in events if event["event"] == name]
