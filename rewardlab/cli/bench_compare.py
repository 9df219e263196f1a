"""Finished benchmark runs side by side."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Annotated, Optional

import typer

from rewardlab.cli.options import AsJson, bench_app
from rewardlab.errors import ConfigError


@bench_app.command("compare")
def bench_compare(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders of finished runs of one benchmark; others are compared with the first.")
    ],
    different_protocols: Annotated[
        bool,
        typer.Option(
            "--different-protocols", help="Compare runs of other orders, votes or sampling too; what differs is said."
        ),
    ] = False,
    out: Annotated[
        Optional[Path], typer.Option("--out", help="Also write the table to this .md, .html or .csv file; a .csv has numbers.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Leaderboard of several runs: accuracies with intervals, and each against the first, pair by pair, with a p-value.

    Macro average, swap consistency and Acc+ are compared too, by paired differences with intervals. Of three and more runs,
    p-values adjusted for their number (Holm) stand beside. Runs that were asked otherwise (orders, votes, sampling) are
    refused: a difference would be of the protocol as much as of the judge. A terminal shows the columns that fit into it, or
    lists them where it is narrow; elsewhere, as in a pipe, the table is whole and in Markdown.
    """
    from rewardlab.benchmarks import official as protocols
    from rewardlab.benchmarks.comparison import compare_runs, leaderboard_html, leaderboard_markdown, read_run
    from rewardlab.benchmarks.leaderboard_text import leaderboard_csv, leaderboard_text
    from rewardlab.benchmarks.report_model import json_form
    from rewardlab.data.files import write_atomic

    if out is not None and out.suffix not in (".md", ".html", ".csv"):
        raise ConfigError(f"--out {out}: expected a .md, .html or .csv file")
    finished = [read_run(folder) for folder in runs]
    sentences = protocols.different_protocols(finished)
    if sentences and not different_protocols:
        raise ConfigError(f"{sentences[0]}; ask both alike, or allow it by --different-protocols")
    differences = "".join(f"- {sentence}\n" for sentence in sentences)
    if as_json:
        typer.echo(json.dumps(json_form(compare_runs(finished, sentences)), indent=1, allow_nan=False))
    elif sys.stdout.isatty():
        typer.echo(leaderboard_text(finished, max(40, shutil.get_terminal_size().columns)) + differences)
    else:
        typer.echo(leaderboard_markdown(finished) + differences)
    if out is not None:
        forms = {".html": leaderboard_html, ".csv": leaderboard_csv}
        write_atomic(out, forms[out.suffix](finished) if out.suffix in forms else leaderboard_markdown(finished) + differences)
