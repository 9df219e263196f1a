"""Rollouts from ``vllm serve``, a process of its own, whose weights are replaced after every update of the policy.

The weights go by way of a file: the folder that the server was started on always holds the newest ones, so that a server that
dies comes back with them. What the engine says of its own draws is corrected for by ``importance``, and logged.
"""

from __future__ import annotations

import importlib.util
import os
import queue
import shutil
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch
from accelerate.utils import broadcast_object_list, gather_object
from peft import PeftModel
from torch import Tensor
from trl.data_utils import prepare_multimodal_messages

from rewardlab.config import EngineConfig
from rewardlab.data.images import encode_png
from rewardlab.errors import ConfigError, EndpointError
from rewardlab.models.loading import merged_weights
from rewardlab.reporting.progress import log_line
from rewardlab.rewards.rollout import Row
from rewardlab.samplers.base import VLLM, SamplingParams
from rewardlab.samplers.vllm_server import START_S, VLLMServer, VLLMServerSampler, find_vllm
from rewardlab.training.policy_gradient.rollouts.prompts import RolloutSampler
from rewardlab.training.run.parallel import Processes
from rewardlab.types import Completion, FinishReason, Message, Part

FOLDER, WEIGHTS, LOG = "engine", "model.safetensors", "engine.log"
HEAD = "lm_head.weight"
TRIES = 3
CALL_S = 600.0  # how long the server may take for one of the calls that replace its weights
_CALLS = 4
# How long the main process may be with the server, which it waits for, hands weights and waits for again, until it gives up.
LONGEST_SYNC_S = START_S + TRIES * (_CALLS * CALL_S + START_S)
# of the distribution that was drawn from: what the trainer's log-probs are compared with
_ARGS = "--logprobs-mode processed_logprobs"


def messages_of(turns: Sequence[dict[str, Any]]) -> tuple[Message, ...]:
    """Return a trainer's chat, with images in it, as messages; images as PNG, which loses nothing."""
    return tuple(Message(turn["role"], tuple(_parts(turn["content"]))) for turn in turns)


def _parts(content: Any) -> list[Part]:
    if isinstance(content, str):
        return [Part(text=content)]
    return [Part(text=part["text"]) if part["type"] == "text" else Part(image=encode_png(part["image"])) for part in content]


def check_engine(config: EngineConfig) -> None:
    """Raise ConfigError for an engine that is not installed, or has no card of its own and no share of one, and for ``serve``
    on several nodes, whose processes it does not listen to."""
    if config.kind != "serve":
        if importlib.util.find_spec(VLLM) is None:
            raise ConfigError(
                f"engine {config.kind} needs vLLM in this Python environment: pip install 'rewardlab[vllm]', or kind: serve"
            )
        return
    find_vllm()
    if os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("WORLD_SIZE", "1")) != os.environ.get("WORLD_SIZE", "1"):
        raise ConfigError("engine serve is a server of one node; on several use kind: server, or colocate")
    if torch.cuda.is_available() and config.devices is None and "--gpu-memory-utilization" not in config.args:
        raise ConfigError(
            "engine serve would fill a GPU that is used for training: set engine.devices to GPUs without a training process, "
            "or limit its memory with --gpu-memory-utilization in engine.args"
        )


def with_context_length(config: EngineConfig, max_tokens: int | None) -> EngineConfig:
    """Return ``config`` for no more than ``max_tokens``, lest a server keep room for the model's longest context."""
    if max_tokens is None or "--max-model-len" in config.args:
        return config
    return config.model_copy(update={"args": f"--max-model-len {max_tokens} {config.args}"})


@dataclass(frozen=True)
class RemoteServer:
    """The main process's server, as another process knows it."""

    model: str
    url: str
    key: str
    healthy: bool = True

    def restart(self, why: str) -> None:
        """The main process, which asks the same server, will."""


class RolloutEngine:
    """One server for all processes of a run; the main one starts it, hands it weights, and ends it.

    Not one rollout of other weights than the policy's is used: should the server have been started again while it was asked, it
    is asked again. Raises EndpointError where it does not come up, refuses weights, or answers otherwise than it must.
    """

    def __init__(
        self, config: EngineConfig, model: Any, processor: Any, out: Path, accelerator: Any, *, excluded: tuple[str, ...] = ()
    ) -> None:
        """``excluded``: beginnings of names of weights that are no part of the policy."""
        self._folder, self._accelerator = out / FOLDER, accelerator
        self._excluded = excluded
        self._server: VLLMServer | None = None
        self._starts = self._starts_at_write = 0  # of the server: when it took weights, and when they were last written
        state = accelerator.get_state_dict(model)
        address: list[Any] = [None]
        if accelerator.is_main_process:
            shutil.rmtree(self._folder, ignore_errors=True)
            unwrapped = accelerator.unwrap_model(model)
            unwrapped.config.save_pretrained(self._folder)
            unwrapped.generation_config.save_pretrained(self._folder)
            processor.save_pretrained(self._folder)
            self._write(unwrapped, state)
            # dev: the routes that replace weights. They ask for no key, and listen on this machine only.
            server = VLLMServer(
                str(self._folder), args=f"{_ARGS} {config.args}", log=out / LOG, dev=True, devices=config.devices
            )
            self._server, self._starts, address = server, server.num_starts, [(server.url, server.key)]
        if accelerator.num_processes > 1:
            broadcast_object_list(address)
        self._url, key = address[0]
        served = self._server or RemoteServer(str(self._folder), self._url, key)
        self._sampler = VLLMServerSampler(served, deadline_s=config.deadline_s)

    def _write(self, model: Any, state: dict[str, torch.Tensor]) -> None:
        """Write all weights, once, as one file, under the names that checkpoints have. A tied head is written out, as a copy,
        which is not taken for the same weight: a server on a CPU keeps a packed copy of it, which it replaces only by what is
        in the file."""
        partial = self._folder.with_name(f"{FOLDER}.partial")
        policy = {name: value for name, value in state.items() if not name.startswith(self._excluded)}
        embedded = next(value for name, value in policy.items() if name.endswith("embed_tokens.weight"))
        if policy.get(HEAD, embedded).data_ptr() == embedded.data_ptr():
            policy[HEAD] = embedded.clone()
        model.save_pretrained(partial, state_dict=policy, max_shard_size="1000GB")
        (partial / WEIGHTS).replace(self._folder / WEIGHTS)
        shutil.rmtree(partial)

    def sync(self, model: Any) -> None:
        """Give the server the weights of ``model``; every process takes part, and none has a request under way."""
        self.write(model)
        if self._server is not None:
            self.load()
        self._accelerator.wait_for_everyone()

    def write(self, model: Any) -> None:
        """Put the weights of ``model`` where the server reads them; every process takes part, requests may be under way."""
        state = self._accelerator.get_state_dict(model)
        if self._server is not None:
            self._write(self._accelerator.unwrap_model(model), state)
            self._starts_at_write = self._server.num_starts

    def load(self) -> None:
        """Have the server take the newest weights that were written, in the main process, with no request under way."""
        assert self._server is not None
        for _ in range(TRIES):
            starts = self._server.num_starts
            if self._server.healthy and (starts > self._starts_at_write or self._reload()):
                self._starts = starts  # one that was started after the new file was there has read it
                return
            self._server.await_start()
        raise EndpointError(f"{self._url}: the engine did not load the new weights; see {self._folder.with_name(LOG)}")

    @property
    def began_anew(self) -> bool:
        """Whether the server, in the main process, was started again since it was given weights."""
        return self._server is not None and self._server.num_starts != self._starts

    def await_start(self) -> None:
        if self._server is not None:
            self._server.await_start()

    def _reload(self) -> bool:
        """Replace the weights of the running server, which drops its prefix cache. A server that fails meanwhile is
        restarted."""
        assert self._server is not None
        calls: list[tuple[str, dict[str, Any]]] = [
            ("/pause", {"params": {"mode": "wait"}}),
            ("/reset_mm_cache", {}),
            ("/collective_rpc", {"json": {"method": "reload_weights", "kwargs": {"weights_path": str(self._folder)}}}),
            ("/resume", {}),
        ]
        limits = httpx.Limits(max_keepalive_connections=0)  # after a failure the server closes them
        try:
            with httpx.Client(base_url=self._url.removesuffix("/v1"), timeout=CALL_S, trust_env=False, limits=limits) as client:
                for path, options in calls:
                    client.post(path, **options).raise_for_status()
        except httpx.HTTPError as error:
            self._server.restart(f"its weights could not be replaced ({error})")
            return False
        return True

    def draw(
        self, prompts: Sequence[tuple[Message, ...]], lengths: Sequence[int], params: SamplingParams
    ) -> tuple[list[list[int]], list[list[float]]]:
        """Return tokens and log-probs of one completion of each prompt; ``lengths`` are the prompts' tokens in the trainer.
        Equal prompts are one request. ``params.num_samples`` is ignored."""
        return self.read(self.complete(prompts, params), lengths)

    def complete(self, prompts: Sequence[tuple[Message, ...]], params: SamplingParams) -> list[Completion]:
        """Return one completion of each prompt. Raise EndpointError where one failed."""
        equal: dict[tuple[Message, ...], list[int]] = {}
        for n, prompt in enumerate(prompts):
            equal.setdefault(prompt, []).append(n)
        groups = list(equal.values())
        sizes = sorted({len(group) for group in groups})
        drawn: dict[int, Completion] = {}
        for size in sizes:
            same_size = [group for group in groups if len(group) == size]
            request = replace(params, num_samples=size)
            for group, completions in zip(
                same_size, self._sampler.sample([prompts[group[0]] for group in same_size], request), strict=True
            ):
                drawn |= dict(zip(group, completions, strict=True))
        ordered = [drawn[n] for n in range(len(prompts))]
        for completion in ordered:
            if completion.finish in (FinishReason.ERROR, FinishReason.TIMEOUT) or not completion.token_ids:
                log = self._folder.with_name(LOG)
                raise EndpointError(f"{self._url}: a rollout failed ({completion.error or 'no tokens'}); see {log}")
        return ordered

    def read(self, completions: Sequence[Completion], lengths: Sequence[int]) -> tuple[list[list[int]], list[list[float]]]:
        """Return tokens and log-probs. Raise EndpointError where prompts have other ``lengths``, or log-probs are missing."""
        for completion, length in zip(completions, lengths, strict=True):
            if completion.num_prompt_tokens != length:
                raise EndpointError(
                    f"{self._url}: the engine reads a prompt as {completion.num_prompt_tokens} tokens, the trainer as "
                    f"{length}: they "
                    "do not see the same images or text; check --mm-processor-kwargs and the checkpoint's processor"
                )
            if len(completion.logprobs) != len(completion.token_ids):
                raise EndpointError(
                    f"{self._url}: {len(completion.token_ids)} tokens came with {len(completion.logprobs)} log-probs"
                )
        return [list(c.token_ids) for c in completions], [list(c.logprobs) for c in completions]

    def sample_current_weights(self, request: Callable[[], Any], model: Any) -> Any:
        """Return the result of ``request``, sampled by the policy's weights throughout: repeated if the server was
        restarted."""
        for _ in range(TRIES):
            try:
                result, error = request(), None
            except EndpointError as failure:
                result, error = None, failure
            fine = torch.tensor([error is None and not self.began_anew])
            if bool(self._accelerator.gather(fine.to(self._accelerator.device)).all()):
                return result
            self.await_start()
            self.sync(model)
        raise error or EndpointError(f"{self._url}: the engine does not stay up; see {self._folder.with_name(LOG)}")

    def close(self) -> None:
        if self._server is not None:
            self._server.stop()


class EngineSampler:
    """Samples a policy by a :class:`RolloutEngine`, which is started when first needed and given new weights in every step."""

    def __init__(self, config: EngineConfig, processor: Any, out: Path, accelerator: Any, *, excluded: tuple[str, ...]) -> None:
        self._config, self._processor, self._out, self._accelerator = config, processor, out, accelerator
        self._excluded = excluded
        self._engine: RolloutEngine | None = None
        self._step = -1

    def sample(
        self, model: Any, step: int, prompts: Sequence[Any], lengths: Sequence[int], params: SamplingParams
    ) -> tuple[list[list[int]], list[list[float]]]:
        """Return tokens and log-probs of one completion of each prompt (chats with images), by the weights of ``step``."""
        if self._engine is None:
            self._engine = RolloutEngine(
                self._config, model, self._processor, self._out, self._accelerator, excluded=self._excluded
            )
        elif self._step != step:
            self._engine.sync(model)
        self._step, engine = step, self._engine
        messages = [messages_of(prompt) for prompt in prompts]
        tokens, logprobs = engine.sample_current_weights(lambda: engine.draw(messages, lengths, params), model)
        return tokens, logprobs

    def close(self) -> None:
        """End the server, if there is one."""
        if self._engine is not None:
            self._engine.close()


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
