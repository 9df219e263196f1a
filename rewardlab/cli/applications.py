"""The classes of the command line's applications and commands: what typer's own lack."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from rewardlab.cli.exit_codes import ExitCode
from rewardlab.processes import is_main

# Commands that go on where a stopped one ended, given the same arguments.
RESUMABLE = {
    *("distill", "self-distil", "steps", "sft", "dpo", "rl", "rm", "prm", "policy", "rank", "quickstart", "harden"),
    *("bench run", "bench suite", "data negatives"),
}


_TERMINATED = threading.Event()


@contextmanager
def termination_as_interrupt() -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C inside the block: open files are closed, and an event loop ends its tasks first."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def terminate(number: int, frame: FrameType | None) -> None:
        _TERMINATED.set()
        interrupt = signal.getsignal(signal.SIGINT)
        if not callable(interrupt):  # SIGINT is ignored, as it is in a shell's background jobs
            raise KeyboardInterrupt
        interrupt(signal.SIGINT, frame)

    _TERMINATED.clear()
    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def interrupts_kept() -> Iterator[None]:
    """Raise a KeyboardInterrupt again that Python loses inside the block: one in a destructor or around a fork (a data loader's
    workers) is only printed, and the command would continue."""
    before = sys.unraisablehook

    def send_again() -> None:
        with suppress(ProcessLookupError, RuntimeError):  # it ended by itself
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def hook(unraisable: Any) -> None:
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            before(unraisable)
            return
        timer = threading.Timer(0.05, send_again)  # here it would be lost as well
        timer.daemon = True
        timer.start()

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before


def stop_status() -> ExitCode:
    """Return the exit status after a KeyboardInterrupt: that of SIGTERM, or else that of Ctrl-C."""
    return ExitCode.TERMINATED if _TERMINATED.is_set() else ExitCode.INTERRUPTED


def _name_of(context: Any) -> str:
    """Return the command's name without the program's, such as ``bench run``."""
    parents = []
    while context.parent is not None:
        parents.append(context.info_name)
        context = context.parent
    return " ".join(reversed(parents))


@contextmanager
def _stop_in_a_sentence(context: Any) -> Iterator[None]:
    """Raise typer.Exit, after a sentence, in place of a KeyboardInterrupt."""
    try:
        yield
    except KeyboardInterrupt as stop:
        if is_main():
            again = "; finished work is kept: run the same command again to resume"
            typer.echo(f"stopped{again if _name_of(context) in RESUMABLE else ''}", err=True)
        raise typer.Exit(stop_status()) from stop


def _without_metavar(parameters: list[Any]) -> list[Any]:
    """Return the parameters, flags without a metavar: they would be shown to take a <bool>."""
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return parameters


class Command(TyperCommand):
    """A command that says in a sentence how it was stopped, and, where it has overrides, how a key of the config is given."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_metavar(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:  # typer shows it; its class is not public
            option = getattr(error, "option_name", None)
            if option and any(parameter.name == "overrides" for parameter in self.params) and hasattr(error, "possibilities"):
                key = option.lstrip("-").replace("-", "_")
                error.message = f"{error.message}; a key of the config is given as {key}=VALUE"  # type: ignore[attr-defined]
            raise

    def invoke(self, ctx: Any) -> Any:
        with _stop_in_a_sentence(ctx):
            return super().invoke(ctx)


class Group(TyperGroup):
    """A group of commands whose flags are shown as flags; one that does something itself is stopped as a command is."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_metavar(super().get_params(ctx))

    def invoke(self, ctx: Any) -> Any:
        with _stop_in_a_sentence(ctx):
            return super().invoke(ctx)


class App(typer.Typer):
    """An application whose commands are of class :class:`Command`; -h is help, too."""

    def __init__(self, *, help: str, **settings: Any) -> None:
        names = {"help_option_names": ["-h", "--help"]}
        super().__init__(help=help, cls=Group, no_args_is_help=True, context_settings=names, **settings)

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Any], Any]:
        return super().command(name, **{"cls": Command, **settings})
