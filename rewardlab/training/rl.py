"""Reinforcement learning of a judge on the pairs its teacher found hard."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from datasets import Dataset, Features, Image, List, Value
from transformers import PreTrainedModel

from rewardlab.checkpoints import load_template_for
from rewardlab.config import RLConfig
from rewardlab.errors import DataError, EndpointError
from rewardlab.models.families import end_token_ids
from rewardlab.prompts import Template
from rewardlab.rewards.judgment_function import RewardFunction
from rewardlab.rewards.process_reward import ProcessReward
from rewardlab.rewards.scorer import EndpointConsistencyJudge, RolloutScorer
from rewardlab.training.policy_gradient.build import make_trainer, train
from rewardlab.training.policy_gradient.rollouts.dialogue import MultiTurnTrainer
from rewardlab.training.policy_gradient.trainer import PolicyGradientTrainer
from rewardlab.training.run.folder import AtTheEnd
from rewardlab.training.run.preflight import fitting
from rewardlab.training.run.rows import chat_columns
from rewardlab.training.sft import TURNS, data_fingerprint
from rewardlab.types import BOTH_ORDERS, PreferencePair


def hard_pairs(pairs: Sequence[PreferencePair], config: RLConfig) -> list[PreferencePair]:
    """Pairs whose tag is in ``config.attempts``, plus ``easy_ratio`` easy ones per hard one (drawn by the seed).

    Raises DataError where no pair is hard.
    """
    hard = [pair for pair in pairs if pair.attempts in config.attempts and pair.preferred is not None]
    if not hard:
        raise DataError(f"no pair has attempts in {config.attempts}; run `rewardlab distill`, or name other tags")
    easy = [pair for pair in pairs if pair.attempts == "1" and pair.preferred is not None and "1" not in config.attempts]
    wanted = min(len(easy), round(config.easy_ratio * len(hard)))
    return hard + random.Random(config.seed).sample(easy, wanted)


def rl_rows(pairs: Sequence[PreferencePair], template: Template, *, both_orders: bool) -> Dataset:
    """One row per pair and order shown: prompt and images for the policy, the rest for the reward."""
    rows = [
        {
            **chat_columns(pair, order, template),
            "pair_id": pair.pair_id,
            "question": pair.question,
            "order": order.value,
            "preferred": pair.preferred,
        }
        for pair in pairs
        for order in (BOTH_ORDERS if both_orders else (pair.order,))
    ]
    text = Value("string")
    features = Features(
        {
            "prompt": TURNS,
            "images": List(Image()),
            "pair_id": text,
            "question": text,
            "order": text,
            "preferred": Value("int8"),
        }
    )
    return Dataset.from_list(rows, features=features)


def consistency_judge(config: RLConfig) -> EndpointConsistencyJudge | None:
    """The endpoint that is asked about consistency; None where its weight is 0."""
    if not config.consistency.weight:
        return None
    return EndpointConsistencyJudge(config.consistency, api_key=os.environ.get(config.consistency.api_key_env, "none"))


def build_trainer(
    rows: Dataset,
    config: RLConfig,
    model: PreTrainedModel,
    processor: Any,
    template: Template,
    out: Path,
    trainer_class: type[PolicyGradientTrainer] | None = None,
    **more: Any,
) -> PolicyGradientTrainer:
    """The trainer with its reward, ready to run, of the method's class or another; ``more`` goes to the trainer as it is."""
    judge = consistency_judge(config)
    scorer = RolloutScorer(
        template.verdict_format,
        judge,
        format_weight=config.format_weight,
        consistency_weight=config.consistency.weight,
        deadline_s=2 * config.consistency.deadline_s,
    )
    overlong = (config.max_completion_length, config.overlong_margin) if config.overlong_margin else None
    reward = RewardFunction(scorer, judge, end_token_ids(model), out, config.swap_weight, overlong)
    own = {"orders_together": config.swap_weight > 0, "revision_bonus": config.revision_bonus}
    if config.self_verify:
        trainer_class = trainer_class or MultiTurnTrainer
    trainer = make_trainer(rows, config, model, processor, reward, out, trainer_class, own, **more)
    if judge is not None:
        trainer.add_callback(AtTheEnd(judge.close))  # rewards are asked for in a loop of the trainer's own
    trainer.right_of_last_batch, trainer.read_of_last_batch = reward.right, reward.read
    if config.process_reward:
        trainer.process = ProcessReward.load(config, template, processor.tokenizer, device=trainer.accelerator.device)
    return trainer


def train_rl(pairs: Sequence[PreferencePair], config: RLConfig, out: Path) -> Path:
    """Run (or resume) the method of ``config`` from ``config.model``; returns the final checkpoint folder.

    Raises CheckpointError where the checkpoint was trained on another template, DataError without hard pairs, EndpointError
    where nothing answers about consistency, ConfigError for a finished or different run in ``out``.
    """
    template = load_template_for(config.model, config.template)
    room = (3 if config.self_verify else 1) * config.max_completion_length  # a judgment, its verification, another judgment
    hard = fitting(hard_pairs(pairs, config), config, template, out, room=room)
    rows = rl_rows(hard, template, both_orders=config.both_orders)
    num_rollouts = len(rows) * config.group_size
    if num_rollouts < config.rollout_batch_size:
        raise DataError(
            f"{len(rows):,} hard pairs and orders make {num_rollouts:,} rollouts, fewer than the "
            f"{config.rollout_batch_size:,} of one batch; add pairs or easy_ratio, or lower rollout_batch_size"
        )
    if judge := consistency_judge(config):
        try:  # hours of training without the reward that was asked for would be a poor way to find out
            asyncio.run(judge.check())
        except EndpointError as error:
            raise EndpointError(
                f"the consistency reward has nobody to ask: {error} Serve {config.consistency.model} there, name another "
                "endpoint with --consistency-url, or do without by `consistency: {weight: 0}` in the config"
            ) from error
    return train(
        partial(build_trainer, rows, template=template),
        config,
        out,
        data_fingerprint(pairs),
        template,
        stage="rl",
        num_rows=len(rows),
    )
