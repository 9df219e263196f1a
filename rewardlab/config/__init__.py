"""Schemas of ``configs/*.yaml``. Class defaults are the paper's recipe (arXiv 2505.02835); a YAML holds only differences.

An unknown key is an error. Numbers without a source in the paper carry a reason beside them.
"""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from rewardlab.config.base import HealthConfig, LoraConfig, PixelConfig, TrainConfig
from rewardlab.config.bench import BenchEntry, SuiteConfig
from rewardlab.config.data import DistillConfig, MappingConfig, StepsConfig
from rewardlab.config.files import config_names, configs_folder, find_config, find_configs, name_of_config
from rewardlab.config.method import Method
from rewardlab.config.rl import ConsistencyConfig, EngineConfig, HotTokenConfig, MethodConfig, PolicyConfig, RLConfig
from rewardlab.config.supervised import PRMConfig, RMConfig, SFTConfig
from rewardlab.errors import ConfigError

__all__ = [
    "SCHEMAS",
    "BenchEntry",
    "ConsistencyConfig",
    "DistillConfig",
    "EngineConfig",
    "HealthConfig",
    "HotTokenConfig",
    "LoraConfig",
    "MappingConfig",
    "Method",
    "MethodConfig",
    "PRMConfig",
    "PixelConfig",
    "PolicyConfig",
    "RLConfig",
    "RMConfig",
    "SFTConfig",
    "StepsConfig",
    "SuiteConfig",
    "TrainConfig",
    "config_names",
    "configs_folder",
    "find_config",
    "find_configs",
    "load_config",
    "load_yaml",
    "name_of_config",
]

# Keys of earlier versions, and what they are called now.
RENAMED = {
    "clip_eps": "clip_low",
    "clip_eps_high": "clip_high",
    "advantage_sigma": "outlier_sigma",
    "samples_per_prompt": "group_size",
    "length_adaptive_alpha": "length_alpha",
    "rollouts_at_once": "sampling_batch_size",
    "process_right_weight": "process_correct_weight",
    "max_position_lean": "max_position_bias",
}

# stage -> schema, of configs/STAGE/*.yaml and of files called STAGE.yaml
SCHEMAS: dict[str, type[BaseModel]] = {
    "distill": DistillConfig,
    "sft": SFTConfig,
    "rm": RMConfig,
    "rl": RLConfig,
    "prm": PRMConfig,
    "steps": StepsConfig,
    "policy": PolicyConfig,
    "recipes": MappingConfig,
}

Config = TypeVar("Config", bound=BaseModel)


def load_yaml(name_or_path: str | Path) -> dict[str, Any]:
    """Return the mapping in a YAML file, given by path or by name (:func:`find_config`). Raise ConfigError."""
    path = find_config(name_or_path)
    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
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


def load_config(schema: type[Config], path: str | Path | None, **overrides: Any) -> Config:
    """Return ``schema`` with the YAML's differences and then the non-None ``overrides``. Raise ConfigError naming every bad
    key."""
    values = load_yaml(path) if path else {}
    values |= {name: value for name, value in overrides.items() if value is not None}
    try:
        return schema(**values)
    except ValidationError as error:
        raise ConfigError(_explain(error, schema, str(path) if path else "options")) from error


def _explain(error: ValidationError, schema: type[BaseModel], where: str) -> str:
    lines = []
    items = error.errors()
    if any(item["type"] == "extra_forbidden" for item in items):  # a row with an unknown key makes its list seem empty
        items = [item for item in items if item["type"] != "too_short"]
    for item in items:
        key = ".".join(map(str, item["loc"])) or "(whole)"
        if item["type"] == "extra_forbidden":
            schema_here = _schema_at(schema, item["loc"][:-1])
            if (new := RENAMED.get(str(item["loc"][-1]))) in schema_here.model_fields:
                lines.append(f"{key!r} is called {new!r} now")
                continue
            near = get_close_matches(str(item["loc"][-1]), sorted(schema_here.model_fields), n=1) or get_close_matches(
                str(item["loc"][-1]), sorted(_names(schema)), n=1
            )
            hint = (
                f"did you mean {near[0]!r}?"
                if near
                else f"{schema_here.__name__} knows {', '.join(sorted(schema_here.model_fields))}"
            )
            lines.append(f"unknown key {key!r}; {hint}")
        else:
            lines.append(f"{key}: {item['msg']}")
    return f"{where}: " + "; ".join(lines)


def _schema_at(schema: type[BaseModel], location: tuple[int | str, ...]) -> type[BaseModel]:
    """Return the schema of the part that a location leads to."""
    for key in location:
        if (part_field := schema.model_fields.get(str(key))) is not None:
            inner = [part for part in (part_field.annotation, *get_args(part_field.annotation)) if isinstance(part, type)]
            schema = next((part for part in inner if issubclass(part, BaseModel)), schema)
    return schema


def _names(schema: type[BaseModel]) -> set[str]:
    """Keys of a schema and of those within it."""
    inner = [part for field in schema.model_fields.values() for part in (field.annotation, *get_args(field.annotation))]
    within = [_names(part) for part in inner if isinstance(part, type) and issubclass(part, BaseModel)]
    return set(schema.model_fields).union(*within)
