"""One progress bar for everything that takes longer than a moment. It goes to standard error; where that is a file and no
terminal, as in a batch job, a line now and then stands for it."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column

from rewardlab.processes import is_main

Advance = Callable[..., None]
LINE_S = 15.0  # between two lines of progress in a file
WIDE = 90  # characters of a terminal, from which on there is room for the bar itself


def is_quiet() -> bool:
    """Return whether the command line was told to show errors only; a library's caller, who sets no level, sees progress."""
    return logging.getLogger("rewardlab").level >= logging.ERROR


def _console() -> Console:
    # In a notebook rich would add a cell's output for every bar, a warning without ipywidgets: plain text is enough there.
    return Console(stderr=True, force_jupyter=False, emoji=False)


def log_line(text: str) -> None:
    """Print a line beside the bar."""
    if is_quiet():
        return
    _console().print(text, highlight=False, markup=False, soft_wrap=True)


@contextmanager
def bar(label: str, total: int | None) -> Iterator[Advance]:
    """Yield ``advance(n=1, note="")``; the note follows the bar. ``total`` None: the number is unknown."""
    if is_quiet() or not is_main():
        yield lambda n=1, note=None: None
    elif sys.stderr.isatty():  # not what rich believes: where FORCE_COLOR is set, as in notebooks, a log would fill with bars
        with _drawn_bar(label, total) as advance:
            yield advance
    else:
        lines = _Lines(label, total)
        yield lines.advance
        log_line(lines.line())


@contextmanager
def _drawn_bar(label: str, total: int | None) -> Iterator[Advance]:
    console, digits = _console(), len(str(total or 100_000))
    counts, times = Column(no_wrap=True, min_width=2 * digits + 1), Column(no_wrap=True, min_width=len("0:00:00"))
    is_wide = console.width >= WIDE  # a narrow terminal keeps what matters: how many, and how long yet
    columns = (
        TextColumn("{task.description}"),
        *((BarColumn(),) if is_wide else ()),
        MofNCompleteColumn(table_column=counts),
        *((TimeElapsedColumn(table_column=times),) if is_wide else ()),
        TimeRemainingColumn(table_column=times),
        TextColumn("{task.fields[note]}", table_column=Column(no_wrap=True)),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(label, total=total, note="")

        def advance(n: int = 1, note: str | None = None) -> None:
            fields: dict[str, Any] = {} if note is None else {"note": note}
            progress.update(task, advance=n, **fields)

        yield advance


class _Lines:
    """Progress as lines, at most one every :data:`LINE_S` seconds."""

    def __init__(self, label: str, total: int | None) -> None:
        self._label, self._total, self._note = label, total, ""
        self._start = self._last = time.monotonic()
        self._done, self._before = 0, 0
        self._is_first = True

    def advance(self, n: int = 1, note: str | None = None) -> None:
        if self._is_first:  # the first call may stand for what an earlier run had done: it says nothing of the speed
            self._before, self._is_first = n, False
        self._done, self._note = self._done + n, self._note if note is None else note
        if time.monotonic() - self._last >= LINE_S:
            self._last = time.monotonic()
            log_line(self.line())

    def line(self) -> str:
        seconds = time.monotonic() - self._start
        return progress_line(self._label, self._done, self._total, seconds, self._done - self._before, self._note)


def progress_line(label: str, done: int, total: int | None, seconds: float, done_now: int, note: str) -> str:
    """Return a line such as "bench: votes: 120 of 500, 0:02:00 elapsed, 0:06:20 left, 71.2 % of votes right".

    ``done_now`` is what was done in these ``seconds``, without what an earlier run had done.
    """
    parts = [f"{done:,}" if total is None else f"{done:,} of {total:,}", f"{_clock(seconds)} elapsed"]
    if total is not None and done_now > 0:
        parts.append(f"{_clock(seconds * max(0, total - done) / done_now)} left")
    return f"{label}: {', '.join([*parts, note] if note else parts)}"


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
