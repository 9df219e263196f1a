"""Score answers sampled elsewhere, or before: JSON lines of texts, of a scalar model's scores, or a run's votes.jsonl.

A text row is ``{"row": i, "order": "given"|"swapped", "text": "..."}``, one sample each, with ``margin`` (log-odds of the
response shown first) where the sampler knew it; a score row is ``{"row": i, "scores": [s0, s1]}``; an outcome row, where
only the result is known, ``{"row": i, "right": true|false}``. ``row`` is the 0-based row of the data file; index 0 is its
first (chosen) response.
"""

from __future__ import annotations

import copy
import json
import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, fields
from itertools import combinations
from pathlib import Path
from typing import Any

from rewardlab.benchmarks.base import Row
from rewardlab.data.files import json_fault
from rewardlab.data.votes import refuse_attacked, vote_of
from rewardlab.errors import DataError
from rewardlab.metrics.accuracy import OUTCOME
from rewardlab.types import BOTH_ORDERS, Choice, Completion, FinishReason, Order, Verdict, VerdictStatus, Vote, choice_of
from rewardlab.verdicts.parse import verdict_of

MISSING = "not in the replay file"
EXPECTED = 'expected {"row", "order", "text"}, {"row", "scores"}, {"row", "right"}, or the votes.jsonl of a run'


@dataclass(frozen=True)
class Sampling:
    """How a run's votes were sampled; None where the file does not say."""

    temperature: float | None = None
    top_p: float | None = None
    stop_error: float | None = None
    max_tokens: int | None = None


def sampling_of(identity: Mapping[str, Any]) -> Sampling:
    return Sampling(**{field.name: identity.get(field.name) for field in fields(Sampling)})


class Replay:
    """All samples of a replay file, by row and order.

    The votes of a finished run stand as they were read then (``verdict_format`` None), or are read anew by a format; its
    control passes are left out. Samples of another kind are read by the format, ``think_answer`` where it is None.
    """

    sees = False

    def __init__(self, path: Path, verdict_format: str | None) -> None:
        if not path.is_file():
            raise DataError(f"{path}: no such replay file; expected JSON lines")
        if path.suffix in (".xlsx", ".csv", ".tsv"):
            raise DataError(
                f"{path}: is a table; `rewardlab bench import vlmevalkit {path} --data DATA --out replay.jsonl` makes a replay "
                "file of VLMEvalKit's"
            )
        self.name, self.verdict_format = f"replay:{path}", verdict_format or "think_answer"
        self._anew = verdict_format is not None
        self.is_run = self.stopped = False  # ``stopped``: the run's votes were asked until they were settled
        self.sampling = Sampling()  # of the run
        self._votes: dict[tuple[int, Order], list[Vote]] = defaultdict(list)
        self._scores: dict[int, tuple[float, float]] = {}
        self._outcomes: dict[int, bool] = {}
        self.num_unordered = 0  # text rows that name no order, and are taken as given
        self._pads = True
        try:
            with path.open(encoding="utf-8", newline="\n") as lines:  # one at a time: a million of them are much
                for number, line in enumerate(lines, start=1):
                    if line.strip():
                        self._take(line, number, f"{path}, line {number}")
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: not a text file ({error}); {EXPECTED}") from error
        kinds = {"texts": {row for row, _ in self._votes}, "scores": set(self._scores), "an outcome": set(self._outcomes)}
        if not any(kinds.values()):
            raise DataError(f"{path}: holds no samples")
        for (name, some), (other, others) in combinations(kinds.items(), 2):
            if both := some & others:
                raise DataError(f"{path}: row {min(both)} has both {name} and {other}; expected one kind of sample for a row")

    def _take(self, line: str, number: int, where: str) -> None:
        try:
            values: dict[str, Any] = json.loads(line)
            if not isinstance(values, dict):
                raise ValueError("not an object")
            if number == 1 and values.keys() == {"identity"}:
                refuse_attacked(dict(values["identity"]))
                self.is_run, self.sampling = True, sampling_of(dict(values["identity"]))
                self.verdict_format = self.verdict_format if self._anew else ""  # read as its judge's were, whatever it is
                self.stopped = self.sampling.stop_error is not None
                return
            row = values["row"]
            if not isinstance(row, int) or isinstance(row, bool) or row < 0:
                raise ValueError(f"row is {row!r}, expected a number from 0 on")
            if self.is_run:
                self._take_votes(values, row)
            elif "scores" in values:
                first, second = (float(score) for score in values["scores"])
                if row in self._scores:
                    raise ValueError(f"row {row} has scores twice")
                self._scores[row] = (first, second)
            elif "right" in values:
                if not isinstance(values["right"], (bool, int)) or values["right"] not in (0, 1) or row in self._outcomes:
                    raise ValueError(f"row {row} has more than one outcome, or one that is neither true nor false")
                self._outcomes[row] = bool(values["right"])
            else:
                self._take_text(values, row)
        except (ValueError, KeyError, TypeError) as error:
            fault = json_fault(error) if isinstance(error, ValueError) else error
            raise DataError(f"{where}: {EXPECTED} ({fault}); see --help of bench") from error

    def _take_votes(self, values: Mapping[str, Any], row: int) -> None:
        """A later entry of a row stands for an earlier one, as when the run is continued."""
        if values["pass"] != "votes":
            return
        for order in Order:
            self._votes.pop((row, order), None)
        for vote in map(vote_of, values["votes"]):
            if vote.member:
                raise ValueError("the votes of a panel, which only the panel itself can count")
            if self._anew:
                vote = Vote(vote.order, verdict_of(vote.completion, self.verdict_format), vote.completion)
            self._votes[row, vote.order].append(vote)

    def _take_text(self, values: Mapping[str, Any], row: int) -> None:
        if not isinstance(values["text"], str):
            raise ValueError("text is not a string")
        completion, order = Completion(values["text"], FinishReason.STOP), Order(values.get("order", "given"))
        self.num_unordered += "order" not in values
        margin = values.get("margin")
        if margin is None:
            self._votes[row, order].append(Vote(order, verdict_of(completion, self.verdict_format), completion))
            return
        if isinstance(margin, bool) or not isinstance(margin, (int, float)) or not math.isfinite(margin):
            raise ValueError(f"margin is {margin!r}, expected the log-odds of the response shown first")
        self._votes[row, order].append(Vote(order, _by_margin(margin), completion, float(margin)))

    @property
    def rows(self) -> set[int]:
        return {row for row, _ in self._votes} | set(self._scores) | set(self._outcomes)

    def counts(self, row: int) -> tuple[int, int]:
        """Return how many samples a row has as given and as swapped. Scores stand for both orders, an outcome for one."""
        if row in self._scores:
            return (1, 1)
        if row in self._outcomes:
            return (1, 0)
        given, swapped = (len(self._votes.get((row, order), ())) for order in BOTH_ORDERS)
        return given, swapped

    def as_recorded(self) -> Replay:
        """Return the same recording, of which a row and order with any sample lacks none."""
        other = copy.copy(self)
        other._pads = False
        return other

    @property
    def max_votes(self) -> int:
        """The largest number of samples any row has in one order."""
        return max([1, *map(len, self._votes.values())])

    def votes(self, row: Row, order: Order, num_votes: int) -> list[Vote]:
        """The first ``num_votes`` samples of a row in an order; each one that is missing is an ERROR, not left out.

        Of a run's votes, which may have stopped early, and of :meth:`as_recorded` only a row and order without any is missing.
        """
        if row.row in self._scores:
            return [self._score_vote(row.row, order)] * num_votes
        if row.row in self._outcomes and order is Order.GIVEN:
            return [self._outcome_vote(row, order)]
        votes = self._votes.get((row.row, order), [])[:num_votes]
        expected = 1 if self.is_run or not self._pads else num_votes
        lost = Completion("", FinishReason.ERROR, error=MISSING)
        return votes + [Vote(order, Verdict(None, VerdictStatus.ERROR), lost)] * (expected - len(votes))

    def _score_vote(self, row: int, order: Order) -> Vote:
        first, second = self._scores[row]
        note = Completion(f"scores {first:g} {second:g}", FinishReason.STOP)
        if math.isnan(first) or math.isnan(second):
            return Vote(order, Verdict(None, VerdictStatus.ERROR, "scores"), note)
        if first == second:
            return Vote(order, Verdict(None, VerdictStatus.TIE, "scores"), note)
        return Vote(order, Verdict(choice_of(int(second > first), order), VerdictStatus.OK, "scores"), note)

    def _outcome_vote(self, row: Row, order: Order) -> Vote:
        """A vote for the response that the outcome names; in which place it was shown is not known."""
        assert row.pair.preferred is not None
        right = self._outcomes[row.row]
        note = Completion(f"outcome: {'right' if right else 'wrong'}", FinishReason.STOP)
        response = row.pair.preferred if right else 1 - row.pair.preferred
        return Vote(order, Verdict(choice_of(response, order), VerdictStatus.OK, OUTCOME), note)


def _by_margin(margin: float) -> Verdict:
    if margin == 0:
        return Verdict(None, VerdictStatus.TIE, "probability")
    return Verdict(Choice.FIRST if margin > 0 else Choice.SECOND, VerdictStatus.OK, "probability")
