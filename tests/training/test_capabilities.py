"""A model's abilities are known from its configuration and processor, before a weight is loaded; a missing one is refused."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import SmolVLMVideoProcessor

from rewardlab.config import RLConfig, SFTConfig
from rewardlab.errors import CheckpointError, ConfigError
from rewardlab.models.architectures import ARCHITECTURES
from rewardlab.models.families import IMAGE_FIELDS
from rewardlab.models.loading import load_config_of, load_processor
from rewardlab.samplers.kv_cache import GrowingLayer
from rewardlab.training.run import capabilities
from rewardlab.training.run.capabilities import probe, refuse_incapable, small_model
from tests.support.families import FAMILIES, NO_TRAINING, family

DAILY = ("qwen3_5_moe", "internvl", "llava_next", "idefics3", "gemma4", "molmo2", "ovis2", "lfm2_vl", "kimi_k25")


def probed(folder: Path) -> capabilities.Capabilities:
    return probe(load_config_of(str(folder)), load_processor(str(folder)))


@pytest.mark.parametrize("name", [family(name, daily=name in DAILY) for name in FAMILIES if name not in NO_TRAINING])
def test_every_family_can(name: str, checkpoint_of: Callable[[str], Path]) -> None:
    """Trained and sampled from, sighted, from config and processor alone."""
    folder = checkpoint_of(name)
    for weights in folder.glob("*.safetensors"):
        assert weights.stat().st_size > 0
    found = probed(folder)
    assert found.training is None
    assert found.sampling is None
    assert "another image moves log-probs by" in found.report
    assert "sampled and recomputed log-probs agree to" in found.report
    assert "does not open <think>" in found.report


def test_a_model_without_a_headless_part_is_refused(checkpoint_of: Callable[[str], Path]) -> None:
    """Llama 4 judges, and trains nowhere: SFT and RL would fail at their first step, after its weights were loaded."""
    start = time.process_time()
    with pytest.raises(ConfigError, match=r"Llama4ForConditionalGeneration has no module .*; it can only judge"):
        refuse_incapable(SFTConfig(model=str(checkpoint_of("llama4"))))
    assert time.process_time() - start < 10


@pytest.mark.skipif(find_spec("num2words") is not None, reason="num2words is installed")
def test_a_processor_without_its_package_is_refused(checkpoint_of: Callable[[str], Path], tmp_path: Path) -> None:
    """SmolVLM's: in a sentence with the package."""
    folder = shutil.copytree(checkpoint_of("idefics3"), tmp_path / "smolvlm")
    SmolVLMVideoProcessor().save_pretrained(folder)
    processor = json.loads((folder / "processor_config.json").read_text())
    (folder / "processor_config.json").write_text(json.dumps({**processor, "processor_class": "SmolVLMProcessor"}))
    with pytest.raises(CheckpointError, match="pip install num2words"):
        refuse_incapable(SFTConfig(model=str(folder)))


def test_a_large_model_takes_seconds(tiny_checkpoint: Path) -> None:
    """CPU seconds: its vocabulary and heads keep their sizes; its layers do not."""
    start = time.process_time()
    config = ARCHITECTURES["Qwen/Qwen2.5-VL-7B-Instruct"]()
    tiny = load_config_of(str(tiny_checkpoint))
    for name in ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id"):
        setattr(config, name, getattr(tiny, name))
    found = probe(config, load_processor(str(tiny_checkpoint)))
    assert (found.training, found.sampling) == (None, None)
    assert "agree to" in found.report
    assert time.process_time() - start < 10


def test_a_field_without_a_rule_is_refused(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a sentence with its name, at every stage, and with weights that could not be read."""
    processor = load_processor(str(tiny_checkpoint))
    kept = capabilities.encode
    monkeypatch.setattr(capabilities, "encode", lambda *args: {**kept(*args), "aspect_ratio_ids": torch.ones(3, 2)})
    found = probe(load_config_of(str(tiny_checkpoint)), processor)
    assert found.training is not None
    assert "images cannot be assigned to the rows of a batch" in found.training
    assert "aspect_ratio_ids" in found.training
    monkeypatch.setattr(capabilities, "capabilities_of", lambda model: found)
    with pytest.raises(ConfigError, match="aspect_ratio_ids"):
        refuse_incapable(SFTConfig(model=str(tiny_checkpoint)))


def test_a_cache_that_cannot_be_selected_refuses_rl_alone(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SFT draws nothing, and an engine has a cache of its own."""

    def select(self: Any, indices: Any) -> None:
        raise AttributeError("no attribute 'batch_select_indices'")

    with monkeypatch.context() as patch:
        patch.setattr(GrowingLayer, "batch_select_indices", select)
        found = probed(tiny_checkpoint)
    assert found.training is None
    assert found.sampling is not None
    assert "two samples of a prompt cannot be drawn" in found.sampling
    monkeypatch.setattr(capabilities, "capabilities_of", lambda model: found)
    refuse_incapable(SFTConfig(model=str(tiny_checkpoint)))
    with pytest.raises(ConfigError, match="cannot be drawn"):
        refuse_incapable(RLConfig(model=str(tiny_checkpoint)))


def test_a_blind_model_is_refused(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose pixels reach no log-prob."""
    kept = capabilities.small_model

    def blind(config: Any) -> Any:
        model = kept(config)
        model.register_forward_pre_hook(
            lambda module, args, kwargs: (args, {k: v for k, v in kwargs.items() if k not in IMAGE_FIELDS}), with_kwargs=True
        )
        return model

    monkeypatch.setattr(capabilities, "small_model", blind)
    found = probed(tiny_checkpoint)
    assert found.training is not None
    assert "another image moves the log-probs by 0 nats: the model is blind" in found.training


def test_an_unknown_configuration_is_not_refused(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said that nothing was tried."""
    monkeypatch.setattr(capabilities, "small_model", lambda config: (_ for _ in ()).throw(KeyError("num_heads")))
    found = probed(tiny_checkpoint)
    assert found.training is None
    assert "not tried in a forward pass (KeyError" in found.report


def test_the_small_model_keeps_what_matters(checkpoint_of: Callable[[str], Path]) -> None:
    """Heads, patches and vocabulary, and a layer of each kind; random numbers elsewhere stay as they were."""
    config = load_config_of(str(checkpoint_of("qwen3_5")))
    before = json.dumps(config.to_dict(), default=str)
    small = small_model(config).config.text_config
    assert (small.head_dim, small.vocab_size) == (config.text_config.head_dim, config.text_config.vocab_size)
    assert small.layer_types == ["linear_attention", "full_attention"]
    assert json.dumps(config.to_dict(), default=str) == before
