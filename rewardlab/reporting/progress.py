"""One progress bar for everything that takes longer than a moment. It goes to standard error."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from rewardlab.processes import is_main

Advance = Callable[..., None]


def is_quiet() -> bool:
    """Return whether the command line was told to show errors only; a library's caller, who sets no level, sees progress."""
    return logging.getLogger("rewardlab").level >= logging.ERROR


def _console() -> Console:
    # In a notebook rich would add a cell's output for every bar, a warning without ipywidgets: plain text is enough there.
    return Console(stderr=True, force_jupyter=False, emoji=False)  # ":x:" in a text stays


def log_line(text: str) -> None:
    """Print a line beside the bar."""
    if is_quiet():
        return
    _console().print(text, highlight=False, markup=False, soft_wrap=True)


@contextmanager
def bar(label: str, total: int | None) -> Iterator[Advance]:
    """Yield ``advance(n=1, note="")``; the note stands behind the bar. ``total`` None: the number is unknown."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=_console(), disable=is_quiet() or not is_main()) as progress:
        task = progress.add_task(label, total=total, note="")

        def advance(n: int = 1, note: str | None = None) -> None:
            fields: dict[str, Any] = {} if note is None else {"note": note}
            progress.update(task, advance=n, **fields)

        yield advance
