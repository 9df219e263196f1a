"""A pass of a judge over a benchmark's rows, and the logs of votes that it continues after a kill."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterator, Sequence

from rewardlab.benchmarks.base import Row
from rewardlab.benchmarks.baselines import BaselineJudge
from rewardlab.benchmarks.pass_log import PassLog
from rewardlab.benchmarks.replay import Replay
from rewardlab.data.votes import num_failed
from rewardlab.errors import EndpointError
from rewardlab.judging.judge import ModelJudge, VoteRequest, compare_until_settled
from rewardlab.reporting.progress import Advance, bar
from rewardlab.samplers.base import RequestGate
from rewardlab.samplers.failures import FailureStreak, errors_in_words, refusal_cure
from rewardlab.types import Completion, Judgment, Order, PreferencePair, Vote
from rewardlab.verdicts.votes import reduce_votes

CHUNK = 64  # pairs that are asked together, where votes do not come one by one, and that share a seed
AnyJudge = ModelJudge | BaselineJudge | Replay


class Pass:
    """A pass over the rows (the votes, or a control), continued from its log.

    ``stop_error``: ask in turns until a pair's majority is settled but for this probability; None asks all votes at once.
    ``seconds`` is what asking took, this time and before, of ``num_timed`` votes.
    """

    def __init__(
        self, name: str, rows: Sequence[Row], orders: Sequence[tuple[Order, ...]], log: PassLog, stop_error: float | None = None
    ) -> None:
        self.name, self.rows, self.orders, self.log, self.stop_error = name, rows, orders, log, stop_error
        self.seconds = math.fsum(entry.seconds or 0.0 for entry in log.entries(name))
        self.num_timed = sum(len(entry.votes) for entry in log.entries(name) if entry.seconds is not None)

    @property
    def seconds_per_vote(self) -> float | None:
        """Seconds of the votes that were timed, each; None where none was."""
        return self.seconds / self.num_timed if self.num_timed else None

    def run(self, judge: AnyJudge, num_votes: int, seed: int, gate: RequestGate | None = None) -> list[Judgment]:
        """Return the judgment of every row. ``gate`` is what requests pass that are sent one by one.

        Raise EndpointError where requests fail one after another, where all did (a judge that was never heard has no accuracy),
        and where the gate let too few through.
        """
        votes = {entry.row: list(entry.votes) for entry in self.log.entries(self.name)}
        if isinstance(judge, ModelJudge):  # what failed for want of an answer is asked again
            votes = {row: row_votes for row, row_votes in votes.items() if not num_failed(row_votes)}
            if any(row.row not in votes for row in self.rows):
                judge.check()
        failures = FailureStreak(judge.name, answered=bool(votes))
        total = sum(len(orders) for orders in self.orders) * num_votes
        with bar(f"bench: {self.name}", total) as advance:
            if isinstance(judge, ModelJudge) and judge.is_streaming and self.stop_error is None:
                self._ask_each(judge, num_votes, seed, votes, failures, gate, advance)
            else:
                for start in range(0, len(self.rows), CHUNK):
                    chunk = range(start, min(start + CHUNK, len(self.rows)))
                    if any(self.rows[n].row not in votes for n in chunk):
                        self._ask(judge, chunk, num_votes, seed, votes, failures)
                    advance(num_votes * sum(len(self.orders[n]) for n in chunk))
        if isinstance(judge, ModelJudge):
            self._check_any_answer(judge, votes)
        reduce = judge.reduce if isinstance(judge, ModelJudge) else reduce_votes
        return [reduce(row.pair.pair_id, votes[row.row]) for row in self.rows]

    def _check_any_answer(self, judge: ModelJudge, votes_by_row: dict[int, list[Vote]]) -> None:
        completions = [vote.completion for votes in votes_by_row.values() for vote in votes]
        if not completions or not all(completion.failed for completion in completions):
            return
        of_control = "" if self.name == "votes" else f" of the control {self.name}"
        cure = "" if self.name == "votes" else ", or leave the control out with --controls"
        raise EndpointError(
            f"{judge.name}: every one of {len(completions):,} requests{of_control} failed: {errors_in_words(completions)}"
            f"{refusal_cure(judge.name, completions[-1].error)}; nothing is lost: cure it and run the same command again{cure}"
        )

    def _seed(self, seed: int, start: int) -> int:
        """Return the seed of a chunk, its own, so that a resumed run draws what an uninterrupted one would have."""
        return int(hashlib.sha256(f"{seed} {self.name} {start}".encode()).hexdigest()[:8], 16)

    def _ask_each(
        self,
        judge: ModelJudge,
        num_votes: int,
        seed: int,
        votes_by_row: dict[int, list[Vote]],
        failures: FailureStreak,
        gate: RequestGate | None,
        advance: Advance,
    ) -> None:
        """Ask for the votes that are missing, of all rows, as fast as they are answered; each is in the log when it comes."""
        known = {n: self.log.answered(self.name, row.row) for n, row in enumerate(self.rows) if row.row not in votes_by_row}
        sizes = {n: len(self.orders[n]) * num_votes for n in known}
        total = sum(len(orders) for orders in self.orders) * num_votes
        advance(total - sum(sizes.values()) + sum(map(len, known.values())))
        places: list[tuple[int, int]] = []

        def requests() -> Iterator[VoteRequest]:
            for n in sizes:
                for place in range(sizes[n]):
                    if place not in known[n]:
                        order, draw = self.orders[n][place // num_votes], place % num_votes
                        places.append((n, place))
                        yield VoteRequest(self.rows[n].pair, order, draw, self._seed(seed, n - n % CHUNK))

        def write_whole(n: int) -> None:
            if len(known[n]) == sizes[n]:
                answers, row = [known[n][place] for place in range(sizes[n])], self.rows[n].row
                votes_by_row[row] = [vote for vote, _ in answers]
                self._write(row, votes_by_row[row], math.fsum(seconds for _, seconds in answers))

        for n in [n for n in sizes if len(known[n]) == sizes[n]]:  # killed between its last vote and its line
            write_whole(n)
            del sizes[n]
        before, num_failures = time.perf_counter(), 0
        for number, vote in judge.vote_each(requests(), gate):
            (n, place), now = places[number], time.perf_counter()
            known[n][place], before = (vote, now - before), now
            if not vote.completion.failed:
                self.log.write_vote(self.name, self.rows[n].row, place, vote, known[n][place][1])
            write_whole(n)
            num_failures += vote.completion.failed
            advance(1, note=f"{num_failures:,} failed" if num_failures else "")
            self.log.spending.add(vote.completion)
            failures.take(vote.completion)
        if missing := sum(row.row not in votes_by_row for row in self.rows):
            there = total - sum(sizes[n] - len(known[n]) for n in sizes)
            raise EndpointError(
                f"the budget is spent: {there:,} of {total:,} votes of the pass {self.name!r} are there, and {missing:,} pairs "
                "lack some; raise it and run the same command again"
            )

    def _ask(
        self,
        judge: AnyJudge,
        chunk: range,
        num_votes: int,
        seed: int,
        votes_by_row: dict[int, list[Vote]],
        failures: FailureStreak,
    ) -> None:
        """Ask about a chunk: whole where a row's draws depend on the rows beside it, else about what is missing of it."""
        alone = not isinstance(judge, ModelJudge) or judge.is_batch_invariant
        wanted = [n for n in chunk if self.rows[n].row not in votes_by_row or not alone]
        rows, orders, start = [self.rows[n] for n in wanted], [self.orders[n] for n in wanted], time.perf_counter()
        if isinstance(judge, Replay):
            votes = [
                [vote for order in row_orders for vote in judge.votes(row, order, num_votes)]
                for row, row_orders in zip(rows, orders, strict=True)
            ]
        else:
            chunk_seed, pairs = self._seed(seed, chunk.start), [row.pair for row in rows]
            if self.stop_error is None:
                judgments = judge.compare_many(pairs, orders=orders, num_votes=num_votes, seed=chunk_seed)
            else:
                counted = _Counted(judge, failures.take)
                judgments = compare_until_settled(counted, pairs, max_votes=num_votes, error=self.stop_error, seed=chunk_seed)
            votes = [list(j.votes) for j in judgments]
        is_timed = isinstance(judge, ModelJudge)  # nothing else takes time that says anything
        a_vote = (time.perf_counter() - start) / max(1, sum(map(len, votes)))
        for row, row_votes in zip(rows, votes, strict=True):
            if row.row not in votes_by_row:
                for vote in row_votes:
                    self.log.spending.add(vote.completion)
                self._write(row.row, row_votes, a_vote * len(row_votes) if is_timed else None)
                votes_by_row[row.row] = row_votes
        if is_timed and self.stop_error is None:
            for vote in (vote for row_votes in votes for vote in row_votes):
                failures.take(vote.completion)

    def _write(self, row: int, votes: Sequence[Vote], seconds: float | None) -> None:
        rounded = None if seconds is None else round(seconds, 6)
        self.log.write_row(self.name, row, votes, rounded)
        self.seconds, self.num_timed = self.seconds + (rounded or 0.0), self.num_timed + len(votes) * (seconds is not None)


class _Counted:
    """A judge whose every answer is taken note of before the next is asked for."""

    def __init__(self, judge: ModelJudge | BaselineJudge, take: Callable[[Completion], None]) -> None:
        self._judge, self._take = judge, take

    @property
    def name(self) -> str:
        return self._judge.name

    @property
    def sees(self) -> bool:
        return self._judge.sees

    def compare_many(
        self, pairs: Sequence[PreferencePair], *, orders: Sequence[tuple[Order, ...]], num_votes: int, seed: int
    ) -> list[Judgment]:
        judgments = self._judge.compare_many(pairs, orders=orders, num_votes=num_votes, seed=seed)
        for judgment in judgments:
            for vote in judgment.votes:
                self._take(vote.completion)
        return judgments
