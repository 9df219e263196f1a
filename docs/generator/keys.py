"""``reference/yaml/``: the keys of every stage's YAML, read from the schemas, and the configs that ship."""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Iterator
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from docs.generator.command_line import escape_cell
from rewardlab.config import SCHEMAS, SuiteConfig, config_names, configs_folder

TITLES = {
    "distill": ("Distillation", "rewardlab distill --config"),
    "sft": ("SFT", "rewardlab sft --config"),
    "rl": ("RL of a judge", "rewardlab rl --config"),
    "policy": ("Policy", "rewardlab policy --config"),
    "dpo": ("Preference optimisation", "rewardlab dpo --config"),
    "rm": ("Bradley-Terry head", "rewardlab rm --config"),
    "prm": ("Process reward model", "rewardlab prm --config"),
    "steps": ("Step labels", "rewardlab steps KEY=VALUE"),
    "recipes": ("Mapping of a source", "rewardlab data build FILE.yaml"),
    "harden": ("Hardening loop", "rewardlab harden --config"),
    "pipelines": ("Pipeline", "rewardlab quickstart"),
    "judge": ("Judge", "rewardlab bench run --judge"),
    "self-distil": ("Self-distillation", "rewardlab self-distil KEY=VALUE"),
    "build": ("Building a set", "rewardlab data build RECIPE KEY=VALUE"),
    "filter": ("Filtering judgments", "rewardlab data filter DATA KEY=VALUE"),
    "decontaminate": ("Decontamination", "rewardlab data decontaminate TRAIN KEY=VALUE"),
    "negatives": ("Hard negatives", "rewardlab data negatives DATA KEY=VALUE"),
    "suite": ("Benchmark suite", "rewardlab bench suite FILE.yaml"),
}


def type_text(annotation: Any) -> str:
    """Return a type as a reader of YAML calls it: ``int``, ``text``, ``a | b``, ``list of text``."""
    if annotation is type(None):
        return "null"
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " \\| ".join(f"`{value}`" if value != "" else '`""`' for value in arguments)
    if origin in (Union, types.UnionType):
        return " \\| ".join(type_text(part) for part in arguments)
    if origin in (list, tuple):
        parts = [type_text(part) for part in arguments if part is not Ellipsis]
        return f"list of {parts[0]}" if len(set(parts)) == 1 else f"[{', '.join(parts)}]"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return f"[{annotation.__name__}](#{annotation.__name__.lower()})"
    return {"str": "text", "bool": "true \\| false", "float": "number", "int": "integer"}.get(
        getattr(annotation, "__name__", ""), escape_cell(getattr(annotation, "__name__", annotation))
    )


def _default(field: Any) -> str:
    if field.is_required():
        return "required"
    value = field.default
    if value is PydanticUndefined:  # a part with defaults of its own
        return "see there"
    return "`null`" if value is None else f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _bounds(field: Any) -> str:
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    limits = [
        f"{sign} {getattr(limit, name)}" for limit in field.metadata for name, sign in signs.items() if hasattr(limit, name)
    ]
    return f" ({', '.join(limits)})".replace("<", "&lt;") if limits else ""


def inner_schemas(schema: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """Yield the schemas of the parts of a schema, each once."""
    for field in schema.model_fields.values():
        for part in (field.annotation, *get_args(field.annotation)):
            if isinstance(part, type) and issubclass(part, BaseModel):
                yield part
                yield from inner_schemas(part)


def _docstring(schema: type[BaseModel]) -> str:
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", schema.__doc__ or "").replace("``", "`")
    return "\n\n".join(" ".join(block.split()) for block in text.strip().split("\n\n"))


def _owner(schema: type[BaseModel], key: str) -> type[BaseModel]:
    """Return the class that declares a key, the farthest one from the schema."""
    return next(c for c in reversed(schema.__mro__) if key in inspect.get_annotations(c))


def _table(schema: type[BaseModel], keys: list[str]) -> list[str]:
    rows = ["| key | type | default | what it does |", "|---|---|---|---|"]
    for key in keys:
        field = schema.model_fields[key]
        kind = type_text(field.annotation) + _bounds(field)
        rows.append(f"| `{key}` | {kind} | {_default(field)} | {escape_cell(field.description or '')} |")
    return [*rows, ""]


def schema_page(schema: type[BaseModel], title: str, command: str) -> str:
    """Return the page of one schema: its own keys, then those it inherits, class by class, then the parts."""
    lines = [f"# {title}: YAML keys\n", f"`{command}`\n", _docstring(schema), ""]
    for owner in schema.__mro__:
        if keys := [key for key in schema.model_fields if _owner(schema, key) is owner]:
            if owner is not schema:
                lines += [f"## Keys of {owner.__name__}\n", _docstring(owner), ""]
            else:
                lines.append("## Own keys\n")
            lines += _table(schema, keys)
    for part in dict.fromkeys(inner_schemas(schema)):
        lines += [f"## {part.__name__}\n", _docstring(part), "", *_table(part, list(part.model_fields))]
    return "\n".join(lines)


def _first_comment(name: str) -> str:
    first = (configs_folder() / f"{name}.yaml").read_text(encoding="utf-8").split("\n\n")[0].splitlines()
    comment = " ".join(line.lstrip("# ").strip() for line in first if line.startswith("#"))
    return re.split(r"(?<=[.:;])\s", comment)[0].rstrip(":;")


def config_index() -> str:
    """Return the page that lists the schemas and the configs that ship."""
    lines = [
        "# YAML\n",
        "A config contains only differences from the defaults. An unknown key is an error that names the nearest known one.\n",
        "| stage | keys | command |\n|---|---|---|",
        *(f"| {title} | [{stage}.md]({stage}.md) | `{command}` |" for stage, (title, command) in TITLES.items()),
        "\n## Shipped configs\n",
        "Use one by name: `--config rl/grpo`. `accelerate/` has files for `accelerate launch`.\n",
        "| name | what it is |\n|---|---|",
        *(f"| `{name}` | {escape_cell(_first_comment(name))} |" for name in config_names()),
        "",
    ]
    return "\n".join(lines)


def key_pages() -> dict[str, str]:
    """Return the pages by their path below ``docs/``."""
    schemas: dict[str, type[BaseModel]] = {**SCHEMAS, "suite": SuiteConfig}
    pages = {f"reference/yaml/{stage}.md": schema_page(schema, *TITLES[stage]) for stage, schema in schemas.items()}
    return {"reference/yaml/index.md": config_index(), **pages}
