"""What is wrong with a config, in a sentence: every bad key by its name, and the known one that is nearest."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import SequenceMatcher
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from rewardlab.config.stages import stage_of_schema

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
_LEAST_LIKENESS, _LIKENESS_BELOW_BEST = 0.7, 0.05


def explain(error: ValidationError, schema: type[BaseModel], where: str) -> str:
    """Return one sentence on all that pydantic found wrong in the values of ``where``."""
    items: list[Any] = list(error.errors())
    if any(item["type"] == "extra_forbidden" for item in items):  # a row with an unknown key makes its list seem empty
        items = [item for item in items if item["type"] != "too_short"]
    return f"{where}: " + "; ".join(_explain_item(item, schema) for item in items)


def _explain_item(item: Any, schema: type[BaseModel]) -> str:
    key, message = ".".join(map(str, item["loc"])), item["msg"].removeprefix("Value error, ")
    if item["type"] != "extra_forbidden":
        return f"{key}: {message}" if key else message
    here = _schema_at(schema, item["loc"][:-1])
    if (new := RENAMED.get(str(item["loc"][-1]))) in here.model_fields:
        return f"{key!r} is called {new!r} now"
    in_a_list = any(isinstance(part, int) for part in item["loc"])  # of mappings, such as a suite's benchmarks
    if near := nearest_keys(here, str(item["loc"][-1])) if in_a_list else nearest_keys(schema, key):
        return f"unknown key {key!r}; did you mean {' or '.join(map(repr, near))}?"
    if (stage := stage_of_schema(schema)) is not None:
        return f"unknown key {key!r}; `rewardlab configs keys {stage}` lists those there are"
    return f"unknown key {key!r}; {here.__name__} has {', '.join(here.model_fields)}"


def nearest_keys(schema: type[BaseModel], key: str) -> list[str]:
    """Return the dotted keys of a schema that are most like ``key``: at most three, none where all are far from it."""
    likeness = {name: _likeness(name, key) for name in dotted_keys(schema)}
    best = max(likeness.values())
    if best < _LEAST_LIKENESS:
        return []
    return sorted(name for name, value in likeness.items() if value >= best - _LIKENESS_BELOW_BEST)[:3]


def _likeness(name: str, key: str) -> float:
    """Return 0 to 1. The last part alone counts a little less than the whole: ``weight`` may mean ``consistency.weight``."""
    whole = SequenceMatcher(None, name, key.replace("__", ".")).ratio()
    return max(whole, 0.9 * SequenceMatcher(None, name.rsplit(".", 1)[-1], key.rsplit(".", 1)[-1]).ratio())


def dotted_keys(schema: type[BaseModel]) -> Iterator[str]:
    """Yield the keys of a schema and of the mappings within it, as ``consistency.weight``."""
    for name, field in schema.model_fields.items():
        yield name
        if (inner := inner_schema(field.annotation)) is not None:
            yield from (f"{name}.{below}" for below in dotted_keys(inner))


def inner_schema(annotation: Any) -> type[BaseModel] | None:
    """Return the schema that a key's value is held to, where it is a mapping (or null); else None."""
    if get_origin(annotation) in (Union, UnionType):
        return next((inner for part in get_args(annotation) if (inner := inner_schema(part)) is not None), None)
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _schema_at(schema: type[BaseModel], location: tuple[int | str, ...]) -> type[BaseModel]:
    """Return the schema of the part that a location leads to, through lists of mappings too."""
    for key in location:
        if (part_field := schema.model_fields.get(str(key))) is not None:
            parts = (part_field.annotation, *get_args(part_field.annotation))
            schema = next((inner for part in parts if (inner := inner_schema(part)) is not None), schema)
    return schema
