"""Processes that answer a JSON line with a JSON line, and are killed when they do not.

A limit within a process is a signal or a thread, which arithmetic in C and other people's code do not heed; the end of the
process always holds, in threads and event loops too.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import subprocess
import weakref
from collections.abc import Sequence
from typing import IO, Any

START_S = 60.0  # for a process to load
_CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
NUM_WORKERS = max(2, min(16, _CORES // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))  # a share of the cores for each rank


class WorkerPool:
    """Up to ``num_workers`` processes of one command, for any number of threads; each is started when first needed. The command
    must answer once, with any line, when it has loaded. They end with the pool, or with this process."""

    def __init__(self, command: Sequence[str], num_workers: int) -> None:
        self._command, self._num_workers = command, num_workers
        self._free: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        for _ in range(num_workers):
            self._free.put(None)
        weakref.finalize(self, _end, self._free)

    def ask(self, job: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Return a process's answer. Raise TimeoutError after ``timeout_s``, OSError or ValueError if the process ended or its
        answer is no JSON object; then it is killed, and the next job starts another."""
        worker = self._free.get()
        answered = False
        try:
            worker = worker or _Worker(self._command)
            reply = worker.ask(job, timeout_s)
            answered = True
            return reply
        finally:  # a process that did not answer must not hand its late reply to the next caller
            if worker is not None and not answered:
                worker.kill()
            self._free.put(worker if answered else None)

    def close(self) -> None:
        """End the processes; a later job starts new ones."""
        workers = [self._free.get() for _ in range(self._num_workers)]
        for worker in workers:
            if worker is not None:
                worker.kill()
            self._free.put(None)


def _end(free: queue.LifoQueue[_Worker | None]) -> None:
    """Kill the workers that are free; one at work ends with its input."""
    with contextlib.suppress(queue.Empty):
        while True:
            if (worker := free.get_nowait()) is not None:
                worker.kill()


class _Worker:
    """One process."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )
        try:
            self._line(START_S)  # it answers once when it has loaded, which is not the first answer's fault
        except BaseException:
            self.kill()
            raise

    def ask(self, job: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        self._pipe(self._process.stdin).write(json.dumps(job).encode() + b"\n")
        self._pipe(self._process.stdin).flush()
        return dict(json.loads(self._line(timeout_s)))

    def _line(self, timeout_s: float) -> bytes:
        """Return one line of the process. Raise TimeoutError, or BrokenPipeError where the process is gone."""
        out = self._pipe(self._process.stdout)
        if not select.select([out], [], [], timeout_s)[0]:
            raise TimeoutError
        line = out.readline()
        if not line.endswith(b"\n"):
            raise BrokenPipeError("the worker ended")
        return line

    @staticmethod
    def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
        assert pipe is not None
        return pipe

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(BrokenPipeError):  # what was still to be sent has no reader
                self._pipe(pipe).close()
