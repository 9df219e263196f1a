"""Does StableReinforce still matter when the actor sees? The plan: arms, settings, trials and the rule of collapse.

R1-Reward (arXiv 2505.02835) reports that REINFORCE++ collapses when judges are trained, and that the log-ratio pre-clip and
the 3-sigma filter of advantages cure it; in its released code the actor is blind and the filter has wrong bounds. Here all
methods start from one judge that has been through RL, on pairs that it mostly gets right (a late batch: failures are rare
and their whitened advantages large), with several updates per rollout batch (off-policy: ratios leave 1).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from eval.studies.faults import delete_around_raw_mean, hide_images
from rewardlab.config import RLConfig
from rewardlab.errors import ConfigError

COLLAPSE = 0.10  # a trial has collapsed whose accuracy ends more than this below the start


@dataclass(frozen=True)
class Arm:
    """A method: what it changes of RLConfig's defaults, which are StableReinforce, and of the trainer's parts."""

    title: str
    method: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, Any] = field(default_factory=dict)


PLAIN: dict[str, Any] = {"outliers": "keep", "preclip": None}
BLIND: dict[str, Any] = {"image_fields": hide_images}

ARMS: dict[str, Arm] = {
    "reinforce_pp": Arm("REINFORCE++", PLAIN),
    "preclip": Arm("+ pre-clip", {"outliers": "keep"}),
    "filter": Arm("+ filter", {"preclip": None}),
    "stable_reinforce": Arm("StableReinforce: + both"),
    "raw_mean_filter": Arm("pre-clip + filter around the raw mean", {"outliers": "keep"}, {"outliers": delete_around_raw_mean}),
    "preclip_clip": Arm("pre-clip + outliers clipped", {"outliers": "clip"}),
    "dual_clip": Arm("REINFORCE++ with dual-clip 3", {**PLAIN, "dual_clip": 3.0}),
    "grpo": Arm("GRPO, groups of 8", {"advantage": "grpo", "group_size": 8, "preclip": None}),
    "blind_stable_reinforce": Arm("StableReinforce, blind actor", {}, BLIND),
    "blind_reinforce_pp": Arm("REINFORCE++, blind actor", PLAIN, BLIND),
}

# The optimizer as in the quickstart's RL. Consistency is not rewarded: it would need its endpoint.
TRAINING: dict[str, Any] = {
    "lr_scheduler": "linear",
    "warmup_steps": 5,
    "adam_beta2": 0.98,
    "gradient_checkpointing": False,
    "consistency": {"weight": 0.0},
}


@dataclass(frozen=True)
class Settings:
    """Settings that all trials share. Eight optimizer steps per rollout batch: four minibatches, twice."""

    rollout_batches: int = 5
    rollout_batch_size: int = 128
    batch_size: int = 32
    iterations: int = 2
    max_tokens: int = 64
    num_candidates: int = 700  # training pairs, of which the judge's own draws choose
    num_draws: int = 4  # of each candidate in each order
    keep_from: float = 0.75  # share of its draws that are right, from which a pair is kept
    num_test: int = 200  # held-out pairs
    num_votes: int = 2  # of a trained judge on each of them in each order
    num_start_votes: int = 10  # the same of the judge that all trials start from
    seed: int = 1000  # of the choice of pairs and of all evaluation

    @property
    def period(self) -> int:
        """Optimizer steps per rollout batch."""
        return self.rollout_batch_size // self.batch_size * self.iterations

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, order=True)
class Trial:
    """One training run. Ordered by seed first, so that a study that was stopped has whole seeds."""

    seed: int
    learning_rate: float
    arm: str

    @property
    def name(self) -> str:
        return f"{self.arm}-{self.learning_rate:g}-{self.seed}"


def plan(arms: tuple[str, ...], learning_rates: tuple[float, ...], seeds: tuple[int, ...]) -> list[Trial]:
    """Return every arm at every rate with every seed, seed by seed. Raise ConfigError for an unknown arm or an empty plan."""
    if unknown := [arm for arm in arms if arm not in ARMS]:
        raise ConfigError(f"unknown arm {', '.join(unknown)}; expected some of {', '.join(ARMS)}")
    trials = [Trial(seed, rate, arm) for seed in seeds for rate in learning_rates for arm in arms]
    if not trials:
        raise ConfigError("a study needs at least one arm, one learning rate and one seed")
    return trials


def config_of(trial: Trial, settings: Settings, *, model: str, template: str) -> RLConfig:
    """Return the config of a trial: nothing but the arm's method, the rate and the seed differs between two of them."""
    return RLConfig(
        model=model,
        template=template,
        learning_rate=trial.learning_rate,
        seed=trial.seed,
        max_steps=settings.rollout_batches * settings.period,
        rollout_batch_size=settings.rollout_batch_size,
        batch_size=settings.batch_size,
        micro_batch_size=settings.batch_size,
        iterations=settings.iterations,
        max_completion_length=settings.max_tokens,
        save_steps=settings.period,
        **TRAINING,
        **ARMS[trial.arm].method,
    )


def has_collapsed(record: dict[str, Any], start: float) -> bool:
    """Return whether a trial ended with non-finite numbers, or with an accuracy more than ``COLLAPSE`` below ``start``."""
    return record["status"] != "finished" or record["accuracy"] < start - COLLAPSE
