"""Who should draw the rollouts: the arithmetic of the own decoder beside that of an engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rewardlab.config import RLConfig
from rewardlab.errors import ConfigError
from rewardlab.health.cards import CARDS, card_named
from rewardlab.health.decoding import DecodingLoad, decoding_load, decoding_sentence, decoding_time, engine_kinds
from rewardlab.health.memory import kv_bytes, setup_of
from rewardlab.health.plan import Plan, needs
from rewardlab.health.step_time import passes_of, training_seconds
from rewardlab.models.architectures import build_on_meta
from rewardlab.training.run.parallel import Launch

# Qwen2.5-VL-7B: 28 layers, 8.29 B weights, 4 heads of 128 for keys and values; a card of four that draw 256 rollouts.
FLOPS = 0.354 * 989e12
LOAD = DecodingLoad(
    card=CARDS["H100"],
    layers=28,
    weights=8.29e9,
    kv_bytes=28 * 4 * 128 * 2 * 2.0,
    rollouts=64,
    prompts=64,
    at_once=64,
    prompt_tokens=2048,
    answer_tokens=1024,
    training_s=5 * 2 * 8.29e9 * 64 * 3072 / FLOPS,
)


def test_seconds_by_hand() -> None:
    """28 ms a step on the host; 8.29 B weights of two bytes, 64 caches of 2,560 tokens, at 3.35 TB/s in an engine."""
    time = decoding_time(LOAD)
    reading = 2 * 8.29e9 * 64 * 2048 / FLOPS
    assert time.reading_s == pytest.approx(reading)
    assert time.own_s == pytest.approx(1024 * 0.028 + reading)
    step = 0.005 + (16.58e9 + 64 * 2560 * 57_344) / 3.35e12
    assert time.engine_s == pytest.approx(1024 * step + reading + 16.58 / 20)
    assert time.lengthens == pytest.approx((time.own_s - time.engine_s) / (time.engine_s + time.training_s))


def test_a_prompt_is_read_once_a_group() -> None:
    grouped = decoding_time(replace(LOAD, prompts=8))
    assert grouped.reading_s == pytest.approx(decoding_time(LOAD).reading_s / 8)


def test_slices_cost_their_steps_again() -> None:
    """In four slices the host does everything four times; on a host fast enough, the card's memory is what takes the time."""
    whole, cut = decoding_time(LOAD), decoding_time(replace(LOAD, at_once=16))
    shared = replace(LOAD, shares_prompts=True, prompts=LOAD.rollouts // 4)
    of_answers = LOAD.at_once * LOAD.answer_tokens / 2 * LOAD.kv_bytes
    assert shared.cached_at_once - of_answers == pytest.approx((LOAD.cached_at_once - of_answers) / 4)
    assert cut.slices == 4
    assert cut.own_s - cut.reading_s == pytest.approx(4 * (whole.own_s - whole.reading_s))
    assert decoding_time(LOAD, host_s_per_layer=0).step_s == pytest.approx((16.58e9 + 64 * 2560 * 57_344) / 3.35e12)


@pytest.mark.parametrize(
    ("changes", "load", "expected"),
    [
        ({}, {}, "% longer; an engine is worth its memory"),
        ({}, {"at_once": 8}, "so an engine is needed; set engine.kind (colocate"),
        ({}, {"at_once": 8}, "or raise sampling_batch_size as far as memory allows"),
        ({}, {"answer_tokens": 32}, "the own decoder will do"),
        ({"hot_token": {}}, {"at_once": 8}, "no engine goes with hot_token; raise sampling_batch_size"),
        ({"lora": {"quantize": "nf4"}}, {"at_once": 8}, "no engine goes with lora.quantize"),
        ({"engine": {"kind": "colocate"}, "importance_cap": 2.0}, {}, "longer without the engine"),
    ],
)
def test_the_sentence(changes: dict[str, Any], load: dict[str, Any], expected: str) -> None:
    config, changed = RLConfig(**changes), replace(LOAD, **load)
    time = decoding_time(changed)
    sentence = decoding_sentence(config, changed, time)
    assert expected in sentence
    assert f"x {changed.answer_tokens:,} steps x 28 ms" in sentence
    assert time.needs_engine is (changed.at_once == 8)


@pytest.mark.parametrize(
    ("changes", "kinds"),
    [
        ({}, ["colocate", "serve"]),
        ({"advantage": "gae"}, ["serve"]),  # TRL would send vLLM the critic's weights with the policy's
        ({"lora": {"r": 8}}, ["colocate"]),
        ({"lora": {"r": 8, "quantize": "nf4"}}, []),
        ({"hot_token": {}}, []),
        ({"self_verify": True, "advantage": "gae"}, []),
    ],
)
def test_an_engine_that_goes_with_the_config(changes: dict[str, Any], kinds: list[str]) -> None:
    """What is advised is what the config takes, once what must be unset is."""
    config = RLConfig(sampling_batch_size=8, **changes)
    assert engine_kinds(config) == kinds
    slow = replace(LOAD, at_once=8)
    sentence = decoding_sentence(config, slow, decoding_time(slow))
    assert ("colocate" in sentence, "serve with cards of its own" in sentence) == ("colocate" in kinds, "serve" in kinds)
    assert ("unset sampling_batch_size" in sentence) is bool(kinds)


def test_the_load_of_a_config(tiny_checkpoint: Path) -> None:
    """Rollouts are those of one process, prompts one a group, keys and values as memory counts them."""
    model = build_on_meta(str(tiny_checkpoint))
    assert model is not None
    config = RLConfig(rollout_batch_size=64, batch_size=64, group_size=8, sampling_batch_size=12, max_completion_length=100)
    setup = setup_of(model, config, Launch(processes=2), prompt_tokens=50)
    load = decoding_load(setup, CARDS["A100"])
    assert load is not None
    text = model.config.get_text_config()
    assert (load.rollouts, load.prompts, load.at_once, load.layers) == (32, 4, 12, text.num_hidden_layers)
    assert (
        load.kv_bytes
        == kv_bytes(setup.shapes)
        == text.num_hidden_layers * text.num_key_value_heads * 4 * (text.hidden_size / text.num_attention_heads)
    )
    assert load.weights == sum(weight.numel() for weight in model.parameters())
    assert load.training_s == training_seconds(setup, CARDS["A100"])


def test_training_counts_what_a_config_asks_for(tiny_checkpoint: Path) -> None:
    """A forward pass, a backward one as two, the forward one again that checkpointing makes; old and reference log-probs."""
    model = build_on_meta(str(tiny_checkpoint))
    config = RLConfig(rollout_batch_size=64, batch_size=64, max_completion_length=100)
    setup = setup_of(model, config, Launch(), prompt_tokens=50)
    assert passes_of(setup) == 4
    assert training_seconds(setup, CARDS["H100"]) == pytest.approx(2 * setup.total * 64 * 150 * 4 / FLOPS)
    more = config.model_copy(update={"kl_coef": 0.1, "batch_size": 32, "gradient_checkpointing": False})
    assert passes_of(setup_of(model, more, Launch(), prompt_tokens=50)) == 5
    critic = setup_of(model, config.model_copy(update={"advantage": "gae"}), Launch(), prompt_tokens=50)
    assert training_seconds(critic, CARDS["H100"]) > 1.5 * training_seconds(setup, CARDS["H100"])


def test_the_card_is_named() -> None:
    """The one that is asked for, else an H100, and that this is an assumption."""
    config = RLConfig(sampling_batch_size=16)
    assumed = next(each for each in needs(config, Plan(Launch(4, 3))) if each.name == "sampling")
    assert "on an H100, the trainer's own decoder" in assumed.message
    assert "an H100 is assumed" in assumed.message
    slower = next(each for each in needs(config, Plan(Launch(4, 3), card=CARDS["A100"])) if each.name == "sampling")
    assert "on an A100, the trainer's own decoder" in slower.message
    assert "assumed" not in slower.message


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("a100", "A100"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
    ],
)
def test_cards_by_name(name: str, expected: str) -> None:
    assert card_named(name).name == expected


@pytest.mark.parametrize("name", ["A100 40GB", "NVIDIA GeForce RTX 4090 Laptop GPU", "GH200 480GB", "NVIDIA H100 NVL", ""])
def test_a_card_of_a_known_name_with_another_memory(name: str) -> None:
    with pytest.raises(ConfigError, match="not known"):
        card_named(name)


def test_a_card_that_is_not_known() -> None:
    with pytest.raises(ConfigError, match="--card TPU: not known; take one of H100"):
        card_named("TPU")
    assert Plan(card=CARDS["A100"]).card_gib == 80
    assert Plan(memory_gib=40, card=CARDS["A100"]).card_gib == 40
