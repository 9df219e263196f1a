"""``vllm serve`` as a child process that is watched: what dies, or no longer answers, is started again."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import math
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import httpx
import torch
from transformers import AutoConfig, AutoTokenizer

from rewardlab.config.judge import RequestConfig
from rewardlab.errors import ConfigError, EndpointError
from rewardlab.models.checkpoints import check_folder
from rewardlab.models.families import vision_token_ids
from rewardlab.processes import end_with_parent
from rewardlab.prompts.sanitize import without_tokens
from rewardlab.samplers.base import VLLM, SamplingParams
from rewardlab.samplers.chat_endpoint import ChatEndpoint, ask_any
from rewardlab.samplers.hf import special_tokens
from rewardlab.samplers.openai_api import OpenAISampler
from rewardlab.types import Choice, Completion, FinishReason, Message, Part
from rewardlab.verdicts.parse import verdict_label

TOP_LOGPROBS = 20  # what vLLM's servers and engines tell at most by default
FORBIDDEN = -100.0  # added to the logits of tokens that stand for images: a judge writes text
VERDICT_TEXTS = tuple((verdict_label(choice), f" {verdict_label(choice)}") for choice in (Choice.FIRST, Choice.SECOND))


def margin_of(logprobs: dict[str, float]) -> tuple[float, float]:
    """Return (log-odds of the response shown first, probability of a verdict at all) from the likeliest next tokens, text ->
    logprob.

    A verdict that is not among them is at most as likely as the least of them, and taken to be so: the margin is then a lower
    bound of its size. Raise ValueError for an empty mapping.
    """
    least = min(logprobs.values())
    first, second = (
        math.log(sum(math.exp(logprobs[text]) for text in texts if text in logprobs) or math.exp(least))
        for texts in VERDICT_TEXTS
    )
    coverage = sum(math.exp(logprobs[text]) for texts in VERDICT_TEXTS for text in texts if text in logprobs)
    return first - second, coverage


LOG = logging.getLogger(__name__)
LONGEST_WAIT_S = 60.0  # between two starts
NEUTRAL = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}  # vLLM else takes them from the checkpoint's generation config
LAUNCHER = ("TORCHELASTIC_", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_", "ROLE_", "MASTER_")
START_S = 900.0  # how long a start may take
SILENT_S = 30.0  # how long a server may leave /health unanswered


def find_vllm() -> str:
    """Return the path of the ``vllm`` program: ``$REWARDLAB_VLLM`` (it often wants an environment of its own), beside this
    Python, or on the path.

    Raise ConfigError.
    """
    if path := os.environ.get("REWARDLAB_VLLM"):
        program = shutil.which(path)
    else:
        program = shutil.which(VLLM, path=os.path.dirname(sys.executable)) or shutil.which(VLLM)
    if program is None:
        raise ConfigError("no vllm program found: pip install vllm, or set REWARDLAB_VLLM to that of another environment")
    return program


class VLLMServer:
    """One ``vllm serve`` on a free local port, with a key that nobody else knows. ``args`` are further options of it, as text.

    ``devices`` are the cards it sees, ``dev`` opens its routes for developers. ``num_starts`` counts the starts; its output
    goes into the file ``log``, or beside ours. Raise EndpointError if it is not ready within ``start_timeout_s`` of the
    first start, or ends before.
    """

    def __init__(
        self,
        model: str,
        *,
        args: str = "",
        log: Path | None = None,
        start_timeout_s: float = START_S,
        dev: bool = False,
        devices: str | None = None,
    ) -> None:
        check_folder(model)
        self._extra_env = {"VLLM_SERVER_DEV_MODE": "1"} if dev else {}
        self._extra_env |= {"CUDA_VISIBLE_DEVICES": devices} if devices else {}
        self.model, self.log, self.num_starts = model, log, 0
        self.key, self._program = secrets.token_hex(16), find_vllm()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._args = shlex.split(args)
        self._stopping, self._wanted, self._start_timeout_s = threading.Event(), threading.Event(), start_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._up = threading.Event()
        self._first_error = ""
        threading.Thread(target=self._watch, name="vllm-watch", daemon=True).start()
        atexit.register(self.stop)
        started = time.monotonic()
        while not self._up.wait(0.2):
            if self._first_error or time.monotonic() - started > start_timeout_s:
                self.stop()
                reason = self._first_error or f"not ready within {start_timeout_s:g} s"
                raise EndpointError(f"vllm serve {model}: {reason}" + (f"; see {log}" if log else ""))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def healthy(self) -> bool:
        return self._up.is_set()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def await_start(self) -> None:
        """Return once it answers. Raise EndpointError if it does not within ``start_timeout_s``, or was stopped."""
        started = time.monotonic()
        while not self._up.wait(0.5):
            if self._stopping.is_set():
                raise EndpointError(f"vllm serve {self.model}: was stopped")
            if time.monotonic() - started > self._start_timeout_s:
                raise EndpointError(f"vllm serve {self.model}: did not restart within {self._start_timeout_s:g} s")

    def stop(self) -> None:
        self._stopping.set()
        self._end()

    def _start(self) -> None:
        command = [self._program, "serve", self.model, "--served-model-name", "judge", "--host", "127.0.0.1"]
        command += ["--port", str(self.port), "--enable-prefix-caching", "--logprobs-mode", "raw_logprobs", *self._args]
        env = {
            **os.environ,
            "VLLM_API_KEY": self.key,
            **self._extra_env,
        }  # not in the arguments, where everybody on the machine reads it
        # ours would shadow its own packages where it has another environment; a launcher's would have it wait for our processes
        for name in ("PYTHONPATH", *(name for name in os.environ if name.startswith(LAUNCHER))):
            env.pop(name, None)
        self.num_starts += 1
        with self.log.open("ab") if self.log else contextlib.nullcontext() as out:  # None: beside our own
            self._process = subprocess.Popen(
                command, stdout=out, stderr=subprocess.STDOUT, env=env, start_new_session=True, preexec_fn=end_with_parent
            )

    def _try_start(self) -> bool:
        """Start it; return whether that was possible. The first time, what hindered it is the error of the whole server."""
        try:
            self._start()
        except (OSError, subprocess.SubprocessError) as error:
            LOG.warning("vllm serve %s: cannot be started (%s)", self.model, error)
            if self.num_starts == 1:
                self._first_error = f"cannot be started ({error})"
            return False
        return True

    def _end(self) -> None:
        """End the whole process group: an engine whose front end has died keeps its memory."""
        self._up.clear()
        if self._process is None:
            return
        for kind, wait_s in ((signal.SIGTERM, 20), (signal.SIGKILL, 5)):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, kind)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(wait_s)
                break
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)  # children that outlived it

    def restart(self, why: str) -> None:
        """Start it again, and return at once. One that is not up is left to start."""
        if not self._up.is_set():
            return
        LOG.warning("vllm serve %s: %s", self.model, why)
        self._up.clear()
        self._wanted.set()

    def _watch(self) -> None:
        wait_s = 1.0
        if not self._try_start():
            return
        started = answered = time.monotonic()
        while not self._stopping.wait(0.5):
            assert self._process is not None
            ended, now = self._process.poll() is not None, time.monotonic()
            if not ended and not self._wanted.is_set() and (healthy := self._answers()) is not False:
                if healthy:
                    answered, wait_s = now, 1.0
                    self._up.set()
                    continue
                patience = SILENT_S if self._up.is_set() else self._start_timeout_s
                if now - (answered if self._up.is_set() else started) < patience:
                    continue  # still starting, or a short silence
            if not self._up.is_set() and self.num_starts == 1 and not self._wanted.is_set():
                self._first_error = f"ended with status {self._process.returncode}" if ended else "unhealthy from the start"
                return
            LOG.warning("vllm serve %s: %s; it is started again", self.model, "ended" if ended else "no longer answers")
            self._end()
            self._wanted.clear()
            while not (self._stopping.wait(wait_s) or self._try_start()):
                wait_s = min(2 * wait_s, LONGEST_WAIT_S)
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)
            started = answered = time.monotonic()

    def _answers(self) -> bool | None:
        """Return whether /health reports a live engine; None without an answer, or before it is served."""
        try:
            status = httpx.get(f"http://127.0.0.1:{self.port}/health", timeout=5, trust_env=False).status_code
        except httpx.HTTPError:
            return None
        return True if status == 200 else False if status >= 500 else None


class Served(Protocol):
    """What a sampler needs of a server, this process's or another's."""

    @property
    def model(self) -> str: ...

    @property
    def key(self) -> str: ...

    @property
    def url(self) -> str: ...

    @property
    def healthy(self) -> bool: ...

    def restart(self, why: str) -> None: ...


class VLLMServerSampler(OpenAISampler):
    """A Sampler over a :class:`VLLMServer`. All draws of a prompt are one request; each has its tokens, and with ``logprobs``
    their log-probs, which cost as much to send as the rest."""

    def __init__(self, server: Served, *, concurrency: int = 256, deadline_s: float = 600.0, logprobs: bool = True) -> None:
        self.server = server
        config = AutoConfig.from_pretrained(server.model)
        self._specials = special_tokens(AutoTokenizer.from_pretrained(server.model))
        bias = {str(token): FORBIDDEN for token in vision_token_ids(config)}
        body = {"logprobs": logprobs, "return_token_ids": True, **NEUTRAL} | ({"logit_bias": bias} if bias else {})
        super().__init__(
            server.url,
            "judge",
            api_key=server.key,
            request=RequestConfig.model_validate({"concurrency": concurrency, "deadline_s": deadline_s, "body": body}),
            many=True,
            name=f"{VLLM}:{server.model}",
        )

    @staticmethod
    def load(
        path: str, *, args: str = "", log: Path | None = None, deadline_s: float = 600.0, logprobs: bool = True
    ) -> VLLMServerSampler:
        return VLLMServerSampler(VLLMServer(path, args=args, log=log), deadline_s=deadline_s, logprobs=logprobs)

    def check(self) -> None:
        """Raise EndpointError while the server is down."""
        if not self.server.healthy:
            raise EndpointError(f"{self.name}: vLLM is restarting")
        super().check()

    def sample(self, prompts: Sequence[tuple[Message, ...]], params: SamplingParams) -> list[list[Completion]]:
        """Return the completions. If nothing at all is answered in time the server is started again, whatever its /health
        reports."""
        rows = super().sample([self._plain(prompt) for prompt in prompts], params)
        if rows and all(completion.finish is FinishReason.TIMEOUT for row in rows for completion in row):
            self.server.restart("answers nothing in time")
        return rows

    def _plain(self, prompt: tuple[Message, ...]) -> tuple[Message, ...]:
        """Return a prompt of which no text is read as a special token."""
        return tuple(
            replace(
                message, parts=tuple(replace(part, text=without_tokens(part.text, self._specials)) for part in message.parts)
            )
            for message in prompt
        )

    def verdict_margins(
        self, prompts: Sequence[tuple[Message, ...]], beginnings: Sequence[str]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the margins of :meth:`rewardlab.samplers.hf.HFSampler.verdict_margins`, from the likeliest tokens. Raise
        EndpointError where a request fails: a margin that is not known is not one of 0."""
        body = {"temperature": 0.0, "max_tokens": 1, "logprobs": True, "top_logprobs": TOP_LOGPROBS}

        async def ask(endpoints: Sequence[ChatEndpoint]) -> list[tuple[float, float]]:
            async def margin(prompt: tuple[Message, ...], beginning: str) -> tuple[float, float]:
                chat = (*prompt, Message("assistant", (Part(text=beginning),))) if beginning else prompt
                continues = {"continue_final_message": True, "add_generation_prompt": False} if beginning else {}
                return _margin(await ask_any(endpoints, chat, body | continues))

            return list(await asyncio.gather(*(margin(*each) for each in zip(prompts, beginnings, strict=True))))

        prompts = [self._plain(prompt) for prompt in prompts]
        values = torch.tensor(self._background.run(ask), dtype=torch.float64).reshape(-1, 2)
        return values[:, 0], values[:, 1]


def _margin(answer: Any) -> tuple[float, float]:
    if isinstance(answer, Completion):
        raise EndpointError(f"vLLM gives no probabilities: {answer.error}")
    try:
        return margin_of({token.token: token.logprob for token in answer.choices[0].logprobs.content[0].top_logprobs})
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        raise EndpointError(f"vLLM gives no probabilities: garbled answer ({error!r})") from error
