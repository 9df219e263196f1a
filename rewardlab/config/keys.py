"""The keys of a schema as a person reads them: type, bounds, default and description; and a whole config as commented YAML."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rewardlab.config.explanations import inner_schema
from rewardlab.config.yaml_text import write_yaml

_BOUNDS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}  # as annotated_types calls them


@dataclass(frozen=True)
class ConfigKey:
    """One key. ``name`` is dotted, ``type`` is in words with its bounds, ``default`` is as YAML writes it: "" if it is
    required, and of a mapping that is always there."""

    name: str
    type: str
    default: str
    description: str
    is_required: bool = False


def config_keys(schema: type[BaseModel]) -> Iterator[ConfigKey]:
    """Yield every key of a schema, and after a key whose value is a mapping those within it."""
    for name, field in schema.model_fields.items():
        inner = inner_schema(field.annotation)
        required = field.is_required()
        default = None if inner is not None else field.get_default(call_default_factory=True)
        default_text = "" if required else _default_of_mapping(field) if inner is not None else flow_yaml(default)
        yield ConfigKey(name, _type_text(field), default_text, field.description or "", required)
        for key in config_keys(inner) if inner is not None else ():
            yield ConfigKey(f"{name}.{key.name}", key.type, key.default, key.description, key.is_required)


def resolved_yaml(config: BaseModel) -> str:
    """Return ``config`` as YAML with every key. A comment has each key's description, and the default where it differs."""
    return "\n".join(_lines(config, "")) + "\n"


def flow_yaml(value: Any) -> str:
    """Return a key's value as one line of YAML."""
    return write_yaml(value.model_dump(mode="json") if isinstance(value, BaseModel) else _as_lists(value))


def _lines(config: BaseModel, indent: str) -> Iterator[str]:
    for name, field in type(config).model_fields.items():
        value = getattr(config, name)
        if isinstance(value, BaseModel):
            yield f"{indent}{name}:  # {field.description}"
            yield from _lines(value, f"{indent}  ")
            continue
        if isinstance(value, dict) and value and all(isinstance(item, BaseModel) for item in value.values()):
            yield f"{indent}{name}:  # {field.description}"
            for key, item in value.items():
                yield f"{indent}  {key}: {flow_yaml(item.model_dump(mode='json', exclude_defaults=True))}"
            continue
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        note = "" if field.is_required() or value == default else f"DIFFERS from the default {flow_yaml(default)}. "
        yield f"{indent}{name}: {flow_yaml(value)}  # {note}{field.description}"


def _default_of_mapping(field: FieldInfo) -> str:
    """Return "null", or "" where the mapping is always there and its keys have the defaults."""
    return "null" if field.get_default(call_default_factory=True) is None else ""


def _as_lists(value: Any) -> Any:
    return [_as_lists(item) for item in value] if isinstance(value, tuple | list) else value


def _type_text(field: FieldInfo) -> str:
    text = _annotation_text(field.annotation)
    bounds = [
        f"{sign} {getattr(rule, name):g}" for rule in field.metadata for name, sign in _BOUNDS.items() if hasattr(rule, name)
    ]
    return f"{text}, {' and '.join(bounds)}" if bounds else text


def _annotation_text(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is NoneType:
        return "null"
    if origin is Literal:
        return " | ".join(flow_yaml(value) for value in arguments)
    if origin in (Union, UnionType):
        return " | ".join(map(_annotation_text, arguments))
    if origin is list or (origin is tuple and arguments[-1] is Ellipsis):
        return f"list of {_annotation_text(arguments[0])}"
    if origin is tuple:
        return f"[{', '.join(map(_annotation_text, arguments))}]"
    if origin is dict or (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        return "mapping"
    return {"str": "text"}.get(annotation.__name__, str(annotation.__name__))
