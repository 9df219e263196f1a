"""The data files of benchmarks, and recordings of other tools."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated, Optional

import typer

from rewardlab.benchmarks.recordings import FORMS
from rewardlab.cli.options import AllowColumns, bench_app, columns_of
from rewardlab.errors import ConfigError


@bench_app.command("list")
def bench_list() -> None:
    """List the benchmarks of `bench run`: pairs, groups, where their files are, and whose official scorer is here.

    Beside the package's own: those of installed packages (entry points) and your own as a Python file.
    """
    from rewardlab.benchmarks.registry import GROUP, find_benchmark, packaged_benchmarks
    from rewardlab.extensions import extension_names

    for benchmark in [*packaged_benchmarks(), *map(find_benchmark, extension_names(GROUP))]:
        total, groups = sum(benchmark.sizes.values()), ", ".join(f"{name} {size:,}" for name, size in benchmark.sizes.items())
        files = benchmark.files
        facts = [f"{total:,} pairs: {groups}" if total else "any number of pairs"]
        facts.append(
            (f"files: {files.repo or f'{len(files.urls)} by address'} (bench prepare)") if files else "files: your own"
        )
        facts.append(f"official scorer: {', '.join(benchmark.scorers)}" if benchmark.scorers else "no official scorer here")
        typer.echo(f"{benchmark.name}: {'; '.join(facts)}")


@bench_app.command("prepare")
def bench_prepare(
    benchmark: Annotated[
        str,
        typer.Argument(help="A benchmark of `bench run` whose files are known; of another name those that are are listed."),
    ],
    out: Annotated[
        Optional[Path],
        typer.Option(
            "--out",
            help="Folder to fetch to (needs a network; default: where `bench run` looks without --data, "
            "~/.cache/rewardlab/benchmarks or $REWARDLAB_DATA).",
        ),
    ] = None,
    data: Annotated[
        Optional[Path], typer.Option("--check", help="A file or folder at hand: check it instead of fetching.")
    ] = None,
) -> None:
    """Fetch a benchmark's files, or check those at hand: hashes against the known ones, rows and labels per group.

    Everything is fetched at one revision, which `prepared.json` names beside the files' hashes. **Exit status 1** where a file
    is not the known one, or a group not of the published size. What licences say of the data is for you to read.
    """
    from rewardlab.benchmarks.prepare import check_files, fetch_files, prepared_folder

    if out is not None and data is not None:
        raise ConfigError("expected either --out FOLDER, to fetch, or --check PATH")
    place = data or out or prepared_folder(benchmark)
    if data is None:
        record = fetch_files(benchmark, place)
        typer.echo(f"fetched {len(record.files):,} files of {benchmark} at {record.revision} to {place}")
    sentences, is_good = check_files(benchmark, place)
    typer.echo("\n".join(sentences))
    if not is_good:
        raise typer.Exit(1)


@bench_app.command("import")
def bench_import(
    form: Annotated[str, typer.Argument(help=f"Whose form the recording has: {', '.join(FORMS)}.")],
    recording: Annotated[Path, typer.Argument(help="The file that the tool wrote.")],
    data: Annotated[Path, typer.Option("--data", help="The benchmark's data file, as in `bench run`.")],
    out: Annotated[Path, typer.Option("--out", help="Replay file to write.")],
    benchmark: Annotated[
        Optional[str], typer.Option("--benchmark", help="The benchmark of --data (default: the form's; outcomes: pairs).")
    ] = None,
    allow_columns: AllowColumns = None,
) -> None:
    """Turn a recording of another tool into a replay file: official inference files, lmms-eval, VLMEvalKit, IXC, 0/1 outcomes.

    Samples find their rows by their texts, or by ids, and keep the order they were shown in. Samples without a row are counted;
    **more than a twentieth of them** is an error. The command to score the file is printed.
    """
    from rewardlab.benchmarks.recordings.readers import import_recording
    from rewardlab.benchmarks.registry import find_benchmark
    from rewardlab.benchmarks.rows import load_rows_as_stored
    from rewardlab.benchmarks.settings import bench_settings
    from rewardlab.data.files import write_atomic

    name = benchmark or FORMS.get(form, "pairs")
    settings = bench_settings(name, data, f"replay:{out}", allow_columns=columns_of(allow_columns))
    rows = load_rows_as_stored(find_benchmark(name), settings, with_images=False)
    result = import_recording(form, recording, rows)
    write_atomic(out, "".join(json.dumps(line) + "\n" for line in result.rows))
    typer.echo(
        f"{len(result.rows):,} of {result.num_samples:,} samples, of {result.num_rows:,} of {len(rows):,} rows; "
        f"{result.num_unmatched:,} belong to no row"
    )
    template = f" --template {result.template}" if result.template else ""
    command = ["rewardlab", "bench", "run", name, "--data", str(data), "--judge", f"replay:{out}"]
    command += ["--allow-columns", allow_columns] if allow_columns else []
    typer.echo(f"written: {out}; score it: {shlex.join(command)}{template} --out RUN")
