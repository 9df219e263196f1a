"""StableReinforce within verl's own registries: its numbers are the reference step's and a plain loop's; its launch is valid.

verl pins another transformers than this project: `make parity` runs this file in an environment of its own. Elsewhere it is
skipped.
"""

from __future__ import annotations

import asyncio
import importlib
import math
import os
import stat
import subprocess
import sys
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from rewardlab.config import Method
from rewardlab.errors import ConfigError, DataError, EndpointError
from rewardlab.rl.reference import Rollouts, advantages, loss
from rewardlab.types import Choice
from rewardlab.verdicts.parse import format_verdict

core_algos = pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is not installed; see make parity")
plugin = importlib.import_module("rewardlab.integrations.verl_stable_reinforce")

ROOT = Path(__file__).parents[2]
LAUNCH = ROOT / "configs" / "verl" / "stable_reinforce_7b.sh"
ALGORITHM = SimpleNamespace(gamma=1.0)
LEAN = "a lean environment: this part of verl wants datasets, aiohttp, torchdata and more; see make parity"


def actor(**changes: Any) -> Any:
    from verl.workers.config import ActorConfig

    values: dict[str, Any] = {"strategy": "fsdp", "rollout_n": 1, "ppo_micro_batch_size_per_gpu": 1}
    return ActorConfig(**(values | changes))


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a.float(), b.float(), atol=2e-6, rtol=2e-5)


@pytest.fixture(params=range(6))
def batch(request: pytest.FixtureRequest) -> SimpleNamespace:
    """64 rollouts of 1 to 11 tokens with a judge's rewards, few of them far off, and log-ratios beyond clip and pre-clip."""
    generator = torch.Generator().manual_seed(request.param)
    lengths = torch.randint(1, 12, (64,), generator=generator)
    mask = (torch.arange(11) < lengths[:, None]).long()
    rewards = 1.5 + torch.randint(0, 2, (64,), generator=generator) / 2
    rewards[:2] = 0.0  # beyond three deviations
    old = -torch.rand(64, 11, generator=generator) * 3
    new = old + torch.randn(64, 11, generator=generator) * 0.4
    new[3, 0], new[4, 0] = old[3, 0] + 8, old[4, 0] - 8
    at_the_end = torch.zeros(64, 11).scatter(1, lengths[:, None] - 1, rewards[:, None])
    return SimpleNamespace(mask=mask, lengths=lengths, rewards=rewards, token_rewards=at_the_end, old=old, new=new)


def estimate(batch: SimpleNamespace, **config: Any) -> tuple[Tensor, Tensor]:
    estimator = core_algos.get_adv_estimator_fn("stable_reinforce")
    return estimator(  # as verl's compute_advantage calls it
        token_level_rewards=batch.token_rewards,
        response_mask=batch.mask,
        config=SimpleNamespace(**(vars(ALGORITHM) | config)),
        index=list(range(64)),
    )


def test_advantages_are_the_references(batch: SimpleNamespace) -> None:
    """To the digit, deleted outliers among them; they are few, and zero."""
    found, returns = estimate(batch)
    reference = advantages(Rollouts(batch.mask, batch.rewards, batch.old), Method())
    close(found, reference)
    close(returns, batch.rewards[:, None] * batch.mask)
    assert (found[:2] == 0).all()
    assert (estimate(batch, outliers="keep")[0][:2] * batch.mask[:2] < -3).any()
    clipped = estimate(batch, outliers="clip", outlier_sigma=2.0)[0]
    close(clipped, advantages(Rollouts(batch.mask, batch.rewards, batch.old), Method(outliers="clip", outlier_sigma=2.0)))


def test_advantages_are_a_plain_loops(batch: SimpleNamespace) -> None:
    """Every token of a rollout earns its reward; mean and deviation over all tokens; beyond three deviations nothing."""
    found, _ = estimate(batch)
    tokens = [batch.rewards[n].item() for n in range(64) for _ in range(batch.lengths[n])]
    mean = sum(tokens) / len(tokens)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in tokens) / len(tokens))
    for n in range(64):
        for t in range(11):
            z = (batch.rewards[n].item() - mean) / deviation
            expected = z if t < batch.lengths[n] and abs(z) <= 3 else 0.0
            assert found[n, t].item() == pytest.approx(expected, abs=2e-5)


def test_verl_itself_computes_them(batch: SimpleNamespace) -> None:
    """Computed by verl's own compute_advantage, over a DataProto, with its AlgoConfig as the trainer has it."""
    ray_trainer = pytest.importorskip("verl.trainer.ppo.ray_trainer", reason=LEAN)
    from omegaconf import OmegaConf
    from verl import DataProto

    data = DataProto.from_dict(
        tensors={"token_level_rewards": batch.token_rewards, "response_mask": batch.mask},
        non_tensors={"uid": [str(n) for n in range(64)]},
    )
    config = OmegaConf.create({"gamma": 1.0, "outlier_sigma": 3.0})
    OmegaConf.set_struct(config, True)
    done = ray_trainer.compute_advantage(data, adv_estimator="stable_reinforce", config=config)
    close(done.batch["advantages"], advantages(Rollouts(batch.mask, batch.rewards, batch.old), Method()))


def test_a_discount_or_an_unknown_treatment_is_refused(batch: SimpleNamespace) -> None:
    with pytest.raises(ConfigError, match="discount"):
        estimate(batch, gamma=0.99)
    with pytest.raises(ConfigError, match="delete, clip or keep"):
        estimate(batch, outliers="drop")


def policy_loss(batch: SimpleNamespace, new: Tensor, mode: str = "seq-mean-token-mean", config: Any = None, **more: Any) -> Any:
    function = core_algos.get_policy_loss_fn("stable_reinforce")
    return function(  # as verl's ppo_loss calls it: the mask is one of bools
        old_log_prob=batch.old,
        log_prob=new,
        advantages=estimate(batch)[0],
        response_mask=batch.mask.bool(),
        loss_agg_mode=mode,
        config=config or actor(),
        rollout_is_weights=more.get("weights"),
    )


@pytest.mark.parametrize(("mode", "average"), [("seq-mean-token-mean", "sequence"), ("token-mean", "token")])
@pytest.mark.parametrize("high", [0.2, 0.28])
def test_losses_and_gradients_are_the_references(batch: SimpleNamespace, mode: str, average: str, high: float) -> None:
    """Gradients of one minibatch; masked tokens have no gradient, nor have those beyond the pre-clip."""
    new = batch.new.clone().requires_grad_()
    found, metrics = policy_loss(batch, new, mode, actor(clip_ratio_high=high))
    (gradient,) = torch.autograd.grad(found, new)
    method, rollouts = Method(average=average, clip_high=high), Rollouts(batch.mask, batch.rewards, batch.old)
    reference = loss(new, rollouts, advantages(rollouts, method), torch.arange(64), method, 1)
    (expected,) = torch.autograd.grad(reference, new)
    close(found, reference)
    close(gradient, expected)
    assert (gradient[batch.mask == 0] == 0).all()
    assert gradient.abs().sum() > 0
    assert gradient[3, 0] == gradient[4, 0] == 0
    assert metrics["actor/preclip_frac"] == pytest.approx(2 / batch.mask.sum().item())


def test_losses_are_a_plain_loops(batch: SimpleNamespace) -> None:
    """-min(r A, clip(r) A) with r held to [1e-3, 1e3], mean over tokens, then over rollouts; and its metrics, counted."""
    gains, _ = estimate(batch)
    found, metrics = policy_loss(batch, batch.new)
    rows, clipped, zero, kl = [], 0, 0, 0.0
    for n in range(64):
        row = []
        for t in range(batch.lengths[n]):
            difference, a = (batch.new[n, t] - batch.old[n, t]).item(), gains[n, t].item()
            r = min(max(math.exp(difference), 1e-3), 1e3)
            plain, held = r * a, min(max(r, 0.8), 1.2) * a
            row.append(-min(plain, held))
            clipped, zero, kl = clipped + (held < plain), zero + (a == 0), kl - difference
        rows.append(sum(row) / len(row))
    tokens = batch.mask.sum().item()
    assert found.item() == pytest.approx(sum(rows) / 64, abs=1e-5)
    assert metrics["actor/pg_clipfrac"] == pytest.approx(clipped / tokens, abs=1e-6)
    assert metrics["actor/zero_advantage_frac"] == pytest.approx(zero / tokens, abs=1e-6)
    assert metrics["actor/ppo_kl"] == pytest.approx(kl / tokens, abs=1e-5)


def test_micro_batches_add_up_to_the_minibatch(batch: SimpleNamespace) -> None:
    """With the global batch that verl hands over, parts of any size sum to the whole; importance weights go in by token."""
    whole, _ = policy_loss(batch, batch.new)
    gains, function, total = estimate(batch)[0], core_algos.get_policy_loss_fn("stable_reinforce"), 0.0
    for rows in (slice(0, 10), slice(10, 11), slice(11, 64)):
        config = actor()
        config.global_batch_info.update(dp_size=1, batch_num_tokens=int(batch.mask.sum()), global_batch_size=64)
        part, _ = function(
            batch.old[rows], batch.new[rows], gains[rows], batch.mask[rows].bool(), "seq-mean-token-mean", config
        )
        total += part.item()
    assert total == pytest.approx(whole.item(), abs=1e-6)
    doubled, _ = policy_loss(batch, batch.new, weights=torch.full_like(batch.new, 2.0))
    close(doubled, 2 * whole)


def test_verls_actor_computes_it(batch: SimpleNamespace) -> None:
    """Its ppo_loss, from the model's ragged log-probs of prompts and responses: the reference's loss and gradient."""
    losses = pytest.importorskip("verl.workers.utils.losses", reason=LEAN)
    from tensordict import TensorDict
    from verl.utils import tensordict_utils

    def ragged(values: Tensor) -> Tensor:
        return torch.nested.as_nested_tensor(
            [row[:k] for row, k in zip(values, batch.lengths, strict=True)], layout=torch.jagged
        )

    new = batch.new.clone().requires_grad_()
    gains, prompts = estimate(batch)[0], torch.nested.as_nested_tensor([torch.ones(2)] * 64, layout=torch.jagged)
    rows = zip(new, batch.lengths, strict=True)  # two tokens of prompt; what is said of a token stands one before it
    said = torch.nested.as_nested_tensor(
        [torch.cat([torch.zeros(1), row[:k], torch.zeros(1)]) for row, k in rows], layout=torch.jagged
    )
    fields = {"response_mask": batch.mask, "old_log_probs": batch.old, "advantages": gains, "responses": batch.mask}
    data = TensorDict({"prompts": prompts, **{name: ragged(value) for name, value in fields.items()}}, batch_size=64)
    tokens = {"dp_size": 1, "batch_num_tokens": int(batch.mask.sum()), "global_batch_size": 64}
    for name, value in tokens.items():
        tensordict_utils.assign_non_tensor_data(data, name, value)
    config = actor(policy_loss=plugin.StableReinforceLossConfig(), loss_agg_mode="seq-mean-token-mean")
    found, metrics = losses.ppo_loss(config, {"log_probs": said}, data)
    rollouts = Rollouts(batch.mask, batch.rewards, batch.old)
    reference = loss(new, rollouts, gains, torch.arange(64), Method(), 1)
    close(found, reference)
    close(torch.autograd.grad(found, new)[0], torch.autograd.grad(reference, new)[0])
    assert metrics["actor/preclip_frac"].aggregate() == pytest.approx(2 / batch.mask.sum().item())


@pytest.mark.parametrize("far", [200.0, -200.0, math.inf])
def test_far_away_policies_stay_finite(batch: SimpleNamespace, far: float) -> None:
    """A log-ratio of 200, with verl's metrics, and whatever stands in padding."""
    new = batch.new.clone()
    new[:, 0] = batch.old[:, 0] + far
    new[batch.mask == 0] = far
    new.requires_grad_()
    found, metrics = policy_loss(batch, new)
    (gradient,) = torch.autograd.grad(found, new)
    assert torch.isfinite(found)
    assert torch.isfinite(gradient).all()
    assert all(math.isfinite(value) for value in metrics.values())
    assert (gradient[:, 0] == 0).all()
    assert (gradient[batch.mask == 0] == 0).all()


def test_bounds_come_with_the_config(batch: SimpleNamespace) -> None:
    """Built by verl's own instantiation of the actor's config, whose policy_loss names our class."""
    from omegaconf import OmegaConf
    from verl.utils.config import omega_conf_to_dataclass

    own = {"_target_": f"{plugin.__name__}.StableReinforceLossConfig", "preclip_low": 0.5, "preclip_high": 2.0}
    config = actor(policy_loss=omega_conf_to_dataclass(OmegaConf.create(own)))
    assert config.policy_loss.loss_mode == "stable_reinforce"
    _, metrics = policy_loss(batch, batch.new, config=config)
    beyond = ((batch.new - batch.old).abs() > math.log(2)) & (batch.mask > 0)
    assert metrics["actor/preclip_frac"] == pytest.approx(beyond.sum().item() / batch.mask.sum().item())
    with pytest.raises(ConfigError, match="both sides of 1"):
        policy_loss(batch, batch.new, config=actor(policy_loss=plugin.StableReinforceLossConfig(preclip_low=2.0)))


@pytest.mark.parametrize("way", ["variable", "external_lib"])
def test_the_documented_ways_fill_the_registries(way: str) -> None:
    """In a process of its own that names nothing of rewardlab but in verl's settings."""
    module = "rewardlab.integrations.verl_stable_reinforce"
    code = "import verl\n"
    if way == "external_lib":
        code += f"from verl.utils.import_utils import import_external_libs\nimport_external_libs('{module}')\n"
    code += "from verl.trainer.ppo import core_algos as c\n"
    code += "print(c.get_adv_estimator_fn('stable_reinforce').__name__, c.get_policy_loss_fn('stable_reinforce').__name__)"
    env = {**os.environ, "PYTHONPATH": str(ROOT)} | ({"VERL_USE_EXTERNAL_MODULES": module} if way == "variable" else {})
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert "stable_reinforce_advantages stable_reinforce_loss" in done.stdout, done.stderr


def overrides_of(tmp_path: Path, **settings: str) -> list[str]:
    """What the launch script hands to verl, evaluated by bash itself."""
    stub = tmp_path / "python"
    stub.write_text('#!/usr/bin/env bash\nprintf "%s\\n" "$@"\n')
    stub.chmod(stub.stat().st_mode | stat.S_IEXEC)
    env = {**os.environ, "PYTHON": str(stub), **settings}
    lines = subprocess.run([str(LAUNCH)], capture_output=True, text=True, env=env, check=True).stdout.splitlines()
    assert lines[:2] == ["-m", "verl.trainer.main_ppo"]
    return lines[2:]


LAUNCHES = [{}, {"CONSISTENCY_URL": "http://judge:8000/v1", "SWAP_WEIGHT": "0.5", "NUM_NODES": "8"}]


def composed(overrides: list[str]) -> Any:
    from hydra import compose, initialize_config_module

    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=overrides)


@pytest.mark.parametrize("settings", LAUNCHES)
def test_the_launch_has_verls_keys(settings: dict[str, str], tmp_path: Path) -> None:
    """Every key is one of verl's config tree, which takes no unknown ones; what it names is there."""
    config = composed(overrides_of(tmp_path, **settings))
    assert (config.data.train_batch_size, config.actor_rollout_ref.actor.ppo_mini_batch_size) == (256, 128)
    assert config.algorithm.adv_estimator == config.actor_rollout_ref.actor.policy_loss.loss_mode == "stable_reinforce"
    core_algos.get_adv_estimator_fn(config.algorithm.adv_estimator)
    for name in (config.actor_rollout_ref.model.external_lib, config.reward.reward_manager.module.path):
        assert (ROOT / f"{name.removeprefix('pkg://').replace('.', '/')}.py").exists()
    if settings:
        given = dict(config.ray_kwargs.ray_init.runtime_env.env_vars)
        assert given["REWARDLAB_CONSISTENCY_URL"] == settings["CONSISTENCY_URL"]


@pytest.mark.parametrize("settings", LAUNCHES)
def test_the_launch_passes_verls_validation(settings: dict[str, str], tmp_path: Path) -> None:
    """The config is validated as main_ppo does it; there is neither critic nor reference model."""
    pytest.importorskip("verl.trainer.ppo.ray_trainer", reason=LEAN)
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    config = composed(overrides_of(tmp_path, **settings))
    with pytest.warns(UserWarning, match="Disabled critic"):
        assert not need_critic(config)
    assert not need_reference_policy(config)
    validate_config(config, use_reference_policy=False, use_critic=False)


def test_an_unknown_key_would_be_noticed(tmp_path: Path) -> None:
    from hydra.errors import ConfigCompositionException

    with pytest.raises(ConfigCompositionException):
        composed([*overrides_of(tmp_path), "actor_rollout_ref.actor.ppo_mini_batchsize=128"])


def picture(color: str) -> bytes:
    from PIL import Image

    file = BytesIO()
    Image.new("RGB", (28, 28), color).save(file, format="PNG")
    return file.getvalue()


def test_rows_are_read_by_verls_dataset(tmp_path: Path) -> None:
    """Its own RLHFDataset finds the template's prompt, every image in its place, and what the reward pays by."""
    datasets = pytest.importorskip("verl.utils.dataset.rl_dataset", reason=LEAN)
    from omegaconf import OmegaConf

    from rewardlab.integrations.judge_rewards import write_verl_rows
    from rewardlab.prompts import build_messages, load_template
    from rewardlab.types import BOTH_ORDERS, IMAGE_MARK, PreferencePair

    red, blue, green = map(picture, ("red", "blue", "green"))
    pairs = [
        PreferencePair("a", "Does <image> or <video> stand here?", ("Yes.", "No: <audio>."), 0, (red, blue)),
        PreferencePair("b", f"{IMAGE_MARK} or?", ("x", f"y {IMAGE_MARK}."), 1, (red,), response_images=((), (green,))),
        PreferencePair("c", "No picture?", ("Right.", "Wrong."), 1),
    ]
    template = load_template("r1_reward")
    write_verl_rows(pairs, tmp_path / "train.parquet", template, both_orders=True)
    data = OmegaConf.create({"filter_overlong_prompts": False, "cache_dir": str(tmp_path), "image_key": "images"})
    rows = datasets.RLHFDataset(str(tmp_path / "train.parquet"), tokenizer=None, config=data, processor=object())
    assert len(rows) == 6
    for n, (pair, order) in enumerate((pair, order) for pair in pairs for order in BOTH_ORDERS):
        row = rows[n]
        (asked,) = build_messages(pair, order=order, template=template)
        content = row["raw_prompt"][0]["content"]
        if isinstance(content, str):
            assert content == asked.text
        else:
            shown = [part["text"] if part["type"] == "text" else part["image"].getpixel((0, 0)) for part in content]
            colors = {red: (255, 0, 0), blue: (0, 0, 255), green: (0, 128, 0)}
            expected = [
                part.text.replace("<audio", "<\u200baudio") if part.image is None else colors[part.image]
                for part in asked.parts
            ]
            assert shown == expected
        assert row["extra_info"]["pair_id"] == pair.pair_id
        assert row["extra_info"]["order"] == order.value
        assert row["index"] == n


class Words:
    """A tokenizer of words."""

    eos_token_id = 0

    def __init__(self) -> None:
        self.words: list[str] = [""]

    def encode(self, text: str) -> list[int]:
        self.words.append(text)
        return [len(self.words) - 1, 0]

    def decode(self, ids: Tensor, skip_special_tokens: bool) -> str:
        return "".join(self.words[n] for n in ids.tolist())


def sample(words: Words, text: str, info: dict[str, Any] | None, *, cut: bool = False) -> Any:
    """One rollout as verl's agent loop hands it to a reward worker, padded."""
    import numpy as np
    from verl import DataProto

    ids = words.encode(text)[: 1 if cut else 2]
    tensors = {
        "prompts": torch.ones(1, 3, dtype=torch.long),
        "responses": torch.tensor([ids + [0] * (4 - len(ids))]),
        "attention_mask": torch.tensor([[1] * (3 + len(ids)) + [0] * (4 - len(ids))]),
    }
    return DataProto.from_dict(tensors=tensors, non_tensors={"extra_info": np.array([info], dtype=object)})


def test_rewards_of_verls_reward_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by verl's own loader from the launch's config: the paper's rewards, cut off ones invalid; the swap by pairs."""
    pytest.importorskip("verl.experimental.reward_loop", reason=LEAN)
    from verl.trainer.ppo.reward import load_reward_manager

    monkeypatch.delenv("REWARDLAB_CONSISTENCY_URL", raising=False)
    config, words = composed(overrides_of(tmp_path)), Words()
    swapping = composed([*overrides_of(tmp_path, SWAP_WEIGHT="0.5"), "+reward.reward_kwargs.pair_deadline_s=0.2"])

    def info(order: str) -> dict[str, Any]:
        return {"pair_id": "p", "question": "Q?", "order": order, "preferred": 0, "verdict_format": "think_answer"}

    first, second = format_verdict(Choice.FIRST, "It is red."), format_verdict(Choice.SECOND, "It is red.")

    async def scored(settings: Any, *samples: Any) -> list[Any]:
        manager = load_reward_manager(settings, words)
        told = await asyncio.gather(*(manager.run_single(one) for one in samples), return_exceptions=True)
        return [one if isinstance(one, BaseException) else one["reward_score"] for one in told]

    def ask(settings: Any, *samples: Any) -> list[Any]:
        return asyncio.run(scored(settings, *samples))

    both = [sample(words, first, info("given")), sample(words, second, info("swapped"))]
    cut = sample(words, first, info("given"), cut=True)
    assert ask(config, *both, sample(words, second, info("given")), cut) == [1.5, 1.5, 0.5, 0.0]
    assert ask(swapping, *both) == [2.0, 2.0]
    always_first = [sample(words, first, info(order)) for order in ("given", "swapped")]
    assert ask(swapping, *always_first) == [1.5, 0.5]
    (alone,) = ask(swapping, both[0])
    assert isinstance(alone, EndpointError)
    assert "1 of the 2" in str(alone)
    (unlabelled,) = ask(config, sample(words, first, {"pair_id": "p"}))
    assert isinstance(unlabelled, DataError)
    with pytest.raises(ConfigError, match="one process"):
        load_reward_manager(composed([*overrides_of(tmp_path), "+reward.reward_kwargs.swap_weight=1"]), words)
    with pytest.raises(ConfigError, match="REWARDLAB_CONSISTENCY_URL"):
        load_reward_manager(composed([*overrides_of(tmp_path), "+reward.reward_kwargs.consistency_weight=1"]), words)
