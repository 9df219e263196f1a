"""A judge's own right judgments as training data (rejection sampling), optionally diversified by a hot token (FIRE).

Each pair is sampled ``samples`` times in each order; ``keep`` right judgments are kept, those with different openings first.
Pairs that the judge gets right no more often than a guesser might are left out, since a lucky guess teaches bluffing.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypedDict

from scipy.stats import binom

from rewardlab.config import SelfDistilConfig
from rewardlab.data.append_log import AppendLog, undamaged
from rewardlab.data.files import write_atomic
from rewardlab.data.pair_table import without_ties
from rewardlab.data.pairs import write_parquet
from rewardlab.data.texts import opening_of
from rewardlab.data.votes import num_failed
from rewardlab.distill.pipeline import survey
from rewardlab.errors import ConfigError, DataError, EndpointError
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.reporting.progress import bar
from rewardlab.samplers.decode import HotToken
from rewardlab.samplers.hf import HFSampler, thinking_opening
from rewardlab.types import BOTH_ORDERS, Judgment, Order, PreferencePair, Vote
from rewardlab.verdicts.parse import continuation

JOURNAL, DISTILLED, STATISTICS = "journal.jsonl", "distilled.parquet", "statistics.json"


class PairRecord(TypedDict):
    """A pair in the journal: counts of its votes, and [pair id, order, judgment] of each kept judgment."""

    pair_id: str
    votes: int
    right: int
    unreadable: int
    kept: list[list[str]]


def least_correct_or_beyond(num_votes: int, alpha: float) -> int:
    """Return the fewest correct of ``num_votes`` that guessing reaches with probability at most ``alpha``, or num_votes + 1."""
    return next((k for k in range(num_votes + 1) if binom.sf(k - 1, num_votes, 0.5) <= alpha), num_votes + 1)


def select_judgments(pair: PreferencePair, votes: Sequence[Vote], config: SelfDistilConfig) -> list[PreferencePair]:
    """Return the pair with each of its kept judgments; [] if the judge was correct too seldom."""
    correct = [vote for vote in votes if vote.winner == pair.preferred]
    if not correct or len(correct) < least_correct_or_beyond(len(votes), config.alpha):
        return []
    random.Random(f"{config.seed} {pair.pair_id}").shuffle(correct)
    # Different openings first: similar judgments teach nothing new.
    counts: Counter[tuple[str, ...]] = Counter()
    ranked = []
    for vote in correct:
        opening = opening_of(vote.completion.text)
        counts[opening] += 1
        ranked.append((counts[opening], vote))
    kept = [vote for _, vote in sorted(ranked, key=lambda item: item[0])][: config.keep]
    names = [pair.pair_id] if len(kept) == 1 else [f"{pair.pair_id}#{n}" for n in range(len(kept))]
    return [
        replace(pair, pair_id=name, order=vote.order, judgment=vote.completion.text, attempts="1")
        for name, vote in zip(names, kept, strict=True)
    ]


def set_hot_token(judge: GenerativeJudge, temperature: float) -> None:
    """Sample a judge's first token after ``<think>`` at ``temperature`` (FIRE, arXiv 2410.21236). Raises ConfigError for a
    judge behind an API, where single tokens have no temperature."""
    sampler = judge.sampler
    if not isinstance(sampler, HFSampler):
        raise ConfigError(f"{judge.name}: a hot token needs a local judge; use hf:PATH")
    opened = continuation("<think>", thinking_opening(sampler.processor))
    position = len(sampler.processor.tokenizer.encode(opened, add_special_tokens=False)) if opened else 0
    sampler.hot = HotToken(temperature, position=position)


def self_distill(
    pairs: Sequence[PreferencePair],
    judge: GenerativeJudge,
    config: SelfDistilConfig,
    out: Path,
    *,
    batch: int = 64,
    allow: Collection[str] = (),
) -> dict[str, object]:
    """Write ``distilled.parquet`` and ``statistics.json`` into ``out``; returns the statistics.

    Pairs are sampled ``batch`` at a time and journalled: a killed run resumes, and gives the same set. Raises DataError if
    nothing is kept, ConfigError if ``out`` holds another run, and what the judge raises.
    """
    _, data = survey(pairs, allow=allow)
    pairs = without_ties(pairs)
    least_correct = least_correct_or_beyond(2 * config.samples, config.alpha)
    if least_correct > 2 * config.samples:
        raise ConfigError(
            f"nothing could be kept: with {config.samples} samples in each order even {2 * config.samples} right ones happen "
            f"by guessing with a probability above {config.alpha:g}; raise samples or alpha"
        )
    identity = {"data": data, **judge.identity, "batch": batch, **config.model_dump(mode="json")}
    with AppendLog(out / JOURNAL, identity) as log, bar("self-distil", len(pairs)) as advance:
        rows = list(log.rows)
        advance(min(len(pairs), batch * len(rows)))
        for number in range(len(rows), -(-len(pairs) // batch)):
            batch_pairs = pairs[number * batch : (number + 1) * batch]
            orders, seed = [BOTH_ORDERS] * len(batch_pairs), config.seed + number
            judgments = judge.compare_many(batch_pairs, orders=orders, num_votes=config.samples, seed=seed)
            if failures := sum(num_failed(judgment.votes) for judgment in judgments):
                raise EndpointError(
                    f"{judge.name}: {failures:,} samples of a batch failed; nothing is lost: fix the cause and run again"
                )
            batch_records = [_record(pair, judgment, config) for pair, judgment in zip(batch_pairs, judgments, strict=True)]
            rows.append({"batch": number, "pairs": batch_records})
            log.append(rows[-1])
            advance(len(batch_pairs))
    records, distilled = list[PairRecord](), list[PreferencePair]()
    for number, row in enumerate(rows):
        of_batch = pairs[number * batch : (number + 1) * batch]
        with undamaged(out / JOURNAL, number + 2):  # the first line names the run
            records += row["pairs"]
            distilled += [
                replace(pair, pair_id=name, order=Order(order), judgment=text, attempts="1")
                for pair, record in zip(of_batch, row["pairs"], strict=True)
                for name, order, text in record["kept"]
            ]
    statistics: dict[str, object] = {
        "num_pairs": len(pairs),
        "num_kept": len(distilled),
        "num_pairs_kept": sum(bool(record["kept"]) for record in records),
        "num_too_seldom_right": sum(not record["kept"] for record in records),
        "num_votes": sum(record["votes"] for record in records),
        "right": sum(record["right"] for record in records),
        "unreadable": sum(record["unreadable"] for record in records),
        "least_right": least_correct,
        "distinct_openings": len({opening_of(pair.judgment) for pair in distilled}),
        "judge": judge.name,
        **config.model_dump(mode="json"),
    }
    if not distilled:
        raise DataError(f"{judge.name}: no pair was right in {least_correct} of {2 * config.samples} samples; see {out}")
    write_parquet(distilled, out / DISTILLED)
    write_atomic(out / STATISTICS, json.dumps(statistics, indent=1) + "\n")
    return statistics


def _record(pair: PreferencePair, judgment: Judgment, config: SelfDistilConfig) -> PairRecord:
    return {
        "pair_id": pair.pair_id,
        "votes": len(judgment.votes),
        "right": sum(vote.winner == pair.preferred for vote in judgment.votes),
        "unreadable": sum(vote.winner is None for vote in judgment.votes),
        "kept": [[kept.pair_id, kept.order.value, kept.judgment] for kept in select_judgments(pair, judgment.votes, config)],
    }
