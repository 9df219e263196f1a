"""One chat endpoint: each request within a deadline, tried again where that may help; and the least busy of several."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import openai

from rewardlab.errors import EndpointError
from rewardlab.samplers.base import SamplingParams
from rewardlab.samplers.concurrency import AdaptiveConcurrency, retry_after_s
from rewardlab.samplers.field_fit import FieldFit
from rewardlab.samplers.openai_answers import api_content, completion_from, failed_completion, without_choices
from rewardlab.types import Completion, FinishReason, Message

REST_S = 10.0  # how long an endpoint that failed is left alone where there is another
_OF_FIELDS = ("HTTP 400", "HTTP 422")  # refusals that may be for a field


@dataclass(frozen=True)
class _Failed:
    """A try without an answer: a completion's finish and error, a label to count it by, how long to wait, whether to go on."""

    finish: FinishReason
    error: str
    label: str
    wait_s: float = 0.0
    again: bool = True
    its_fault: bool = True


def _http_client(limits: Any) -> Any:
    """Return a client over aiohttp, or over openai's own httpx where aiohttp is not installed.

    httpx goes through its whole pool at every request: with 256 connections it is half as fast.
    """
    try:
        return openai.DefaultAioHttpClient(limits=limits, timeout=None)
    except RuntimeError:  # so openai says that aiohttp is missing
        return openai.DefaultAsyncHttpxClient(limits=limits, timeout=None)


class ChatEndpoint:
    """One model behind one base URL.

    408, 409, 429, 5xx, garbled answers and connection errors are tried again ``retries`` times with back-off (a Retry-After is
    honoured), and so is a try that took ``try_s``; every request, retries included, ends within ``deadline_s`` seconds of its
    first try. ``concurrency`` bounds the requests in flight, which are
    fewer while many are refused (:class:`AdaptiveConcurrency`).
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str = "none",
        concurrency: int = 32,
        deadline_s: float = 120.0,
        try_s: float | None = None,
        retries: int = 4,
        fit: FieldFit | None = None,
    ) -> None:
        self.base_url, self.model, self.deadline_s, self.retries = base_url, model, deadline_s, retries
        self.try_s = min(try_s or deadline_s, deadline_s)
        limits: Any = httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
        self._client = openai.AsyncOpenAI(
            base_url=base_url,
            api_key=api_key or "none",  # of a variable that is set and empty: the client takes no such key
            max_retries=0,
            timeout=None,  # ours is for the whole request; a connection that is refused would look like one of theirs
            http_client=_http_client(limits),
        )
        self.slots, self._fit = AdaptiveConcurrency(concurrency), fit or FieldFit()
        self.in_flight, self.rests_until = 0, 0.0
        self.failures: Counter[str] = Counter()  # failed tries by label

    @property
    def left_out(self) -> frozenset[str]:
        """Return the fields that requests go without because the model refuses them."""
        return self._fit.left_out

    async def complete(self, prompt: Sequence[Message], params: SamplingParams) -> Completion:
        """Return one draw. A failing endpoint raises nothing: the failure is the completion's finish and error."""
        return completion_from(await self.ask(prompt, {**params.fields, "seed": params.seed}))

    async def ask(self, prompt: Sequence[Message], body: Mapping[str, Any]) -> Any:
        """Return the API's answer to a chat and further fields, or a Completion that tells why there is none."""
        self.in_flight += 1
        try:
            return await self._ask(prompt, body)
        finally:
            self.in_flight -= 1

    async def _ask(self, prompt: Sequence[Message], body: Mapping[str, Any]) -> Any:
        messages = [{"role": m.role, "content": api_content(m)} for m in prompt]
        ends = None
        for tried in range(self.retries + 1):
            async with self.slots:
                ends = ends or time.monotonic() + self.deadline_s
                answer = await self._try_fields(messages, body, ends)
            if not isinstance(answer, _Failed):
                self.rests_until = 0.0
                return answer
            self.failures[answer.label] += 1
            wait_s = max(answer.wait_s, min(8.0, 0.25 * 2**tried) * random.uniform(0.75, 1.25))
            if not answer.again or tried == self.retries or time.monotonic() + wait_s >= ends:
                break
            await asyncio.sleep(wait_s)
        if answer.its_fault:
            self.rests_until = time.monotonic() + REST_S
        return failed_completion(answer.finish, answer.error)

    async def _try_fields(self, messages: Any, body: Mapping[str, Any], ends: float) -> Any:
        """Return the API's answer, or a _Failed. A request that is refused for a field is made again as the refusal wants it;
        where that is answered all further ones are so made."""
        fit = self._fit
        while True:
            sent = fit.fit(body)
            answer = await self._try(messages, sent, min(self.try_s, ends - time.monotonic()))
            if not isinstance(answer, _Failed):
                self._fit.adopt(fit)
                return answer
            fit = fit.after(sent, answer.error) if answer.label in _OF_FIELDS else fit
            if fit.fit(body) == sent:
                return answer

    async def _try(self, messages: Any, fields: Mapping[str, Any], seconds: float) -> Any:
        """Return the API's answer, or a _Failed."""
        try:
            async with asyncio.timeout(seconds):
                # Any field may be one that the client does not know: all go into the body as they are.
                answer = await self._client.chat.completions.create(
                    model=self.model, messages=messages, extra_body=dict(fields)
                )
            self.slots.record(refused=False)
            if no_choices := without_choices(answer):
                return _Failed(FinishReason.ERROR, no_choices, "garbled")
            return answer
        except TimeoutError:
            again = seconds < self.deadline_s
            return _Failed(FinishReason.TIMEOUT, f"no answer within {seconds:.3g} s", "time-out", again=again)
        except openai.APIStatusError as error:
            refused, label = error.status_code == 429, f"HTTP {error.status_code}"
            wait_s = retry_after_s(error.response.headers.get("retry-after"))
            self.slots.record(refused=refused, wait_s=wait_s)
            again = error.status_code in (408, 409, 429) or error.status_code >= 500
            fault = refused or error.status_code >= 500
            return _Failed(FinishReason.ERROR, f"{label}: {_sentence_of(error)}", label, wait_s, again=again, its_fault=fault)
        except openai.APIConnectionError as error:
            return _Failed(FinishReason.ERROR, f"no connection: {error.__cause__}", "no connection")
        except openai.OpenAIError as error:
            return _Failed(FinishReason.ERROR, str(error), type(error).__name__)
        except ValueError as error:  # a body that is no JSON
            return _Failed(FinishReason.ERROR, f"garbled answer: {error}", "garbled")

    @property
    def rests(self) -> bool:
        """Return whether it failed lately; another one is asked first."""
        return time.monotonic() < self.rests_until

    @property
    def busy(self) -> float:
        """Return the requests in flight or waiting, divided by how many it is sent at a time."""
        return self.in_flight / self.slots.limit

    async def check(self) -> None:
        """Raise EndpointError unless the endpoint answers to a request for its models."""
        try:
            async with asyncio.timeout(min(self.deadline_s, 15)):
                await self._client.with_options(max_retries=0).models.list()
        except openai.APIStatusError:
            return  # it answers; not every server lists its models
        except (TimeoutError, openai.OpenAIError, ValueError) as error:
            raise EndpointError(
                f"{self.base_url}: no response from an OpenAI-compatible endpoint "
                f"({type(error).__name__}); is the server running?"
            ) from error

    async def aclose(self) -> None:
        await self._client.close()


def _sentence_of(error: openai.APIStatusError) -> str:
    """Return why a server refused, in its own words where its body has them."""
    body = error.body
    words = (body.get("message") or body.get("detail")) if isinstance(body, dict) else None
    return words if isinstance(words, str) and words else error.message


async def ask_any(endpoints: Sequence[ChatEndpoint], prompt: Sequence[Message], body: Mapping[str, Any]) -> Any:
    """Return the answer of the least busy endpoint that has not failed lately; if it fails now, of the next one."""
    answer: Any = None
    tried: set[int] = set()
    while len(tried) < len(endpoints):
        at = min(set(range(len(endpoints))) - tried, key=lambda n: (endpoints[n].rests, endpoints[n].busy))
        tried.add(at)
        answer = await endpoints[at].ask(prompt, body)
        # A time-out has used up the request's time; a request that is refused is refused everywhere.
        if not (isinstance(answer, Completion) and answer.finish is FinishReason.ERROR and endpoints[at].rests):
            break
    return answer
