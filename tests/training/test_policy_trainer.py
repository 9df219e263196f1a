"""What the trainer of policies decides by itself: the luck of each draw, and which rollouts are one group."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rewardlab.config import Method
from rewardlab.rewards.rollout import Rollout, Trajectory
from rewardlab.samplers.decode import draw_uniforms
from rewardlab.training.policy_gradient.batch import RolloutBatch
from rewardlab.training.policy_gradient.rollouts.sampling import SamplingOptions, WholeRollouts
from rewardlab.training.policy_gradient.trainer import PolicyTrainer


def trainer_of(step: int = 0, num_rollbacks: int = 0, process: int = 0) -> Any:
    """A trainer without a model, at ``step``."""
    trainer: Any = object.__new__(PolicyTrainer)
    trainer.state, trainer.args = SimpleNamespace(global_step=step), SimpleNamespace(seed=7)
    trainer.accelerator = SimpleNamespace(process_index=process)
    trainer._sampling, trainer._draws = SamplingOptions(num_rollbacks=num_rollbacks), (-1, 0)
    trainer._method = Method(advantage="grpo", group_size=2)
    return trainer


def test_each_draw_has_luck_of_its_own() -> None:
    """Two rounds of one step do not share theirs; a resumed run has that of its step; one that was taken back has another."""
    trainer = trainer_of(step=3)
    keys = [trainer.draw_key(), trainer.draw_key()]
    trainer.state.global_step = 4
    keys.append(trainer.draw_key())
    assert keys == [(7, 0, 3, 0), (7, 0, 3, 1), (7, 0, 4, 0)]
    assert trainer_of(step=4).draw_key() == keys[2]
    keys.append(trainer_of(step=4, num_rollbacks=1).draw_key())
    draws = [draw_uniforms(key, range(3), 4) for key in keys]
    assert not any(torch.equal(a, b) for n, a in enumerate(draws) for b in draws[:n])


def rollout(pair_id: str, order: str, **more: int) -> Rollout:
    return Rollout({"pair_id": pair_id, "order": order, **more}, [], Trajectory([]), "")


def test_a_group_is_one_prompt() -> None:
    """Not both orders of a pair; and what dynamic sampling has drawn twice is two groups."""
    trainer = trainer_of()
    rollouts = [rollout(*key) for key in (("p", "given"), ("p", "swapped"), ("q", "given")) for _ in range(2)]
    assert trainer._groups(rollouts, torch.zeros(6)).tolist() == [0, 0, 1, 1, 2, 2]
    drawn = [rollout("p", "given", draw=n) for n in (0, 0, 1, 1)]
    assert trainer._groups(drawn, torch.zeros(4)).tolist() == [0, 0, 1, 1]
    trainer._method = Method(advantage="reinforce_pp")
    assert trainer._groups(rollouts, torch.zeros(6)) is None


def test_a_process_trains_on_its_own_share_of_what_all_have_earned(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of two: the first one's group, paid alike but for a rollout without a reward, is nothing to it."""
    trainer = trainer_of(process=1)
    trainer._processes = SimpleNamespace(local=lambda size: slice(size, 2 * size), sum=lambda tensor: tensor)
    trainer._rollouts, trainer._process_reward, trainer._parts = WholeRollouts(), None, SimpleNamespace(outliers=None)
    trainer._rewards_G1 = torch.tensor([9.0, torch.nan, 9.0, 9.0, 0.0, 1.0, 0.0, 1.0])[:, None]
    monkeypatch.setattr(trainer, "_add_metrics", lambda metrics: None)
    monkeypatch.setattr(trainer, "_groups", lambda rollouts, rewards_G: torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]))
    tokens = torch.ones(4, 2)
    batch = RolloutBatch(tokens, tokens, tokens, tokens, tokens, {})
    made = trainer._add_advantages(batch, [rollout("q", "given")] * 4)
    assert made.advantages_NT.sign().tolist() == [[-1.0] * 2, [1.0] * 2] * 2
    assert made.num_tokens == 8
