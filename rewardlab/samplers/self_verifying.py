"""A sampler whose every draw is judged, verified and, where found wrong, revised (PAG, arXiv 2506.10406, at test time)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rewardlab.prompts.verification import REVISE, VERIFY, read_verification
from rewardlab.samplers.base import Sampler, SamplingParams
from rewardlab.types import Completion, FinishReason, Message, Part

Chat = tuple[Message, ...]


def _say(role: str, text: str) -> Message:
    return Message(role, (Part(text=text),))


class SelfVerifying:
    """Wraps a sampler. A draw's text is its last judgment; its tokens are those of all turns.

    A judgment that was cut off or failed is returned as it is. Judges trained on verified judgments know what they are
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

    def check(self) -> None:
        self._sampler.check()

    def sample(self, prompts: Sequence[Chat], params: SamplingParams) -> list[list[Completion]]:
        drawn = self._sampler.sample(prompts, params)
        flat = [one for row in drawn for one in row]
        chats = [prompt for prompt in prompts for _ in range(params.num_samples)]
        whole = [n for n, one in enumerate(flat) if one.finish is FinishReason.STOP]
        asked = {n: (*chats[n], _say("assistant", flat[n].text), _say("user", VERIFY)) for n in whole}
        verified = self._once(asked, replace(params, seed=params.seed + 1))
        wrong = [n for n, one in verified.items() if one.finish is FinishReason.STOP and read_verification(one.text) is False]
        again = {n: (*asked[n], _say("assistant", verified[n].text), _say("user", REVISE)) for n in wrong}
        revised = self._once(again, replace(params, seed=params.seed + 2))
        done = [self._last([one, verified.get(n), revised.get(n)]) for n, one in enumerate(flat)]
        return [done[start : start + params.num_samples] for start in range(0, len(done), params.num_samples)]

    def _once(self, chats: dict[int, Chat], params: SamplingParams) -> dict[int, Completion]:
        """One draw for each chat."""
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
        )
