"""What a training run is given: pairs or their file, a config or its name with differences."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from rewardlab.config import load_config
from rewardlab.data.pair_table import PairTable, pair_facts
from rewardlab.errors import ConfigError, DataError
from rewardlab.models.model_config import video_policy_of
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


def refuse_repeated_ids(pairs: Sequence[PreferencePair]) -> None:
    """Raise DataError where two pairs have one id: rollouts are grouped, and what belongs to a pair is kept, by it."""
    seen = set[str]()
    for facts in pair_facts(pairs):
        if facts.pair_id in seen:
            raise DataError(
                f"pair_id {facts.pair_id!r} is there twice; every pair needs its own (`rewardlab data validate` lists them)"
            )
        seen.add(facts.pair_id)


def pairs_of(
    pairs: Sequence[PreferencePair] | str | Path,
    frames: int,
    model: str,
    *,
    images: Path | None = None,
    allow_columns: Collection[str] = (),
    allow_without_images: bool = False,
) -> Sequence[PreferencePair]:
    """Return pairs as they are, or those of a set on disk, read as they are taken; videos as ``model``'s family is shown them,
    or as ``frames``. ``images``: where relative paths of media start; ``allow_columns``: that may be there
    unread; ``allow_without_images``: a set that speaks of images and has none is read, too. Raise DataError or MediaError."""
    if not isinstance(pairs, str | Path):
        return pairs
    policy = partial(video_policy_of, model)
    return PairTable(
        Path(pairs),
        images=images,
        frames=frames,
        policy=policy,
        allow_columns=allow_columns,
        allow_without_images=allow_without_images,
    )
