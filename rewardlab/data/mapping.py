"""A recipe written as YAML: which columns of a CSV, JSON, JSON lines or Parquet file are what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from rewardlab.config.data import MappingConfig
from rewardlab.data.recipes import Dropped, Recipe, SourceFolder, clean_text, make_pair
from rewardlab.errors import DataError
from rewardlab.types import PreferencePair

MOST_NAMES = 40  # columns that a message lists


def value_at(row: Mapping[str, Any], path: str) -> Any:
    """Return ``row["a"]["b"][0]`` for path ``a.b.0``. Raises DataError if there is no such place."""
    value: Any = row
    for step in path.split("."):
        try:
            value = value[int(step)] if isinstance(value, list | tuple) else value[step]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            if not isinstance(value, Mapping):
                raise DataError(f"no {path!r} in the row: {step!r} is no place in a {_kind_of(value)}") from error
            names = list(map(str, value))
            close = get_close_matches(step, names, n=1)
            meant = f"; did you mean {close[0]!r}?" if close else ""
            listed = ", ".join(names[:MOST_NAMES]) + (f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else "")
            raise DataError(f"no {path!r} in the row: {step!r} is not among {listed}{meant}") from error
    return value


def _kind_of(value: Any) -> str:
    return f"list of {len(value)}" if isinstance(value, list | tuple) else type(value).__name__


def _own_id(value: Any, name: str) -> str:
    """Return a row's own id as text. Raises DataError for a row without one."""
    if value is None or not str(value).strip():
        raise DataError(f"{name!r} is empty; every row needs its own id, or leave `id` out of the mapping")
    return str(value)


def recipe_of(config: MappingConfig) -> Recipe:
    """Return the recipe that a mapping stands for."""

    def text(row: Mapping[str, Any], path: str | None) -> str:
        return "" if path is None else str(value_at(row, path) or "")

    def convert(row: Mapping[str, Any], source: SourceFolder) -> Iterator[PreferencePair | Dropped]:
        question = clean_text(value_at(row, config.question), config.question)
        images = tuple(image for path in config.images for image in source.images(value_at(row, path), path))
        category, origin = text(row, config.category), text(row, config.source)
        pair_id = "" if config.id is None else _own_id(value_at(row, config.id), config.id)
        shared = {"category": category, "source": origin, "pair_id": pair_id}
        if config.chosen is not None and config.rejected is not None:
            better, worse = (clean_text(value_at(row, path), path) for path in (config.chosen, config.rejected))
            same = better == worse
            pair = make_pair(question, better, worse, images, **shared) if not same else None
            yield pair or Dropped("the answers are equal")
            return
        first, second = (clean_text(value_at(row, path), path) for path in config.responses)
        label = str(value_at(row, str(config.preferred))).strip()
        if label in config.ties:
            yield Dropped("tie")
        elif label not in (config.first, config.second):
            raise DataError(
                f"{config.preferred!r} is {label!r}; expected {config.first!r} or {config.second!r}, or of ties {config.ties}"
            )
        elif first == second:
            yield Dropped("the answers are equal")
        else:
            preferred = int(label == config.second)
            yield PreferencePair(pair_id, question, (first, second), preferred, images, category=category, source=origin)

    return Recipe(config.name, config.url, config.licence, config.published, convert, files=(*config.files,))
