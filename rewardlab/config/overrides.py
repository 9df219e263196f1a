"""``key=value`` and dotted keys: what is laid over a config file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import yaml

from rewardlab.config.yaml_text import read_yaml
from rewardlab.errors import ConfigError

_KEY = re.compile(r"[A-Za-z_]\w*(\.\w+)*")


def parse_overrides(assignments: Iterable[str]) -> dict[str, Any]:
    """Return ``{"consistency.weight": 0}`` for ``["consistency.weight=0"]``; values are YAML. Raise ConfigError for what is no
    ``key=value``, and for a key that is set twice."""
    values: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not _KEY.fullmatch(key):
            raise ConfigError(f"{assignment!r}: expected KEY=VALUE, for example learning_rate=3e-4 or consistency.weight=0")
        if key in values:
            raise ConfigError(f"{key} is set twice, as {values[key]!r} and in {assignment}; give it once")
        try:
            values[key] = read_yaml(text)
        except yaml.YAMLError as error:
            problem = getattr(error, "problem", None) or error
            raise ConfigError(f"{assignment!r}: the value is not valid YAML ({problem}); quote it for the shell") from error
    return values


def nest(values: Mapping[str, Any], where: str = "options") -> dict[str, Any]:
    """Return ``{"a": {"b": 0}}`` for ``{"a.b": 0}``. Raise ConfigError for a key that is set twice, as in ``a`` and ``a.b``."""
    nested: dict[str, Any] = {}
    for key, value in values.items():
        inner = nest(value, where) if isinstance(value, Mapping) else value
        *above, last = key.split(".")
        place = nested
        for part in above:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise ConfigError(f"{where}: {key} is set beside {part}; give one of them")
        if last not in place:
            place[last] = inner
        elif isinstance(inner, dict) and isinstance(place[last], dict) and not _shared(inner, place[last]):
            place[last] = merge(place[last], inner)
        else:
            raise ConfigError(f"{where}: {key} is set twice; give it once")
    return nested


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``base`` with ``changes`` laid over it; of a mapping within both, only the keys named in ``changes`` change."""
    merged = dict(base)
    for key, value in changes.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def refuse_shared(changes: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Raise ConfigError for a key that ``key=value`` and an option of the command line both set; both are nested."""
    if shared := _shared(changes, options):
        raise ConfigError(f"{shared[0]} is set twice, by {shared[0]}=... and by an option of its own; give one of them")


def _shared(left: Mapping[str, Any], right: Mapping[str, Any]) -> list[str]:
    """Return the dotted keys that both set; a key whose value is replaced as a whole sets all keys below it."""
    return list(_shared_keys(left, right))


def _shared_keys(left: Mapping[str, Any], right: Mapping[str, Any]) -> Iterator[str]:
    for key in left.keys() & right.keys():
        if isinstance(left[key], dict) and isinstance(right[key], dict):
            yield from (f"{key}.{below}" for below in _shared_keys(left[key], right[key]))
        else:
            yield key
