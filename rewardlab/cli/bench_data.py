"""The data files of benchmarks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from rewardlab.cli.options import bench_app
from rewardlab.errors import ConfigError


@bench_app.command("prepare")
def bench_prepare(
    benchmark: Annotated[
        str,
        typer.Argument(help="A benchmark of `bench run` whose files are known; of another name those that are are listed."),
    ],
    out: Annotated[Optional[Path], typer.Option("--out", help="Folder to fetch to (needs a network).")] = None,
    data: Annotated[
        Optional[Path], typer.Option("--check", help="A file or folder at hand: check it instead of fetching.")
    ] = None,
) -> None:
    """Fetch a benchmark's files, or check those at hand: hashes against the known ones, rows and labels per group.

    Everything is fetched at one revision, which `prepared.json` names beside the files' hashes. **Exit status 1** where a file
    is not the known one, or a group not of the published size. What licences say of the data is for you to read.
    """
    from rewardlab.benchmarks.prepare import check_files, fetch_files

    if (out is None) == (data is None):
        raise ConfigError("expected either --out FOLDER, to fetch, or --check PATH")
    if out is not None:
        record = fetch_files(benchmark, out)
        typer.echo(f"fetched {len(record.files):,} files of {benchmark} at {record.revision} to {out}")
    place = out or data
    assert place is not None
    sentences, is_good = check_files(benchmark, place)
    typer.echo("\n".join(sentences))
    if not is_good:
        raise typer.Exit(1)
