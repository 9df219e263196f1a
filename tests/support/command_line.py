"""Command lines of rewardlab, read as its program reads them, without running anything."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from docs.generator.command_line import root_command

ROOT = Path(__file__).parents[2]


def parse_command(words: list[str]) -> dict[str, Any]:
    """Return the parameters of a command line, without the program's name. Raise AssertionError for an unknown command and
    click's own errors for a wrong option, a wrong value and what is missing."""
    command: Any = root_command()
    name, arguments = "rewardlab", list(words)
    while arguments and arguments[0] in getattr(command, "commands", {}):
        name = arguments.pop(0)
        command = command.commands[name]
    if "--help" in arguments or arguments == ["--version"]:
        return {}
    assert not hasattr(command, "commands"), f"{words}: {arguments[:1]} is no command of rewardlab"
    parameters: dict[str, Any] = command.make_context(name, arguments).params
    return parameters


@cache
def make_targets() -> frozenset[str]:
    rules = re.findall(r"^([a-z -]+):(?!=)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    return frozenset(target for rule in rules for target in rule.split())
