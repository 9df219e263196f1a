"""Dialogues that are too long: verifications of votes, and judgments of a process reward model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rewardlab.config import PRMConfig, SFTConfig
from rewardlab.errors import DataError
from rewardlab.models.loading import load_processor
from rewardlab.prompts import load_template
from rewardlab.samplers.hf import encode
from rewardlab.training.prm import short_judgments, train_prm
from rewardlab.training.run.preflight import TokenCounter
from rewardlab.training.run.rows import SFTDialogue, count_dialogue, dialogue_messages, places_that_fit, turn
from rewardlab.training.sft import short_dialogues, train_sft
from rewardlab.types import Order, PreferencePair

PLAIN = load_template("plain")
JUDGMENT = "<think>a</think><answer>1</answer>"


@pytest.fixture
def pairs(demo_pairs: Any) -> list[PreferencePair]:
    return [replace(pair, judgment=JUDGMENT, order=Order.GIVEN) for pair in demo_pairs[0][:8]]


def verified(number: int, text: str) -> SFTDialogue:
    return SFTDialogue(number, Order.GIVEN, "Right.", (turn("assistant", text), turn("user", "Verify it.")))


def config(checkpoint: Path, max_tokens: int | None) -> SFTConfig:
    return SFTConfig.model_validate({"model": str(checkpoint), "template": "plain", "max_tokens": max_tokens})


def read_lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_dialogue_is_as_long_as_what_is_read(tiny_checkpoint: Path, pairs: list[PreferencePair]) -> None:
    """By the processor's own encoding of prompt, picture and turns, and its tokenizer's of the answer."""
    processor = load_processor(str(tiny_checkpoint))
    dialogue = verified(0, "said first")
    counted = count_dialogue(pairs[0], dialogue, TokenCounter(processor), PLAIN)
    messages, answer = dialogue_messages(pairs[0], dialogue, PLAIN)
    read = encode(processor, [tuple(messages)])["input_ids"].shape[1]
    assert counted.total == read + len(processor.tokenizer.encode(answer, add_special_tokens=False))
    assert counted.images > 0


def test_long_verifications_are_left_out(
    tiny_checkpoint: Path, pairs: list[PreferencePair], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each by itself: another of the same pair stays, and so does the pair's judgment. At the limit to the token."""
    dialogues = [SFTDialogue(0, Order.GIVEN), verified(0, "short"), verified(0, "word " * 90), verified(1, "short")]
    counter = TokenCounter(load_processor(str(tiny_checkpoint)))
    long, last = (count_dialogue(pairs[n], dialogues[place], counter, PLAIN).total for n, place in ((0, 2), (1, 3)))
    assert long > last
    kept = short_dialogues(pairs, dialogues, config(tiny_checkpoint, long - 1), PLAIN, tmp_path)
    assert kept == [*dialogues[:2], dialogues[3]]
    [row] = read_lines(tmp_path / "too_long_dialogues.jsonl")
    assert (row["pair_id"], row["total"]) == (pairs[0].pair_id, long)
    said = capsys.readouterr().err
    assert f"1 of 3 dialogues are longer than {long - 1} tokens; the longest, {pairs[0].pair_id}, has" in said
    assert short_dialogues(pairs, dialogues, config(tiny_checkpoint, long), PLAIN, tmp_path) == dialogues
    assert not (tmp_path / "too_long_dialogues.jsonl").exists()
    with pytest.raises(DataError, match=r"3 of 3 dialogues are longer than 10 tokens; .* raise max_tokens"):
        places_that_fit(pairs, dialogues[1:], config(tiny_checkpoint, 10), PLAIN, tmp_path / "x")


def test_votes_of_a_cold_start_are_counted(tiny_checkpoint: Path, pairs: list[PreferencePair], tmp_path: Path) -> None:
    """Through `train_sft`: without `max_tokens`, longer than the model's context is an error."""
    votes = tmp_path / "votes.jsonl"
    said = [
        {"pass": "votes", "row": 0, "votes": [{"order": "given", "choice": choice, "text": "x " * 40_000}]}
        for choice in ("first", "second")
    ]
    pairs = [replace(pairs[0], judgment=f"<think>{pairs[0].responses[0]}</think><answer>1</answer>")]
    votes.write_text("\n".join(json.dumps(line) for line in [{"identity": {}}, *said]))
    with pytest.raises(DataError, match=r"dialogues are longer than .* tokens; .* set max_tokens to have them left out"):
        train_sft(pairs, config(tiny_checkpoint, None), tmp_path / "run", votes=votes)


def test_long_judgments_of_a_process_reward_model(
    tiny_checkpoint: Path, demo_pairs: Any, labelled: Sequence[dict[str, Any]], tmp_path: Path
) -> None:
    """They are left out and listed, as in the other stages; without room for one, an error before a model is loaded."""
    long = {**labelled[0], "text": "word " * 200 + labelled[0]["text"]}
    settings = {"model": str(tiny_checkpoint), "template": "plain", "max_tokens": 300}
    steps = [long, *labelled[1:]]
    kept = short_judgments(demo_pairs[0], steps, PRMConfig.model_validate(settings), PLAIN, tmp_path)
    assert kept == list(labelled[1:])
    [row] = read_lines(tmp_path / "too_long.jsonl")
    assert row["pair_id"] == long["pair_id"]
    assert row["total"] > 300
    with pytest.raises(DataError, match="16 of 16 dialogues are longer than 10 tokens"):
        train_prm(demo_pairs[0], steps, PRMConfig.model_validate(settings | {"max_tokens": 10}), tmp_path / "run")
