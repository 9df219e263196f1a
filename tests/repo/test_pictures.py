"""The pictures of README and docs: those that a page names exist, and the scripts take every one there is."""

from __future__ import annotations

import re
from pathlib import Path

from PIL import Image

from eval.field import FIELD_PICTURES
from eval.pictures import FOLDER, MOST_BYTES, PICTURES

ROOT = Path(__file__).parents[2]


def test_the_scripts_take_them_all() -> None:
    """Neither a picture that nobody can take again, nor one that is missing; together small enough for a clone."""
    assert sorted(path.name for path in FOLDER.iterdir()) == sorted(f"{name}.png" for name in (*PICTURES, *FIELD_PICTURES))
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= MOST_BYTES


def test_they_read_at_half_width() -> None:
    """A picture is at least 600 px wide, and the one of the README 1,600."""
    widths = {}
    for path in FOLDER.glob("*.png"):
        with Image.open(path) as image:
            widths[path.stem] = image.width
    assert widths["judgment"] == widths["judgment-dark"] == 1600
    assert min(widths.values()) >= 600


def test_every_picture_that_a_page_names_exists() -> None:
    """By Markdown or by HTML, from README and from every page of the docs."""
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for name in re.findall(r"pictures/([\w.-]+)", page.read_text(encoding="utf-8")):
            assert (FOLDER / name).exists(), f"{page} names {name}"
