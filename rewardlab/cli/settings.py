"""Options of a command from a file and from the environment: a YAML of their names, and variables of a prefix."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Optional

import typer
import yaml

from rewardlab.errors import ConfigError

SERVE_PREFIX = "REWARDLAB_SERVE"


def judge_defaults(path: Path | None) -> dict[str, Any]:
    """Return the keys of the judge that a file of options and the environment set, the environment over the file."""
    from rewardlab.config.judge import JUDGE_KEYS
    from rewardlab.config.loading import read_yaml

    given = {} if path is None else {name.replace("-", "_"): value for name, value in _read(path).items()}
    variables = {name: os.environ.get(f"{SERVE_PREFIX}_{name.upper()}") for name in JUDGE_KEYS}
    given |= {name: read_yaml(text) for name, text in variables.items() if text is not None}
    return {name: value for name, value in given.items() if name in JUDGE_KEYS and name != "votes"}


def read_settings(context: typer.Context, path: Optional[Path]) -> Optional[Path]:
    """Have the options of a file as the command's defaults; options and variables that are given stand above them.

    Raise ConfigError for a file that cannot be read or holds no options, and for a name, in it or among the variables, of none.
    """
    from rewardlab.config.judge import JUDGE_KEYS

    names = {parameter.name for parameter in context.command.params if parameter.name} - {"config", "help", "overrides"}
    options, names = names, names | set(JUDGE_KEYS)
    repeated = {parameter.name for parameter in context.command.params if getattr(parameter, "multiple", False)}
    prefix = f"{context.auto_envvar_prefix}_"
    variables = {name.removeprefix(prefix).lower() for name in os.environ if name.startswith(prefix)}
    for variable in sorted(variables - names - {"config"}):
        raise ConfigError(
            f"{prefix}{variable.upper()} is set, and there is no option {_option(variable)}{_nearest(variable, names)}"
        )
    if path is None:
        return None
    given = {name.replace("-", "_"): value for name, value in _read(path).items()}
    for name in sorted(set(given) - names):
        raise ConfigError(f"--config {path}: there is no option {_option(name)}{_nearest(name, names)}")
    given = {name: value for name, value in given.items() if name in options}
    for name in repeated & set(given):
        given[name] = given[name] if isinstance(given[name], list) else [given[name]]
    context.default_map = {**(context.default_map or {}), **given}
    return path


def _read(path: Path) -> dict[str, Any]:
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"--config {path}: cannot be read ({error})") from error
    if not isinstance(settings, dict):
        raise ConfigError(
            f"--config {path}: expected a mapping of options, such as `group-size: 8`, got {type(settings).__name__}"
        )
    return {str(name): value for name, value in settings.items()}


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _nearest(name: str, names: Iterable[str]) -> str:
    nearest = difflib.get_close_matches(name, names, 1)
    return f"; did you mean {_option(nearest[0])}?" if nearest else "; `rewardlab serve --help` lists them"
