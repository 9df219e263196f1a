"""Any OpenAI-compatible endpoint: one chat completion at a time, many of them at once, none of them forever."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import httpx
import openai

from rewardlab.data.images import to_data_url
from rewardlab.errors import EndpointError
from rewardlab.samplers.background import Background
from rewardlab.samplers.base import SamplingParams
from rewardlab.types import Completion, FinishReason, Message

REST_S = 10.0  # how long an endpoint that failed is left alone where there is another
# vLLM's own fields.
_EXTRA = {"continue_final_message", "add_generation_prompt", "return_token_ids", "top_k", "min_p", "repetition_penalty"}

# Some servers leave the reason out; any other (a content filter, a tool call) means the answer is not the whole judgment.
_FINISH = {"stop": FinishReason.STOP, None: FinishReason.STOP, "length": FinishReason.LENGTH}


def content_of(message: Message) -> str | list[dict[str, Any]]:
    """A message's content as the API takes it: a plain text, or parts with images as data URLs."""
    if not message.images:
        return message.text
    return [
        {"type": "text", "text": part.text}
        if part.image is None
        else {"type": "image_url", "image_url": {"url": to_data_url(part.image)}}
        for part in message.parts
    ]


class ChatEndpoint:
    """One model behind one base URL.

    429, 5xx and connection errors are retried ``retries`` times with back-off (a Retry-After is honoured); every request,
    retries included, ends within ``deadline_s`` seconds. ``concurrency`` bounds the requests in flight.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str = "none",
        concurrency: int = 32,
        deadline_s: float = 120.0,
        retries: int = 4,
    ) -> None:
        self.base_url, self.model, self.deadline_s = base_url, model, deadline_s
        limits = httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
        self._client = openai.AsyncOpenAI(
            base_url=base_url,
            api_key=api_key,
            max_retries=retries,
            timeout=deadline_s,
            http_client=openai.DefaultAsyncHttpxClient(limits=limits, timeout=deadline_s),
        )
        self._slots = asyncio.Semaphore(concurrency)
        self.in_flight, self.rests_until = 0, 0.0

    async def complete(
        self, prompt: Sequence[Message], *, temperature: float, top_p: float, max_tokens: int, seed: int
    ) -> Completion:
        """One draw. Never raises for a failing endpoint: the failure is the completion's finish and error."""
        sampling = {"temperature": temperature, "top_p": top_p, "max_tokens": max_tokens, "seed": seed}
        return _completions(await self.ask(prompt, sampling), 1)[0]

    async def ask(self, prompt: Sequence[Message], body: Mapping[str, Any]) -> Any:
        """The API's answer to a chat and further fields, or a Completion that says why there is none."""
        self.in_flight += 1
        try:
            async with self._slots, asyncio.timeout(self.deadline_s):
                messages = [{"role": m.role, "content": content_of(m)} for m in prompt]
                known = {name: value for name, value in body.items() if name not in _EXTRA}
                extra = {name: value for name, value in body.items() if name in _EXTRA}
                answer = await self._client.chat.completions.create(
                    model=self.model, messages=messages, extra_body=extra or None, **known
                )
                self.rests_until = 0.0
                return answer
        except (TimeoutError, openai.APITimeoutError):
            return self._failed(FinishReason.TIMEOUT, f"no answer within {self.deadline_s:g} s")
        except openai.APIStatusError as error:
            fault = error.status_code == 429 or error.status_code >= 500
            return self._failed(FinishReason.ERROR, f"HTTP {error.status_code}: {error.message}", its_fault=fault)
        except openai.OpenAIError as error:
            return self._failed(FinishReason.ERROR, f"{type(error).__name__}: {error}")
        except ValueError as error:  # a body that is no JSON
            return self._failed(FinishReason.ERROR, f"garbled answer: {error}")
        finally:
            self.in_flight -= 1

    def _failed(self, finish: FinishReason, error: str, *, its_fault: bool = True) -> Completion:
        if its_fault:
            self.rests_until = time.monotonic() + REST_S
        return _failed(finish, error)

    @property
    def rests(self) -> bool:
        """Whether it failed lately; another one is asked first."""
        return time.monotonic() < self.rests_until

    async def check(self) -> None:
        """Raise EndpointError unless the endpoint answers to a request for its models."""
        try:
            async with asyncio.timeout(min(self.deadline_s, 15)):
                await self._client.with_options(max_retries=0).models.list()
        except openai.APIStatusError:
            return  # it answers; not every server lists its models
        except (TimeoutError, openai.OpenAIError, ValueError) as error:
            raise EndpointError(
                f"{self.base_url}: no OpenAI-compatible endpoint answers ({type(error).__name__}); is the server running?"
            ) from error

    async def aclose(self) -> None:
        await self._client.close()


def _failed(finish: FinishReason, error: str) -> Completion:
    return Completion("", finish, error=error[:500])


def _completions(answer: Any, number: int) -> list[Completion]:
    """``number`` Completions from the API's object; an answer without the fields it promises is an ERROR."""
    if isinstance(answer, Completion):
        return [answer] * number
    try:
        choices = sorted(answer.choices, key=lambda choice: choice.index or 0)
        prompt_tokens = (answer.usage.prompt_tokens or 0) if answer.usage else 0
        written = (answer.usage.completion_tokens or 0) if answer.usage else 0
    except (AttributeError, TypeError) as error:
        return [_failed(FinishReason.ERROR, f"garbled answer: {error!r}")] * number
    if len(choices) != number:
        return [_failed(FinishReason.ERROR, f"garbled answer: {len(choices)} choices in place of {number}")] * number
    return [_completion(choice, written if number == 1 else None, prompt_tokens) for choice in choices]


def _completion(choice: Any, num_tokens: int | None, num_prompt_tokens: int) -> Completion:
    try:
        text, reason = choice.message.content, choice.finish_reason
        # Servers with a reasoning parser strip <think>...</think> into a field of its own: put it back where it was.
        reasoning = getattr(choice.message, "reasoning", None) or getattr(choice.message, "reasoning_content", None)
        scored = choice.logprobs.content if getattr(choice, "logprobs", None) is not None else None
        logprobs = tuple(token.logprob for token in scored or ())
        ids = tuple(getattr(choice, "token_ids", None) or ())
    except (AttributeError, TypeError) as error:
        return _failed(FinishReason.ERROR, f"garbled answer: {error!r}")
    if not isinstance(text, str) or reason not in _FINISH:
        return _failed(FinishReason.ERROR, f"no text in the answer, or not to its end (finish reason {reason!r})")
    if isinstance(reasoning, str) and reasoning and "<think>" not in text:
        text = f"<think>{reasoning}</think>{text}"
    text = text.encode(errors="replace").decode()  # half a surrogate pair is no character and cannot be stored
    count = num_tokens if num_tokens is not None else len(ids) or len(logprobs)
    return Completion(text, _FINISH[reason], count, num_prompt_tokens, ids, logprobs)


class OpenAISampler:
    """A Sampler over one or several :class:`ChatEndpoint` that serve the same model.

    Draw ``n`` of a prompt is a request of its own with seed ``seed + n``; with ``many`` all draws of a prompt are one request
    with ``n``, which not every server knows. The endpoint with the fewest requests in flight is asked; one that fails is left
    alone for a while, and what it failed at is asked of another. ``body`` are further fields of every request. Connections are
    kept between calls.
    """

    def __init__(
        self,
        base_urls: str | Sequence[str],
        model: str,
        *,
        api_key: str = "none",
        concurrency: int = 32,
        deadline_s: float = 120,
        many: bool = False,
        body: Mapping[str, Any] | None = None,
        name: str = "",
    ) -> None:
        self._urls = [base_urls] if isinstance(base_urls, str) else list(base_urls)
        self._many, self._body = many, dict(body or {})
        self._model, self._name = model, name
        options: dict[str, Any] = {"api_key": api_key, "concurrency": concurrency, "deadline_s": deadline_s}
        options["retries"] = 4 if len(self._urls) == 1 else 1  # another endpoint is the better second try
        self._background = Background(partial(_opened, self._urls, model, options))

    @property
    def name(self) -> str:
        return self._name or f"openai:{self._model}@{','.join(self._urls)}"

    @property
    def draws_alone(self) -> bool:
        return True

    def check(self) -> None:
        """Raise EndpointError unless one of the endpoints answers."""
        self._background.run(self._check)

    async def _check(self, endpoints: Sequence[ChatEndpoint]) -> None:
        found = await asyncio.gather(*(one.check() for one in endpoints), return_exceptions=True)
        for one, error in zip(endpoints, found, strict=True):
            if error is None:
                one.rests_until = 0.0
        if all(found):
            raise next(error for error in found if error)

    def sample(self, prompts: Sequence[tuple[Message, ...]], params: SamplingParams) -> list[list[Completion]]:
        return self._background.run(lambda endpoints: self._sample(endpoints, prompts, params))

    async def _sample(
        self, endpoints: Sequence[ChatEndpoint], prompts: Sequence[tuple[Message, ...]], params: SamplingParams
    ) -> list[list[Completion]]:
        k = params.num_samples
        sampling = {"temperature": params.temperature, "top_p": params.top_p, "max_tokens": params.max_tokens}

        async def drawn(prompt: tuple[Message, ...], seed: int, number: int) -> list[Completion]:
            many = {"n": number} if number > 1 else {}
            return _completions(await ask_any(endpoints, prompt, {**self._body, **sampling, **many, "seed": seed}), number)

        if self._many and params.temperature == 0:  # all draws are the same one, and vLLM refuses to make it twice
            return [one * k for one in await asyncio.gather(*(drawn(prompt, params.seed, 1) for prompt in prompts))]
        if self._many:
            return list(await asyncio.gather(*(drawn(prompt, params.seed, k) for prompt in prompts)))
        singles = await asyncio.gather(*(drawn(prompt, params.seed + n, 1) for prompt in prompts for n in range(k)))
        flat = [one for [one] in singles]
        return [flat[i * k : (i + 1) * k] for i in range(len(prompts))]


@asynccontextmanager
async def _opened(urls: Sequence[str], model: str, options: dict[str, Any]) -> AsyncIterator[list[ChatEndpoint]]:
    endpoints = [ChatEndpoint(url, model, **options) for url in urls]
    try:
        yield endpoints
    finally:
        for one in endpoints:
            await one.aclose()


async def ask_any(endpoints: Sequence[ChatEndpoint], prompt: Sequence[Message], body: Mapping[str, Any]) -> Any:
    """The answer of the least busy endpoint that has not failed lately; where it fails now, of the next one."""
    answer: Any = None
    tried: set[int] = set()
    while len(tried) < len(endpoints):
        at = min(set(range(len(endpoints))) - tried, key=lambda n: (endpoints[n].rests, endpoints[n].in_flight))
        tried.add(at)
        answer = await endpoints[at].ask(prompt, body)
        # A time-out has used up the request's time; a request that is refused is refused everywhere.
        if not (isinstance(answer, Completion) and answer.finish is FinishReason.ERROR and endpoints[at].rests):
            break
    return answer
