"""Rollouts from a ``vllm serve`` of the trainer's own, by the newest weights or sampled ahead (``engine.ahead``); and the
weights that TRL's two vLLM modes get from a policy with adapters.

Ahead, an engine samples while the policy trains on earlier rollouts (asynchronous RL, as in AReaL, arXiv 2505.24298), by
weights at most ``engine.ahead`` rollout batches old. ``importance_cap`` corrects for the difference.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from accelerate.utils import broadcast_object_list, gather_object
from peft import PeftModel
from torch import Tensor
from trl.data_utils import prepare_multimodal_messages

from rewardlab.config import EngineConfig
from rewardlab.errors import ConfigError, EndpointError
from rewardlab.models.loading import merged_weights
from rewardlab.reporting.progress import log_line
from rewardlab.rewards.rollout import Row
from rewardlab.samplers.base import SamplingParams
from rewardlab.training.policy_gradient.rollouts.engine import TRIES, EngineSampler, RolloutEngine, messages_of
from rewardlab.training.policy_gradient.rollouts.prompts import RolloutSampler
from rewardlab.training.run.parallel import Processes
from rewardlab.types import Completion, Message


def keys_of(rows: Sequence[Row]) -> list[Hashable]:
    """Return what tells the prompts of rows from all others."""
    return [(row["pair_id"], row["order"]) for row in rows]


def chats_of(rows: Sequence[Row]) -> list[Any]:
    """Return the prompts of rows with their images, which the rows then hold no longer."""
    return [prepare_multimodal_messages(row["prompt"], images=row.pop("images")) for row in rows]


class EngineRollouts:
    """Samples for ``trainer``, a PolicyTrainer, which sets ``prompts`` and ``keys`` before. ``read_rows`` makes rows of its
    dataset into rows to sample from."""

    def __init__(
        self, trainer: Any, config: EngineConfig, num_rollbacks: int, read_rows: Callable[[Sequence[Row]], list[Row]]
    ) -> None:
        self._trainer, self._config, self._num_rollbacks, self._read_rows = trainer, config, num_rollbacks, read_rows
        self._sampler: EngineSampler | AheadSampler | None = None
        self.prompts: list[Any] = []
        self.keys: list[Hashable] = []

    def sample(self, lengths: list[int]) -> tuple[list[list[int]], list[list[float]]]:
        """Return tokens and log-probs of one completion of each prompt, which are ``lengths`` tokens long."""
        trainer, step = self._trainer, self._trainer.state.global_step
        if self._sampler is None:
            kind = AheadSampler if self._config.ahead else EngineSampler
            out, excluded = Path(trainer.args.output_dir), trainer.kept_elsewhere
            self._sampler = kind(self._config, trainer.processing_class, out, trainer.accelerator, excluded=excluded)
        if isinstance(self._sampler, EngineSampler):
            params = self._params(*trainer.draw_key(), trainer.accelerator.process_index)
            return self._sampler.sample(trainer.model_wrapped, step, self.prompts, lengths, params)
        return self._sampler.sample(trainer.model_wrapped, step, self.keys, self.prompts, lengths, self._plan())

    @property
    def metrics(self) -> dict[str, float]:
        """Return the age of the last batch's weights in optimizer steps, and the time spent waiting for it."""
        return self._sampler.metrics if isinstance(self._sampler, AheadSampler) else {}

    def _params(self, *key: int) -> SamplingParams:
        trainer, seed = self._trainer, np.random.SeedSequence(key).generate_state(1)[0]
        return SamplingParams(1, trainer.temperature, max_tokens=trainer.max_new_tokens, seed=int(seed >> 1))

    def _plan(self) -> list[PlannedBatch]:
        """Return the rollout batch of now, and those that may be drawn already."""
        trainer, local = self._trainer, Processes(self._trainer.accelerator).local(len(self.keys))

        def read(number: int) -> tuple[list[Hashable], list[Any]]:
            rows = self._read_rows([dict(trainer.train_dataset[n]) for n in trainer.rollout_sampler.batch(number)[local]])
            return keys_of(rows), chats_of(rows)

        now = (trainer.state.global_step, trainer.state.max_steps, trainer.args.gradient_accumulation_steps)
        numbers = batches_from(trainer.rollout_sampler, *now, self._config.ahead)
        seed = (trainer.args.seed, self._num_rollbacks)
        return [PlannedBatch(number, partial(read, number), self._params(*seed, step, 0)) for number, step in numbers]

    def close(self) -> None:
        """End the server, if there is one."""
        if self._sampler is not None:
            self._sampler.close()


END_S = 60.0  # how long what is being drawn may take to fail once its server has ended
Job = tuple["Future[tuple[int, list[Completion]]]", list[tuple[Message, ...]], SamplingParams]


@dataclass(frozen=True)
class PlannedBatch:
    """Rollout batch ``number`` of a run. ``read`` returns a unique key and the chat with images of each prompt of this
    process."""

    number: int
    read: Callable[[], tuple[list[Hashable], list[Any]]]
    params: SamplingParams


@dataclass(frozen=True)
class _Sent:
    keys: list[Hashable]
    future: Future[tuple[int, list[Completion]]] | None  # of the main process


def batches_from(
    sampler: RolloutSampler, step: int, last_step: int, accumulation: int, ahead: int
) -> Iterator[tuple[int, int]]:
    """Yield number and first step of the rollout batch that ``step`` begins, and of up to ``ahead`` more before ``last_step``.
    ``accumulation``: micro-batches per step."""
    steps = sampler.repeats // accumulation
    for n in range(ahead + 1):
        if n == 0 or step + n * steps < last_step:
            yield step // steps + n, step + n * steps


class AheadSampler:
    """Samples a policy by a :class:`RolloutEngine`, whose main process asks for the prompts of all, one batch after another."""

    def __init__(self, config: EngineConfig, processor: Any, out: Path, accelerator: Any, *, excluded: tuple[str, ...]) -> None:
        self._parts = (processor, out, accelerator)
        self._config, self._excluded = config, excluded
        self._accelerator, self._processes = accelerator, Processes(accelerator)
        self._engine: RolloutEngine | None = None
        self._written = self._loaded = -1  # the steps whose weights were written last, and that the server has
        self._sent: dict[int, _Sent] = {}
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._weights_in_use = threading.Lock()  # the file of weights is not replaced while the server reads it
        self._thread: threading.Thread | None = None  # of the main process
        self._waited_s = 0.0  # for weights that were in use
        self._closed = False
        self.metrics: dict[str, float] = {}

    def sample(
        self,
        model: Any,
        step: int,
        keys: list[Hashable],
        prompts: Sequence[Any],
        lengths: Sequence[int],
        plan: Sequence[PlannedBatch],
    ) -> tuple[list[list[int]], list[list[float]]]:
        """Return tokens and log-probs of one completion of each prompt. ``plan``: this batch and those that follow."""
        self._give_weights(model, step)
        for batch in plan:
            if batch.number not in self._sent:
                self._sent[batch.number] = self._send(*batch.read(), batch.params)
        now = self._sent.pop(plan[0].number)
        if not self._processes.all(now.keys == keys):  # never, unless the order of prompts is another than was foreseen
            log_line("the engine sampled other prompts than those of this step; it samples again")
            self._sent.clear()
            now = self._send(keys, prompts, plan[0].params)
        started = time.perf_counter()
        version, completions = self._await(now)
        waited_s = self._waited_s + time.perf_counter() - started
        self.metrics = {"rollouts/staleness": float(step - version), "rollouts/wait_seconds": waited_s}
        assert self._engine is not None
        return self._engine.read(completions[self._processes.local(len(prompts))], lengths)

    def _give_weights(self, model: Any, step: int) -> None:
        self._waited_s = 0.0
        if self._engine is None:
            self._engine = RolloutEngine(self._config, model, *self._parts, excluded=self._excluded)
            self._written = self._loaded = step
            if self._accelerator.is_main_process:
                self._thread = threading.Thread(target=self._work, name="rollouts-ahead", daemon=True)
                self._thread.start()
        elif self._written != step:
            started = time.perf_counter()
            with self._weights_in_use:
                self._waited_s = time.perf_counter() - started
                self._engine.write(model)
                self._written = step

    def _send(self, keys: list[Hashable], prompts: Sequence[Any], params: SamplingParams) -> _Sent:
        messages = gather_object([messages_of(prompt) for prompt in prompts])
        if not self._accelerator.is_main_process:
            return _Sent(keys, None)
        future: Future[tuple[int, list[Completion]]] = Future()
        self._jobs.put((future, messages, params))
        return _Sent(keys, future)

    def _await(self, sent: _Sent) -> tuple[int, list[Completion]]:
        """Return the step whose weights drew, and the completions of all processes. Raise EndpointError in all of them."""
        outcome: list[Any] = [None]
        if sent.future is not None:
            try:
                outcome = [sent.future.result()]
            except EndpointError as error:
                outcome = [str(error)]
        if self._accelerator.num_processes > 1:
            broadcast_object_list(outcome)
        if isinstance(outcome[0], str):
            raise EndpointError(outcome[0])
        version, completions = outcome[0]
        return version, completions

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, messages, params = job
            try:
                future.set_result(self._draw(messages, params))
            except Exception as error:  # which the main thread raises
                future.set_exception(error)

    def _draw(self, messages: list[tuple[Message, ...]], params: SamplingParams) -> tuple[int, list[Completion]]:
        """Draw a batch by one set of weights, the newest; again where the server began anew meanwhile."""
        engine, error = self._engine, None
        assert engine is not None
        for _ in range(TRIES):
            if self._closed:
                break
            with self._weights_in_use:
                version = self._written
                if version != self._loaded or engine.began_anew:
                    engine.load()
                    self._loaded = version
            try:
                completions = engine.complete(messages, params)
            except EndpointError as failure:
                error = failure
                self._loaded = -1  # a server that answers nobody takes no weights either, and is then started again
            else:
                if not engine.began_anew:
                    return version, completions
            if not self._closed:
                engine.await_start()
        raise error or EndpointError("the engine does not stay up; see its log")

    def close(self) -> None:
        """End the server, if there is one; what is being drawn is lost."""
        self._closed = True
        self._jobs.put(None)
        if self._engine is not None:
            self._engine.close()
        if self._thread is not None:
            self._thread.join(END_S)  # it holds the model, which a run that begins anew must not have twice


def send_merged_copies(generation: Any) -> None:
    """Make TRL's ``VLLMGeneration`` send merged copies of weights with adapters; its merging in place changes the frozen
    weights a little at every update. Raise ConfigError if FSDP shards these weights."""
    if not isinstance(generation.model, PeftModel):
        return
    if generation._dist.is_fsdp:
        raise ConfigError("an engine needs merged LoRA weights, which FSDP keeps sharded: use DDP or ZeRO, or no engine")

    def weights() -> Iterator[tuple[str, Tensor]]:
        for name, weight in merged_weights(generation.model, generation._dist.gather_params):
            yield generation._fix_param_name_to_vllm(name, extra_prefixes=["modules_to_save.default."]), weight

    generation._iter_named_params = weights
