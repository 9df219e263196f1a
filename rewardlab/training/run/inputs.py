"""What a training run is given: pairs or their file, a config or its name with differences."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from rewardlab.config import load_config
from rewardlab.data.pairs import read_pairs
from rewardlab.errors import ConfigError
from rewardlab.types import PreferencePair

Config = TypeVar("Config", bound=BaseModel)


def config_of(schema: type[Config], config: Config | str | Path | None, **overrides: Any) -> Config:
    """Return a config as it is, or of a YAML file, a name under ``configs/`` or the defaults, with ``overrides``. Raise
    ConfigError, also for overrides of a config that is complete."""
    if not isinstance(config, BaseModel):
        return load_config(schema, config, **overrides)
    if overrides:
        raise ConfigError(f"{', '.join(overrides)}: the {schema.__name__} given is complete; set it there, or name a YAML file")
    return config


def pairs_of(pairs: Sequence[PreferencePair] | str | Path, frames: int) -> Sequence[PreferencePair]:
    """Return pairs as they are, or those of a file, of videos ``frames``. Raise DataError or MediaError."""
    return read_pairs(pairs, frames=frames) if isinstance(pairs, str | Path) else pairs
