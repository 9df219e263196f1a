"""README.md of a set of pairs: its columns, where it comes from, what was left out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rewardlab.data.rows import VERSION
from rewardlab.reporting.tables import markdown_table

COLUMNS = {
    "pair_id": "unique within the set",
    "question": "an image stands at each U+FFFC, a video at each U+FFF9; without any, media come first",
    "images, videos": "of the question, embedded",
    "responses": "two texts",
    "response_images": "images within either response",
    "preferred": "0 or 1, the better response; null: unknown",
    "judgment, order": "a teacher's reasoned verdict, and how it saw the responses",
    "attempts, teacher_share": "how hard the pair was for the teacher",
    "category, source, licence, level, provenance": "where the pair comes from",
}
COUNTS = ("converted", "kept", "dropped", "bad", "duplicate", "contaminated")


def dataset_front_matter(num_pairs: int, build: Mapping[str, Any], **given: Any) -> dict[str, Any]:
    """Return the front matter of a set of ``num_pairs``; a ``given`` value that is not empty wins. ``build`` is the report of
    `data build`, {} of a set that it did not make."""
    licence = str(build.get("licence", ""))
    front = {
        "license": None if licence in ("", "not stated") else licence.lower(),
        "task_categories": ["image-text-to-text"],
        "tags": ["rewardlab", "preference", "reward-model"],
        "size_categories": [size_category(num_pairs)],
        "configs": [{"config_name": "default", "data_files": "*.parquet"}],
    }
    return front | {name: value for name, value in given.items() if value}


def size_category(number: int) -> str:
    """Return the Hub's name for a number of rows: "n<1K", "1K<n<10K", ..."""
    names = ("n<1K", "1K<n<10K", "10K<n<100K", "100K<n<1M", "1M<n<10M", "10M<n<100M")
    return next((name for power, name in enumerate(names, start=3) if number < 10**power), "100M<n<1B")


def dataset_card_body(name: str, num_pairs: int, build: Mapping[str, Any], stats: Mapping[str, Any]) -> str:
    """Return the card's text, Markdown. ``stats`` are those of `data stats`, {} where there are none."""
    lines = [f"# {name}", "", f"{num_pairs:,} pairs of responses to compare, pair format {VERSION} of rewardlab.", ""]
    lines += ["```python", "import datasets", "", f'pairs = datasets.load_dataset("{name}", split="train")', "```", ""]
    lines += ["## Columns", "", *markdown_table(("column", "meaning"), list(COLUMNS.items())), ""]
    if stats:
        facts = [(key, json.dumps(stats[key])) for key in ("num_distinct_images", "preferred", "longer_wins") if key in stats]
        lines += ["## Numbers", "", *markdown_table(("", ""), facts), ""]
    lines += ["## What made it", ""]
    if not build:
        return "\n".join([*lines, "Not recorded: the set has no report of `rewardlab data build`."])
    rows = [("source", str(build.get("url") or build.get("recipe"))), ("licence", str(build.get("licence")))]
    rows += [(count, f"{build[count]:,}") for count in COUNTS if count in build]
    rows += [("compared with", "; ".join(build.get("against", [])) or "no benchmark")]
    rows += [("command", f"`{build['command']}`")] if build.get("command") else []
    return "\n".join([*lines, *markdown_table(("", ""), rows)])


def read_json(path: Path) -> dict[str, Any]:
    """Return a JSON object beside a set, {} where there is none."""
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}
