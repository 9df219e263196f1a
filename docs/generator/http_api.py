"""``reference/http.md``: every route of ``rewardlab serve`` with its body, from the OpenAPI description, and its metrics."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from docs.generator.command_line import escape_cell
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.prompts import load_template
from rewardlab.samplers.scripted import ScriptedSampler
from rewardlab.serving.app import ServiceCollector, create_app
from rewardlab.serving.limits import Limits

HEAD = """# HTTP

Every route of [`rewardlab serve`](../how-to/serve.md), generated from its OpenAPI description. A running server has it at
`/openapi.json`, and a page to try it at `/docs`. Errors are JSON with a message: 4xx for the request, 5xx for the engine.
"""
LIMITS = """## Limits

`rewardlab serve --limit NAME=NUMBER`, repeated as needed, changes a limit. In a settings file write
`comparisons: 131072`, as an environment variable `REWARDLAB_SERVE_COMPARISONS=131072`. A request beyond a limit is refused
with both numbers: 400, 413 or 422, or 429 with Retry-After if a later try may succeed.

| name | default | what it bounds |
|---|---|---|"""


def _judge() -> GenerativeJudge:
    return GenerativeJudge(ScriptedSampler(lambda prompt, draw: ""), load_template("plain"))


@cache
def openapi() -> dict[str, Any]:
    """Return the description that ``/openapi.json`` answers with."""
    description: dict[str, Any] = create_app(_judge()).openapi()
    return description


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[-1]
        return f"[{name}](#{name.lower()})"
    for kind in ("anyOf", "oneOf"):
        if kind in schema:
            return " or ".join(dict.fromkeys(_type(option) for option in schema[kind]))
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return str(schema.get("type", "any"))


def _bounds(schema: dict[str, Any]) -> str:
    names = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "maxItems": "at most", "minItems": "at least"}
    kinds = (schema, *schema.get("anyOf", ()))  # a field that may be null has its bounds one level below
    limits = [f"{sign} {float(kind[name]):,.15g}" for kind in kinds for name, sign in names.items() if name in kind]
    return f" ({', '.join(limits)})" if limits else ""


def _fields(schema: dict[str, Any]) -> Iterator[str]:
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        default = "required" if name in required else f"`{field['default']}`" if field.get("default") is not None else ""
        kind = escape_cell(_type(field) + _bounds(field))
        yield f"| `{name}` | {kind} | {escape_cell(default)} | {escape_cell(field.get('description', ''))} |"


def _text(description: str) -> str:
    return re.sub(r":\w+:`~?([^`]+)`", r"`\1`", description).replace("``", "`").partition("\f")[0].strip()


def _route(path: str, method: str, operation: dict[str, Any]) -> Iterator[str]:
    yield f"### `{method.upper()} {path}`\n\n{_text(operation.get('description') or operation.get('summary', ''))}\n"
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    if body:
        yield f"Body: {_type(body)}.\n"
    parameters = [p for p in operation.get("parameters", ()) if p["in"] in ("query", "path")]
    if parameters:
        yield "Parameters: " + ", ".join(f"`{p['name']}` ({_type(p['schema'])})" for p in parameters) + ".\n"


def prometheus_rows() -> list[str]:
    """Return a row of a table for each metric of ``/metrics``."""
    service = create_app(_judge()).state.service
    families = [*ServiceCollector(service).collect(), *service.histograms.registry.collect()]
    return [f"| `{f.name}{'_total' * (f.type == 'counter')}` | {f.type} | {escape_cell(f.documentation)} |" for f in families]


def http_page() -> str:
    """Return the page."""
    description, lines, tag = openapi(), [HEAD], None
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            if operation["tags"][0] != tag:
                tag = operation["tags"][0]
                lines.append(f"## {tag if tag != 'native' else 'The API of rewardlab'}\n")
            lines += _route(path, method, operation)
    lines.append("## Bodies\n")
    for name, schema in sorted(description["components"]["schemas"].items()):
        if not (rows := list(_fields(schema))):
            rows_text = f"One of {', '.join(f'`{v}`' for v in schema['enum'])}.\n" if "enum" in schema else ""
            lines.append(f"### {name}\n\n{_text(schema.get('description', ''))}\n\n{rows_text}")
            continue
        lines.append(f"### {name}\n\n{_text(schema.get('description', ''))}\n")
        lines += ["| field | type | default | what it is |\n|---|---|---|---|", *rows, ""]
    lines += [
        LIMITS,
        *(
            f"| `{name}` | {'none' if math.isinf(most) else f'{most:,}'} | {escape_cell(words)} |"
            for name, most, words in Limits.described()
        ),
        "",
    ]
    lines += ["## Metrics\n", "`GET /metrics` returns these in Prometheus' format.\n"]
    lines += ["| metric | kind | what it counts |\n|---|---|---|", *prometheus_rows(), ""]
    return "\n".join(lines)
