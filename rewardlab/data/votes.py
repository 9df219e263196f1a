"""Votes as JSON: the log that a run appends to and resumes from, and the votes of `rewardlab bench run pairs`, read again."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rewardlab.data.append_log import AppendLog, undamaged
from rewardlab.data.files import data_hash, read_lines
from rewardlab.errors import DataError
from rewardlab.types import Choice, Completion, FinishReason, Order, Verdict, VerdictStatus, Vote

TIES_PASS = "ties"  # the pass in the votes that is of pairs without a better response

ATTACKS = "attacks"  # in the identity of a run whose votes are on attacked pairs


def refuse_attacked(identity: Mapping[str, Any]) -> None:
    """Raise ValueError for the votes of `bench run NAME:attacked`, which are not on the pairs of the data file."""
    if ATTACKS in identity:
        raise ValueError("these are votes on attacked pairs (`bench run NAME:attacked`), not on the pairs of the file")


@dataclass(frozen=True)
class StoredVote:
    """One sampled vote on pair number ``row`` of the benched file; ``choice`` is None without a valid verdict."""

    row: int
    order: Order
    choice: Choice | None
    text: str


def identity_of_votes(path: Path) -> dict[str, Any]:
    """Return what the run that wrote a ``votes.jsonl`` says of its judge and data. Raise DataError for another kind of file."""
    with _votes_of_a_judge(path), path.open(encoding="utf-8") as file:
        return _identity(file.readline())


def require_same_run(path: Path, data: Path, *, template: str = "") -> None:
    """Raise DataError unless the votes in ``path`` are on the pairs of the file ``data``: votes name pairs by row number.
    ``template``: the hash of the prompt template that they must come from; "": any."""
    identity = identity_of_votes(path)
    with _votes_of_a_judge(path):
        refuse_attacked(identity)
    if identity.get("data") != data_hash(data):
        raise DataError(
            f"{path}: its votes are not on the pairs of {data}, or that file has "
            "changed since; benchmark the judge on this --data"
        )
    if template and identity.get("template") != template:
        raise DataError(
            f"{path}: its judge used another prompt template than the config's; set template to the judge's, or benchmark it "
            "with the config's"
        )


def read_votes(path: Path) -> Iterator[StoredVote]:
    """Yield the votes of a ``votes.jsonl``, without control passes and failed votes. Raise DataError for another kind of file,
    naming the line."""
    with _votes_of_a_judge(path):
        lines = read_lines(path)
        refuse_attacked(_identity(lines[0] if lines else ""))
    for number, line in enumerate(lines[1:], 2):
        with _votes_of_a_judge(path, number):
            entry = json.loads(line)
            votes = [_stored(entry["row"], vote) for vote in entry["votes"]] if entry["pass"] == "votes" else []
        yield from (vote for vote in votes if vote is not None)


def votes_on_pairs(path: Path, num_pairs: int, left_out: Collection[int] = ()) -> list[StoredVote]:
    """Return the votes on ``num_pairs`` pairs, ``row`` being the number of the pair among them: votes name rows of a set, of
    which the rows ``left_out`` are not among the pairs. Raise DataError for a vote on a row beyond the set."""
    stored, num_rows = list(read_votes(path)), num_pairs + len(left_out)
    if beyond := [vote.row for vote in stored if vote.row >= num_rows]:
        raise DataError(
            f"{path}: has a vote on pair {beyond[0]}, but --data has {num_rows:,} pairs; give the votes on this --data"
        )
    numbers = {row: number for number, row in enumerate(row for row in range(num_rows) if row not in left_out)}
    return [replace(vote, row=numbers[vote.row]) for vote in stored if vote.row in numbers]


def _identity(first_line: str) -> dict[str, Any]:
    """Return the identity of the run in a file's first line."""
    if not first_line:
        raise ValueError("the file is empty")
    head = json.loads(first_line)
    if not isinstance(head, dict) or not isinstance(head.get("identity"), dict):
        raise ValueError("its first line does not name the judge")
    return dict(head["identity"])


def _stored(row: Any, vote: Any) -> StoredVote | None:
    """Return a vote on a row; None for a failure of the endpoint, which says nothing about the pair."""
    if isinstance(row, bool) or not isinstance(row, int) or row < 0:
        raise ValueError(f"row is {row!r}; expected an integer >= 0")
    if vote.get("status") in (VerdictStatus.ERROR, VerdictStatus.TIMEOUT):
        return None
    if not isinstance(vote["text"], str):
        raise ValueError(f"a vote's text is {vote['text']!r}; expected a string")
    text = vote["text"].encode(errors="replace").decode()  # a "?" for half a surrogate pair, which no tokenizer reads
    return StoredVote(row, Order(vote["order"]), Choice(vote["choice"]) if vote["choice"] else None, text)


@contextmanager
def _votes_of_a_judge(path: Path, line: int | None = None) -> Iterator[None]:
    """Raise DataError for another kind of file."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}; expected a votes.jsonl of `bench`") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"lacks {error}" if isinstance(error, KeyError) else str(error)
        place = f"{path}, line {line}" if line else str(path)
        raise DataError(f"{place}: not the votes of a generative judge ({what}); expected a votes.jsonl of `bench`") from error


JsonValue = str | int | float | list[str] | None


def completion_row(completion: Completion) -> dict[str, JsonValue]:
    """Return a completion as JSON; token ids and log-probs are not kept."""
    return {
        "text": completion.text,
        "finish": completion.finish.value,
        "num_tokens": completion.num_tokens,
        "error": completion.error,
        **({"num_prompt_tokens": completion.num_prompt_tokens} if completion.num_prompt_tokens else {}),
        **({"num_cached_tokens": completion.num_cached_tokens} if completion.num_cached_tokens else {}),
        **({"from_cache": True} if completion.from_cache else {}),
        **({"turns": list(completion.turns)} if completion.turns else {}),
    }


def completion_of(row: Mapping[str, Any]) -> Completion:
    """Read what :func:`completion_row` wrote. Raises KeyError, TypeError or ValueError for another kind of object."""
    return Completion(
        row["text"],
        FinishReason(row["finish"]),
        row["num_tokens"],
        row.get("num_prompt_tokens", 0),
        error=row["error"],
        num_cached_tokens=row.get("num_cached_tokens", 0),
        from_cache=row.get("from_cache", False),
        turns=tuple(map(str, row.get("turns", ()))),
    )


def vote_row(vote: Vote) -> dict[str, JsonValue]:
    """Return a vote as JSON; :func:`vote_of` is the inverse, except for token ids and log-probs, which are not kept."""
    return {
        "order": vote.order.value,
        "choice": vote.verdict.choice,
        "status": vote.verdict.status.value,
        "rule": vote.verdict.rule,
        **completion_row(vote.completion),
        "margin": vote.margin,
        **({"member": vote.member} if vote.member else {}),
    }


def vote_of(row: Mapping[str, Any]) -> Vote:
    """Read what :func:`vote_row` wrote. Raises KeyError, TypeError or ValueError for another kind of object."""
    choice = Choice(row["choice"]) if row["choice"] else None
    verdict, margin = Verdict(choice, VerdictStatus(row["status"]), row["rule"]), row.get("margin")
    if margin is not None and not (type(margin) in (int, float) and math.isfinite(margin)):
        raise ValueError(f"a margin of {margin!r}; expected a finite number")
    return Vote(Order(row["order"]), verdict, completion_of(row), margin, row.get("member", ""))


def num_failed(votes: Sequence[Vote]) -> int:
    """Return the number of votes that failed: the endpoint broke or was late."""
    return sum(vote.verdict.status in (VerdictStatus.ERROR, VerdictStatus.TIMEOUT) for vote in votes)


Key = tuple[str | int, ...]


@dataclass(frozen=True)
class VoteEntry:
    """All votes of one key; ``seconds``: how long they took, None if not measured."""

    key: Key
    votes: tuple[Vote, ...]
    seconds: float | None


class VoteLog:
    """The log at ``path`` of the run that ``identity`` describes, opened or continued: a line for each key that has all of its
    votes, and in the file ``partial`` a line per vote for the others, until :meth:`finish` removes it. A kill loses at most the
    requests in flight.

    ``key``: names and types of the fields that tell lines apart. ``entries`` are the lines that were there, in their order,
    repeated keys included. A log without any answer is overwritten by another run. Raise what :class:`AppendLog` raises, and
    DataError for a line that lacks something.
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
        """Return the keys with any vote."""
        return {*self._by_key, *self._single}

    @property
    def has_answers(self) -> bool:
        """Return whether any vote did not fail."""
        return any(self.answered(key) for key in self.keys)

    def answered(self, key: Key) -> dict[int, tuple[Vote, float]]:
        """Return the votes of a key that need no new request, by their place in a whole line, each with its seconds that are in
        no line yet."""
        known: dict[int, tuple[Vote, float]] = {}
        for entry in self._by_key.get(key, ()):
            known |= {n: (vote, 0.0) for n, vote in enumerate(entry.votes) if not vote.completion.failed}
        return self._single.get(key, {}) | known

    def is_whole(self, key: Key) -> bool:
        """Return whether a key has a line of votes that did not fail."""
        return any(not any(vote.completion.failed for vote in entry.votes) for entry in self._by_key.get(key, ()))

    def failed(self, key: Key) -> list[Vote]:
        """Return all failed votes of a key."""
        return [vote for entry in self._by_key.get(key, ()) for vote in entry.votes if vote.completion.failed]

    def write_all(self, key: Key, votes: Sequence[Vote], seconds: float | None = None) -> None:
        """Append the line of a key that has all of its votes."""
        self._log.append({**self._named(key), "votes": [vote_row(vote) for vote in votes], "seconds": seconds})

    def write_vote(self, key: Key, place: int, vote: Vote, seconds: float = 0.0) -> None:
        """Append one vote of a key."""
        if self._partial is None:
            self._partial = AppendLog(self._partial_path, self._identity)
        self._partial.append({**self._named(key), "place": place, "seconds": round(seconds, 6), "vote": vote_row(vote)})

    def _named(self, key: Key) -> dict[str, str | int]:
        return dict(zip(self._key, key, strict=True))

    def finish(self) -> None:
        """Remove the partial file, which only an unfinished run needs."""
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
    """Return whether a line has an answer, or cannot be read: only a line of failed votes may be dropped."""
    votes = line.get("votes", [line.get("vote")])
    if not isinstance(votes, list) or not all(isinstance(vote, dict) for vote in votes):
        return True
    return any(vote.get("finish") not in (FinishReason.ERROR, FinishReason.TIMEOUT) for vote in votes)
