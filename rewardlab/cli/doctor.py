"""`rewardlab doctor`: a planned run, checked before it costs anything."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from rewardlab.cli.commands import command
from rewardlab.cli.exit_codes import ExitCode
from rewardlab.cli.options import CHECKS, Allow, Overrides, allowances, app
from rewardlab.errors import ConfigError

if TYPE_CHECKING:
    from rewardlab.health.plan import Finding, Plan

LABELS = {"ok": "ok    ", "look": "look  ", "failed": "FAILED"}
ALWAYS_USED = ("config", "stage", "dry_run")
MEDIA_FIELDS = ("images", "allow")


@dataclass(frozen=True)
class DoctorOptions:
    """The options of `rewardlab doctor`."""

    config: Annotated[Path, typer.Argument(help="A config: a YAML file, or a name under configs/ such as rl/grpo.")]
    overrides: Overrides = None
    stage: Annotated[
        Optional[str], typer.Option("--stage", help="sft, rl, ...; default: inferred from the config's folder or name.")
    ] = None
    data: Annotated[
        Optional[Path],
        typer.Option(
            "--data", exists=True, help="Pairs to test the config with: counts tokens, judges a few, trains one step."
        ),
    ] = None
    images: Annotated[
        Optional[Path],
        typer.Option("--images", help="Folder that media paths in --data are relative to (default: that of the data file)."),
    ] = None
    allow: Allow = None
    launcher: Annotated[
        Optional[Path],
        typer.Option("--launcher", help="accelerate's YAML of the planned run (a file, or a name such as accelerate/zero3)."),
    ] = None
    processes: Annotated[
        Optional[int], typer.Option("--processes", min=1, help="Processes of the planned run; overrides the launcher's.")
    ] = None
    model: Annotated[
        Optional[str], typer.Option("--model", help="Model to check with, if the config's model does not exist yet.")
    ] = None
    memory: Annotated[
        Optional[float],
        typer.Option("--memory", min=1, help="Memory per GPU of the planned run in GiB (default: this machine's)."),
    ] = None
    host_memory: Annotated[
        Optional[float],
        typer.Option("--host-memory", min=1, help="Host memory per machine in GiB (default: this machine's if it has GPUs)."),
    ] = None
    out: Annotated[
        Optional[Path],
        typer.Option("--out", help="Folder of the planned run: its free disk is compared with the run's checkpoints."),
    ] = None
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Load no weights: check config, batches, memory and disk only.")
    ] = False

    def refuse_unused(self, used: tuple[str, ...], what: str) -> None:
        """Raise ConfigError if a field is set that has no effect on ``what``."""
        changed = [field.name for field in fields(self) if getattr(self, field.name) not in (field.default, [], None)]
        names = [
            "KEY=VALUE" if name == "overrides" else f"--{name.replace('_', '-')}"
            for name in changed
            if name not in (*ALWAYS_USED, *used)
        ]
        if names:
            raise ConfigError(f"{', '.join(names)}: no effect on {what}; leave it out")


@command(app, "doctor", rich_help_panel=CHECKS)
def doctor_command(options: DoctorOptions) -> None:
    """Check a planned run before it costs money: config, batch sizes, memory, disk, data, endpoints, one training step.

    For a training run with --data, it counts tokens, makes real judgments and trains one step in a temporary folder. For a
    distillation with --data, it reports the maximum cost of the judgments. Memory is estimated from shapes, one line per
    component; on a GPU the step's peak is measured. Exit status 1 if a check failed; `look` marks items for you to decide,
    and checks that were skipped because a flag is missing.
    """
    failed = False
    for finding in _findings(options):
        typer.echo(f"{LABELS[finding.outcome]} {finding.name}: {finding.message}")
        for line in finding.details:
            typer.echo(f"       {line}")
        failed |= finding.outcome == "failed"
    if failed:
        raise typer.Exit(ExitCode.FINDING)


def _findings(options: DoctorOptions) -> Iterator[Finding]:
    """Yield the findings on a config, by its kind. Raise ConfigError for options without effect."""
    from rewardlab.config import SCHEMAS, TrainConfig, find_config, parse_overrides, stage_of
    from rewardlab.health.doctor import examine_plan, examine_suite, is_suite
    from rewardlab.health.plan import Finding
    from rewardlab.training.run.inputs import pairs_of
    from rewardlab.training.run.parallel import read_launch

    path = find_config(options.config, options.stage)
    changes = parse_overrides(options.overrides or ())
    if path.parent.name == "accelerate":
        options.refuse_unused((), "a launcher's file")
        launch = read_launch(path)
        yield Finding("launcher", "ok", f"{launch.processes} processes, ZeRO stage {launch.zero} or its like")
        return
    if path.stem == "demo" and options.stage is None:
        options.refuse_unused((), "the demonstration")
        from rewardlab.demo.build import DemoConfig

        DemoConfig.load(path)
        yield Finding("config", "ok", "the demonstration")
        return
    if options.stage is None and is_suite(path):
        options.refuse_unused(("overrides",), "a suite of benchmarks")
        yield examine_suite(path, changes)
        return
    stage = stage_of(path, options.stage)
    if stage == "distill":
        options.refuse_unused(("overrides", "data", *MEDIA_FIELDS), "a distillation, which queries an endpoint")
    elif not issubclass(SCHEMAS[stage], TrainConfig):
        options.refuse_unused(("overrides",), f"a config of {stage}, whose keys alone are checked")
    if options.data is None:
        others = tuple(field.name for field in fields(options) if field.name not in MEDIA_FIELDS)
        options.refuse_unused(others, "a run without --data")
        read = None
    else:
        read = partial(pairs_of, options.data, images=options.images, **allowances(options.allow))
    yield from examine_plan(path, stage, _plan(options), read, changes=changes, dry=options.dry_run)


def _plan(options: DoctorOptions) -> Plan:
    """Return the machines that the options describe."""
    from rewardlab.config import find_config
    from rewardlab.health.plan import Plan
    from rewardlab.training.run.parallel import Launch, read_launch

    launch = read_launch(find_config(options.launcher)) if options.launcher else Launch()
    if options.processes:
        launch = replace(launch, processes=options.processes)
    return Plan(launch, options.memory, options.model, options.out, options.host_memory)
