"""RLOO (arXiv 2402.14740), whose action is a whole response: the recipe against TRL's RLOOTrainer and the paper's own form."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from trl import RLOOConfig, RLOOTrainer

from rewardlab.config import Method, load_yaml
from rewardlab.models.loading import load_model
from rewardlab.prompts import load_template
from rewardlab.rl.groups import leave_one_out
from rewardlab.training.policy_gradient.algorithm import LossInputs, LossScale, Rewards, compute_advantages, policy_loss
from rewardlab.training.policy_gradient.batch import RolloutBatch
from rewardlab.training.policy_gradient.trainer import PolicyTrainer
from rewardlab.training.rl import build_trainer, rl_rows
from tests.support.configs import short_rl_config
from tests.support.rewards import TokenReward

RECIPE = load_yaml(Path(__file__).parents[2] / "configs" / "rl" / "rloo.yaml")
LENGTHS = (2, 8, 5, 1, 3, 8, 6, 4)
PLAIN = load_template("plain")


def method(**changes: Any) -> Method:
    return Method(**(RECIPE | {"group_size": 4} | changes))


def batch_of(lengths: tuple[int, ...], generator: torch.Generator, *, drift: float) -> RolloutBatch:
    """Return responses of these lengths, padded, under a policy that has drifted since they were sampled."""
    num, width = len(lengths), max(lengths)
    mask_NT = (torch.arange(width)[None] < torch.tensor(lengths)[:, None]).long()
    old_NT = -torch.rand(num, width, generator=generator)
    return RolloutBatch(
        prompt_ids_NP=torch.zeros(num, 1).long(),
        prompt_mask_NP=torch.ones(num, 1).long(),
        completion_ids_NT=torch.zeros(num, width).long(),
        completion_mask_NT=mask_NT,
        loss_mask_NT=mask_NT,
        image_fields={},
        advantages_NT=torch.randn(num, 1, generator=generator) * mask_NT,
        old_logprobs_NT=old_NT + drift * torch.randn(num, width, generator=generator),
        ref_logprobs_NT=old_NT + 0.1,
        num_tokens=mask_NT.sum(),
        num_rows=torch.tensor(num),
    )


def token_gradients(batch: RolloutBatch, logprobs_NT: torch.Tensor, chosen: Method) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the loss, and its gradient with respect to every token's log-prob."""
    leaf_NT = logprobs_NT.clone().requires_grad_()
    loss = policy_loss(LossInputs(batch, leaf_NT, torch.zeros_like(leaf_NT), LossScale(1.0, 1, 1)), chosen).loss
    loss.backward()
    assert leaf_NT.grad is not None
    return loss.detach(), leaf_NT.grad


def test_a_token_weighs_the_same_in_a_short_and_in_a_long_response() -> None:
    """-A / N at a ratio of 1, of 2 tokens as of 8: the gradient of -mean(A log p(response))."""
    batch = batch_of(LENGTHS, torch.Generator().manual_seed(0), drift=0.0)
    assert batch.old_logprobs_NT is not None
    assert batch.advantages_NT is not None
    _, gradient_NT = token_gradients(batch, batch.old_logprobs_NT, method())
    torch.testing.assert_close(gradient_NT, -batch.advantages_NT / len(LENGTHS))
    normal_NT = token_gradients(batch, batch.old_logprobs_NT, method(objective="gspo"))[1]  # GSPO's divides by the length
    torch.testing.assert_close(normal_NT, gradient_NT / torch.tensor(LENGTHS)[:, None])


@pytest.mark.parametrize("seed", range(3))
def test_the_whole_response_form(seed: int) -> None:
    """Written out by hand, rollout by rollout, clip and all; padding gets no gradient."""
    batch = batch_of(LENGTHS, torch.Generator().manual_seed(seed), drift=0.15)
    assert batch.old_logprobs_NT is not None
    assert batch.advantages_NT is not None
    logprobs_NT = -torch.rand(batch.old_logprobs_NT.shape, generator=torch.Generator().manual_seed(seed))
    loss, gradient_NT = token_gradients(batch, logprobs_NT, method())
    leaf_NT, terms, clipped = logprobs_NT.clone().requires_grad_(), [], 0
    for n, length in enumerate(LENGTHS):
        ratio = (leaf_NT[n, :length].sum() - batch.old_logprobs_NT[n, :length].sum()).exp()
        advantage = batch.advantages_NT[n, 0]
        terms.append(torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage))
        clipped += bool(ratio.clamp(0.8, 1.2) * advantage < ratio * advantage)
    by_hand = -torch.stack(terms).mean()
    by_hand.backward()
    torch.testing.assert_close(loss, by_hand.detach())
    torch.testing.assert_close(gradient_NT, leaf_NT.grad)
    assert 0 < clipped < len(LENGTHS)


def test_the_divergence_is_a_part_of_the_reward() -> None:
    """R less the coefficient times the log-ratio of the whole response, and of that the mean of the others off."""
    generator = torch.Generator().manual_seed(0)
    batch = batch_of(LENGTHS, generator, drift=0.2)
    rewards_G, groups_G = torch.rand(8, generator=generator), torch.tensor([0] * 4 + [1] * 4)
    kl_NT = torch.randn(8, 8, generator=generator) * batch.loss_mask_NT
    rewards = Rewards(rewards_G, slice(0, 8), groups_G, kl_NT, 0.5 * kl_NT.sum(1))
    found = compute_advantages(batch, rewards, method(kl_coef=0.5), sum_processes=lambda tensor: tensor).advantages_NT
    paid = [reward.item() - 0.5 * row.sum().item() for reward, row in zip(rewards_G, kl_NT, strict=True)]
    for n, value in enumerate(paid):
        others = [paid[m] for m in range(8) if m != n and m // 4 == n // 4]
        assert found[n, 0].item() == pytest.approx(value - sum(others) / 3, abs=1e-5)
    assert not torch.allclose(found[:, 0], leave_one_out(rewards_G, groups_G))


@pytest.fixture
def unequal_rollouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the decoder's rollouts end after :data:`LENGTHS` tokens."""
    sample = PolicyTrainer._sample_decoder

    def cut(self: Any, *args: Any) -> Any:
        return tuple([row[:length] for row, length in zip(part, LENGTHS, strict=True)] for part in sample(self, *args))

    monkeypatch.setattr(PolicyTrainer, "_sample_decoder", cut)


def drift(model: torch.nn.Module, size: float) -> None:
    """Move every weight by the same draw, whatever trainer the model is of."""
    with torch.no_grad():
        for number, weight in enumerate(model.parameters()):
            weight.add_(size * torch.randn(weight.shape, generator=torch.Generator().manual_seed(number)))


def gradient_of(trainer: Any, batch: dict[str, Any]) -> torch.Tensor:
    """Return the gradient of every weight, after the policy has moved away from the one that sampled."""
    drift(trainer.model, 0.003)
    trainer.current_gradient_accumulation_steps = 1  # as its loop sets it
    trainer._compute_loss(trainer.model, batch).backward()
    return torch.cat([weight.grad.flatten() for weight in trainer.model.parameters() if weight.grad is not None])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("unequal_rollouts")
def test_a_step_is_that_of_trls_trainer(tiny_checkpoint: Path, demo_pairs: Any, tmp_path: Path) -> None:
    """From the same rollouts and rewards on: reference, divergence, baseline, ratio, clip and mean, down to every weight."""
    recipe = RECIPE | {"group_size": 4, "batch_size": 8, "micro_batch_size": 8, "iterations": 2}
    config = short_rl_config(tiny_checkpoint, **recipe)
    rows = rl_rows([replace(pair, attempts="2") for pair in demo_pairs[0][:4]], PLAIN, both_orders=True)
    model, processor = load_model(str(tiny_checkpoint), device="cpu")
    reward = TokenReward(lambda ids, n: float(sum(ids) % 7))
    ours = build_trainer(rows, config, model, processor, PLAIN, tmp_path, reward=reward)
    theirs = RLOOTrainer(
        model=load_model(str(tiny_checkpoint), device="cpu")[0],
        reward_funcs=lambda prompts, **columns: [rollout.reward for rollout in ours._current],
        args=RLOOConfig(
            output_dir=str(tmp_path / "trl"),
            beta=config.kl_coef,
            epsilon=config.clip_low,
            num_generations=4,
            per_device_train_batch_size=8,
            num_iterations=2,
            max_completion_length=8,
            gradient_checkpointing=False,
            bf16=False,
            use_cpu=True,
            report_to="none",
        ),
        train_dataset=rows.whole_dataset(),
        processing_class=processor,
    )
    chosen = [rows.dataset[n // 4] for n in range(8)]
    for trainer in (ours, theirs):
        drift(trainer.ref_model, 0.02)
        trainer.model.train()
    batch = ours._generate_and_score_completions(chosen)
    rollouts = ours._current
    texts = [[{"role": "assistant", "content": rollout.text}] for rollout in rollouts]
    ids = ([rollout.prompt_ids for rollout in rollouts], [rollout.token_ids for rollout in rollouts])
    theirs._generate = lambda prompts: (*ids, texts)
    inputs = theirs._generate_and_score_completions([rows[n // 4] for n in range(8)])
    assert batch["completion_mask"].sum(1).tolist() == list(LENGTHS)
    torch.testing.assert_close(batch["advantages"][:, 0], inputs["advantages"], atol=1e-4, rtol=1e-4)
    assert inputs["advantages"].abs().max() > 0.1
    mine, trls = gradient_of(ours, batch), gradient_of(theirs, inputs)
    assert trls.norm() > 1e-2
    assert (mine - trls).norm() < 1e-4 * trls.norm()
    clipped = theirs._metrics["train"]["clip_ratio/region_mean"]
    assert 0 < clipped[0] < 1
