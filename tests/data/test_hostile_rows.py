"""Rows that are hostile or careless: nothing of them is lost in silence, a sentence says what is wrong, and none takes long."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from rewardlab.config.data import MappingConfig
from rewardlab.data.column_mapping import suggested_mapping
from rewardlab.data.conversations import read_content, read_turns, split_answers
from rewardlab.data.media import Files, embedded
from rewardlab.data.pairs import BadRow, validate_rows
from rewardlab.data.recipes import Rejected, SourceFolder, convert_source, recipe_of
from rewardlab.errors import DataError, MediaError
from rewardlab.types import PreferencePair
from tests.support.images import png

USER, CALL = {"role": "user", "content": "How warm is it?"}, {"name": "look", "arguments": '{"at": 1}'}


def write(path: Path, *rows: Any) -> Path:
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n")
    return path


@pytest.mark.parametrize(
    ("part", "lost"),
    [
        ({"type": "text", "text": "a", "image": "a.png"}, "image"),
        ({"type": "text", "text": "a", "image": {"bytes": "aaaa", "path": None}}, "image"),
        ({"text": "a", "videos": ["a.mp4"]}, "videos"),
        ({"type": "image", "image": "a.png", "text": "the caption"}, "text"),
        ({"type": "image", "image": "a.png", "url": "b.png"}, "url"),
        ({"image": "a.png", "video": "a.mp4"}, "video"),
    ],
)
def test_a_part_holds_one_thing(part: Any, lost: str) -> None:
    """What is read is one of them: the other would be lost."""
    with pytest.raises(DataError, match=f"^row 3: a part holds '{lost}' besides; expected one"):
        read_content([part], "row 3")


def test_fields_of_nulls_are_nothing() -> None:
    """As ``datasets`` writes them."""
    text: dict[str, Any] = {"type": "text", "text": "a", "image": {"bytes": None, "path": None}, "video": None, "images": []}
    image = {"type": "image", "text": "", "image": "a.png", "url": None, "path": "a.png", "video": None}
    assert read_content([text, image]).images == ("a.png",)


@pytest.mark.parametrize("called", [{"tool_calls": [{"type": "function", "function": CALL}]}, {"function_call": CALL}])
@pytest.mark.parametrize("content", [None, "Let me look."])
def test_calls_of_tools_are_shown(called: dict[str, Any], content: str | None) -> None:
    [turn] = read_turns([{"role": "assistant", "content": content} | called])
    assert turn.content.text == (f"{content}\n" if content else "") + 'Tool call: look({"at": 1})'


def test_answers_that_differ_in_the_call_alone() -> None:
    first, second = ([{"role": "assistant", "content": None, "tool_calls": [{"name": name, "arguments": {}}]}] for name in "ab")
    _, answers = split_answers([USER], [first, second], "row")
    assert [answer.text for answer in answers] == ["Tool call: a({})", "Tool call: b({})"]


def test_calls_that_are_none() -> None:
    nulls = {"tool_calls": [], "function_call": {"name": None, "arguments": None}}
    assert [turn.content.text for turn in read_turns([USER | nulls])] == [USER["content"]]
    with pytest.raises(DataError, match="a tool call is None; expected an object with a function's name"):
        read_turns([USER | {"tool_calls": "look"}])


def test_roles_in_capitals() -> None:
    turns = [{"role": "User", "content": "a"}, {"from": "GPT", "value": "b"}]
    assert [turn.role for turn in read_turns(turns)] == ["user", "assistant"]


def test_a_system_prompt_that_is_a_number_is_named() -> None:
    with pytest.raises(DataError, match="row 3, system: expected a string"):
        split_answers([USER], ["a", "b"], "row 3", system=5)


@pytest.mark.parametrize("path", ["b'\\x89PNG'", "{'bytes': b''}", "['a.png']", "[137, 80, 78, 71]", "137, 80, 78"])
def test_python_written_as_text_is_named(path: str, tmp_path: Path) -> None:
    for read in (Files(tmp_path).image, SourceFolder(tmp_path).image):
        with pytest.raises(MediaError, match="is a value of Python written as text"):
            read(path, "image 0")


def test_names_with_commas_are_paths(tmp_path: Path) -> None:
    (tmp_path / "2024, Berlin.png").write_bytes(png())
    assert Files(tmp_path).image("2024, Berlin.png", "image 0")


def test_a_folder_in_place_of_an_image_is_said_once(tmp_path: Path) -> None:
    with pytest.raises(MediaError) as error:
        Files(tmp_path.parent).image(tmp_path.name, "image 0")
    assert str(error.value).count("not a file") == str(error.value).count("image 0") == 1


def test_what_is_almost_base64_is_found_out_in_linear_time() -> None:
    """Searched with backtracking this takes half an hour."""
    start = time.monotonic()
    assert embedded("A" * 1_000_000 + "!") == "A" * 1_000_000 + "!"
    assert time.monotonic() - start < 5


def test_mappings_read_base64_as_files_do(tmp_path: Path) -> None:
    coded = base64.b64encode(png()).decode()
    assert SourceFolder(tmp_path).image(coded, "image") == Files(tmp_path).image(coded, "image")


def of_mapping(tmp_path: Path, *rows: Any, **fields: Any) -> list[Any]:
    config = MappingConfig(name="mine", question="prompt", responses=["answers"], **fields)
    return list(convert_source(recipe_of(config), write(tmp_path / "rows.jsonl", *rows)))


@pytest.mark.parametrize("rank", [True, "x", [1], {"a": 1}, 10**400], ids=str)
def test_ranks_that_are_no_numbers(rank: Any, tmp_path: Path) -> None:
    [bad] = of_mapping(tmp_path, {"prompt": "q", "answers": ["a", "b"], "ranks": [1, rank]}, ranks=["ranks"])
    assert isinstance(bad, Rejected)
    assert bad.reason.startswith("'ranks.1' is ")


@pytest.mark.parametrize("rank", [None, "", "NaN", float("nan")])
def test_ranks_that_are_missing(rank: Any, tmp_path: Path) -> None:
    rows = of_mapping(tmp_path, {"prompt": "q", "answers": ["a", "b"], "ranks": [1, rank]}, ranks=["ranks"])
    assert [row.reason for row in rows] == ["a score is missing"]


def test_pairs_of_many_answers_do_not_explode(tmp_path: Path) -> None:
    def row(number: int) -> dict[str, Any]:
        return {"prompt": "q", "answers": [f"answer {n}" for n in range(number)], "scores": list(range(number))}

    *pairs, bad = of_mapping(tmp_path, row(64), row(1000), scores=["scores"])
    assert len(pairs) == 64 * 63 // 2
    assert all(isinstance(pair, PreferencePair) for pair in pairs)
    assert "1,000 answers, every two of which make 499,500 pairs" in bad.reason


def test_suggestions_for_rows_nested_too_deeply(tmp_path: Path) -> None:
    deep = '{"prompt": "q", "chosen": %s, "rejected": "b"}' % ("[" * 900 + "]" * 900)
    with pytest.raises(DataError, match="nested too deeply"):
        suggested_mapping(write(tmp_path / "rows.jsonl", deep))


def test_labels_that_are_missing_are_no_ties(tmp_path: Path) -> None:
    rows = [
        {"prompt": f"q{n}", "response_a": f"x{n}", "response_b": "y", "label": label}
        for n, label in enumerate(["A", "B", "tie", None, "NaN", ""] * 2)
    ]
    assert 'ties: ["tie"]' in suggested_mapping(write(tmp_path / "rows.jsonl", *rows))


def test_suggestions_know_conversations(tmp_path: Path) -> None:
    """The mapping that is suggested makes the pairs that are read without one."""
    said = [[{"role": "assistant", "content": text}] for text in ("21 degrees", "No")]
    path = write(tmp_path / "chats.jsonl", {"prompt": [USER], "chosen": said[0], "rejected": said[1]})
    [mapped] = convert_source(recipe_of(MappingConfig(**yaml.safe_load(suggested_mapping(path)))), path)
    [read] = validate_rows(path)
    assert isinstance(mapped, PreferencePair)
    assert not isinstance(read, BadRow)
    assert (mapped.question, {*mapped.responses}) == (read.question, {*read.responses})


@pytest.mark.parametrize("pair_id", [["a"], {"a": 1}], ids=str)
def test_ids_that_are_no_names(pair_id: Any, tmp_path: Path) -> None:
    row = {"pair_id": pair_id, "question": "q", "responses": ["a", "b"], "preferred": 0}
    [bad] = validate_rows(write(tmp_path / "rows.jsonl", row))
    assert isinstance(bad, BadRow)
    assert "'pair_id' must be a string or a number" in bad.reason


@pytest.mark.parametrize(("ranks", "is_cure_named"), [([2, 1, 3], True), (None, False)])
def test_ranked_responses_need_a_mapping(ranks: Any, is_cure_named: bool, tmp_path: Path) -> None:
    """The error names the command that writes one, unless there is nothing to rank by."""
    path = write(tmp_path / "rows.jsonl", {"question": "q", "responses": ["a", "b", "c"], "rankings": ranks})
    [bad] = validate_rows(path, allow_columns=["rankings"])
    assert isinstance(bad, BadRow)
    assert ("--suggest` prints a mapping" in bad.reason) is is_cure_named


@pytest.mark.parametrize("value", [10**400, "both" * 50_000, {"a": "b" * 50_000}], ids=["digits", "text", "object"])
@pytest.mark.parametrize("name", ["preferred", "order", "level", "teacher_share"])
def test_values_are_cut_in_errors(name: str, value: Any, tmp_path: Path) -> None:
    row = {"question": "q", "responses": ["a", "b"], "preferred": 0} | {name: value}
    [bad] = validate_rows(write(tmp_path / "rows.jsonl", row))
    assert isinstance(bad, BadRow)
    assert len(bad.reason) < len(str(tmp_path)) + 200


def test_missing_files_of_a_large_folder_are_named_in_linear_time(tmp_path: Path) -> None:
    """A wrong suffix in all rows: each name is sought in the folder, which is listed once."""
    (tmp_path / "in").mkdir()
    for number in range(2000):
        (tmp_path / f"in/{number}.jpg").touch()
    row = {"question": "q", "responses": ["a", "b"], "preferred": 0}
    path, start = write(tmp_path / "rows.jsonl", *({**row, "images": [f"in/{n}.png"]} for n in range(200))), time.monotonic()
    assert all(isinstance(bad, BadRow) and "cannot be read" in bad.reason for bad in validate_rows(path))
    assert time.monotonic() - start < 1
    (tmp_path / "in/NEW.png").write_bytes(png())
    with pytest.raises(MediaError, match=r"NEW\.png, whose name is spelt otherwise"):
        Files(tmp_path).image("in/new.png", "image 0")


def test_characters_that_are_marks_are_named(tmp_path: Path) -> None:
    """They are not seen in a text that was copied from a document."""
    rows = [{"question": f"q{mark}", "responses": ["a", "b"], "preferred": 0} for mark in ("\ufffc", "\ufff9", "<image>")]
    reasons = [bad.reason for bad in validate_rows(write(tmp_path / "rows.jsonl", *rows)) if isinstance(bad, BadRow)]
    assert ["U+FFFC" in reasons[0], "U+FFF9" in reasons[1], "U+" in reasons[2]] == [True, True, False]
