"""Records of a study in one file: what is none is left alone, what was cut off is said, two studies add to each other."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from eval.scripts import positive, run_script
from eval.studies.plans import Trial, plan
from eval.studies.runner import keep, open_study, path_of, read_records, restore, work
from rewardlab.errors import ConfigError


class Context:
    def identity(self) -> dict[str, Any]:
        return {"settings": {"steps": 1}}

    def start(self) -> dict[str, Any]:
        return {"accuracy": 0.5}

    def prepare(self, start: dict[str, Any]) -> None:
        """Nothing."""

    def run(self, trial: Trial) -> dict[str, Any]:
        return {"arm": trial.arm, "seed": trial.seed}


def study(folder: Path, records: Path, *trials: Trial) -> list[str]:
    """Run trials in a folder of their own, and return the names in the records afterwards."""
    open_study(Context(), folder, records)
    for trial in trials:
        work(Context(), trial, folder)
    keep(records, folder)
    return [json.loads(line)["name"] for line in records.read_text().splitlines()[1:]]


def test_two_studies_add_to_the_same_records(tmp_path: Path) -> None:
    records = tmp_path / "r.jsonl"
    open_study(Context(), tmp_path / "b", records)  # begun before the other has left anything
    assert study(tmp_path / "a", records, Trial(0, "x")) == ["x-0"]
    work(Context(), Trial(0, "y"), tmp_path / "b")
    keep(records, tmp_path / "b")
    assert [json.loads(line)["name"] for line in records.read_text().splitlines()[1:]] == ["x-0", "y-0"]
    restore(records, tmp_path / "c", Context().identity())
    assert [record["name"] for record in read_records(tmp_path / "c")] == ["x-0", "y-0"]


def test_answers_may_hold_any_character(tmp_path: Path) -> None:
    """U+2028 ends a line for ``str.splitlines``, and none of JSON lines; an empty file holds nothing yet."""
    records = tmp_path / "r.jsonl"
    records.write_text("")
    study(tmp_path / "a", records, Trial(0, "x"))
    lines = records.read_text().splitlines()
    records.write_text(lines[0] + "\n" + lines[1].replace('"seed":0', '"seed":0,"answer":"a\u2028b"') + "\n", encoding="utf-8")
    restore(records, tmp_path / "b", Context().identity())
    assert read_records(tmp_path / "b")[0]["answer"] == "a\u2028b"


def test_a_study_uses_one_thread_a_process(tmp_path: Path) -> None:
    """Also where its trials are run in the process that was started: with two, two studies on two cores take four times as
    long."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        open_study(Context(), tmp_path / "out")
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_a_line_that_was_cut_off_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = tmp_path / "r.jsonl"
    study(tmp_path / "a", records, Trial(0, "x"), Trial(0, "y"))
    records.write_text(records.read_text()[:-9])
    restore(records, tmp_path / "b", Context().identity())
    assert [record["name"] for record in read_records(tmp_path / "b")] == ["x-0"]
    output = capsys.readouterr()
    assert "its last line was cut off and is left out" in output.out + output.err


@pytest.mark.parametrize(
    "text",
    [
        "my notes of a week",
        "my notes of a week\n",
        '{"kind": "trial", "name": "x-0", "arm": "x"}\n',
        '{"name": "x-0"}\n',
        '{"kind": "start", "identity": {"settings": {"steps": 1}}}\n{"kind": "trial", "name": "../../evil", "arm": "x"}\n',
        '{"kind": "start", "identity": {"settings": {"steps": 1}}}\n{"kind": "trial", "name": "x-0"}\n',
        '{"kind": "start", "identity": {"settings": {"steps": 1}}}\n{"kind":\n',
        "[]\n",
    ],
)
def test_what_is_no_studys_records_is_left_alone(text: str, tmp_path: Path) -> None:
    records = tmp_path / "r.jsonl"
    records.write_text(text)
    with pytest.raises(ConfigError, match="not the records of a study"):
        open_study(Context(), tmp_path / "out", records)
    assert records.read_text() == text
    assert not list(tmp_path.rglob("*evil*"))
    assert not (tmp_path / "out" / "start.json").exists()


def test_records_need_a_name_of_their_own(tmp_path: Path) -> None:
    for name in ("r.md", "r.json", "r"):
        with pytest.raises(ConfigError, match=r"expected a file that ends in \.jsonl"):
            open_study(Context(), tmp_path / "out", tmp_path / name)


def test_damaged_files_name_themselves(tmp_path: Path) -> None:
    study(tmp_path / "a", tmp_path / "r.jsonl", Trial(0, "x"))
    path_of(Trial(0, "x"), tmp_path / "a").write_text("{")
    with pytest.raises(ConfigError, match=r"x-0\.json: damaged"):
        read_records(tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "start.json").write_text("[1]")
    with pytest.raises(ConfigError, match=r"start\.json: damaged"):
        open_study(Context(), tmp_path / "b")


def test_an_arm_that_is_named_twice_is_run_once() -> None:
    assert [trial.name for trial in plan(("x", "y"), ("y", "y"), (0,))] == ["y-0"]
    with pytest.raises(ConfigError, match="unknown arm ''; expected some of x, y"):
        plan(("x", "y"), ("x", ""), (0,))


def test_a_scripts_errors_are_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    def main() -> None:
        raise ConfigError("what, what was expected, the cure")

    with pytest.raises(SystemExit) as exited:
        run_script(main)
    assert exited.value.code == 2
    assert capsys.readouterr().err == "error: what, what was expected, the cure\n"
    assert positive("3") == 3
    for text in ("0", "-1", "x"):
        with pytest.raises(argparse.ArgumentTypeError, match="expected a number from 1 on"):
            positive(text)
