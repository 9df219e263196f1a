"""The teacher stage: query it about every pair, keep judgments that agree with the label, tag difficulty, report the cost.

Pairs stream: neither they nor the answers are held in memory. Attempts alternate between the two orders, so that the teacher's
own position bias shows, and cannot make one side's pairs look hard.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from rewardlab.config import DistillConfig
from rewardlab.data.files import write_atomic
from rewardlab.data.pairs import Shard
from rewardlab.data.parquet import TableFile
from rewardlab.data.rows import media_of
from rewardlab.data.set_checks import NO_IMAGES, SetCheck, tie_note
from rewardlab.distill.budget import BudgetGuard
from rewardlab.distill.journal import Answer, Journal
from rewardlab.distill.statistics import AttemptRow, Statistics, Summary, Tally
from rewardlab.distill.teacher import Progress, Transport, agrees, tag
from rewardlab.distill.transports import BatchTransport, ChatTransport
from rewardlab.errors import DataError, EndpointError
from rewardlab.prompts import load_template, require_one_turn, require_pairs
from rewardlab.reporting.progress import Advance, bar, log_line
from rewardlab.types import PreferencePair
from rewardlab.verdicts.parse import verdict_of

DISTILLED, ATTEMPTS = "distilled.parquet", "attempts.parquet"
ATTEMPT_COLUMNS = {
    "pair_id": "string",
    "attempt": "int8",
    "order": "string",
    "verdict": "string",
    "agrees": "bool",
    "kept": "bool",
    "text": "string",
    "tokens": "int32",
    "prompt_tokens": "int32",
}


def write_outputs(pairs: Iterable[PreferencePair], journal: Journal, config: DistillConfig, out: Path) -> Summary:
    """Write the tagged pairs and all attempts, and return the statistics. Raises OutputError."""
    distilled, attempts, tally = Shard(out / DISTILLED), TableFile(out / ATTEMPTS, ATTEMPT_COLUMNS), Tally()
    verdict_format = load_template(config.template).verdict_format
    for pair in pairs:
        answers = journal.answers(pair.pair_id)
        tagged = tag(pair, answers, config)
        kept = int(tagged.attempts) if tagged is not None and tagged.judgment else None
        rows = [_attempt(pair, answer, verdict_format, kept=n == kept) for n, answer in enumerate(answers, start=1)]
        for row in rows:
            attempts.add(asdict(row))
        tally.add(pair, tagged, rows)
        if tagged is not None:
            distilled.add(tagged)
    attempts.close()
    distilled.close()
    return tally.summary(journal, config)


def _attempt(pair: PreferencePair, answer: Answer, verdict_format: str, *, kept: bool) -> AttemptRow:
    return AttemptRow(
        pair_id=pair.pair_id,
        attempt=answer.attempt,
        order=answer.order.value,
        verdict=verdict_of(answer.completion(), verdict_format, pair.criteria).status.value,
        agrees=agrees(pair, answer, verdict_format),
        kept=kept,
        text=answer.text,
        tokens=answer.num_tokens,
        prompt_tokens=answer.num_prompt_tokens,
    )


STATISTICS, JOURNAL = "statistics.json", "journal.sqlite"


def survey(pairs: Iterable[PreferencePair], *, allow: Collection[str] = ()) -> tuple[int, str]:
    """Return (number of pairs, hash of their identities, texts, labels and media), ties left out.

    Raises DataError for no pairs, for ties alone, for unlabelled pairs and shared ids, for texts that have gone wrong, and if
    questions refer to images and no pair has any; ``allow`` switches the last two off by their names. Logs how many pairs are
    ties, and how many lack images that others have.
    """
    digest, number = hashlib.sha256(), 0
    ids: set[str] = set()
    unlabelled: list[str] = []
    media = SetCheck()
    for pair in media.of(pairs):
        if pair.tie is not None:
            continue
        number += 1
        digest.update(repr((pair.pair_id, pair.question, pair.responses, pair.preferred)).encode(errors="backslashreplace"))
        for data in media_of(pair):
            digest.update(hashlib.sha256(data).digest())
        ids.add(pair.pair_id)
        if pair.preferred is None:
            unlabelled.append(pair.pair_id)
    ties = tie_note(media.num_pairs - number, media.num_pairs)
    refuse_unfit(number, len(ids), unlabelled)
    media.refuse_broken("these pairs", allow)
    if NO_IMAGES not in allow:
        media.refuse_blind_set("these pairs")
    for note in [*([ties] if ties else []), *media.notes()]:
        log_line(note)
    return number, digest.hexdigest()[:16]


class WithoutTies:
    """Pairs that may be on disk, but for ties; they can be iterated any number of times."""

    def __init__(self, pairs: Iterable[PreferencePair]) -> None:
        self._pairs = pairs

    def __iter__(self) -> Iterator[PreferencePair]:
        return (pair for pair in self._pairs if pair.tie is None)


def refuse_unfit(number: int, num_ids: int, unlabelled: Sequence[str]) -> None:
    """Raise DataError for no pairs, for pairs without a label (ids ``unlabelled``), and for shared ids."""
    if not number:
        raise DataError("there are no pairs")
    if unlabelled:
        raise DataError(f"{len(unlabelled)} pairs have no label ('preferred'), for example {unlabelled[0]}; drop them first")
    if num_ids < number:
        raise DataError("some pairs share a pair_id; every pair needs its own, because the journal is keyed by it")


def identity_of(config: DistillConfig, data: str) -> dict[str, str | int | float]:
    """Return the settings that must not change between parts of a run; endpoints, prices, budget and transport may."""
    return {
        "data": data,
        "model": config.model,
        "template_hash": require_pairs(require_one_turn(load_template(config.template), "a teacher"), "a teacher").hash,
        **config.sampling,
        "max_attempts": config.max_attempts,
        "votes": config.votes,
        "seed": config.seed,
    }


# Transports by their names in the config.
OpenTransport = Callable[[DistillConfig, Journal, BudgetGuard, Advance], Transport]
TRANSPORTS: dict[str, OpenTransport] = {"chat": ChatTransport.open, "batch": BatchTransport}


async def _ask_all(pairs: Iterable[PreferencePair], number: int, config: DistillConfig, journal: Journal) -> Progress:
    budget = BudgetGuard(config.prices, config.budget, config.max_tokens, journal.usage(), journal.longest_prompt())
    with bar("distill", number) as advance:
        async with TRANSPORTS[config.transport](config, journal, budget, advance) as transport:
            return await transport.run(pairs)


def distill(
    pairs: Iterable[PreferencePair],
    config: DistillConfig,
    out: Path,
    *,
    allow: Collection[str] = (),
) -> Statistics:
    """Run (or continue) the teacher stage into folder ``out``; returns the statistics it also writes.

    ``pairs`` are iterated several times: a list, or a :class:`rewardlab.data.pairs.PairSet`. Writes ``distilled.parquet`` (all
    pairs that have their answers), ``attempts.parquet`` (all answers, including rejected ones) and ``statistics.json``;
    continues from ``journal.sqlite``.

    Pairs whose requests failed, or that the budget did not reach, are left out and counted; the same command requests them
    again. Raises EndpointError if the endpoint is down, ConfigError if ``out`` holds another run's journal, and DataError as
    :func:`survey` does.
    """
    number, data = survey(pairs, allow=allow)
    pairs = WithoutTies(pairs)
    with Journal(out / JOURNAL, identity_of(config, data)) as journal:
        progress = asyncio.run(_ask_all(pairs, number, config, journal))
    return finish(pairs, number, data, progress, config, out)


def finish(
    pairs: Iterable[PreferencePair], number: int, data: str, progress: Progress, config: DistillConfig, out: Path
) -> Statistics:
    """Write the files of a run from the journal in ``out``; return the statistics. Raises EndpointError if no pair has its
    answers.
    """
    with Journal(out / JOURNAL, identity_of(config, data)) as journal:
        journal.record_left_out(progress.left_out)
        if not any(tag(pair, journal.answers(pair.pair_id), config) for pair in pairs):
            raise EndpointError(_no_answers(progress, config, journal))
        summary, asked_without = write_outputs(pairs, journal, config, out), journal.left_out()
    if asked_without:
        log_line(f"requests leave out {', '.join(asked_without)}, which the teacher refuses: its own defaults hold")
    statistics: Statistics = {
        **summary,
        "num_pairs_asked_about": number,
        "num_failed_pairs": len(progress.failed),
        "stopped_by_budget": progress.out_of_budget,
        "asked_without": asked_without,
    }
    write_atomic(out / STATISTICS, json.dumps(statistics, indent=1) + "\n")
    return statistics


def _no_answers(progress: Progress, config: DistillConfig, journal: Journal) -> str:
    if progress.out_of_budget:
        return f"the budget ({config.budget.model_dump(exclude_none=True)}) does not reach one pair; raise it and run again"
    errors = "; ".join(f"{error!r} ({number:,})" for error, number in journal.errors())
    return f"{', '.join(config.base_urls)}: not one pair was answered: {errors}; see {journal.path}"
