"""The seam between judging and what generates text."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, runtime_checkable

from rewardlab.errors import ConfigError
from rewardlab.types import Completion, Message

if TYPE_CHECKING:
    from rewardlab.config.judge import QueryConfig

UNREADABLE = "unreadable prompt"  # begins the error of a completion whose prompt a sampler cannot take
HF, VLLM, OPENAI = "hf", "vllm", "openai"  # engines, as specifications of judges name them


@dataclass(frozen=True)
class Replicas:
    """How many times an engine is opened on a Ray cluster, and how many cards each takes, which may be a part of one (None: one
    where the cluster has any and the engine computes there)."""

    num: int
    num_gpus: float | None = None


@dataclass(frozen=True)
class EngineOptions:
    """How an engine is opened; each engine takes what concerns it.

    ``query``: how the judge is queried: ``batch_size`` (hf), ``engine_args`` (vllm: options of ``vllm serve``; hf:
    :data:`rewardlab.samplers.hf.READING`), fields of requests and ``cache`` (openai). ``api_key`` (openai).
    ``restart_after_s``: the engine runs in a process of its own, restarted if it dies or takes longer; None: in this one.
    ``replicas``: the engine is opened so many times on a Ray cluster, and not here.
    ``isolates``: a prompt that cannot be read fails alone, not the call (hf).
    """

    query: QueryConfig
    api_key: str = "none"
    restart_after_s: float | None = None
    replicas: Replicas | None = None
    isolates: bool = False


class EngineArgsParser(argparse.ArgumentParser):
    """A parser of ``engine_args`` that raises ConfigError, which names the ``expected`` options, in place of ending the
    process."""

    def __init__(self, text: str, expected: str) -> None:
        super().__init__(add_help=False, allow_abbrev=False)
        self._sentence = f"engine_args {text!r}: {{}}; expected {expected}"

    def error(self, message: str) -> NoReturn:
        raise ConfigError(self._sentence.format(message))


@dataclass(frozen=True)
class SamplingParams:
    """``temperature`` 0 is greedy. ``num_samples`` draws per prompt. ``seed`` fixes the draws of this very call."""

    num_samples: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 1024
    seed: int = 0

    @property
    def fields(self) -> dict[str, Any]:
        """Return how tokens are drawn: the values of :data:`SAMPLING_KEYS`."""
        return {name: getattr(self, name) for name in SAMPLING_KEYS}


SAMPLING_KEYS = ("temperature", "top_p", "max_tokens")


def prompt_seed(seed: int, prompt: Sequence[Message]) -> int:
    """Return the seed of one prompt's request, derived from ``seed``, its texts and its images.

    An engine seeds a generator per request: prompts that shared one seed would all be drawn by the same luck.
    """
    digest = hashlib.sha256()
    for message in prompt:
        for part in message.parts:
            digest.update(f"{message.role} {part.text!r}".encode("utf-8", "backslashreplace"))
            digest.update(part.image or b"")
    return seed + int.from_bytes(digest.digest()[:4], "big") // 4


class Sampler(Protocol):
    """Anything that completes chats. A failed draw is a Completion with finish ERROR or TIMEOUT, never an exception."""

    @property
    def name(self) -> str:
        """Return what a report calls this judge."""
        ...

    @property
    def is_batch_invariant(self) -> bool:
        """Return whether the draws of a prompt do not depend on the other prompts of the call."""
        ...

    def check(self) -> None:
        """Raise EndpointError if it is plain that nothing would answer."""
        ...

    def sample(self, prompts: Sequence[tuple[Message, ...]], params: SamplingParams) -> list[list[Completion]]:
        """Return ``params.num_samples`` completions for each prompt, in the prompts' order."""
        ...


@runtime_checkable
class FieldSampler(Protocol):
    """A sampler of a model that may refuse fields of a request (:class:`rewardlab.samplers.field_fit.FieldFit`)."""

    @property
    def left_out(self) -> frozenset[str]:
        """Return the fields that the model is asked without: it refuses them, or whoever asks leaves them out."""
        ...


class RequestGate(Protocol):
    """What requests of a limited number pass: each is opened before it is sent and closed when it is answered."""

    async def open(self) -> bool:
        """Wait until another request may be sent; False: none may be sent any more."""
        ...

    def close(self, completion: Completion) -> None:
        """Take the end of a request, answered or failed."""
        ...


@runtime_checkable
class StreamingSampler(Sampler, Protocol):
    """A sampler that can hand over each completion when it is there. Draws do not depend on what else is asked for."""

    @property
    def is_streaming(self) -> bool:
        """Return whether it can: not where all draws of a prompt are one request."""
        ...

    def sample_each(
        self, requests: Iterable[tuple[tuple[Message, ...], int]], params: SamplingParams, gate: RequestGate | None = None
    ) -> Iterator[list[tuple[int, Completion]]]:
        """Yield (number of the request, its completion) as they come, those in a list that came together. A request is a
        prompt and the seed of its one draw; draw n of :meth:`sample` has :func:`prompt_seed` plus n. ``requests`` are taken as
        they are sent, in another thread; a number that the ``gate`` does not let through is left out. Raise
        NotImplementedError unless it :attr:`is_streaming`.
        """
        ...
