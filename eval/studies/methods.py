"""Which method makes a judge better? One judge after SFT, the same pairs, the same budget of generated tokens, several seeds.

Every method is its recipe of ``configs/rl/``, scaled to the demo as said in ``scaled``; all have one optimizer, one rate and
one reward (format and result; consistency would need its endpoint and is measured instead).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from eval.studies.plans import Trial
from rewardlab.config import RLConfig, load_yaml


@dataclass(frozen=True)
class Arm:
    """A recipe, and what the arm changes of it."""

    title: str
    recipe: str
    changes: dict[str, Any] = field(default_factory=dict)


SLOW = {"learning_rate": 1e-4, "value_learning_rate": 6e-4}  # the critic's as in the other arms

ARMS: dict[str, Arm] = {
    "stable_reinforce": Arm("StableReinforce", "stable_reinforce"),
    "reinforce_pp": Arm("REINFORCE++", "reinforce_pp"),
    "reinforce_pp_baseline": Arm("REINFORCE++-baseline", "reinforce_pp_baseline"),
    "grpo": Arm("GRPO", "grpo"),
    "dr_grpo": Arm("Dr. GRPO", "dr_grpo"),
    "dapo": Arm("DAPO", "dapo"),
    "rloo": Arm("RLOO", "rloo"),
    "ppo": Arm("PPO", "ppo"),
    "vc_ppo": Arm("VC-PPO", "vc_ppo"),
    "vapo": Arm("VAPO", "vapo"),
    "t_ppo": Arm("T-PPO", "t_ppo"),
    "pag": Arm("PAG (from a start of its own)", "pag"),
    "ppo_slow": Arm("PPO, the policy at a third of the rate", "ppo", SLOW),
    "vc_ppo_slow": Arm("VC-PPO, the policy at a third of the rate", "vc_ppo", SLOW),
    "ppo_lambda_1": Arm("PPO, lambda 1", "ppo", {"gae_lambda": 1.0, "gae_lambda_critic": 1.0}),
    "swap_half": Arm("StableReinforce, swap 0.5", "stable_reinforce", {"swap_weight": 0.5}),
    "swap_one": Arm("StableReinforce, swap 1", "stable_reinforce", {"swap_weight": 1.0}),
}


@dataclass(frozen=True)
class Settings:
    """Settings that all trials share; the optimizer is that of the quickstart's RL."""

    num_tokens: int = 60_000  # generated in training by one trial, of whatever is trained on in the end
    rollout_batch_size: int = 256
    batch_size: int = 128
    learning_rate: float = 3e-4
    max_tokens: int = 64
    group: int = 8
    window: int = 16  # a judgment has about 27 tokens
    value_steps: int = 6  # of the critic alone, at most: three rollout batches
    num_test: int = 200  # held-out pairs
    num_votes: int = 2  # of a trained judge on each of them in each order
    num_start_votes: int = 10  # the same of the start
    verify_steps: int = 300  # SFT of PAG's start
    seed: int = 1000  # of all evaluation

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def scaled(recipe: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """Return a recipe's method at the size of the demo: groups, windows, margins, pre-training; not its model or endpoint."""
    method = {name: value for name, value in recipe.items() if name not in ("model", "template", "save_steps", "consistency")}
    if "group_size" in method:
        method["group_size"] = settings.group
    if "window" in method:
        method["window"] = settings.window
    if "overlong_margin" in method:
        method["overlong_margin"] = settings.max_tokens // 4
    if "value_pretrain_steps" in method:
        method["value_pretrain_steps"] = settings.value_steps
    return method


def config_of(trial: Trial, settings: Settings, *, model: str, template: str, configs: Path) -> RLConfig:
    """Return the config of a trial. Its steps are bounded by the budget of tokens, not by ``max_steps``."""
    arm = ARMS[trial.arm]
    values = {
        **scaled(load_yaml(configs / f"{arm.recipe}.yaml"), settings),
        "both_orders": True,
        "model": model,
        "template": template,
        "seed": trial.seed,
        "learning_rate": settings.learning_rate,
        **{"lr_scheduler": "constant", "warmup_ratio": 0.0, "min_lr_ratio": 0.0},  # the budget decays it: ``trials.Budget``
        "adam_beta2": 0.98,
        "rollout_batch_size": settings.rollout_batch_size,
        "batch_size": settings.batch_size,
        "micro_batch_size": min(64, settings.batch_size),
        "max_completion_length": settings.max_tokens,
        "max_steps": 10_000,
        "save_steps": 10_000,
        "gradient_checkpointing": False,
        "consistency": {"weight": 0.0},
        **arm.changes,
    }
    return RLConfig(**values)
