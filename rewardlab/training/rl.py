"""Reinforcement learning of a judge on the pairs its teacher found hard."""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import rewardlab.torchvision_cpu  # noqa: F401  (before transformers)

# isort: split
from datasets import Dataset, Features, Image, List, Value
from transformers import PreTrainedModel

from rewardlab.checkpoints import template_for
from rewardlab.config import RLConfig
from rewardlab.errors import DataError
from rewardlab.progress import bar
from rewardlab.prompts import Template, load_template
from rewardlab.rl.rewards import RewardParts, winner_of
from rewardlab.rl.swap import swap_agreement
from rewardlab.samplers.decode import HotToken
from rewardlab.samplers.hf import end_token_ids
from rewardlab.training.policy_gradient import PolicyGradientConfig, PolicyGradientTrainer
from rewardlab.training.reward import (
    EndpointConsistencyJudge,
    Rollout,
    RolloutScorer,
    as_completion,
    reward_metrics,
    unpack,
)
from rewardlab.training.runs import SAMPLES, RunLog, close_run, common_arguments, open_run, run_steps
from rewardlab.training.sft import TURNS, chat_columns, data_fingerprint, load_policy, peft_config
from rewardlab.types import BOTH_ORDERS, PreferencePair

SAMPLES_PER_STEP = 4


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


class RewardFunction:
    """What TRL calls on each batch of rollouts: scores them, logs every part, keeps a few to read."""

    __name__ = "judge_reward"

    def __init__(
        self,
        scorer: RolloutScorer,
        judge: EndpointConsistencyJudge | None,
        ends: frozenset[int],
        out: Path,
        swap_weight: float = 0.0,
    ) -> None:
        self._swap_weight = swap_weight
        self._scorer, self._judge, self._ends, self._path = scorer, judge, ends, out / SAMPLES
        self._right: list[float] = []

    async def __call__(
        self,
        *,
        completions: list[Any],
        completion_ids: list[list[int]],
        log_metric: Any,
        trainer_state: Any,
        **columns: Any,
    ) -> list[float]:
        rollouts = []
        for n, (turns, ids) in enumerate(zip(completions, completion_ids, strict=True)):
            question, order, preferred = unpack(columns, n)
            rollouts.append(Rollout(as_completion(turns[0]["content"], ids, self._ends), question, order, preferred))
        before = self._counts()
        parts = await self._scorer.score(rollouts)
        if self._swap_weight:
            winners = [winner_of(part, rollout.preferred) for part, rollout in zip(parts, rollouts, strict=True)]
            agreements = swap_agreement(columns["pair_id"], columns["order"], winners)
            log_metric("reward/swap_agreement", sum(agreements) / len(agreements))
            parts = [
                replace(part, total=part.total + self._swap_weight * agreement)
                for part, agreement in zip(parts, agreements, strict=True)
            ]
        self._right = [float(part.right) for part in parts]
        for name, value in reward_metrics(parts).items():
            log_metric(name, value)
        if self._judge:
            for name, count in self._counts().items():
                log_metric(f"consistency/{name}", float(count - before[name]))
        self._keep(trainer_state.global_step, rollouts, parts, columns["pair_id"])
        return [part.total for part in parts]

    def right(self) -> list[float]:
        """1 for each right verdict of the rollouts that were scored last, else 0."""
        return self._right

    def _counts(self) -> dict[str, int]:
        """How the questions about consistency have gone so far."""
        asked = self._judge.counts if self._judge else {}
        return {
            **{name: asked.get(name, 0) for name in ("asked", "cached", "failed", "unclear")},
            **{name: self._scorer.counts[name] for name in ("late", "broken")},
        }

    def _keep(self, step: int, rollouts: list[Rollout], parts: list[RewardParts], names: list[str]) -> None:
        with self._path.open("a", encoding="utf-8", errors="backslashreplace") as file:
            for rollout, part, name in list(zip(rollouts, parts, names, strict=True))[:SAMPLES_PER_STEP]:
                row = {
                    "step": step,
                    "pair_id": name,
                    "order": rollout.order.value,
                    "text": rollout.completion.text,
                    "num_tokens": rollout.completion.num_tokens,
                    "status": part.status,
                    "format": part.format,
                    "right": part.right,
                    "consistency": part.consistency,
                    "reward": part.total,
                }
                file.write(json.dumps(row, ensure_ascii=False) + "\n")


def trainer_arguments(config: RLConfig, out: Path) -> PolicyGradientConfig:
    """TRL's arguments for a config."""
    low, high = config.preclip or (None, 1.0)
    return PolicyGradientConfig(
        steps_per_generation=config.rollout_batch_size // config.micro_batch_size,
        num_iterations=config.iterations,
        num_generations=config.samples_per_prompt,
        max_completion_length=config.max_completion_length,
        temperature=config.temperature,
        top_p=1.0,
        top_k=0,
        advantage=config.advantage,
        outliers=config.outliers,
        sigma=config.advantage_sigma,
        epsilon=config.clip_eps,
        clip_high=config.clip_eps_high,
        dual_clip=config.dual_clip,
        preclip_min=low,
        preclip_max=high,
        ratio=config.ratio,
        average=config.average,
        kl=config.kl,
        beta=config.kl_coef,
        positive_nll=config.positive_nll,
        orders_together=config.swap_weight > 0,
        **common_arguments(config, out),
    )


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
    trainer_class: type[PolicyGradientTrainer] = PolicyGradientTrainer,
) -> PolicyGradientTrainer:
    """The trainer with its reward, ready to run."""
    judge = consistency_judge(config)
    scorer = RolloutScorer(
        template.convention,
        judge,
        format_weight=config.format_weight,
        consistency_weight=config.consistency.weight,
        deadline_s=2 * config.consistency.deadline_s,
    )
    reward = RewardFunction(scorer, judge, end_token_ids(model), out, config.swap_weight)
    trainer = trainer_class(
        model=model,
        reward_funcs=[reward],
        args=trainer_arguments(config, out),
        train_dataset=rows,
        processing_class=processor,
        peft_config=peft_config(config.lora),
    )
    trainer.right_of_last_batch = reward.right
    trainer.hot_token = HotToken(**config.hot_token.model_dump()) if config.hot_token else None
    return trainer


def train_rl(pairs: Sequence[PreferencePair], config: RLConfig, out: Path) -> Path:
    """Run (or resume) the method of ``config`` from ``config.model``; returns the final checkpoint folder.

    Raises CheckpointError where the checkpoint was trained on another template, DataError without hard pairs, EndpointError
    where nothing answers about consistency, ConfigError for a finished or different run in ``out``.
    """
    template = (
        template_for(Path(config.model), config.template) if Path(config.model).exists() else load_template(config.template)
    )
    rows = rl_rows(hard_pairs(pairs, config), template, both_orders=config.both_orders)
    num_rollouts = len(rows) * config.samples_per_prompt
    needed = config.rollout_batch_size * int(os.environ.get("WORLD_SIZE", "1"))
    if num_rollouts < needed:
        raise DataError(
            f"{len(rows):,} hard pairs and orders make {num_rollouts:,} rollouts, fewer than the {needed:,} of one batch; "
            "add pairs or easy_ratio, or lower rollout_batch_size"
        )
    if judge := consistency_judge(config):
        asyncio.run(judge.check())  # hours of training without the reward that was asked for would be a poor way to find out
    resume = open_run(out, config, data=data_fingerprint(pairs))
    model, processor = load_policy(config.model, out)
    trainer = build_trainer(rows, config, model, processor, template, out)
    per_epoch = len(rows) * config.samples_per_prompt * config.iterations // config.batch_size
    steps = config.max_steps if config.max_steps > 0 else int(config.epochs * per_epoch)
    with bar("rl", steps) as advance:
        trainer.add_callback(RunLog(out, advance, "reward"))
        run_steps(trainer, config.max_steps, resume)
    return close_run(out, trainer, processor, template=template, stage="rl", base=config.model)
