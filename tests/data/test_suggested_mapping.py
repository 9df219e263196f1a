"""A mapping that is suggested: what names and values tell is filled in, the rest is left open, and what is full builds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from rewardlab.cli import app
from rewardlab.config import MappingConfig, load_config
from rewardlab.data.pairs import read_pairs
from rewardlab.data.suggested_mapping import OPEN, suggested_mapping
from rewardlab.errors import DataError
from tests.support.images import png


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_what_is_suggested_builds(tmp_path: Path) -> None:
    """Nested texts, two responses with a label of words, ties that are told from the two, an image under any name."""
    (tmp_path / "a.png").write_bytes(png())
    labels = ["model_a", "model_b", "tie"]
    rows = [
        {"uid": f"u{n}", "prompt": f"What is {n}?", "look": "a.png", "response_a": "yes", "response_b": "no", "winner": label}
        for n, label in enumerate(labels * 3)
    ]
    data = write(tmp_path / "My pairs.jsonl", rows)
    shown = CliRunner().invoke(app, ["data", "validate", str(data), "--suggest"])
    assert shown.exit_code == 0, shown.output
    mapping = yaml.safe_load(shown.output)
    assert mapping == {
        "name": "my_pairs",
        "id": "uid",
        "question": "prompt",
        "images": ["look"],
        "responses": ["response_a", "response_b"],
        "preferred": "winner",
        "first": OPEN,
        "second": OPEN,
        "ties": labels,
    }
    full = shown.output.replace(f"first: {OPEN}", "first: model_a").replace(f"second: {OPEN}", "second: model_b")
    (tmp_path / "m.yaml").write_text(full.replace(json.dumps(labels), '["tie"]'))
    command = ["data", "build", str(tmp_path / "m.yaml"), "--from", str(data), "--no-decontaminate", "--keep-repeated"]
    done = CliRunner().invoke(app, [*command, "--out", str(tmp_path / "set")])
    assert done.exit_code == 0, done.output
    pairs = read_pairs(tmp_path / "set")
    assert len(pairs) == 6
    assert {pair.responses[pair.preferred or 0] for pair in pairs if pair.pair_id in ("u0", "u3")} == {"yes"}
    assert all(len(pair.images) == 1 for pair in pairs)


def test_what_no_name_tells_is_left_open(tmp_path: Path) -> None:
    rows = [{"conversations": [{"value": f"q{n}"}], "good": f"a{n}", "bad": f"b{n}"} for n in range(9)]
    text = suggested_mapping(write(tmp_path / "p.jsonl", rows))
    assert f"question: {OPEN}  # no column by a known name; there are: conversations.0.value, good, bad" in text
    assert f"chosen: {OPEN}" in text
    filled = text.replace(f"question: {OPEN}", "question: conversations.0.value").replace(f"chosen: {OPEN}", "chosen: good")
    (tmp_path / "m.yaml").write_text(filled.replace(f"rejected: {OPEN}", "rejected: bad"))
    command = ["data", "build", str(tmp_path / "m.yaml"), "--from", str(tmp_path / "p.jsonl"), "--no-decontaminate"]
    done = CliRunner().invoke(app, [*command, "--keep-repeated", "--out", str(tmp_path / "set")])
    assert done.exit_code == 0, done.output
    assert "kept 9" in done.output


def test_known_labels_are_filled_in(tmp_path: Path) -> None:
    rows = [{"question": "q", "answer_1": "x", "answer_2": "y", "preferred": label} for label in (1, 2, 0, 1)]
    mapping = yaml.safe_load(suggested_mapping(write(tmp_path / "p.jsonl", rows)))
    assert (mapping["first"], mapping["second"], mapping["ties"]) == ("1", "2", ["0"])


def test_what_needs_no_mapping(tmp_path: Path) -> None:
    data = write(tmp_path / "p.jsonl", [{"question": "q", "responses": ["a", "b"]}])
    with pytest.raises(DataError, match="has the columns of a pair already"):
        suggested_mapping(data)
    with pytest.raises(DataError, match="has no row of columns"):
        suggested_mapping(write(tmp_path / "e.jsonl", []))
    (tmp_path / "wrong.csv").write_text("prompt,good,bad\nWhat?,yes,no\n")
    checked = CliRunner().invoke(app, ["data", "validate", str(tmp_path / "wrong.csv")])
    assert checked.exit_code == 1
    assert "`rewardlab data validate FILE --suggest` prints a mapping" in checked.output


@pytest.mark.parametrize("name", ["2024", "null", "on", "1e5", "~", "a\nb"])
def test_a_name_is_a_text(name: str, tmp_path: Path) -> None:
    """Whatever YAML would take it for."""
    text = suggested_mapping(write(tmp_path / f"{name}.jsonl", [{"prompt": "q", "chosen": "a", "rejected": "b"}]))
    (tmp_path / "m.yaml").write_text(text)
    assert load_config(MappingConfig, tmp_path / "m.yaml").name == (name.replace("\n", "_") if name != "~" else "mine")


@pytest.mark.parametrize("between", ["\n", "\r", "\x85", "\u2028", "\x7f", "\ufeff", '"', "\\", " 😀 "])
@pytest.mark.parametrize("known", [True, False])
def test_columns_of_any_name(between: str, known: bool, tmp_path: Path) -> None:
    """They stay in their line, in quotes and in comments."""
    columns = [f"{what}{between}of it" for what in ("Answer A", "Answer B", "picture")]
    first = "prompt" if known else f"what{between}it is"
    rows = [{first: "q", columns[0]: f"a{n}", columns[1]: f"b{n}", columns[2]: "x.png", "id": "1"} for n in range(9)]
    mapping = yaml.safe_load(suggested_mapping(write(tmp_path / "p.jsonl", rows)))
    expected = {"name": "p", "id": "id", "question": first if known else OPEN, "images": [columns[2]]}
    assert mapping == {**expected, "chosen": OPEN, "rejected": OPEN}
