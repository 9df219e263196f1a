"""The trainer of every policy-gradient method: TRL's GRPOTrainer, made of parts that are handed in.

A method (``config/rl.py``), a way of making rollouts (``rollouts/``), a reward function (``rewards/``), and, where the
method has one, a critic. TRL brings images, M-RoPE positions, log-probs, the schedule and the distribution; the arithmetic is
in ``algorithm.py``. This file, ``rollouts/engine.py`` and ``run/parallel.py`` alone name private
methods of foreign classes; ``tests/training/test_trl_seam.py`` holds the signatures of TRL's.

One step: TRL asks for a batch -> :meth:`PolicyTrainer.sample_and_score` makes scored rollouts -> TRL pads them and computes
log-probs -> ``compute_advantages`` -> TRL cuts micro-batches -> ``policy_loss`` on each.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor
from transformers import TrainerCallback
from trl import GRPOTrainer

from rewardlab.config import CovarianceConfig, Method
from rewardlab.metrics.running import Metric, MetricAccumulator, Metrics
from rewardlab.models.families import (
    IMAGE_FIELDS,
    IMAGE_ROWS,
    TOKEN_FIELDS,
    Fields,
    images_by_prompt,
    patch_token_id,
    share_rows,
    with_image_rows,
    with_images,
)
from rewardlab.models.loading import prepare_reference
from rewardlab.models.padding import PassLimits
from rewardlab.models.precision import adapters_to_float32
from rewardlab.models.processed_images import ProcessedImages
from rewardlab.models.value_model import ValueModel, completion_values
from rewardlab.processes import num_processes, return_freed_memory
from rewardlab.rewards.rollout import RewardFunction, Rollout, Row, Trajectory
from rewardlab.rewards.steps import ProcessReward
from rewardlab.rl.groups import group_ids
from rewardlab.rl.objectives import high_covariance, top_bound
from rewardlab.samplers.base import SamplingParams
from rewardlab.samplers.decode import draw_uniforms
from rewardlab.samplers.hf import thinking_opening
from rewardlab.training.policy_gradient.algorithm import (
    EntropyControl,
    LossInputs,
    LossScale,
    OutlierFilter,
    Rewards,
    apply_outlier_rule,
    compute_advantages,
    correct_importance,
    count_tokens,
    kl_coefficient,
    policy_loss,
    sampled_kl,
    value_loss,
)
from rewardlab.training.policy_gradient.batch import (
    RolloutBatch,
    TRLBatch,
    completion_logprobs,
    drawn_logprobs,
    forward_fields,
    sort_steps,
    split_rollouts,
    whole_pass,
)
from rewardlab.training.policy_gradient.critic import (
    PREFIX,
    CriticHook,
    save_critic,
    split_optimizer_groups,
    whole_critic,
    without_critic,
)
from rewardlab.training.policy_gradient.rollouts.dynamic import Candidates, DynamicSampling
from rewardlab.training.policy_gradient.rollouts.engine import EngineRollouts, chats_of, keys_of, send_merged_copies
from rewardlab.training.policy_gradient.rollouts.prompts import RolloutSampler, SetSamplerEpoch
from rewardlab.training.policy_gradient.rollouts.sampling import (
    Prompts,
    RolloutStrategy,
    Samples,
    Sampling,
    SamplingOptions,
    State,
    WholeRollouts,
    as_metrics,
    decode_rollouts,
    load_states,
    save_state,
)
from rewardlab.training.run.folder import CRITIC
from rewardlab.training.run.parallel import Processes, accumulate_passes, padding_frac, pass_limits, whole_weights
from rewardlab.training.run.resume import StrictResumeMixin


@dataclass(frozen=True, kw_only=True)
class TrainerParts:
    """The parts of a :class:`PolicyTrainer`.

    ``read_rows`` makes rows of the dataset into rows to sample from and to reward. ``dynamic`` chooses groups from its own
    stream of prompts instead of the data loader's. ``value_only`` fits the critic alone, on rollouts of a policy that does not
    change. ``kl_coef_of`` gives each row its own ``kl_coef``. For studies: ``outliers`` replaces the filter of whitened
    advantages, ``image_fields`` the model inputs besides tokens, and ``values`` the critic.
    """

    method: Method
    reward: RewardFunction
    read_rows: Callable[[Sequence[Row]], list[Row]]
    rollouts: RolloutStrategy = field(default_factory=WholeRollouts)
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    dynamic: DynamicSampling | None = None
    critic: ValueModel | None = None
    value_only: bool = False
    value_learning_rate: float | None = None
    process_reward: Callable[[torch.device], ProcessReward] | None = None
    kl_coef_of: Callable[[Row], float] | None = None
    micro_batch_tokens: int | None = None
    outliers: OutlierFilter = apply_outlier_rule
    image_fields: Callable[[Fields], Fields] = lambda fields: fields
    values: Callable[[RolloutBatch, Sequence[Rollout]], Tensor] | None = None


COVARIANCE = 1_000_000  # in the key of Clip-Cov's choice, where a sampler's key has a small count


class AdaptEntropy(TrainerCallback):
    """Calls ``adapt`` after each optimizer step, before a checkpoint is written."""

    def __init__(self, adapt: Callable[[], None]) -> None:
        self._adapt = adapt

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._adapt()


def _without_pixels(rollout: Rollout) -> Rollout:
    return replace(rollout, images=None, trajectory=replace(rollout.trajectory, image_fields={}))


@contextmanager
def _eval_mode(model: Any) -> Iterator[None]:
    """Put a model in eval mode: in training mode Molmo 2 wants token types of each decoding step."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


class PolicyTrainer(StrictResumeMixin, GRPOTrainer):
    """GRPOTrainer whose rollouts, rewards, advantages and loss are those of its parts."""

    kept_elsewhere = (PREFIX,)
    _buffered_inputs: list[TRLBatch] | None  # TRL's: the micro-batches of a rollout batch
    chat_template_kwargs: dict[str, Any]

    def __init__(self, parts: TrainerParts, **trl: Any) -> None:
        """``trl`` are GRPOTrainer's own arguments: model, args, train_dataset, processing_class, peft_config, callbacks."""
        self._accumulators = {"train": MetricAccumulator(), "eval": MetricAccumulator()}
        self._entropy = EntropyControl(parts.method.entropy.coef if parts.method.entropy else 0.0)
        self._entropy_sums_2 = torch.zeros(2, dtype=torch.float64)  # of entropies, and their tokens, in this optimizer step
        self._parts, self._method, self._rollouts, self._sampling = parts, parts.method, parts.rollouts, parts.sampling
        self._micro_batch_tokens, self._values_of = parts.micro_batch_tokens, parts.values or self._critic_values
        self._engine: EngineRollouts | None = None
        if engine := self._sampling.engine:
            self._engine = EngineRollouts(self, engine, self._sampling.num_rollbacks, parts.read_rows)
        self._has_new_batch = False  # that has not been sorted
        self._draws = (-1, 0)  # the step that drew last, and how often it did
        self._current: list[Rollout] = []  # those that TRL is making a batch of
        self._trajectories: list[Trajectory] = []
        self._images = ProcessedImages()  # of the prompts that are sampled from and then trained on
        self._rewards_G1 = torch.empty(0, 1)  # of the batch that is being made
        self.rollout_sampler: RolloutSampler | None = None
        self.num_generated_tokens = 0  # by this process, trained on or not
        self.value_only, self.value_learning_rate = parts.value_only, parts.value_learning_rate
        if parts.value_only and parts.method.kl_coef:
            raise ValueError("value_only computes no log-probs of the policy: set kl_coef to 0, as critic_config does")
        super().__init__(reward_funcs=[parts.reward], **trl)
        self._processes = Processes(self.accelerator)
        self._opening = thinking_opening(self.processing_class)
        adapters_to_float32(self.model)
        if self.use_vllm:
            send_merged_copies(self.vllm_generation)
        self.add_callback(SetSamplerEpoch(lambda: self.rollout_sampler))
        self.add_callback(AdaptEntropy(self.adapt_entropy))
        if self.ref_model is not None:
            prepare_reference(self.ref_model, self.processing_class)
        self._process_reward = parts.process_reward(self.accelerator.device) if parts.process_reward else None
        self._critic_hook: CriticHook | None = None
        if parts.critic is not None:
            if parts.value_only:
                self.model.requires_grad_(False)
            self._critic_hook = CriticHook(self.model, parts.critic, self.accelerator.autocast, alone=parts.value_only)

    @property
    def _mode(self) -> str:
        return "train" if self.model.training else "eval"

    def _add_metrics(self, metrics: Metrics, weight: float = 1.0) -> None:
        """Collect metrics of this process; plain numbers are means over ``weight`` things. Logs are over all processes."""
        for name, metric in as_metrics(metrics, weight).items():
            self._accumulators[self._mode].add(name, metric)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        for name, value in self._accumulators[self._mode].flush(gather_object).items():
            self._metrics[self._mode][name].append(value)
        super().log(logs, start_time)

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        self.rollout_sampler = RolloutSampler(
            len(dataset or self.train_dataset),
            batch=self.args.generation_batch_size // self.num_generations,
            group_size=self.num_generations,
            repeats=self.num_iterations * self.args.steps_per_generation,
            seed=self.args.seed,
            orders_per_pair=self._sampling.orders_per_pair,
        )
        return self.rollout_sampler

    def sample_and_score(self, rows: list[Row]) -> list[Rollout]:
        """Return one scored rollout a row; what every one of them earned is in the metrics, trained on or not."""
        self._images.clear()  # dynamic sampling comes here many times for one batch
        started = time.perf_counter()
        rows = self._parts.read_rows(self._rollouts.choose_rows(rows))
        self._add_metrics({"data/seconds": time.perf_counter() - started})
        if self._engine is not None:
            self._engine.keys = keys_of(rows)
        prompt_ids, _, _, completions, _, _, images, _ = super()._generate(chats_of(rows))  # copies them: none is held here
        by_prompt: list[Any] | None = images_by_prompt(images)
        images_by_row = by_prompt or [None] * len(rows)
        columns = zip(rows, prompt_ids, self._trajectories, completions, images_by_row, strict=True)
        rollouts = [
            Rollout(row, ids, made, self._opening + turns[0]["content"], pictures)
            for row, ids, made, turns, pictures in columns
        ]
        collected = self._rollouts.collect(rollouts, lambda scored: self._parts.reward(scored, self.state.global_step))
        self._add_metrics(collected.metrics)
        return collected.rollouts

    def _generate_single_turn(
        self,
        prompt_ids: list[list[int]],
        images: Any,
        multimodal_fields: Fields,
        num_generations: int,
        has_tool_images: bool = False,
    ) -> tuple[list[list[int]], Any]:
        """Have the strategy complete the prompts; it samples by our decoder, by an engine, or by TRL's own vLLM."""
        first = self._processes.local(len(prompt_ids)).start

        def sample(ids: list[list[int]], pictures: Any, fields: Fields, rows: Sequence[int]) -> Samples:
            logprobs: list[list[float]] | None
            if self._engine is not None:
                tokens, logprobs = self._engine.sample([len(prompt) for prompt in ids])
                self._add_metrics(self._engine.metrics)
            elif self.use_vllm:
                generate = super(PolicyTrainer, self)._generate_single_turn
                tokens, logprobs = generate(ids, pictures, fields, num_generations, has_tool_images)
            else:
                tokens, logprobs = self._sample_decoder(ids, pictures, fields, [first + row for row in rows])
            self.num_generated_tokens += sum(map(len, tokens))
            self._add_metrics({"tokens/generated": Metric(sum(map(len, tokens)), reduce="sum")})
            return tokens, logprobs

        options = Sampling(sample, self._processes.all, frozenset(self.eos_token_ids), int(self.max_completion_length))
        self._trajectories = self._rollouts.complete(prompt_ids, images, multimodal_fields, options)
        return [trajectory.tokens for trajectory in self._trajectories], None

    @property
    def max_new_tokens(self) -> int:
        return self._rollouts.max_new_tokens or int(self.max_completion_length)

    def draw_key(self) -> tuple[int, ...]:
        """Return what decides the next draws: the seed, the step, and how often it has drawn, on however many processes."""
        step = self.state.global_step
        self._draws = (step, self._draws[1] + 1 if self._draws[0] == step else 0)
        return (self.args.seed, self._sampling.num_rollbacks, *self._draws)

    def _sample_decoder(self, prompt_ids: list[list[int]], images: Any, fields: Fields, places: Sequence[int]) -> Samples:
        """Sample with the judge's own decoder. A rollout's uniforms are keyed by its place in the batch of all processes, so
        that samples do not depend on their number."""
        uniforms_NT = draw_uniforms(self.draw_key(), places, self.max_new_tokens)
        with (
            _eval_mode(self.model),
            whole_weights(self, self.args.ds3_gather_for_generation) as policy,
            torch.no_grad(),
            self.accelerator.autocast(),  # as the log-probs that training computes of the same tokens
        ):
            return decode_rollouts(
                policy,
                Prompts(prompt_ids, images, fields, self._tokenizer.pad_token_id),
                uniforms_NT.to(self.accelerator.device),
                SamplingParams(1, self.temperature, max_tokens=self.max_new_tokens),
                ends=frozenset(self.eos_token_ids),
                batch_size=self._sampling.batch_size,
                hot_token=self._sampling.hot_token,
            )

    def _tokenize_prompts(self, prompts: list[Any]) -> Any:
        options: dict[str, Any] = self.chat_template_kwargs
        self.chat_template_kwargs = {**options, "processor_kwargs": {"padding": False, "return_tensors": None}}  # some pad
        try:
            with self._images.used_by(self.processing_class):
                ids, images, fields = super()._tokenize_prompts(prompts)
        finally:
            self.chat_template_kwargs, self._images.last = options, {}
        if self._engine is None:
            return ids, images, with_image_rows(fields, ids, images, self._image_token)
        self._engine.prompts = prompts  # it is asked in words and images, not in tokens and pixels
        return ids, images, {}

    @property
    def _image_token(self) -> int | None:
        return patch_token_id(self.processing_class)

    def close_engine(self) -> None:
        """End the engine's process, if there is one, however training ended."""
        if self._engine is not None:
            self._engine.close()

    def _generate_and_score_completions(self, inputs: list[Row]) -> TRLBatch:
        """Return TRL's batch of this step's rollouts, with everything the loss needs."""
        if self.model.training:  # the pixels of the last batch would stay beside those of this one
            self._buffered_inputs, self._has_new_batch = None, True
            return_freed_memory()
        if self._parts.dynamic is not None:
            candidates = Candidates(self.sample_and_score, gather_object, self.accelerator.process_index, num_processes())
            self._current, metrics = self._parts.dynamic.choose(candidates, len(inputs))
            self._add_metrics(metrics)
        else:
            self._current = self.sample_and_score(inputs)
        rollouts = self._current
        with self._images.used_by(self.processing_class):
            padded = super()._generate_and_score_completions([rollout.row for rollout in rollouts])
        self._assign_images(padded, rollouts)
        batch = RolloutBatch.from_trl(padded).with_rollouts(rollouts, self._parts.kl_coef_of)
        if hot := self._sampling.hot_token:  # not of the policy's own drawing: nothing is learnt from it
            batch.loss_mask_NT[:, hot.position : hot.position + 1] = 0
        if self._method.mask_truncated:
            batch.loss_mask_NT[[self._is_truncated(rollout.trajectory) for rollout in rollouts]] = 0
        padded |= self._add_advantages(batch, rollouts).to_trl()
        self._current = [_without_pixels(rollout) for rollout in rollouts]
        return dict(padded)

    def _assign_images(self, padded: TRLBatch, rollouts: Sequence[Rollout]) -> None:
        """Replace the images of a batch by those of each rollout; rollouts with the same images share them."""
        if self.args.bf16 and "pixel_values" in padded:  # autocast rounds them so in any case
            padded["pixel_values"] = padded["pixel_values"].to(torch.bfloat16)
        images = {name: padded.pop(name) for name in (*IMAGE_FIELDS, "num_images", "num_tiles") if name in padded}
        if "pixel_values" in images:
            images |= {name: value for name, value in self._images.last.items() if name in IMAGE_FIELDS and name not in images}
            rows = forward_fields(images, padded["prompt_ids"], self._image_token)[IMAGE_ROWS]
            padded[IMAGE_ROWS] = share_rows(rows, [rollout.images or () for rollout in rollouts])
            padded |= self._with_looks(padded, torch.cat([padded["prompt_ids"], padded["completion_ids"]], 1))
        self._images.clear()

    def _with_looks(self, fields: Fields, ids_NL: Tensor) -> Fields:
        """Return the model inputs of the current rollouts with the images within completions."""
        looks = [rollout.trajectory.image_fields for rollout in self._current]
        if not any(looks):
            return fields
        dtype = next(row["pixel_values"].dtype for row in fields[IMAGE_ROWS] if row)
        looks = [{name: value.to(ids_NL.device) for name, value in of.items()} for of in looks]
        looks = [{**of, "pixel_values": of["pixel_values"].to(dtype)} if of else of for of in looks]
        marked = {name: fields[name].masked_fill(ids_NL == self._image_token, 1) for name in TOKEN_FIELDS if name in fields}
        return {**fields, **marked, IMAGE_ROWS: with_images(fields[IMAGE_ROWS], looks)}

    def _generate(self, prompts: list[Any]) -> Any:
        """Return the current rollouts in the form of TRL's own sampling, which has taken place."""
        rollouts, trajectories = self._current, [rollout.trajectory for rollout in self._current]
        logprobs = [made.logprobs for made in trajectories] if self._method.importance else None
        return (
            [rollout.prompt_ids for rollout in rollouts],
            [made.tokens for made in trajectories],
            None,
            [[{"role": "assistant", "content": rollout.text}] for rollout in rollouts],
            logprobs,
            {},
            images_by_prompt([rollout.images for rollout in rollouts]),
            [],
        )

    def _calculate_rewards(self, inputs: list[Row], *args: Any) -> Tensor:
        """Return [global N, 1]; kept, because TRL hands on only the advantages it makes of them."""
        rewards = [float("nan") if rollout.reward is None else rollout.reward for rollout in self._current]
        rewards_G1: Tensor = self.accelerator.gather(
            torch.tensor(rewards, dtype=torch.float32, device=self.accelerator.device)[:, None]
        )
        self._rewards_G1 = rewards_G1
        return rewards_G1

    def _add_advantages(self, batch: RolloutBatch, rollouts: Sequence[Rollout]) -> RolloutBatch:
        local, method = self._processes.local(len(rollouts)), self._method
        rewards_G, unscored_G = self._rewards_G1.nansum(1), self._rewards_G1.isnan().all(1)
        unscored_N = unscored_G[local]
        if not self._rollouts.continues_rollouts:
            rewards_G = rewards_G.masked_fill(unscored_G, torch.nan)
            self._add_metrics({"reward/unscored_frac": unscored_G.float().mean().item()})
        elif batch.finished_N is not None:  # an unfinished rollout has no reward yet, and is trained on
            unscored_N = unscored_N & batch.finished_N.bool()
        batch = replace(batch, loss_mask_NT=batch.loss_mask_NT * ~unscored_N[:, None])
        if method.importance or method.subtracts_kl or method.covariance:
            old_NT = self._old_logprobs(batch, rollouts)
            batch, metrics = correct_importance(batch, old_NT, method)
            self._add_metrics(metrics)
        kl_NT, penalty_G = None, None
        if method.subtracts_kl:
            kl_NT, metrics = sampled_kl(batch, old_NT, method)
            self._add_metrics(metrics)
        if kl_NT is not None and not method.estimator.by_token:  # a response is one action
            penalty_G = self.accelerator.gather((kl_coefficient(batch, method) * kl_NT).sum(1))
        rewards = Rewards(rewards_G, local, self._groups(rollouts, rewards_G), kl_NT, penalty_G)
        if self._process_reward is not None:
            steps_NT, of_steps = self._process_reward(
                batch.to_trl(),
                [rollout.correct for rollout in rollouts],
                [rollout.parsed for rollout in rollouts],
                limits=self._limits(self.args.per_device_train_batch_size),
                autocast=self.accelerator.autocast,
            )
            self._add_metrics(of_steps)
            rewards = replace(rewards, steps_NT=steps_NT)
        outputs = compute_advantages(
            batch,
            rewards,
            method,
            sum_processes=self._processes.sum,
            values_NT=self._values_of(batch, rollouts) if method.estimator.critic else None,
            outliers=self._parts.outliers,
        )
        self._add_metrics(outputs.metrics)
        batch = replace(batch, advantages_NT=outputs.advantages_NT, values=outputs.values)
        if method.top_entropy < 1:
            batch = replace(batch, advantages_NT=outputs.advantages_NT * self._top_entropy(batch))
        if method.covariance:
            batch = self._limit_covariance(batch, old_NT, method.covariance)
        if method.positive_nll:
            correct_N = torch.tensor([float(rollout.correct) for rollout in rollouts], device=batch.loss_mask_NT.device)
            num_tokens = self._processes.sum((batch.loss_mask_NT * correct_N[:, None]).sum())
            batch = replace(batch, correct_N=correct_N, num_correct_tokens=num_tokens)
        num_tokens, num_rows = count_tokens(batch.loss_mask_NT, self._processes.sum)
        return replace(batch, num_tokens=num_tokens, num_rows=num_rows)

    def _is_truncated(self, made: Trajectory) -> bool:
        """Return whether a rollout ends at its maximum length instead of at an end token."""
        return made.finished and not (made.tokens and made.tokens[-1] in self.eos_token_ids)

    def _top_entropy(self, batch: RolloutBatch) -> Tensor:
        """Return the mask [N, T] of the tokens of highest entropy in the rollout batch of all processes; other tokens have no
        policy gradient, but remain in every mean."""
        with torch.no_grad():
            entropies_NT = self._logprobs(self.model, batch, self.args.per_device_train_batch_size)[1].float()
        everyone_K = torch.cat(gather_object([entropies_NT[batch.loss_mask_NT > 0].cpu()]))
        return entropies_NT >= top_bound(everyone_K, self._method.top_entropy)

    def _limit_covariance(self, batch: RolloutBatch, old_NT: Tensor, config: CovarianceConfig) -> RolloutBatch:
        """Return the batch without the advantages of Clip-Cov's tokens, or with KL-Cov's tokens to hold."""
        assert batch.advantages_NT is not None
        is_trained_NT, device = batch.loss_mask_NT > 0, old_NT.device
        tokens_2K = torch.stack([batch.advantages_NT[is_trained_NT], old_NT[is_trained_NT]]).cpu()
        tokens_2K = torch.cat(gather_object([tokens_2K]), 1).to(device)
        local = self._processes.local(len(old_NT))
        key = (self.args.seed, self._sampling.num_rollbacks, self.state.global_step, COVARIANCE)
        uniforms_NT = draw_uniforms(key, range(local.start, local.stop), old_NT.size(1)).to(device)
        bounds = (config.low, config.high)
        clip_NT, hold_NT = high_covariance(batch.advantages_NT, old_NT, tokens_2K, uniforms_NT, config.fraction, bounds)
        if config.kind == "kl":
            return replace(batch, held_NT=hold_NT * batch.loss_mask_NT)
        return replace(batch, advantages_NT=batch.advantages_NT * ~clip_NT)

    def _groups(self, rollouts: Sequence[Rollout], rewards_G: Tensor) -> Tensor | None:
        """Return group numbers of all processes' rollouts, where they are compared; ``draw`` tells two of one prompt apart."""
        if not self._method.estimator.needs_groups:
            return None
        rows = [rollout.row for rollout in rollouts]
        keys = [(f"{row['pair_id']} {row.get('draw', '')}", row["order"]) for row in rows]
        pairs, orders = zip(*gather_object(keys), strict=True)
        return group_ids(pairs, orders).to(rewards_G.device)

    def _old_logprobs(self, batch: RolloutBatch, rollouts: Sequence[Rollout]) -> Tensor:
        """Return the policy's log-probs [N, T] before its update. TRL leaves them out if no update lies between sampling and
        training; the decoder's are the same, an engine's are computed again."""
        if batch.old_logprobs_NT is not None:
            return batch.old_logprobs_NT
        if not (self.use_vllm or self._sampling.engine):
            return drawn_logprobs(rollouts, batch.completion_mask_NT.float())
        with torch.no_grad():
            return self._logprobs(self.model, batch, self.args.per_device_train_batch_size)[0]

    def _critic_values(self, batch: RolloutBatch, rollouts: Sequence[Rollout]) -> Tensor:
        """Return the critic's values [N, T] of the states before each completion token, without gradient."""
        limits, autocast = self._limits(self.args.per_device_train_batch_size), self.accelerator.autocast
        with whole_critic(self.model, self.accelerator) as critic:
            values_NT = completion_values(critic, batch.to_trl(), limits=limits, autocast=autocast)
        return values_NT[:, :-1] * batch.completion_mask_NT

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        **more: Any,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return TRL's log-probs, of ``batch_size`` rollouts of like length at a time (None: all), without their padding."""
        if self.value_only:  # the critic needs none
            return input_ids.new_zeros((len(input_ids), logits_to_keep), dtype=torch.float32), None, None
        fields = forward_fields(more, input_ids[:, :-logits_to_keep], self._image_token)  # images are those of prompts
        if IMAGE_ROWS not in more:  # TRL's own call, about the current rollouts
            fields = self._with_looks(fields, input_ids)
        fields = self._parts.image_fields(fields)
        widths = attention_mask.sum(1).tolist()
        passes = [list(range(len(widths)))] if batch_size is None else self._limits(batch_size).cut(widths)
        self._add_metrics({"tokens/padding_frac": padding_frac(widths, passes)})
        logprobs_NT, entropies_NT = completion_logprobs(
            model, input_ids, attention_mask, fields, logits_to_keep, passes=passes, autocast=self.accelerator.autocast
        )
        return logprobs_NT, entropies_NT if compute_entropy else None, None

    def _limits(self, rows: int | None) -> PassLimits:
        return pass_limits(self.accelerator, self._micro_batch_tokens, rows)

    def _prepare_inputs(self, generation_batch: Any) -> TRLBatch:
        """Return TRL's micro-batch, of rollouts of like length among those of its optimizer step."""
        inputs: TRLBatch = super()._prepare_inputs(generation_batch)
        if self._buffered_inputs is not None and self._has_new_batch:
            self._has_new_batch = False
            self._buffered_inputs = sort_steps(self._buffered_inputs, self.args.gradient_accumulation_steps)
            inputs = self._buffered_inputs[self._step % self.args.steps_per_generation]
        return inputs

    def _logprobs(self, model: Any, batch: RolloutBatch, batch_size: int | None = None) -> tuple[Tensor, Tensor]:
        """Return log-probs of the completions and the entropies there [N, T], computed with their images."""
        inputs = batch.model_inputs
        logprobs_NT, entropies_NT, _ = self._get_per_token_logps_and_entropies(
            model,
            inputs["input_ids"],
            inputs["attention_mask"],
            batch.completion_ids_NT.size(1),
            batch_size=batch_size,
            compute_entropy=True,
            **batch.image_fields,
        )
        assert entropies_NT is not None
        return logprobs_NT, entropies_NT

    @property
    def _loss_scale(self) -> LossScale:
        parts = self.current_gradient_accumulation_steps if self.model.training else 1
        return LossScale(self.args.steps_per_generation / parts, self.accelerator.num_processes, parts)

    def _compute_loss(self, model: Any, inputs: TRLBatch) -> Tensor:
        """Return the micro-batch's share in the loss, read in as many passes as ``micro_batch_tokens`` asks for."""
        rows, passes = len(inputs["completion_ids"]), [inputs]
        if self.model.training and self._micro_batch_tokens is not None:
            passes = split_rollouts(inputs, self._limits(None))

        def loss_of(part: TRLBatch) -> Tensor:
            scale = replace(self._loss_scale, rows_frac=len(part["completion_ids"]) / rows)
            return self._pass_loss(model, RolloutBatch.from_trl(part), scale, len(passes))

        return accumulate_passes(self.accelerator, model, passes, loss_of)

    def _pass_loss(self, model: Any, batch: RolloutBatch, scale: LossScale, num_passes: int) -> Tensor:
        if self._critic_hook is None:
            return self._policy_loss(model, batch, scale)
        read = self._read_alone if self.value_only else self._policy_loss
        loss, values_NW = self._critic_hook.collect(lambda: read(model, batch, scale))
        value = value_loss(batch.before_completion_tokens(values_NW), batch.values, self._method, scale)
        self._add_metrics({"value/loss": value.item() * self.current_gradient_accumulation_steps * num_passes})
        return value if loss is None else value + loss

    def _read_alone(self, model: Any, batch: RolloutBatch, scale: LossScale) -> None:
        """Have the critic read the rollouts, and not the policy."""
        model(**whole_pass(batch.model_inputs, self._parts.image_fields(batch.image_fields)))

    def _policy_loss(self, model: Any, batch: RolloutBatch, scale: LossScale) -> Tensor:
        logprobs_NT, entropies_NT = self._logprobs(model, batch)
        coef = 0.0
        if self._method.entropy and self.model.training:
            mask_NT, coef = batch.loss_mask_NT, self._entropy.weight(self._method.entropy)
            self._entropy_sums_2 += torch.stack([(entropies_NT.detach() * mask_NT).sum(), mask_NT.sum()]).cpu()
            self._add_metrics({"loss/entropy_coef": coef})
        outputs = policy_loss(LossInputs(batch, logprobs_NT, entropies_NT, scale, coef), self._method)
        self._add_metrics(outputs.metrics)
        return outputs.loss

    def adapt_entropy(self) -> None:
        """Adapt the weight of the entropy to that of the optimizer step that has ended, on all processes."""
        if (config := self._method.entropy) and config.target is not None:
            total, tokens = self._processes.sum(self._entropy_sums_2.to(self.accelerator.device)).tolist()
            if tokens:
                self._entropy = self._entropy.after(total / tokens, config)
            self._entropy_sums_2.zero_()

    @property
    def critic(self) -> ValueModel:
        """The critic; methods without one have none (AttributeError)."""
        return self.accelerator.unwrap_model(self.model).critic  # type: ignore[no-any-return]

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """Return TRL's optimizer, the critic's weights in groups with their own learning rate."""
        optimizer: torch.optim.Optimizer = super().create_optimizer(model)
        if self._critic_hook is not None:
            split_optimizer_groups(optimizer, self.critic, self.value_learning_rate or self.args.learning_rate)
        return optimizer

    def _clip_grad_norm(self, model: Any) -> Any:
        """Clip policy and critic each to max_grad_norm: a bad critic must not shrink the policy's step. (ZeRO clips
        jointly.)"""
        if self._critic_hook is None or self.is_deepspeed_enabled:
            return super()._clip_grad_norm(model)
        weights = list(self.accelerator.unwrap_model(model).named_parameters())
        limit = self.args.max_grad_norm
        critic_norm = self.accelerator.clip_grad_norm_([w for name, w in weights if name.startswith(PREFIX)], limit)
        self._add_metrics({"value/grad_norm": float(critic_norm)})
        return self.accelerator.clip_grad_norm_([w for name, w in weights if not name.startswith(PREFIX)], limit)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        """Save the policy as ever, unless it stays as it is; the critic in a folder beside its weights."""
        if self._critic_hook is None:
            super()._save(output_dir, state_dict)
            return
        state = self.accelerator.unwrap_model(self.model).state_dict() if state_dict is None else state_dict
        if not self.value_only:
            super()._save(output_dir, without_critic(state))
        if self.args.should_save:
            save_critic(self.critic, Path(output_dir or self.args.output_dir), state)

    def load_weights(self, model: Any, checkpoint: str) -> None:
        if not self.value_only:
            super().load_weights(model, checkpoint)
        if self._critic_hook is not None:
            critic = ValueModel.from_pretrained(str(Path(checkpoint) / CRITIC))
            model.critic.load_state_dict(critic.state_dict())

    def _rollout_state(self) -> State:
        """Return the state with which a resumed run samples the same prompts in this process."""
        state = {"dynamic": self._parts.dynamic.state_dict()} if self._parts.dynamic else {}
        if self._method.entropy and self._method.entropy.target is not None:
            state["entropy"] = {"coef": self._entropy.coef, "entropy": self._entropy.entropy}
        return state | self._rollouts.state_dict()

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Save the state of the rollouts first: the trainer's own, written last, is what says that a checkpoint is complete."""
        if state := self._rollout_state():
            folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
            save_state(folder, state, self.accelerator.process_index, self.accelerator.num_processes)
        super()._save_checkpoint(model, trial)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None or not self._rollout_state():
            return
        states = load_states(Path(checkpoint))
        if self._parts.dynamic:
            self._parts.dynamic.load_state_dicts([state["dynamic"] for state in states])
        if "entropy" in states[0]:
            self._entropy = EntropyControl(**states[0]["entropy"])
        self._rollouts.load_state_dicts(states)
