"""Finished benchmark runs: a gate between two of them, their figures and tables as files, and their export to other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from rewardlab.cli.options import AllowColumns, bench_app, columns_of


@bench_app.command("gate")
def bench_gate(
    old: Annotated[Path, typer.Argument(help="Folder of the run to hold on to: its report.json and scores.jsonl are enough.")],
    new: Annotated[Path, typer.Argument(help="Folder of the run that may replace it, of the same pairs asked alike.")],
    figures: Annotated[
        list[str],
        typer.Option(
            "--figure",
            help="accuracy, invalid_rate, or flipped, invalid or split (shares of pairs; fewer is better), or of a group: "
            "accuracy[GROUP]. Repeatable; all must pass.",
        ),
    ] = ["accuracy"],  # noqa: B006  (typer's way to say a default)
    margin: Annotated[float, typer.Option("--margin", min=0.0, max=1.0, help="Loss to put up with: 0.01 is a point.")] = 0.0,
    proves: Annotated[
        bool,
        typer.Option(
            "--prove", help="Pass only where NEW is shown to lose no more than --margin; without: unless it is shown."
        ),
    ] = False,
    allow_more_invalid: Annotated[
        bool, typer.Option("--allow-more-invalid", help="Let NEW have more answers without a verdict than OLD.")
    ] = False,
) -> None:
    """Is NEW worse than OLD beyond noise? By the paired interval of `bench compare`, for a gate in continuous integration.

    **Exit status 1** where it is, where its invalid rate rises beyond noise, whatever the other figures are, and where either
    run is no evidence: votes that failed at the endpoint, not one verdict, sums that do not add up. Runs of other pairs, or
    that were asked otherwise, are refused. With few pairs the interval is wide and much passes: the sentence says how large a
    loss is not ruled out, and `--prove` turns the burden round.
    """
    from rewardlab.benchmarks.comparison import read_run
    from rewardlab.benchmarks.gate import INVALID_RATE, GateFigure, faults_of, gate_runs, parse_figure

    wanted = [parse_figure(figure) for figure in figures]
    before, after = read_run(old), read_run(new)
    verdicts = [gate_runs(before, after, figure, margin=margin, proves=proves) for figure in wanted]
    if not allow_more_invalid and GateFigure(INVALID_RATE) not in wanted:
        verdicts.append(gate_runs(before, after, GateFigure(INVALID_RATE)))
    faults = [*faults_of(before), *faults_of(after)]
    for sentence in [*faults, *(verdict.sentence for verdict in verdicts)]:
        typer.echo(sentence)
    if faults or not all(verdict.passes for verdict in verdicts):
        typer.echo(f"{new} does not pass", err=True)
        raise typer.Exit(1)


@bench_app.command("calibrate")
def bench_calibrate(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run of a prob: judge, a checkpoint folder here.")],
) -> None:
    """Fit the temperature of a judge's verdict probabilities on a run, and store it with the checkpoint.

    `rewardlab bench run pairs --judge prob:runs/rl/final --data held_out.parquet --votes 5 --out runs/held_out`, then
    `rewardlab bench calibrate runs/held_out`. It divides the log-odds of verdicts wherever the checkpoint is a `prob:` judge
    from then on: in benchmarks, behind the endpoint, as a policy's reward. `prob@1:PATH` is the same judge without it. Bench
    with the number of votes that the judge will be asked for, and measure its calibration on other pairs.
    """
    from rewardlab.benchmarks.calibrate import calibrate_run

    fit = calibrate_run(run)
    low, high = fit.gain
    typer.echo(
        f"temperature {fit.tau:.4g} on {fit.pairs:,} pairs, {fit.rationales} votes an order; {fit.unreadable:,} had none"
    )
    typer.echo(
        f"negative log-likelihood {fit.nll_before:.4f} -> {fit.nll:.4f} (less by {low:+.4f} to {high:+.4f}), calibration error "
        f"{fit.ece_before:.4f} -> {fit.ece:.4f}"
    )
    typer.echo(f"stored in {fit.checkpoint}/rewardlab.json")


@bench_app.command("export")
def bench_export(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    out: Annotated[Path, typer.Option("--out", help="File to write: a log of Inspect, .eval (small) or .json (to read).")],
    data: Annotated[Optional[Path], typer.Option("--data", help="The run's data file, where it has moved since.")] = None,
    images: Annotated[Optional[Path], typer.Option("--images", help="Folder of the benchmark's images, as in the run.")] = None,
    benchmark: Annotated[
        Optional[str], typer.Option("--benchmark", help="The Python file of a benchmark that was run from one.")
    ] = None,
    with_images: Annotated[bool, typer.Option("--with-images/--without-images", help="Put the images into the log.")] = True,
    allow_columns: AllowColumns = None,
) -> None:
    """Write a run as a log of Inspect (inspect_ai): a sample per pair with its images, votes of both orders and scores.

    `pip install 'rewardlab[inspect]'`, then `inspect view --log-dir FOLDER` shows it. Figures are those of the run's report.
    """
    from rewardlab.benchmarks.comparison import read_run
    from rewardlab.benchmarks.inspect_log import write_inspect_log
    from rewardlab.benchmarks.registry import find_benchmark
    from rewardlab.benchmarks.rows import load_rows_as_stored
    from rewardlab.benchmarks.settings import bench_settings
    from rewardlab.data.files import data_hash
    from rewardlab.errors import DataError

    finished = read_run(run)
    place = data or Path(finished.report.data)
    if not place.exists():
        raise DataError(f"{place}: the run's data file is not there; give it by --data")
    if data_hash(place) != finished.report.data_sha256:
        raise DataError(f"{place}: is not the data file of {run}, or has changed since; give that one by --data")
    name = benchmark or finished.report.benchmark
    settings = bench_settings(name, place, finished.report.judge, images=images, allow_columns=columns_of(allow_columns))
    rows = load_rows_as_stored(find_benchmark(name), settings, with_images=with_images)
    write_inspect_log(finished, rows, out, with_images=with_images)
    typer.echo(f"written: {out} ({len(finished.rows):,} pairs); inspect view --log-dir {out.parent}")


@bench_app.command("figures")
def bench_figures(
    runs: Annotated[list[Path], typer.Argument(help="Folders of finished runs.")],
    out: Annotated[Path, typer.Option("--out", help="Folder for the files.")],
    formats: Annotated[str, typer.Option("--format", help="svg, pdf and png, comma-separated.")] = "svg,pdf",
    dpi: Annotated[int, typer.Option("--dpi", min=50, max=1200, help="Pixels per inch of .png, of 5 inches.")] = 200,
) -> None:
    """Write the figures of runs as files: those of their pages, and of several runs of the same data one of all judges.

    They are drawn for a light page, on white. The same run gives the same files.
    """
    from rewardlab.benchmarks.comparison import read_run
    from rewardlab.benchmarks.run_exports import write_figures

    wanted = [name.strip() for name in formats.split(",") if name.strip()]
    written = write_figures([read_run(folder) for folder in runs], out, wanted, dpi=dpi)
    typer.echo(f"written: {len(written)} files in {out}, {written[0].name} to {written[-1].name}" if written else "no figure")


@bench_app.command("table")
def bench_table(
    runs: Annotated[list[Path], typer.Argument(help="Folders of finished runs, in the order of the rows.")],
    out: Annotated[
        Path, typer.Option("--out", help="File to write: .csv (every number), .tex (booktabs) or .md (the main ones).")
    ],
) -> None:
    """Write the numbers of runs as a table: CSV of every one with its interval, LaTeX or Markdown of the main ones.

    `bench compare` tests the differences between runs.
    """
    from rewardlab.benchmarks.comparison import read_run
    from rewardlab.benchmarks.run_exports import write_table

    write_table([read_run(folder) for folder in runs], out)
    typer.echo(f"written: {out} ({len(runs)} {'run' if len(runs) == 1 else 'runs'})")


@bench_app.command("index")
def bench_index(folder: Annotated[Path, typer.Argument(help="Folder that has the folders of runs, at any depth.")]) -> None:
    """Write a page that lists all runs below a folder: accuracy, what is wrong with each judge, and links to their pages."""
    from rewardlab.benchmarks.index_page import write_index

    page, faults = write_index(folder)
    for fault in faults:
        typer.echo(fault, err=True)
    typer.echo(f"written: {page}")
