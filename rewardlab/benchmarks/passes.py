"""A pass of a judge over a benchmark's rows, and the logs of votes that it continues after a kill."""

from __future__ import annotations

import hashlib
import math
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from rewardlab.benchmarks.base import Row
from rewardlab.benchmarks.baselines import BaselineJudge
from rewardlab.benchmarks.pass_log import PassLog, Spending
from rewardlab.benchmarks.replay import Replay
from rewardlab.config.data import NO_PRICES, Prices
from rewardlab.data.rows import with_blank_images, with_other_images
from rewardlab.data.votes import TIES_PASS, num_failed
from rewardlab.errors import EndpointError
from rewardlab.judging.asking import PairRequest, ask_missing, vote_places
from rewardlab.judging.judge import ModelJudge
from rewardlab.reporting.progress import Advance, bar
from rewardlab.samplers.base import RequestGate
from rewardlab.samplers.failures import FailureStreak, errors_in_words, refusal_cure
from rewardlab.types import BOTH_ORDERS, Judgment, Order, PreferencePair, Vote
from rewardlab.verdicts.early_stopping import votes_settled
from rewardlab.verdicts.votes import VALID, reduce_votes


@dataclass
class RunningFigures:
    """Counts of single votes, those of an earlier part of a run among them. ``num_right`` are those that
    named the better response, ``num_invalid`` those that were answered and cannot be read; a tie is neither."""

    num_votes: int = 0
    num_labelled: int = 0
    num_right: int = 0
    num_invalid: int = 0
    num_failed: int = 0

    def add(self, vote: Vote, preferred: int | None) -> None:
        """Count a vote on a pair whose better response has the index ``preferred``."""
        self.num_votes += 1
        self.num_labelled += preferred is not None
        self.num_right += vote.winner is not None and vote.winner == preferred
        if vote.completion.failed:
            self.num_failed += 1
        elif vote.verdict.status not in VALID:
            self.num_invalid += 1

    def note(self, spending: Spending, prices: Prices) -> str:
        """Return the figures in words: the fraction of votes that are right, if labels say so, then what is not zero."""
        if not self.num_votes:
            return ""
        parts = [f"{100 * self.num_right / self.num_labelled:.1f} % of votes right"] if self.num_labelled else []
        parts += [f"{num:,} {name}" for num, name in ((self.num_invalid, "invalid"), (self.num_failed, "failed")) if num]
        if prices != NO_PRICES:
            parts.append(f"${spending.usd(prices):,.2f}")
        elif tokens := spending.prompt + spending.completion:
            parts.append(f"{tokens:,} tokens")
        return ", ".join(parts)


@dataclass(frozen=True)
class Control:
    """A further pass of one greedy vote per order: its ``name`` in tables, what it ``means``, the pairs it shows in place of
    the given ones, and why it is left out on some pairs ("" if it is not)."""

    name: str
    means: str
    change: Callable[[Sequence[PreferencePair]], Sequence[PreferencePair]]
    lacks: Callable[[Sequence[PreferencePair]], str] = lambda pairs: ""


def has_other_images(pairs: Sequence[PreferencePair]) -> bool:
    """Return whether every pair with images could be shown as many of another pair's."""
    by_number: dict[int, set[tuple[bytes, ...]]] = {}
    for pair in pairs:
        if pair.images:
            by_number.setdefault(len(pair.images), set()).add(pair.images)
    return bool(by_number) and all(len(different) > 1 for different in by_number.values())


def _lacks_images(pairs: Sequence[PreferencePair]) -> str:
    has_images = any(pair.images or any(pair.response_images) for pair in pairs)
    return "" if has_images else "no control with blank images: no pair has an image"


def _lacks_others(pairs: Sequence[PreferencePair]) -> str:
    return "" if has_other_images(pairs) else "no control with another pair's image: there is none that could be shown"


# What --controls names.
CONTROLS: Mapping[str, Control] = {
    "greedy": Control("one greedy vote", "The same judge at temperature 0.", lambda pairs: pairs),
    "blank": Control(
        "text-only (blank image)",
        "The same judge with blank images of the same size: what it knows without looking.",
        with_blank_images,
        _lacks_images,
    ),
    "other": Control(
        "another pair's image",
        "The same judge with an image that does not belong: does it notice?",
        with_other_images,
        _lacks_others,
    ),
}
CHUNK = 64  # pairs that are asked together, where votes do not come one by one, and that share a seed
AnyJudge = ModelJudge | BaselineJudge | Replay


VOTES_PASS, UNLABELLED_PASS = "votes", "unlabelled"
# A row is in one of these by its label, and is not asked again where that changes; the log has unlabelled ones as votes.
BY_LABEL = (VOTES_PASS, TIES_PASS, UNLABELLED_PASS)


class Pass:
    """A pass over the rows (the votes, or a control), continued from its log.

    ``stop_error``: ask in turns until a pair's majority is settled but for this probability; None asks all votes at once.
    ``seconds`` is what asking took, this time and before, of ``num_timed`` votes: one that failed and was asked for again was
    asked for twice. ``prices`` are for the money beside the progress bar.
    """

    def __init__(
        self,
        name: str,
        rows: Sequence[Row],
        orders: Sequence[tuple[Order, ...]],
        log: PassLog,
        stop_error: float | None = None,
        prices: Prices = NO_PRICES,
    ) -> None:
        self.name, self.rows, self.orders, self.log, self.stop_error = name, rows, orders, log, stop_error
        self.prices = prices
        self.seconds, self.num_timed = 0.0, 0
        self.log_name = VOTES_PASS if name == UNLABELLED_PASS else name
        self._log_names = (VOTES_PASS, TIES_PASS) if name in BY_LABEL else (name,)
        self._lines: dict[int, set[int]] = defaultdict(set)  # places of a row's answered votes whose time a line has
        numbers = {row.row for row in rows}
        self._entries = [entry for name in self._log_names for entry in log.entries(name) if entry.key[1] in numbers]
        for entry in self._entries:
            self._count_time(int(entry.key[1]), entry.votes, entry.seconds)

    @property
    def seconds_per_vote(self) -> float | None:
        """Seconds of the votes that were timed, each; None where none was."""
        return self.seconds / self.num_timed if self.num_timed else None

    def run(self, judge: AnyJudge, num_votes: int, seed: int, gate: RequestGate | None = None) -> list[Judgment]:
        """Return the judgment of every row. ``gate`` is what requests pass that are sent one by one.

        Raise EndpointError where requests fail one after another, where all did (a judge that was never heard has no accuracy),
        and where the gate let too few through.
        """
        votes = {int(entry.key[1]): list(entry.votes) for entry in self._entries}
        total = sum(len(orders) for orders in self.orders) * num_votes
        if not isinstance(judge, ModelJudge):  # a baseline or a replay: nothing is queried
            with bar(f"bench: {self.name}", total) as advance:
                self._look_up(judge, num_votes, seed, votes, advance)
            return [reduce_votes(row.pair.pair_id, votes[row.row]) for row in self.rows]
        votes = {row: row_votes for row, row_votes in votes.items() if not num_failed(row_votes)}  # failures are asked again
        if any(row.row not in votes for row in self.rows):
            judge.check()
        places = {orders: vote_places(judge, orders, num_votes) for orders in self.orders}
        with bar(f"bench: {self.name}", sum(len(places[orders]) for orders in self.orders)) as advance:
            asking = _Asking(self, judge, places, votes, seed, gate, advance)
            if self.stop_error is None:
                asking.ask_all(num_votes)
            else:
                asking.ask_in_turns(num_votes, self.stop_error)
        self._check_any_answer(judge, votes)
        return [judge.reduce(row.pair.pair_id, votes[row.row]) for row in self.rows]

    def take(self, votes: Sequence[Sequence[Vote]]) -> list[Judgment]:
        """Return the judgment of every row by ``votes`` that follow from another pass, and write those that the log lacks."""
        known = {int(entry.key[1]): list(entry.votes) for entry in self._entries}
        for row, row_votes in zip(self.rows, votes, strict=True):
            if known.get(row.row) != list(row_votes):
                self.write(row.row, row_votes, None)
        return [reduce_votes(row.pair.pair_id, row_votes) for row, row_votes in zip(self.rows, votes, strict=True)]

    @property
    def cure(self) -> str:
        """Return what else may be done where the judge fails in this pass."""
        return ", or leave the control out with --controls" if self.name in CONTROLS else ""

    @property
    def of_control(self) -> str:
        """Return the words that tell the requests of another pass from those of the votes."""
        return (
            "" if self.name == VOTES_PASS else f" of the control {self.name}" if self.name in CONTROLS else f" of {self.name}"
        )

    def _check_any_answer(self, judge: ModelJudge, votes_by_row: dict[int, list[Vote]]) -> None:
        completions = [vote.completion for votes in votes_by_row.values() for vote in votes]
        if not completions or not all(completion.failed for completion in completions):
            return
        raise EndpointError(
            f"{judge.name}: every one of {len(completions):,} requests{self.of_control} failed: "
            f"{errors_in_words(completions)}{refusal_cure(judge.name, completions[-1].error)}; nothing is lost: fix the "
            f"cause and run the same command again{self.cure}"
        )

    def chunk_seed(self, seed: int, start: int) -> int:
        """Return the seed of a chunk, its own, so that a resumed run draws what an uninterrupted one would have."""
        return int(hashlib.sha256(f"{seed} {self.name} {start}".encode()).hexdigest()[:8], 16)

    def _look_up(
        self, judge: BaselineJudge | Replay, num_votes: int, seed: int, votes_by_row: dict[int, list[Vote]], advance: Advance
    ) -> None:
        """Take the votes of a judge that nobody waits for, chunk by chunk."""
        for start in range(0, len(self.rows), CHUNK):
            chunk = range(start, min(start + CHUNK, len(self.rows)))
            wanted = [n for n in chunk if self.rows[n].row not in votes_by_row]
            rows, orders = [self.rows[n] for n in wanted], [self.orders[n] for n in wanted]
            votes = judge.votes_of(rows, orders, num_votes, self.chunk_seed(seed, start))
            for row, row_votes in zip(rows, votes, strict=True):
                self.write(row.row, row_votes, None)
                votes_by_row[row.row] = row_votes
            advance(num_votes * sum(len(self.orders[n]) for n in chunk))

    def answered(self, row: int) -> dict[int, tuple[Vote, float]]:
        """Return the votes of a row that need not be asked for again, as :meth:`PassLog.answered` does."""
        return {place: vote for name in self._log_names for place, vote in self.log.answered(name, row).items()}

    def write(self, row: int, votes: Sequence[Vote], seconds: float | None) -> None:
        """Write a row that has all of its votes, and count the time they took."""
        rounded = None if seconds is None else round(seconds, 6)
        self.log.write_row(self.log_name, row, votes, rounded)
        self._count_time(row, votes, rounded)

    def _count_time(self, row: int, votes: Sequence[Vote], seconds: float | None) -> None:
        """Count the time of a line. A line written again has that of the votes which no earlier one has."""
        earlier = self._lines[row]
        if seconds is not None:
            self.seconds += seconds
            self.num_timed += _num_asked(vote for place, vote in enumerate(votes) if place not in earlier)
        earlier |= {place for place, vote in enumerate(votes) if not vote.completion.failed}


def _num_asked(votes: Iterable[Vote]) -> int:
    """Return how many of the votes somebody was asked for: what an earlier run had answered took no time."""
    return sum(not vote.completion.from_cache for vote in votes)


class _Asking:
    """A pass being asked: every vote that came is in the log before another failure may end the run.

    ``places`` are the votes of a row by its orders, ``votes`` those of the rows that have all of them.
    """

    def __init__(
        self,
        owner: Pass,
        judge: ModelJudge,
        places: Mapping[tuple[Order, ...], list[tuple[int, Order, int]]],
        votes: dict[int, list[Vote]],
        seed: int,
        gate: RequestGate | None,
        advance: Advance,
    ) -> None:
        self._pass, self._judge, self._votes, self._seed, self._gate, self._advance = owner, judge, votes, seed, gate, advance
        self._places = [places[orders] for orders in owner.orders]
        self._failures = [
            FailureStreak(voice.name, answered=bool(votes), what=owner.of_control, cure=owner.cure) for voice in judge.voices
        ]
        # A judge that hands over whole rows at once writes them so.
        self._is_kept = judge.is_streaming or owner.stop_error is not None
        self._figures = RunningFigures()
        self._left = [n for n, row in enumerate(owner.rows) if row.row not in votes]
        self._known = {n: owner.answered(owner.rows[n].row) for n in self._left}
        total, left = sum(map(len, self._places)), sum(len(self._places[n]) for n in self._left)
        for n, row in enumerate(owner.rows):
            for vote in votes.get(row.row) or [vote for vote, _ in self._known[n].values()]:
                self._figures.add(vote, row.pair.preferred)
        advance(total - left + sum(map(len, self._known.values())), note=self._note())

    def _note(self) -> str:
        return self._figures.note(self._pass.log.spending, self._pass.prices)

    def ask_all(self, num_votes: int) -> None:
        """Ask for all votes that are missing, of all rows. Raise EndpointError as :meth:`Pass.run` does."""
        for n in self._left:  # killed between its last vote and its line
            self._write_whole(n, len(self._places[n]))
        missing = [n for n in self._left if self._pass.rows[n].row not in self._votes]
        self._ask(missing, num_votes, lambda n: self._write_whole(n, len(self._places[n])))
        self._check_whole()

    def ask_in_turns(self, max_votes: int, error: float) -> None:
        """Ask for a vote in each order, turn by turn, of the rows whose majority of ``max_votes`` is not settled but for
        ``error`` (:mod:`rewardlab.verdicts.early_stopping`)."""
        left = self._left
        for turn in range(max_votes):
            num_orders = len(BOTH_ORDERS)
            size = num_orders * (turn + 1)
            self._ask(left, 1, lambda n: None, turn)
            for n in [n for n in left if all(place in self._known[n] for place in range(size))]:
                votes = [self._known[n][place][0] for place in range(size)]
                if turn == max_votes - 1 or votes_settled(votes, num_orders * (max_votes - turn - 1), error):
                    self._write_whole(n, size)
                    self._advance(max(0, len(self._places[n]) - len(self._known[n])))
            left = [n for n in left if self._pass.rows[n].row not in self._votes]
            if not left or any(place not in self._known[n] for n in left for place in range(size)):
                break
        self._check_whole()

    def _ask(self, numbers: Sequence[int], num_votes: int, close: Callable[[int], None], turn: int = 0) -> None:
        """Ask for the missing votes of rows, of the places that begin with the ``turn``; call ``close`` with each that came."""
        first = turn * len(BOTH_ORDERS)
        rows, orders, log = self._pass.rows, self._pass.orders, self._pass.log
        numbers = self._with_chunk(numbers, first)
        requests = [
            PairRequest(rows[n].pair, orders[n], self._pass.chunk_seed(self._seed, n - n % CHUNK) + turn) for n in numbers
        ]
        answered = [{place - first for place in self._answered(n)} for n in numbers]
        before = time.perf_counter()
        for batch, num_drawn in ask_missing(self._judge, requests, answered, num_votes, self._gate):
            now = time.perf_counter()
            a_vote, before = (now - before) / max(1, num_drawn), now
            for number, place, vote in batch:
                n, seconds = numbers[number], 0.0 if vote.completion.from_cache else a_vote
                self._known[n][first + place] = (vote, seconds)
                if self._is_kept and not vote.completion.failed:
                    log.write_vote(self._pass.log_name, rows[n].row, first + place, vote, seconds)
                log.spending.add(vote.completion)
                self._figures.add(vote, rows[n].pair.preferred)
                close(n)
            self._advance(len(batch), note=self._note())
            for number, place, vote in batch:
                voice = self._places[numbers[number]][place][0]
                if not vote.completion.from_cache:
                    self._failures[voice].take(vote.completion)

    def _with_chunk(self, numbers: Sequence[int], first: int) -> Sequence[int]:
        """Return the numbers of rows to ask of, and those of their chunks that are whole and have votes from ``first`` on.

        Their votes are there, but the draws of a judge that is not batch invariant depend on all rows of a call.
        """
        if self._judge.is_batch_invariant:
            return numbers
        wanted, chunks = set(numbers), {n // CHUNK for n in numbers}
        whole = (n for n, row in enumerate(self._pass.rows) if n not in wanted and len(self._votes.get(row.row, ())) > first)
        return sorted([*numbers, *(n for n in whole if n // CHUNK in chunks)])

    def _answered(self, n: int) -> Collection[int]:
        """Return the places of a row that need not be asked for."""
        row = self._pass.rows[n].row
        return range(len(self._votes[row])) if row in self._votes else self._known[n]

    def _write_whole(self, n: int, size: int) -> None:
        """Write a row where its first ``size`` votes are there."""
        if all(place in self._known[n] for place in range(size)):
            answers, row = [self._known[n][place] for place in range(size)], self._pass.rows[n].row
            self._votes[row] = [vote for vote, _ in answers]
            self._pass.write(row, self._votes[row], math.fsum(seconds for _, seconds in answers))

    def _check_whole(self) -> None:
        """Raise EndpointError where the gate let too few through."""
        if missing := [n for n in self._left if self._pass.rows[n].row not in self._votes]:
            total = sum(map(len, self._places))
            there = total - sum(len(self._places[n]) - len(self._known[n]) for n in missing)
            raise EndpointError(
                f"the budget is spent: {there:,} of {total:,} votes of the pass {self._pass.name!r} are done, and "
                f"{len(missing):,} pairs are incomplete; raise it and run the same command again"
            )
