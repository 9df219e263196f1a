"""README.md of a hub repository: YAML front matter, and a section of ours between two marks; the rest is its author's."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

import yaml

from rewardlab.errors import DataError

README = "README.md"
BEGIN, END = "<!-- rewardlab: begin -->", "<!-- rewardlab: end -->"
RESULTS = "model-index"
# What a folder or a report says, not its author: an older value would be a false one.
MEASURED = (RESULTS, "base_model", "base_model_relation", "library_name", "size_categories", "configs")
_FRONT = re.compile(r"\A---\s*\n(.*?)^---\s*$\n?", re.DOTALL | re.MULTILINE)
_SECTION = re.compile(rf"{re.escape(BEGIN)}.*?{re.escape(END)}\n?", re.DOTALL)
_EMPTY = "[More Information Needed]"  # of the templates that libraries write where nobody has written anything


def render_card(front: Mapping[str, Any], body: str) -> str:
    """Return a README: the front matter without its empty values, and ``body`` between the marks."""
    return f"{_render_front(front)}{BEGIN}\n{body.strip()}\n{END}\n"


def author_text(readme: str) -> str:
    """Return what somebody wrote in a README beside our section and the front matter; "" for a template left empty."""
    text = _SECTION.sub("", _FRONT.sub("", readme, count=1))
    return "" if _EMPTY in text else text.strip()


def merge_card(readme: str, front: Mapping[str, Any], body: str, *, given: Collection[str] = ()) -> str:
    """Return ``readme`` with our section replaced, or appended where it has none; the text around it stays.

    The front matter keeps its values, but for those of :data:`MEASURED`, and for the names ``given``. A template that nobody
    filled in is replaced. Raise DataError for a front matter that is no YAML mapping.
    """
    if _EMPTY in _SECTION.sub("", readme):
        return render_card(front, body)
    front_matter = _FRONT.match(readme)
    try:
        values = yaml.safe_load(front_matter[1]) if front_matter else {}
    except yaml.YAMLError as error:
        raise DataError(
            f"README.md: its front matter is not valid YAML ({error}); repair it, or give --replace-card"
        ) from error
    if not isinstance(values or {}, dict):
        raise DataError("README.md: its front matter is not a mapping; repair it, or give --replace-card")
    ours = {*MEASURED, *given}
    kept = {
        name: value for name, value in (values or {}).items() if name not in ours or (name != RESULTS and not front.get(name))
    }
    rest = readme[front_matter.end() :] if front_matter else readme
    section = f"{BEGIN}\n{body.strip()}\n{END}\n"
    parts = _SECTION.split(rest, maxsplit=1)
    merged = section.join(parts) if len(parts) == 2 else f"{rest.rstrip()}\n\n{section}"
    return _render_front({**front, **kept}) + merged


def _render_front(front: Mapping[str, Any]) -> str:
    kept = {name: value for name, value in front.items() if value not in (None, "", [], {})}
    return f"---\n{yaml.safe_dump(kept, sort_keys=False, allow_unicode=True)}---\n" if kept else ""
