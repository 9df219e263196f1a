"""The question whether a reasoning supports its verdict: how another model is queried and read, and checked before a run.

Unlike in the released R1-Reward code, that model sees the question and the whole reasoning, not its last three lines.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable

import httpx

from rewardlab.config import ConsistencyConfig
from rewardlab.errors import ConfigError, EndpointError
from rewardlab.prompts import load_text
from rewardlab.samplers.base import SamplingParams
from rewardlab.samplers.chat_endpoint import ChatEndpoint
from rewardlab.types import Choice, Completion, FinishReason, Message, Part
from rewardlab.verdicts.parse import verdict_label

PROMPT, BLIND = load_text("consistency.txt"), load_text("blind.txt")
CACHE_SIZE = 100_000
GIVE_UP_AFTER = 20  # answers in a row that cannot be read

_THINKING = re.compile(r"^\s*<think>.*?</think>", re.DOTALL)
_SLOT = re.compile(r"\{(question|reasoning|number)\}")


def consistency_prompt(question: str, reasoning: str, verdict: Choice, *, blind: bool = False) -> str:
    """Return the text to ask; one for a ``blind`` reader has no verdict. Braces in the question or reasoning are plain text."""
    values = {"question": question, "reasoning": reasoning, "number": verdict_label(verdict)}
    return _SLOT.sub(lambda match: values[match.group(1)], BLIND if blind else PROMPT)


def read_consistency(answer: str) -> int:
    """Return +1 for "1", -1 for "0", else 0. Blanks, a final full stop and ``<think>...</think>`` are ignored."""
    return {"1": 1, "0": -1}.get(_THINKING.sub("", answer).strip().rstrip("."), 0)


def read_blind(answer: str, verdict: Choice) -> int:
    """Return +1 if a blind reader names the verdict, -1 if it names the other response, else 0, as :func:`read_consistency`."""
    named = {"1": Choice.FIRST, "2": Choice.SECOND}.get(_THINKING.sub("", answer).strip().rstrip("."))
    return 0 if named is None else 1 if named is verdict else -1


Ask = Callable[[str], Awaitable[Completion]]  # one prompt at temperature 0

_QUESTION = "Which colour has a clear sky at noon?"
_REASONING = "Response 1: the sky is blue, correct. Response 2: the sky is green, wrong."


async def refuse_pair_judge(base_url: str, api_key: str) -> None:
    """Raise ConfigError if ``base_url`` is a `rewardlab serve`: it judges pairs, under any model name, and answers nothing
    else."""
    try:
        async with httpx.AsyncClient(timeout=10) as client:
            answer = await client.get(f"{base_url.rstrip('/')}/models", headers={"Authorization": f"Bearer {api_key}"})
            models = answer.json()["data"]
            owners = {model.get("owned_by") for model in models}
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, LookupError, TypeError, AttributeError):
        return
    if "rewardlab" in owners:
        raise ConfigError(
            f"{base_url}: is a `rewardlab serve`, a judge of pairs, which cannot tell whether a reasoning supports "
            "a verdict; serve a language model with `vllm serve MODEL`, and give its address"
        )


def _digits(blind: bool) -> str:
    return "1 or 2" if blind else "0 or 1"


def _read(answer: str, verdict: Choice, blind: bool) -> int:
    return read_blind(answer, verdict) if blind else read_consistency(answer)


async def probe_checker(ask: Ask, name: str, *, blind: bool = False) -> None:
    """Ask about a reasoning that supports its verdict and one that contradicts it. Raise EndpointError, with the model's
    ``name``, if neither answer can be read."""
    problems = []
    for verdict in (Choice.FIRST, Choice.SECOND):
        answer = await ask(consistency_prompt(_QUESTION, _REASONING, verdict, blind=blind))
        if answer.failed:
            problems.append(f"failed ({answer.error})")
        elif _read(answer.text, verdict, blind):
            return
        else:
            cut = ", cut off at max_tokens" if answer.finish is FinishReason.LENGTH else ""
            problems.append(f"answered {answer.text!r:.80}{cut}")
    raise EndpointError(f"{name} {' and '.join(dict.fromkeys(problems))} instead of {_digits(blind)}.")


class EndpointConsistencyJudge:
    """Queries an OpenAI-compatible endpoint at temperature 0, concurrently, each question once. Failures and answers that
    cannot be read score 0; ``counts`` has asked, cached, failed and unclear."""

    def __init__(self, config: ConsistencyConfig, *, api_key: str = "none") -> None:
        self._config, self._api_key, self._blind = config, api_key, config.reader == "blind"
        self._endpoint: ChatEndpoint | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._cache: dict[tuple[str, str, Choice], asyncio.Task[int]] = {}
        self._num_unread, self._last_unread = 0, ""  # answers in a row that say nothing, and the last of them
        self._num_open = 0  # questions without an answer yet, sent or waiting to be
        self.counts: Counter[str] = Counter()

    def _open(self) -> ChatEndpoint:
        if self._endpoint is None:  # inside the event loop that will use it
            c, self._loop = self._config, asyncio.get_running_loop()
            self._endpoint = ChatEndpoint(
                c.base_url,
                c.model,
                api_key=self._api_key,
                concurrency=c.concurrency,
                deadline_s=c.deadline_s,
                retries=1,
            )
        return self._endpoint

    @property
    def rounds(self) -> int:
        at_once = self._endpoint.slots.limit if self._endpoint else self._config.concurrency
        return 1 + self._num_open // int(at_once)

    async def score(self, question: str, reasoning: str, verdict: Choice) -> int:
        key = (question, reasoning, verdict)
        if key in self._cache:
            self.counts["cached"] += 1
        else:
            if len(self._cache) >= CACHE_SIZE:
                self._cache.clear()
            self._cache[key] = asyncio.ensure_future(self._ask(*key))
            self._num_open += 1
            self._cache[key].add_done_callback(self._close_question)
        return await asyncio.shield(self._cache[key])  # one who stops waiting must not cancel it for the others

    def _close_question(self, _: asyncio.Task[int]) -> None:
        self._num_open -= 1

    async def _ask(self, question: str, reasoning: str, verdict: Choice) -> int:
        self.counts["asked"] += 1
        answer = await self._complete(consistency_prompt(question, reasoning, verdict, blind=self._blind))
        if answer.finish in (FinishReason.ERROR, FinishReason.TIMEOUT):
            self.counts["failed"] += 1
            self._cache.pop((question, reasoning, verdict), None)
            self._note_unread(f"failed ({answer.error or answer.finish})")
            return 0
        score = _read(answer.text, verdict, self._blind)
        self.counts["unclear"] += score == 0
        if score:
            self._num_unread = 0
        else:
            self._note_unread(f"answered {answer.text!r:.80} instead of {_digits(self._blind)}")
        return score

    async def _complete(self, prompt: str) -> Completion:
        messages = (Message("user", (Part(text=prompt),)),)
        return await self._open().complete(messages, SamplingParams(temperature=0.0, max_tokens=self._config.max_tokens))

    def _note_unread(self, why: str) -> None:
        self._num_unread, self._last_unread = self._num_unread + 1, why

    def refuse_silence(self) -> None:
        """Raise EndpointError if :data:`GIVE_UP_AFTER` answers in a row could not be read."""
        if self._num_unread >= GIVE_UP_AFTER:
            raise EndpointError(
                f"{self._config.base_url}: none of the last {self._num_unread:,} consistency requests was answered: "
                f"{self._config.model} {self._last_unread}. Fix the cause and run the same command again, or switch it "
                "off with consistency.weight=0"
            )

    async def check(self) -> None:
        """Raise EndpointError unless the endpoint gives a readable answer, ConfigError for a `rewardlab serve`; leaves no
        connection open."""
        try:
            await self._open().check()
            await refuse_pair_judge(self._config.base_url, self._api_key)
            await probe_checker(self._complete, f"{self._config.base_url}: {self._config.model}", blind=self._blind)
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """Close the connections, inside the loop that opened them."""
        if self._endpoint is not None:
            await self._endpoint.aclose()
            self._endpoint = None

    def close(self) -> None:
        """Do what :meth:`aclose` does, from another thread than that of the loop, while it runs."""
        if self._endpoint is not None and self._loop is not None and self._loop.is_running():
            asyncio.run_coroutine_threadsafe(self.aclose(), self._loop).result(10)
