"""Around a training run: before it, while it goes, and what is made of its adapters."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Optional

import typer

from rewardlab.cli.options import app

MARKS = {"ok": "ok    ", "look": "look  ", "failed": "FAILED"}


@app.command()
def doctor(
    config: Annotated[Path, typer.Argument(help="A YAML of configs/, or your own.", exists=True, dir_okay=False)],
    stage: Annotated[Optional[str], typer.Option("--stage", help="sft, rl, ...; else by the file's folder or name.")] = None,
    data: Annotated[
        Optional[Path], typer.Option("--data", exists=True, help="Pairs: tokens are counted, some judged, one step taken.")
    ] = None,
    launcher: Annotated[
        Optional[Path],
        typer.Option(
            "--launcher",
            exists=True,
            dir_okay=False,
            help="accelerate's YAML of the planned run: processes and ZeRO stage.",
        ),
    ] = None,
    processes: Annotated[Optional[int], typer.Option("--processes", min=1, help="Of that run; else the launcher's.")] = None,
    model: Annotated[Optional[str], typer.Option("--model", help="What is trained, if not there yet.")] = None,
    memory: Annotated[
        Optional[float], typer.Option("--memory", min=1, help="GiB of each of those devices; else this machine's.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="No weights: the config, batches and memory alone.")] = False,
) -> None:
    """Look a planned run over before money is spent: its config, batches and memory; then devices, tokens, a real judgment, the
    consistency endpoint and one training step in a folder that is thrown away.

    Exit status 1 where something failed. Memory is an estimate from shapes; the step's peak, on a GPU, is measured.
    """
    from rewardlab.health.doctor import Plan, examine, stage_of
    from rewardlab.training.run.launcher import Launch, read_launch

    if config.parent.name == "accelerate":
        found = read_launch(config)
        typer.echo(f"{MARKS['ok']} launcher: {found.processes} processes, ZeRO stage {found.zero} or its like")
        return
    if config.stem == "demo":
        from rewardlab.demo.build import DemoConfig

        DemoConfig.load(config)
        typer.echo(f"{MARKS['ok']} config: the demonstration")
        return
    launch = read_launch(launcher) if launcher else Launch()
    if processes:
        launch = replace(launch, processes=processes)
    failed = False
    plan = Plan(launch, memory, model)
    for finding in examine(config, stage_of(config, stage), plan, data, dry=dry_run):
        typer.echo(f"{MARKS[finding.outcome]} {finding.name}: {finding.said}")
        failed |= finding.outcome == "failed"
    if failed:
        raise typer.Exit(1)


@app.command()
def merge(
    adapter: Annotated[Path, typer.Argument(help="Folder of a LoRA adapter, OUT/final of a run.")],
    out: Annotated[Path, typer.Option("--out", help="Checkpoint folder to write.")],
) -> None:
    """Merge a LoRA adapter into the model it was trained on, for servers that take whole checkpoints. The card goes along."""
    from rewardlab.models.loading import merge_adapter

    typer.echo(merge_adapter(adapter, out))


@app.command()
def show(run: Annotated[Path, typer.Argument(help="Folder of a training run, finished or not.")]) -> None:
    """Write RUN/run.html: curves of everything that was logged, rollouts over time, and what the watchdog saw."""
    from rewardlab.health.run_page import write_run_page

    typer.echo(write_run_page(run))
