"""What waits in the queue: a pair to be judged, or a chat to be completed by the judge's model as it is."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any, Protocol

from rewardlab.judging.judge import Judge
from rewardlab.samplers.base import Sampler, SamplingParams
from rewardlab.types import Completion, FinishReason, Judgment, Message, Order, PreferencePair, VerdictStatus, Vote
from rewardlab.verdicts.votes import in_order

FAILED = (VerdictStatus.ERROR, VerdictStatus.TIMEOUT)


_REFUSED = re.compile(r"HTTP (?:400|413|415|422)\b")


def refused(errors: Sequence[str]) -> bool:
    """Whether an endpoint said of all of them that the request itself is wrong: too long for its model, most often."""
    return bool(errors) and all(_REFUSED.match(error) for error in errors)


class Engine(Judge, Protocol):
    """A judge that can be looked after."""

    sampler: Sampler

    def check(self) -> None:
        """Raise where nothing would answer."""
        ...


class Question(Protocol):
    """Asked of an engine together with others of equal ``kind``; where each is drawn alone, of equal ``seed`` too."""

    @property
    def seed(self) -> int: ...

    @property
    def num_sequences(self) -> int:
        """Samples that it takes."""
        ...

    @property
    def kind(self) -> Hashable: ...

    def key(self) -> str:
        """Of everything that the answer depends on but the engine; equal for equal content."""
        ...

    def ask(self, together: Sequence[Any], engine: Engine, weigher: Judge) -> list[Any]:
        """The answers to all of ``together``."""
        ...

    def lost(self, answer: Any) -> list[str]:
        """What went wrong with samples that the engine failed to draw."""
        ...

    def is_lost(self, answer: Any) -> bool:
        """Whether so many of them failed that there is no answer."""
        ...

    def statuses(self, answer: Any) -> Iterable[str]:
        """What was read in its votes."""
        ...


@dataclass(frozen=True)
class Ask:
    """One pair in the orders given, ``num_votes`` times each; ``weighs``: by the probability of the verdicts."""

    pair: PreferencePair
    orders: tuple[Order, ...]
    num_votes: int
    seed: int
    weighs: bool = False

    @property
    def num_sequences(self) -> int:
        return len(self.orders) * self.num_votes

    @property
    def kind(self) -> Hashable:
        return ("pair", self.num_votes, self.weighs)

    def key(self) -> str:
        rest = (",".join(self.orders), str(self.num_votes), str(self.seed), str(self.weighs))
        return _digest(["pair", self.pair.question, *self.pair.responses, *rest], self.pair.images)

    def ask(self, together: Sequence[Ask], engine: Engine, weigher: Judge) -> list[Judgment]:
        judge: Judge = weigher if self.weighs else engine
        pairs, orders = [one.pair for one in together], [one.orders for one in together]
        judged = judge.compare_many(pairs, orders=orders, num_votes=self.num_votes, seed=self.seed)
        return [replace(one, votes=tuple(_told(vote) for vote in one.votes)) for one in judged]

    def lost(self, answer: Judgment) -> list[str]:
        return [vote.completion.error for vote in answer.votes if vote.verdict.status in FAILED]

    def is_lost(self, answer: Judgment) -> bool:
        """All of one order: what is left would lean to one place."""
        return any(all(v.verdict.status in FAILED for v in in_order(answer.votes, order)) for order in self.orders)

    def statuses(self, answer: Judgment) -> Iterable[str]:
        votes: tuple[Vote, ...] = answer.votes
        return (vote.verdict.status.value for vote in votes)


@dataclass(frozen=True)
class Chat:
    """Messages, to be completed."""

    prompt: tuple[Message, ...]
    params: SamplingParams

    @property
    def num_sequences(self) -> int:
        return self.params.num_samples

    @property
    def kind(self) -> Hashable:
        return ("chat", replace(self.params, seed=0))

    @property
    def seed(self) -> int:
        return self.params.seed

    def key(self) -> str:
        said = []
        for message in self.prompt:
            said.append(f"role {message.role}")
            for part in message.parts:
                said.append(f"text {part.text}" if part.image is None else f"image {hashlib.sha256(part.image).hexdigest()}")
        return _digest(["chat", *map(str, astuple(self.params)), *said], ())

    def ask(self, together: Sequence[Chat], engine: Engine, weigher: Judge) -> list[list[Completion]]:
        return list(engine.sampler.sample([one.prompt for one in together], self.params))

    def lost(self, answer: list[Completion]) -> list[str]:
        return [one.error for one in answer if one.finish in (FinishReason.ERROR, FinishReason.TIMEOUT)]

    def is_lost(self, answer: list[Completion]) -> bool:
        """Any: a client knows no choice without."""
        return bool(self.lost(answer))

    def statuses(self, answer: list[Completion]) -> Iterable[str]:
        return ()


def _told(vote: Vote) -> Vote:
    """Without tokens and their log-probs: thousands of answers are kept, and nobody is told of these."""
    return replace(vote, completion=replace(vote.completion, token_ids=(), logprobs=()))


def _digest(texts: Iterable[str], images: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for text in texts:
        data = text.encode(errors="surrogatepass")
        digest.update(f"{len(data)}:".encode() + data)
    for image in images:
        digest.update(hashlib.sha256(image).digest())
    return digest.hexdigest()
