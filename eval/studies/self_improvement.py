"""Does a judge go on improving without a teacher? SFT, RL, its own right judgments (self-distil), SFT again, RL again.

Beside it stands RL alone, on as many generated tokens as the two rounds of RL have and on as many as all stages have, and what
is known to keep rollouts apart: for RL may make a judge surer rather than better, and then a majority of its votes gains less
than one vote did.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from eval.studies.methods import Settings as MethodSettings
from eval.studies.methods import scaled, shared_training
from eval.studies.plans import Trial
from rewardlab.config import RLConfig, SFTConfig, load_yaml


@dataclass(frozen=True)
class Arm:
    """What RL changes of StableReinforce's recipe. ``rounds``: of RL, with self-distillation and SFT between two of them.
    ``budgets``: of a round, each a multiple of ``Settings.num_tokens``; the judge is evaluated at each, the last one ends it.
    ``hot_token``: temperature of the first free token in self-distillation (FIRE). ``vote_weight``: what a right majority of a
    rollout's group is paid besides."""

    title: str
    changes: dict[str, Any] = field(default_factory=dict)
    rounds: int = 1
    budgets: tuple[int, ...] = (1,)
    hot_token: float | None = None
    vote_weight: float = 0.0


ARMS: dict[str, Arm] = {
    "two_rounds": Arm("RL, self-distil, SFT, RL", rounds=2),
    "hot_token": Arm("RL, self-distil with a hot token, SFT, RL", rounds=2, hot_token=2.0),
    "longer": Arm("RL alone", budgets=(1, 2, 6)),  # as many tokens as two rounds of RL, and as those and self-distillation
    "clip_higher": Arm("RL with clip-higher (0.28)", {"clip_high": 0.28}),
    "kl": Arm("RL with KL to SFT (k3, 0.04)", {"kl": "k3_loss", "kl_coef": 0.04}),
    "grouped": Arm("RL in groups of 8", {"group_size": 8}),
    "vote_reward": Arm("RL in groups of 8, majority paid", {"group_size": 8}, vote_weight=1.0),
}


@dataclass(frozen=True)
class Settings:
    """Settings that all trials share. Rejection sampling: ``num_pairs`` pairs, ``samples`` judgments in each order, ``keep``
    right ones a pair; of pairs that are right so often that a guesser would be with a chance of ``alpha`` at most. SFT goes
    ``sft_epochs`` times through what was kept."""

    num_tokens: int = 100_000  # generated in a round of RL
    learning_rate: float = 1e-4  # StableReinforce's best in the method study
    num_pairs: int = 1500
    samples: int = 4
    keep: int = 2
    alpha: float = 0.05
    sft_epochs: int = 2
    sft_rate: float = 3e-4
    num_test: int = 200
    training: MethodSettings = field(default_factory=MethodSettings)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "training": self.training.to_dict()}


def rl_config(arm: str, seed: int, settings: Settings, *, model: str, template: str, configs: Path) -> RLConfig:
    """Return the config of a round of RL: StableReinforce at a constant rate after warm-up, and what the arm changes."""
    values = {
        **scaled(load_yaml(configs / "stable_reinforce.yaml"), settings.training),
        **shared_training(settings.training),
        "lr_scheduler": "constant_with_warmup",
        "warmup_steps": settings.training.warmup_steps,
        "model": model,
        "template": template,
        "seed": seed,
        "learning_rate": settings.learning_rate,
        "max_steps": 100_000,
        **ARMS[arm].changes,
    }
    return RLConfig(**values)


def sft_config(seed: int, settings: Settings, num_judgments: int, *, model: str, template: str) -> SFTConfig:
    """Return the config of SFT on so many judgments of the judge itself."""
    batch_size = min(32, settings.training.rollout_batch_size, max(1, num_judgments))
    return SFTConfig(
        model=model,
        template=template,
        seed=seed,
        learning_rate=settings.sft_rate,
        lr_scheduler="linear",
        max_steps=max(1, settings.sft_epochs * num_judgments // batch_size),
        batch_size=batch_size,
        micro_batch_size=batch_size,
        adam_beta2=0.98,
        save_steps=100_000,
        gradient_checkpointing=False,
    )


def stages_of(arm: str) -> list[str]:
    """Return the names of an arm's stages, in turn; each is made once and kept."""
    rounds = [["rl_1"], *(["distil", "sft", f"rl_{number}"] for number in range(2, ARMS[arm].rounds + 1))]
    return [stage for stages in rounds for stage in stages]


def plan_lines(trials: Sequence[Trial], records: Sequence[dict[str, Any]], workers: int) -> str:
    """Return the plan in words: trials done and to do, and how long the rest takes by those that are done."""
    done = {(record["arm"], record["seed"]): float(record["cpu_s"]) for record in records}
    left = [trial for trial in trials if (trial.arm, trial.seed) not in done]
    rounds = {arm: of.rounds * of.budgets[-1] for arm, of in ARMS.items()}
    lines = [
        f"{arm:14} {sum(t.arm == arm and t not in left for t in trials)} of {sum(t.arm == arm for t in trials)}" for arm in ARMS
    ]
    text = f"{len(trials) - len(left)} of {len(trials)} trials are done"
    if not done:
        return "\n".join([*lines, f"{text}; how long the rest takes is known once a trial is done"])
    cost = sum(done.values()) / sum(rounds[arm] for arm, _ in done)  # CPU seconds of a round
    seconds = cost * sum(rounds[trial.arm] for trial in left)
    spent = f"{text}, in {sum(done.values()):,.0f} CPU seconds"
    return "\n".join([*lines, f"{spent}; about {seconds / workers / 60:.0f} minutes are left with {workers} workers"])
