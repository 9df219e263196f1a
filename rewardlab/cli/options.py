"""The command line's applications, and the options that several commands share."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Optional

import typer

from rewardlab.judging.spec import spec_help
from rewardlab.processes import is_main

app = typer.Typer(
    help="Train, benchmark and serve generative multimodal judges whose numbers can be trusted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


def tell(what: object) -> None:
    """Print it once, however many processes of a run have come to it."""
    if is_main():
        typer.echo(what)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"rewardlab {version('rewardlab')}")
        raise typer.Exit


@app.callback()
def main_options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Train, benchmark and serve generative multimodal judges whose numbers can be trusted."""


demo_app = typer.Typer(help="The embedded demonstration: pairs with known truth, and models.", no_args_is_help=True)
app.add_typer(demo_app, name="demo")
data_app = typer.Typer(help="Pairs to train on.", no_args_is_help=True)
app.add_typer(data_app, name="data")
bench_app = typer.Typer(help="Benchmarks of judges, by their own rules and by ours.", no_args_is_help=True)
app.add_typer(bench_app, name="bench")

Out = Annotated[Path, typer.Option("--out", help="Folder to write to.")]
ConfigFile = Annotated[Optional[Path], typer.Option("--config", help="YAML of differences from the defaults.")]
Seed = Annotated[Optional[int], typer.Option("--seed", help="Overrides the config's seed.")]
JudgeOption = Annotated[str, typer.Option("--judge", help=f"{spec_help()}.")]
