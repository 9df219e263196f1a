"""YAML as a person means it: numbers and booleans of YAML 1.2, and no key twice."""

from __future__ import annotations

import re
from typing import Any

import yaml


class _Loader(yaml.SafeLoader):
    """Reads numbers and booleans as YAML 1.2 does, and refuses a key that a mapping has twice.

    PyYAML follows YAML 1.1, in which 3e-4 is text, and off, no and on are booleans.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.value != "<<"]
        if twice := sorted({key for key in keys if keys.count(key) > 1}):
            raise yaml.constructor.ConstructorError(None, None, f"the key {twice[0]!r} is there twice", node.start_mark)
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
    return yaml.load(text, Loader=_Loader)


def write_yaml(value: Any) -> str:
    """Return ``value`` as one line of YAML."""
    text = yaml.dump(value, Dumper=_Dumper, default_flow_style=True, width=10_000, allow_unicode=True, sort_keys=False)
    return text.removesuffix("\n...\n").strip()
