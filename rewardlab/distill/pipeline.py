"""Ask a teacher about every pair, keep what agrees with the label, and tag how hard it was."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rewardlab.config import DistillConfig
from rewardlab.data.files import write_whole
from rewardlab.data.pairs import write_parquet
from rewardlab.distill.journal import Answer, Journal
from rewardlab.distill.statistics import summarize
from rewardlab.errors import DataError, EndpointError
from rewardlab.progress import Advance, bar
from rewardlab.prompts import build_messages, load_template
from rewardlab.samplers.openai_api import ChatEndpoint
from rewardlab.types import BOTH_ORDERS, Order, PreferencePair, choice_of
from rewardlab.verdicts import verdict_of

DISTILLED, STATISTICS, JOURNAL = "distilled.parquet", "statistics.json", "journal.jsonl"
GIVE_UP_AFTER = 20  # failed requests in a row, each already retried, before the endpoint counts as down


def drawn_order(pair_id: str, seed: int) -> Order:
    """The order a pair is shown in: a coin that depends on the seed and the pair alone."""
    return random.Random(f"order {seed} {pair_id}").choice(BOTH_ORDERS)


def key_of(pair: PreferencePair, attempt: int) -> str:
    return f"{pair.pair_id}/{attempt}"


def agrees(pair: PreferencePair, answer: Answer, convention: str) -> bool:
    """Whether a teacher's answer names the preferred response; an unreadable answer does not."""
    verdict = verdict_of(answer.completion(), convention)
    assert pair.preferred is not None
    return verdict.choice is choice_of(pair.preferred, pair.order)


def tag(pair: PreferencePair, answers: Sequence[Answer], config: DistillConfig) -> PreferencePair | None:
    """The pair with its difficulty and kept judgment, or None while more has to be asked.

    ``attempts`` is "1".."3" for the attempt that agreed with the label, else "unsolved" after the last one.
    """
    convention = load_template(config.template).convention
    for attempt, answer in enumerate(answers, start=1):
        if agrees(pair, answer, convention):
            return replace(pair, attempts=str(attempt), judgment=answer.text)
    return replace(pair, attempts="unsolved") if len(answers) == config.max_attempts else None


class _Distiller:
    """One run: workers that take pairs in turn, and a count of failures in a row."""

    def __init__(self, config: DistillConfig, endpoint: ChatEndpoint, journal: Journal, advance: Advance) -> None:
        self.config, self.endpoint, self.journal, self.advance = config, endpoint, journal, advance
        self.template = load_template(config.template)
        self.done: dict[str, PreferencePair] = {}
        self.failed = 0
        self._failures_in_a_row = 0
        self._last_error = ""

    async def work(self, queue: asyncio.Queue[PreferencePair]) -> None:
        while not queue.empty():
            await self._pair(queue.get_nowait())
            self.advance(note=f"{len(self.done):,} tagged, {self.failed:,} failed")

    async def _pair(self, pair: PreferencePair) -> None:
        answers: list[Answer] = []
        while (tagged := tag(pair, answers, self.config)) is None:
            key = key_of(pair, len(answers) + 1)
            answer = self.journal.answers.get(key) or await self._ask(pair, key, len(answers) + 1)
            if answer.failed:
                self.failed += 1
                return
            answers.append(answer)
        self.done[pair.pair_id] = tagged

    async def _ask(self, pair: PreferencePair, key: str, attempt: int) -> Answer:
        prompt = build_messages(pair, order=pair.order, template=self.template)
        seed = int(hashlib.sha256(f"{self.config.seed} {key}".encode()).hexdigest()[:7], 16)
        self.journal.ask(key)
        completion = await self.endpoint.complete(
            prompt,
            temperature=self.config.temperature,
            top_p=self.config.top_p,
            max_tokens=self.config.max_tokens,
            seed=seed,
        )
        answer = self.journal.answer(key, completion)
        self._failures_in_a_row = self._failures_in_a_row + 1 if answer.failed else 0
        self._last_error = answer.error or self._last_error
        if self._failures_in_a_row >= GIVE_UP_AFTER:
            raise EndpointError(
                f"{self.config.base_url}: {GIVE_UP_AFTER} requests in a row failed, the last with {self._last_error!r}; "
                "nothing is lost: cure it and run the same command again"
            )
        return answer


async def _run(pairs: Sequence[PreferencePair], config: DistillConfig, journal: Journal, api_key: str) -> _Distiller:
    endpoint = ChatEndpoint(
        config.base_url,
        config.model,
        api_key=api_key,
        concurrency=config.concurrency,
        deadline_s=config.deadline_s,
        retries=config.retries,
    )
    queue: asyncio.Queue[PreferencePair] = asyncio.Queue()
    for pair in pairs:
        queue.put_nowait(pair)
    try:
        with bar("distill", len(pairs)) as advance:
            distiller = _Distiller(config, endpoint, journal, advance)
            async with asyncio.TaskGroup() as group:
                for _ in range(min(config.concurrency, len(pairs))):
                    group.create_task(distiller.work(queue))
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    finally:
        await endpoint.aclose()
    return distiller


def fingerprint(pairs: Sequence[PreferencePair]) -> str:
    """A hash of what a stage reads of labelled pairs: identities, texts, labels, images."""
    digest = hashlib.sha256()
    for pair in pairs:
        digest.update(repr((pair.pair_id, pair.question, pair.responses, pair.preferred)).encode())
        for image in pair.images:
            digest.update(hashlib.sha256(image).digest())
    return digest.hexdigest()[:16]


def check_labelled(pairs: Sequence[PreferencePair]) -> None:
    """Raises DataError unless there are pairs, each labelled, each with an id of its own."""
    if not pairs:
        raise DataError("there are no pairs")
    unlabeled = [pair.pair_id for pair in pairs if pair.preferred is None]
    if unlabeled:
        raise DataError(f"{len(unlabeled)} pairs have no label ('preferred'), for example {unlabeled[0]}; drop them first")
    if len({pair.pair_id for pair in pairs}) < len(pairs):
        raise DataError("some pairs share a pair_id; every pair needs its own, the journal is keyed by it")


def distill(pairs: Sequence[PreferencePair], config: DistillConfig, out: Path, *, api_key: str = "none") -> dict[str, Any]:
    """Run (or continue) the teacher stage into folder ``out``; returns the statistics it also writes.

    Pairs whose requests failed are left out of the set and counted; the same command asks them again. Raises EndpointError
    when the endpoint is down, ConfigError when ``out`` holds another run's journal.
    """
    check_labelled(pairs)
    template = load_template(config.template)
    identity = {
        "data": fingerprint(pairs),
        "model": config.model,
        "template_hash": template.hash,
        "temperature": config.temperature,
        "top_p": config.top_p,
        "max_tokens": config.max_tokens,
        "max_attempts": config.max_attempts,
        "seed": config.seed,
    }
    shown = [replace(pair, order=drawn_order(pair.pair_id, config.seed), attempts="", judgment="") for pair in pairs]
    with Journal(out / JOURNAL, identity) as journal:
        run = asyncio.run(_run(shown, config, journal, api_key))
        tagged = [run.done[pair.pair_id] for pair in pairs if pair.pair_id in run.done]
        if not tagged:
            raise EndpointError(f"{config.base_url}: not one pair was answered; see {journal.path} for the errors")
        statistics = summarize(tagged, journal, config, num_failed=run.failed)
    write_parquet(tagged, out / DISTILLED)
    write_whole(out / STATISTICS, json.dumps(statistics, indent=1) + "\n")
    return statistics
