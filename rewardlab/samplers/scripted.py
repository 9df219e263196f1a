"""A sampler that a function answers for: a public double for tests, baselines and demonstrations."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rewardlab.samplers.base import SamplingParams
from rewardlab.types import Completion, FinishReason, Message


class ScriptedSampler:
    """Answers every draw with ``handler(messages, draw)``, a text or a ready Completion."""

    def __init__(self, handler: Callable[[tuple[Message, ...], int], str | Completion], name: str = "scripted") -> None:
        self._handler = handler
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    @property
    def is_batch_invariant(self) -> bool:
        return True

    def check(self) -> None:
        """Do nothing: a function always answers."""

    def sample(self, prompts: Sequence[tuple[Message, ...]], params: SamplingParams) -> list[list[Completion]]:
        return [[self._draw(prompt, n) for n in range(params.num_samples)] for prompt in prompts]

    def _draw(self, prompt: tuple[Message, ...], n: int) -> Completion:
        answer = self._handler(prompt, n)
        if isinstance(answer, Completion):
            return answer
        return Completion(answer, FinishReason.STOP, num_tokens=len(answer.split()) + 1)
