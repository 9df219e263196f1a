"""Adapters merged for an engine: what it is given is what peft merges, and the weights below them stay as they are."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import peft
import pytest
import torch
from accelerate import Accelerator
from trl.distributed import DistributedBackend
from trl.generation.vllm_generation import VLLMGeneration

from rewardlab.config import SFTConfig
from rewardlab.config.base import LoraConfig
from rewardlab.errors import ConfigError
from rewardlab.models.loading import adapted_weights, adapter_coverage, load_model, merge_adapter, merged_weights, peft_config
from rewardlab.training.policy_gradient.rollouts.engine import send_merged_copies
from rewardlab.training.run.capabilities import capability_report
from tests.support import scaled_runs

UPDATES = 40


@pytest.fixture
def adapted(tiny_checkpoint: Path) -> Any:
    """A model of bfloat16 weights under float32 adapters that have learnt something, as a run with LoRA has it."""
    torch.manual_seed(0)
    model = load_model(str(tiny_checkpoint), device="cpu")[0].to(torch.bfloat16)
    adapted = peft.get_peft_model(model, peft_config(LoraConfig(r=4), model, []))
    for name, weight in adapted.named_parameters():
        if "lora_B" in name:
            weight.data = 0.05 * torch.randn_like(weight, dtype=torch.float32)
        elif "lora_A" in name:
            weight.data = weight.data.float()
    return adapted


def generation_of(model: Any) -> tuple[Any, list[tuple[str, torch.Tensor]]]:
    """TRL's sampling by vLLM, and what it hands over at a sync: the vLLM, which needs a GPU, takes weights and no more."""
    taken: list[tuple[str, torch.Tensor]] = []
    runner = SimpleNamespace(model=SimpleNamespace(load_weights=lambda pairs: taken.extend((n, w.clone()) for n, w in pairs)))
    executor = SimpleNamespace(driver_worker=SimpleNamespace(model_runner=runner))
    generation = object.__new__(VLLMGeneration)
    generation.model, generation.accelerator = model, Accelerator(cpu=True)
    generation._dist = DistributedBackend(generation.accelerator)
    generation.mode, generation.enable_sleep_mode = "colocate", False
    generation.llm = SimpleNamespace(llm_engine=SimpleNamespace(model_executor=executor), reset_prefix_cache=lambda: None)
    return generation, taken


def changed_frac(model: Any, before: dict[str, torch.Tensor]) -> float:
    """The share of the numbers below adapters that are not what they were."""
    below = {name: weight for name, weight in model.state_dict().items() if "base_layer.weight" in name}
    return sum(int((weight != before[name]).sum()) for name, weight in below.items()) / sum(w.numel() for w in below.values())


def test_weights_below_adapters_stay(adapted: Any) -> None:
    """After many syncs; TRL's own way changes a share of them at the first. What is sent is the same."""
    before = {name: weight.clone() for name, weight in adapted.state_dict().items()}
    generation, theirs = generation_of(adapted)
    generation.sync_weights()
    assert changed_frac(adapted, before) > 0.01
    adapted.load_state_dict(before)
    generation, ours = generation_of(adapted)
    send_merged_copies(generation)
    generation.sync_weights()
    assert [name for name, _ in ours] == [name for name, _ in theirs]
    assert not any("lora" in name for name, _ in ours)
    for (name, mine), (_, other) in zip(ours, theirs, strict=True):
        assert mine.dtype == other.dtype == torch.bfloat16, name
        assert torch.equal(mine, other), name
    dice = torch.Generator().manual_seed(1)
    for _ in range(UPDATES):
        for name, weight in adapted.named_parameters():
            if "lora_" in name:
                weight.data += 0.01 * torch.randn(weight.shape, generator=dice)
        generation.sync_weights()
    assert changed_frac(adapted, before) == 0


def test_what_is_sent_otherwise(adapted: Any) -> None:
    """A policy without adapters as ever; one in shards not at all."""
    plain, _ = generation_of(adapted.get_base_model())
    send_merged_copies(plain)
    assert "_iter_named_params" not in vars(plain)
    sharded, _ = generation_of(adapted)
    sharded._dist.fsdp_version = 2
    with pytest.raises(ConfigError, match="which FSDP keeps sharded"):
        send_merged_copies(sharded)


@pytest.mark.parametrize("name", ["qwen3_vl_moe", "glm4v_moe"])
def test_adapters_reach_experts(name: str, checkpoint_of: Callable[[str], Path]) -> None:
    """Each expert's 3-D weights have one; merged for an engine they are what peft merges; a dropout would be ignored."""
    model = load_model(str(checkpoint_of(name)), device="cpu")[0]
    assert ", with adapters" in adapter_coverage(LoraConfig(r=4), model, [])
    assert ", without adapters" in adapter_coverage(LoraConfig(r=4, target_modules=["q_proj"]), model, [])
    config = SFTConfig(model=str(checkpoint_of(name)), lora=LoraConfig(r=4, dropout=0.1))
    for refused in (lambda: peft_config(config.lora, model, []), lambda: capability_report(config)):
        with pytest.raises(ConfigError, match=r"lora.dropout 0.1: adapters of experts have none; set it to 0"):
            refused()
    start = {key: weight.clone() for key, weight in model.state_dict().items()}
    expected = sum(weight.numel() for _, weight in adapted_weights(LoraConfig(r=4), model, []))
    adapted = peft.get_peft_model(model, peft_config(LoraConfig(r=4), model, []))
    for key, weight in adapted.named_parameters():
        if "lora_B" in key:
            weight.data = 0.05 * torch.randn_like(weight)
    ours = dict(merged_weights(adapted, lambda weights: nullcontext()))
    theirs = adapted.merge_and_unload().state_dict()
    changed = 0
    for key, weight in ours.items():
        torch.testing.assert_close(weight, theirs[key], atol=1e-6, rtol=1e-6)
        changed += weight.numel() if not torch.equal(weight, start[key]) else 0
    assert any("experts" in key and not torch.equal(weight, start[key]) for key, weight in ours.items())
    assert changed == expected


def test_frozen_experts_have_no_adapters(checkpoint_of: Callable[[str], Path]) -> None:
    """Nor have they if layers are named."""
    model = load_model(str(checkpoint_of("qwen3_vl_moe")), device="cpu")[0]
    assert peft_config(LoraConfig(r=4), model, ["language"]).target_parameters is None
    assert peft_config(LoraConfig(r=4, target_modules=["q_proj"]), model, []).target_parameters is None


@pytest.mark.nightly
@pytest.mark.parametrize("stage", ["sft", "rl"])
@pytest.mark.parametrize("name", ["qwen3_vl_moe", "qwen3_5_moe", "glm4v_moe"])
def test_adapters_of_experts_learn(name: str, stage: str, checkpoint_of: Callable[[str], Path], tmp_path: Path) -> None:
    """In a run, and are in the checkpoint that it leaves: merged, experts of every layer have moved."""
    scaled_runs.run(stage, checkpoint_of(name), tmp_path / "run", data=scaled_runs.mixed(), lora={"r": 4}, max_steps=2)
    merged = merge_adapter(tmp_path / "run" / "final", tmp_path / "merged")
    after, before = (load_model(str(folder), device="cpu")[0].state_dict() for folder in (merged, checkpoint_of(name)))
    experts = [key for key, weight in after.items() if ".experts." in key and weight.ndim == 3]
    assert experts
    assert all(not torch.equal(after[key], before[key]) for key in experts)
