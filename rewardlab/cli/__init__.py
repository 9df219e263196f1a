"""`rewardlab`: one command per stage, each thin. Heavy imports happen inside the command that needs them."""

from __future__ import annotations

import errno
import io
import sys
import traceback
import warnings
from typing import NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from rewardlab.cli import bench, configs, data, demo, distill, judge, push, serve, train  # noqa: F401  (commands)
from rewardlab.cli.applications import interrupts_kept, stop_status, termination_as_interrupt
from rewardlab.cli.exit_codes import ExitCode, exit_code_of
from rewardlab.cli.options import app, sort_commands
from rewardlab.errors import RewardlabError, missing_package

# transformers renamed an argument of its own that trl and older releases know by its first name; no user can act on it.
warnings.filterwarnings("ignore", message=".*gradient_checkpointing` is deprecated", category=FutureWarning)

sort_commands()


def main() -> None:
    """Run the command line: an error that the user can act on is one sentence; :mod:`rewardlab.cli.exit_codes` has the exit
    statuses."""
    _write_any_text()
    try:
        try:
            with termination_as_interrupt(), interrupts_kept():
                app()
        except ModuleNotFoundError as error:
            if (missing := missing_package(error)) is None:
                raise
            raise missing from error
    except KeyboardInterrupt as stop:
        raise SystemExit(stop_status()) from stop
    except RewardlabError as error:
        Console(stderr=True, soft_wrap=True, emoji=False).print(f"[bold red]error:[/] {escape(str(error))}", highlight=False)
        raise SystemExit(exit_code_of(error)) from error
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            _end_with_fault()
        typer.echo(f"error: {str(error.filename)[:60]}...: longer than a file name may be; expected a file path", err=True)
        raise SystemExit(ExitCode.INPUT) from error
    except Exception:  # the boundary: 1 would say that a check found something
        _end_with_fault()


def _write_any_text() -> None:
    """Write characters that the encoding of the output lacks as ``?``: a judge may write any."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _end_with_fault() -> NoReturn:
    traceback.print_exc()
    raise SystemExit(ExitCode.FAULT)
