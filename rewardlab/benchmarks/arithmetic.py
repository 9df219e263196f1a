"""Do the numbers of a published row add up? The overall figure must be the mean of the groups, weighted by their sizes.

A row that only adds up under another grouping than the benchmark's was computed by another scorer: its groups, and their
macro average, cannot be compared with those of other rows. The overall figure can.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isclose, isfinite
from pathlib import Path
from typing import Any

from rewardlab.benchmarks.report_model import Report, RowScore, Scores
from rewardlab.data.votes import TIES_PASS, vote_of
from rewardlab.errors import DataError
from rewardlab.metrics.accuracy import LEAST_BOTH, OUTCOME, Labeled, invalid_rate, pair_score, pair_swaps, vote_counts
from rewardlab.metrics.ties import TieScores, orders_differ, three_way_outcome
from rewardlab.samplers.base import SAMPLING_KEYS
from rewardlab.types import Outcome, Verdict, Vote
from rewardlab.verdicts.formats import READERS
from rewardlab.verdicts.parse import verdict_of
from rewardlab.verdicts.votes import judgment

OFF = 0.25  # points: rounding, and what scorers that leave undecided items out of a group may add to it


@dataclass(frozen=True)
class GroupingFit:
    """A row under one grouping. ``overall`` is the groups' weighted mean (percent), ``off`` the reported one less that.

    ``counts`` are right items per group where every reported percentage is one to its digits; None where one is not.
    """

    grouping: str
    overall: float
    off: float
    counts: Mapping[str, int] | None

    @property
    def adds_up(self) -> bool:
        return abs(self.off) <= OFF


@dataclass(frozen=True)
class RunCheck:
    """A finished run: why it failed at its endpoint ("" if it did not), what of its numbers does not add up, and in a sentence
    what was ``counted``."""

    run: str
    is_good: bool
    failure: str
    problems: tuple[str, ...]
    counted: str = ""


@dataclass(frozen=True)
class Check:
    """What `bench check` finds: of finished ``runs``, or of a published row a ``sentence`` and its fit to each known grouping,
    the best first. ``is_good``: all runs are, or one of the groupings gives the overall figure."""

    is_good: bool
    runs: tuple[RunCheck, ...] = ()
    sentence: str = ""
    groupings: tuple[GroupingFit, ...] = ()


def digits_of(value: float) -> int:
    """Decimals that a number is written with."""
    return len(repr(float(value)).partition(".")[2].rstrip("0"))


def fits(groups: Mapping[str, float], overall: float, groupings: Mapping[str, Mapping[str, int]]) -> list[GroupingFit]:
    """A row's groups and overall (percent) under each known grouping (rows per group), the best first.

    Best is one whose counts are whole, then the nearest. Raises DataError where a group is not known or missing.
    """
    every = (*groups.values(), overall)
    if not all(isfinite(value) and 0 <= value <= 100 for value in every) or max(every) <= 1:
        raise DataError(f"{', '.join(f'{value:g}' for value in every)}: expected percentages, from 0 to 100")
    table = []
    for name, sizes in groupings.items():
        if set(sizes) != set(groups):
            raise DataError(f"groups {', '.join(groups)}: expected {', '.join(sizes)}")
        mean = sum(sizes[group] * share for group, share in groups.items()) / sum(sizes.values())
        table.append(GroupingFit(name, mean, overall - mean, _counts(groups, sizes)))
    return sorted(table, key=lambda fit: (fit.counts is None or not fit.adds_up, abs(fit.off)))


def _counts(groups: Mapping[str, float], sizes: Mapping[str, int]) -> dict[str, int] | None:
    """Right items of each group, where a whole number of them gives the percentage to its digits."""
    digits = max(map(digits_of, groups.values()))
    if digits < 2:  # one decimal of some hundred rows fits too many counts to say anything
        return None
    counts = {name: round(share / 100 * sizes[name]) for name, share in groups.items()}
    exact = all(round(100 * counts[name] / sizes[name], digits) == share for name, share in groups.items())
    return counts if exact else None


def sentence(groups: Mapping[str, float], overall: float, groupings: Mapping[str, Mapping[str, int]], official: str) -> str:
    """What the arithmetic says of a row, for a person."""
    ranked = fits(groups, overall, groupings)
    best = ranked[0]
    if best.counts is None:  # nothing but nearness speaks for it, and similar groups are near under every grouping
        best = next((fit for fit in ranked if fit.grouping == official and fit.adds_up), best)
    if not best.adds_up:
        mean = sum(groups.values()) / len(groups)
        if abs(mean - overall) <= 0.02:
            return f"the overall accuracy is the plain mean of the groups ({mean:.2f}), their macro average: not of all items"
        return (
            f"no known grouping: the nearest ({best.grouping}) gives {best.overall:.2f}, {best.off:+.2f} points from the "
            f"reported {overall:g}; groups and overall cannot both be right"
        )
    text = f"adds up under {best.grouping} ({'/'.join(map(str, groupings[best.grouping].values()))}): {best.overall:.2f}"
    if best.counts:
        shares = (f"{n}/{groupings[best.grouping][name]}" for name, n in best.counts.items())
        text += f", exactly {', '.join(shares)} = {sum(best.counts.values())}/{sum(groupings[best.grouping].values())}"
    if best.grouping == official:
        return text
    return text + "; groups and macro average are not comparable with the official ones; the overall accuracy is"


def problems(report: Report, rows: Sequence[RowScore], ties: Sequence[RowScore] = ()) -> list[str]:
    """Return one sentence for each thing that does not add up in a run's report, given its ``scores.jsonl``; [] if all does.

    Everything is summed anew from the scores of single rows: the groups from their rows, the overall from the groups.
    """
    scores, sentences = report.scores, list[str]()
    groups: dict[str, list[float]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row.score)
    if groups.keys() != scores.groups.keys():
        sentences.append(
            f"the rows are of groups {', '.join(sorted(groups))}, the report of {', '.join(sorted(scores.groups))}"
        )
    for name, values in groups.items():
        if (cell := scores.groups.get(name)) is None:
            continue
        mean = sum(values) / len(values)
        if cell.n != len(values):
            sentences.append(f"group {name} has {cell.n} pairs in the report, {len(values)} rows")
        if not isclose(cell.accuracy, mean, abs_tol=1e-9):
            sentences.append(f"group {name} has {100 * cell.accuracy:.2f} % in the report, its rows give {100 * mean:.2f} %")
    weighted = sum(cell.n * cell.accuracy for cell in scores.groups.values()) / max(1, len(rows))
    if not isclose(scores.accuracy.micro, weighted, abs_tol=1e-9):
        sentences.append(f"the overall accuracy is {100 * scores.accuracy.micro:.2f} %, the groups give {100 * weighted:.2f} %")
    mean = sum(cell.accuracy for cell in scores.groups.values()) / max(1, len(scores.groups))
    if not isclose(scores.accuracy.macro, mean, abs_tol=1e-9):
        sentences.append(f"the macro average is {100 * scores.accuracy.macro:.2f} %, the groups give {100 * mean:.2f} %")
    if scores.num_pairs != len(rows):
        sentences.append(f"{scores.num_pairs} pairs are scored in the report, but there are {len(rows)} rows")
    sentences += _vote_problems(scores)
    if scores.k_curve and scores.k_curve[-1].k == report.votes:
        last = scores.k_curve[-1].accuracy
        if not isclose(last, scores.accuracy.micro, abs_tol=1e-9):
            sentences.append(
                f"all {report.votes} votes have {100 * last:.2f} % in the curve, which is not the overall accuracy"
            )
    low, high = scores.interval
    if not low - 1e-9 <= scores.accuracy.micro <= high + 1e-9:
        sentences.append("the overall accuracy is outside its own interval")
    if report.ties or ties:
        num_ties, reported = (report.ties.num_ties, report.ties.three_way.accuracy) if report.ties else (0, 0.0)
        if num_ties != len(ties):
            sentences.append(f"{num_ties} ties are scored in the report, but there are {len(ties)} rows of ties")
        three_way = sum(row.three_way for row in (*rows, *ties)) / max(1, len(rows) + len(ties))
        if not isclose(reported, three_way, abs_tol=1e-9):
            sentences.append(f"the accuracy in three classes is {100 * reported:.2f} %, its rows give {100 * three_way:.2f} %")
    return sentences


def _vote_problems(scores: Scores) -> list[str]:
    sentences, total = [], scores.num_votes_total
    valid = scores.statuses.get("ok", 0) + scores.statuses.get("tie", 0)
    if not isclose(scores.invalid_rate * total, total - valid, abs_tol=1e-6):
        sentences.append(f"the invalid rate is {100 * scores.invalid_rate:.2f} %, the statuses give another one")
    if sum(scores.statuses.values()) != total:
        sentences.append(f"the statuses are of {sum(scores.statuses.values())} votes, the report of {total}")
    return sentences


def addition(scores: Scores) -> str:
    """Return the sum that gives a report's overall accuracy, for a person to follow."""
    terms = " + ".join(f"{cell.n:,} × {100 * cell.accuracy:.2f}" for cell in scores.groups.values())
    return f"({terms}) / {scores.num_pairs:,} = {100 * scores.accuracy.micro:.2f}"


HEAD = ("data", "judge", "votes", "orders", "seed")  # in the first line of votes, and in a report
SAMPLING = ("stop_error", *SAMPLING_KEYS)
REPORT_NAMES = {"data": "data_sha256"}
NO_TEXT = (
    OUTCOME,
    "scores",
    "probability",
    "low_coverage",
    "other_criteria",
    "checks_probability",
)  # rules of verdicts that are of more than a text


@dataclass(frozen=True)
class CountedRow:
    """What a row's votes come to: ``score`` in 0..1, None of a row that ``scores.jsonl`` lacks; ``invalid``, the fraction of
    its votes without a verdict; ``statuses`` of its votes; ``chosen`` of them are verdicts, ``lead`` half the excess of those
    for the response shown first; ``alike`` is whether both orders name one winner, None of a row in one order. ``misread``: the
    first vote whose text reads otherwise, "" without one; None where a verdict is not of a text alone. ``outcome`` is that in
    three classes; ``differ`` is whether the two orders name different responses, None unless each names one."""

    score: float | None
    invalid: float
    statuses: Mapping[str, int]
    chosen: float
    lead: float
    alike: bool | None
    misread: str | None
    outcome: Outcome
    differ: bool | None


@dataclass(frozen=True)
class CountedVotes:
    """The votes of a run: the ``identity`` of the run that they say they are of, and by row what they come to, of pairs with a
    better response, of ties, and of pairs that have no score, for they have no label."""

    identity: Mapping[str, Any]
    rows: Mapping[int, CountedRow]
    ties: Mapping[int, CountedRow]
    unlabelled: Mapping[int, CountedRow]

    @property
    def are_read_anew(self) -> bool:
        """Return whether the texts could be read again, all of them."""
        return all(row.misread is not None for row in self.rows.values())


def count_votes(path: Path, rows: Sequence[RowScore], verdict_format: str | None = None) -> CountedVotes:
    """Return what the votes of a finished run come to, controls left out; a later line of a row stands for an earlier. Their
    texts are read again by ``verdict_format`` where it is one of the package's, for another's code is not run to check.

    Lines are read one at a time. Raise DataError, with the line, for what is not the votes of a run.
    """
    known, identity, where = {row.row: row for row in rows}, dict[str, Any](), str(path)
    tables: tuple[dict[int, CountedRow], ...] = ({}, {}, {})
    by_format = verdict_format if verdict_format in READERS else None
    try:
        with path.open(encoding="utf-8", newline="\n") as lines:
            for number, line in enumerate(lines, start=1):
                where = f"{path}, line {number}"
                entry = json.loads(line)
                if number == 1:
                    identity = dict(entry["identity"])
                elif entry["pass"] in ("votes", TIES_PASS):
                    row = known.get(entry["row"])
                    table = tables[2 if row is None else int(row.preferred is None)]
                    table[entry["row"]] = _count(list(map(vote_of, entry["votes"])), row, by_format)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        fault = f"{type(error).__name__}: {error}"[:200]
        raise DataError(
            f"{where}: not the votes of a run, or cut off ({fault}); restore the file from a backup: lost votes "
            "can only be queried again"
        ) from error
    return CountedVotes(identity, *tables)


def _count(votes: Sequence[Vote], row: RowScore | None, verdict_format: str | None) -> CountedRow:
    label = row.preferred if row is not None else None
    item = Labeled(judgment("", votes), label or 0, "")
    chosen, lead, _, _ = vote_counts(item)
    statuses = Counter(vote.verdict.status.value for vote in item.judgment.votes)
    alike, misread = pair_swaps([item])[0], _misread(votes, verdict_format)
    outcome, differ = three_way_outcome(votes), orders_differ(votes)
    score = None if row is None else float(outcome is Outcome.TIE) if label is None else pair_score(item)
    return CountedRow(score, invalid_rate([item]), statuses, chosen, lead, alike, misread, outcome, differ)


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


def vote_problems(votes: CountedVotes, report: Report, rows: Sequence[RowScore], ties: Sequence[RowScore] = ()) -> list[str]:
    """Return one sentence for each figure that the votes do not give; [] if they give all that can be counted."""
    counted, scores, sentences = votes.rows, report.scores, _head_problems(votes.identity, report)
    num_unlabelled = report.systems.num_pairs - report.systems.num_labelled if report.systems else 0
    unscored = votes.unlabelled.keys() if len(votes.unlabelled) != num_unlabelled else set[int]()
    for words, table, scored in (("rows", counted.keys() | unscored, rows), ("ties", votes.ties.keys(), ties)):
        if extra := table ^ {row.row for row in scored}:
            sentences.append(
                f"votes are of {len(table):,} {words}, scores of {len(scored):,}; row {min(extra)} is in one of them alone"
            )
    pairs = [(row, counted[row.row]) for row in rows if row.row in counted]
    pairs += [(row, votes.ties[row.row]) for row in ties if row.row in votes.ties]
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
    misread = [(number, count.misread) for number, count in sorted({**counted, **votes.ties}.items()) if count.misread]
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
    sentences += _share_problems(
        [("position bias", scores.position_bias, bias), ("swap consistency", scores.swap_consistency, swap)]
    )
    return sentences + (_tie_problems(votes, report.ties, rows) if report.ties or votes.ties else [])


def _tie_problems(votes: CountedVotes, reported: TieScores | None, rows: Sequence[RowScore]) -> list[str]:
    """Return one sentence for each score of ties that the votes do not give; ``rows`` have the labels of the other pairs."""
    if reported is None:
        return [f"votes.jsonl has votes on {len(votes.ties):,} ties, the report has no scores of ties"]
    labelled = [(row, votes.rows[row.row]) for row in rows if row.row in votes.rows]
    right = [count.outcome.winner == row.preferred for row, count in labelled]
    right += [count.outcome is Outcome.TIE for count in votes.ties.values()]
    every = [*(count for _, count in labelled), *votes.ties.values()]
    differ = [count.differ for count in votes.ties.values() if count.differ is not None]
    share = reported.disagreement
    counts = {
        "pairs": (reported.num_pairs, len(every)),
        "ties": (reported.num_ties, len(votes.ties)),
        "pairs without an answer": (reported.num_unanswered, [one.outcome for one in every].count(Outcome.NO_VALID_VOTE)),
        "ties with a response named in both orders": (share.n if share else 0, len(differ)),
    }
    sentences = [
        f"{claim:,} {words} are in the report's scores of ties, votes.jsonl has {counted:,}"
        for words, (claim, counted) in counts.items()
        if claim != counted
    ]
    if reported.num_both_bad > reported.num_ties:
        sentences.append(f"{reported.num_both_bad:,} of {reported.num_ties:,} ties are both bad in the report")
    disagreement = sum(differ) / len(differ) if differ else None
    return sentences + _share_problems(
        [
            ("accuracy in three classes", reported.three_way.accuracy, sum(right) / len(right) if right else None),
            ("fraction of ties on which the orders disagree", share.share if share else None, disagreement),
        ]
    )


def _share_problems(shares: Sequence[tuple[str, float | None, float | None]]) -> list[str]:
    """Return one sentence for each (name, reported, counted) whose two values differ."""
    return [
        f"the {words} is {_share(reported)} in the report, the votes give {_share(counted)}"
        for words, reported, counted in shares
        if not _alike(reported, counted)
    ]


def _alike(one: float | None, other: float | None) -> bool:
    return one is other is None or (one is not None and other is not None and isclose(one, other, abs_tol=1e-9))


def _share(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2f} %"
