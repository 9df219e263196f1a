"""Which pairs are evaluated: the same of a set in any order, and never what is trained on."""

from __future__ import annotations

import io
import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image
from pydantic import ValidationError

from rewardlab.config import EvaluationConfig, RLConfig, RMConfig, SFTConfig
from rewardlab.data.pair_table import PairTable
from rewardlab.data.pairs import write_parquet
from rewardlab.errors import DataError, MediaError
from rewardlab.prompts import load_template
from rewardlab.training.run.held_out import HeldOut, answer_tokens, hold_out, hold_out_file, hold_out_fraction, pairs_beside
from rewardlab.types import PreferencePair


def pair(n: int, **changes: object) -> PreferencePair:
    made = PreferencePair(f"p{n}", f"What is {n}?", (f"It is {n}.", "I do not know."), n % 2, (b"image %d" % n,))
    return replace(made, **changes)  # type: ignore[arg-type]


PAIRS = [pair(n) for n in range(200)]


def names(pairs: object) -> set[str]:
    return {one.pair_id for one in pairs}  # type: ignore[attr-defined]


def held(pairs: list[PreferencePair], fraction: float = 0.1, **changes: object) -> HeldOut:
    return hold_out_fraction(pairs, EvaluationConfig.model_validate({"fraction": fraction, **changes}), fraction)


def test_a_share_is_held_out_and_not_trained_on() -> None:
    """20 of 200 pairs; every pair is on one side; num_pairs bounds what is taken from training, too."""
    split = held(PAIRS)
    assert len(split.evaluated) == 20
    assert names(split.evaluated).isdisjoint(names(split.trained))
    assert names(split.evaluated) | names(split.trained) == names(PAIRS)
    assert [one.pair_id for one in split.trained] == [one.pair_id for one in PAIRS if one.pair_id in names(split.trained)]
    few = held(PAIRS, num_pairs=5)
    assert names(few.evaluated) < names(split.evaluated)
    assert len(few.trained) == 195
    assert len(held(PAIRS[:3]).evaluated) == 1
    assert names(held(PAIRS, seed=1).evaluated) != names(split.evaluated)


def test_the_draw_is_by_what_pairs_say() -> None:
    """Shuffled, renamed, responses exchanged, judged by a teacher or among others: the same pairs come first."""
    chosen = {one.question for one in held(PAIRS).evaluated}
    changed = [
        replace(one.swap() if n % 3 else one, pair_id=f"x{n}", judgment="...", attempts="2") for n, one in enumerate(PAIRS)
    ]
    random.Random(0).shuffle(changed)
    assert {one.question for one in held(changed).evaluated} == chosen
    more = held([*PAIRS, *(pair(n) for n in range(200, 400))], num_pairs=20)
    assert len({one.question for one in more.evaluated} & chosen) > 0
    assert {one.question for one in more.evaluated if one in PAIRS} <= chosen


def test_what_is_about_the_same_is_not_trained_on() -> None:
    """A second pair about the question and the images of one that is held out is on neither side; the same question about
    another image is trained on."""
    chosen = held(PAIRS).evaluated[0]
    twin = replace(chosen, pair_id="twin", responses=("Perhaps.", "No."))
    cousin = replace(chosen, pair_id="cousin", images=(b"another",), responses=("Hm.", "Well."))
    split = held([*PAIRS, twin, cousin], num_pairs=20)
    assert chosen.pair_id in names(split.evaluated)
    assert "twin" not in names(split.evaluated) | names(split.trained)
    assert "cousin" in names(split.trained)


def test_images_are_read_of_equal_questions_only() -> None:
    """Of a set on disk, the images of most pairs are never asked for."""
    asked: list[str] = []

    class Lazy(PreferencePair):
        @property
        def images(self) -> tuple[bytes, ...]:  # type: ignore[override]
            asked.append(self.pair_id)
            return (b"image",)

    lazy = [object.__new__(Lazy) for _ in PAIRS]
    for one, made in zip(lazy, PAIRS, strict=True):
        one.__dict__.update({name: value for name, value in vars(made).items() if name != "images"})
    split = held(list(lazy))
    assert set(asked) == names(split.evaluated)


def test_without_labels_there_is_nothing_to_evaluate() -> None:
    blind = [replace(one, preferred=None) for one in PAIRS[:10]]
    assert names(held([*blind, *PAIRS[10:20]], 0.5).evaluated) <= names(PAIRS[10:20])
    with pytest.raises(DataError, match="leaves nothing to evaluate"):
        held(blind)
    with pytest.raises(DataError, match="leaves nothing to train on"):
        held(PAIRS[:1])


def test_a_held_out_file_is_checked_against_what_is_trained_on() -> None:
    """Pairs of the file about what is trained on are left out of the evaluation; the training set stays as it is."""
    config = EvaluationConfig(data="test.parquet", num_pairs=4)
    others = [*PAIRS[:3], *(pair(n) for n in range(500, 510))]
    split = hold_out_file(PAIRS, others, config)
    assert split.trained is PAIRS
    assert len(split.evaluated) == 4
    assert names(split.evaluated).isdisjoint(names(PAIRS))
    with pytest.raises(DataError, match="3 of its 3 labelled pairs share question and images with training pairs"):
        hold_out_file(PAIRS, PAIRS[:3], config)


def test_nothing_is_held_out_by_default(tmp_path: Path) -> None:
    """All pairs are trained on, the very same object; no file is read."""
    split = hold_out(PAIRS, SFTConfig(), load_template("plain"))
    assert split.trained is PAIRS
    assert not split.evaluated
    assert split.fingerprint == ""


def test_longest_answers() -> None:
    """A rollout's length in RL, in SFT that of a benchmark, or what the config says."""
    assert answer_tokens(SFTConfig()) == 1024
    assert answer_tokens(RLConfig(max_completion_length=300)) == 300
    assert answer_tokens(RLConfig(evaluation=EvaluationConfig(fraction=0.1, max_tokens=7))) == 7


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"data": "a", "fraction": 0.1}, "set fraction or data, not both"),
        ({"fraction": 1.0}, "less than 1"),
        ({"eval_steps": 3}, "Extra inputs"),
    ],
)
def test_a_config_that_cannot_be_meant(keys: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        SFTConfig.model_validate({"evaluation": keys})


def test_a_scalar_head_has_no_orders() -> None:
    with pytest.raises(ValidationError, match="in no order"):
        RMConfig.model_validate({"evaluation": {"fraction": 0.1, "metric": "consistent_accuracy"}})


def test_pictures_of_held_out_pairs_may_be_elsewhere(tmp_path: Path) -> None:
    """And columns that the training set may have, the held-out set may have too."""
    picture = io.BytesIO()
    Image.new("RGB", (8, 8)).save(picture, "PNG")
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "x.png").write_bytes(picture.getvalue())
    row = {"question": "What is it?", "responses": ["a", "b"], "preferred": 0, "images": ["x.png"], "annotator": "x"}
    (tmp_path / "test.jsonl").write_text(json.dumps(row | {"pair_id": "of the test"}) + "\n")
    (tmp_path / "pictures" / "train.jsonl").write_text(json.dumps(row | {"pair_id": "trained"}) + "\n")
    pairs = PairTable(tmp_path / "pictures" / "train.jsonl", allow_columns=["annotator"])
    keys = {"data": str(tmp_path / "test.jsonl"), "images": str(tmp_path / "pictures")}
    config = SFTConfig.model_validate({"model": "none", "evaluation": keys})
    assert [one.images for one in pairs_beside(pairs, keys["data"], config)] == [(picture.getvalue(),)]
    elsewhere = SFTConfig.model_validate({"model": "none", "evaluation": {"data": keys["data"]}})
    with pytest.raises(MediaError, match=r"x\.png"):
        list(pairs_beside(pairs, keys["data"], elsewhere))
    with pytest.raises(DataError, match="annotator"):
        pairs_beside(PAIRS, keys["data"], config)


def test_too_long_pairs_are_left_out(tiny_checkpoint: Path, demo_pairs: object, tmp_path: Path) -> None:
    """Where no answer fits behind them; all of them: an error with the cure."""
    pairs = demo_pairs[0][:20]  # type: ignore[index]
    test = [
        replace(one, question=one.question + (" word" * 400 if n < 5 else "")) for n, one in enumerate(demo_pairs[0][100:120])
    ]  # type: ignore[index]
    write_parquet(test, tmp_path / "test.parquet")

    def config(limit: int) -> SFTConfig:
        evaluation = {"data": str(tmp_path / "test.parquet"), "max_tokens": 16}
        return SFTConfig.model_validate({"model": str(tiny_checkpoint), "max_tokens": limit, "evaluation": evaluation})

    split = hold_out(pairs, config(400), load_template("plain"))
    assert len(split.evaluated) == 15
    with pytest.raises(DataError, match=r"every pair to evaluate is longer than 10 tokens"):
        hold_out(pairs, config(10), load_template("plain"))
