"""The attention of a config reaches every model of a run, and the run says which it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rewardlab.errors import ConfigError
from rewardlab.models.vision_tower import PACKED
from rewardlab.training.policy_gradient.trainer import PolicyTrainer
from rewardlab.training.run import runner
from tests.support import scaled_runs

BESIDE: dict[str, Any] = {"advantage": "gae", "kl_coef": 0.1, "outliers": "keep"}  # a critic and a reference


@pytest.mark.parametrize(("attention", "kinds"), [("eager", {"eager"}), ("sdpa", {"sdpa", PACKED})])
def test_every_model_computes_by_it(
    attention: str, kinds: set[str], tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Policy, critic and the reference that TRL loads, in their vision towers too; run.json and the log say so."""
    seen: list[PolicyTrainer] = []
    lines: list[str] = []
    monkeypatch.setattr(runner, "log_line", lines.append)
    models_of = runner.models_of
    monkeypatch.setattr(runner, "models_of", lambda trainer: seen.append(trainer) or models_of(trainer))
    scaled_runs.run("rl", tiny_checkpoint, tmp_path / "run", max_steps=1, save_steps=1, attn_implementation=attention, **BESIDE)
    (trainer,) = seen
    models = [trainer.model, trainer.ref_model, trainer.critic.backbone]
    for model in models:
        layers = [module.config for module in model.modules() if hasattr(module, "config")]
        assert {config._attn_implementation for config in layers} == kinds
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert facts["attention"] == dict.fromkeys(("model", "reference", "critic"), attention)
    assert facts["weights"] == dict.fromkeys(facts["attention"], "float32")
    assert f"critic: attn_implementation {attention}, weights float32" in lines[0]
    assert facts["config"]["attn_implementation"] == attention


@pytest.mark.parametrize("stage", ["sft", "dpo"])
def test_what_cannot_be_is_refused_at_once(stage: str, tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Before a token is counted or a model is loaded, and without a folder."""
    with pytest.raises(ConfigError, match="flash_attention_2 is not installed here"):
        scaled_runs.run(stage, tiny_checkpoint / "absent", tmp_path / "run", attn_implementation="flash_attention_2")
    assert not (tmp_path / "run").exists()
