"""Markdown read by tests: fenced blocks, links, headings, and commands of a shell block."""

from __future__ import annotations

import re
import shlex
import textwrap
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(
    r"^(?P<indent> *)(?P<fence>```+)(?P<language>[\w+-]*)[^\n]*\n(?P<code>.*?)^(?P=indent)(?P=fence) *$", re.M | re.S
)
LINK = re.compile(r"(?<!\\)!?\[(?:[^\[\]]|\[[^\[\]]*\])*\]\((?P<target>[^)\s]+)\)")
_OPERATORS = ("&&", "||", ";", "|", "&")
_REDIRECTIONS = (">", ">>", "<", "2>", "2>&1")


@dataclass(frozen=True)
class Block:
    """A fenced block: ``note`` is the HTML comment in the line before it, "" without."""

    page: Path
    line: int
    language: str
    code: str
    note: str

    @property
    def needs(self) -> str:
        """What a block asks for that a test has not, by its first line or its note; "" if nothing."""
        match = re.match(r"\s*(?:#|//) needs: (.+)", self.code) or re.match(r"needs: (.+)", self.note)
        return match[1] if match else ""


def blocks_of(page: Path) -> Iterator[Block]:
    """Yield the fenced blocks of a page."""
    text = page.read_text(encoding="utf-8")
    for match in FENCE.finditer(text):
        before = text[: match.start()].rstrip("\n").rpartition("\n")[2].strip()
        note = re.fullmatch(r"<!-- (.+) -->", before)
        line = text.count("\n", 0, match.start()) + 1
        yield Block(page, line, match["language"], textwrap.dedent(match["code"]), note[1] if note else "")


def without_code(text: str) -> str:
    """Return a text without its fenced blocks and code spans, as many lines as before."""
    text = FENCE.sub(lambda match: "\n" * match[0].count("\n"), text)
    return re.sub(r"`[^`\n]*`", "", text)


def links_of(text: str) -> Iterator[str]:
    """Yield the targets of the links and images of a page's text."""
    yield from (match["target"] for match in LINK.finditer(without_code(text)))


def slug(heading: str) -> str:
    """Return the anchor of a heading, as Python-Markdown makes it."""
    plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "")
    plain = unicodedata.normalize("NFKD", plain).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())


def anchors_of(text: str) -> set[str]:
    """Return the anchors of a page; of headings of the same text the later ones get a number."""
    anchors: set[str] = set()
    for heading in re.findall(r"^#{1,6} (.+?)\s*$", FENCE.sub("", text), re.M):
        name, number = slug(heading), 1
        while name in anchors:
            name, number = f"{slug(heading)}_{number}", number + 1
        anchors.add(name)
    return anchors | set(re.findall(r"\bid=\"([^\"]+)\"", text))


def commands_of(code: str) -> Iterator[list[str]]:
    """Yield the words of each command of a shell block: quoted texts may have several lines, comments are left out, variables
    set before a command, too. Raise ValueError for a quotation that does not end."""
    pending = ""
    for line in code.splitlines():
        pending += line if not pending else f"\n{line}"
        if pending.endswith("\\"):
            pending = pending[:-1] + " "
            continue
        try:
            words = shlex.split(pending, comments=True)
        except ValueError:
            continue
        pending = ""
        yield from _split(words)
    if pending.strip():
        raise ValueError(f"not a complete command: {pending!r}")


def _split(words: list[str]) -> Iterator[list[str]]:
    command: list[str] = []
    for word in [*words, ";"]:
        if word not in _OPERATORS:
            command.append(word)
            continue
        places = [place for place, word in enumerate(command) if word in _REDIRECTIONS]
        command = command[: places[0]] if places else command  # a redirection ends what the program sees
        while command and re.fullmatch(r"\w+=.*", command[0], re.S):
            command.pop(0)
        if command:
            yield command
        command = []
