"""A sampler in a process of its own: one that crashes or hangs is ended and started again.

For a server: a request that kills the engine must not kill what tells of it, and Python code of one process would slow
that of the other.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

from rewardlab.errors import EndpointError
from rewardlab.samplers.base import Sampler, SamplingParams
from rewardlab.types import Completion, Message

LOG = logging.getLogger(__name__)
LONGEST_WAIT_S = 60.0  # between two starts
START_TIMEOUT_S = 3600.0  # a large checkpoint from a slow disk


def _work(pipe: Connection, opener: Callable[[], Sampler]) -> None:
    """Open the sampler in the child, send its name or why it cannot be opened, then answer call after call until the parent is
    gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which finishes what waits
    try:
        sampler = opener()
    except BaseException as error:  # the boundary: whatever it is, the parent tells of it
        pipe.send((None, _sendable(error)))
        return
    pipe.send((sampler.name, None))
    while True:
        try:
            method, args = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((getattr(sampler, method)(*args), None))
        except Exception as error:
            pipe.send((None, _sendable(error)))


def _sendable(error: BaseException) -> BaseException:
    """Return an error of this project as it is, any other by its text: not every exception can be pickled."""
    is_ours = type(error).__module__.startswith("rewardlab.")
    return error if is_ours else EndpointError(f"{type(error).__name__}: {error}")


class ProcessSampler:
    """The sampler that ``opener`` (to be pickled) gives, in a child. Raises what the opener raises.

    A call that takes more than ``timeout_s``, or in which the child ends, raises EndpointError; the child is then started
    again in the background, and until it is ready every call raises EndpointError. ``num_starts`` counts.
    """

    def __init__(self, opener: Callable[[], Sampler], *, timeout_s: float = 600.0) -> None:
        self._opener, self._timeout_s = opener, timeout_s
        self._call, self._starting = threading.Lock(), threading.Lock()
        self._closed = False
        self._children: list[Any] = []  # the one there is
        self._ready = threading.Event()
        self.num_starts = 0
        self._name = self._start()
        # Python's own end of a daemon is SIGTERM, which a stopped child never hears, and waiting for it has no end.
        weakref.finalize(self, _kill, self._children)

    @property
    def name(self) -> str:
        return self._name

    @property
    def is_batch_invariant(self) -> bool:
        return False  # whatever it is, it is asked one call at a time

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def check(self) -> None:
        """Raise EndpointError while there is no child to ask."""
        if not self._ready.is_set():
            raise EndpointError(f"{self._name}: the engine is restarting")
        if not self._process.is_alive():
            self._start_again("it ended")
            raise EndpointError(f"{self._name}: the engine ended")

    def sample(self, prompts: Sequence[tuple[Message, ...]], params: SamplingParams) -> list[list[Completion]]:
        return list(self._ask("sample", tuple(prompts), params))

    def verdict_margins(self, prompts: Sequence[tuple[Message, ...]], beginnings: Sequence[str]) -> Any:
        """Return the child's margins."""
        return self._ask("verdict_margins", tuple(prompts), tuple(beginnings))

    def close(self) -> None:
        """End the child; every later call raises EndpointError."""
        self._closed = True
        self._ready.clear()
        self._process.kill()
        self._process.join()
        self._pipe.close()

    def _ask(self, method: str, *args: Any) -> Any:
        with self._call:
            self.check()
            # The child's end ends every wait for it, also that of handing over a request which it does not take.
            with _killed_after(self._process, self._timeout_s) as hung:
                try:
                    self._pipe.send((method, args))
                    result, error = self._pipe.recv()
                except (EOFError, OSError) as broken:
                    why = f"no answer within {self._timeout_s:g} s" if hung.is_set() else "it ended"
                    self._start_again(why)
                    raise EndpointError(f"{self._name}: {why}; the engine is being restarted") from broken
        if error is not None:
            raise error
        return result

    def _start(self) -> str:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs, self._opener), name="engine", daemon=True)
        self._process.start()
        self._children[:] = [self._process]
        theirs.close()
        self.num_starts += 1
        with _killed_after(self._process, START_TIMEOUT_S):
            try:
                name, error = self._pipe.recv()
            except (EOFError, OSError):
                name, error = None, EndpointError("the engine ended while it was opened")
        if error is not None:
            raise error
        self._ready.set()
        return str(name)

    def _start_again(self, why: str) -> None:
        with self._starting:  # whoever notices first
            if not self._ready.is_set():
                return
            self._ready.clear()
        LOG.warning("%s: %s; the engine is being restarted", self._name, why)
        threading.Thread(target=self._revive, name="engine-start", daemon=True).start()

    def _revive(self) -> None:
        wait_s = 1.0
        while not (self._ready.is_set() or self._closed):
            with contextlib.suppress(Exception):
                self._process.kill()
                self._process.join()
                self._pipe.close()
            try:
                self._start()
            except Exception as error:  # the boundary: it may be anything, and is tried again
                LOG.warning("%s: the engine does not start (%s); again in %g s", self._name, error, wait_s)
                time.sleep(wait_s)
                wait_s = min(2 * wait_s, LONGEST_WAIT_S)


def _kill(children: Sequence[Any]) -> None:
    for child in children:
        child.kill()


@contextlib.contextmanager
def _killed_after(process: Any, seconds: float) -> Iterator[threading.Event]:
    """Kill a process that takes longer than so many seconds; the event tells that it was killed."""
    late = threading.Event()

    def kill() -> None:
        late.set()
        process.kill()

    timer = threading.Timer(seconds, kill)
    timer.daemon = True
    timer.start()
    try:
        yield late
    finally:
        timer.cancel()
