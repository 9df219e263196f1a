"""What waits in the queue: a pair to be judged, or a chat to be completed by the judge's model as it is."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any, Protocol

from rewardlab.errors import InputError
from rewardlab.judging.judge import Judge
from rewardlab.samplers.base import UNREADABLE, Sampler, SamplingParams
from rewardlab.types import Completion, FinishReason, Judgment, Message, Order, PreferencePair, VerdictStatus, Vote
from rewardlab.verdicts.votes import both_orders_or_none, in_order

ORDINARY_CHARACTERS = 4096  # of a prompt that is judged together with any other such
FAILED = (VerdictStatus.ERROR, VerdictStatus.TIMEOUT)


_REFUSAL = re.compile(rf"HTTP (?:400|413|415|422)\b|{UNREADABLE}")


def is_refusal(errors: Sequence[str]) -> bool:
    """Return whether the engine said of all of them that the request itself is wrong: too long for its model, most often."""
    return bool(errors) and all(_REFUSAL.match(error) for error in errors)


class JudgeEngine(Judge, Protocol):
    """A judge whose engine can be checked."""

    sampler: Sampler

    def check(self) -> None:
        """Raise if no call would be answered."""
        ...


class Job(Protocol):
    """A request to the engine. Jobs of equal ``kind`` share a batch; if each pair is sampled alone, of equal ``seed`` too."""

    @property
    def seed(self) -> int: ...

    @property
    def num_sequences(self) -> int:
        """Samples that it takes."""
        ...

    @property
    def length_class(self) -> int:
        """Return 0 for texts of an ordinary length, one more for each doubling: a batch is as long as its longest."""
        ...

    @property
    def kind(self) -> Hashable: ...

    def key(self) -> str | None:
        """Return a hash of everything that the result depends on but the engine; equal for equal content. None: the result is
        neither kept nor taken from what was kept."""
        ...

    def run(self, batch: Sequence[Any], engine: JudgeEngine, probability_judge: Judge) -> list[Any]:
        """Return the results of all of ``batch``, jobs of this kind."""
        ...

    def errors(self, result: Any) -> list[str]:
        """Return the errors of samples that the engine failed to draw."""
        ...

    def is_lost(self, result: Any) -> bool:
        """Return whether so many samples failed that there is no result."""
        ...

    def is_final(self, result: Any) -> bool:
        """Return whether the result may stand for the next such request; if not, that one is a new try."""
        ...

    def drawn_again(self, num_tries: int) -> Job:
        """Return the job of a new try, with a seed that neither the tries before nor other votes of the same pair have."""
        ...

    def num_tokens(self, result: Any) -> int:
        """Return the tokens read and written for it."""
        ...

    def statuses(self, result: Any) -> Iterable[str]:
        """Return the verdict statuses of its votes."""
        ...


@dataclass(frozen=True)
class JudgeJob:
    """One pair in the orders given, ``num_votes`` times each; ``by_probability``: by the probability of the verdicts. Where
    ``is_new_draw``, the engine is asked whatever it said before."""

    pair: PreferencePair
    orders: tuple[Order, ...]
    num_votes: int
    seed: int
    by_probability: bool = False
    is_new_draw: bool = False

    @property
    def num_sequences(self) -> int:
        return len(self.orders) * self.num_votes

    @property
    def length_class(self) -> int:
        return _length_class([self.pair.question, *self.pair.responses])

    @property
    def kind(self) -> Hashable:
        return ("pair", self.num_votes, self.by_probability, self.length_class)

    def key(self) -> str | None:
        if self.is_new_draw:
            return None
        options = (",".join(self.orders), str(self.num_votes), str(self.seed), str(self.by_probability))
        return _digest(["pair", self.pair.question, *self.pair.responses, *options], self.pair.images)

    def run(self, batch: Sequence[JudgeJob], engine: JudgeEngine, probability_judge: Judge) -> list[Judgment]:
        judge: Judge = probability_judge if self.by_probability else engine
        pairs, orders = [job.pair for job in batch], [job.orders for job in batch]
        judgments = judge.compare_many(pairs, orders=orders, num_votes=self.num_votes, seed=self.seed)
        return [replace(judgment, votes=tuple(_without_tokens(vote) for vote in judgment.votes)) for judgment in judgments]

    def errors(self, result: Judgment) -> list[str]:
        return [vote.completion.error for vote in result.votes if vote.verdict.status in FAILED]

    def is_lost(self, result: Judgment) -> bool:
        """Return whether all votes of one order failed: those of the other one alone would carry its position bias."""
        return any(all(v.verdict.status in FAILED for v in in_order(result.votes, order)) for order in self.orders)

    def is_final(self, result: Judgment) -> bool:
        """Return whether every order has a vote that names a response, and half of the votes or more are valid."""
        return not self.errors(result) and both_orders_or_none(result, self.orders).share_0 is not None

    def drawn_again(self, num_tries: int) -> JudgeJob:
        return replace(self, seed=_other_seed(self.seed, num_tries))

    def num_tokens(self, result: Judgment) -> int:
        return _num_tokens(vote.completion for vote in result.votes)

    def statuses(self, result: Judgment) -> Iterable[str]:
        return (vote.verdict.status.value for vote in result.votes)


@dataclass(frozen=True)
class ChatJob:
    """Messages, to be completed; where ``is_new_draw``, whatever was drawn for the same ones before."""

    prompt: tuple[Message, ...]
    params: SamplingParams
    is_new_draw: bool = False

    @property
    def num_sequences(self) -> int:
        return self.params.num_samples

    @property
    def length_class(self) -> int:
        return _length_class(part.text for message in self.prompt for part in message.parts)

    @property
    def kind(self) -> Hashable:
        return ("chat", replace(self.params, seed=0), self.length_class)

    @property
    def seed(self) -> int:
        return self.params.seed

    def key(self) -> str | None:
        if self.is_new_draw:
            return None
        parts = []
        for message in self.prompt:
            parts.append(f"role {message.role}")
            for part in message.parts:
                parts.append(f"text {part.text}" if part.image is None else f"image {hashlib.sha256(part.image).hexdigest()}")
        return _digest(["chat", *map(str, astuple(self.params)), *parts], ())

    def run(self, batch: Sequence[ChatJob], engine: JudgeEngine, probability_judge: Judge) -> list[list[Completion]]:
        return list(engine.sampler.sample([job.prompt for job in batch], self.params))

    def errors(self, result: list[Completion]) -> list[str]:
        return [completion.error for completion in result if completion.finish in (FinishReason.ERROR, FinishReason.TIMEOUT)]

    def is_lost(self, result: list[Completion]) -> bool:
        """Return whether any sample failed: no client expects fewer choices than it asked for."""
        return bool(self.errors(result))

    def is_final(self, result: list[Completion]) -> bool:
        return not self.errors(result)

    def drawn_again(self, num_tries: int) -> ChatJob:
        return replace(self, params=replace(self.params, seed=_other_seed(self.seed, num_tries)))

    def num_tokens(self, result: list[Completion]) -> int:
        return _num_tokens(result)

    def statuses(self, result: list[Completion]) -> Iterable[str]:
        return ()


def family_of(job: Job) -> Hashable:
    """Return what jobs have in common whose calls take alike long."""
    return type(job), job.length_class


def _other_seed(seed: int, num_tries: int) -> int:
    """Return a seed of 31 bits: the one after ``seed`` is that of its second vote."""
    return int.from_bytes(hashlib.sha256(f"{seed} {num_tries}".encode()).digest()[:4], "big") // 2


def _length_class(texts: Iterable[str]) -> int:
    return (sum(map(len, texts)) // ORDINARY_CHARACTERS).bit_length()


def _num_tokens(completions: Iterable[Completion]) -> int:
    return sum(completion.num_prompt_tokens + completion.num_tokens for completion in completions)


def _without_tokens(vote: Vote) -> Vote:
    """Drop tokens and their log-probs: thousands of results are cached, and no response has these."""
    return replace(vote, completion=replace(vote.completion, token_ids=(), logprobs=()))


def _digest(texts: Iterable[str], images: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for text in texts:
        data = text.encode(errors="surrogatepass")
        digest.update(f"{len(data)}:".encode() + data)
    for image in images:
        digest.update(hashlib.sha256(image).digest())
    return digest.hexdigest()


def engine_failed(job: Job, result: Any) -> bool:
    """Return whether the engine is at fault; an error in the request itself does not count."""
    if isinstance(result, Exception):
        return not isinstance(result, InputError)
    return job.is_lost(result) and not is_refusal(job.errors(result))
