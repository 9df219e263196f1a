"""Score answers sampled elsewhere, or before: JSON lines of texts, of a scalar model's scores, or a run's votes.jsonl.

A text row is ``{"row": i, "order": "given"|"swapped", "text": "..."}``, one sample each, with ``margin`` (log-odds of the
response shown first) where the sampler knew it; a vote row, whose verdict is recorded, too, is ``{"row": i, "vote": {...}}``
with the fields of a vote in a run's votes.jsonl; a score row is ``{"row": i, "scores": [s0, s1]}``; an outcome row, where only
the result is known, ``{"row": i, "right": true|false}``. ``row`` is the 0-based row of the data file; index 0 is its first
(chosen) response.

Much of the field samples each pair in one drawn order: VL-RewardBench's own inference, lmms-eval, VLMEvalKit. Such a recording
is scored in the orders it has. Scored as if both had been queried, half of its samples would be missing, and its accuracy
halved.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from rewardlab.benchmarks.base import Row
from rewardlab.data.files import data_hash, json_fault
from rewardlab.data.votes import TIES_PASS, refuse_attacked, vote_of
from rewardlab.errors import DataError
from rewardlab.judging.judge import JudgeKind, VoteSampling, draw_orders
from rewardlab.metrics.accuracy import OUTCOME
from rewardlab.types import (
    BOTH_ORDERS,
    Choice,
    Completion,
    FinishReason,
    Order,
    PreferencePair,
    Verdict,
    VerdictStatus,
    Vote,
    choice_of,
)
from rewardlab.verdicts.parse import CHECKLIST, verdict_of

MISSING = "not in the replay file"
MOST_LACKING = 0.1  # fraction of rows that may lack the samples of an order before the recording is another protocol's
EXPECTED = 'expected {"row", "order", "text"}, {"row", "scores"}, {"row", "right"}, or the votes.jsonl of a run'


def sampling_of(identity: Mapping[str, Any]) -> VoteSampling:
    return VoteSampling(**{field.name: identity.get(field.name) for field in fields(VoteSampling)})


class Replay(JudgeKind):
    """All samples of a replay file, by row and order.

    The votes of a finished run stand as they were read then (``verdict_format`` None), or are read anew by a format; its
    control passes are left out. Samples of another kind are read by the format, ``think_answer`` where it is None.
    """

    sees = is_queried = False
    is_recording = True
    sampling: VoteSampling

    def __init__(self, path: Path, verdict_format: str | None) -> None:
        if not path.is_file():
            raise DataError(f"{path}: no such replay file; expected JSON lines")
        if path.suffix in (".xlsx", ".csv", ".tsv"):
            raise DataError(
                f"{path}: is a table; `rewardlab bench import vlmevalkit {path} --data DATA --out replay.jsonl` makes a replay "
                "file of VLMEvalKit's"
            )
        self._path = path
        self.name, self.verdict_format = f"replay:{path}", verdict_format or "think_answer"
        self._anew = verdict_format is not None
        self.is_run = False
        self.sampling = VoteSampling()  # of the run
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
                self.has_partial_votes = self.sampling.stop_error is not None
                return
            row = values["row"]
            if not isinstance(row, int) or isinstance(row, bool) or row < 0:
                raise ValueError(f"row is {row!r}, expected a number >= 0")
            if self.is_run:
                self._take_votes(values, row)
            elif "vote" in values:
                self._take_vote(vote_of(values["vote"]), row)
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
        if values["pass"] not in ("votes", TIES_PASS):  # a row is in one of them
            return
        for order in Order:
            self._votes.pop((row, order), None)
        for vote in map(vote_of, values["votes"]):
            self._take_vote(vote, row)

    def _take_vote(self, vote: Vote, row: int) -> None:
        if vote.member:
            raise ValueError("these are the votes of a panel, which only the panel itself can count")
        if (vote.verdict.status is VerdictStatus.OK) != (vote.verdict.choice is not None):
            raise ValueError(f"status is {vote.verdict.status.value} and choice {vote.verdict.choice}; only ok has a choice")
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
    def rows(self) -> set[int]:  # type: ignore[override]
        return {row for row, _ in self._votes} | set(self._scores) | set(self._outcomes)

    def counts(self, row: int) -> tuple[int, int]:
        """Return how many samples a row has as given and as swapped. Scores stand for both orders, an outcome for one."""
        if row in self._scores:
            return (1, 1)
        if row in self._outcomes:
            return (1, 0)
        given, swapped = (len(self._votes.get((row, order), ())) for order in BOTH_ORDERS)
        return given, swapped

    @property
    def identity(self) -> dict[str, str | float]:
        return {"weights": data_hash(self._path)}

    @property
    def default_votes(self) -> int:  # type: ignore[override]
        """Return the largest number of samples of any row in one order."""
        return max([1, *map(len, self._votes.values())])

    def resolve_orders(self, policy: str, num_votes: int | None) -> str:
        """Return the orders of the recording for ``auto``, if it lacks one order of many rows. ``num_votes`` are wanted in each
        order; None: all."""
        if policy != "auto":
            return policy
        return "recorded" if len(self._uneven(num_votes)) > MOST_LACKING * len(self.rows) else "both"

    def shown_orders(
        self, policy: str, rows: Sequence[Row], seed: int, num_votes: int | None
    ) -> tuple[list[tuple[Order, ...]], list[str]]:
        """Return the orders of each row, and notes. Raise DataError if more than a tenth of the rows lack the samples of an
        order: the accuracy would be that of the gaps."""
        notes = []
        if self.num_unordered:
            notes.append(f"{self.num_unordered:,} recorded texts name no order and are taken as shown in the order of the data")
        if policy == "recorded":
            self._pads = False  # a row and order with any sample lacks none
            orders, more = self._recorded_orders(rows)
            return orders, notes + more
        orders = draw_orders(policy, len(rows), seed)
        self._check_orders(rows, orders, policy, num_votes)
        return orders, notes

    def votes_of(self, rows: Sequence[Row], orders: Sequence[tuple[Order, ...]], num_votes: int, seed: int) -> list[list[Vote]]:
        """Return the votes on each row."""
        return [
            [self._checked(vote, row.pair) for order in row_orders for vote in self.votes(row, order, num_votes)]
            for row, row_orders in zip(rows, orders, strict=True)
        ]

    def _checked(self, vote: Vote, pair: PreferencePair) -> Vote:
        """Return a vote by its text; a checklist must be of the criteria of its pair."""
        if not pair.criteria or self.verdict_format != CHECKLIST or vote.verdict.choice is None:
            return vote
        return replace(vote, verdict=verdict_of(vote.completion, CHECKLIST, pair.criteria))

    def _uneven(self, num_votes: int | None) -> list[int]:
        """Return the rows that have not as many of ``num_votes`` in one order as in the other."""
        most = num_votes or self.default_votes
        return [row for row in sorted(self.rows) if len({min(most, number) for number in self.counts(row)}) > 1]

    def _recorded_orders(self, rows: Sequence[Row]) -> tuple[list[tuple[Order, ...]], list[str]]:
        """Return the orders in which each row has samples. A row without any counts as a failure of the first order, or of both
        if most rows have both."""
        of_rows = {
            row.row: tuple(order for order, n in zip(BOTH_ORDERS, self.counts(row.row), strict=True) if n) for row in rows
        }
        present = [orders for orders in of_rows.values() if orders]
        num_one = sum(len(orders) == 1 for orders in present)
        absent = (Order.GIVEN,) if 2 * num_one > len(present) else BOTH_ORDERS
        notes = [
            f"scored in the orders of the recording: {num_one:,} of {len(rows):,} rows have samples in one order only"
            + ("; nothing is known of the other order" if num_one else "")
        ]
        ahead = sum(orders == (_preferred_first(row),) for row, orders in ((row, of_rows[row.row]) for row in rows))
        if num_one and ahead in (0, num_one) and num_one > 1:
            place = "first" if ahead else "second"
            notes.append(
                f"the better response is shown {place} in all of these: a judge that always names the {place} would be right "
                "in each"
            )
        samples = {sum(self.counts(row.row)) for row in rows} - {0}
        if len(samples) > 1:
            notes.append(f"rows have between {min(samples)} and {max(samples)} samples; each is judged by those that it has")
        return [of_rows[row.row] or absent for row in rows], notes

    def _check_orders(
        self, rows: Sequence[Row], orders: Sequence[tuple[Order, ...]], policy: str, num_votes: int | None
    ) -> None:
        cure = "score them as they were recorded: orders=recorded, or leave orders out"
        known = {row.row for row in rows} & self.rows
        if policy == "both":
            uneven = set(self._uneven(num_votes)) & known
            if len(uneven) <= MOST_LACKING * len(known):
                return
            one = sum(0 in self.counts(row) for row in uneven)
            how = "samples in one order only" if 2 * one >= len(uneven) else "fewer samples in one order than in the other"
            number = one if 2 * one >= len(uneven) else len(uneven)
            raise DataError(f"{self.name}: {number:,} of {len(rows):,} rows have {how}; {cure}")
        lacking = sum(
            any(not self.counts(row.row)[BOTH_ORDERS.index(order)] for order in wanted)
            for row, wanted in zip(rows, orders, strict=True)
            if row.row in known
        )
        if lacking > MOST_LACKING * len(known):
            raise DataError(
                f"{self.name}: {lacking:,} of {len(rows):,} rows have no sample in the order that orders={policy} shows "
                f"them in; {cure}"
            )

    def votes(self, row: Row, order: Order, num_votes: int) -> list[Vote]:
        """The first ``num_votes`` samples of a row in an order; each one that is missing is an ERROR, not left out.

        In a run's votes, which may have stopped early, and in a recording in its own orders, only a row and order without any
        is missing.
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


def _preferred_first(row: Row) -> Order:
    return Order.SWAPPED if row.pair.preferred == 1 else Order.GIVEN


def _by_margin(margin: float) -> Verdict:
    if margin == 0:
        return Verdict(None, VerdictStatus.TIE, "probability")
    return Verdict(Choice.FIRST if margin > 0 else Choice.SECOND, VerdictStatus.OK, "probability")
