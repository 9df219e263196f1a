"""The teacher stage: ask about every pair, keep what agrees with the label, tag how hard it was, report what it cost.

Pairs stream: neither they nor the answers are held in memory. Attempts alternate between the two orders, so that the teacher's
own position bias shows, and cannot make one side's pairs look hard.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from rewardlab.config import DistillConfig
from rewardlab.data.files import write_atomic
from rewardlab.data.media_mentions import MediaCount
from rewardlab.data.rows import media_of
from rewardlab.distill.batch_transport import BatchTransport
from rewardlab.distill.budget import BudgetGuard
from rewardlab.distill.chat_transport import ChatTransport
from rewardlab.distill.journal import Journal
from rewardlab.distill.outputs import write_outputs
from rewardlab.distill.statistics import Statistics
from rewardlab.distill.tagging import tag
from rewardlab.distill.transport import Progress, Transport
from rewardlab.errors import DataError, EndpointError
from rewardlab.prompts import load_template
from rewardlab.reporting.progress import Advance, bar, log_line
from rewardlab.types import PreferencePair

STATISTICS, JOURNAL = "statistics.json", "journal.sqlite"


def survey(pairs: Iterable[PreferencePair], *, allow_without_images: bool = False) -> tuple[int, str]:
    """Return (number of pairs, hash of their identities, texts, labels and media).

    Raises DataError unless there are some, each labelled, each with an id of its own, and, unless ``allow_without_images``,
    where their questions speak of images that none has. Logs how many have no image where others do.
    """
    digest, number = hashlib.sha256(), 0
    ids: set[str] = set()
    unlabelled: list[str] = []
    media = MediaCount()
    for pair in media.of(pairs):
        number += 1
        digest.update(repr((pair.pair_id, pair.question, pair.responses, pair.preferred)).encode(errors="backslashreplace"))
        for data in media_of(pair):
            digest.update(hashlib.sha256(data).digest())
        ids.add(pair.pair_id)
        if pair.preferred is None:
            unlabelled.append(pair.pair_id)
    refuse_unfit(number, len(ids), unlabelled)
    if not allow_without_images:
        media.refuse_blind_set("these pairs")
    for note in media.notes():
        log_line(note)
    return number, digest.hexdigest()[:16]


def refuse_unfit(number: int, num_ids: int, unlabelled: Sequence[str]) -> None:
    """Raise DataError for no pairs, for some without a label, whose ids are ``unlabelled``, and for some that share an id."""
    if not number:
        raise DataError("there are no pairs")
    if unlabelled:
        raise DataError(f"{len(unlabelled)} pairs have no label ('preferred'), for example {unlabelled[0]}; drop them first")
    if num_ids < number:
        raise DataError("some pairs share a pair_id; every pair needs its own, the journal is keyed by it")


def identity_of(config: DistillConfig, data: str) -> dict[str, str | int | float]:
    """Return what must not change between the parts of a run. Endpoints, prices, budget and transport may."""
    return {
        "data": data,
        "model": config.model,
        "template_hash": load_template(config.template).hash,
        **config.sampling,
        "max_attempts": config.max_attempts,
        "votes": config.votes,
        "seed": config.seed,
    }


# A transport by its name in the config; another is its file, a line here and a word of the config's.
OpenTransport = Callable[[DistillConfig, Journal, BudgetGuard, Advance, str | None], Transport]
TRANSPORTS: dict[str, OpenTransport] = {"chat": ChatTransport.open, "batch": BatchTransport}


async def _ask_all(
    pairs: Iterable[PreferencePair], number: int, config: DistillConfig, journal: Journal, api_key: str | None
) -> Progress:
    budget = BudgetGuard(config.prices, config.budget, config.max_tokens, journal.usage(), journal.longest_prompt())
    with bar("distill", number) as advance:
        async with TRANSPORTS[config.transport](config, journal, budget, advance, api_key) as transport:
            return await transport.run(pairs)


def distill(
    pairs: Iterable[PreferencePair],
    config: DistillConfig,
    out: Path,
    *,
    api_key: str | None = None,
    allow_without_images: bool = False,
) -> Statistics:
    """Run (or continue) the teacher stage into folder ``out``; returns the statistics it also writes.

    ``pairs`` are gone through several times: a list, or a :class:`rewardlab.data.pairs.PairSet` that reads them anew. Writes
    ``distilled.parquet`` (every pair that has its answers), ``attempts.parquet`` (every answer, the rejected ones too) and
    ``statistics.json``; ``journal.sqlite`` is what it continues from.

    Pairs whose requests failed, or that the budget did not reach, are left out of the set and counted; the same command asks
    them again. Raises EndpointError when the endpoint is down, ConfigError when ``out`` holds another run's journal, DataError
    for pairs without label or an id of their own, and as :func:`survey` does of images that are not there.
    """
    number, data = survey(pairs, allow_without_images=allow_without_images)
    with Journal(out / JOURNAL, identity_of(config, data)) as journal:
        progress = asyncio.run(_ask_all(pairs, number, config, journal, api_key))
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
        log_line(f"asked without {', '.join(asked_without)}, which the teacher refuses: its own defaults hold")
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
