"""Votes on disk: a line for what has all of its votes, and a line per vote of what does not yet."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rewardlab.data.append_log import AppendLog, undamaged
from rewardlab.data.votes import vote_of, vote_row
from rewardlab.types import FinishReason, Vote

Key = tuple[str | int, ...]


@dataclass(frozen=True)
class VoteEntry:
    """All votes of one key; ``seconds`` that asking for them took, None where nobody was asked or the time was not taken."""

    key: Key
    votes: tuple[Vote, ...]
    seconds: float | None


class VoteLog:
    """The log at ``path`` of the run that ``identity`` describes, opened or continued. A kill loses at most what is in flight.

    ``key`` names the fields that tell lines apart, and their types. Where votes come one by one each is in the file
    ``partial`` until its line has all; :meth:`finish` removes that file. ``entries`` are the lines that were there, in their
    order; what was asked again is there again. What a run left that got no answer at all, another run takes over. Raise what
    :class:`AppendLog` raises, and DataError for a line that lacks something.
    """

    def __init__(self, path: Path, partial: Path, identity: Mapping[str, object], key: Mapping[str, type]) -> None:
        self._identity, self._key, self._partial_path = identity, dict(key), partial
        self._log = AppendLog(path, identity, _has_answer)
        self._partial: AppendLog | None = None
        try:
            self.entries = [self._entry(path, n, line) for n, line in enumerate(self._log.rows, start=2)]
            self._log.rows.clear()  # the entries hold what was in them
            self._by_key: dict[Key, list[VoteEntry]] = defaultdict(list)
            for entry in self.entries:
                self._by_key[entry.key].append(entry)
            self._single: dict[Key, dict[int, tuple[Vote, float]]] = defaultdict(dict)
            if partial.exists():
                self._partial = AppendLog(partial, identity, _has_answer)
                for n, line in enumerate(self._partial.rows, start=2):
                    key_of_line, place, vote, seconds = self._single_entry(n, line)
                    self._single[key_of_line][place] = (vote, seconds)
        except BaseException:
            self.close()
            raise

    @property
    def keys(self) -> set[Key]:
        """Return the keys of which any vote was there."""
        return {*self._by_key, *self._single}

    @property
    def has_answers(self) -> bool:
        """Return whether any vote was there that did not fail."""
        return any(self.answered(key) for key in self.keys)

    def answered(self, key: Key) -> dict[int, tuple[Vote, float]]:
        """Return the votes of a key that need not be asked for again, by place, each with the seconds it took that are in no
        line yet. Places count the votes of a whole line."""
        known: dict[int, tuple[Vote, float]] = {}
        for entry in self._by_key.get(key, ()):
            known |= {n: (vote, 0.0) for n, vote in enumerate(entry.votes) if not vote.completion.failed}
        return self._single.get(key, {}) | known

    def is_whole(self, key: Key) -> bool:
        """Return whether a key has a line of votes that did not fail."""
        return any(not any(vote.completion.failed for vote in entry.votes) for entry in self._by_key.get(key, ()))

    def failed(self, key: Key) -> list[Vote]:
        """Return the votes of a key that failed, each time they were asked for."""
        return [vote for entry in self._by_key.get(key, ()) for vote in entry.votes if vote.completion.failed]

    def write_all(self, key: Key, votes: Sequence[Vote], seconds: float | None = None) -> None:
        """Append the line of a key that has all of its votes."""
        self._log.append({**self._named(key), "votes": [vote_row(vote) for vote in votes], "seconds": seconds})

    def write_vote(self, key: Key, place: int, vote: Vote, seconds: float = 0.0) -> None:
        """Append a vote of a key that may lack others."""
        if self._partial is None:
            self._partial = AppendLog(self._partial_path, self._identity)
        self._partial.append({**self._named(key), "place": place, "seconds": round(seconds, 6), "vote": vote_row(vote)})

    def _named(self, key: Key) -> dict[str, str | int]:
        return dict(zip(self._key, key, strict=True))

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

    def _entry(self, path: Path, number: int, line: Mapping[str, Any]) -> VoteEntry:
        with undamaged(path, number):
            votes, seconds = tuple(map(vote_of, line["votes"])), line.get("seconds")
            return VoteEntry(self._key_of(line), votes, None if seconds is None else float(seconds))

    def _single_entry(self, number: int, line: Mapping[str, Any]) -> tuple[Key, int, Vote, float]:
        with undamaged(self._partial_path, number):
            return self._key_of(line), int(line["place"]), vote_of(line["vote"]), float(line["seconds"])

    def _key_of(self, line: Mapping[str, Any]) -> Key:
        for name, kind in self._key.items():
            if type(line[name]) is not kind:
                raise ValueError(f"{name} {line[name]!r} is no {'number' if kind is int else 'name'}")
        return tuple(line[name] for name in self._key)


def _has_answer(line: Mapping[str, Any]) -> bool:
    """Return whether a line has an answer, or cannot be read: only one of failed votes alone may be dropped."""
    votes = line.get("votes", [line.get("vote")])
    if not isinstance(votes, list) or not all(isinstance(vote, dict) for vote in votes):
        return True
    return any(vote.get("finish") not in (FinishReason.ERROR, FinishReason.TIMEOUT) for vote in votes)
