"""Does a run's ``votes.jsonl`` give what its report and its ``scores.jsonl`` say? Texts are read and votes counted anew."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isclose
from pathlib import Path
from typing import Any

from rewardlab.benchmarks.report_model import Report, RowScore
from rewardlab.data.votes import vote_of
from rewardlab.errors import DataError
from rewardlab.metrics.accuracy import LEAST_BOTH, OUTCOME, Labeled, invalid_rate, pair_score, pair_swaps, vote_counts
from rewardlab.samplers.base import SAMPLING_KEYS
from rewardlab.types import Verdict, Vote
from rewardlab.verdicts.formats import READERS
from rewardlab.verdicts.parse import verdict_of
from rewardlab.verdicts.votes import judgment

HEAD = ("data", "judge", "votes", "orders", "seed")  # in the first line of votes, and in a report
SAMPLING = ("stop_error", *SAMPLING_KEYS)
REPORT_NAMES = {"data": "data_sha256"}
NO_TEXT = (OUTCOME, "scores", "probability", "low_coverage")  # rules of verdicts that are of more than a text


@dataclass(frozen=True)
class CountedRow:
    """What a row's votes come to: ``score`` in 0..1, None of a row that ``scores.jsonl`` lacks; ``invalid``, the fraction of
    its votes without a verdict; ``statuses`` of its votes; ``chosen`` of them are verdicts, ``lead`` half the excess of those
    for the response shown first; ``alike`` is whether both orders name one winner, None of a row in one order. ``misread``: the
    first vote whose text reads otherwise, "" without one; None where a verdict is not of a text alone."""

    score: float | None
    invalid: float
    statuses: Mapping[str, int]
    chosen: float
    lead: float
    alike: bool | None
    misread: str | None


@dataclass(frozen=True)
class CountedVotes:
    """The votes of a run: the ``identity`` of the run that they say they are of, and by row what they come to."""

    identity: Mapping[str, Any]
    rows: Mapping[int, CountedRow]

    @property
    def are_read_anew(self) -> bool:
        """Return whether the texts could be read again, all of them."""
        return all(row.misread is not None for row in self.rows.values())


def count_votes(path: Path, rows: Sequence[RowScore], verdict_format: str | None = None) -> CountedVotes:
    """Return what the votes of a finished run come to, controls left out; a later line of a row stands for an earlier. Their
    texts are read again by ``verdict_format`` where it is one of the package's, for another's code is not run to check.

    Lines are read one at a time. Raise DataError, with the line, for what is not the votes of a run.
    """
    known, table, identity, where = {row.row: row for row in rows}, dict[int, CountedRow](), dict[str, Any](), str(path)
    by_format = verdict_format if verdict_format in READERS else None
    try:
        with path.open(encoding="utf-8", newline="\n") as lines:
            for number, line in enumerate(lines, start=1):
                where = f"{path}, line {number}"
                entry = json.loads(line)
                if number == 1:
                    identity = dict(entry["identity"])
                elif entry["pass"] == "votes":
                    table[entry["row"]] = _count(list(map(vote_of, entry["votes"])), known.get(entry["row"]), by_format)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        fault = f"{type(error).__name__}: {error}"[:200]
        raise DataError(
            f"{where}: not the votes of a run, or cut off ({fault}); restore the file from a backup: lost votes "
            "can only be queried again"
        ) from error
    return CountedVotes(identity, table)


def _count(votes: Sequence[Vote], row: RowScore | None, verdict_format: str | None) -> CountedRow:
    label = row.preferred if row is not None else None
    item = Labeled(judgment("", votes), label or 0, "")
    chosen, lead, _, _ = vote_counts(item)
    statuses = Counter(vote.verdict.status.value for vote in item.judgment.votes)
    score = None if label is None else pair_score(item)
    return CountedRow(
        score, invalid_rate([item]), statuses, chosen, lead, pair_swaps([item])[0], _misread(votes, verdict_format)
    )


def _misread(votes: Sequence[Vote], verdict_format: str | None) -> str | None:
    if verdict_format is None or any(vote.margin is not None or vote.member or vote.verdict.rule in NO_TEXT for vote in votes):
        return None
    for place, vote in enumerate(votes, start=1):
        read = verdict_of(vote.completion, verdict_format)
        if (read.status, read.choice) != (vote.verdict.status, vote.verdict.choice):
            return f"vote {place} is recorded as {_words(vote.verdict)}, its text reads {_words(read)}"
    return ""


def _words(verdict: Verdict) -> str:
    return verdict.choice.value if verdict.choice is not None else verdict.status.value


def _head_problems(identity: Mapping[str, Any], report: Report) -> list[str]:
    """Return a sentence for each part in which the run of the votes is not that of the report."""
    is_recording = report.judge.startswith(("replay:", "baseline:"))  # whose sampling is that of who recorded it
    head = {name: getattr(report, REPORT_NAMES.get(name, name)) for name in (*HEAD, *(() if is_recording else SAMPLING))}
    # VoteSampling that an endpoint refuses is None in a report.
    other = [name for name, value in head.items() if name in identity and value is not None and identity[name] != value]
    benchmark = str(identity.get("benchmark", report.benchmark))
    if benchmark != report.benchmark and not benchmark.startswith(f"{report.benchmark} "):  # of a file with its hash behind
        other.insert(0, "benchmark")
        head["benchmark"] = report.benchmark
    return [
        f"votes.jsonl is of another run: its {name.replace('_', ' ')} is {identity[name]!r}, that of the report {head[name]!r}"
        for name in other
    ]


def vote_problems(votes: CountedVotes, report: Report, rows: Sequence[RowScore]) -> list[str]:
    """Return one sentence for each figure that the votes do not give; [] if they give all that can be counted."""
    counted, scores, sentences = votes.rows, report.scores, _head_problems(votes.identity, report)
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
        sentences.append(f"row {row.row} has a score of {100 * row.score:.2f} %, its votes give {100 * score:.2f} %{more}")
    silent = [(row, count.invalid) for row, count in pairs if not isclose(count.invalid, row.invalid, abs_tol=1e-9)]
    if silent:
        row, invalid = silent[0]
        recorded = f"{100 * row.invalid:.2f} % votes without a verdict"
        sentences.append(f"row {row.row} has {recorded}, its votes give {100 * invalid:.2f} %")
    misread = [(number, count.misread) for number, count in sorted(counted.items()) if count.misread]
    if misread and votes.are_read_anew:
        more = f", and {len(misread) - 1:,} rows more" if len(misread) > 1 else ""
        sentences.append(f"row {misread[0][0]}: {misread[0][1]} as {report.verdict_format}{more}")
    statuses = Counter[str]()
    for one in counted.values():
        statuses.update(one.statuses)
    for name in sorted(statuses.keys() | scores.statuses.keys()):
        if statuses[name] != scores.statuses.get(name, 0):
            reported = scores.statuses.get(name, 0)
            sentences.append(f"{reported:,} votes have the status {name} in the report, votes.jsonl has {statuses[name]:,}")
    if sum(statuses.values()) != scores.num_votes_total:
        sentences.append(f"{scores.num_votes_total:,} votes are in the report, votes.jsonl has {sum(statuses.values()):,}")
    chosen = sum(one.chosen for one in counted.values())
    bias = sum(one.lead for one in counted.values()) / chosen if chosen else None
    swaps = [one.alike for one in counted.values() if one.alike is not None]
    swap = sum(swaps) / len(swaps) if swaps and len(swaps) >= LEAST_BOTH * len(counted) else None
    for words, said_share, share in (
        ("position bias", scores.position_bias, bias),
        ("swap consistency", scores.swap_consistency, swap),
    ):
        if not _alike(said_share, share):
            sentences.append(f"the {words} is {_share(said_share)} in the report, the votes give {_share(share)}")
    return sentences


def _alike(one: float | None, other: float | None) -> bool:
    return one is other is None or (one is not None and other is not None and isclose(one, other, abs_tol=1e-9))


def _share(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2f} %"
