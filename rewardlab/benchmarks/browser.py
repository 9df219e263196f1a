"""Judgments to read on a page: which pairs, of what kind, and what the judge said of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rewardlab.benchmarks.base import Row
from rewardlab.benchmarks.kinds import KINDS
from rewardlab.benchmarks.runner import SCORES, VOTES
from rewardlab.data.files import read_lines
from rewardlab.data.images import thumbnail, to_data_url
from rewardlab.data.votes import vote_of
from rewardlab.types import IMAGE_MARK, Order, Outcome, Vote
from rewardlab.verdicts.votes import in_order, reduce_votes

T = TypeVar("T")
_PLACE = re.compile(r'\{"pass": "votes", "row": (\d+),')  # how a line of the log begins
MOST_OF_A_KIND = 40
SHOWN_VOTES = 4  # of each pair, in each order
MOST_CHARACTERS = 2000  # of one answer


def read_cast(votes_file: Path, rows: Iterable[int]) -> dict[int, list[Vote]]:
    """The votes of these rows in a run's log, control passes left out; lines of other rows are not parsed."""
    wanted, found = set(rows), {}
    for line in read_lines(votes_file)[1:]:
        place = _PLACE.match(line)
        if place and int(place[1]) in wanted:
            found[int(place[1])] = [vote_of(vote) for vote in json.loads(line)["votes"]]
    return found


def read_kinds(scores_file: Path) -> dict[int, list[str]]:
    """The kinds of every row of a run."""
    return {row["row"]: row["kinds"] for row in map(json.loads, read_lines(scores_file))}


def spread(places: Sequence[T], most: int) -> list[T]:
    """At most so many of them, evenly."""
    return [places[n * len(places) // most] for n in range(most)] if len(places) > most else list(places)


def judgments(rows: Sequence[Row], out: Path, most: int = MOST_OF_A_KIND) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Pairs of a run in ``out`` to browse, up to ``most`` of each kind spread evenly over the rows, and how many of each kind
    there are in all."""
    every = read_kinds(out / SCORES)
    kinds = [every[row.row] for row in rows]
    places = {kind: [n for n, own in enumerate(kinds) if kind in own] for kind in KINDS}
    chosen = sorted({n for own in places.values() for n in spread(own, most)})
    votes = read_cast(out / VOTES, [rows[n].row for n in chosen])
    shown = [_judgment(rows[n], votes[rows[n].row], kinds[n]) for n in chosen]
    return shown, {kind: len(own) for kind, own in places.items()}


def _judgment(row: Row, votes: list[Vote], kinds: list[str]) -> dict[str, Any]:
    pair = row.pair
    return {
        "id": pair.pair_id,
        "row": row.row,
        "group": row.group,
        "kinds": kinds,
        "question": pair.question,
        "responses": [text.replace(IMAGE_MARK, "[image]") for text in pair.responses],
        "preferred": pair.preferred,
        "images": _urls(pair.images),
        "response_images": [_urls(images) for images in pair.response_images],
        "num_votes": len(votes),
        "num_right": sum(vote.winner == pair.preferred for vote in votes),
        "outcome": {Outcome.TIE: "even", Outcome.NO_VALID_VOTE: "no verdict"}.get(reduce_votes("", votes).outcome, ""),
        "shown": [_shown(vote, pair.preferred) for order in Order for vote in in_order(votes, order)[:SHOWN_VOTES]],
    }


def _urls(images: Sequence[bytes]) -> list[str]:
    return [to_data_url(thumbnail(image)) for image in images]


def _shown(vote: Vote, preferred: int | None) -> dict[str, Any]:
    text = vote.completion.text
    return {
        "text": text[:MOST_CHARACTERS],
        "left_out": max(0, len(text) - MOST_CHARACTERS),
        "order": vote.order.value,
        "status": vote.verdict.status.value,
        "rule": vote.verdict.rule,
        "error": vote.completion.error,
        "winner": vote.winner,
        "margin": vote.margin,
        "right": vote.winner == preferred,
    }
