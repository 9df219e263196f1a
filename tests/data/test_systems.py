"""The systems that wrote a pair's responses: read by files, mappings and loaders, kept with their response."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from rewardlab.config.data import MappingConfig
from rewardlab.data.column_mapping import suggested_mapping
from rewardlab.data.columns import PAIR_COLUMNS, nearest_column
from rewardlab.data.pairs import read_pairs, write_jsonl, write_parquet
from rewardlab.data.recipes import Dropped, SourceFolder, recipe_of
from rewardlab.errors import DataError
from rewardlab.types import PreferencePair

ARENA = [
    {"prompt": f"What is {n}?", "response_a": "yes", "response_b": "no", "model_a": "m", "model_b": "k", "winner": label}
    for n, label in enumerate(["model_a", "model_b", "tie"] * 3)
]


def write_lines(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_files_keep_them(tmp_path: Path) -> None:
    """A system stays with its response where a pair is swapped, and in both kinds of file; without names there is no column."""
    pairs = [PreferencePair("a", "q?", ("x", "y"), 0, systems=("m", "k")), PreferencePair("b", "q?", ("x", "y"), 1)]
    assert pairs[0].swap().systems == ("k", "m")
    write_parquet(pairs, tmp_path / "p.parquet")
    write_jsonl(pairs, tmp_path / "p.jsonl")
    assert read_pairs(tmp_path / "p.parquet") == read_pairs(tmp_path / "p.jsonl") == pairs
    assert "systems" not in (tmp_path / "p.jsonl").read_text().splitlines()[1]


@pytest.mark.parametrize("names", [["m"], ["m", "k", "l"], ["m", 3], "m"])
def test_other_values_are_refused(names: object, tmp_path: Path) -> None:
    row = {"question": "q?", "responses": ["x", "y"], "preferred": 0, "systems": names}
    with pytest.raises(DataError, match="'systems'"):
        read_pairs(write_lines(tmp_path / "p.jsonl", [row]))


def test_columns_by_their_usual_names(tmp_path: Path) -> None:
    """model_a and model_b need no mapping, a label may name them, and a suggested mapping has them. A column `system` holds a
    prompt."""
    data = write_lines(tmp_path / "p.jsonl", ARENA)
    pairs = read_pairs(data)
    assert {pair.systems for pair in pairs} == {("m", "k")}
    assert [pair.preferred for pair in pairs[:3]] == [0, 1, None]
    mapping = yaml.safe_load(suggested_mapping(data))
    assert (mapping["systems"], mapping["first"], mapping["ties"]) == (["model_a", "model_b"], "model_a", ["tie"])
    assert (nearest_column("models", PAIR_COLUMNS), nearest_column("system", PAIR_COLUMNS)) == ("systems", None)


def built(row: dict[str, object], **mapping: object) -> list[PreferencePair]:
    recipe = recipe_of(MappingConfig(name="mine", question="q", **mapping))  # type: ignore[arg-type]
    return [item for item in recipe.convert({"q": "q?", **row}, SourceFolder(Path())) if not isinstance(item, Dropped)]


def test_a_mapping_names_them() -> None:
    """By two columns or one list, also of more than two answers; whichever response comes first, its system is its own."""
    lists = {"responses": ["answers"], "scores": ["points"], "systems": ["models"]}
    row: dict[str, object] = {"answers": ["a", "b", "c"], "points": [1, 2, 3], "models": ["A", "B", "C"]}
    pairs = built(row, **lists)
    assert len(pairs) == 3
    assert all(pair.systems == (pair.responses[0].upper(), pair.responses[1].upper()) for pair in pairs)
    named = {"chosen": "good", "rejected": "bad", "systems": ["of.good", "of.bad"]}
    for n in range(8):
        (pair,) = built({"good": f"g{n}", "bad": f"b{n}", "of": {"good": "G", "bad": "B"}}, **named)
        assert pair.systems == (("G", "B") if pair.preferred == 0 else ("B", "G"))
    with pytest.raises(DataError, match="2 systems for 3 answers"):
        built(row | {"models": ["A", "B"]}, **lists)
