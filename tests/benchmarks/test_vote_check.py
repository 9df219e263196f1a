"""`bench check` counts a run's votes: every damage to a vote that a report or a score depends on is said."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rewardlab.benchmarks.arithmetic import count_votes
from rewardlab.benchmarks.comparison import read_run
from rewardlab.benchmarks.runner import run_bench
from rewardlab.benchmarks.settings import bench_settings
from rewardlab.cli import app
from rewardlab.data.pairs import write_parquet
from rewardlab.errors import ConfigError, DataError

Lines = list[dict[str, Any]]


@pytest.fixture
def run(demo_pairs: Any, tmp_path: Path) -> Path:
    """Twelve pairs, three votes in each order: right, but for row 3, which names the first, and an answer without a verdict."""
    pairs, lines = demo_pairs[0][:12], Lines()
    write_parquet(pairs, tmp_path / "pairs.parquet")
    for row, pair in enumerate(pairs):
        for order in ("given", "swapped"):
            right = 1 + ((pair.preferred == 1) != (order == "swapped"))
            for draw in range(3):
                said = "?" if (row, order, draw) == (5, "given", 0) else f"<answer>{1 if row == 3 else right}</answer>"
                lines.append({"row": row, "order": order, "text": said})
    (tmp_path / "replay.jsonl").write_text("\n".join(map(json.dumps, lines)))
    spec = f"replay:{tmp_path / 'replay.jsonl'}"
    run_bench(bench_settings("pairs", tmp_path / "pairs.parquet", spec), tmp_path / "run")
    return tmp_path / "run"


def checked(run: Path, *more: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["bench", "check", str(run), *more])
    return done.exit_code, " ".join(done.output.split())


def damage(run: Path, change: Callable[[Lines], Any]) -> None:
    path = run / "votes.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    change(lines)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_run_as_it_was_written(run: Path) -> None:
    """It adds up, and how many votes were counted is said; without its votes that they were not."""
    status, said = checked(run)
    assert (status, said.endswith("; 72 votes of votes.jsonl counted; their texts read anew")) == (0, True), said
    (run / "votes.jsonl").unlink()
    status, said = checked(run)
    assert (status, said.endswith("; without votes.jsonl: report and rows alone")) == (0, True), said


def _vote(row: int, place: int, **fields: Any) -> Callable[[Lines], None]:
    return lambda lines: lines[1 + row]["votes"][place].update(fields)


def _flip(lines: Lines) -> None:
    for vote in lines[1]["votes"][:2]:
        vote["choice"] = "second" if vote["choice"] == "first" else "first"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_flip, r"row 0 has a score of 100\.00 %, its votes give 50\.00 %"),
        (_vote(5, 0, status="truncated"), r"1 votes have the status no_verdict in the report, votes\.jsonl has 0"),
        (
            _vote(5, 0, status="ok", choice="first"),
            r"the position bias is -?\d+\.\d\d % in the report, the votes give -?\d+\.\d\d %",
        ),
        (
            _vote(5, 0, status="ok", choice="first"),
            r"row 5 has 16\.67 % votes without a verdict, its votes give 0\.00 %",
        ),
        (lambda lines: lines[1]["votes"].pop(), "72 votes are in the report, votes.jsonl has 71"),
        (lambda lines: lines.pop(), "votes are of 11 rows, scores of 12; row 11 is in one of them alone"),
    ],
)
def test_every_damage_is_said(run: Path, change: Callable[[Lines], Any], said: str) -> None:
    """A vote flipped, re-labelled, given a verdict, lost, or lost with its row: exit status 1, and what it is."""
    damage(run, change)
    status, output = checked(run)
    assert status == 1
    assert re.search(said, output), output


def test_swap_consistency_is_counted(run: Path) -> None:
    """Row 3 names the first in both orders; three of one order's votes turned make it name one response."""

    def turn(lines: Lines) -> None:
        for vote in lines[4]["votes"]:
            vote["choice"] = vote["choice"] if vote["order"] == "given" else "second"

    damage(run, turn)
    assert "the swap consistency is 91.67 % in the report, the votes give 100.00 %" in checked(run)[1]


def test_later_lines_and_controls(run: Path) -> None:
    """A row asked again stands for what it was; a control's line is not of the judge."""

    def again(lines: Lines) -> None:
        first = json.loads(json.dumps(lines[1]))
        lines.append(first)
        _flip(lines)
        lines.append({"pass": "blank", "row": 2, "votes": first["votes"][:1], "seconds": None})

    damage(run, again)
    assert checked(run)[0] == 0


def test_what_is_no_log_of_votes(run: Path) -> None:
    """The line, what is wrong, the cure."""
    (run / "votes.jsonl").write_text('{"identity": {}}\n{"pass": "votes", "row": 0}\n')
    with pytest.raises(
        DataError, match=r"votes\.jsonl, line 2: not the votes of a run, or cut off \(KeyError: 'votes'\); restore"
    ):
        count_votes(run / "votes.jsonl", read_run(run).rows)
    (run / "votes.jsonl").write_bytes(b"\xff\xfe\x00")
    assert "not the votes of a run" in str(CliRunner().invoke(app, ["bench", "check", str(run)]).exception)


def test_a_group_named_twice() -> None:
    """The last one counted before."""
    row = ["general=63.84", "general=70", "hallucination=85.71", "reasoning=64.78", "overall=71.92"]
    done = CliRunner().invoke(app, ["bench", "check", *row])
    assert isinstance(done.exception, ConfigError)
    assert "general is named twice" in str(done.exception)


def test_a_file_that_was_cut_off(run: Path) -> None:
    """The line and a cure that loses nothing: the same command would pay for the votes anew."""
    path = run / "votes.jsonl"
    path.write_bytes(path.read_bytes()[:-40])
    said = str(CliRunner().invoke(app, ["bench", "check", str(run)]).exception)
    assert re.search(r"line 13: not the votes of a run, or cut off .*; restore the file from a backup", said), said
    assert "same command" not in said


def test_votes_of_another_run(run: Path) -> None:
    """Each part of the first line is held against the report; of a replay not the sampling, which is that of its source."""
    changes = {"benchmark": "other", "data": "x", "judge": "openai:m", "votes": 5, "orders": "given", "seed": 7}
    for name, value in changes.items():
        whole = (run / "votes.jsonl").read_text()
        damage(run, lambda lines: lines[0]["identity"].update({name: value}))  # noqa: B023  (called at once)
        status, said = checked(run)
        assert status == 1
        assert f"votes.jsonl is of another run: its {name} is {value!r}, that of the report " in said
        (run / "votes.jsonl").write_text(whole)
    damage(run, lambda lines: lines[0]["identity"].update({"temperature": 0.123}))
    assert checked(run)[0] == 0
    report = json.loads((run / "report.json").read_text())
    (run / "report.json").write_text(json.dumps(report | {"judge": "hf:m", "temperature": 0.5}))
    assert "its temperature is 0.123, that of the report 0.5" in checked(run)[1]


def test_texts_are_read_anew(run: Path) -> None:
    """A text that says another thing than its vote; not of formats that nobody here can read, nor of probabilities."""
    whole = (run / "votes.jsonl").read_text()
    damage(run, _vote(7, 2, text="<answer>?</answer>"))
    status, said = checked(run)
    assert status == 1
    assert re.search(r"row 7: vote 3 is recorded as (first|second), its text reads \w+ as think_answer", said), said
    damage(run, _vote(8, 0, margin=1.5))  # by probability: a text says nothing then
    assert checked(run)[1].endswith("72 votes of votes.jsonl counted; their texts not read anew")
    (run / "votes.jsonl").write_text(whole)
    report = json.loads((run / "report.json").read_text())
    (run / "report.json").write_text(json.dumps(report | {"verdict_format": str(run / "mine.py")}))
    (run / "mine.py").write_text("raise SystemExit('it was run')")
    assert checked(run)[1].endswith("their texts not read anew")
