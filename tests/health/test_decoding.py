"""Who should draw the rollouts: the arithmetic of the own decoder beside that of an engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForImageTextToText

from rewardlab.config import EngineConfig, RLConfig
from rewardlab.health.decoding import DecodingLoad, decoding_advice, decoding_load, decoding_sentence, decoding_time
from rewardlab.training.run.launcher import Launch

# Qwen2.5-VL-7B: 28 layers, 8.29 B weights, 4 heads of 128 for keys and values; a card of four that draw 256 rollouts.
LOAD = DecodingLoad(
    layers=28,
    weights=8.29e9,
    kv_bytes=28 * 4 * 128 * 2 * 2.0,
    rollouts=64,
    prompts=64,
    at_once=64,
    prompt_tokens=2048,
    answer_tokens=1024,
    passes=5,
)


def test_seconds_by_hand() -> None:
    """28 ms a step on the host; 8.29 B weights of two bytes, 64 caches of 2,560 tokens, at 3.35 TB/s in an engine."""
    time = decoding_time(LOAD)
    reading = 2 * 8.29e9 * 64 * 2048 / 350e12
    assert time.reading_s == pytest.approx(reading)
    assert time.own_s == pytest.approx(1024 * 0.028 + reading)
    step = 0.005 + (16.58e9 + 64 * 2560 * 57_344) / 3.35e12
    assert time.engine_s == pytest.approx(1024 * step + reading + 16.58 / 20)
    assert time.training_s == pytest.approx(5 * 2 * 8.29e9 * 64 * 3072 / 350e12)
    assert time.lengthens == pytest.approx((time.own_s - time.engine_s) / (time.engine_s + time.training_s))


def test_a_prompt_is_read_once_a_group() -> None:
    grouped = decoding_time(replace(LOAD, prompts=8))
    assert grouped.reading_s == pytest.approx(decoding_time(LOAD).reading_s / 8)


def test_slices_cost_their_steps_again() -> None:
    """In four slices the host does everything four times; on a host fast enough, the card's memory is what takes the time."""
    whole, cut = decoding_time(LOAD), decoding_time(replace(LOAD, at_once=16))
    assert cut.slices == 4
    assert cut.own_s - cut.reading_s == pytest.approx(4 * (whole.own_s - whole.reading_s))
    assert decoding_time(LOAD, host_s_per_layer=0).step_s == pytest.approx((16.58e9 + 64 * 2560 * 57_344) / 3.35e12)


@pytest.mark.parametrize(
    ("changes", "load", "expected"),
    [
        ({}, {}, "% longer; an engine is worth its memory"),
        ({}, {"at_once": 8}, "so an engine is needed; set engine (kind colocate"),
        ({}, {"at_once": 8}, "or raise sampling_batch_size as far as memory allows"),
        ({}, {"answer_tokens": 32}, "the own decoder will do"),
        ({"hot_token": {}}, {"at_once": 8}, "no engine goes with hot_token; raise sampling_batch_size"),
        ({"lora": {"quantize": "nf4"}}, {"at_once": 8}, "no engine goes with lora.quantize"),
        ({"engine": {"kind": "colocate"}, "importance_cap": 2.0}, {}, "the engine saves"),
    ],
)
def test_the_sentence(changes: dict[str, Any], load: dict[str, Any], expected: str) -> None:
    config, changed = RLConfig(**changes), replace(LOAD, **load)
    time = decoding_time(changed)
    sentence = decoding_sentence(config, changed, time)
    assert expected in sentence
    assert f"x {changed.answer_tokens:,} steps x 28 ms" in sentence
    assert time.needs_engine is (changed.at_once == 8)


def test_the_load_of_a_config(tiny_checkpoint: Any) -> None:
    """Rollouts are those of one process, prompts one a group, and training counts what a config asks for."""
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(tiny_checkpoint))
    config = RLConfig(rollout_batch_size=64, batch_size=64, group_size=8, sampling_batch_size=12, max_completion_length=100)
    load = decoding_load(model, config, Launch(processes=2), prompt_tokens=50)
    text = model.config.get_text_config()
    assert (load.rollouts, load.prompts, load.at_once, load.layers) == (32, 4, 12, text.num_hidden_layers)
    assert load.kv_bytes == text.num_hidden_layers * text.num_key_value_heads * 4 * text.hidden_size / text.num_attention_heads
    assert load.weights == sum(weight.numel() for weight in model.parameters())
    assert load.passes == 4  # forward, backward as two, and the forward again that checkpointing makes
    more = config.model_copy(update={"kl_coef": 0.1, "batch_size": 32, "gradient_checkpointing": False})
    assert decoding_load(model, more, Launch(), prompt_tokens=50).passes == 5


def test_what_the_doctor_is_told(tiny_checkpoint: Any) -> None:
    """The sentence, and a warning where rollouts drawn one by one take far longer than an engine would, and none is set."""
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(tiny_checkpoint))
    one_by_one = RLConfig(sampling_batch_size=1)
    load = decoding_load(model, one_by_one, Launch(), prompt_tokens=50)
    sentence, warns = decoding_advice(model, one_by_one, Launch(), prompt_tokens=50)
    assert sentence == decoding_sentence(one_by_one, load, decoding_time(load))
    assert warns
    for changes in ({"sampling_batch_size": None}, {"engine": EngineConfig()}):
        other = one_by_one.model_copy(update=changes)
        assert not decoding_advice(model, other, Launch(), prompt_tokens=50)[1]
