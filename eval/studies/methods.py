"""Which method makes a judge better? One judge after SFT, the same pairs, two budgets of generated tokens, several seeds.

Every method is its recipe of ``configs/rl/``, scaled to the demo as said in ``scaled``; all have one optimizer and one reward
(format and result; consistency is measured, and paid in one arm). Each is run at the learning rate of ``Settings.rates`` that
is best on the validation pairs, at the smaller budget and with a seed that is not the study's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rewardlab.config import RLConfig, load_yaml
from rewardlab.errors import ConfigError

VALIDATION_SEED = 100  # of the trials that a rate is chosen by; seeds of the study are below it


@dataclass(frozen=True)
class Oracle:
    """Values in a critic's place: the mean reward of ``completions`` of every ``stride``-th prefix, by the policy as it is."""

    completions: int = 8
    stride: int = 4


@dataclass(frozen=True)
class Arm:
    """A recipe, and what the arm changes of it. ``consistency``: the demo's checker is asked, and its answer paid. ``rate_of``:
    the arm that it has the rate of, where none is chosen for it: it differs from that in one part. ``fit_steps``: the steps for
    which its critic is fitted, where they are not :attr:`Settings.value_steps`. ``oracle``: it has no critic. Its values cost
    some thirty times the tokens of its rollouts, so that it ends at the smallest budget. Not for windows, nor for dialogues."""

    title: str
    recipe: str
    changes: dict[str, Any] = field(default_factory=dict)
    consistency: bool = False
    rate_of: str = ""
    fit_steps: int | None = None
    oracle: Oracle | None = None

    @property
    def is_fitted(self) -> bool:
        """Whether it has a critic, which is fitted before."""
        return self.recipe in FITTED and self.oracle is None


FITTED = ("ppo", "vc_ppo", "vapo", "t_ppo", "pag")  # recipes with a critic

# In the order of trials: those that matter most are first.
ARMS: dict[str, Arm] = {
    "stable_reinforce": Arm("StableReinforce", "stable_reinforce"),
    "vc_ppo": Arm("VC-PPO", "vc_ppo"),
    "vapo": Arm("VAPO", "vapo"),
    "grpo": Arm("GRPO", "grpo"),
    "ppo": Arm("PPO, lambda 0.95", "ppo"),
    "t_ppo": Arm("T-PPO", "t_ppo"),
    "pag": Arm("PAG, last judgment", "pag"),
    "starved_vc_ppo": Arm("VC-PPO, critic of 6 steps", "vc_ppo", rate_of="vc_ppo", fit_steps=6),
    "oracle_ppo": Arm("PPO, lambda 0.95, no critic but completions", "ppo", rate_of="ppo", oracle=Oracle()),
    "oracle_vc_ppo": Arm("VC-PPO, no critic but completions", "vc_ppo", rate_of="vc_ppo", oracle=Oracle()),
    "oracle_vapo": Arm("VAPO, no critic but completions", "vapo", rate_of="vapo", oracle=Oracle()),
    "dapo": Arm("DAPO", "dapo"),
    "rloo": Arm("RLOO", "rloo"),
    "reinforce_pp": Arm("REINFORCE++", "reinforce_pp"),
    "reinforce_pp_baseline": Arm("REINFORCE++-baseline", "reinforce_pp_baseline"),
    "dr_grpo": Arm("Dr. GRPO", "dr_grpo"),
    "ppo_lambda_1": Arm("PPO, lambda 1", "ppo", {"gae_lambda": 1.0, "gae_lambda_critic": 1.0}),
    "no_parts": Arm("StableReinforce without filter and pre-clip", "stable_reinforce", {"outliers": "keep", "preclip": None}),
    "no_filter": Arm("StableReinforce without filter", "stable_reinforce", {"outliers": "keep"}, rate_of="stable_reinforce"),
    "no_preclip": Arm("StableReinforce without pre-clip", "stable_reinforce", {"preclip": None}, rate_of="stable_reinforce"),
    "consistency": Arm(
        "StableReinforce with the consistency reward", "stable_reinforce", consistency=True, rate_of="stable_reinforce"
    ),
}


@dataclass(frozen=True)
class Settings:
    """Settings that all trials share; the optimizer is that of the quickstart's RL."""

    budgets: tuple[int, ...] = (60_000, 300_000)  # generated in training by one trial, of whatever is trained on in the end
    rates: tuple[float, ...] = (3e-5, 1e-4, 3e-4)
    warmup_steps: int = 5  # then the rate is constant, so that a trial at the smaller budget is one of that budget
    rollout_batch_size: int = 256
    batch_size: int = 128
    max_tokens: int = 64
    group: int = 8
    window: int = 16  # a judgment has about 27 tokens
    value_steps: int = 320  # of the critic alone, at most; no part of the budgets
    value_batch_size: int = 32  # of these steps: small ones fit a critic in fewer rollouts
    value_learning_rate: float = 1e-3
    num_validation: int = 200  # pairs of another split than the test pairs, judged in both orders
    num_test: int = 300
    num_votes: int = 2  # sampled judgments of each of them in each order; and a greedy one
    num_vote_pairs: int = 100  # pairs of vote@15: 15 judgments of each in each order
    num_unlike: int = 200  # pairs of the unlike test set, where the world has one
    verify_pairs: int = 4000  # whose votes PAG's start is taught with
    verify_votes: int = 4  # of each of them: right and wrong votes on one pair tell more than those on easy and hard pairs
    verify_steps: int = 600  # SFT of PAG's start
    verify_learning_rate: float = 1e-3
    verify_max_tokens: int = 96  # of a turn of PAG: a verification is a judgment's reasoning and a sentence more
    verify_value_patience: int = 5  # PAG's critic is at its plateau after some ten batches; three turns make one dear
    consistency_weight: float = 0.5
    seed: int = 1000  # of all evaluation

    def to_dict(self) -> dict[str, Any]:
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}


@dataclass(frozen=True)
class MethodTrial:
    """One training run; with :data:`VALIDATION_SEED` or a seed above it, one that a rate is chosen by."""

    arm: str
    learning_rate: float
    seed: int

    @property
    def name(self) -> str:
        return f"{self.arm}-{self.learning_rate:g}-{self.seed}"

    @property
    def is_validation(self) -> bool:
        return self.seed >= VALIDATION_SEED


def budgets_of(arm: str, settings: Settings) -> tuple[int, ...]:
    """Return the budgets that the trials of an arm are evaluated at."""
    return settings.budgets[:1] if ARMS[arm].oracle else settings.budgets


def check_arms(arms: Sequence[str], known: Collection[str] = ARMS) -> None:
    """Raise ConfigError for an arm that is not ``known``, or for none."""
    if unknown := [arm for arm in arms if arm not in known]:
        raise ConfigError(f"unknown arm {', '.join(unknown)}; expected some of {', '.join(known)}")
    if not arms:
        raise ConfigError("a study needs at least one arm")


def validation_plan(arms: Sequence[str], settings: Settings) -> list[MethodTrial]:
    """Return the trials by which rates are chosen: arm by arm, so that an arm is decided early."""
    return [MethodTrial(arm, rate, VALIDATION_SEED) for arm in validated(arms) for rate in settings.rates]


def validated(arms: Sequence[str]) -> list[str]:
    """Return the arms whose rates decide those of ``arms``, each once."""
    return list(dict.fromkeys(ARMS[arm].rate_of or arm for arm in arms))


def study_plan(rates: Mapping[str, float], num_seeds: int) -> list[MethodTrial]:
    """Return the trials of the table, seed by seed, each arm at its rate: a study that was stopped has whole seeds."""
    return [MethodTrial(arm, rate, seed) for seed in range(num_seeds) for arm, rate in rates.items()]


def choose_rates(records: Sequence[Mapping[str, Any]], arms: Sequence[str], rates: Sequence[float]) -> dict[str, float]:
    """Return, of the arms that were validated at all ``rates``, the one with the highest sampled accuracy (of equals the
    lowest)."""
    tried = [record for record in records if record["seed"] >= VALIDATION_SEED]
    best: dict[str, float] = {}
    for arm in arms:
        decides = ARMS[arm].rate_of or arm
        scores = {r["learning_rate"]: float(r["budgets"][0]["accuracy"]) for r in tried if r["arm"] == decides}
        if set(rates) <= scores.keys():
            best[arm] = max(sorted(rates), key=scores.__getitem__)
    return best


def scaled(recipe: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """Return a recipe's method at the size of the demo: groups, windows, margins. Not its model or endpoint, and nothing of its
    critic's pre-training, which the study does apart."""
    left_out = ("model", "template", "save_steps", "consistency", "value_pretrain_steps", "value_patience", "evaluation")
    method = {name: value for name, value in recipe.items() if name not in left_out}
    if "group_size" in method:
        method["group_size"] = settings.group
    if "window_tail" in method:
        method["window_tail"] = max(1, method["window_tail"] * settings.window // method["window"])
    if "window" in method:
        method["window"] = settings.window
    if "overlong_margin" in method:
        method["overlong_margin"] = settings.max_tokens // 4
    return method


def shared_training(settings: Settings) -> dict[str, Any]:
    """Return what all trainings of the study have in common. Their steps are bounded by the budget of tokens."""
    return {
        "both_orders": True,
        "warmup_ratio": 0.0,
        "min_lr_ratio": 0.0,
        "adam_beta2": 0.98,
        "rollout_batch_size": settings.rollout_batch_size,
        "batch_size": settings.batch_size,
        "micro_batch_size": min(64, settings.batch_size),
        "max_completion_length": settings.max_tokens,
        "save_steps": 10_000,
        "gradient_checkpointing": False,
        "consistency": {"weight": 0.0},
        "health": {"policy": "warn"},  # what it saw is in the trial's record
    }


def config_of(trial: MethodTrial, settings: Settings, *, model: str, template: str, configs: Path) -> RLConfig:
    """Return the config of a trial. A critic's rate is as many times the policy's as in the recipe."""
    arm = ARMS[trial.arm]
    method = scaled(load_yaml(configs / f"{arm.recipe}.yaml"), settings)
    if (value_rate := method.pop("value_learning_rate", None)) is not None:
        default = RLConfig.model_fields["learning_rate"].default
        method["value_learning_rate"] = trial.learning_rate * value_rate / method.get("learning_rate", default)
    schedule = {"lr_scheduler": "constant_with_warmup", "warmup_steps": settings.warmup_steps}
    values = {
        **method,
        **shared_training(settings),
        **(schedule if settings.warmup_steps else {"lr_scheduler": "constant"}),
        "model": model,
        "template": template,
        "seed": trial.seed,
        "learning_rate": trial.learning_rate,
        "max_steps": 100_000,
        **turn_length(arm.recipe, settings),
        **arm.changes,
    }
    return RLConfig(**values)


def turn_length(recipe: str, settings: Settings) -> dict[str, Any]:
    """Return the longest turn where that is not the longest judgment."""
    return {"max_completion_length": settings.verify_max_tokens} if recipe == "pag" else {}


def critic_config(
    recipe: str, seed: int, settings: Settings, *, num_steps: int, model: str, template: str, configs: Path
) -> RLConfig:
    """Return the config of a critic's fit to rollouts of the start for at most ``num_steps``; ``recipe`` is VC-PPO's or PAG's.

    The whole return of a rollout is the target of all critics that are fitted to a policy that stays as it is, so that PPO,
    VC-PPO, VAPO and T-PPO begin with one critic a seed; PAG's rollouts are others.
    """
    values = {
        **scaled(load_yaml(configs / f"{recipe}.yaml"), settings),
        **shared_training(settings),
        "model": model,
        "template": template,
        "seed": seed,
        "learning_rate": settings.value_learning_rate,  # of a policy that does not move
        "value_learning_rate": settings.value_learning_rate,
        "value_pretrain_steps": num_steps,
        "value_pretrain_batch_size": settings.value_batch_size,
        "gae_lambda_critic": 1.0,
        **turn_length(recipe, settings),
        **({"value_patience": settings.verify_value_patience} if recipe == "pag" else {}),
    }
    return RLConfig(**values)


def facts_of(config: RLConfig) -> dict[str, Any]:
    """Return what of a config two trials of an arm must share: all but rate, seed, the folders of this machine, and the
    watchdog, which only warns. Defaults too: a record does not count once the code has another one."""
    left_out = {"model", "value_init", "seed", "learning_rate", "value_learning_rate", "health"}
    return config.model_dump(mode="json", exclude=left_out)
