"""Remove judgments of a cold-start set that are not fit to teach from, each with its reason.

*contradiction*: the reasoning favours the other response, by a consistency judge (optional). *leaked label*: it refers to a
label, which no judge will have. *collapse*: too many judgments begin with the same words, which would teach a template.
*length*: an outlier in its set.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rewardlab.config import ConsistencyConfig, FilterConfig
from rewardlab.data.files import write_atomic
from rewardlab.data.pairs import PairSet, Shard
from rewardlab.data.set_checks import tie_note
from rewardlab.data.texts import opening_of
from rewardlab.errors import EndpointError, OutputError
from rewardlab.reporting.progress import log_line
from rewardlab.rewards.consistency import EndpointConsistencyJudge
from rewardlab.types import PreferencePair, choice_of
from rewardlab.verdicts.places import reasoning_of

KEPT, FILTERED, REPORT = "kept.parquet", "filtered.jsonl", "report.json"

_LABEL = (
    r"(?:label|ground[- ]truth|gold(?:en)?(?: answer| label)?|reference (?:answer|label)|human (?:annotat\w+|preference|label))"
)
_LEAKS = re.compile(
    r"\b(?:as|since|because|given that|according to|based on|per) (?:the |its |this )?(?:given |provided |known |correct )?"
    rf"{_LABEL}s?\b"
    rf"|\bthe {_LABEL}s? (?:says?|states?|is|indicates?|shows?|prefers?|tells?|confirms?)\b"
    r"|\b(?:I (?:was|am|have been) told|we (?:were|are) told|it is given) (?:that )?(?:response|answer) ?[12AB]\b"
    r"|\bthe (?:correct|preferred|chosen|right) (?:choice|response|answer|verdict) "
    r"(?:is|was) (?:given|provided|known|labell?ed)\b",
    re.IGNORECASE,
)


def leaks_label(judgment: str) -> bool:
    """Return whether a judgment refers to its label. A label in the scene ("the bottle's label says") does not count."""
    return _LEAKS.search(judgment) is not None and not re.search(
        r"\b(?:bottle|box|can|jar|product|price)'?s? label\b", judgment
    )


def length_fences(lengths: Sequence[int], most: float) -> tuple[float, float]:
    """Return the (shortest, longest) length that is no outlier: ``most`` interquartile ranges of log lengths beyond the
    quartiles."""
    low, high = np.quantile(np.log([max(1, length) for length in lengths]), [0.25, 0.75])
    spread = max(high - low, 0.05)
    return math.exp(low - most * spread), math.exp(high + most * spread)


@dataclass(frozen=True)
class FilterFindings:
    """The reason for each removed pair, by its index; ``unclear`` contradiction checks keep their pairs."""

    reasons: dict[int, str]
    openings: list[tuple[str, int]]
    fences: tuple[float, float]
    unclear: int = 0

    @property
    def counts(self) -> dict[str, int]:
        return dict(Counter(self.reasons.values()).most_common())


async def _contradictions(pairs: Sequence[tuple[int, PreferencePair]], judge: EndpointConsistencyJudge) -> dict[int, int]:
    async def score(pair: PreferencePair) -> int:
        if pair.preferred is None:
            return 0
        return await judge.score(pair.question, reasoning_of(pair.judgment), choice_of(pair.preferred, pair.order))

    try:
        await judge.check()
        scores = await asyncio.gather(*(score(pair) for _, pair in pairs))
    finally:
        await judge.aclose()
    return {place: agreement for (place, _), agreement in zip(pairs, scores, strict=True)}


def examine_judgments(
    pairs: Iterable[PreferencePair], config: FilterConfig, judge: EndpointConsistencyJudge | None = None
) -> FilterFindings:
    """Return why judgments of ``pairs`` are removed; pairs without one, and ties, are skipped. The first reason that applies
    counts: leaked label, length, contradiction, collapse (which keeps the first judgments of an opening)."""
    with_judgment = [(place, pair) for place, pair in enumerate(pairs) if pair.judgment and pair.tie is None]
    if not with_judgment:
        return FilterFindings({}, [], (0.0, 0.0))
    reasons: dict[int, str] = {}
    lengths = [len(pair.judgment) for _, pair in with_judgment]
    low, high = length_fences(lengths, config.length_fence)
    for (place, pair), length in zip(with_judgment, lengths, strict=True):
        if leaks_label(pair.judgment):
            reasons[place] = "leaked label"
        elif not low <= length <= high:
            reasons[place] = "length"
    unclear = 0
    if judge is not None:
        scores = asyncio.run(_contradictions([(place, pair) for place, pair in with_judgment if place not in reasons], judge))
        unclear = sum(score == 0 for score in scores.values())
        reasons |= {place: "contradiction" for place, score in scores.items() if score < 0}
    most, openings = max(1, math.ceil(config.most_alike * len(with_judgment))), Counter[tuple[str, ...]]()
    for place, pair in with_judgment:
        if place in reasons:
            continue
        opening = opening_of(pair.judgment)
        openings[opening] += 1
        if openings[opening] > most:
            reasons[place] = "collapse"
    common = [(" ".join(words), number) for words, number in openings.most_common(10)]
    return FilterFindings(reasons, common, (low, high), unclear)


def filter_set(
    data: Path,
    config: FilterConfig,
    out: Path,
    *,
    images: Path | None = None,
    allow_columns: Collection[str] = (),
) -> dict[str, Any]:
    """Write ``kept.parquet``, ``filtered.jsonl`` and ``report.json`` into ``out``; return the report. Raise OutputError if
    ``out`` holds a result."""
    if (out / REPORT).exists():
        raise OutputError(f"{out / REPORT}: exists already; choose another --out")
    pairs = PairSet(data, images=images, frames=None, allow_columns=allow_columns)
    model, _, url = (config.consistency or "").partition("@")
    judge = None
    if url:
        endpoint = ConsistencyConfig.model_validate({"base_url": url, "model": model, "deadline_s": 120})
        judge = EndpointConsistencyJudge(endpoint, api_key=os.environ.get(endpoint.api_key_env, "none"))
    ties = list[bool]()

    def texts() -> Iterator[PreferencePair]:
        for pair in pairs:
            ties.append(pair.tie is not None)
            yield replace(pair, images=())

    findings = examine_judgments(texts(), config, judge)
    if note := tie_note(sum(ties), len(ties)):
        log_line(note)
    if judge is not None and judge.counts["asked"] and judge.counts["failed"] == judge.counts["asked"]:
        raise EndpointError(f"{url}: all {judge.counts['asked']:,} requests failed; does this endpoint serve {model!r}?")
    shard, lines, num_kept = Shard(out / KEPT), [], 0
    for place, pair in enumerate(pairs):
        num_kept += bool(pair.judgment) and not ties[place] and place not in findings.reasons
        if place not in findings.reasons:
            shard.add(pair)
        else:
            entry = {"row": place, "pair_id": pair.pair_id, "reason": findings.reasons[place], "judgment": pair.judgment}
            lines.append(json.dumps(entry, ensure_ascii=False) + "\n")
    shard.close()
    write_atomic(out / FILTERED, "".join(lines))
    report = {
        "data": str(data),
        "num_pairs": shard.num_rows + len(lines),
        "num_pairs_kept": shard.num_rows,
        "num_judgments": num_kept + len(lines),
        "num_judgments_kept": num_kept,
        "reasons": findings.counts,
        "unclear": findings.unclear,
        "consistency_asked": judge.counts["asked"] if judge else 0,
        "consistency_failed": judge.counts["failed"] if judge else 0,
        "length_fences": findings.fences,
        "common_openings": findings.openings,
        **config.model_dump(),
    }
    write_atomic(out / REPORT, json.dumps(report, indent=1) + "\n")
    return report
