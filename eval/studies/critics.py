"""What measurements of critics share: the demonstration's judge after SFT, trainers of critics and policies on its pairs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import PrinterCallback, TrainerCallback

from rewardlab.config import RLConfig, load_yaml
from rewardlab.data.pairs import read_pairs
from rewardlab.errors import ConfigError
from rewardlab.models.checkpoints import commit, load_template_for
from rewardlab.models.loading import load_model
from rewardlab.training.policy_gradient.critic import critic_config
from rewardlab.training.policy_gradient.trainer import PolicyTrainer
from rewardlab.training.rl import build_trainer, hard_pairs, rl_rows
from rewardlab.training.run.folder import FINAL, is_finished

CONFIGS = Path(__file__).parents[2] / "configs" / "rl"
SIZES: dict[str, Any] = {  # those of the quickstart's RL
    "learning_rate": 3e-4,
    "value_learning_rate": 1e-3,
    "lr_scheduler": "constant",
    "adam_beta2": 0.98,
    "rollout_batch_size": 256,
    "batch_size": 128,
    "micro_batch_size": 64,
    "max_completion_length": 64,
    "save_steps": 10_000,
    "gradient_checkpointing": False,
    "consistency": {"weight": 0.0},
}


class CriticLab:
    """The judge, its pairs and its template; every trainer gets its own copy of the weights."""

    def __init__(self, run: Path) -> None:
        """Raise ConfigError where ``run`` has no judge after SFT, as the first stages of `rewardlab quickstart` leave it."""
        self.judge, train = run / "sft" / FINAL, run / "distill" / "distilled.parquet"
        if not is_finished(run / "sft") or not train.exists():
            raise ConfigError(f"{run}: holds no judge after SFT; make one with `rewardlab quickstart --out {run}`")
        self.template = load_template_for(str(self.judge), None)
        self.pairs = read_pairs(train)
        self.commit = commit()

    def config(self, recipe: str, seed: int, **changes: Any) -> RLConfig:
        """Return a recipe of ``configs/rl/`` at the size of the demonstration."""
        method = {name: value for name, value in load_yaml(CONFIGS / f"{recipe}.yaml").items() if name not in SIZES}
        method |= {"group_size": 8} if "group_size" in method else {}
        method |= {"window": 16} if "window" in method else {}
        shared = {**SIZES, "model": str(self.judge), "template": self.template.name, "seed": seed}
        return RLConfig(**{**method, **shared, **changes})

    def fit_config(self, recipe: str, seed: int, **changes: Any) -> RLConfig:
        """Return the config of the fit of a recipe's critic."""
        return critic_config(self.config(recipe, seed, **changes))

    def trainer(self, config: RLConfig, folder: Path, **more: Any) -> PolicyTrainer:
        """Return a trainer that leaves only samples in ``folder``."""
        folder.mkdir(parents=True, exist_ok=True)
        model, processor = load_model(str(self.judge), device="cpu")
        rows = rl_rows(hard_pairs(self.pairs, config), self.template, both_orders=True)
        arguments = {"save_strategy": "no"}
        trainer = build_trainer(rows, config, model, processor, self.template, folder, trl=arguments, **more)
        trainer.remove_callback(PrinterCallback)
        return trainer


class Clock(TrainerCallback):
    """Keeps the CPU seconds of this process at every log, since it was made."""

    def __init__(self) -> None:
        self._start = time.process_time()
        self.seconds: list[float] = []

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.seconds.append(round(time.process_time() - self._start, 2))


def logged(trainer: PolicyTrainer, clock: Clock) -> list[Mapping[str, float]]:
    """Return the numbers of every log of a training run, with the CPU seconds until then."""
    rows = [row for row in trainer.state.log_history if "loss" in row]
    return [
        {name: round(float(value), 6) for name, value in row.items() if isinstance(value, int | float)} | {"cpu_s": seconds}
        for row, seconds in zip(rows, clock.seconds, strict=False)
    ]
