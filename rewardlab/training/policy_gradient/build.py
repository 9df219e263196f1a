"""From the config of a method to its trainer, and the run around it: what RL of judges and of policies have in common."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol

from datasets import Dataset
from transformers import PreTrainedModel

from rewardlab.config import MethodConfig
from rewardlab.errors import ConfigError
from rewardlab.models.families import vision_token_ids
from rewardlab.models.loading import load_policy, peft_config
from rewardlab.models.value_model import ValueModel
from rewardlab.models.vision_hooks import always_run_vision_tower
from rewardlab.processes import num_processes
from rewardlab.progress import bar
from rewardlab.prompts import Template
from rewardlab.samplers.decode import HotToken
from rewardlab.samplers.vllm import FORBIDDEN
from rewardlab.training.policy_gradient.arguments import PolicyGradientConfig
from rewardlab.training.policy_gradient.critic import ActorCriticTrainer, StopAtPlateau
from rewardlab.training.policy_gradient.rollouts.dynamic import DynamicSampling
from rewardlab.training.policy_gradient.rollouts.engine import check_engine, limited
from rewardlab.training.policy_gradient.rollouts.prompts import PromptSource
from rewardlab.training.policy_gradient.rollouts.sampler import InItsEpoch
from rewardlab.training.policy_gradient.rollouts.truncated import WindowedTrainer
from rewardlab.training.policy_gradient.trainer import PolicyGradientTrainer
from rewardlab.training.run.folder import CRITIC, RunLog, close_run, common_arguments, micro_batches, open_run
from rewardlab.training.run.resume import release, run_steps
from rewardlab.training.run.watchdog import refuse_ended, rollbacks, watched


class Build(Protocol):
    """Makes a stage's trainer of a config, a policy and its processor; ``more`` goes to the trainer as it is."""

    def __call__(self, *, config: Any, model: Any, processor: Any, out: Path, **more: Any) -> PolicyGradientTrainer: ...


def trainer_arguments(config: MethodConfig, out: Path, **own: Any) -> PolicyGradientConfig:
    """TRL's arguments for a config, and a stage's ``own``."""
    low, high = config.preclip or (None, 1.0)
    return PolicyGradientConfig(
        steps_per_generation=micro_batches(config, config.rollout_batch_size),
        num_iterations=config.iterations,
        num_generations=config.group_size,
        max_completion_length=config.max_completion_length,
        temperature=config.temperature,
        top_p=1.0,
        top_k=0,
        advantage=config.advantage,
        whiten_by=config.whiten_by,
        outliers=config.outliers,
        sigma=config.outlier_sigma,
        epsilon=config.clip_low,
        clip_high=config.clip_high,
        dual_clip=config.dual_clip,
        preclip_min=low,
        preclip_max=high,
        ratio=config.ratio,
        average=config.average,
        kl=config.kl,
        beta=config.kl_coef,
        positive_nll=config.positive_nll,
        importance_cap=config.importance_cap,
        gae_lambda=config.gae_lambda,
        gae_lambda_critic=config.gae_lambda_critic,
        length_alpha=config.length_alpha,
        value_clip=config.value_clip,
        value_learning_rate=config.value_learning_rate or 2 * config.learning_rate,
        window=config.window,
        **_vllm(config),
        **own,
        **common_arguments(config, out),
    )


def _vllm(config: MethodConfig) -> dict[str, Any]:
    """TRL's arguments for its own two ways of sampling by vLLM; its correction is ours (``importance_cap``)."""
    engine = config.engine
    if engine is None or engine.kind == "serve":
        return {}
    return {
        "use_vllm": True,
        "vllm_mode": engine.kind,
        "vllm_server_base_url": engine.base_url,
        "vllm_max_model_length": config.max_tokens,  # else room for the longest prompt that the model allows
        "vllm_gpu_memory_utilization": engine.gpu_memory_utilization,
        "vllm_tensor_parallel_size": engine.tensor_parallel,
        "vllm_enable_sleep_mode": engine.kind == "colocate",
        "vllm_importance_sampling_correction": False,
    }


def prompt_source(rows: Dataset, config: MethodConfig) -> PromptSource:
    """The stream that this process draws its prompts from."""
    process = int(os.environ.get("RANK", "0"))
    return PromptSource(
        rows, seed=config.seed, process=process, num_processes=num_processes(), weighted=config.difficulty_weighted
    )


def make_trainer(
    rows: Dataset,
    config: MethodConfig,
    model: PreTrainedModel,
    processor: Any,
    reward: Any,
    out: Path,
    trainer_class: type[PolicyGradientTrainer] | None,
    own: dict[str, Any],
    **more: Any,
) -> PolicyGradientTrainer:
    """The trainer of the method, or of ``trainer_class``; a stage's ``own`` arguments go to TRL's, ``more`` to the trainer."""
    with_critic = config.advantage == "gae"
    if with_critic:
        critic = ValueModel.from_pretrained(config.value_init or config.model)
        if num_processes() > 1:
            always_run_vision_tower(critic, processor)
        more = {"critic": critic, **more}
    if config.window:
        more = {"source": prompt_source(rows, config), **more}
    plain = ActorCriticTrainer if with_critic else PolicyGradientTrainer
    if config.engine and config.engine.kind != "serve":  # which would else draw tokens that stand for images
        own = own | {"generation_kwargs": {"logit_bias": dict.fromkeys(vision_token_ids(model.config), FORBIDDEN)}}
    trainer = (trainer_class or (WindowedTrainer if config.window else plain))(
        model=model,
        reward_funcs=[reward],
        args=trainer_arguments(config, out, **own),
        train_dataset=rows,
        processing_class=processor,
        peft_config=peft_config(config.lora, model, config.freeze),
        **more,
    )
    if trainer.ref_model is not None and num_processes() > 1:
        always_run_vision_tower(trainer.ref_model, processor)
    trainer.add_callback(InItsEpoch(trainer))
    trainer.rollouts_at_once = config.rollouts_at_once
    if config.engine and config.engine.kind == "serve":
        trainer.engine = limited(config.engine, config.max_tokens)
    if hot := config.hot_token:
        opening = len(trainer._tokenizer.encode("<think>", add_special_tokens=False))
        position = opening if hot.position is None else hot.position
        trainer.hot_token = HotToken(hot.temperature, hot.top_k, position)
    if config.dynamic_sampling != "off":
        own = config.rollout_batch_size // num_processes()
        if own % config.group_size:
            raise ConfigError(
                f"dynamic_sampling chooses whole groups on each process: {own} rollouts are not a multiple of "
                f"group_size {config.group_size}; raise rollout_batch_size, or take fewer processes"
            )
        trainer.dynamic = DynamicSampling(
            prompt_source(rows, config),
            group=config.group_size,
            refill=config.dynamic_sampling == "refill",
            max_rounds=config.max_sampling_rounds,
        )
    return trainer


def pretrain_value(build: Build, config: MethodConfig, out: Path, data: str) -> Path:
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
            "value_learning_rate": config.value_learning_rate or 2 * config.learning_rate,
            "logging_steps": 1,
            # of a frozen policy the same draws come again: nothing is won by taking it back
            "health": config.health.model_copy(update={"policy": "warn" if config.health.policy == "warn" else "stop"}),
        }
    )
    refuse_ended(alone.health, folder)
    resume = open_run(folder, alone, data=data)
    model, processor = load_policy(config, out)
    trainer = build(config=alone, model=model, processor=processor, out=folder, value_only=True)
    trainer.add_callback(StopAtPlateau(config.value_patience))
    try:
        with bar("value", alone.max_steps) as advance:
            trainer.add_callback(RunLog(folder, advance, "value/explained_variance"))
            run_steps(trainer, alone, folder, resume)
        trainer.save_model(str(folder))
        trainer.accelerator.wait_for_everyone()  # one process writes what all will read
    finally:
        trainer.close_engine()
        release(trainer)
    return folder / CRITIC


def train(build: Build, config: MethodConfig, out: Path, data: str, template: Template, *, stage: str, num_rows: int) -> Path:
    """Run (or resume) a stage; returns the final checkpoint folder. ``data`` is the fingerprint of what it trains on.

    Raises ConfigError for a finished or different run in ``out``, HealthError for one that went wrong.
    """
    if config.engine:
        check_engine(config.engine)  # before anything is loaded
    return watched(config, out, lambda: _attempt(build, config, out, data, template, stage, num_rows))


def _attempt(build: Build, config: MethodConfig, out: Path, data: str, template: Template, stage: str, num_rows: int) -> Path:
    resume = open_run(out, config, data=data)
    if config.value_pretrain_steps and resume is None:
        config = config.model_copy(update={"value_init": str(pretrain_value(build, config, out, data))})
    alive = trainer_arguments(config, out)  # ZeRO-3 deals weights out as they are read, while such arguments exist
    model, processor = load_policy(config, out)
    trainer = build(config=config, model=model, processor=processor, out=out)
    del alive
    trainer.num_rollbacks = len(rollbacks(out))
    per_epoch = num_rows * config.group_size * config.iterations // config.batch_size
    steps = config.max_steps if config.max_steps > 0 else int(config.epochs * per_epoch)
    try:
        with bar(stage, steps) as advance:
            trainer.add_callback(RunLog(out, advance, "reward"))
            run_steps(trainer, config, out, resume)
    finally:
        trainer.close_engine()
    return close_run(out, trainer, processor, template=template, stage=stage, base=config.model)
