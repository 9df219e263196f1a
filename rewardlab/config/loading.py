"""Configs read and written: YAML, ``key=value`` and dotted keys over it, errors by key, and every key with its description.

A config is the YAML's differences from the schema's defaults, and over both the values of the command line or of a caller.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from rewardlab.config.files import find_config, stage_of_schema
from rewardlab.errors import ConfigError

Config = TypeVar("Config", bound=BaseModel)
_KEY = re.compile(r"[A-Za-z_]\w*(\.\w+)*")
_LEAST_LIKENESS, _LIKENESS_BELOW_BEST = 0.7, 0.05
_BOUNDS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}  # as annotated_types calls them


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
        raise ConfigError(f"{path}: the key {strangers[0]!r} is not a string; expected key: value lines")
    return values


def load_config(
    schema: type[Config], path: str | Path | None, changes: Mapping[str, Any] | None = None, **options: Any
) -> Config:
    """Return ``schema`` with the YAML's differences, then ``changes``, then those ``options`` that are not None. ``path`` is a
    file or a name, looked up among the configs of the schema's stage. ``changes`` and ``options`` may have dotted keys
    (``{"consistency.weight": 0}``) and mappings, which change only the keys they name; in ``changes`` None is a value. Raise
    ConfigError for every bad key, and for a key that both set.
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


def parse_overrides(assignments: Iterable[str]) -> dict[str, Any]:
    """Return ``{"consistency.weight": 0}`` for ``["consistency.weight=0"]``; values are YAML. Raise ConfigError for anything
    else, and for a key that is set twice."""
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
        if not isinstance(key, str):
            raise ConfigError(f"{where}: the key {key!r} is not text; expected a name, such as {str(key)!r} in quotes")
        inner = nest(value, where) if isinstance(value, Mapping) else value
        *above, last = key.split(".")
        place = nested
        for part in above:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise ConfigError(f"{where}: {key} is set as well as {part}; give one of them")
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


def explain(error: ValidationError, schema: type[BaseModel], where: str) -> str:
    """Return one sentence on all that pydantic found wrong in the values of ``where``."""
    items: list[Any] = list(error.errors())
    if any(item["type"] == "extra_forbidden" for item in items):  # a row with an unknown key makes its list seem empty
        items = [item for item in items if item["type"] != "too_short"]
    return f"{where}: " + "; ".join(_explain_item(item, schema) for item in items)


def _explain_item(item: Any, schema: type[BaseModel]) -> str:
    key, message = ".".join(map(str, item["loc"])), item["msg"].removeprefix("Value error, ")
    if item["type"] == "model_type":
        keys = ", ".join(_schema_at(schema, item["loc"]).model_fields)
        message = f"expected a mapping of keys among {keys}; got {item['input']!r}"
    if item["type"] != "extra_forbidden":
        return f"{key}: {message}" if key else message
    here = _schema_at(schema, item["loc"][:-1])
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


class _Loader(yaml.SafeLoader):
    """Reads numbers and booleans as YAML 1.2 (in YAML 1.1, PyYAML's, 3e-4 is text and no a boolean). Refuses repeated keys, and
    a value that contains itself."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.deep_construct = True  # finish each value before its parent, which finds one that contains itself

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.value != "<<"]
        if twice := sorted({key for key in keys if keys.count(key) > 1}):
            raise yaml.constructor.ConstructorError(None, None, f"the key {twice[0]!r} appears twice", node.start_mark)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Quotes a text that a reader of YAML 1.1 or of 1.2 would take for something else."""


_OTHERWISE_IN_1_2 = ("bool", "int", "float", "timestamp")
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in rules if tag.rsplit(":", 1)[1] not in _OTHERWISE_IN_1_2]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Dumper.yaml_implicit_resolvers = {first: list(rules) for first, rules in yaml.SafeDumper.yaml_implicit_resolvers.items()}
for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?(0|[1-9][0-9_]*|0x[0-9a-fA-F]+)", "-+0123456789"),
    ("float", r"[-+]?([0-9][0-9_]*\.[0-9_]*|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+", "-+.0123456789"),
    ("float", r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", "-+."),
):
    for _reader_or_writer in (_Loader, _Dumper):
        _reader_or_writer.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})\Z"), list(_first))


def read_yaml(text: str) -> Any:
    """Return the value of a YAML text. Raise yaml.YAMLError."""
    try:
        return yaml.load(text, Loader=_Loader)
    except (ValueError, KeyError, AttributeError, RecursionError) as error:  # such as `!!int x`, 5000 digits, 1000 brackets
        raise yaml.YAMLError(f"a value cannot be read: {error}") from error


def write_yaml(value: Any) -> str:
    """Return ``value`` as one line of YAML."""
    text = yaml.dump(value, Dumper=_Dumper, default_flow_style=True, width=10_000, allow_unicode=True, sort_keys=False)
    return text.removesuffix("\n...\n").strip()
