"""``reference/cli.md``: every command with its options, read from the command line itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any, get_args

import typer.main

from rewardlab.cli import app
from rewardlab.cli.options import PANELS

HEAD = """# Command line

Every command of `rewardlab`, generated from the code; `rewardlab COMMAND --help` prints the same. For exit statuses see
[Exit codes](exit_codes.md).
"""


@cache
def root_command() -> Any:
    """Return the command line as one command that has others."""
    return typer.main.get_command(app)


def commands(group: Any, *, prefix: str = "rewardlab") -> Iterator[tuple[str, Any]]:
    """Yield every visible command below a group with its full name, groups before their commands, panel by panel."""

    def place(item: tuple[str, Any]) -> int:
        panel = getattr(item[1], "rich_help_panel", None)
        return PANELS.index(panel) if isinstance(panel, str) and panel in PANELS else len(PANELS)

    for name, command in sorted(group.commands.items(), key=place):
        if command.hidden:
            continue
        yield f"{prefix} {name}", command
        if hasattr(command, "commands"):
            yield from commands(command, prefix=f"{prefix} {name}")


def escape_cell(text: object) -> str:
    """Return a text as the cell of a Markdown table: in one line, its bars and brackets of tags escaped."""
    flat = " ".join(str(text).split())
    return re.sub(r"(?<!\\)\|", r"\\|", flat).replace("<", "&lt;")


def _default(option: Any) -> str:
    if option.required:
        return "required"
    if option.default in (None, "", [], ()) or callable(option.default):
        return ""
    if option.default is False:
        return "off"
    return "on" if option.default is True else f"`{option.default}`"


def type_name(option: Any) -> str:
    """Return what an option takes, in a word. Of typer from 0.29 on the annotation says so, of older ones click's type."""
    descriptor = getattr(option, "type_descriptor", None)
    if descriptor is None:
        return str(option.type.name)
    parts = [part for part in (get_args(descriptor.annotation) or (descriptor.annotation,)) if part is not type(None)]
    name = getattr(parts[0], "__name__", str(parts[0])).lower()
    return {"str": "text", "int": "integer", "float": "number"}.get(name, name)


def _rows(command: Any) -> Iterator[str]:
    for option in command.params:
        if option.name == "help" or getattr(option, "hidden", False):
            continue
        is_argument = option.param_type_name == "argument"
        names = [str(option.name).upper()] if is_argument else [*option.opts, *option.secondary_opts]
        shown = ", ".join(f"`{name}`" for name in names)
        kind = "" if is_argument or getattr(option, "is_flag", False) else f" {type_name(option)}"
        help_text = getattr(option, "help", "") or ""
        yield f"| {shown}{escape_cell(kind)} | {_default(option)} | {escape_cell(help_text)} |"


def _help(command: Any) -> str:
    text = (command.help or "").partition("\f")[0]
    return re.sub(r"(?<![\\`])<(?=[\w/])", "&lt;", text.strip())


def command_page() -> str:
    """Return the page."""
    lines, panel = [HEAD], None
    for name, command in commands(root_command()):
        group = getattr(command, "rich_help_panel", None)
        if name.count(" ") == 1 and isinstance(group, str) and group != panel:
            panel = group
            lines.append(f"## {panel}\n")
        lines.append(f"### `{name}`\n\n{_help(command)}\n")
        if rows := list(_rows(command)):
            lines += ["| option | default | what it does |\n|---|---|---|", *rows, ""]
    return "\n".join(lines)
