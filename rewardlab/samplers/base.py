"""The seam between judging and whatever generates text."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rewardlab.types import Completion, Message


@dataclass(frozen=True)
class SamplingParams:
    """``temperature`` 0 is greedy. ``num_samples`` draws per prompt. ``seed`` fixes the draws of this very call."""

    num_samples: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 1024
    seed: int = 0


def own_seed(seed: int, prompt: Sequence[Message]) -> int:
    """The seed of one prompt's request, by ``seed`` and what it says and shows: an engine gives each request a generator by its
    seed, and of prompts with one and the same all would be drawn by the same luck."""
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
        """What a report calls this judge."""
        ...

    @property
    def is_batch_invariant(self) -> bool:
        """Whether what is drawn for a prompt does not depend on which others are asked in the same call."""
        ...

    def check(self) -> None:
        """Raise EndpointError where it is plain that nothing would answer."""
        ...

    def sample(self, prompts: Sequence[tuple[Message, ...]], params: SamplingParams) -> list[list[Completion]]:
        """``params.num_samples`` completions for each prompt, in the prompts' order."""
        ...
