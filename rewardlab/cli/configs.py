"""`rewardlab configs` and `doctor`: the shipped configs, every key of a config, and the check of a planned run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from rewardlab.cli.commands import command
from rewardlab.cli.exit_codes import ExitCode
from rewardlab.cli.options import CHECKS, Allow, Overrides, allowances, app, configs_app
from rewardlab.errors import ConfigError, OutputError

if TYPE_CHECKING:
    from rewardlab.health.plan import Finding, Plan


Stage = Annotated[
    Optional[str], typer.Option("--stage", help="Stage of the config, if it is not clear from its folder or name.")
]
ConfigName = Annotated[str, typer.Argument(help="A name of `rewardlab configs list`, such as rl/grpo or grpo, or a file.")]


@configs_app.command("list")
def configs_list(
    stage: Annotated[Optional[str], typer.Argument(help="A stage (sft, rl, ...) or a folder (accelerate).")] = None,
) -> None:
    """List the shipped configs with one sentence each; `rewardlab configs list rl` lists those of one stage."""
    from rewardlab.config import config_names, configs_folder, find_schema

    groups: dict[str, list[str]] = {}
    for name in config_names():
        groups.setdefault(_group_of(name), []).append(name)
    if stage is not None and stage not in groups:
        find_schema(stage)  # raises ConfigError that names the stages
        raise ConfigError(f"{stage}: no config of this stage is included; `rewardlab configs keys {stage}` lists its keys")
    for group, names in groups.items() if stage is None else [(stage, groups[stage])]:
        typer.echo(f"{group}:")
        for name in names:
            typer.echo(f"  {name}: {_first_sentence(configs_folder() / f'{name}.yaml')}")


@configs_app.command("show")
def configs_show(name: ConfigName, overrides: Overrides = None, stage: Stage = None) -> None:
    """Print a config with every key: its value, its default if different, and its description.

    `rewardlab configs show grpo learning_rate=3e-6 > mine.yaml` writes a checked config of your own. A stage's name shows its
    defaults: `rewardlab configs show rl`. Launcher files are printed unchanged.
    """
    from rewardlab.config import SCHEMAS, find_config, load_config, name_of_config, parse_overrides, resolved_yaml, stage_of

    changes = parse_overrides(overrides or ())
    if name in SCHEMAS and not Path(name).is_file():
        path, known = None, name
    else:
        path = find_config(name, stage)
        if stage is None and _group_of(name_of_config(path)) not in SCHEMAS and path.is_relative_to(_folder()):
            if changes:
                raise ConfigError(f"{name}: belongs to no stage, so {', '.join(changes)} cannot be set in it; edit a copy")
            typer.echo(path.read_text(encoding="utf-8"), nl=False)
            return
        known = stage_of(path, stage)
    config = load_config(SCHEMAS[known], path, changes)
    title = f"{name_of_config(path)}: {_first_sentence(path)}" if path else f"the defaults of {known}"
    typer.echo(f"# {title}\n{resolved_yaml(config)}", nl=False)


@configs_app.command("copy")
def configs_copy(
    name: Annotated[str, typer.Argument(help="A name of `rewardlab configs list`, a file, or a folder such as launch.")],
    destination: Annotated[Path, typer.Argument(metavar="DEST", help="File to write, or a folder to write it into.")],
    stage: Stage = None,
) -> None:
    """Copy a config to edit it: `rewardlab configs copy rl/grpo mine.yaml`. A file that exists is not overwritten.

    A folder's name copies all of its files, scripts too: `rewardlab configs copy launch configs/launch`.
    """
    from rewardlab.config import find_config, shipped_folder
    from rewardlab.data.files import write_atomic

    if destination.suffix != ".yaml" and (folder := shipped_folder(name)):
        _copy_folder(folder, destination)
        return
    path = find_config(name, stage)
    target = destination / path.name if destination.is_dir() else destination
    if target.exists():
        raise OutputError(f"{target}: exists; choose another name")
    write_atomic(target, path.read_text(encoding="utf-8"))
    typer.echo(f"written: {target}")


def _copy_folder(folder: Path, destination: Path) -> None:
    from rewardlab.data.files import write_atomic

    targets = {path: destination / path.name for path in sorted(folder.iterdir())}
    if there := next((target for target in targets.values() if target.exists()), None):
        raise OutputError(f"{there}: exists; choose another folder")
    for path, target in targets.items():
        write_atomic(target, path.read_text(encoding="utf-8"))
        target.chmod(path.stat().st_mode)
        typer.echo(f"written: {target}")


@configs_app.command("keys")
def configs_keys(
    stage: Annotated[str, typer.Argument(help="A stage such as sft or rl, or judge; an unknown name lists all.")],
    words: Annotated[
        Optional[list[str]], typer.Argument(help="Only list keys with one of these words in their name or description.")
    ] = None,
) -> None:
    """Print every key of a stage's configs with its type, default and description: `rewardlab configs keys rl kl clip`."""
    from rewardlab.config import config_keys, find_schema

    keys = list(config_keys(find_schema(stage)))
    wanted = [key for key in keys if not words or any(w.lower() in f"{key.name} {key.description}".lower() for w in words)]
    if not wanted:
        raise ConfigError(f"no key of {stage} has {' or '.join(words or [])} in its name or description")
    for key in wanted:
        default = f"; default {key.default}" if key.default else "; required" if key.is_required else ""
        typer.echo(f"{key.name} ({key.type}{default})\n    {key.description}")


def _folder() -> Path:
    from rewardlab.config import configs_folder

    return configs_folder()


def _group_of(name: str) -> str:
    """Return the stage of a shipped config, or else its folder."""
    from rewardlab.config import stage_of

    try:
        return stage_of(Path(name))
    except ConfigError:
        return name.split("/")[0]


def _first_sentence(path: Path) -> str:
    """Return the first sentence of a config's opening comment."""
    comment = []
    for line in path.read_text(encoding="utf-8").split("\n"):
        if not line.startswith("#"):
            break
        comment.append(line.removeprefix("#").strip())
    first, *others = re.split(r"(?<!\bDr)\. ", " ".join(comment), maxsplit=1)
    return f"{first}." if others else first


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
        bool, typer.Option("--dry-run", help="Load no weights: check config, model, batches, memory and disk only.")
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
    return Plan(launch, options.memory, options.out, options.host_memory)
