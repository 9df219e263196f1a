"""Pairs with a picture that cannot be read are left out and listed, in every stage, and a run that lost them goes on."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from rewardlab.config import EvaluationConfig, PRMConfig, RMConfig, SFTConfig
from rewardlab.data.files import read_complete_lines
from rewardlab.data.images import check_image
from rewardlab.data.pair_table import PairTable
from rewardlab.data.pairs import write_jsonl, write_parquet
from rewardlab.demo.pairs import make_pairs
from rewardlab.errors import ConfigError, DataError, MediaError
from rewardlab.training.prm import train_prm
from rewardlab.training.reward_model import train_reward_model
from rewardlab.training.rl import train_rl
from rewardlab.training.run.held_out import draw_places
from rewardlab.training.run.inputs import leave_out_unreadable
from rewardlab.training.sft import train_sft, verification_dialogues
from rewardlab.types import Choice, Order, PreferencePair, Tie, choice_of
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


def long(pair: PreferencePair) -> PreferencePair:
    """A pair of more tokens than ``SHORT`` allows."""
    return replace(pair, question=" ".join([pair.question] * 100))


SHORT: dict[str, Any] = {"max_tokens": 400}


def listed(out: Path, name: str = "unreadable") -> list[dict[str, str]]:
    return [json.loads(line) for line in (out / f"{name}.jsonl").read_text().splitlines()]


def losses(out: Path) -> dict[int, float]:
    """Return the loss of each step."""
    lines = read_complete_lines(out / "metrics.jsonl")
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


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
        curves.append(losses(tmp_path / name))
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
        curves.append(losses(tmp_path / name))
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


@pytest.mark.parametrize(
    ("stage", "gone", "settings"),
    [
        *((stage, (3, 7), {}) for stage in STAGES),
        ("sft", (3, 7), {"evaluation": {"fraction": 0.105, "every_steps": 2, "max_tokens": 8}}),
        *(("sft", gone, {}) for gone in ((3, 8), (3,))),
        ("rl", (3, 7), {"easy_ratio": 0.5, "attempts": ["2"]}),
    ],
)
def test_listed_pairs_may_be_taken_out(
    stage: str, gone: tuple[int, ...], settings: dict[str, Any], tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """A run that was stopped goes on without its unreadable and its long pair, as if it had not been stopped; not without a
    pair that it trains on, nor if the long one is short now, or was there when easy pairs were chosen."""
    some, data, out = pairs(), tmp_path / "data.parquet", tmp_path / "run"
    is_easy = [bool(settings.get("easy_ratio")) and n % 2 == 1 and n != 7 for n in range(len(some))]
    some = [replace(pair, attempts="1" if easy else "2") for easy, pair in zip(is_easy, some, strict=True)]
    some[3], some[7] = cut(some[3]), long(some[7])
    settings = SHORT | settings | {"max_steps": 4, "save_steps": 2}
    write_parquet(some, data)
    STAGES[stage](data, tmp_path / "whole", tiny_checkpoint, **settings)
    shutil.copytree(tmp_path / "whole", out)
    for folder in ("final", "checkpoint-4"):  # as a run that was killed before its fourth step
        shutil.rmtree(out / folder)
    some[7] = some[7] if len(gone) == 2 else pairs()[7]
    write_parquet([pair for n, pair in enumerate(some) if n not in gone], data)
    if gone != (3, 7) or "easy_ratio" in settings:
        with pytest.raises(ConfigError, match=r"other settings or data \(data\)"):
            STAGES[stage](data, out, tiny_checkpoint, **settings)
        return
    STAGES[stage](data, out, tiny_checkpoint, **settings)
    assert losses(out) == losses(tmp_path / "whole")
    assert [row["pair_id"] for name in ("unreadable", "too_long") for row in listed(out, name)] == ["pair-3", "pair-7"]


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
@pytest.mark.parametrize("stage", ["sft", "rl"])
def test_500_pairs_and_a_kill(stage: str, finished_run: Path, tmp_path: Path) -> None:
    """A run lists its unreadable pair, its long one and, if it learns judgments, the one that quotes a special token. Killed in
    the middle, it goes on without two of them, and learns what an undisturbed run learns without them from the start."""
    some, data, out = list(make_pairs(500, seed=5, held_out=False)[0]), tmp_path / "data.parquet", tmp_path / "run"
    judged = [format_verdict(choice_of(pair.preferred or 0, pair.order), "x" * (n % 7)) for n, pair in enumerate(some)]
    some = [replace(pair, judgment=text) for pair, text in zip(some, judged, strict=True)]
    some[111], some[222] = cut(some[111]), long(some[222])
    some[333] = replace(some[333], judgment=judged[333].replace("x", "<|image_pad|>"))
    names = [some[n].pair_id for n in (111, 222, 333)]
    write_parquet(some, data)
    keys: dict[str, Any] = {"template": "plain", "learning_rate": 1e-4, "max_steps": 12, "save_steps": 2, "logging_steps": 1}
    keys |= {"model": finished_run / "rl" / "final", "gradient_checkpointing": "false"}
    keys |= {"batch_size": 32, "micro_batch_size": 16, **SHORT}
    keys |= {"sft": {}, "rl": {"rollout_batch_size": 64, "max_completion_length": 40, "consistency.weight": 0}}[stage]
    words = [sys.executable, "-m", "rewardlab.cli", stage, *(f"{name}={value}" for name, value in keys.items())]

    def command(out: Path) -> list[str]:
        return [*words, "--data", str(data), "--out", str(out)]

    with subprocess.Popen(command(out), stderr=subprocess.PIPE, text=True) as run:
        while run.poll() is None and max(losses(out), default=0) < 5:
            time.sleep(0.01)
        is_running = run.poll() is None
        run.kill()
        said = run.communicate()[1]
    assert is_running, said
    assert not (out / "final").exists()
    assert "1 of 500 pairs have pictures that cannot be read" in said
    assert f"longer than 400 tokens; the longest, {names[1]}, has" in said
    write_parquet([pair for pair in some if pair.pair_id not in names[:2]], data)
    resumed = subprocess.run(command(out), check=True, capture_output=True, text=True)
    assert re.search(r"resumes from checkpoint-\d", resumed.stderr)
    files = ["unreadable", "too_long", "special_tokens"][: 3 if stage == "sft" else 2]
    assert [[row["pair_id"] for row in listed(out, file)] for file in files] == [[name] for name in names[: len(files)]]
    subprocess.run(command(tmp_path / "undisturbed"), check=True, capture_output=True)
    assert losses(out) == losses(tmp_path / "undisturbed")
    assert len(set(losses(out).values())) > 6


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
