"""Types of weights through a run: what learns is float32, what is left for judges is of the type of the model begun from."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import Trainer
from typer.testing import CliRunner

from rewardlab.cli import app
from rewardlab.config import RMConfig, SFTConfig
from rewardlab.errors import ConfigError
from rewardlab.judging.engines import open_generative_judge
from rewardlab.models import precision
from rewardlab.models.loading import load_model, load_policy
from rewardlab.models.value_model import WEIGHTS, ValueModel
from rewardlab.prompts import load_template
from rewardlab.rewards.pairwise import ScalarReward, score_responses
from rewardlab.training.reward_model import train_reward_model
from tests.support import scaled_runs

HALF = torch.bfloat16


@pytest.fixture(scope="module")
def half_base(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny checkpoint in bfloat16, as large ones are published."""
    folder = tmp_path_factory.mktemp("half") / "base"
    model, processor = load_model(str(tiny_checkpoint), device="cpu", dtype="bfloat16")
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def weights_in(folder: Path) -> dict[str, Tensor]:
    """Return the weights in a folder's one file, which its configuration must say the type of."""
    weights = load_file(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (dtype,) = {weight.dtype for weight in weights.values()}
    assert {config["dtype"], config["text_config"]["dtype"]} == {str(dtype).removeprefix("torch.")}
    return weights


def is_rounded(small: dict[str, Tensor], exact: dict[str, Tensor]) -> bool:
    """Whether all of ``small`` are the float32 ``exact``, rounded once."""
    assert {weight.dtype for weight in exact.values()} == {torch.float32}
    return small.keys() == exact.keys() and all(torch.equal(small[name], exact[name].to(HALF)) for name in exact)


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


@pytest.mark.parametrize(
    ("stage", "quantize"),
    [("sft", None), *(pytest.param(stage, "nf4", marks=pytest.mark.extra("bitsandbytes")) for stage in ("sft", "rl"))],
)
def test_adapters_learn_in_float32(
    stage: str, quantize: str | None, tiny_checkpoint: Path, tmp_path: Path, trained_in: set[torch.dtype]
) -> None:
    """At a rate of 1e-5, where bfloat16 would hold most weights of lora_A still; and a killed run goes on as if it had not
    been."""
    changes: dict[str, Any] = {"lora": {"r": 4, "quantize": quantize}, "learning_rate": 1e-5}
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


@pytest.mark.parametrize("stage", ["sft", pytest.param("rl", marks=pytest.mark.nightly)])
def test_a_bfloat16_base_becomes_a_bfloat16_judge(stage: str, half_base: Path, tmp_path: Path) -> None:
    """Rounded once, from the float32 that learnt and that is resumed from: a killed run ends in the same bits."""
    runs = tmp_path / "whole", tmp_path / "parts"
    scaled_runs.run(stage, half_base, runs[0])
    scaled_runs.run(stage, half_base, runs[1], kill=True)
    scaled_runs.run(stage, half_base, runs[1])
    finals = [weights_in(run / "final") for run in runs]
    assert is_rounded(finals[0], load_file(runs[0] / "checkpoint-4" / "model.safetensors"))
    assert all(torch.equal(weight, finals[1][name]) for name, weight in finals[0].items())
    assert any(not torch.equal(weight, load_file(half_base / "model.safetensors")[name]) for name, weight in finals[0].items())
    assert load_model(str(runs[0] / "final"), device="cpu")[0].dtype == torch.float32


def test_the_type_may_be_said(half_base: Path, tmp_path: Path) -> None:
    """`dtype` counts more than the base."""
    scaled_runs.run("sft", half_base, tmp_path / "exact", dtype="float32", max_steps=2)
    exact = weights_in(tmp_path / "exact" / "final")
    assert {weight.dtype for weight in exact.values()} == {torch.float32}


def test_merging_rounds_once(half_base: Path, tmp_path: Path) -> None:
    """W + (alpha / r) B A in float32, then the base's type, by `merge` and where another adapter is trained on top."""
    lora = {"r": 4, "alpha": 8}
    scaled_runs.run("sft", half_base, tmp_path / "one", lora=lora)
    final = tmp_path / "one" / "final"
    for name, options in (("small", []), ("exact", ["--dtype", "float32"])):
        result = CliRunner().invoke(app, ["merge", str(final), "--out", str(tmp_path / name), *options])
        assert result.exit_code == 0, result.output
    small, exact = (weights_in(tmp_path / name) for name in ("small", "exact"))
    assert is_rounded(small, exact)
    part = "model.layers.0.self_attn.q_proj.weight"
    (name,) = (key for key in exact if key.endswith(part))
    adapter = load_file(final / "adapter_model.safetensors")
    factors = [next(v for k, v in adapter.items() if part.replace(".weight", f".lora_{side}.weight") in k) for side in "BA"]
    base = load_file(half_base / "model.safetensors")[name].float()
    torch.testing.assert_close(exact[name], base + 2.0 * factors[0] @ factors[1], atol=1e-6, rtol=1e-6)
    assert not torch.equal(exact[name], base)
    load_policy(SFTConfig(model=str(final), lora=lora), tmp_path / "two")  # type: ignore[arg-type]
    again = weights_in(tmp_path / "two" / "base")
    assert all(torch.equal(weight, again[name]) for name, weight in small.items())
    bad = CliRunner().invoke(app, ["merge", str(final), "--out", str(tmp_path / "bad"), "--dtype", "int8"])
    assert isinstance(bad.exception, ConfigError)
    assert not (tmp_path / "bad").exists()


def test_a_judge_is_read_as_the_user_says(half_base: Path) -> None:
    """On a CPU in float32 unless told; in any type the judge answers; what is no option is refused with those there are."""
    pair = scaled_runs.pairs()[0]
    for text, dtype in (("", torch.float32), ("--dtype bfloat16 --attn-implementation eager", HALF)):
        judge = open_generative_judge(f"hf:{half_base}", template="plain", max_tokens=4, engine_args=text)
        assert judge.sampler.model.dtype == dtype  # type: ignore[attr-defined]
        assert judge.sampler.model.config._attn_implementation == ("eager" if text else "sdpa")  # type: ignore[attr-defined]
        assert len(judge.compare(pair).votes) == 2
    for text in ("--dtype int4", "--max-model-len 1024", "bfloat16"):
        with pytest.raises(ConfigError, match=r"engine_args .*expected \[--dtype auto\|bfloat16\|float32\]"):
            open_generative_judge(f"hf:{half_base}", engine_args=text)


def test_a_scalar_head_stays_exact(half_base: Path, tmp_path: Path) -> None:
    """The backbone is of the base's type and half the size, the head float32: scores of a backbone that computes in bfloat16
    are not rounded to its 8 bits."""
    pairs = scaled_runs.pairs()[:8]
    config = RMConfig(model=str(half_base), learning_rate=1e-2, max_steps=4, batch_size=8, gradient_checkpointing=False)
    final = train_reward_model(pairs, config, tmp_path / "rm")
    weights = load_file(final / WEIGHTS)
    assert {name for name, weight in weights.items() if weight.dtype != HALF} == {"head.weight", "head.bias"}
    assert weights["head.weight"].any()
    reward, single = ScalarReward(final), load_template("single")
    exact = score_responses(ValueModel.from_pretrained(str(final)), reward._processor, pairs, single)
    half = score_responses(ValueModel.from_pretrained(str(final), dtype=HALF), reward._processor, pairs, single)
    torch.testing.assert_close(half, exact, atol=0.05, rtol=0.05)
    assert not torch.equal(half, half.to(HALF).float())
    assert reward(pairs, [pair.responses[0] for pair in pairs], None, 0)[0] == pytest.approx(exact[:, 0].tolist(), abs=1e-5)


MIXED: dict[str, dict[str, Any]] = {
    "sft": {},
    "lora": {"lora": {"r": 4}},
    "rl": {},
    "vc_ppo": {"advantage": "gae", "outliers": "keep", "average": "token", "value_pretrain_steps": 2},
}


@pytest.mark.parametrize("name", ["sft", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("lora", "rl", "vc_ppo"))])
def test_mixed_precision_as_on_a_gpu(name: str, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training under autocast, on a CPU: matrix products are of bfloat16, what learns is float32, and the first step is that
    of float32 up to rounding."""
    stage = "rl" if name in ("rl", "vc_ppo") else "sft"
    records, products = [], set[torch.dtype]()
    linear = torch.nn.Linear.forward

    def seen(self: torch.nn.Linear, values: Tensor) -> Tensor:
        output = linear(self, values)
        products.add(output.dtype)
        return output

    monkeypatch.setattr(torch.nn.Linear, "forward", seen)
    for half in (False, True):
        products.clear()
        monkeypatch.setattr(precision, "trains_in_bfloat16", lambda half=half: half)
        out = tmp_path / f"{half}"
        scaled_runs.run(stage, tiny_checkpoint, out, **MIXED[name])
        records.append([json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()])
        assert products == {HALF if half else torch.float32}
        saved = load_file(next((out / "checkpoint-4").glob("*.safetensors")))
        assert {weight.dtype for weight in saved.values()} == {torch.float32}
    single, mixed = ([row for row in rows if "grad_norm" in row] for rows in records)
    assert len(mixed) == len(single) > 0
    assert all(math.isfinite(row["loss"]) and 0 < row["grad_norm"] < math.inf for row in mixed)
    if stage == "sft":
        assert mixed[0]["loss"] == pytest.approx(single[0]["loss"], rel=0.01)
        assert mixed[0]["grad_norm"] == pytest.approx(single[0]["grad_norm"], rel=0.05)
