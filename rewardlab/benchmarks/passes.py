"""A pass of a judge over a benchmark's rows, and the log of votes that it continues after a kill."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Sequence

from rewardlab.benchmarks.base import Row
from rewardlab.benchmarks.baselines import BaselineJudge
from rewardlab.benchmarks.replay import Replay
from rewardlab.data.append_log import AppendLog
from rewardlab.data.votes import num_failed, vote_of, vote_row
from rewardlab.judging.judge import ModelJudge, compare_until_settled
from rewardlab.reporting.progress import bar
from rewardlab.types import Judgment, Order, Vote
from rewardlab.verdicts.votes import reduce_votes

CHUNK = 64  # pairs between two writes of the log
AnyJudge = ModelJudge | BaselineJudge | Replay


class Pass:
    """A pass over the rows (the votes, or a control), continued from the log.

    ``stop_error``: ask in turns until a pair's majority is settled but for this probability; None asks all votes at once.
    ``seconds`` is what asking took, this time and before, of ``num_timed`` votes.
    """

    def __init__(
        self,
        name: str,
        rows: Sequence[Row],
        orders: Sequence[tuple[Order, ...]],
        log: AppendLog,
        stop_error: float | None = None,
    ) -> None:
        self.name, self.rows, self.orders, self.log, self.stop_error = name, rows, orders, log, stop_error
        entries = [entry for entry in log.rows if entry["pass"] == name]
        self.logged = {entry["row"]: entry["votes"] for entry in entries}
        self.seconds = math.fsum(entry.get("seconds") or 0.0 for entry in entries)
        self.num_timed = sum(len(entry["votes"]) for entry in entries if entry.get("seconds") is not None)

    @property
    def seconds_per_vote(self) -> float | None:
        """Seconds of the votes that were timed, each; None where none was."""
        return self.seconds / self.num_timed if self.num_timed else None

    def run(self, judge: AnyJudge, num_votes: int, seed: int) -> list[Judgment]:
        votes_by_row: dict[int, list[Vote]] = {row: [vote_of(v) for v in votes] for row, votes in self.logged.items()}
        if isinstance(judge, ModelJudge):  # what failed for want of an answer is asked again
            votes_by_row = {row: votes for row, votes in votes_by_row.items() if not num_failed(votes)}
            if any(row.row not in votes_by_row for row in self.rows):
                judge.check()
        with bar(f"bench: {self.name}", len(self.rows)) as advance:
            for start in range(0, len(self.rows), CHUNK):
                chunk = range(start, min(start + CHUNK, len(self.rows)))
                if any(self.rows[n].row not in votes_by_row for n in chunk):
                    self._ask(judge, chunk, num_votes, seed, votes_by_row)
                advance(len(chunk))
        reduce = judge.reduce if isinstance(judge, ModelJudge) else reduce_votes
        return [reduce(row.pair.pair_id, votes_by_row[row.row]) for row in self.rows]

    def _ask(self, judge: AnyJudge, chunk: range, num_votes: int, seed: int, votes_by_row: dict[int, list[Vote]]) -> None:
        """A chunk has a seed of its own, so that a resumed run draws what an uninterrupted one would have.

        Where a row's draws depend on the rows beside it the chunk is asked whole; else only what is missing is.
        """
        alone = not isinstance(judge, ModelJudge) or judge.is_batch_invariant
        wanted = [n for n in chunk if self.rows[n].row not in votes_by_row or not alone]
        rows, orders, start = [self.rows[n] for n in wanted], [self.orders[n] for n in wanted], time.perf_counter()
        if isinstance(judge, Replay):
            votes = [
                [vote for order in row_orders for vote in judge.votes(row, order, num_votes)]
                for row, row_orders in zip(rows, orders, strict=True)
            ]
        else:
            chunk_seed = int(hashlib.sha256(f"{seed} {self.name} {chunk.start}".encode()).hexdigest()[:8], 16)
            pairs = [row.pair for row in rows]
            if self.stop_error is None:
                judgments = judge.compare_many(pairs, orders=orders, num_votes=num_votes, seed=chunk_seed)
            else:
                judgments = compare_until_settled(judge, pairs, max_votes=num_votes, error=self.stop_error, seed=chunk_seed)
            votes = [list(j.votes) for j in judgments]
        is_timed = isinstance(judge, ModelJudge)  # nothing else takes time that says anything
        a_vote = (time.perf_counter() - start) / max(1, sum(map(len, votes)))
        for row, row_votes in zip(rows, votes, strict=True):
            if row.row not in votes_by_row:
                seconds = round(a_vote * len(row_votes), 6) if is_timed else None
                entry = {"pass": self.name, "row": row.row, "votes": [vote_row(v) for v in row_votes], "seconds": seconds}
                self.log.append(entry)
                self.seconds, self.num_timed = self.seconds + (seconds or 0.0), self.num_timed + len(row_votes) * is_timed
                votes_by_row[row.row] = row_votes
