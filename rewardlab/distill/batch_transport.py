"""Query the teacher by the provider's batch API: send, wait for and collect a round of files for each attempt.

The journal has a batch and its calls before it is sent. The batch carries its name, so that it is found again if the reply to
its creation was lost. It is collected whole or not at all, so that billed failures are counted once.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from rewardlab.config import DistillConfig
from rewardlab.data.rows import with_frames
from rewardlab.distill.budget import BudgetGuard
from rewardlab.distill.journal import Journal
from rewardlab.distill.teacher import PASSES, Progress, order_of, progress_note, request_fields, tag
from rewardlab.errors import EndpointError, OutputError
from rewardlab.prompts import build_messages, load_template
from rewardlab.reporting.progress import Advance
from rewardlab.samplers.openai_batch import BatchClient, BatchState, parse_answer_line, request_line
from rewardlab.types import Completion, FinishReason, Order, PreferencePair

FOLDER = "batches"  # of uploaded files that are not collected yet
Call = tuple[str, int, Order]


def custom_id(place: int, pair: str, attempt: int) -> str:
    """Return the id of a request within its batch: its position and a hash of the call."""
    return f"{place}-{hashlib.sha256(f'{pair}/{attempt}'.encode()).hexdigest()[:16]}"


class BatchTransport:
    """Sends and collects files of requests. Raises EndpointError if the provider fails, or refuses a batch."""

    def __init__(
        self, config: DistillConfig, journal: Journal, budget: BudgetGuard, advance: Advance, api_key: str | None = None
    ) -> None:
        self.config, self.journal, self.budget, self.advance = config, journal, budget, advance
        self.template, self.progress = load_template(config.template), Progress()
        self._client = BatchClient(config.base_urls[0], api_key=api_key or os.environ.get(config.api_key_envs[0], "none"))
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
