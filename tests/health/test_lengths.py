"""The doctor counts in the data what it otherwise assumes: lengths of texts, sizes of pictures, pairs that are held out."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from rewardlab.cli import app
from rewardlab.config import RLConfig, SFTConfig
from rewardlab.data.pair_table import PairTable
from rewardlab.data.pairs import write_parquet
from rewardlab.health.dataset import NUM_LONGEST, NUM_SPREAD, DataFacts, data_facts
from rewardlab.health.plan import Plan, needs
from rewardlab.health.shapes import MEGAPIXEL
from rewardlab.models.loading import load_processor
from rewardlab.prompts import load_template
from rewardlab.training.run.parallel import Launch
from rewardlab.training.run.preflight import TokenCounter
from rewardlab.types import BOTH_ORDERS, PreferencePair
from tests.support import scaled_runs

BASE = "Qwen/Qwen2.5-VL-7B-Instruct"


def picture(width: int, height: int, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.zeros((height, width, 3), np.uint8)).save(buffer, kind)
    return buffer.getvalue()


def read(pairs: Sequence[PreferencePair], config: Any, folder: Path) -> DataFacts:
    write_parquet(list(pairs), folder / "pairs.parquet")
    return data_facts(PairTable(folder / "pairs.parquet"), config)


def test_lengths_as_the_tokenizer_counts(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """The longest prompt and judgment of a small set, as training counts them."""
    pairs, template = scaled_runs.pairs(), load_template("plain")
    lengths = read(pairs, SFTConfig(model=str(tiny_checkpoint), template="plain"), tmp_path).lengths
    counter = TokenCounter(load_processor(str(tiny_checkpoint)))
    prompts = [max(counter.sample(pair, order, template).total for order in BOTH_ORDERS) for pair in pairs]
    both = [counter.sample(pair, pair.order, template, answer=pair.judgment).total for pair in pairs]
    assert lengths is not None
    assert lengths.prompt == max(prompts)
    assert lengths.answer == pytest.approx(max(total - prompt for total, prompt in zip(both, prompts, strict=True)), abs=1)
    assert lengths.source == "counted in 32 pairs of the data"


def test_pictures_as_they_are_stored_and_shown(tmp_path: Path) -> None:
    """Two of 2 MP and one of 0.2 MP a pair; shown at 501,760 px at most, by 784 px a token. Text is counted by bytes."""
    images = (picture(2000, 1000), picture(2000, 1000, "JPEG"), picture(500, 400))
    pairs = [replace(pair, images=images) for pair in scaled_runs.pairs()[:4]]
    lengths = read(pairs, SFTConfig(pixels={"max": 501_760}), tmp_path).lengths
    assert lengths is not None
    assert (lengths.pictures, lengths.most_pictures) == (3, 3)
    assert lengths.megapixels == pytest.approx((2 + 2 + 0.2) / 3)
    assert lengths.picture.tokens == pytest.approx((640 + 640 + 255) / 3, abs=1)
    assert 3 * 512 < lengths.prompt < 3 * 512 + 400
    assert lengths.source == "by bytes in 4 pairs of the data"


def test_the_longest_is_read_wherever_it_is(tmp_path: Path) -> None:
    """Of more pairs than are read: the one with the longest text and the one with most pictures decide."""
    short = replace(scaled_runs.pairs()[0], images=())
    pairs = [replace(short, pair_id=str(n)) for n in range(4 * NUM_SPREAD)]
    pairs[5] = replace(pairs[5], question="word " * 4000)
    pairs[9] = replace(pairs[9], images=(picture(1000, 1000),) * 3)
    given = read(pairs, SFTConfig(), tmp_path)
    assert given.sample is not None
    assert given.lengths is not None
    assert NUM_SPREAD <= len(given.sample.totals) <= NUM_SPREAD + NUM_LONGEST
    assert 5000 < given.lengths.prompt < 5500
    assert given.lengths.most_pictures == 3
    assert given.lengths.pictures == 0
    assert given.lengths.picture.tokens == 1_000_000 // 784


def test_what_is_too_long_is_not_trained_on(tmp_path: Path) -> None:
    pairs = [replace(pair, images=(), question="Which is right?") for pair in scaled_runs.pairs()]
    pairs[0] = replace(pairs[0], question="word " * 4000)
    given = read(pairs, RLConfig(max_tokens=3000, max_completion_length=500), tmp_path)
    assert given.sample is not None
    assert given.sample.num_too_long == 1
    assert given.lengths is not None
    assert given.lengths.prompt < 2500


def test_held_out_pairs_are_those_of_training(tmp_path: Path) -> None:
    """A quarter of 32 pairs: not trained on, and counted by themselves; or those of a file of their own."""
    pairs = [replace(pair, pair_id=str(n), question=f"Question {n}?") for n, pair in enumerate(scaled_runs.pairs())]
    given = read(pairs, SFTConfig(batch_size=8, evaluation={"fraction": 0.25, "num_pairs": 32}), tmp_path)
    assert given.held_out is not None
    assert (given.held_out.pairs, given.sequences, given.steps) == (8, 24, 3)
    others = tmp_path / "others.parquet"
    write_parquet([replace(pair, question="word " * 1000) for pair in pairs[:4]], others)
    given = read(pairs, SFTConfig(batch_size=8, evaluation={"data": str(others)}), tmp_path)
    assert given.held_out is not None
    assert given.lengths is not None
    assert (given.held_out.pairs, given.sequences) == (4, 32)
    assert given.held_out.lengths.prompt > given.lengths.prompt + 1000


def test_estimates_take_what_was_counted(tmp_path: Path) -> None:
    """Short texts and small pictures need less than is assumed; the lines say which it was."""
    small = [replace(pair, images=(picture(280, 280),)) for pair in scaled_runs.pairs()]
    given = read(small, RLConfig(attempts=["2"]), tmp_path)
    plan, config = Plan(Launch(8, 3), 80), RLConfig(model=BASE)
    counted, assumed = (next(needs(config, plan, facts)) for facts in (given, None))
    assert "(by bytes in 32 pairs of the data)" in counted.message
    assert "(assumed: 768 of text and a picture of 1.00 MP)" in assumed.message
    of_counted, of_assumed = (float(each.message.split("at most ")[1].split()[0]) for each in (counted, assumed))
    assert of_counted < of_assumed - 5
    lengths = given.lengths
    assert lengths is not None
    assert lengths.picture.pixels == 78_400 < MEGAPIXEL


def test_the_command_says_what_it_counted(tmp_path: Path, tiny_checkpoint: Path) -> None:
    """With a checkpoint's own tokenizer, and for a model known by name alone; steps are those of the pairs that are left."""
    data, config = tmp_path / "pairs.parquet", tmp_path / "sft.yaml"
    write_parquet([replace(pair, question=f"Question {n}?") for n, pair in enumerate(scaled_runs.pairs())], data)
    config.write_text(json.dumps({"template": "plain", "batch_size": 8, "evaluation": {"fraction": 0.25, "every_steps": 100}}))
    words = ["doctor", str(config), "--dry-run", "--data", str(data), "--memory", "80"]
    named = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "run")]).output
    assert "32 pairs, 8 held out; an epoch has 24 sequences: 3 optimizer steps of 8 (epochs 1)" in named
    assert "without a tokenizer: 4 bytes of text are a token" in named
    assert "(by bytes in 24 pairs of the data)" in named
    own = CliRunner().invoke(app, [*words, f"model={tiny_checkpoint}"]).output
    assert "(counted in 24 pairs of the data)" in own
