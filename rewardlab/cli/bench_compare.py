"""Finished benchmark runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from rewardlab.cli.options import bench_app
from rewardlab.errors import ConfigError


@bench_app.command("compare")
def bench_compare(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders of finished runs of one benchmark; others are compared with the first.")
    ],
    out: Annotated[Optional[Path], typer.Option("--out", help="Also write the table to this .md or .html file.")] = None,
) -> None:
    """Leaderboard of several runs: accuracies with intervals, and each against the first, pair by pair, with a p-value."""
    from rewardlab.benchmarks.comparison import leaderboard_html, leaderboard_markdown, read_run
    from rewardlab.data.files import write_atomic

    if out is not None and out.suffix not in (".md", ".html"):
        raise ConfigError(f"--out {out}: expected a .md or .html file")
    finished = [read_run(folder) for folder in runs]
    text = leaderboard_markdown(finished)
    typer.echo(text)
    if out is not None:
        write_atomic(out, leaderboard_html(finished) if out.suffix == ".html" else text)
