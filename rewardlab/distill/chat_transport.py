"""Query the teacher by concurrent chat requests to any number of endpoints and keys, within a budget."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Self

from rewardlab.config import DistillConfig
from rewardlab.data.rows import with_frames
from rewardlab.distill.budget import BudgetGuard, BudgetSpentError, CallLedger, Ledger
from rewardlab.distill.journal import Answer, Journal
from rewardlab.distill.teacher import PASSES, Progress, order_of, progress_note, request_fields, tag
from rewardlab.errors import ConfigError, EndpointError
from rewardlab.prompts import build_messages, load_template
from rewardlab.reporting.progress import Advance
from rewardlab.samplers.chat_endpoint import ChatEndpoint, ask_any
from rewardlab.samplers.failures import FailureStreak
from rewardlab.samplers.openai_answers import completion_from
from rewardlab.types import PreferencePair

LOG = logging.getLogger(__name__)


def open_endpoints(config: DistillConfig, api_key: str | None = None) -> list[ChatEndpoint]:
    """Return an endpoint for each base URL, with the key of its environment variable unless one is given."""
    keys = [api_key or os.environ.get(name, "none") for name in config.api_key_envs]
    return [
        ChatEndpoint(
            url,
            config.model,
            api_key=key,
            concurrency=config.concurrency,
            try_s=config.try_s,
            deadline_s=config.deadline_s,
            retries=config.retries,
        )
        for url, key in zip(config.base_urls, keys, strict=True)
    ]


class ChatTransport:
    """Workers that take pairs in turn, a ledger, and a count of failures in a row. Closes ``endpoints`` at its end."""

    def __init__(
        self,
        config: DistillConfig,
        endpoints: Sequence[ChatEndpoint],
        ledger: Ledger,
        on_progress: Callable[[Progress], None] = lambda progress: None,
        *,
        answered: bool = False,
    ) -> None:
        """``on_progress`` is called for every pair that has its answers. ``answered``: an earlier part of the run had
        answers."""
        self.config, self.endpoints, self.ledger, self._on_progress = config, endpoints, ledger, on_progress
        self.template = load_template(config.template)
        self.progress = Progress()
        self._failures = FailureStreak(", ".join(config.base_urls), answered=answered)
        self._width = config.concurrency * len(endpoints)

    @classmethod
    def open(
        cls, config: DistillConfig, journal: Journal, budget: BudgetGuard, advance: Advance, api_key: str | None = None
    ) -> Self:
        """Return the transport of one process. Raises ConfigError if the journal has batches that are not collected."""
        if journal.open_batches():
            raise ConfigError(
                f"{journal.path}: some batches are not collected yet and would be "
                "paid twice; collect them first (transport: batch)"
            )
        endpoints, ledger = open_endpoints(config, api_key), CallLedger(journal, budget)
        answered = journal.usage().answers > 0
        return cls(config, endpoints, ledger, lambda progress: advance(note=progress_note(progress, budget)), answered=answered)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for endpoint in self.endpoints:
            await endpoint.aclose()

    async def run(self, pairs: Iterable[PreferencePair]) -> Progress:
        """Query all pairs, and again those whose requests failed. Raises EndpointError if the endpoints are down."""
        await self._once(pairs)
        for _ in range(PASSES - 1):
            failed = frozenset(self.progress.failed)
            if not failed or not self.progress.done or self.progress.out_of_budget:
                break
            try:
                await self._once(pair for pair in pairs if pair.pair_id in failed)
            except EndpointError as error:  # keep what is answered; the next run requests the rest
                LOG.warning("%s", error)
                break
        self.progress.left_out = frozenset().union(*(endpoint.left_out for endpoint in self.endpoints))
        return self.progress

    async def _once(self, pairs: Iterable[PreferencePair]) -> None:
        queue: asyncio.Queue[PreferencePair | None] = asyncio.Queue(maxsize=2 * self._width)
        tasks = [asyncio.create_task(self._feed(pairs, queue))]
        tasks += [asyncio.create_task(self._work(queue)) for _ in range(self._width)]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _feed(self, pairs: Iterable[PreferencePair], queue: asyncio.Queue[PreferencePair | None]) -> None:
        for pair in pairs:
            if self.progress.out_of_budget:
                break
            await queue.put(pair)
        for _ in range(self._width):
            await queue.put(None)

    async def _work(self, queue: asyncio.Queue[PreferencePair | None]) -> None:
        while (pair := await queue.get()) is not None:
            if self.progress.out_of_budget:
                continue
            try:
                tagged = await self._pair(pair)
            except BudgetSpentError:
                self.progress.out_of_budget = True
                continue
            if tagged is not None:
                self.progress.count(tagged)
                self._on_progress(self.progress)

    async def _pair(self, pair: PreferencePair) -> PreferencePair | None:
        """Return the pair tagged, or None if a request failed."""
        if answers := await self.ledger.answers(pair.pair_id):
            self._failures.note_answer()
        while (tagged := tag(pair, answers, self.config)) is None:
            answer = await self._ask(pair, len(answers) + 1)
            if answer is None:
                self.progress.failed.add(pair.pair_id)
                return None
            answers.append(answer)
        return tagged

    async def _ask(self, pair: PreferencePair, attempt: int) -> Answer | None:
        """Return the answer, after writing it to the journal; None if the request failed."""
        order = order_of(pair.pair_id, self.config.seed, attempt)
        prompt = build_messages(with_frames(pair), order=order, template=self.template)
        await self.ledger.open(pair.pair_id, attempt, order)
        completion = completion_from(await ask_any(self.endpoints, prompt, request_fields(self.config, pair.pair_id, attempt)))
        await self.ledger.close(pair.pair_id, attempt, completion)
        self._failures.take(completion)
        if completion.failed:
            return None
        return Answer(attempt, order, completion.text, completion.finish, completion.num_tokens, completion.num_prompt_tokens)
