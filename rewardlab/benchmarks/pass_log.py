"""The votes of a run on disk: a line per row that has all of its votes, and a line per vote of those that do not yet."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rewardlab.benchmarks.run_files import PARTIAL_VOTES, VOTES
from rewardlab.benchmarks.spending import Spending
from rewardlab.data.append_log import AppendLog, undamaged
from rewardlab.data.votes import vote_of, vote_row
from rewardlab.types import FinishReason, Vote


@dataclass(frozen=True)
class RowEntry:
    """A row's votes of a pass, in each order all draws; ``seconds`` that asking for them took, None where nobody was asked."""

    pass_name: str
    row: int
    votes: tuple[Vote, ...]
    seconds: float | None


class PassLog:
    """The log of a run in a folder, opened or continued. A kill loses at most what is in flight.

    ``votes.jsonl`` has a line per row; where votes come one by one each is in ``votes.partial.jsonl`` until its row is whole.
    :meth:`finish` removes that file. What a run left that got no answer at all, another run takes over. ``spending`` is what
    all votes of the run came to so far. Raise what :class:`AppendLog` raises, and DataError for a line that lacks something.
    """

    def __init__(self, folder: Path, identity: Mapping[str, object]) -> None:
        self._folder, self._identity = folder, identity
        self._log = AppendLog(folder / VOTES, identity, _has_answer)
        self._partial: AppendLog | None = None
        try:
            self._entries = [_entry(self._log.path, n, line) for n, line in enumerate(self._log.rows, start=2)]
            self._by_row: dict[tuple[str, int], list[RowEntry]] = defaultdict(list)
            for entry in self._entries:
                self._by_row[entry.pass_name, entry.row].append(entry)
            self._single: dict[tuple[str, int], dict[int, tuple[Vote, float]]] = defaultdict(dict)
            if (folder / PARTIAL_VOTES).exists():
                self._partial = AppendLog(folder / PARTIAL_VOTES, identity, _has_answer)
                for n, line in enumerate(self._partial.rows, start=2):
                    pass_name, row, place, vote, seconds = _single(self._partial.path, n, line)
                    self._single[pass_name, row][place] = (vote, seconds)
            self.spending = self._spent()
        except BaseException:
            self.close()
            raise

    def entries(self, pass_name: str) -> list[RowEntry]:
        """Return the rows of a pass that were whole when the log was opened, in the order they were written; a row that was
        asked again is there again."""
        return [entry for entry in self._entries if entry.pass_name == pass_name]

    def answered(self, pass_name: str, row: int) -> dict[int, tuple[Vote, float]]:
        """Return the votes of a row that need not be asked for again, by place, each with the seconds it took that are in no
        line yet. Places count the draws of the first order, then those of the second."""
        known: dict[int, tuple[Vote, float]] = {}
        for entry in self._by_row.get((pass_name, row), ()):
            known |= {n: (vote, 0.0) for n, vote in enumerate(entry.votes) if not vote.completion.failed}
        return self._single.get((pass_name, row), {}) | known

    def _spent(self) -> Spending:
        """Return what was paid for: what need not be asked again, and what failed."""
        spending = Spending()
        for key in {*self._by_row, *self._single}:
            for vote, _ in self.answered(*key).values():
                spending.add(vote.completion)
            for vote in (vote for entry in self._by_row.get(key, ()) for vote in entry.votes if vote.completion.failed):
                spending.add(vote.completion)
        return spending

    def write_row(self, pass_name: str, row: int, votes: Sequence[Vote], seconds: float | None) -> None:
        """Append a row that has all of its votes."""
        self._log.append({"pass": pass_name, "row": row, "votes": [vote_row(vote) for vote in votes], "seconds": seconds})

    def write_vote(self, pass_name: str, row: int, place: int, vote: Vote, seconds: float) -> None:
        """Append a vote of a row that may lack others."""
        if self._partial is None:
            self._partial = AppendLog(self._folder / PARTIAL_VOTES, self._identity)
        line = {"pass": pass_name, "row": row, "place": place, "seconds": round(seconds, 6), "vote": vote_row(vote)}
        self._partial.append(line)

    def finish(self) -> None:
        """Remove what only an unfinished run needs."""
        if self._partial is not None:
            self._partial.path.unlink(missing_ok=True)

    def close(self) -> None:
        self._log.close()
        if self._partial is not None:
            self._partial.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _has_answer(line: Mapping[str, Any]) -> bool:
    """Return whether a line has an answer, or cannot be read: only one of failed votes alone may be dropped."""
    votes = line.get("votes", [line.get("vote")])
    if not isinstance(votes, list) or not all(isinstance(vote, dict) for vote in votes):
        return True
    return any(vote.get("finish") not in (FinishReason.ERROR, FinishReason.TIMEOUT) for vote in votes)


def _entry(path: Path, number: int, line: Mapping[str, Any]) -> RowEntry:
    with undamaged(path, number):
        votes, seconds = tuple(map(vote_of, line["votes"])), line.get("seconds")
        return RowEntry(str(line["pass"]), _row_number(line), votes, None if seconds is None else float(seconds))


def _single(path: Path, number: int, line: Mapping[str, Any]) -> tuple[str, int, int, Vote, float]:
    with undamaged(path, number):
        return str(line["pass"]), _row_number(line), int(line["place"]), vote_of(line["vote"]), float(line["seconds"])


def _row_number(line: Mapping[str, Any]) -> int:
    if type(line["row"]) is not int:
        raise ValueError(f"row {line['row']!r} is no number")
    return int(line["row"])
