"""Rollouts from ``vllm serve``, a process of its own, whose weights are replaced after every update of the policy.

The weights go by way of a file: the folder that the server was started on always holds the newest ones, so that a server that
dies comes back with them. What the engine says of its own draws is corrected for by ``importance_cap``, and logged.
"""

from __future__ import annotations

import importlib.util
import io
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import torch
from accelerate.utils import broadcast_object_list
from PIL.Image import Image

from rewardlab.config import EngineConfig
from rewardlab.errors import ConfigError, EndpointError
from rewardlab.samplers.base import VLLM, SamplingParams
from rewardlab.samplers.vllm_server import START_S, VLLMServer, VLLMServerSampler, find_vllm
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
    return [Part(text=part["text"]) if part["type"] == "text" else Part(image=_png(part["image"])) for part in content]


def _png(image: Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", compress_level=1)
    return buffer.getvalue()


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
