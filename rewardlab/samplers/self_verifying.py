"""A sampler whose every draw is judged, verified and, where found wrong, revised (PAG, arXiv 2506.10406, at test time)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rewardlab.prompts.verification import REVISE, VERIFY, read_verification
from rewardlab.samplers.base import FieldSampler, Sampler, SamplingParams
from rewardlab.types import Completion, FinishReason, Message, Part

Chat = tuple[Message, ...]


def _turn(role: str, text: str) -> Message:
    return Message(role, (Part(text=text),))


class SelfVerifying:
    """Wraps a sampler. A draw's text is its last judgment; its tokens are those of all turns, whose texts are its ``turns``.

    A judgment that was cut off or failed is returned as it is; where its verification failed or was cut off, the judgment
    stands. Judges trained on verified judgments know what they are
    asked; a chat template that drops the reasoning of earlier turns shows them less than training did.
    """

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    @property
    def name(self) -> str:
        return f"{self._sampler.name}, self-verifying"

    @property
    def is_batch_invariant(self) -> bool:
        return self._sampler.is_batch_invariant

    @property
    def left_out(self) -> frozenset[str]:
        return self._sampler.left_out if isinstance(self._sampler, FieldSampler) else frozenset()

    def check(self) -> None:
        self._sampler.check()

    def sample(self, prompts: Sequence[Chat], params: SamplingParams) -> list[list[Completion]]:
        drawn = self._sampler.sample(prompts, params)
        first = [completion for row in drawn for completion in row]
        chats = [prompt for prompt in prompts for _ in range(params.num_samples)]
        finished = [n for n, completion in enumerate(first) if completion.finish is FinishReason.STOP]
        checks = {n: (*chats[n], _turn("assistant", first[n].text), _turn("user", VERIFY)) for n in finished}
        verified = self._once(checks, replace(params, seed=params.seed + 1))
        wrong = [
            n for n, check in verified.items() if check.finish is FinishReason.STOP and read_verification(check.text) is False
        ]
        revisions = {n: (*checks[n], _turn("assistant", verified[n].text), _turn("user", REVISE)) for n in wrong}
        revised = self._once(revisions, replace(params, seed=params.seed + 2))
        last = [self._last([completion, verified.get(n), revised.get(n)]) for n, completion in enumerate(first)]
        return [last[start : start + params.num_samples] for start in range(0, len(last), params.num_samples)]

    def _once(self, chats: dict[int, Chat], params: SamplingParams) -> dict[int, Completion]:
        """Return one draw for each chat."""
        if not chats:
            return {}
        rows = self._sampler.sample(list(chats.values()), replace(params, num_samples=1))
        return {n: row[0] for n, row in zip(chats, rows, strict=True)}

    @staticmethod
    def _last(turns: list[Completion | None]) -> Completion:
        first, verification, revision = turns
        assert first is not None
        taken = [turn for turn in (first, verification, revision) if turn is not None]
        return replace(
            revision or first,
            num_tokens=sum(turn.num_tokens for turn in taken),
            num_prompt_tokens=sum(turn.num_prompt_tokens for turn in taken),
            from_cache=all(turn.from_cache for turn in taken),
            turns=tuple(turn.text for turn in taken) if len(taken) > 1 else (),
        )
