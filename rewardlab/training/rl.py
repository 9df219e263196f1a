"""Reinforcement learning of a judge on the pairs its teacher found hard."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Sequence
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
from rewardlab.samplers.decode import HotToken
from rewardlab.samplers.hf import end_token_ids
from rewardlab.training.actor_critic import ActorCriticTrainer, StopAtPlateau
from rewardlab.training.arguments import PolicyGradientConfig
from rewardlab.training.chat import chat_columns
from rewardlab.training.dynamic_sampling import DynamicSampling
from rewardlab.training.multi_turn import MultiTurnTrainer
from rewardlab.training.policy_gradient import PolicyGradientTrainer
from rewardlab.training.process_reward import ProcessReward
from rewardlab.training.prompt_source import PromptSource
from rewardlab.training.reward import EndpointConsistencyJudge, RolloutScorer
from rewardlab.training.reward_function import RewardFunction
from rewardlab.training.runs import CRITIC, RunLog, close_run, common_arguments, open_run, run_steps
from rewardlab.training.sft import TURNS, data_fingerprint, load_policy, peft_config
from rewardlab.training.value_model import ValueModel
from rewardlab.training.windows import WindowedTrainer
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
        importance_cap=config.importance_cap,
        gae_lambda=config.gae_lambda,
        gae_lambda_critic=config.gae_lambda_critic,
        length_adaptive_alpha=config.length_adaptive_alpha,
        value_clip=config.value_clip,
        value_learning_rate=config.value_learning_rate or 2 * config.learning_rate,
        window=config.window,
        revision_bonus=config.revision_bonus,
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
    trainer_class: type[PolicyGradientTrainer] | None = None,
    **more: Any,
) -> PolicyGradientTrainer:
    """The trainer with its reward, ready to run, of the method's class or another; ``more`` goes to the trainer as it is."""
    judge = consistency_judge(config)
    scorer = RolloutScorer(
        template.convention,
        judge,
        format_weight=config.format_weight,
        consistency_weight=config.consistency.weight,
        deadline_s=2 * config.consistency.deadline_s,
    )
    overlong = (config.max_completion_length, config.overlong_margin) if config.overlong_margin else None
    reward = RewardFunction(scorer, judge, end_token_ids(model), out, config.swap_weight, overlong)
    own_class, extra = _method(rows, config)
    trainer = (trainer_class or own_class)(
        model=model,
        reward_funcs=[reward],
        args=trainer_arguments(config, out),
        train_dataset=rows,
        processing_class=processor,
        peft_config=peft_config(config.lora),
        **extra,
        **more,
    )
    trainer.right_of_last_batch = reward.right
    if config.process_reward:
        trainer.process = ProcessReward.load(config, template, processor.tokenizer, device=trainer.accelerator.device)
    trainer.hot_token = HotToken(**config.hot_token.model_dump()) if config.hot_token else None
    if config.dynamic_sampling != "off":
        trainer.dynamic = DynamicSampling(
            prompt_source(rows, config),
            group=config.samples_per_prompt,
            refill=config.dynamic_sampling == "refill",
            max_rounds=config.max_sampling_rounds,
        )
    return trainer


def prompt_source(rows: Dataset, config: RLConfig) -> PromptSource:
    """The stream that this process draws its prompts from."""
    process, num_processes = (int(os.environ.get(name, default)) for name, default in (("RANK", 0), ("WORLD_SIZE", 1)))
    return PromptSource(
        rows, seed=config.seed, process=process, num_processes=num_processes, weighted=config.difficulty_weighted
    )


def _method(rows: Dataset, config: RLConfig) -> tuple[type[PolicyGradientTrainer], dict[str, Any]]:
    """The trainer of ``config.advantage``, and what it takes beyond TRL's arguments."""
    if config.advantage != "gae":
        return PolicyGradientTrainer, {}
    critic = ValueModel.from_pretrained(config.value_init or config.model)
    if config.self_verify:
        return MultiTurnTrainer, {"critic": critic}
    if config.window is None:
        return ActorCriticTrainer, {"critic": critic}
    return WindowedTrainer, {"critic": critic, "source": prompt_source(rows, config)}


def pretrain_value(rows: Dataset, config: RLConfig, template: Template, out: Path, *, data: str) -> Path:
    """Fit the critic to rollouts of the policy as it is, into ``out/value/critic``; returns that folder, made once.

    At most ``value_pretrain_steps`` steps at a constant rate; fewer where explained variance stops rising.
    """
    folder = out / "value"
    if (folder / CRITIC / "config.json").exists():
        return folder / CRITIC
    alone = config.model_copy(
        update={
            "max_steps": config.value_pretrain_steps,
            "lr_scheduler": "constant",
            "warmup_steps": 0,
            "learning_rate": config.value_learning_rate or 2 * config.learning_rate,
            "swap_weight": 0.0,
        }
    )
    resume = open_run(folder, alone, data=data)
    model, processor = load_policy(config.model, out)
    trainer = build_trainer(rows, alone, model, processor, template, folder, value_only=True)
    trainer.add_callback(StopAtPlateau(config.value_patience))
    with bar("value", alone.max_steps) as advance:
        trainer.add_callback(RunLog(folder, advance, "value/explained_variance"))
        run_steps(trainer, alone.max_steps, resume)
    trainer.save_model(str(folder))
    return folder / CRITIC


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
    data = data_fingerprint(pairs)
    resume = open_run(out, config, data=data)
    if config.value_pretrain_steps and resume is None:
        config = config.model_copy(update={"value_init": str(pretrain_value(rows, config, template, out, data=data))})
    model, processor = load_policy(config.model, out)
    trainer = build_trainer(rows, config, model, processor, template, out)
    per_epoch = len(rows) * config.samples_per_prompt * config.iterations // config.batch_size
    steps = config.max_steps if config.max_steps > 0 else int(config.epochs * per_epoch)
    with bar("rl", steps) as advance:
        trainer.add_callback(RunLog(out, advance, "reward"))
        run_steps(trainer, config.max_steps, resume)
    return close_run(out, trainer, processor, template=template, stage="rl", base=config.model)
