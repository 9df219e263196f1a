"""README.md of a set of pairs: its columns, where it comes from, what was left out."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
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
SHARDS = "part-[0-9]*.parquet"  # the files of a set as `data build` and `push` name them
SPLITS = ("train", "test", "validation")
COUNTS = ("converted", "kept", "dropped", "bad", "duplicate", "contaminated")


def split_of(name: str) -> str:
    """Return the split that a file of a set belongs to: the folder it lies in, or its own name where that is one of
    :data:`SPLITS`, else train. What no split's name may hold becomes "_"."""
    path = PurePosixPath(name)
    split = path.parts[0] if len(path.parts) > 1 else path.stem if path.stem in SPLITS else "train"
    return re.sub(r"\W", "_", split, flags=re.ASCII)


def split_patterns(names: Sequence[str]) -> dict[str, list[str]]:
    """Return which files hold each split, train first: by name, or shards by a pattern that matches no other file."""
    patterns: dict[str, list[str]] = {}
    for name in sorted(names, key=lambda name: (split_of(name) != "train", name)):
        path, of_split = PurePosixPath(name), patterns.setdefault(split_of(name), [])
        pattern = (path.parent / SHARDS if fnmatchcase(path.name, SHARDS) else path).as_posix()
        if pattern not in of_split:
            of_split.append(pattern)
    return patterns


def dataset_front_matter(
    num_pairs: int, build: Mapping[str, Any], splits: Mapping[str, Sequence[str]], **given: Any
) -> dict[str, Any]:
    """Return the front matter of a set of ``num_pairs``; a ``given`` value that is not empty wins. ``build`` is the report of
    `data build`, {} of a set that it did not make; ``splits`` are the patterns of each one's files."""
    data_files = [{"split": split, "path": list(paths)} for split, paths in splits.items()]
    licence = str(build.get("licence", ""))
    front = {
        "license": None if licence in ("", "not stated") else licence.lower(),
        "task_categories": ["image-text-to-text"],
        "tags": ["rewardlab", "preference", "reward-model"],
        "size_categories": [size_category(num_pairs)],
        "configs": [{"config_name": "default", "data_files": data_files}],
    }
    return front | {name: value for name, value in given.items() if value}


def size_category(number: int) -> str:
    """Return the Hub's name for a number of rows: "n<1K", "1K<n<10K", ..."""
    names = ("n<1K", "1K<n<10K", "10K<n<100K", "100K<n<1M", "1M<n<10M", "10M<n<100M")
    return next((name for power, name in enumerate(names, start=3) if number < 10**power), "100M<n<1B")


def dataset_card_body(
    name: str, num_pairs: int, build: Mapping[str, Any], stats: Mapping[str, Any], splits: Iterable[str]
) -> str:
    """Return the card's text, Markdown. ``stats`` are those of `data stats`, {} where there are none."""
    lines = [f"# {name}", "", f"{num_pairs:,} pairs of responses to compare, pair format {VERSION} of rewardlab.", ""]
    loads = [f'{split} = datasets.load_dataset("{name}", split="{split}")' for split in splits]
    lines += ["```python", "import datasets", "", *loads, "```", ""]
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
