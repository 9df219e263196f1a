"""What does a judge make of a policy? ``python -m eval.studies policy``

The policy's half of Pairwise-RL (arXiv 2504.04950) in the demonstration: questions about images whose answer is known. A policy
that is right about half the time is rewarded by a judge, a scalar head, or the truth. All arms share the start, the rate and
the questions. Two arms compare Pairwise-RL's own PPO, with a critic fitted first, with REINFORCE++-baseline of all others.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval.studies.study import Trial
from rewardlab.config import PolicyConfig, RMConfig, SFTConfig, find_config, load_yaml


@dataclass(frozen=True)
class Arm:
    """``judge``: pairwise (the quickstart's judge after RL, by verdict probabilities), hardened (the first of --hardened),
    least (the lowest reward of all of --hardened), scalar, likelihood (of an answer, under a model that learnt to answer) or
    truth.

    ``kl_coef`` weighs the divergence from the start in the loss (k2), the usual defence of a reward. ``ppo``: the method of
    ``configs/policy/pairwise_rl.yaml``. ``pairs``: the questions of training, all, those about digits or scenes, or the hard
    ones, which the start does not always answer right; ``first``: those of the first half of the steps. ``digits``: another
    reward for questions about digits, truth or words (their number), and ``digits_kl`` their own coefficient.
    """

    title: str
    judge: str
    anchor: str = "preferred"
    kl_coef: float = 0.0
    ppo: bool = False
    pairs: str = "all"
    first: str = ""
    digits: str = ""
    digits_kl: float | None = None


ARMS: dict[str, Arm] = {
    "truth": Arm("the truth", "truth"),
    "right_answer": Arm("judge, against the right answer", "pairwise"),
    "right_answer_kl": Arm("the same, held near the start (KL 0.1)", "pairwise", kl_coef=0.1),
    "right_answer_kl_1": Arm("the same, held nearer (KL 1)", "pairwise", kl_coef=1.0),
    "hardened": Arm("hardened judge, against the right answer", "hardened"),
    "least_of_several": Arm("the least of several judges, against the right answer", "least"),
    "first_policy": Arm("judge, against the first policy's answer", "pairwise", "start"),
    "first_policy_kl": Arm("the same, held near the start (KL 0.1)", "pairwise", "start", kl_coef=0.1),
    "best_of_four": Arm("judge, against the first policy's best of four", "pairwise", "best"),
    "best_of_four_kl": Arm("the same, held near the start (KL 0.1)", "pairwise", "best", kl_coef=0.1),
    "truth_kl": Arm("the truth, held near the start (KL 0.1)", "truth", kl_coef=0.1),
    "group": Arm("judge, within the group", "pairwise", "group"),
    # Two kinds of questions: a rule for digits, the judge for scenes.
    "mixed": Arm("digits by the truth, scenes by the judge (KL 0.1)", "pairwise", kl_coef=0.1, digits="truth"),
    "mixed_kl_by_kind": Arm("the same, no KL term for digits", "pairwise", kl_coef=0.1, digits="truth", digits_kl=0.0),
    "mixed_broken": Arm("digits by the number of words, scenes by the judge (KL 0.1)", "pairwise", kl_coef=0.1, digits="words"),
    "mixed_broken_free": Arm("the same, no KL term for digits", "pairwise", kl_coef=0.1, digits="words", digits_kl=0.0),
    "scenes": Arm("scenes alone, by the judge (KL 0.1)", "pairwise", kl_coef=0.1, pairs="scenes"),
    "digits": Arm("digits alone, by the truth (KL 0.1)", "truth", kl_coef=0.1, pairs="digits"),
    # Which questions, and in which order.
    "hard": Arm("the truth, on hard questions", "truth", pairs="hard"),
    "two_halves": Arm("the truth, in two halves", "truth", first="all"),
    "digits_first": Arm("the truth, digits in the first half", "truth", first="digits"),
    "scalar": Arm("Bradley-Terry scalar head", "scalar"),
    "scalar_kl": Arm("Bradley-Terry scalar head (KL 0.1)", "scalar", kl_coef=0.1),
    "likelihood": Arm("the likelihood under a model that learnt to answer", "likelihood"),
    "truth_ppo": Arm("the truth, by Pairwise-RL's PPO", "truth", ppo=True),
    "right_answer_kl_ppo": Arm(
        "judge, against the right answer (KL 0.1), by Pairwise-RL's PPO", "pairwise", kl_coef=0.1, ppo=True
    ),
}


@dataclass(frozen=True)
class Settings:
    """Settings that all trials share."""

    steps: int = 80  # of the optimizer, one per rollout batch
    rollout_batch_size: int = 128
    group: int = 4
    learning_rate: float = 3e-4
    value_learning_rate: float = 1e-3
    value_steps: int = 100  # of the critic alone, at most
    max_tokens: int = 24  # of an answer
    judge_tokens: int = 64
    start_steps: int = 400  # of SFT on the answers of pairs: the start of all arms
    start_right: float = 0.8  # fraction of right answers among them
    scalar_steps: int = 400  # of the scalar head; the calibration study chose its rate
    scalar_rate: float = 2e-4
    likelihood_steps: int = 1000  # from the base model: its score is read from what it knows, not from a new head
    likelihood_rate: float = 1e-3
    num_test: int = 400  # held-out questions
    test_every: int = 4  # steps between two evaluations of sampled answers to them
    seed: int = 1000


OPTIMIZER: dict[str, Any] = {
    "lr_scheduler": "linear",
    "adam_beta2": 0.98,
    "gradient_checkpointing": False,
    "save_steps": 10_000,
}


CRITIC_FREE: dict[str, Any] = {"advantage": "reinforce_pp_baseline", "outliers": "keep", "preclip": None}
METHOD_KEYS = ("advantage", "outliers", "preclip", "average", "value_pretrain_steps")


def method_of(arm: Arm, settings: Settings) -> dict[str, Any]:
    """Return the arm's method: its changes to the defaults."""
    if not arm.ppo:
        return {**CRITIC_FREE, "group_size": settings.group}
    recipe = load_yaml(find_config("policy/pairwise_rl"))
    return {
        **{name: recipe[name] for name in METHOD_KEYS},
        "value_pretrain_steps": settings.value_steps,
        "health": {"policy": "warn"},  # a rewarded policy may become anything; that is measured
        "value_learning_rate": settings.value_learning_rate,
    }


def policy_config(trial: Trial, settings: Settings, *, model: Path) -> PolicyConfig:
    """Return the config of a trial. It holds the arm's anchor and KL term; the rewards are opened once for all trials."""
    return PolicyConfig(
        model=str(model),
        seed=trial.seed,
        **method_of(ARMS[trial.arm], settings),
        learning_rate=settings.learning_rate,
        warmup_steps=3,
        max_steps=settings.steps,
        rollout_batch_size=settings.rollout_batch_size,
        batch_size=settings.rollout_batch_size,
        micro_batch_size=min(64, settings.rollout_batch_size),
        max_completion_length=settings.max_tokens,
        kl_coef=ARMS[trial.arm].kl_coef,
        kl="k2_loss" if ARMS[trial.arm].kl_coef else "k1_reward",
        anchor=ARMS[trial.arm].anchor,  # type: ignore[arg-type]
        signs={"truth": "exact"},  # type: ignore[arg-type]
        **OPTIMIZER,
    )


def start_config(settings: Settings, *, base: Path) -> SFTConfig:
    """Return the config of the policy that all trials start from."""
    size = min(32, settings.rollout_batch_size)
    return SFTConfig(
        model=str(base),
        template="answer",
        learning_rate=1e-3,
        warmup_steps=10,
        max_steps=settings.start_steps,
        batch_size=size,
        micro_batch_size=size,
        seed=settings.seed,
        **OPTIMIZER,
    )


def scalar_config(settings: Settings, *, sft: Path) -> RMConfig:
    """Return the scalar head's config. It starts from the SFT judge: from the base model it learns nothing."""
    return reward_model_config(settings, sft, learning_rate=settings.scalar_rate, max_steps=settings.scalar_steps)


def likelihood_config(settings: Settings, *, base: Path) -> RMConfig:
    """Return the config of the model whose likelihood is the reward."""
    form = {"template": "reply", "explain_weight": 1.0}
    steps = {"learning_rate": settings.likelihood_rate, "max_steps": settings.likelihood_steps}
    return reward_model_config(settings, base, **form, **steps)


def reward_model_config(settings: Settings, model: Path, **keys: Any) -> RMConfig:
    size = min(32, settings.rollout_batch_size)
    return RMConfig(
        model=str(model),
        **keys,
        warmup_steps=30,
        batch_size=size,
        micro_batch_size=size,
        seed=settings.seed,
        **OPTIMIZER,
    )
