"""`rewardlab`: one command per stage, each thin. Heavy imports happen inside the command that needs them."""

from __future__ import annotations

import errno
import warnings

import typer
from rich.console import Console
from rich.markup import escape

from rewardlab.cli import (  # noqa: F401  (commands)
    audit,
    bench,
    bench_runs,
    data,
    demo,
    distill,
    doctor,
    judge,
    preference_sets,
    push,
    serve,
    train,
)
from rewardlab.cli.options import app, refuse_renamed, sort_commands
from rewardlab.errors import RewardlabError, missing_package

# transformers renamed an argument of its own that trl and older releases know by its first name; no user can act on it.
warnings.filterwarnings("ignore", message=".*gradient_checkpointing` is deprecated", category=FutureWarning)

sort_commands()
refuse_renamed()


def main() -> None:
    """Run the command line: an error that the user can act on is one sentence and exit status 2."""
    try:
        try:
            app()
        except ModuleNotFoundError as error:
            if (missing := missing_package(error)) is None:
                raise
            raise missing from error
    except RewardlabError as error:
        Console(stderr=True, soft_wrap=True, emoji=False).print(f"[bold red]error:[/] {escape(str(error))}", highlight=False)
        raise SystemExit(2) from error
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        typer.echo(
            f"error: {str(error.filename)[:60]}...: a longer name than a file may have; expected the path of a file", err=True
        )
        raise SystemExit(2) from error
