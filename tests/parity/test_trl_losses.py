"""Our trainer's loss against TRL's own on the same random tensors: every loss type and ratio the two have in common.

Masks are ragged and have holes; rollouts are far enough from the sampling policy that clips act on both sides.
"""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from trl import GRPOTrainer

from rewardlab.config import Method
from rewardlab.training.policy_gradient.algorithm import LossInputs, LossScale, policy_loss
from rewardlab.training.policy_gradient.batch import RolloutBatch

N, T, LONGEST = 6, 9, 16
# TRL's loss type -> our average. TRL's "grpo" weighs rollouts alike, its "dapo" tokens of the whole rollout batch.
AVERAGES = {"grpo": "sequence", "dapo": "token", "dr_grpo": "constant"}


def batch(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator)

    lengths = torch.randint(2, T + 1, (N,), generator=generator)
    mask = (torch.arange(T)[None] < lengths[:, None]) & (torch.rand(N, T, generator=generator) > 0.2)
    mask[:, 0] = True
    old = normal(N, T) - 2
    return {
        "logprobs": old + 0.3 * normal(N, T),
        "old_per_token_logps": old,
        "ref_per_token_logps": old + 0.5 * normal(N, T),
        "advantages": normal(N, 1),
        "completion_mask": mask.long(),
        "num_items_in_batch": mask.sum(),
    }


def stub(logprobs: torch.Tensor, **more: Any) -> Any:
    """What their loss reads of its trainer: one process, one micro-batch per step and per rollout batch."""
    values = {
        "_get_per_token_logps_and_entropies": lambda *a, **k: (logprobs, torch.zeros(N, T), None),
        "model": SimpleNamespace(training=True),
        "accelerator": SimpleNamespace(num_processes=1, gather=lambda value: value, reduce=lambda value, reduction: value),
        "current_gradient_accumulation_steps": 1,
        "max_completion_length": LONGEST,
        "_metrics": {"train": defaultdict(list)},
        "beta": 0.0,
    }
    return SimpleNamespace(**(values | more))


def theirs(given: dict[str, torch.Tensor], logprobs: torch.Tensor, loss_type: str, ratio: str, kl: float) -> torch.Tensor:
    trainer = stub(
        logprobs,
        loss_type=loss_type,
        importance_sampling_level=ratio,
        epsilon_low=0.2,
        epsilon_high=0.28,
        beta=kl,
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        use_vllm=False,
        _entropy_bonus_enabled=False,
        args=SimpleNamespace(delta=None, use_bias_correction_kl=False, steps_per_generation=1),
    )
    prompts = {"prompt_ids": torch.zeros(N, 1).long(), "prompt_mask": torch.ones(N, 1).long()}
    ids = {"completion_ids": torch.zeros(N, T).long()}
    loss: torch.Tensor = GRPOTrainer._compute_loss(trainer, None, {**given, **prompts, **ids})
    return loss


def ours(given: dict[str, torch.Tensor], logprobs: torch.Tensor, average: str, ratio: str, kl: float) -> torch.Tensor:
    settings: dict[str, Any] = {"ratio": ratio, "average": average, "kl": "k3_loss" if kl else "k1_reward", "kl_coef": kl}
    method = Method(preclip=None, clip_low=0.2, clip_high=0.28, max_completion_length=LONGEST, **settings)
    mask = given["completion_mask"]
    batch = RolloutBatch(
        prompt_ids_NP=torch.zeros(N, 1).long(),
        prompt_mask_NP=torch.ones(N, 1).long(),
        completion_ids_NT=torch.zeros(N, T).long(),
        completion_mask_NT=mask,
        loss_mask_NT=mask,
        image_fields={},
        advantages_NT=given["advantages"] * mask,
        old_logprobs_NT=given["old_per_token_logps"],
        ref_logprobs_NT=given["ref_per_token_logps"],
        num_tokens=given["num_items_in_batch"],
        num_rows=torch.tensor(N),
    )
    return policy_loss(LossInputs(batch, logprobs, torch.zeros(N, T), LossScale(1.0, 1, 1)), method).loss


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kl", [0.0, 0.3])
@pytest.mark.parametrize("ratio", ["token", "sequence"])
@pytest.mark.parametrize("loss_type", sorted(AVERAGES))
@pytest.mark.parametrize("seed", range(3))
def test_the_loss_is_trls(loss_type: str, ratio: str, kl: float, seed: int) -> None:
    """In value and in gradient with respect to every log-prob."""
    given = batch(seed)
    found = []
    for name, loss_of in ((loss_type, theirs), (AVERAGES[loss_type], ours)):
        logprobs = given["logprobs"].clone().requires_grad_()
        loss = loss_of(given, logprobs, name, ratio, kl)
        loss.backward()
        found.append((loss.detach(), logprobs.grad))
    torch.testing.assert_close(found[1][0], found[0][0], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(found[1][1], found[0][1], atol=1e-7, rtol=1e-5)
    assert found[0][1] is not None
    assert (found[0][1] == 0).any()
    assert (found[0][1] != 0).any()
