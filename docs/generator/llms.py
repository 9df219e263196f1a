"""``llms.txt`` (llmstxt.org): the pages of the navigation, each with its first sentence, for readers that are programs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any


def first_sentence(markdown: str) -> str:
    """Return the first sentence of a page's first paragraph, without its marks; of a page without one, an empty text."""
    text = re.sub(r"(?s)^---\n.*?\n---\n|<!--.*?-->|```.*?```|<style.*?</style>|<svg.*?</svg>", "", markdown)
    blocks = [" ".join(block.split()) for block in text.split("\n\n")]
    plain = next((b for b in blocks if b and not re.match(r"[#|!<\-:>]|\* |\d\. |`[^`]*`$", b)), "")
    plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)(\{[^}]*\})?", r"\1", plain).replace("*", "").replace("`", "")
    return re.split(r"(?<=[.!?])\s", plain)[0]


def _pages(items: Any) -> Iterator[Any]:
    for item in items:
        if item.is_page:
            yield item
        elif item.is_section:
            yield from _pages(item.children)


def _line(page: Any) -> str:
    sentence = first_sentence(page.markdown or "")
    return f"- [{page.title}]({page.file.src_uri})" + (f": {sentence}" if sentence else "")


def llms_text(navigation: Any, name: str, description: str) -> str:
    """Return the file: a heading, what the project is, and a list of links per section of the navigation."""
    lines = [f"# {name}\n", f"> {description}\n"]
    loose = [item for item in navigation.items if item.is_page]
    if loose:
        lines += ["## Start\n", *map(_line, loose), ""]
    for section in navigation.items:
        if section.is_section:
            lines += [f"## {section.title}\n", *map(_line, _pages(section.children)), ""]
    return "\n".join(lines)
