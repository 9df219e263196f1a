"""What a distillation leaves: the tagged pairs, every attempt as data, and what both come to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from rewardlab.config import DistillConfig
from rewardlab.data.pairs import Shard
from rewardlab.data.parquet import TableFile
from rewardlab.distill.journal import Answer, Journal
from rewardlab.distill.statistics import AttemptRow, Summary, Tally
from rewardlab.distill.tagging import agrees, tag
from rewardlab.prompts import load_template
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
    """Write both files, pair by pair, and return the statistics. Raises OutputError."""
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
        verdict=verdict_of(answer.completion(), verdict_format).status.value,
        agrees=agrees(pair, answer, verdict_format),
        kept=kept,
        text=answer.text,
        tokens=answer.num_tokens,
        prompt_tokens=answer.num_prompt_tokens,
    )
