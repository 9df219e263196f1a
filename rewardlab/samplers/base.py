"""The seam between judging and what generates text; and a sampler that verifies another's judgments."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, runtime_checkable

from rewardlab.errors import ConfigError, MediaError
from rewardlab.prompts.verification import VerifyTurns
from rewardlab.types import Completion, FinishReason, Message, Part
from rewardlab.verdicts.turns import JudgmentTurns

if TYPE_CHECKING:
    from rewardlab.config.judge import QueryConfig


UNREADABLE = "unreadable prompt"  # begins the error of a completion whose prompt a sampler cannot take
HF, VLLM, OPENAI, HEADS = "hf", "vllm", "openai", "head"  # engines, as specifications of judges name them


@dataclass(frozen=True)
class EngineOptions:
    """How an engine is opened; each engine takes what concerns it.

    ``query``: how the judge is queried: ``batch_size`` (hf), ``engine_args`` (vllm: options of ``vllm serve``; hf:
    :data:`rewardlab.samplers.hf.READING`), fields of requests and ``cache`` (openai). ``api_key`` (openai).
    ``restart_after_s``: the engine runs in a process of its own, restarted if it dies or takes longer; None: in this one.
    ``isolates``: a prompt that cannot be read fails alone, not the call (hf).
    """

    query: QueryConfig
    api_key: str = "none"
    restart_after_s: float | None = None
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
    """``temperature`` 0 is greedy. ``num_samples`` draws per prompt. ``seed`` fixes the draws of this very call.
    ``response_format``: OpenAI's, as JSON, for samplers that :attr:`FormatSampler.takes_response_format` ("": any text)."""

    num_samples: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 1024
    seed: int = 0
    response_format: str = ""

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


@runtime_checkable
class FormatSampler(Protocol):
    """A sampler whose engine writes in the form that a request names."""

    takes_response_format: bool


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
        self,
        requests: Iterable[tuple[tuple[Message, ...], int]],
        params: SamplingParams,
        gate: RequestGate | None = None,
        turns: InTurns | None = None,
    ) -> Iterator[list[tuple[int, Completion]]]:
        """Yield (number of the request, its completion) as they come, those in a list that came together. A request is a
        prompt and the seed of its one draw; draw n of :meth:`sample` has :func:`prompt_seed` plus n. ``requests`` are taken as
        they are sent, in another thread; a number that the ``gate`` does not let through is left out. With ``turns`` a
        completion is that of all turns, turn t with :data:`TURN_SEEDS` t added to its seed. Raise NotImplementedError unless it
        :attr:`is_streaming`.
        """
        ...


Chat = tuple[Message, ...]
TURN_SEEDS = 10_000  # between the seeds of a draw's turns


def _turn(role: str, text: str) -> Message:
    return Message(role, (Part(text=text),))


class InTurns:
    """Wraps a sampler. A draw is a judgment of several turns (:mod:`rewardlab.verdicts.turns`). Its text is that of all; one
    whose first turn was cut off or failed is returned as it is."""

    def __init__(self, sampler: Sampler, turns: JudgmentTurns) -> None:
        self.of_one_turn, self._turns = sampler, turns
        self.num_turns = turns.most

    @property
    def name(self) -> str:
        return self.of_one_turn.name

    @property
    def is_batch_invariant(self) -> bool:
        return self.of_one_turn.is_batch_invariant

    @property
    def left_out(self) -> frozenset[str]:
        return self.of_one_turn.left_out if isinstance(self.of_one_turn, FieldSampler) else frozenset()

    def check(self) -> None:
        self.of_one_turn.check()

    @property
    def is_streaming(self) -> bool:
        return isinstance(self.of_one_turn, StreamingSampler) and self.of_one_turn.is_streaming

    def sample_each(
        self,
        requests: Iterable[tuple[Chat, int]],
        params: SamplingParams,
        gate: RequestGate | None = None,
        turns: InTurns | None = None,
    ) -> Iterator[list[tuple[int, Completion]]]:
        assert isinstance(self.of_one_turn, StreamingSampler)
        return self.of_one_turn.sample_each(requests, params, gate, turns or self)

    def sample(self, prompts: Sequence[Chat], params: SamplingParams) -> list[list[Completion]]:
        number = params.num_samples
        if self.is_streaming:  # no draw waits for the others' turns
            seeded = [(prompt, prompt_seed(params.seed, prompt)) for prompt in prompts]
            requests = ((prompt, seed + n) for prompt, seed in seeded for n in range(number))
            answers = dict(answer for batch in self.sample_each(requests, params) for answer in batch)
            joined = [answers[n] for n in range(len(prompts) * number)]
        else:
            joined = list(map(self.joined, self._turn_by_turn(prompts, params)))
        return [joined[start : start + number] for start in range(0, len(joined), number)]

    def _turn_by_turn(self, prompts: Sequence[Chat], params: SamplingParams) -> list[list[Completion]]:
        """Return the turns of all draws. Equal chats of a prompt are draws of one request, as an engine would answer them alike
        in several."""
        repeated = [(row, prompt) for row, prompt in enumerate(prompts) for _ in range(params.num_samples)]
        drawn = [[completion] for row in self.of_one_turn.sample(prompts, params) for completion in row]
        chats = {n: prompt for n, (_, prompt) in enumerate(repeated)}
        for turn in range(1, self.num_turns):
            chats = {n: chat + more for n, chat in chats.items() if (more := self.more(repeated[n][1], drawn[n]))}
            alike: dict[tuple[int, Chat], list[int]] = {}
            for n, chat in chats.items():
                alike.setdefault((repeated[n][0], chat), []).append(n)
            for number in sorted({len(draws) for draws in alike.values()}):
                group = [(chat, draws) for (_, chat), draws in alike.items() if len(draws) == number]
                rest = replace(params, num_samples=number, seed=params.seed + TURN_SEEDS * turn + number)  # calls differ
                for (_, draws), row in zip(group, self.of_one_turn.sample([chat for chat, _ in group], rest), strict=True):
                    for n, completion in zip(draws, row, strict=True):
                        drawn[n].append(completion)
        return drawn

    def more(self, prompt: Chat, drawn: list[Completion]) -> Chat:
        """Return the judge's last turn and the user's next one, () at the end. An image of which no part can be shown ends the
        judgment with an error, which is put behind ``drawn``."""
        from rewardlab.data.images import part_of_image  # loads numpy

        images = [image for message in prompt for image in message.images]
        is_whole = drawn[-1].finish is FinishReason.STOP
        reply = self._turns.reply([completion.text for completion in drawn], len(images)) if is_whole else None
        if reply is None:
            return ()
        try:
            looked = [Part(image=part_of_image(images[reply.look.image], reply.look))] if reply.look else []
        except MediaError as error:
            drawn.append(Completion("", FinishReason.ERROR, error=f"{UNREADABLE}: {error}"))
            return ()
        return _turn("assistant", drawn[-1].text), Message("user", (*looked, Part(text=reply.text)))

    def joined(self, drawn: Sequence[Completion]) -> Completion:
        """Return the turns of a draw as one completion, with the tokens of all."""
        if len(drawn) == 1:
            return drawn[0]
        return replace(
            self._judgment(drawn),
            num_tokens=sum(completion.num_tokens for completion in drawn),
            num_prompt_tokens=sum(completion.num_prompt_tokens for completion in drawn),
            num_cached_tokens=sum(completion.num_cached_tokens for completion in drawn),
            token_ids=(),
            logprobs=(),
            from_cache=all(completion.from_cache for completion in drawn),
        )

    def _judgment(self, drawn: Sequence[Completion]) -> Completion:
        """Return the judgment of several turns."""
        last = drawn[-1]
        return replace(last, text="" if last.failed else self._turns.join([completion.text for completion in drawn]))


class SelfVerifying(InTurns):
    """Wraps a sampler whose judgments are verified (PAG). A draw's text is its last judgment; its ``turns`` are all texts.

    A judgment that was cut off or failed is returned as it is. A judgment whose verification failed or was cut off counts. A
    chat template that drops the reasoning of earlier turns shows the judge less than training did.
    """

    def __init__(self, sampler: Sampler) -> None:
        super().__init__(sampler, VerifyTurns())

    @property
    def name(self) -> str:
        return f"{self.of_one_turn.name}, self-verifying"

    def _judgment(self, drawn: Sequence[Completion]) -> Completion:
        turns = tuple(completion.text for completion in drawn)
        return replace(drawn[-1] if len(drawn) == self._turns.most else drawn[0], turns=turns)
