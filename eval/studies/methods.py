"""Which method makes a judge better? ``python -m eval.studies methods``

One judge after SFT, the same pairs, two budgets of generated tokens, several seeds. Every method is its recipe of
``configs/rl/``, scaled to the demonstration by :func:`scaled`; all share an optimizer and a reward (format and result;
consistency is measured, and rewarded in one arm). Each runs at the learning rate of ``Settings.rates`` that is best on the
validation pairs, at the smaller budget and with a seed that is not the study's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from eval.studies.study import Trial
from rewardlab.config import DPOConfig, RLConfig, find_config, load_yaml

VALIDATION_SEED = 100  # of the trials that choose a rate; seeds of the study are below it


@dataclass(frozen=True)
class Arm:
    """A recipe of ``configs/rl/``, or ``dpo/`` and one of that folder, and the arm's changes to it.

    ``consistency``: the demonstration's checker is queried and its answer rewarded. ``rate_of``: the arm whose rate this one
    takes, because it differs from that arm in one part. ``fit_steps``: the steps for which its critic is fitted, if not
    :attr:`Settings.value_steps`. ``start``: the checkpoint that it trains: the quickstart's ``sft`` or
    ``base``, or one that the study makes. ``on_votes``: its
    pairs are those that some of the start's own votes judge right and some wrong, whatever their tags. ``against``: the arm
    that it is compared with. ``keep``: its last judge stays in ``OUT/kept``. ``process``: what a model of step labels is in its
    config, ``process_reward`` or ``value_init``. ``checks``: the weight of a reward for checks with the right finding."""

    title: str
    recipe: str
    changes: dict[str, Any] = field(default_factory=dict)
    consistency: bool = False
    rate_of: str = ""
    fit_steps: int | None = None
    start: str = "sft"
    on_votes: bool = False
    against: str = "stable_reinforce"
    keep: bool = False
    process: str = ""
    checks: float = 0.0

    @property
    def is_preference(self) -> bool:
        """Whether it learns from right and wrong votes of the start instead of by RL."""
        return self.recipe.startswith("dpo/")

    @property
    def is_fitted(self) -> bool:
        """Whether it has a critic that is fitted first."""
        return self.recipe in FITTED and self.fit_steps != 0


@dataclass(frozen=True)
class Settings:
    """Settings that all trials share; the optimizer is that of the quickstart's RL."""

    budgets: tuple[int, ...] = (60_000, 300_000)  # tokens generated in training by one trial
    most_steps: int | None = None  # a trial ends here too: judgments that shrink never use up their tokens
    rates: tuple[float, ...] = (3e-5, 1e-4, 3e-4)
    warmup_steps: int = 5  # then the rate is constant: at the smaller budget a trial is one of that budget
    rollout_batch_size: int = 256
    batch_size: int = 128
    micro_batch_tokens: int | None = None  # positions of a pass; rollouts of very different lengths are mostly padding without
    max_tokens: int = 64
    group: int = 8
    window: int = 16  # a judgment has about 27 tokens
    value_steps: int = 320  # of the critic alone, at most; outside the budgets
    value_batch_size: int = 32  # of these steps: small ones fit a critic in fewer rollouts
    value_learning_rate: float = 1e-3
    num_validation: int = 200  # pairs of another split than the test pairs, judged in both orders
    num_test: int = 300
    num_votes: int = 2  # sampled judgments of each in each order, besides a greedy one
    num_vote_pairs: int = 100  # pairs of vote@15: 15 judgments of each in each order
    num_unlike: int = 200  # pairs of the unlike test set, if there is one
    verify_pairs: int = 4000  # whose votes teach PAG's start
    verify_votes: int = 4  # of each: right and wrong votes on one pair teach more than easy and hard pairs
    verify_steps: int = 600  # SFT of PAG's start
    verify_learning_rate: float = 1e-3
    verify_max_tokens: int = 96  # of a turn of PAG: a verification is a sentence longer than a judgment
    verify_value_patience: int = 5  # PAG's critic reaches its plateau after ten batches, which are expensive
    consistency_weight: float = 0.5
    seed: int = 1000  # of all evaluation


PREFERENCE_RATES = (1e-5, 3e-5, 1e-4)  # of preference optimisation: at 3e-4 it forgets how to judge
BASE = "stable_reinforce"  # what all arms are compared with
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
    "pag_of_its_authors": Arm(
        "PAG as its authors ran it",
        "pag",
        {"gae_lambda": 1.0, "gae_lambda_critic": 1.0, "batch_size": Settings.rollout_batch_size},
        fit_steps=0,
    ),
    "starved_vc_ppo": Arm("VC-PPO, critic of 6 steps", "vc_ppo", rate_of="vc_ppo", fit_steps=6),
    "dapo": Arm("DAPO", "dapo"),
    "rloo": Arm("RLOO", "rloo"),
    "reinforce_pp": Arm("REINFORCE++", "reinforce_pp"),
    "reinforce_pp_baseline": Arm("REINFORCE++-baseline", "reinforce_pp_baseline"),
    "dr_grpo": Arm("Dr. GRPO", "dr_grpo"),
    "ppo_lambda_1": Arm("PPO, lambda 1", "ppo", {"gae_lambda": 1.0, "gae_lambda_critic": 1.0}),
    "no_parts": Arm("StableReinforce without filter and pre-clip", "stable_reinforce", {"outliers": "keep", "preclip": None}),
    "no_filter": Arm("StableReinforce without filter", "stable_reinforce", {"outliers": "keep"}, rate_of="stable_reinforce"),
    "no_preclip": Arm("StableReinforce without pre-clip", "stable_reinforce", {"preclip": None}, rate_of="stable_reinforce"),
    "dpo": Arm("DPO", "dpo/dpo"),
    "simpo": Arm("SimPO", "dpo/simpo"),
    "mpo": Arm("MPO", "dpo/mpo"),
    "right_votes": Arm("SFT on right votes", "dpo/dpo", {"losses": {"sft": 1.0}}),
    "consistency": Arm(
        "StableReinforce with the consistency reward", "stable_reinforce", consistency=True, rate_of="stable_reinforce"
    ),
}


def validation_plan(arms: Sequence[str], settings: Settings) -> list[Trial]:
    """Return the trials that choose the rates, arm by arm."""
    return [Trial(VALIDATION_SEED, arm, rate) for arm in validated(arms) for rate in rates_of(arm, settings.rates)]


def rates_of(arm: str, rates: Sequence[float]) -> Sequence[float]:
    """Return the rates that an arm is tried at: ``rates``, or those of preference optimisation."""
    return PREFERENCE_RATES if ARMS[arm].is_preference else rates


def validated(arms: Sequence[str]) -> list[str]:
    """Return the arms whose rates decide those of ``arms``, each once."""
    return list(dict.fromkeys(ARMS[arm].rate_of or arm for arm in arms))


def study_plan(rates: Mapping[str, float], num_seeds: int) -> list[Trial]:
    """Return the trials of the table, seed by seed, each arm at its rate."""
    return [Trial(seed, arm, rate) for seed in range(num_seeds) for arm, rate in rates.items()]


def choose_rates(records: Sequence[Mapping[str, Any]], arms: Sequence[str], rates: Sequence[float]) -> dict[str, float]:
    """Return, for each arm that was validated at all ``rates``, the rate with the highest sampled accuracy (the lowest of equal
    ones)."""
    tried = [record for record in records if record["seed"] >= VALIDATION_SEED]
    best: dict[str, float] = {}
    for arm in arms:
        decides = ARMS[arm].rate_of or arm
        scores = {r["learning_rate"]: float(r["budgets"][0]["accuracy"]) for r in tried if r["arm"] == decides}
        if set(rates_of(decides, rates)) <= scores.keys():
            best[arm] = max(sorted(rates_of(decides, rates)), key=scores.__getitem__)
    return best


def scaled(recipe: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """Return a recipe's method at the size of the demonstration: groups, windows, margins; without its model, its endpoint and
    its critic's pre-training, which is a part of its own here."""
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
    """Return what all trainings of the study share. The budget of tokens bounds their steps."""
    return {
        "both_orders": True,
        "warmup_ratio": 0.0,
        "min_lr_ratio": 0.0,
        "adam_beta2": 0.98,
        "rollout_batch_size": settings.rollout_batch_size,
        "batch_size": settings.batch_size,
        "micro_batch_size": min(64, settings.batch_size),
        "micro_batch_tokens": settings.micro_batch_tokens,
        "max_completion_length": settings.max_tokens,
        "save_steps": 10_000,
        "gradient_checkpointing": False,
        "consistency": {"weight": 0.0},
        "health": {"policy": "warn"},  # its events are in the trial's record
    }


def config_of(arm: Arm, trial: Trial, settings: Settings, *, model: str, template: str) -> RLConfig:
    """Return the config of a trial of an arm. The ratio of critic's and policy's rate is the recipe's."""
    rate = trial.learning_rate or 0.0
    method = scaled(load_yaml(find_config(f"rl/{arm.recipe}")), settings)
    if (value_rate := method.pop("value_learning_rate", None)) is not None:
        default = RLConfig.model_fields["learning_rate"].default
        method["value_learning_rate"] = rate * value_rate / method.get("learning_rate", default)
    schedule = {"lr_scheduler": "constant_with_warmup", "warmup_steps": settings.warmup_steps}
    values = {
        **method,
        **shared_training(settings),
        **(schedule if settings.warmup_steps else {"lr_scheduler": "constant"}),
        "model": model,
        "template": template,
        "seed": trial.seed,
        "learning_rate": rate,
        "max_steps": 100_000,
        **turn_length(arm.recipe, settings),
        **arm.changes,
    }
    return RLConfig(**values)


def preference_config(arm: Arm, trial: Trial, settings: Settings, *, model: str, template: str) -> DPOConfig:
    """Return the config of a trial of preference optimisation; its steps end with its time."""
    recipe = load_yaml(find_config(arm.recipe))
    names = ("adam_beta2", "batch_size", "micro_batch_size", "save_steps", "gradient_checkpointing")
    values = {
        **{name: value for name, value in recipe.items() if name != "warmup_ratio"},
        **{name: value for name, value in shared_training(settings).items() if name in names},
        "lr_scheduler": "constant_with_warmup",
        "warmup_steps": settings.warmup_steps,
        "model": model,
        "template": template,
        "seed": trial.seed,
        "learning_rate": trial.learning_rate,
        "max_steps": 100_000,
        "comparisons_per_order": settings.group,
    }
    return DPOConfig(**values).model_copy(update=arm.changes)  # `rewardlab dpo` refuses to learn from right votes alone


def turn_length(recipe: str, settings: Settings) -> dict[str, Any]:
    """Return the length of a turn, if it is not that of a judgment."""
    return {"max_completion_length": settings.verify_max_tokens} if recipe == "pag" else {}


def critic_config(recipe: str, seed: int, settings: Settings, *, num_steps: int, model: str, template: str) -> RLConfig:
    """Return the config of a critic's fit to rollouts of the start for at most ``num_steps``; ``recipe`` is VC-PPO's or PAG's.

    The target of a critic that is fitted to a fixed policy is the whole return of a rollout. So PPO, VC-PPO, VAPO and T-PPO
    share one critic per seed; PAG has other rollouts.
    """
    values = {
        **scaled(load_yaml(find_config(f"rl/{recipe}")), settings),
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
