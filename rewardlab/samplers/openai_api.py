"""Chat completions of any OpenAI-compatible endpoint: many at once, each within a deadline."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rewardlab.config.judge import RequestConfig
from rewardlab.data.urls import parse_address
from rewardlab.data.votes import completion_of, completion_row
from rewardlab.errors import ConfigError, DataError
from rewardlab.samplers.base import (
    OPENAI,
    TURN_SEEDS,
    EngineOptions,
    InTurns,
    RequestGate,
    Sampler,
    SamplingParams,
    prompt_seed,
)
from rewardlab.samplers.chat_endpoint import ChatEndpoint, ask_any
from rewardlab.samplers.concurrency import in_window
from rewardlab.samplers.event_loop import EventLoopThread
from rewardlab.samplers.field_fit import FieldFit
from rewardlab.samplers.openai_answers import completion_from, completions_from, failed_completion
from rewardlab.types import Completion, FinishReason, Message

LOG = logging.getLogger(__name__)
FILE = "answers.sqlite"
BUSY_S = 1.0  # how long another process may hold the file: a request on its way must not be late for it
_TABLE = "CREATE TABLE IF NOT EXISTS answers (key BLOB PRIMARY KEY, answer TEXT NOT NULL) WITHOUT ROWID"


def answer_key(endpoint: str, prompt: Sequence[Message], body: Mapping[str, Any]) -> bytes:
    """Return what an answer is kept under: the ``endpoint`` (address and model) and the seed of the draw, in one
    text, every text and image of the prompt, and every field of the request."""
    chat = [
        [message.role, [[part.text, part.image and hashlib.sha256(part.image).hexdigest()] for part in message.parts]]
        for message in prompt
    ]
    return hashlib.sha256(json.dumps([endpoint, chat, body], sort_keys=True).encode()).digest()


class AnswerCache:
    """The answers in a folder, which several runs on one machine may use at a time. One that failed, or has no text, is not
    kept. With an answer go the fields that the model was asked without.

    Raise DataError where the folder cannot be written, or its file is no cache.
    """

    def __init__(self, folder: Path) -> None:
        self._path, self._is_full = folder / FILE, False
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # One thread uses it at a time: the loop that requests are sent from.
            self._file = sqlite3.connect(self._path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
            self._file.execute("PRAGMA journal_mode=WAL")
            self._file.execute("PRAGMA synchronous=NORMAL")
            self._file.execute(_TABLE)
        except (OSError, sqlite3.Error) as error:
            raise self._damage(error) from error

    def find(self, key: bytes) -> tuple[Completion, frozenset[str]] | None:
        """Return an answer, and the fields that it was asked without; None where there is none."""
        try:
            row = self._file.execute("SELECT answer FROM answers WHERE key = ?", (key,)).fetchone()
            if row is None:
                return None
            answer = json.loads(row[0])
            return replace(completion_of(answer["completion"]), from_cache=True), frozenset(answer["left_out"])
        except (sqlite3.Error, KeyError, TypeError, ValueError) as error:
            raise self._damage(error) from error

    def keep(self, key: bytes, completion: Completion, left_out: frozenset[str]) -> None:
        """Keep an answer. Where it cannot be written, neither it nor a later one is kept, and that is logged."""
        if self._is_full or completion.failed or not completion.text.strip():
            return
        answer = json.dumps({"completion": completion_row(completion), "left_out": sorted(left_out)})
        try:
            self._file.execute("INSERT OR REPLACE INTO answers VALUES (?, ?)", (key, answer))
        except sqlite3.Error as error:
            LOG.warning("%s: the cache is off from now on: answers cannot be stored (%s)", self._path, error)
            self._is_full = True

    def _damage(self, error: Exception) -> DataError:
        return DataError(f"{self._path}: no cache of answers ({error}); name another folder, or delete this file")


DEADLINE_S, CONCURRENCY, SERVED_CONCURRENCY = 120.0, 32, 256
_DEFAULTS = RequestConfig.model_validate({})


class OpenAISampler:
    """A Sampler over one or several :class:`ChatEndpoint` that serve the same model.

    Draw ``n`` of a prompt is a request of its own with the prompt's own seed plus ``n``; with ``many`` all are one request with
    ``n``, which not every server knows. The endpoint with the fewest requests in flight is asked; one that fails is left
    alone for a while, and what it failed at is asked of another. Connections are kept between calls. Draws that are in the
    ``cache`` are not requested; it holds single draws, and is not for ``many``.
    """

    takes_response_format = True

    def __init__(
        self,
        base_urls: str | Sequence[str],
        model: str,
        *,
        api_key: str = "none",
        request: RequestConfig = _DEFAULTS,
        many: bool = False,
        name: str = "",
        cache: AnswerCache | None = None,
    ) -> None:
        assert not (many and cache)
        self._cache, self._left_out_before = cache, set[str]()
        self._waits_for_check = False
        self._checking: asyncio.Future[None] | None = None
        self._urls = [base_urls] if isinstance(base_urls, str) else list(base_urls)
        self._many, self._request, self._body = many, request, request.fields
        self._model, self._name = model, name
        self._fit = FieldFit(request.max_tokens_field)
        retries = 4 if len(self._urls) == 1 else 1  # another endpoint is the better second try
        endpoint = partial(
            ChatEndpoint,
            model=model,
            api_key=api_key,
            concurrency=request.concurrency or CONCURRENCY,
            deadline_s=request.deadline_s or DEADLINE_S,
            retries=retries,
            fit=self._fit,
        )
        self._background = EventLoopThread(partial(_opened, self._urls, endpoint))

    @property
    def name(self) -> str:
        return self._name or f"{OPENAI}:{self._model}@{','.join(self._urls)}"

    @property
    def is_batch_invariant(self) -> bool:
        return True

    @property
    def is_streaming(self) -> bool:
        return not self._many

    @property
    def left_out(self) -> frozenset[str]:
        """Return the fields that the model is asked without, for it refuses them or the body says so; of answers in the cache,
        was asked without."""
        return self._fit.left_out | self._request.omitted_fields | self._left_out_before

    def _cached(self, key: bytes) -> Completion | None:
        entry = self._cache.find(key) if self._cache is not None else None
        if entry is None:
            return None
        self._left_out_before |= entry[1]
        return entry[0]

    async def _complete(
        self, endpoints: Sequence[ChatEndpoint], prompt: tuple[Message, ...], body: Mapping[str, Any], key: bytes
    ) -> Completion:
        if self._waits_for_check:
            self._checking, self._waits_for_check = asyncio.ensure_future(self._check(endpoints)), False
        if self._checking is not None:
            await asyncio.shield(self._checking)
        completion = completion_from(await ask_any(endpoints, prompt, body))
        if self._cache is not None:
            self._cache.keep(key, completion, self._fit.left_out)
        return completion

    def _key(self, prompt: tuple[Message, ...], body: Mapping[str, Any], seed: int) -> bytes:
        """The draw's ``seed`` tells draws apart where the body has none."""
        endpoint = f"{self.name} {self._request.max_tokens_field} {seed}"
        return answer_key(endpoint, prompt, body) if self._cache is not None else b""

    def check(self) -> None:
        """Raise EndpointError unless one of the endpoints answers. With a cache the first draw that is not in it raises that:
        where all are, nobody needs to answer."""
        self._waits_for_check = self._cache is not None
        if not self._waits_for_check:
            self._background.run(self._check)

    async def _check(self, endpoints: Sequence[ChatEndpoint]) -> None:
        errors = await asyncio.gather(*(endpoint.check() for endpoint in endpoints), return_exceptions=True)
        for endpoint, error in zip(endpoints, errors, strict=True):
            if error is None:
                endpoint.rests_until = 0.0
        if all(errors):
            raise next(error for error in errors if error)

    def sample(self, prompts: Sequence[tuple[Message, ...]], params: SamplingParams) -> list[list[Completion]]:
        return self._background.run(lambda endpoints: self._sample(endpoints, prompts, params))

    async def _sample(
        self, endpoints: Sequence[ChatEndpoint], prompts: Sequence[tuple[Message, ...]], params: SamplingParams
    ) -> list[list[Completion]]:
        k, form = params.num_samples, params.response_format
        fields = self._body | ({"response_format": json.loads(form)} if form else {})

        async def drawn(prompt: tuple[Message, ...], seed: int, number: int) -> list[Completion]:
            body = {**params.fields, "seed": seed, **fields}
            if number > 1:
                return completions_from(await ask_any(endpoints, prompt, {**body, "n": number}), number)
            key = self._key(prompt, body, seed)
            return [self._cached(key) or await self._complete(endpoints, prompt, body, key)]

        seeded = [(prompt, prompt_seed(params.seed, prompt)) for prompt in prompts]
        if self._many and params.temperature == 0:  # all draws are the same one, and vLLM refuses to make it twice
            return [row * k for row in await asyncio.gather(*(drawn(prompt, seed, 1) for prompt, seed in seeded))]
        if self._many:
            return list(await asyncio.gather(*(drawn(prompt, seed, k) for prompt, seed in seeded)))
        singles = await asyncio.gather(*(drawn(prompt, seed + n, 1) for prompt, seed in seeded for n in range(k)))
        flat = [completion for [completion] in singles]
        return [flat[i * k : (i + 1) * k] for i in range(len(prompts))]

    def sample_each(
        self,
        requests: Iterable[tuple[tuple[Message, ...], int]],
        params: SamplingParams,
        gate: RequestGate | None = None,
        turns: InTurns | None = None,
    ) -> Iterator[list[tuple[int, Completion]]]:
        """Yield (number of the request, its completion) as they come; see :class:`StreamingSampler`."""
        if not self.is_streaming:
            raise NotImplementedError(f"{self.name}: all samples of a prompt are one request")
        return self._background.iterate(lambda endpoints: self._each(endpoints, iter(requests), params, gate, turns))

    async def _each(
        self,
        endpoints: Sequence[ChatEndpoint],
        requests: Iterator[tuple[tuple[Message, ...], int]],
        params: SamplingParams,
        gate: RequestGate | None,
        turns: InTurns | None,
    ) -> AsyncGenerator[list[tuple[int, Completion]]]:
        async def ask(request: tuple[int, tuple[tuple[Message, ...], int]]) -> tuple[int, Completion] | None:
            number, (prompt, seed) = request
            drawn, chat, is_open = list[Completion](), prompt, False
            answer = failed_completion(FinishReason.ERROR, "interrupted")
            try:
                while True:
                    of_turn = seed + TURN_SEEDS * len(drawn)
                    body = {**params.fields, "seed": of_turn, **self._body}
                    key = self._key(chat, body, of_turn)
                    completion = self._cached(key)
                    if completion is None and gate is not None and not is_open:
                        if not await gate.open():
                            return None
                        is_open = True
                    drawn.append(completion or await self._complete(endpoints, chat, body, key))
                    more = () if turns is None else await asyncio.to_thread(turns.more, prompt, drawn)
                    if not more:
                        break
                    chat += more
                answer = drawn[0] if turns is None else turns.joined(drawn)
            finally:
                if is_open and gate is not None:
                    gate.close(answer)
            return number, answer

        async with aclosing(in_window(enumerate(requests), ask, sum(endpoint.slots.most for endpoint in endpoints))) as batches:
            async for batch in batches:
                yield [answer for answer in batch if answer is not None]


@asynccontextmanager
async def _opened(urls: Sequence[str], open_endpoint: Callable[[str], ChatEndpoint]) -> AsyncIterator[list[ChatEndpoint]]:
    endpoints = [open_endpoint(url) for url in urls]
    try:
        yield endpoints
    finally:
        for endpoint in endpoints:
            await endpoint.aclose()


def open_sampler(target: str, options: EngineOptions) -> Sampler:
    """Return a sampler of ``MODEL@URL`` or ``MODEL@URL,URL``. Raise ConfigError for another target."""
    model, at, url = target.partition("@")
    if not (model and at and url.startswith(("http://", "https://"))):
        raise ConfigError(
            f"openai:{target}: expected openai:MODEL@URL, for example openai:gpt-4o@https://host/v1; several as URL,URL"
        )
    urls = url.split(",")
    for each in urls:
        parse_address(each)
    # A server has many requests in flight, and gives up on an engine after a time of its own.
    query, is_served = options.query, options.restart_after_s is not None
    concurrency = query.concurrency or (SERVED_CONCURRENCY if is_served else CONCURRENCY)
    deadline_s = query.deadline_s or options.restart_after_s or DEADLINE_S
    request = query.model_copy(update={"concurrency": concurrency, "deadline_s": deadline_s})
    cache = None if query.cache is None else AnswerCache(query.cache)
    return OpenAISampler(urls, model, api_key=options.api_key, request=request, cache=cache)
