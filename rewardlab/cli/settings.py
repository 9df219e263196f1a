"""Options of a command from a file and from the environment: a YAML of their names, and variables of a prefix."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Optional

import typer
import yaml

from rewardlab.errors import ConfigError

SERVE_PREFIX = "REWARDLAB_SERVE"


def read_settings(context: typer.Context, path: Optional[Path]) -> Optional[Path]:
    """Have the options of a file as the command's defaults; options and variables that are given stand above them.

    Raise ConfigError for a file that cannot be read or holds no options, and for a name, in it or among the variables, of none.
    """
    names = {parameter.name for parameter in context.command.params if parameter.name} - {"config", "help"}
    repeated = {parameter.name for parameter in context.command.params if getattr(parameter, "multiple", False)}
    prefix = f"{context.auto_envvar_prefix}_"
    variables = {name.removeprefix(prefix).lower() for name in os.environ if name.startswith(prefix)}
    for variable in sorted(variables - names - {"config"}):
        raise ConfigError(
            f"{prefix}{variable.upper()} is set, and there is no option {_option(variable)}{_nearest(variable, names)}"
        )
    if path is None:
        return None
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"--config {path}: cannot be read ({error})") from error
    if not isinstance(settings, dict):
        raise ConfigError(
            f"--config {path}: expected a mapping of options, such as `group-size: 8`, got {type(settings).__name__}"
        )
    given = {str(name).replace("-", "_"): value for name, value in settings.items()}
    for name in sorted(set(given) - names):
        raise ConfigError(f"--config {path}: there is no option {_option(name)}{_nearest(name, names)}")
    for name in repeated & set(given):
        given[name] = given[name] if isinstance(given[name], list) else [given[name]]
    context.default_map = {**(context.default_map or {}), **given}
    return path


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _nearest(name: str, names: Iterable[str]) -> str:
    nearest = difflib.get_close_matches(name, names, 1)
    return f"; did you mean {_option(nearest[0])}?" if nearest else "; `rewardlab serve --help` lists them"
