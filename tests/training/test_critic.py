"""The critic: what it is fitted to, that the policy stays as it is meanwhile; both saved, resumed, and on two processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rewardlab.config import RLConfig
from rewardlab.errors import CheckpointError
from rewardlab.models.loading import load_model
from rewardlab.models.value_model import ValueModel
from rewardlab.prompts import build_messages, load_template
from rewardlab.samplers.hf import HFSampler
from rewardlab.training.rl import build_trainer, rl_rows, train_rl
from rewardlab.types import Order
from tests.support.configs import WITH_CRITIC, short_rl_config
from tests.support.killing import Kill, KilledError
from tests.support.rewards import TokenReward
from tests.support.weights import weights_of

PLAIN = load_template("plain")
ROOT = Path(__file__).parents[2]


def config_for(checkpoint: Path, **changes: Any) -> RLConfig:
    return short_rl_config(checkpoint, **(WITH_CRITIC | {"max_steps": 4} | changes))


def varied_reward() -> TokenReward:
    return TokenReward(lambda ids, n: float(sum(ids) % 5))


def test_a_fresh_critic_says_nothing_and_sees(tiny_checkpoint: Path, demo_pairs: Any, tmp_path: Path) -> None:
    """0 everywhere at first; with a head, one number per token that depends on the image; saved and read back the same."""
    critic = ValueModel.from_pretrained(str(tiny_checkpoint)).eval()
    sampler = HFSampler(*load_model(str(tiny_checkpoint), device="cpu"))
    inputs = sampler.encode([build_messages(pair, order=Order.GIVEN, template=PLAIN) for pair in demo_pairs[0][:3]])
    with torch.no_grad():
        assert not critic(**inputs).any()
        critic.head.weight.normal_(generator=torch.Generator().manual_seed(0))
        values_NL = critic(**inputs)
        other_NL = critic(**{**inputs, "pixel_values": inputs["pixel_values"] + 0.5})
    assert values_NL.shape == inputs["input_ids"].shape
    assert (values_NL[:, -1] - other_NL[:, -1]).abs().min() > 1e-4
    critic.save(tmp_path / "critic")
    with torch.no_grad():
        torch.testing.assert_close(ValueModel.from_pretrained(str(tmp_path / "critic")).eval()(**inputs), values_NL)


def test_a_critic_of_another_size(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Weights that do not fit their config are named as such."""
    critic = ValueModel.from_pretrained(str(tiny_checkpoint))
    critic.save(tmp_path, {name: value for name, value in critic.state_dict().items() if name != "head.bias"})
    with pytest.raises(CheckpointError, match=r"head\.bias"):
        ValueModel.from_pretrained(str(tmp_path))
    weights = tmp_path / "value_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match=r"value_model\.safetensors does not fit"):
        ValueModel.from_pretrained(str(tmp_path))


def test_the_policy_does_not_move_while_the_critic_learns(hard: list[Any], tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Bit for bit, with weight decay and all."""
    config = config_for(tiny_checkpoint, max_steps=4, learning_rate=1e-2, weight_decay=0.1)
    model, processor = load_model(str(tiny_checkpoint), device="cpu")
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    rows = rl_rows(hard, PLAIN, both_orders=True)
    trainer = build_trainer(rows, config, model, processor, PLAIN, tmp_path, reward=varied_reward(), value_only=True)
    start = trainer.critic.head.weight.clone()
    trainer.train()
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items() if name in before)
    assert not torch.equal(trainer.critic.head.weight, start)


@pytest.mark.parametrize("changes", [pytest.param({}, marks=pytest.mark.nightly), {"window": 4}], ids=["whole", "windowed"])
def test_resume(hard: list[Any], tiny_checkpoint: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    """Stopped at its first checkpoint and started again: policy and critic of the uninterrupted run; no critic in the judge."""
    config = config_for(tiny_checkpoint, **changes)
    whole = train_rl(hard, config, tmp_path / "whole", reward=varied_reward())
    with pytest.raises(KilledError):
        train_rl(hard, config, tmp_path / "parts", reward=varied_reward(), callbacks=[Kill()])
    parts = train_rl(hard, config, tmp_path / "parts", reward=varied_reward())
    assert (weights_of(whole) - weights_of(tiny_checkpoint)).abs().max() > 1e-3
    torch.testing.assert_close(weights_of(whole), weights_of(parts), atol=1e-6, rtol=1e-5)
    critics = [ValueModel.from_pretrained(str(folder.parent / "critic")).state_dict() for folder in (whole, parts)]
    for name, value in critics[0].items():
        torch.testing.assert_close(value, critics[1][name], atol=1e-6, rtol=1e-5)
    assert critics[0]["head.weight"].abs().max() > 1e-3
    assert not any("critic" in name for name in load_file(whole / "model.safetensors"))
    assert not (whole / "critic").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"window": 3}, "multiple"),
        ({"window": 4, "kl_coef": 0.1}, "kl_coef"),
        ({"lora": {}}, "lora"),
        ({"window": 4, "hot_token": {}}, "hot_token"),
        ({"window": 4, "group_size": 2}, "group_size"),
        ({"window": 4, "window_tail": 4}, "the window of 4"),
        ({"window": 4, "swap_weight": 1.0}, "swap_weight"),
        ({"self_verify": True, "swap_weight": 1.0}, "self_verify"),
        ({"self_verify": True, "positive_nll": 0.1}, "self_verify"),
        ({"max_steps": 0}, "max_steps 0 trains nothing"),
    ],
)
def test_what_does_not_go_together(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config_for(Path("x"), **changes)


def test_windows_with_the_judges_own_reward(hard: list[Any], tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Nothing is finished in the first step, and nothing is paid: there is no reward to log, and the run goes on."""
    config = config_for(tiny_checkpoint, window=4, max_completion_length=12)
    assert train_rl(hard, config, tmp_path / "run").exists()
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert "reward" not in lines[0]
    assert lines[0]["truncated/unfinished_frac"] == 1
    assert "reward/accuracy" not in lines[0]


@pytest.mark.parametrize("tail", [0, 1])
def test_each_token_is_trained_on_once(hard: list[Any], tiny_checkpoint: Path, tmp_path: Path, tail: int) -> None:
    """The policy trains on a token when it is sampled, the critic when its rollout is finished; none waits longer. The policy
    never trains on the tail of a window that does not end its rollout."""
    config = config_for(tiny_checkpoint, window=3, window_tail=tail, max_completion_length=9, learning_rate=1e-9, max_steps=12)
    model, processor = load_model(str(tiny_checkpoint), device="cpu")
    trainer = build_trainer(rl_rows(hard, PLAIN, both_orders=True), config, model, processor, PLAIN, tmp_path)
    trainer.model.train()
    rounds: dict[tuple[int, ...], int] = {}
    sampled = by_policy = by_critic = left_out = 0
    for _ in range(5):
        before = [tuple(prefix) for _, prefix in trainer._rollouts._unfinished[:8]]
        batch = trainer._generate_and_score_completions([{}] * 8)
        for row in range(8):
            length = int(batch["completion_mask"][row].sum())
            tokens = tuple(batch["completion_ids"][row, :length].tolist())
            prefix = before[row] if row < len(before) else ()
            assert tokens[: len(prefix)] == prefix  # what was sampled is not changed
            end = length if batch["finished"][row] else length - tail
            assert batch["loss_mask"][row].nonzero()[:, 0].tolist() == list(range(len(prefix), end))
            left_out += length - end
            rounds[tokens] = rounds.pop(prefix, 0) + 1 if prefix else 1
            sampled, by_policy = sampled + length - len(prefix), by_policy + int(batch["loss_mask"][row].sum())
            by_critic += int(batch["value_mask"][row].sum())
    waiting = sum(len(tokens) for _, tokens in trainer._rollouts._unfinished)
    assert sampled == by_policy + left_out == by_critic + waiting
    assert (left_out > 0) == (tail > 0)
    assert waiting > 0
    assert max(rounds.values()) == 3


@pytest.mark.nightly
@pytest.mark.parametrize("zero", [0, *(pytest.param(zero, marks=pytest.mark.extra("deepspeed")) for zero in (2, 3))])
def test_two_processes_agree(tiny_checkpoint: Path, tmp_path: Path, zero: int) -> None:
    """DDP, and ZeRO where DeepSpeed is installed: both processes end with one policy and one critic, both of which moved."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "DS_ACCELERATOR": "cpu"}
    if zero:
        settings = {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": zero}}
        settings |= {"gradient_accumulation_steps": "auto", "gradient_clipping": "auto", "zero_allow_untested_optimizer": True}
        (tmp_path / "zero.json").write_text(json.dumps(settings))
        env |= {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_CONFIG_FILE": str(tmp_path / "zero.json")}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    script = ROOT / "tests" / "support" / "two_processes.py"
    done = subprocess.run(
        [*command, str(script), str(tiny_checkpoint), str(tmp_path)], env=env, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr[-6000:]
    told = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    assert told[0]["after"] == told[1]["after"]
    for part in ("policy", "critic"):
        assert told[0]["before"][part] != told[0]["after"][part]
    assert told[0]["rollouts"] != told[1]["rollouts"]  # each process had rollouts of its own
    if not zero:
        assert told[0]["pretrained"] == told[1]["pretrained"] > 0  # both stopped at the same step
        total, weight = told[0]["factor"]
        assert told[1]["factor"] == [total, weight]  # both drew as many prompts, though one had more decided groups
        assert total > weight > 0
