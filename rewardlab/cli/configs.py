"""`rewardlab configs`: the shipped configs, and every key of a config."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Optional

import typer

from rewardlab.cli.options import Overrides, configs_app
from rewardlab.errors import ConfigError, OutputError

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
    stage: Annotated[
        str, typer.Argument(help="A stage: distill, sft, rm, rl, prm, steps, policy, recipes, harden, pipelines or judge.")
    ],
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
