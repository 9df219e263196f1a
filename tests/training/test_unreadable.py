"""Pairs with a picture that cannot be read are left out and listed, in every stage, and a run that lost them goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from rewardlab.config import EvaluationConfig, PRMConfig, RMConfig, SFTConfig
from rewardlab.data.images import check_image
from rewardlab.data.pair_table import PairTable
from rewardlab.data.pairs import write_jsonl, write_parquet
from rewardlab.errors import ConfigError, DataError, MediaError
from rewardlab.training.prm import train_prm
from rewardlab.training.reward_model import train_reward_model
from rewardlab.training.rl import train_rl
from rewardlab.training.run.held_out import draw_places
from rewardlab.training.run.inputs import leave_out_unreadable
from rewardlab.training.sft import train_sft, verification_dialogues
from rewardlab.types import Choice, Order, PreferencePair, Tie
from rewardlab.verdicts.parse import format_verdict
from tests.support import scaled_runs
from tests.support.configs import short_rl_config
from tests.support.images import torn
from tests.support.rewards import TokenReward


def pairs(number: int = 24) -> list[PreferencePair]:
    return [replace(pair, pair_id=f"pair-{n}") for n, pair in enumerate(scaled_runs.pairs()[:number])]


def cut(pair: PreferencePair) -> PreferencePair:
    return replace(pair, images=(pair.images[0][:-30],))


def broken(pair: PreferencePair) -> PreferencePair:
    """A pair with a picture that passes the look at the start."""
    image = torn(pair.images[0])
    check_image(image)
    return replace(pair, images=(image,))


def listed(out: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in (out / "unreadable.jsonl").read_text().splitlines()]


def sft(data: Any, out: Path, checkpoint: Path, **changes: Any) -> Path:
    settings = scaled_runs.SHARED | {"model": str(checkpoint), "batch_size": 4} | changes
    return train_sft(data, SFTConfig(**settings), out)


def rl(data: Any, out: Path, checkpoint: Path, **changes: Any) -> Path:
    config = short_rl_config(checkpoint, **({"max_steps": 4, "save_steps": 2} | changes))
    return train_rl(data, config, out, reward=TokenReward(lambda ids, n: float(n % 2), correct=lambda ids, n: float(n % 2)))


def rm(data: Any, out: Path, checkpoint: Path, **changes: Any) -> Path:
    table = PairTable(data) if isinstance(data, Path) else data
    settings = scaled_runs.SHARED | {"model": str(checkpoint), "batch_size": 4, "template": "single"}
    return train_reward_model(table, RMConfig(**(settings | changes)), out)


STAGES: dict[str, Callable[..., Path]] = {"sft": sft, "rl": rl, "rm": rm}
LATE, EARLY = {"sft": 6, "rl": 0, "rm": 0}, 2  # pairs that are read after a checkpoint, and before any


def write_foreign(some: list[PreferencePair], path: Path) -> None:
    """Write Parquet as another program does: nothing in it says that its pictures were checked."""
    write_parquet(some, path)
    pq.write_table(pq.read_table(path).replace_schema_metadata(None), path)


WRITERS: dict[str, tuple[Callable[..., Any], str]] = {
    "rewardlab": (write_parquet, ".parquet"),
    "foreign": (write_foreign, ".parquet"),
    "lines": (write_jsonl, ".jsonl"),
}


@pytest.mark.parametrize(("stage", "writer"), [("sft", "lines"), ("rl", "rewardlab"), ("rm", "foreign")])
def test_a_run_leaves_them_out(
    stage: str, writer: str, tiny_checkpoint: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It trains on what it would train on without these rows, number for number, whoever wrote the file."""
    all_pairs, (write, suffix) = pairs(), WRITERS[writer]
    bad = [cut(pair) if n == 11 else pair for n, pair in enumerate(all_pairs)]
    write(bad, tmp_path / f"bad{suffix}")
    write([pair for n, pair in enumerate(all_pairs) if n != 11], tmp_path / f"good{suffix}")
    curves = []
    for name in ("bad", "good"):
        STAGES[stage](tmp_path / f"{name}{suffix}", tmp_path / name, tiny_checkpoint)
        lines = map(json.loads, (tmp_path / name / "metrics.jsonl").read_text().splitlines())
        curves.append([(line["step"], line["loss"]) for line in lines if "loss" in line])
    assert curves[0] == curves[1]
    [row] = listed(tmp_path / "bad")
    assert row["pair_id"] == "pair-11"
    place = "row 11 (line 12), image 0, " if writer == "lines" else "row 11, image 0: "
    assert row["error"].startswith(f"{tmp_path / 'bad'}{suffix}, {place}")
    assert "not a readable image" in row["error"]
    assert not (tmp_path / "good" / "unreadable.jsonl").exists()
    said = capfd.readouterr().err
    assert "1 of 24 pairs have pictures that cannot be read" in said


@pytest.mark.parametrize("stage", STAGES)
def test_a_run_leaves_ties_out(stage: str, tiny_checkpoint: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Judged ties too: it trains on what it would train on without them, number for number, and counts them."""
    some = pairs()
    tied = [replace(pair, preferred=None, tie=Tie.TIE) if n in (3, 11, 12) else pair for n, pair in enumerate(some)]
    sets = {"tied": tied, "alone": [pair for pair in tied if pair.tie is None]}
    curves = []
    for name, of_set in sets.items():
        write_parquet(of_set, tmp_path / f"{name}.parquet")
        STAGES[stage](tmp_path / f"{name}.parquet", tmp_path / name, tiny_checkpoint)
        lines = map(json.loads, (tmp_path / name / "metrics.jsonl").read_text().splitlines())
        curves.append([(line["step"], line["loss"]) for line in lines if "loss" in line])
    assert curves[0] == curves[1]
    assert capfd.readouterr().err.count("3 of 24 pairs are ties, which are not trained on") == 1


@pytest.mark.parametrize(
    ("stage", "mend", "fraction"),
    [
        *(("sft", mend, None) for mend in ("same", "early", "replaced", "other")),
        *((stage, "removed", None) for stage in ("rl", "rm")),
        ("sft", "removed", 0.105),
    ],
)
def test_a_run_that_met_one_goes_on(
    stage: str, mend: str, fraction: float | None, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """With the same file, with one that lacks the row, with one that has a sound picture in its place; not with one in which
    another pair has changed, too. Before the first checkpoint as well, and where a fraction is held out: 0.105 of 24 pairs are
    3 (2.52), and of 23 they would be 2 (2.415)."""
    all_pairs, data, out, bad = pairs(8 if stage == "rl" else 24), tmp_path / "data.parquet", tmp_path / "run", LATE[stage]
    bad = EARLY if mend == "early" else bad
    settings: dict[str, Any] = {"epochs": 3, "max_steps": -1, "save_steps": 2}
    if fraction:
        settings["evaluation"] = {"fraction": fraction, "every_steps": 2, "max_tokens": 8}
    write_parquet([broken(pair) if n == bad else pair for n, pair in enumerate(all_pairs)], data)
    with pytest.raises(MediaError) as caught:
        STAGES[stage](data, out, tiny_checkpoint, **settings)
    assert f"pair-{bad}: not a readable image" in str(caught.value)
    assert str(caught.value).endswith("the same command continues without it")
    assert [row["pair_id"] for row in listed(out)] == [f"pair-{bad}"]
    assert bool(list(out.glob("checkpoint-*"))) == (mend != "early")
    if mend == "removed":
        write_parquet([pair for n, pair in enumerate(all_pairs) if n != bad], data)
    if mend in ("replaced", "other"):
        mended = [replace(pair, images=all_pairs[1].images) if n == bad else pair for n, pair in enumerate(all_pairs)]
        mended = [replace(pair, question="Other?") if (n, mend) == (3, "other") else pair for n, pair in enumerate(mended)]
        write_parquet(mended, data)
    if mend == "other":
        with pytest.raises(ConfigError, match=r"other settings or data \(data\)"):
            STAGES[stage](data, out, tiny_checkpoint, **settings)
        return
    STAGES[stage](data, out, tiny_checkpoint, **settings)
    assert (out / "final").exists()
    assert [row["pair_id"] for row in listed(out)] == [f"pair-{bad}"]


def test_pairs_in_memory(tmp_path: Path) -> None:
    """Of a list as of a file; where none is left, an error."""
    some = pairs(4)
    read = leave_out_unreadable([some[0], cut(some[1]), some[2]], tmp_path)
    assert (read.numbers, [pair.pair_id for pair in read.pairs]) == ([0, 2], ["pair-0", "pair-2"])
    assert read.left_out[1].startswith("pair-1: not a readable image")
    assert read.num_labelled_left_out == 1
    assert leave_out_unreadable([some[0], replace(cut(some[1]), preferred=None)], tmp_path).num_labelled_left_out == 0
    with pytest.raises(DataError, match=r"no pair can be read; of the first: pair-0: not a readable image"):
        leave_out_unreadable([cut(some[0]), cut(some[1])], tmp_path)
    assert leave_out_unreadable(some, tmp_path).pairs is some
    assert not (tmp_path / "unreadable.jsonl").exists()  # of a start that failed


def test_a_policys_questions(tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pairs of a policy, too."""
    some = pairs(8)
    monkeypatch.setattr(scaled_runs, "pairs", lambda: [cut(pair) if n == 5 else pair for n, pair in enumerate(some)])
    scaled_runs.run("scalar", tiny_checkpoint, tmp_path / "run")
    assert [row["pair_id"] for row in listed(tmp_path / "run")] == ["pair-5"]
    assert (tmp_path / "run" / "final").exists()


def test_pairs_that_are_evaluated(tiny_checkpoint: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """They are decoded before the first step: what cannot be is left out, and said."""
    held = [replace(pair, question=f"Other {n}?") for n, pair in enumerate(pairs(4))]
    write_parquet([broken(pair) if n == 2 else pair for n, pair in enumerate(held)], tmp_path / "held.parquet")
    evaluation = {"data": str(tmp_path / "held.parquet"), "every_steps": 2, "max_tokens": 8}
    sft(pairs(8), tmp_path / "run", tiny_checkpoint, evaluation=evaluation, max_steps=2)
    place = f"{tmp_path / 'held.parquet'}, row 2, image 0"
    assert f"evaluation: 1 of 4 pairs cannot be read, such as: {place}: not a readable image" in capfd.readouterr().err
    rows = [json.loads(line) for line in (tmp_path / "run" / "evaluations.jsonl").read_text().splitlines()]
    assert len(rows) == 2  # at the start and at the end
    assert (tmp_path / "run" / "final").exists()


def test_a_pair_that_is_held_out(tiny_checkpoint: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """And cannot be decoded is neither evaluated nor trained on."""
    (write, suffix), evaluation = WRITERS["foreign"], {"fraction": 0.105, "every_steps": 2, "max_tokens": 8}
    bad = draw_places(pairs(), EvaluationConfig.model_validate(evaluation))[1]
    write([broken(pair) if n == bad else pair for n, pair in enumerate(pairs())], tmp_path / f"data{suffix}")
    sft(tmp_path / f"data{suffix}", tmp_path / "run", tiny_checkpoint, evaluation=evaluation, epochs=1, max_steps=-1)
    said = capfd.readouterr().err
    assert "evaluation: 3 of 24 pairs are held out" in said
    assert "evaluation: 1 of 3 pairs cannot be read" in said
    assert (tmp_path / "run" / "final").exists()


def test_votes_count_the_rows_of_their_set(tmp_path: Path) -> None:
    """Of a row that was left out they teach nothing; those after it are of the same pairs as before."""
    judged = [replace(pair, judgment=format_verdict(Choice.FIRST, " ".join(pair.responses))) for pair in pairs(4)]
    judged = [replace(pair, preferred=0, order=Order.GIVEN) for pair in judged]
    votes = tmp_path / "votes.jsonl"
    said = [{"order": "given", "choice": choice, "text": choice} for choice in ("first", "second")]
    rows = [{"pass": "votes", "row": n, "votes": said} for n in range(4)]
    votes.write_text("".join(json.dumps(row) + "\n" for row in [{"identity": {}}, *rows]))
    whole = verification_dialogues(judged, votes)
    some = verification_dialogues([judged[0], judged[2]], votes, left_out={1, 3})
    assert {dialogue.number for dialogue in whole} == {0, 1, 2, 3}
    assert some == [replace(each, number=each.number // 2) for each in whole if each.number in (0, 2)]


@pytest.mark.nightly
def test_two_processes_look_at_a_half_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And know of both."""
    some = [cut(pair) if n in (1, 9) else pair for n, pair in enumerate(pairs(10))]
    write_parquet(some, tmp_path / "data.parquet")
    alone = leave_out_unreadable(PairTable(tmp_path / "data.parquet"), tmp_path / "alone")
    assert list(alone.left_out) == [1, 9]
    looked: list[int] = []
    look_at = PairTable.look_at
    monkeypatch.setattr(PairTable, "look_at", lambda self, n, **options: looked.append(n) or look_at(self, n, **options))
    program = (
        "import sys; from pathlib import Path; from rewardlab.data.pair_table import PairTable; "
        "from rewardlab.training.run.inputs import leave_out_unreadable; "
        "print(leave_out_unreadable(PairTable(Path(sys.argv[1])), Path(sys.argv[2])).numbers)"
    )
    words = [sys.executable, "-c", program, str(tmp_path / "data.parquet"), str(tmp_path / "both")]
    environment = {**os.environ, "RANK": "1", "WORLD_SIZE": "2"}
    other = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    both = leave_out_unreadable(PairTable(tmp_path / "data.parquet"), tmp_path / "both")
    assert sorted(looked) == list(range(5))
    assert (both.left_out, both.digests) == (alone.left_out, alone.digests)
    assert json.loads(other.communicate()[0]) == alone.numbers
    assert [row["pair_id"] for row in listed(tmp_path / "both")] == ["pair-1", "pair-9"]


def test_labels_of_steps_on_them(
    tiny_checkpoint: Path, demo_pairs: Any, labelled: list[dict[str, Any]], tmp_path: Path
) -> None:
    """Are left out with them, also once the pairs themselves are gone."""
    some, out, late = list(demo_pairs[0][:16]), tmp_path / "run", 9  # which is read after a checkpoint
    some[3], some[late] = cut(some[3]), broken(some[late])
    settings = scaled_runs.SHARED | {"model": str(tiny_checkpoint), "batch_size": 4, "save_steps": 1}
    config = PRMConfig(**settings)
    with pytest.raises(MediaError, match=f"{some[late].pair_id}: not a readable image"):
        train_prm(some, labelled, config, out)
    names = [some[3].pair_id, some[late].pair_id]
    assert [row["pair_id"] for row in listed(out)] == names
    assert list(out.glob("checkpoint-*"))
    train_prm([pair for pair in some if pair.pair_id not in names], labelled, config, out)
    assert (out / "final").exists()


def test_videos_and_paths(tmp_path: Path) -> None:
    """A path is looked at as the bytes are, and a pair without pictures can be read."""
    rows = [{"question": f"q{n}", "responses": ["a", "b"], "preferred": 0, "images": [f"{n}.png"] * (n < 2)} for n in range(3)]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for n in range(2):
        Image.fromarray(np.full((30, 30, 3), n, dtype=np.uint8)).save(tmp_path / f"{n}.png")
    table = PairTable(tmp_path / "data.jsonl")
    assert leave_out_unreadable(table, tmp_path / "run").pairs is table
    whole = (tmp_path / "1.png").read_bytes()
    (tmp_path / "1.png").write_bytes(whole[:-20])
    for read in (table, PairTable(tmp_path / "data.jsonl")):
        assert [pair.pair_id for pair in leave_out_unreadable(read, tmp_path / "run").pairs] == ["row-0", "row-2"]
    (tmp_path / "0.png").unlink()
    gone = leave_out_unreadable(PairTable(tmp_path / "data.jsonl"), tmp_path / "run")
    assert (gone.numbers, list(gone.left_out)) == ([2], [0, 1])
    assert "0.png: cannot be read (No such file or directory)" in gone.left_out[0]


def test_a_picture_is_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where nothing says that it was looked at before."""
    looked: list[str] = []
    monkeypatch.setattr("rewardlab.data.pair_table.check_image", lambda data, where: looked.append(where))
    for name, (write, suffix) in WRITERS.items():
        looked.clear()
        write(pairs(4), tmp_path / f"{name}{suffix}")
        leave_out_unreadable(PairTable(tmp_path / f"{name}{suffix}"), tmp_path / "run")
        assert len(looked) == len(set(looked)) == 4
