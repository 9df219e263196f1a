"""Votes that `rewardlab bench run pairs` left on disk, read again: to choose pairs by, or to teach a judge about its own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rewardlab.data.files import read_lines
from rewardlab.errors import DataError
from rewardlab.types import Choice, Completion, FinishReason, Order, Verdict, VerdictStatus, Vote

ATTACKS = "attacks"  # in the identity of a run whose votes are on attacked pairs, and on none of the file


def refuse_attacked(identity: Mapping[str, Any]) -> None:
    """Raise ValueError for the votes of `bench robustness`: they are on other pairs than those of the data file."""
    if ATTACKS in identity:
        raise ValueError("votes of `bench robustness` are on attacked pairs, and not on those of the file")


@dataclass(frozen=True)
class StoredVote:
    """One sampled vote on pair number ``row`` of the benched file; ``choice`` None where no verdict was read."""

    row: int
    order: Order
    choice: Choice | None
    text: str


def read_votes(path: Path) -> Iterator[StoredVote]:
    """Yield the votes of a ``votes.jsonl``, except control passes and votes that failed. Raises DataError for another kind of
    file.
    """
    lines = read_lines(path)
    try:
        head = json.loads(lines[0])
        if "identity" not in head:
            raise ValueError("its first line names no judge")
        refuse_attacked(head["identity"])
        for line in lines[1:]:
            entry = json.loads(line)
            for vote in entry["votes"] if entry["pass"] == "votes" else ():
                if vote.get("status") in (VerdictStatus.ERROR, VerdictStatus.TIMEOUT):
                    continue  # the endpoint's failure, which says nothing of the pair
                choice = Choice(vote["choice"]) if vote["choice"] else None
                yield StoredVote(entry["row"], Order(vote["order"]), choice, vote["text"])
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise DataError(f"{path}: not the votes of a generative judge ({error}); expected a votes.jsonl of `bench`") from error


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
    verdict = Verdict(choice, VerdictStatus(row["status"]), row["rule"])
    return Vote(Order(row["order"]), verdict, completion_of(row), row.get("margin"), row.get("member", ""))


def num_failed(votes: Sequence[Vote]) -> int:
    """Return the number of votes that failed: the endpoint broke or was late."""
    return sum(vote.verdict.status in (VerdictStatus.ERROR, VerdictStatus.TIMEOUT) for vote in votes)
