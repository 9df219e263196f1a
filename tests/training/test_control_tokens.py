"""An answer that quotes a control token is learnt as text: it ends no turn, asks for no image, and moves no label."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken

from rewardlab.config import PRMConfig
from rewardlab.data.files import read_complete_lines
from rewardlab.models.loading import load_processor
from rewardlab.prompts import load_template
from rewardlab.prompts.sanitize import MARK
from rewardlab.rewards.steps import judgment_steps
from rewardlab.samplers.hf import special_tokens
from rewardlab.training.prm import NO_LABEL, StepCollator, prm_rows, train_prm
from rewardlab.training.run.preflight import TokenCounter
from rewardlab.training.run.rows import PromptReader, SFTDialogue, dialogue_dataset, list_special_tokens, turn
from rewardlab.training.sft import judgment_dialogues
from rewardlab.types import Choice, Order, PreferencePair
from rewardlab.verdicts.formats import WRITERS
from rewardlab.verdicts.parse import parse_verdict
from tests.support import scaled_runs

PLAIN = load_template("plain")
TOKENS = {
    "qwen2_5_vl": ["<|image_pad|>", "<|vision_start|><|image_pad|><|vision_end|>", "<|im_end|>", "<|endoftext|>"],
    "gemma3": ["<start_of_image>", "<image_soft_token>", "<end_of_turn>"],
}


def quoting(token: str) -> str:
    return f"<think>The log ends in {token} here. So it was cut.</think><answer>1</answer>"


def judged(pairs: list[PreferencePair], text: str) -> list[PreferencePair]:
    return [replace(pair, judgment=text, attempts="1") for pair in pairs]


def learnt(processor: Any, pair: PreferencePair, dialogue: SFTDialogue) -> tuple[list[str], list[int]]:
    """Return the texts of a dialogue's turns after the prompt, and the tokens of its completion."""
    [row] = dialogue_dataset(PromptReader([pair], PLAIN, special_tokens(processor.tokenizer)), [dialogue])
    turns = [part["text"] for message in row["prompt"][1:] for part in message["content"]]
    answer = row["completion"][0]["content"]
    return [*turns, answer], processor.tokenizer.encode(answer, add_special_tokens=False)


@pytest.mark.parametrize(("name", "token"), [(name, token) for name, tokens in TOKENS.items() for token in tokens])
def test_no_special_token_is_learnt_from_a_text(name: str, token: str, checkpoint_of: Callable[[str], Path]) -> None:
    """Of a judgment, an answer of a dialogue, or an earlier turn; the words around it, its tags too, stay as they are."""
    processor, pair = load_processor(str(checkpoint_of(name))), judged(scaled_runs.pairs()[:1], quoting(token))[0]
    specials = {processor.tokenizer.convert_tokens_to_ids(text) for text in special_tokens(processor.tokenizer)}
    earlier = (turn("assistant", quoting(token)), turn("user", "Is it so?"))
    for dialogue in (SFTDialogue(0, Order.GIVEN), SFTDialogue(0, Order.SWAPPED, quoting(token), earlier)):
        texts, ids = learnt(processor, pair, dialogue)
        assert not specials & set(ids)
        assert all(token not in text for text in texts)
        assert texts[-1].replace(MARK, "") == quoting(token)
        assert len(texts[-1]) == len(quoting(token)) + token.count("<")


WHY = "The log ends in <|im_end|> here."
CHANNELS = f"<|channel|>analysis<|message|>{WHY}<|channel|>final<|message|>"


@pytest.mark.parametrize(
    ("judgment", "verdict_format"),
    [
        *((write(Choice.SECOND, WHY), name) for name, write in WRITERS.items() if WHY in write(Choice.SECOND, WHY)),
        (f"<thinking>{WHY}</thinking><answer>2</answer>", "think_answer"),
        (f"<reasoning>{WHY}</reasoning>\nB", "choice_line"),
        (f"{CHANNELS}<answer>2</answer>", "think_answer"),
        (f"{CHANNELS}\\boxed{{B}}", "boxed"),
    ],
)
def test_tags_stay_that_a_tokenizer_has_as_special_tokens(judgment: str, verdict_format: str, tiny_checkpoint: Path) -> None:
    """A judge must write them: what is learnt is read as the judgment was, in every format."""
    processor = load_processor(str(tiny_checkpoint))
    tags = set(re.findall(r"<[^<>]+>|\[RESULT\]", judgment)) - {"<|im_end|>"}
    processor.tokenizer.add_tokens([AddedToken(tag, special=True) for tag in sorted(tags)])
    pair = judged(scaled_runs.pairs()[:1], judgment)[0]
    texts, ids = learnt(processor, pair, SFTDialogue(0, Order.GIVEN))
    assert parse_verdict(judgment, verdict_format).choice is Choice.SECOND
    assert parse_verdict(texts[-1], verdict_format) == parse_verdict(judgment, verdict_format)
    assert {processor.tokenizer.convert_tokens_to_ids(tag) for tag in tags} <= set(ids)
    assert "<|im_end|>" not in texts[-1]


def test_those_with_special_tokens_are_listed(tiny_checkpoint: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "special_tokens.jsonl"
    specials = special_tokens(load_processor(str(tiny_checkpoint)).tokenizer)
    answers = [(f"pair-{n}", quoting(text)) for n, text in enumerate([*TOKENS["qwen2_5_vl"][:3], *["nothing"] * 5])]
    list_special_tokens(answers[::-1], specials, tmp_path)
    said = capfd.readouterr().err
    assert "3 of 8 answers to learn from hold special tokens of the model, such as" in said
    rows = read_complete_lines(file)
    assert [row["pair_id"] for row in rows] == ["pair-2", "pair-1", "pair-0"]
    assert [set(row["tokens"]) for row in rows] == [{*re.findall(r"<.*?>", TOKENS["qwen2_5_vl"][n])} for n in (2, 1, 0)]
    assert f"{rows[0]['tokens'][0]} in pair-2: a zero-width space breaks each, as in prompts; see {file}" in said
    list_special_tokens(answers[3:], specials, tmp_path)
    assert capfd.readouterr().err == ""
    assert not file.exists()


@pytest.mark.parametrize("name", list(TOKENS))
def test_what_is_counted_is_what_is_read(name: str, checkpoint_of: Callable[[str], Path]) -> None:
    """The tokens of an answer as it is learnt, not of one token for each that it quotes."""
    processor = load_processor(str(checkpoint_of(name)))
    pair = judged(scaled_runs.pairs()[:1], quoting(" ".join(TOKENS[name])))[0]
    _, ids = learnt(processor, pair, judgment_dialogues([pair])[0])
    counter = TokenCounter(processor)
    without, whole = (counter.sample(pair, Order.GIVEN, PLAIN, answer=answer).total for answer in ("", pair.judgment))
    assert whole - without == len(ids)


@pytest.mark.parametrize("token", TOKENS["qwen2_5_vl"])
def test_labels_of_steps_stay_where_they_are(token: str, tiny_checkpoint: Path, demo_pairs: Any) -> None:
    """Each on the last character of its step, whatever the step before it quotes."""
    processor, text = load_processor(str(tiny_checkpoint)), quoting(token)
    step = {
        "pair_id": demo_pairs[0][0].pair_id,
        "order": "given",
        "text": text,
        "ends": judgment_steps(text),
        "labels": [1, -1],
    }
    assert len(step["ends"]) == 2
    batch = StepCollator(processor, PLAIN)(prm_rows(demo_pairs[0], [step]))
    [ids], [labels] = batch["input_ids"], batch["labels"]
    first, second = (labels != NO_LABEL).nonzero()[:, 0].tolist()
    assert labels[[first, second]].tolist() == [1, -1]
    answer = processor.tokenizer.decode(ids).partition("Assistant")[2] or processor.tokenizer.decode(ids)
    assert answer.count(MARK) == token.count("<")
    assert processor.tokenizer.decode(ids[: first + 1]).replace(MARK, "").endswith(f"{token} here.")
    assert processor.tokenizer.decode(ids[: second + 1]).rpartition("So it was cut.")[2].strip("</") == ""


def test_a_step_model_says_how_many(
    tiny_checkpoint: Path, demo_pairs: Any, labelled: list[dict[str, Any]], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = quoting("<|image_pad|>")
    step = {**labelled[0], "text": text, "ends": judgment_steps(text), "labels": [1, -1]}
    settings = {"model": str(tiny_checkpoint), "template": "plain", "max_steps": 1, "batch_size": 4, "micro_batch_size": 4}
    train_prm(demo_pairs[0], [step, *labelled[1:4]], PRMConfig(**settings, gradient_checkpointing=False), tmp_path / "run")
    assert "1 of 4 answers to learn from" in capfd.readouterr().err
