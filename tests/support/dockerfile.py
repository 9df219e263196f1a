"""The Dockerfile, read: its stages, and what a target inherits."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Instruction:
    """One instruction with its continuation lines joined: ``RUN``, and what stands behind it."""

    word: str
    text: str

    @property
    def shell(self) -> str:
        """Return the text without its options (``--mount=...``)."""
        return re.sub(r"^(--[a-z]+=\S+\s+)+", "", self.text)

    @property
    def arguments(self) -> list[str]:
        """Return the list of an instruction in its JSON form, behind a word such as CMD where there is one."""
        arguments: list[str] = json.loads(self.text[self.text.index("[") :])
        return arguments


def stages(path: Path = ROOT / "Dockerfile") -> dict[str, tuple[str, list[Instruction]]]:
    """Return for each stage what it starts from and its instructions."""
    text = re.sub(r"^\s*#.*\n", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    found: dict[str, tuple[str, list[Instruction]]] = {}
    for line in filter(str.strip, re.sub(r"\\\n\s*", "", text).splitlines()):
        word, _, rest = line.strip().partition(" ")
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            found[name] = (base, [])
        elif found:
            found[name][1].append(Instruction(word, rest.strip()))
    return found


def instructions(target: str) -> list[Instruction]:
    """Return all instructions of a target, those of the stages below it first."""
    every = stages()
    if target not in every:
        return []
    base, own = every[target]
    return instructions(base) + own


def last(target: str, word: str) -> Instruction:
    """Return the instruction of a kind that holds for a target: the last one."""
    return [each for each in instructions(target) if each.word == word][-1]
