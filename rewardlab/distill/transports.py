"""How the teacher is queried, within a budget: concurrent chat requests to any number of endpoints, or the batch API."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from rewardlab.config import DistillConfig
from rewardlab.data.rows import with_frames
from rewardlab.distill.budget import BudgetGuard, BudgetSpentError, CallLedger, Ledger
from rewardlab.distill.journal import Answer, Journal
from rewardlab.distill.teacher import PASSES, Progress, order_of, progress_note, request_fields, tag
from rewardlab.errors import ConfigError, EndpointError, OutputError
from rewardlab.prompts import build_messages, load_template
from rewardlab.reporting.progress import Advance
from rewardlab.samplers.chat_endpoint import ChatEndpoint, ask_any
from rewardlab.samplers.failures import FailureStreak
from rewardlab.samplers.openai_answers import completion_from
from rewardlab.samplers.openai_batch import BatchClient, BatchState, parse_answer_line, request_line
from rewardlab.types import Completion, FinishReason, Order, PreferencePair

LOG = logging.getLogger(__name__)


def open_endpoints(config: DistillConfig) -> list[ChatEndpoint]:
    """Return an endpoint for each base URL, with the key of its environment variable."""
    keys = [os.environ.get(name, "none") for name in config.api_key_envs]
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
    def open(cls, config: DistillConfig, journal: Journal, budget: BudgetGuard, advance: Advance) -> Self:
        """Return the transport of one process. Raises ConfigError if the journal has batches that are not collected."""
        if journal.open_batches():
            raise ConfigError(
                f"{journal.path}: some batches are not collected yet and would be "
                "paid twice; collect them first (transport: batch)"
            )
        endpoints, ledger = open_endpoints(config), CallLedger(journal, budget)
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


FOLDER = "batches"  # of uploaded files that are not collected yet
Call = tuple[str, int, Order]


def custom_id(place: int, pair: str, attempt: int) -> str:
    """Return the id of a request within its batch: its position and a hash of the call."""
    return f"{place}-{hashlib.sha256(f'{pair}/{attempt}'.encode()).hexdigest()[:16]}"


class BatchTransport:
    """Sends and collects files of requests, a round for each attempt. Raises EndpointError if the provider fails, or refuses a
    batch.

    The journal has a batch and its calls before it is sent. The batch carries its name, so that it is found again if the
    reply to its creation was lost. It is collected whole or not at all, so that billed failures are counted once.
    """

    def __init__(self, config: DistillConfig, journal: Journal, budget: BudgetGuard, advance: Advance) -> None:
        self.config, self.journal, self.budget, self.advance = config, journal, budget, advance
        self.template, self.progress = load_template(config.template), Progress()
        self._client = BatchClient(config.base_urls[0], api_key=os.environ.get(config.api_key_envs[0], "none"))
        self._folder = journal.path.parent / FOLDER
        self._done = 0  # on the progress bar

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        await self._client.__aexit__(kind, error, at)

    async def run(self, pairs: Iterable[PreferencePair]) -> Progress:
        """Send rounds until every pair has its answers, the budget is spent, or three in a row bring no answer."""
        await self._wait()
        fruitless = 0
        while fruitless < PASSES:
            before = self.budget.answers
            if not await self._send_round(pairs):
                return self.progress  # all have their answers, or the budget is spent
            await self._wait()
            fruitless = fruitless + 1 if self.budget.answers == before else 0
        self._count(pairs)
        return self.progress

    async def _send_round(self, pairs: Iterable[PreferencePair]) -> bool:
        """Send the next attempt of every pair that needs one, within the budget; return whether any was sent."""
        self.progress = Progress()
        sent, calls, lines, size = False, list[Call](), list[bytes](), 0
        room = self.budget.batch_size(self.config.batch_requests)
        for pair, call in self._unanswered(pairs):
            line = self._line(pair, call, len(calls))
            if calls and (len(calls) >= room or size + len(line) > self.config.batch_bytes):
                await self._send(calls, lines)
                sent, calls, lines, size = True, [], [], 0
                room = self.budget.batch_size(self.config.batch_requests)
                line = self._line(pair, call, 0)
            if not room:
                if not self.budget.num_batches:
                    self._count(pairs)
                    self.progress = replace(self.progress, failed=set(), out_of_budget=True)
                break
            calls.append(call)
            lines.append(line)
            size += len(line)
        if calls:
            await self._send(calls, lines)
            sent = True
        self._show()
        return sent

    def _unanswered(self, pairs: Iterable[PreferencePair]) -> Iterator[tuple[PreferencePair, Call]]:
        """Yield pairs with their next attempt; count those that have all their answers."""
        for pair in pairs:
            answers = self.journal.answers(pair.pair_id)
            tagged = tag(pair, answers, self.config)
            if tagged is not None:
                self.progress.count(tagged)
            else:
                attempt = len(answers) + 1
                yield pair, (pair.pair_id, attempt, order_of(pair.pair_id, self.config.seed, attempt))

    def _count(self, pairs: Iterable[PreferencePair]) -> None:
        self.progress = Progress()
        self.progress.failed = {call[0] for _, call in self._unanswered(pairs)}

    def _line(self, pair: PreferencePair, call: Call, place: int) -> bytes:
        prompt = build_messages(with_frames(pair), order=call[2], template=self.template)
        return request_line(
            custom_id(place, call[0], call[1]), self.config.model, prompt, request_fields(self.config, *call[:2])
        )

    async def _send(self, calls: list[Call], lines: list[bytes]) -> None:
        # The file is whole before the journal knows of the batch: what it knows of can be sent again.
        partial = self._write(lines)
        name = self.journal.record_batch(calls)
        file = partial.replace(self._folder / f"{name}.jsonl")
        self.journal.mark_batch(name, "sent", await self._client.send(name, file))
        self.budget.add_batch(name, len(calls))

    def _write(self, lines: list[bytes]) -> Path:
        """Return the file of requests to upload. Raise OutputError if it cannot be written."""
        partial = self._folder / ".partial"
        try:
            self._folder.mkdir(exist_ok=True)
            partial.write_bytes(b"".join(lines))
        except OSError as error:
            raise OutputError(
                f"{partial}: cannot be written ({error.strerror}); nothing is lost: make room and run the same command again"
            ) from error
        return partial

    async def _wait(self) -> None:
        """Wait for and collect all sent batches, including those of an earlier run."""
        for name, batch_id, calls in self.journal.open_batches():
            if batch_id is None and (batch_id := await self._find_or_send(name)) is None:
                self.journal.mark_batch(name, "never sent")
                continue
            self.journal.mark_batch(name, "sent", batch_id)
            self.budget.add_batch(name, len(calls))
        while batches := self.journal.open_batches():
            for name, batch_id, calls in batches:
                state = await self._client.look(str(batch_id))
                if not state.open:
                    await self._collect(name, state, calls)
            if batches := self.journal.open_batches():
                self._show(f", {len(batches):,} batches away")
                await asyncio.sleep(self.config.poll_s)

    async def _find_or_send(self, name: str) -> str | None:
        file = self._folder / f"{name}.jsonl"
        if (batch_id := await self._client.find(name)) is not None:
            return batch_id
        return await self._client.send(name, file) if file.is_file() else None

    async def _collect(self, name: str, state: BatchState, calls: list[tuple[str, int]]) -> None:
        with self.journal.transaction():
            await self._record_answers(state, calls)
            self.journal.mark_batch(name, state.status)
        self.budget.remove_batch(name)
        (self._folder / f"{name}.jsonl").unlink(missing_ok=True)
        if state.status == "failed":
            raise EndpointError(
                f"{self._client.base_url}: batch {state.id} was refused: {state.error or 'no reason given'}; nothing is lost: "
                "fix the cause (smaller batch_requests or batch_bytes?) and run again"
            )

    async def _record_answers(self, state: BatchState, calls: list[tuple[str, int]]) -> None:
        missing = set(range(len(calls)))
        for file in filter(None, (state.output_file, state.error_file)):
            async for line in self._client.lines(file):
                try:
                    request_id, completion = parse_answer_line(line)
                    place = int(request_id.partition("-")[0])
                    pair, attempt = calls[place]
                    if request_id != custom_id(place, pair, attempt):
                        raise ValueError(f"its request {request_id!r} is unknown")
                except (ValueError, IndexError) as error:
                    raise EndpointError(
                        f"{self._client.base_url}: batch {state.id} answered unknown requests ({error})"
                    ) from error
                missing.discard(place)
                new = self.journal.record_answer(pair, attempt, completion, self.budget.price(completion))
                if new or completion.failed:
                    self.budget.pay(completion)
        for place in missing:
            lost = Completion("", FinishReason.ERROR, error=f"the batch ended ({state.status}) without an answer")
            self.journal.record_answer(*calls[place], lost, 0.0)

    def _show(self, more: str = "") -> None:
        self.advance(self.progress.done - self._done, note=progress_note(self.progress, self.budget) + more)
        self._done = self.progress.done
