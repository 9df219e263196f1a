"""Our trainer's loss and importance weights against TRL's own on the same random tensors: all that the two have in common.

Masks are ragged and have holes; rollouts are far enough from the sampling policy that clips act on both sides.
"""

from __future__ import annotations

import inspect
import itertools
import math
import textwrap
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from trl import GRPOTrainer

from rewardlab.config import EntropyConfig, Method
from rewardlab.rl.objectives import importance_weights, top_bound
from rewardlab.training.policy_gradient.algorithm import EntropyControl, LossInputs, LossScale, policy_loss
from rewardlab.training.policy_gradient.batch import RolloutBatch

N, T, LONGEST = 6, 9, 16
# TRL's loss type -> our average. TRL's "grpo" weighs rollouts alike, its "dapo" tokens of the whole rollout batch.
AVERAGES = {"grpo": "sequence", "dapo": "token", "dr_grpo": "constant", "cispo": "token", "sapo": "sequence"}
OBJECTIVES = {"token": "ppo_clip", "sequence": "gspo", "cispo": "cispo", "sapo": "sapo"}


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


def stub(logprobs: torch.Tensor, entropies: torch.Tensor | None = None, **more: Any) -> Any:
    """What their loss reads of its trainer: one process, one micro-batch per step and per rollout batch."""
    entropies = torch.zeros(N, T) if entropies is None else entropies
    values = {
        "_get_per_token_logps_and_entropies": lambda *a, **k: (logprobs, entropies, None),
        "model": SimpleNamespace(training=True),
        "accelerator": SimpleNamespace(num_processes=1, gather=lambda value: value, reduce=lambda value, reduction: value),
        "current_gradient_accumulation_steps": 1,
        "max_completion_length": LONGEST,
        "_metrics": {"train": defaultdict(list)},
        "beta": 0.0,
    }
    return SimpleNamespace(**(values | more))


def their_trainer(logprobs: torch.Tensor, loss_type: str, ratio: str, kl: str, **more: Any) -> Any:
    keys = {
        "loss_type": loss_type,
        "importance_sampling_level": ratio,
        "epsilon_low": 0.2,
        "epsilon_high": 1.28 if loss_type == "cispo" else 0.28,  # there the bound of the ratio itself
        "beta": 0.3 if kl else 0.0,
        "aux_loss_enabled": False,
        "top_entropy_quantile": 1.0,
        "off_policy_mask_threshold": None,
        "use_vllm": False,
        "_entropy_bonus_enabled": False,
        "args": SimpleNamespace(
            delta=None,
            use_bias_correction_kl=kl == "k3_corrected",
            steps_per_generation=1,
            sapo_temperature_pos=1.0,
            sapo_temperature_neg=1.05,
        ),
    }
    return stub(logprobs, **(keys | more))


def their_loss(trainer: Any, given: dict[str, torch.Tensor]) -> torch.Tensor:
    prompts = {"prompt_ids": torch.zeros(N, 1).long(), "prompt_mask": torch.ones(N, 1).long()}
    ids = {"completion_ids": torch.zeros(N, T).long()}
    loss: torch.Tensor = GRPOTrainer._compute_loss(trainer, None, {**given, **prompts, **ids})
    return loss


def our_method(loss_type: str, ratio: str, kl: str) -> Method:
    objective = OBJECTIVES.get(loss_type, OBJECTIVES[ratio])
    settings: dict[str, Any] = {"objective": objective, "average": AVERAGES[loss_type]}
    settings |= {"kl": kl, "kl_coef": 0.3} if kl else {}
    settings |= {} if objective == "sapo" else {"clip_high": 0.28}
    return Method(preclip=None, max_completion_length=LONGEST, **settings)


def our_batch(given: dict[str, torch.Tensor]) -> RolloutBatch:
    mask = given["completion_mask"]
    return RolloutBatch(
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


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kl", ["", "k3_loss", "k3_corrected"])
@pytest.mark.parametrize(
    ("loss_type", "ratio"),
    [(name, ratio) for name in AVERAGES for ratio in ("token", "sequence") if name not in OBJECTIVES or ratio == "token"],
)
@pytest.mark.parametrize("seed", range(3))
def test_the_loss_is_trls(loss_type: str, ratio: str, kl: str, seed: int) -> None:
    """In value and in gradient with respect to every log-prob."""
    given = batch(seed)
    found = []
    for is_ours in (False, True):
        logprobs = given["logprobs"].clone().requires_grad_()
        if is_ours:
            inputs = LossInputs(our_batch(given), logprobs, torch.zeros(N, T), LossScale(1.0, 1, 1))
            loss = policy_loss(inputs, our_method(loss_type, ratio, kl)).loss
        else:
            loss = their_loss(their_trainer(logprobs, loss_type, ratio, kl), given)
        loss.backward()
        found.append((loss.detach(), logprobs.grad))
    torch.testing.assert_close(found[1][0], found[0][0], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(found[1][1], found[0][1], atol=1e-7, rtol=1e-5)
    assert found[0][1] is not None
    assert (found[0][1] == 0).any()
    assert (found[0][1] != 0).any()


def their_weights(old: torch.Tensor, sampled: torch.Tensor, mask: torch.Tensor, mode: str, **bounds: float | None) -> Any:
    """Run the lines of TRL's step that make importance weights of log-probs: they are no function of their own."""
    source = inspect.getsource(GRPOTrainer._generate_and_score_completions)
    start = source.index("                mask = completion_mask if tool_mask is None")
    lines = textwrap.dedent(
        source[start : source.index("            # Compute the per-token log probabilities for the reference")]
    )
    trainer = SimpleNamespace(
        vllm_importance_sampling_mode=mode,
        vllm_importance_sampling_clip_max=bounds["cap"],
        vllm_importance_sampling_clip_min=bounds["floor"],
    )
    given = {"self": trainer, "completion_mask": mask, "tool_mask": None, "torch": torch, "math": math}
    given |= {"old_per_token_logps": old, "sampling_per_token_logps": sampled}
    exec(lines, given)
    return given["vllm_importance_sampling_ratio"]


@pytest.mark.parametrize("floor", [None, 0.5])
@pytest.mark.parametrize("mode", ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"])
@pytest.mark.parametrize("seed", range(3))
def test_importance_weights_are_trls(mode: str, floor: float | None, seed: int) -> None:
    """On the tokens of rollouts; what they mask has left our mask, and nothing else has."""
    given, bounds = batch(seed), {"cap": 1.5, "floor": floor}
    old, sampled, mask = given["old_per_token_logps"], given["logprobs"].clone(), given["completion_mask"]
    sampled[::2, 0] = torch.nan
    weights, kept, _ = importance_weights(old, sampled, mask, mode, **bounds)
    expected = their_weights(old, sampled, mask, mode, **bounds).expand(N, T) * mask
    torch.testing.assert_close(weights * mask, expected, atol=1e-6, rtol=1e-5)
    assert torch.equal(kept, mask * (expected != 0))
    assert (kept.sum() < mask.sum()) == mode.endswith("mask")


@pytest.mark.filterwarnings("ignore")
def test_the_adaptive_entropy_bonus_is_trls() -> None:
    """Loss and weight over steps whose entropies cross the target, where TRL's mean is over the same tokens as ours."""
    given, config = batch(0), EntropyConfig(coef=0.1, target=1.0, step=0.06, max=0.15)
    control, mask, generator = EntropyControl(config.coef), given["completion_mask"], torch.Generator().manual_seed(1)
    args = SimpleNamespace(entropy_target=1.0, entropy_coef_delta=0.06, entropy_coef_min=0.0, entropy_coef_max=0.15)
    state = {"entropy_coef": 0.1, "use_adaptive_entropy": True, "_last_world_entropy": math.inf, "_entropy_window_stats": None}
    for level in (0.9, 0.5, 0.5, 1.5, 1.5, 1.5, 1.5, 0.9):
        entropies = level + 0.05 * torch.rand(N, T, generator=generator)
        trainer = their_trainer(
            given["logprobs"], "dapo", "token", "", entropies=entropies, _entropy_bonus_enabled=True, **state
        )
        vars(trainer.args).update(vars(args))
        trainer.accelerator.sync_gradients = True
        expected = their_loss(trainer, given)
        state = {name: getattr(trainer, name) for name in state}
        inputs = LossInputs(our_batch(given), given["logprobs"], entropies, LossScale(1.0, 1, 1), control.weight(config))
        torch.testing.assert_close(policy_loss(inputs, our_method("dapo", "token", "")).loss, expected, atol=1e-6, rtol=1e-5)
        control = control.after(entropies[mask > 0].mean().item(), config)
        assert control.coef == pytest.approx(state["entropy_coef"])


def test_high_entropy_tokens_are_trls() -> None:
    """The tokens that TRL keeps for several fractions, and numbers of tokens at which its quantile lies on a token."""
    entropies = torch.rand(N, T, generator=torch.Generator().manual_seed(0)) + 0.1
    accelerator = SimpleNamespace(pad_across_processes=lambda values, dim, pad_index: values, gather=lambda values: values)
    for fraction, mask in itertools.product((0.2, 0.25, 0.5), (torch.ones(N, T), batch(0)["completion_mask"], torch.eye(N, T))):
        expected = GRPOTrainer.get_high_entropy_mask(SimpleNamespace(accelerator=accelerator), entropies, mask, 1 - fraction)
        found = (entropies >= top_bound(entropies[mask > 0], fraction)) & (mask > 0)
        assert torch.equal(found, expected)
    assert not (entropies >= top_bound(entropies[:0, 0], 0.2)).any()
