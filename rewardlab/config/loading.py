"""A config read: the YAML's differences over the schema's defaults, and over both what the command line or a caller says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from rewardlab.config.explanations import explain
from rewardlab.config.files import find_config
from rewardlab.config.overrides import merge, nest, refuse_shared
from rewardlab.config.stages import stage_of_schema
from rewardlab.config.yaml_text import read_yaml
from rewardlab.errors import ConfigError

Config = TypeVar("Config", bound=BaseModel)


def load_yaml(name_or_path: str | Path, stage: str | None = None) -> dict[str, Any]:
    """Return the mapping in a YAML file, given by path or by name (:func:`find_config`). Raise ConfigError."""
    path = find_config(name_or_path, stage)
    try:
        value = read_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); expected a YAML file") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid YAML ({error})") from error
    values = {} if value is None else value
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected key: value lines, got a {type(value).__name__}")
    if strangers := [key for key in values if not isinstance(key, str)]:
        raise ConfigError(f"{path}: the key {strangers[0]!r} is no text; expected key: value lines")
    return values


def load_config(
    schema: type[Config], path: str | Path | None, changes: Mapping[str, Any] | None = None, **options: Any
) -> Config:
    """Return ``schema`` with the YAML's differences, then ``changes``, then those ``options`` that are not None.

    ``path`` is a file or a name; a short one is looked up among the configs of the schema's stage. ``changes`` and ``options``
    may have dotted keys (``{"consistency.weight": 0}``) and mappings, of which only the keys named change; in ``changes`` None
    is a value. Raise ConfigError naming every bad key, and for a key that both set.
    """
    where = str(path) if path else "options"
    values = nest(load_yaml(path, stage_of_schema(schema)), where) if path else {}
    nested = nest(changes or {})
    given = nest({name: value for name, value in options.items() if value is not None})
    refuse_shared(nested, given)
    if path and changes:
        where += f" with {', '.join(changes)}"
    try:
        return schema(**merge(merge(values, nested), given))
    except ValidationError as error:
        raise ConfigError(explain(error, schema, where)) from error
