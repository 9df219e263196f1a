"""Types of weights through a run: adapters learn in float32, also above weights of four bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import Trainer

from tests.support import scaled_runs


@pytest.fixture
def trained_in(monkeypatch: pytest.MonkeyPatch) -> set[torch.dtype]:
    """Types of the weights that optimizers are given while a test runs."""
    kept, types = Trainer.create_optimizer, set[torch.dtype]()

    def create(self: Any, model: Any = None) -> Any:
        optimizer = kept(self, model)
        types.update(weight.dtype for group in optimizer.param_groups for weight in group["params"])
        return optimizer

    monkeypatch.setattr(Trainer, "create_optimizer", create)
    return types


@pytest.mark.parametrize("stage", ["sft", "rl"])
def test_qlora_adapters_learn_in_float32(
    stage: str, tiny_checkpoint: Path, tmp_path: Path, trained_in: set[torch.dtype]
) -> None:
    """At a rate of 1e-5, where bfloat16 would hold most weights of lora_A still; and a killed run goes on as if it had not
    been."""
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    changes: dict[str, Any] = {"lora": {"r": 4, "quantize": "nf4"}, "learning_rate": 1e-5}
    scaled_runs.run(stage, tiny_checkpoint, tmp_path / "whole", **changes)
    scaled_runs.run(stage, tiny_checkpoint, tmp_path / "parts", kill=True, **changes)
    scaled_runs.run(stage, tiny_checkpoint, tmp_path / "parts", **changes)
    assert trained_in == {torch.float32}
    adapters = [tmp_path / name / "adapter_model.safetensors" for name in ("whole/checkpoint-2", "whole/final", "parts/final")]
    before, after, resumed = map(load_file, adapters)
    for name, weight in after.items():
        assert weight.dtype == torch.float32
        assert torch.equal(weight, resumed[name])
        assert (weight != before[name]).float().mean() > 0.9
