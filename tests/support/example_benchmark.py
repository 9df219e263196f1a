"""A benchmark of one's own in a file: JSON lines with a prompt, a good and a bad answer, and a topic.

Run it with `rewardlab bench run example_benchmark.py --data rows.jsonl --judge baseline:longest --out runs/mine`.
"""

from __future__ import annotations

import json
from pathlib import Path

from rewardlab.benchmarks.base import Benchmark, OfficialScorer, Row
from rewardlab.data.files import read_lines
from rewardlab.types import PreferencePair


def load(data: Path, *, images: Path | None, with_images: bool) -> list[Row]:
    """Return a row per line; response 0 is the good answer."""
    rows = []
    for number, line in enumerate(read_lines(data)):
        fields = json.loads(line)
        pair = PreferencePair(f"example-{number}", fields["prompt"], (fields["good"], fields["bad"]), preferred=0)
        rows.append(Row(number, pair, group=fields["topic"], cluster=fields["prompt"], slices={}))
    return rows


def count_lines(records: list[dict[str, bool]], data: Path | None) -> list[str]:
    """Return what this benchmark's own scorer would print on ``{"right": true}`` lines."""
    return [f"right: {sum(record['right'] for record in records)} of {len(records)}"]


BENCHMARK = Benchmark(
    name="example",
    load=load,
    sizes={"colours": 2, "shapes": 1},
    scorers={"example": OfficialScorer(count_lines, "JSON lines with right")},
)
