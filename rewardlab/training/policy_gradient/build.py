"""From the config of a method to its trainer and its stages: what RL of judges and RL of policies have in common."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from datasets import Dataset
from transformers import PreTrainedModel, TrainerCallback
from trl import GRPOConfig

from rewardlab.config import MethodConfig
from rewardlab.errors import ConfigError
from rewardlab.models.families import always_run_vision_tower, vision_token_ids
from rewardlab.models.loading import load_policy, peft_config
from rewardlab.models.value_model import ValueModel
from rewardlab.processes import num_processes
from rewardlab.prompts import Template
from rewardlab.rewards.rollout import RewardFunction
from rewardlab.samplers.decode import HotToken
from rewardlab.samplers.hf import thinking_opening
from rewardlab.samplers.vllm_server import FORBIDDEN
from rewardlab.training.policy_gradient.critic import CriticFit, StopAtPlateau, critic_config, record_fit, rule_of
from rewardlab.training.policy_gradient.rollouts.dynamic import DynamicSampling, PassRates
from rewardlab.training.policy_gradient.rollouts.engine import LONGEST_SYNC_S, TRIES, check_engine, with_context_length
from rewardlab.training.policy_gradient.rollouts.prompts import PromptSource
from rewardlab.training.policy_gradient.rollouts.sampling import SamplingOptions
from rewardlab.training.policy_gradient.rollouts.strategies import TruncatedRollouts
from rewardlab.training.policy_gradient.trainer import PolicyTrainer, TrainerParts
from rewardlab.training.run.evaluation import Evaluation
from rewardlab.training.run.folder import CRITIC, VALUE, common_arguments, micro_batches
from rewardlab.training.run.inputs import ReadablePairs
from rewardlab.training.run.resume import release
from rewardlab.training.run.rows import PromptRows
from rewardlab.training.run.runner import Built, Stage, checkpoint_of, run_stage
from rewardlab.training.run.watchdog import rollbacks
from rewardlab.verdicts.parse import continuation


class Build(Protocol):
    """Makes a stage's trainer of a config, a policy and its processor; ``more`` goes to :func:`make_trainer` as it is."""

    def __call__(self, *, config: Any, model: Any, processor: Any, out: Path, **more: Any) -> PolicyTrainer: ...


def trl_arguments(config: MethodConfig, out: Path, **more: Any) -> PolicyArguments:
    """Return TRL's arguments for a config; ``more`` override them."""
    arguments: dict[str, Any] = {
        "steps_per_generation": micro_batches(config, config.rollout_batch_size),
        "num_iterations": config.iterations,
        "num_generations": config.group_size,
        "max_completion_length": config.max_completion_length,
        "temperature": config.temperature,
        "top_p": 1.0,
        "top_k": 0,
        "disable_dropout": True,  # of the model's own: the policy that samples, that is trained and that is compared are one
        "beta": config.kl_coef,  # TRL loads the reference model where it is not 0
        "log_multimodal": False,  # TRL would keep a batch of pictures to log them
        **_vllm_arguments(config),
        **common_arguments(config, out),
    }
    return PolicyArguments(**(arguments | more))


def _vllm_arguments(config: MethodConfig) -> dict[str, Any]:
    """Return TRL's arguments for its two vLLM modes, whose correction is ours (``importance``); for ``serve``, the time-out
    of the other processes, longer than the main process's."""
    engine = config.engine
    if engine is None:
        return {}
    if engine.kind == "serve":
        # A batch drawn ahead is waited for once, with all that the main process tries; torch's own 1,800 s for all else.
        tries = TRIES if engine.ahead else 1
        return {"ddp_timeout": int(tries * (LONGEST_SYNC_S + engine.deadline_s)) + 1800}
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


def _prompt_source(rows: Dataset, config: MethodConfig) -> PromptSource:
    """Return the stream that this process draws its own prompts from."""
    process = int(os.environ.get("RANK", "0"))
    return PromptSource(rows, seed=config.seed, process=process, num_processes=num_processes())


def _dynamic_sampling(rows: Dataset, config: MethodConfig, attempts: Sequence[str]) -> DynamicSampling | None:
    if config.dynamic_sampling == "off":
        return None
    per_process = config.rollout_batch_size // num_processes()
    if per_process % config.group_size:
        raise ConfigError(
            f"dynamic_sampling chooses whole groups on each process: {per_process} rollouts are not a multiple of "
            f"group_size {config.group_size}; raise rollout_batch_size, or use fewer processes"
        )
    pass_rates = PassRates(attempts)
    return DynamicSampling(
        PromptSource(rows, seed=config.seed, weights=pass_rates.weights if config.difficulty_weighted else None),
        pass_rates,
        group_size=config.group_size,
        refill=config.dynamic_sampling == "refill",
        max_rounds=config.max_sampling_rounds,
    )


def _sampling_options(config: MethodConfig, processor: Any, *, num_rollbacks: int, orders_per_pair: int) -> SamplingOptions:
    hot_token = None
    if hot := config.hot_token:
        opened = continuation("<think>", thinking_opening(processor))
        opening = len(processor.tokenizer.encode(opened, add_special_tokens=False)) if opened else 0
        hot_token = HotToken(hot.temperature, hot.top_k, opening if hot.position is None else hot.position)
    engine = None
    if config.engine and config.engine.kind == "serve":
        engine = with_context_length(config.engine, config.max_tokens)
    return SamplingOptions(hot_token, config.sampling_batch_size, engine, num_rollbacks, orders_per_pair)


def make_trainer(
    rows: PromptRows,
    config: MethodConfig,
    model: PreTrainedModel,
    processor: Any,
    reward: RewardFunction,
    out: Path,
    *,
    attempts: Sequence[str] = (),
    orders_per_pair: int = 1,
    num_rollbacks: int = 0,
    callbacks: Sequence[TrainerCallback] = (),
    trl: dict[str, Any] | None = None,
    **parts: Any,
) -> PolicyTrainer:
    """Return the trainer of a method on the prompts of ``rows``. ``attempts`` are their difficulty tags, if any; ``parts`` are
    further :class:`TrainerParts`; ``trl`` overrides TRL's arguments.

    Raise ConfigError if rollouts cannot be divided between processes.
    """
    critic = None
    if config.estimator.critic and ("values" not in parts or parts.get("value_only")):
        critic = ValueModel.from_pretrained(config.value_init or config.model, attention=config.attn_implementation)
        if num_processes() > 1:
            always_run_vision_tower(critic, processor)
    if config.window and "rollouts" not in parts:
        parts["rollouts"] = TruncatedRollouts(_prompt_source(rows.dataset, config), config.window, config.window_tail)
    options = dict(trl or {})
    if config.engine and config.engine.kind != "serve":  # which would else draw tokens that stand for images
        options["generation_kwargs"] = {"logit_bias": dict.fromkeys(vision_token_ids(model.config), FORBIDDEN)}
    trainer_parts = TrainerParts(
        method=config,
        reward=reward,
        read_rows=rows.read,
        sampling=_sampling_options(config, processor, num_rollbacks=num_rollbacks, orders_per_pair=orders_per_pair),
        dynamic=_dynamic_sampling(rows.dataset, config, attempts or [""] * len(rows)),
        critic=critic,
        value_learning_rate=config.value_learning_rate or 2 * config.learning_rate,
        micro_batch_tokens=config.micro_batch_tokens,
        **parts,
    )
    return PolicyTrainer(
        trainer_parts,
        model=model,
        args=trl_arguments(config, out, **options),
        train_dataset=rows.dataset,
        processing_class=processor,
        peft_config=peft_config(config.lora, model, config.freeze),
        callbacks=list(callbacks),
    )


def pretrain_value(build: Build, config: MethodConfig, out: Path, data: str) -> Path:
    """Fit the critic to rollouts of the policy as it is, into ``out/value/critic``; return that folder, made once. Ends after
    ``value_pretrain_steps`` steps, or at a plateau of explained variance above its minimum. Raise HealthError as
    :func:`record_fit` does.
    """
    folder = out / VALUE
    if (folder / CRITIC / "config.json").exists():
        return folder / CRITIC
    value_config = critic_config(config)

    def build_critic(resume: str | None) -> Built:
        alive = trl_arguments(value_config, folder)  # as in run_method
        model, processor = load_policy(value_config, out)
        trainer = build(config=value_config, model=model, processor=processor, out=folder, value_only=True)
        del alive
        rule = rule_of(value_config)
        trainer.add_callback(StopAtPlateau(rule))

        def finish() -> Path:
            record_fit(CriticFit.of(trainer.state, rule), config, folder)
            trainer.save_model(str(folder))
            trainer.accelerator.wait_for_everyone()  # one process writes what all will read
            return folder / CRITIC

        def cleanup() -> None:
            trainer.close_engine()
            release(trainer)

        return Built(trainer, finish, cleanup)

    return run_stage(Stage("value", value_config, folder, data, 0, build_critic, metric="value/explained_variance"))


def run_method(
    build: Build,
    config: MethodConfig,
    out: Path,
    data: str,
    template: Template,
    *,
    name: str,
    num_rows: int,
    readable: ReadablePairs,
    evaluation: Evaluation | None = None,
) -> Path:
    """Run (or resume) a stage of RL on rows of ``readable`` pairs, with fingerprint ``data``; return the final checkpoint
    folder. Raise ConfigError for a finished or different run in ``out``, HealthError for one that went wrong."""
    data = readable.known_as(data)
    if config.engine:
        check_engine(config.engine)  # before anything is loaded
    for sequences in (config.batch_size, config.rollout_batch_size):
        micro_batches(config, sequences)  # before a critic is fitted for hours

    def build_stage(resume: str | None) -> Built:
        stage_config = config
        if config.value_pretrain_steps and resume is None:
            value_init = str(pretrain_value(build, config, out, data))
            stage_config = config.model_copy(update={"value_init": value_init})
        alive = trl_arguments(stage_config, out)  # ZeRO-3 deals weights out as they are read, while such arguments exist
        model, processor = load_policy(stage_config, out)
        trainer = build(config=stage_config, model=model, processor=processor, out=out, num_rollbacks=len(rollbacks(out)))
        del alive
        finish: Callable[[], Path] = checkpoint_of(trainer, processor, out, template=template, stage=name, config=config)
        return Built(trainer, finish, trainer.close_engine)

    sequences = num_rows * config.group_size * config.iterations
    return run_stage(
        Stage(
            name,
            config,
            out,
            data,
            sequences,
            build_stage,
            metric="reward",
            evaluation=evaluation,
            pairs=readable.given,
            readable=readable,
        )
    )


@dataclass
class PolicyArguments(GRPOConfig):
    """GRPOConfig that allows one sample per prompt: TRL refuses it because of its group baseline, which is not used here."""

    num_generations: int = 8

    def __post_init__(self) -> None:
        group_size = self.num_generations
        if group_size == 1:
            self.num_generations = 2
        super().__post_init__()
        self.num_generations = group_size
