"""Votes that `rewardlab bench run pairs` left on disk, read again: to choose pairs by, or to teach a judge about its own."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rewardlab.data.files import data_hash, read_lines
from rewardlab.errors import DataError
from rewardlab.types import Choice, Completion, FinishReason, Order, Verdict, VerdictStatus, Vote

ATTACKS = "attacks"  # in the identity of a run whose votes are on attacked pairs, and on none of the file


def refuse_attacked(identity: Mapping[str, Any]) -> None:
    """Raise ValueError for the votes of `bench run NAME:attacked`: they are on other pairs than those of the data file."""
    if ATTACKS in identity:
        raise ValueError("votes of `bench run NAME:attacked` are on attacked pairs, and not on those of the file")


@dataclass(frozen=True)
class StoredVote:
    """One sampled vote on pair number ``row`` of the benched file; ``choice`` None where no verdict was read."""

    row: int
    order: Order
    choice: Choice | None
    text: str


def require_same_run(path: Path, data: Path, *, template: str = "") -> None:
    """Raise DataError unless the votes in ``path`` are on the pairs of the file ``data``: by row numbers, other votes would be
    taken for votes on these pairs. ``template``: the hash of the one that they must have been asked with; "": any."""
    with _votes_of_a_judge(path), path.open(encoding="utf-8") as file:
        identity = _identity(file.readline())
    if identity.get("data") != data_hash(data):
        raise DataError(
            f"{path}: its votes are not on the pairs of {data}, or that file has changed since; bench the judge on this --data"
        )
    if template and identity.get("template") != template:
        raise DataError(f"{path}: its judge was asked with another prompt template than the config's; bench it with that one")


def read_votes(path: Path) -> Iterator[StoredVote]:
    """Yield the votes of a ``votes.jsonl``, except control passes and votes that failed. Raise DataError for another kind of
    file, naming the line.
    """
    with _votes_of_a_judge(path):
        lines = read_lines(path)
        _identity(lines[0] if lines else "")
    for number, line in enumerate(lines[1:], 2):
        with _votes_of_a_judge(path, number):
            entry = json.loads(line)
            votes = [_stored(entry["row"], vote) for vote in entry["votes"]] if entry["pass"] == "votes" else []
        yield from (vote for vote in votes if vote is not None)


def _identity(first_line: str) -> dict[str, Any]:
    """Return what a file's first line says of the run."""
    if not first_line:
        raise ValueError("the file is empty")
    head = json.loads(first_line)
    if not isinstance(head, dict) or not isinstance(head.get("identity"), dict):
        raise ValueError("its first line names no judge")
    refuse_attacked(head["identity"])
    return dict(head["identity"])


def _stored(row: Any, vote: Any) -> StoredVote | None:
    """Return a vote on a row; None for a failure of the endpoint, which says nothing of the pair."""
    if isinstance(row, bool) or not isinstance(row, int) or row < 0:
        raise ValueError(f"row is {row!r}, and should be a number from 0 on")
    if vote.get("status") in (VerdictStatus.ERROR, VerdictStatus.TIMEOUT):
        return None
    if not isinstance(vote["text"], str):
        raise ValueError(f"a vote's text is {vote['text']!r}")
    return StoredVote(row, Order(vote["order"]), Choice(vote["choice"]) if vote["choice"] else None, vote["text"])


@contextmanager
def _votes_of_a_judge(path: Path, line: int | None = None) -> Iterator[None]:
    """Raise DataError for what is no such file."""
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
    """Return a vote as JSON; :func:`vote_of` is the inverse but for token ids and log-probs, which are not kept."""
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
    if isinstance(margin, float) and not math.isfinite(margin):
        raise ValueError(f"a margin of {margin}; expected a finite number")
    return Vote(Order(row["order"]), verdict, completion_of(row), margin, row.get("member", ""))


def num_failed(votes: Sequence[Vote]) -> int:
    """Return the number of votes that failed: the endpoint broke or was late."""
    return sum(vote.verdict.status in (VerdictStatus.ERROR, VerdictStatus.TIMEOUT) for vote in votes)
