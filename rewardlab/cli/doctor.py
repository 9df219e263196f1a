"""`rewardlab doctor`: a planned run, checked before it costs anything."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Optional

import typer

from rewardlab.cli.exit_codes import ExitCode
from rewardlab.cli.options import CHECKS, AllowColumns, AllowWithoutImages, Overrides, app, columns_of
from rewardlab.errors import ConfigError

MARKS = {"ok": "ok    ", "look": "look  ", "failed": "FAILED"}


@app.command("doctor", rich_help_panel=CHECKS)
def doctor_command(
    context: typer.Context,
    config: Annotated[Path, typer.Argument(help="A config: a YAML file, or a name under configs/ such as rl/grpo.")],
    overrides: Overrides = None,
    stage: Annotated[
        Optional[str], typer.Option("--stage", help="sft, rl, ...; by default the config's folder or name says it.")
    ] = None,
    data: Annotated[
        Optional[Path],
        typer.Option("--data", exists=True, help="Pairs to try it with: counts tokens, judges a few, takes one training step."),
    ] = None,
    images: Annotated[
        Optional[Path],
        typer.Option("--images", help="Folder where relative paths of media in --data start (default: its own)."),
    ] = None,
    allow_columns: AllowColumns = None,
    allow_without_images: AllowWithoutImages = False,
    launcher: Annotated[
        Optional[Path],
        typer.Option("--launcher", help="accelerate's YAML of the planned run (a file, or a name such as accelerate/zero3)."),
    ] = None,
    processes: Annotated[
        Optional[int], typer.Option("--processes", min=1, help="Processes of the planned run; overrides the launcher's.")
    ] = None,
    model: Annotated[
        Optional[str], typer.Option("--model", help="Model to check with, if the config's does not exist yet.")
    ] = None,
    card: Annotated[
        Optional[str],
        typer.Option("--card", help="Card of the planned run: H100, A100, RTX4090, ... (default: this machine's)."),
    ] = None,
    memory: Annotated[
        Optional[float],
        typer.Option("--memory", min=1, help="GiB of each device of the planned run (default: the card's)."),
    ] = None,
    host_memory: Annotated[
        Optional[float],
        typer.Option(
            "--host-memory", min=1, help="GiB of each machine's own memory (default: this machine's if it has cards)."
        ),
    ] = None,
    price: Annotated[
        Optional[float], typer.Option("--price", min=0, help="US dollars of a card's hour, for what the run would cost.")
    ] = None,
    out: Annotated[
        Optional[Path],
        typer.Option("--out", help="Folder of the planned run: the disk there is compared with its checkpoints."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Load no weights: check config, batches, memory and disk only.")
    ] = False,
) -> None:
    """Check a planned run before it costs money: config, batch sizes, memory, disk, data, endpoints, one training step.

    Of a distillation, and of a suite of benchmarks (`eval/*.yaml`, --data its folder), it says what asking costs. Of a training
    run, with --data, it counts tokens, makes real judgments and takes one step in a temporary folder. Memory is an estimate
    from shapes, with a line for each thing it counts; on a GPU the step's peak is measured. Exit status 1 if a check failed;
    `look` marks what is for you to decide, and what was compared with nothing because no flag says with what.
    """
    from rewardlab.config import SCHEMAS, TrainConfig, find_config, parse_overrides, stage_of
    from rewardlab.health.cards import card_named
    from rewardlab.health.doctor import examine_plan, examine_suite, is_suite
    from rewardlab.health.plan import Plan
    from rewardlab.training.run.parallel import Launch, read_launch

    path = find_config(config, stage)
    changes = parse_overrides(overrides or ())
    given = _given(context)
    if path.parent.name == "accelerate":
        _refuse_unused(given, (), "a launcher's file")
        launch = read_launch(path)
        typer.echo(f"{MARKS['ok']} launcher: {launch.processes} processes, ZeRO stage {launch.zero} or its like")
        return
    if path.stem == "demo" and stage is None:
        _refuse_unused(given, (), "the demonstration")
        from rewardlab.demo.build import DemoConfig

        DemoConfig.load(path)
        typer.echo(f"{MARKS['ok']} config: the demonstration")
        return
    asks_suite = stage is None and is_suite(path)
    of_data = ("--images", "--allow-columns", "--allow-without-images")
    if asks_suite:
        _refuse_unused(given, ("KEY=VALUE", "--data", "--model", "--card", "--price"), "a suite of benchmarks")
    elif (named := stage_of(path, stage)) == "distill":
        _refuse_unused(given, ("KEY=VALUE", "--data", *of_data), "a distillation, which asks an endpoint")
    elif not issubclass(SCHEMAS[named], TrainConfig):
        _refuse_unused(given, ("KEY=VALUE",), f"a config of {named}, of which only the keys are checked")
    if data is None:
        _refuse_unused(given, [name for name in given if name not in of_data], "a run without --data")
    launch = read_launch(find_config(launcher)) if launcher else Launch()
    if processes:
        launch = replace(launch, processes=processes)
    failed = False
    plan = Plan(launch, memory, model, out, card_named(card) if card else None, host_memory, price)
    findings = (
        examine_suite(path, plan, data, changes)
        if asks_suite
        else examine_plan(
            path,
            stage_of(path, stage),
            plan,
            data,
            images=images,
            allow_columns=columns_of(allow_columns),
            allow_without_images=allow_without_images,
            changes=changes,
            dry=dry_run,
        )
    )
    for finding in findings:
        typer.echo(f"{MARKS[finding.outcome]} {finding.name}: {finding.message}")
        for line in finding.details:
            typer.echo(f"       {line}")
        failed |= finding.outcome == "failed"
    if failed:
        raise typer.Exit(ExitCode.FINDING)


def _given(context: typer.Context) -> list[str]:
    """Return the flags that the user gave, but for those that say how to look."""
    names = []
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is not None and source.name == "COMMANDLINE" and parameter.name not in ("config", "stage", "dry_run"):
            names.append("KEY=VALUE" if parameter.name == "overrides" else parameter.opts[0])
    return names


def _refuse_unused(given: Collection[str], used: Collection[str], what: str) -> None:
    """Raise ConfigError where a flag is given that changes nothing of what is said about ``what``."""
    if unused := [name for name in given if name not in used]:
        raise ConfigError(f"{', '.join(unused)}: changes nothing for {what}; leave it out")
