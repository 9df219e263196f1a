"""The jobs of the queue, pairs to be judged and chats to be completed, and how an engine runs a batch of them."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import astuple, dataclass, replace
from queue import SimpleQueue
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
    """Return whether all errors say that the request itself is wrong, such as too long for the engine's model."""
    return bool(errors) and all(_REFUSAL.match(error) for error in errors)


class JudgeEngine(Judge, Protocol):
    """A judge whose engine can be checked."""

    sampler: Sampler

    @property
    def of_one_turn(self) -> Sampler:
        """Return what answers chats."""
        ...

    def check(self) -> None:
        """Raise if no call would be answered."""


@dataclass(frozen=True)
class JudgeJob:
    """A pair to be judged ``num_votes`` times in each of ``orders``; with ``by_probability`` by the probability of its verdict.

    Jobs of equal ``kind`` share a batch (and of equal ``seed``, if the engine samples each pair alone), which ``run`` gives to
    the engine. ``key`` is a hash of everything that the result depends on but the engine, None for a result that is not cached.
    """

    pair: PreferencePair
    orders: tuple[Order, ...]
    num_votes: int
    seed: int
    by_probability: bool = False

    @property
    def num_sequences(self) -> int:
        return len(self.orders) * self.num_votes

    @property
    def length_class(self) -> int:
        """Return 0 for texts of ordinary length, 1 more for each doubling: a batch is as long as its longest prompt."""
        return _length_class([self.pair.question, *(text for text, _ in self.pair.listed)])

    @property
    def kind(self) -> Hashable:
        return ("pair", self.num_votes, self.by_probability, self.length_class)

    def key(self) -> str:
        criteria = json.dumps([astuple(criterion) for criterion in self.pair.criteria])
        options = (",".join(self.orders), str(self.num_votes), str(self.seed), str(self.by_probability), criteria)
        texts, of_texts = zip(*self.pair.listed, strict=True)
        images = (*self.pair.images, *(image for images in of_texts for image in images))  # marks tell them apart
        return _digest(["pair", self.pair.question, *texts, *options], images)

    def run(self, batch: Sequence[Any], engine: JudgeEngine, probability_judge: Judge) -> list[Judgment]:
        judge: Judge = probability_judge if self.by_probability else engine
        pairs, orders = [job.pair for job in batch], [job.orders for job in batch]
        judgments = judge.compare_many(pairs, orders=orders, num_votes=self.num_votes, seed=self.seed)
        return [replace(judgment, votes=tuple(_without_tokens(vote) for vote in judgment.votes)) for judgment in judgments]

    def errors(self, result: Judgment) -> list[str]:
        return [vote.completion.error for vote in result.votes if vote.verdict.status in FAILED]

    def is_lost(self, result: Judgment) -> bool:
        """Return whether all votes of one order failed: those of the other order alone carry its position bias."""
        return any(all(v.verdict.status in FAILED for v in in_order(result.votes, order)) for order in self.orders)

    def is_final(self, result: Judgment) -> bool:
        """Return whether the result may be cached: every order has a vote for a response, and at least half are valid."""
        return not self.errors(result) and both_orders_or_none(result, self.orders).share_0 is not None

    def drawn_again(self, num_tries: int) -> JudgeJob:
        """Return the job of a new try, with a seed of neither the tries before nor other votes on the pair."""
        return replace(self, seed=_other_seed(self.seed, num_tries))

    def num_tokens(self, result: Judgment) -> int:
        return _num_tokens(vote.completion for vote in result.votes)

    def statuses(self, result: Judgment) -> Iterable[str]:
        return (vote.verdict.status.value for vote in result.votes)


@dataclass(frozen=True)
class ChatJob:
    """A chat to be completed by the judge's model as it is; with ``is_new_draw`` no cached result is used."""

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

    def run(self, batch: Sequence[Any], engine: JudgeEngine, probability_judge: Judge) -> list[list[Completion]]:
        return list(engine.of_one_turn.sample([job.prompt for job in batch], self.params))

    def errors(self, result: list[Completion]) -> list[str]:
        return [completion.error for completion in result if completion.finish in (FinishReason.ERROR, FinishReason.TIMEOUT)]

    def is_lost(self, result: list[Completion]) -> bool:
        """Return whether any sample failed: clients expect as many choices as they asked for."""
        return bool(self.errors(result))

    def is_final(self, result: list[Completion]) -> bool:
        return not self.errors(result)

    def drawn_again(self, num_tries: int) -> ChatJob:
        return replace(self, params=replace(self.params, seed=_other_seed(self.seed, num_tries)))

    def num_tokens(self, result: list[Completion]) -> int:
        return _num_tokens(result)

    def statuses(self, result: list[Completion]) -> Iterable[str]:
        return ()


Job = JudgeJob | ChatJob


def family_of(job: Job) -> Hashable:
    """Return a key of jobs whose calls take equally long."""
    return type(job), job.length_class


def _other_seed(seed: int, num_tries: int) -> int:
    """Return a seed of 31 bits; ``seed + 1`` would be the seed of a second vote."""
    return int.from_bytes(hashlib.sha256(f"{seed} {num_tries}".encode()).digest()[:4], "big") // 2


def _length_class(texts: Iterable[str]) -> int:
    return (sum(map(len, texts)) // ORDINARY_CHARACTERS).bit_length()


def _num_tokens(completions: Iterable[Completion]) -> int:
    return sum(completion.num_prompt_tokens + completion.num_tokens for completion in completions)


def _without_tokens(vote: Vote) -> Vote:
    """Drop tokens and their logprobs: thousands of results are cached, and no response contains them."""
    return replace(vote, completion=replace(vote.completion, token_ids=(), logprobs=()))


def _digest(texts: Iterable[str], images: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for text in texts:
        data = text.encode(errors="surrogatepass")
        digest.update(f"{len(data)}:".encode() + data)
    for image in images:
        digest.update(_DIGESTS.of(image))
    return digest.hexdigest()


class ImageDigests:
    """SHA-256 of images in use, by object: in a group each image is in many pairs, whose keys are made while other requests
    wait. Holds up to ``max_bytes`` of images, the most recently used ones."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes, self._bytes, self._lock = max_bytes, 0, threading.Lock()
        self._known: OrderedDict[int, tuple[bytes, bytes]] = OrderedDict()  # an object that is held keeps its id

    def of(self, image: bytes) -> bytes:
        with self._lock:
            if (known := self._known.get(id(image))) is not None:
                self._known.move_to_end(id(image))
                return known[1]
        digest = hashlib.sha256(image).digest()
        with self._lock:
            if id(image) not in self._known:
                self._known[id(image)] = image, digest
                self._bytes += len(image)
            while self._bytes > self._max_bytes:
                self._bytes -= len(self._known.popitem(last=False)[1][0])
        return digest


_DIGESTS = ImageDigests(200_000_000)  # about as many as the store of checked images holds anyway


def engine_failed(job: Job, result: Any) -> bool:
    """Return whether the engine failed; an error in the request itself does not count."""
    if isinstance(result, Exception):
        return not isinstance(result, InputError)
    return job.is_lost(result) and not is_refusal(job.errors(result))


class BatchCall:
    """The engine calls for one batch, in the engine thread. Set ``is_abandoned`` when nobody waits for the results any more: a
    running call cannot be stopped, but no other one follows it."""

    def __init__(self, judge: JudgeEngine, probability_judge: Judge) -> None:
        self._judge, self._probability_judge = judge, probability_judge
        self.is_abandoned = False

    def run(self, jobs: Sequence[Job]) -> list[Any]:
        """Return a result or an exception for each job. A call that fails is retried in halves until the bad job is alone,
        unless the engine is down."""
        try:
            return jobs[0].run(jobs, self._judge, self._probability_judge)
        except Exception as error:  # the boundary: an engine may fail in any way, and each request gets the error
            if len(jobs) == 1 or self.is_abandoned or not (isinstance(error, InputError) or self._is_there()):
                return [error] * len(jobs)
            reason = error
        half, results = len(jobs) // 2, list[Any]()
        for part in (jobs[:half], jobs[half:]):
            results += [reason] * len(part) if self.is_abandoned else self.run(part)
        return results

    def _is_there(self) -> bool:
        try:
            self._judge.check()
        except Exception:  # the boundary: it may be down in any way
            return False
        return True


class EngineThread:
    """A daemon thread that runs blocking engine calls one by one until ``close``: a call that hangs does not keep the process
    alive."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None] = SimpleQueue()
        threading.Thread(target=self._work, name="engine", daemon=True).start()

    def run(self, call: Callable[[], Any]) -> asyncio.Future[Any]:
        """Return a future of the running loop with the result or the exception of ``call``."""
        future = asyncio.get_running_loop().create_future()
        self._calls.put((call, future))
        return future

    def close(self) -> None:
        self._calls.put(None)

    def _work(self) -> None:
        while (item := self._calls.get()) is not None:
            call, future = item
            result, error = None, None
            try:
                result = call()
            except BaseException as raised:  # the boundary: it is the caller's
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                future.get_loop().call_soon_threadsafe(_settle, future, result, error)
            del item, call, future, result, error  # neither pairs nor judge are kept alive until the next call


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
