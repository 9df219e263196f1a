"""Does a run's ``votes.jsonl`` give what its report and its ``scores.jsonl`` say? Every vote is counted anew."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isclose
from pathlib import Path

from rewardlab.benchmarks.report_model import Report, RowScore
from rewardlab.data.votes import vote_of
from rewardlab.errors import DataError
from rewardlab.metrics.accuracy import LEAST_BOTH, Labeled, pair_score, pair_swaps, vote_counts
from rewardlab.types import Vote
from rewardlab.verdicts.votes import judgment


@dataclass(frozen=True)
class CountedRow:
    """What a row's votes come to: ``score`` in 0..1, None where the row's label is not known; ``statuses`` of its votes;
    ``chosen`` of them are verdicts, ``lead`` half the excess of those for the response shown first; ``alike`` is whether both
    orders name one winner, None of a row in one order."""

    score: float | None
    statuses: Mapping[str, int]
    chosen: float
    lead: float
    alike: bool | None


def count_votes(path: Path, rows: Sequence[RowScore]) -> dict[int, CountedRow]:
    """Return by row what the votes of a finished run come to, controls left out; a later line of a row stands for an earlier.

    Lines are read one at a time. Raise DataError, with the line, for what is not the votes of a run.
    """
    known, table, where = {row.row: row for row in rows}, dict[int, CountedRow](), str(path)
    try:
        with path.open(encoding="utf-8", newline="\n") as lines:
            for number, line in enumerate(lines, start=1):
                where, entry = f"{path}, line {number}", json.loads(line)
                if number == 1:
                    entry["identity"]
                elif entry["pass"] == "votes":
                    table[entry["row"]] = _count(list(map(vote_of, entry["votes"])), known.get(entry["row"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        fault = f"{type(error).__name__}: {error}"[:200]
        raise DataError(f"{where}: not the votes of a run ({fault}); run the same command again") from error
    return table


def _count(votes: Sequence[Vote], row: RowScore | None) -> CountedRow:
    label = row.preferred if row is not None else None
    item = Labeled(judgment("", votes), label or 0, "")
    chosen, lead, _, _ = vote_counts(item)
    statuses = Counter(vote.verdict.status.value for vote in item.judgment.votes)
    return CountedRow(None if label is None else pair_score(item), statuses, chosen, lead, pair_swaps([item])[0])


def vote_problems(counted: Mapping[int, CountedRow], report: Report, rows: Sequence[RowScore]) -> list[str]:
    """Return one sentence for each figure that the votes do not give; [] if they give all that can be counted."""
    scores, sentences = report.scores, list[str]()
    if extra := counted.keys() ^ {row.row for row in rows}:
        sentences.append(
            f"votes are of {len(counted):,} rows, scores of {len(rows):,}; row {min(extra)} is in one of them alone"
        )
    pairs = [(row, counted[row.row]) for row in rows if row.row in counted]
    other = [
        (row, count.score)
        for row, count in pairs
        if count.score is not None and not isclose(count.score, row.score, abs_tol=1e-9)
    ]
    if other:
        row, score = other[0]
        more = f", and {len(other) - 1:,} rows more" if len(other) > 1 else ""
        sentences.append(f"row {row.row} is said to score {100 * row.score:.2f} %, its votes give {100 * score:.2f} %{more}")
    statuses = Counter[str]()
    for one in counted.values():
        statuses.update(one.statuses)
    for name in sorted(statuses.keys() | scores.statuses.keys()):
        if statuses[name] != scores.statuses.get(name, 0):
            reported = scores.statuses.get(name, 0)
            sentences.append(f"{reported:,} votes are said to be of status {name}, votes.jsonl has {statuses[name]:,}")
    if sum(statuses.values()) != scores.num_votes_total:
        sentences.append(f"{scores.num_votes_total:,} votes are said, votes.jsonl has {sum(statuses.values()):,}")
    chosen = sum(one.chosen for one in counted.values())
    bias = sum(one.lead for one in counted.values()) / chosen if chosen else None
    swaps = [one.alike for one in counted.values() if one.alike is not None]
    swap = sum(swaps) / len(swaps) if swaps and len(swaps) >= LEAST_BOTH * len(counted) else None
    for words, said_share, share in (
        ("position bias", scores.position_bias, bias),
        ("swap consistency", scores.swap_consistency, swap),
    ):
        if not _alike(said_share, share):
            sentences.append(f"the {words} is said to be {_share(said_share)}, the votes give {_share(share)}")
    return sentences


def _alike(one: float | None, other: float | None) -> bool:
    return one is other is None or (one is not None and other is not None and isclose(one, other, abs_tol=1e-9))


def _share(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2f} %"
