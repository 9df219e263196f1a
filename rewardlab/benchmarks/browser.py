"""Judgments to read on a page: which pairs, of what kind, and what the judge said of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rewardlab.benchmarks.base import SCORES, VOTES, Row
from rewardlab.benchmarks.scores import KINDS, TIE_KINDS
from rewardlab.data.files import read_lines
from rewardlab.data.images import thumbnail, to_data_url
from rewardlab.data.judgments import reduce_logged_votes
from rewardlab.data.votes import TIES_PASS, vote_of
from rewardlab.metrics.ties import three_way_outcome
from rewardlab.reporting.tables import RESPONSE_LETTERS
from rewardlab.types import IMAGE_MARK, Choice, Order, Outcome, VerdictStatus, Vote, response_at
from rewardlab.verdicts.votes import in_order

T = TypeVar("T")
PLACE = re.compile(rf'\{{"pass": "(?:votes|{TIES_PASS})", "row": (\d+),')  # how a line of the log begins, but of controls
MOST_OF_A_KIND = 40
SHOWN_VOTES = 4  # of each pair, in each order
THUMBNAIL_PX = 96  # a side; shown at half of it, which is sharp on every screen
MOST_CHARACTERS = 2000  # of one answer


@dataclass(frozen=True)
class VoteView:
    """A vote as the page shows it; ``left_out`` is the number of characters cut off its ``text``; ``right`` is None for a pair
    that is a tie."""

    text: str
    left_out: int
    status: str
    rule: str | None
    error: str | None
    winner: int | None
    margin: float | None
    right: bool | None


@dataclass(frozen=True)
class OrderView:
    """The votes of one order. ``first`` is the index of the response shown first; ``tally`` counts the winners of all
    ``num_votes``, of which ``votes`` are shown."""

    first: int
    num_votes: int
    tally: str
    votes: list[VoteView]


@dataclass(frozen=True)
class JudgmentView:
    """A pair and its votes as the page shows them; images are data URLs, ``thumbnail`` "" without an image; ``tie`` is "tie" or
    "both bad", "" for other pairs."""

    row: int
    pair_id: str
    group: str
    kinds: list[str]
    question: str
    responses: list[str]
    preferred: int | None
    tie: str
    thumbnail: str
    images: list[str]
    response_images: list[list[str]]
    num_votes: int
    num_right: int
    outcome: str
    orders: list[OrderView]


def votes_of_rows(votes_file: Path, rows: Iterable[int]) -> dict[int, list[Vote]]:
    """Return the votes of these rows in a run's log, control passes left out; lines of other rows are not parsed."""
    wanted, votes = set(rows), {}
    for line in read_lines(votes_file)[1:]:
        place = PLACE.match(line)
        if place and int(place[1]) in wanted:
            votes[int(place[1])] = [vote_of(vote) for vote in json.loads(line)["votes"]]
    return votes


def read_kinds(scores_file: Path) -> dict[int, list[str]]:
    """Return the kinds of every row of a run."""
    return {row["row"]: row["kinds"] for row in map(json.loads, read_lines(scores_file))}


def evenly_spread(places: Sequence[T], most: int) -> list[T]:
    """Return at most so many of them, evenly spread."""
    return [places[n * len(places) // most] for n in range(most)] if len(places) > most else list(places)


def judgments_to_show(rows: Sequence[Row], out: Path, most: int = MOST_OF_A_KIND) -> tuple[list[JudgmentView], dict[str, int]]:
    """Return pairs of a run in ``out`` to browse, up to ``most`` of each kind spread evenly over the rows, and how many of each
    kind there are in all."""
    kinds_by_row = read_kinds(out / SCORES)
    kinds = [kinds_by_row[row.row] for row in rows]
    places = {kind: [n for n, row_kinds in enumerate(kinds) if kind in row_kinds] for kind in KINDS}
    indices = sorted({n for of_kind in places.values() for n in evenly_spread(of_kind, most)})
    votes = votes_of_rows(out / VOTES, [rows[n].row for n in indices])
    judge = judge_of_log(out / VOTES)
    views = [judgment_view(rows[n], votes[rows[n].row], kinds[n], judge) for n in indices]
    return views, totals_of(kinds)


def totals_of(kinds: Sequence[Sequence[str]]) -> dict[str, int]:
    """Return the number of pairs by kind, given the kinds of each pair; kinds of ties are left out if there are no ties."""
    totals = {kind: sum(kind in of_pair for of_pair in kinds) for kind in KINDS}
    return {kind: total for kind, total in totals.items() if kind not in TIE_KINDS or totals[TIE_KINDS[0]]}


def judge_of_log(votes_file: Path) -> str:
    """Return the name of the judge in the first line of a run's log, "" where it has none."""
    with votes_file.open(encoding="utf-8") as lines:
        return str(json.loads(next(lines)).get("identity", {}).get("judge", ""))


OUTCOMES = {Outcome.TIE: "even", Outcome.NO_MAJORITY: "no majority", Outcome.NO_VALID_VOTE: "no verdict"}
OUTCOMES_OF_TIES = {
    Outcome.TIE: "the judge says tie",
    Outcome.RESPONSE_0: "the judge names A",
    Outcome.RESPONSE_1: "the judge names B",
    Outcome.NO_VALID_VOTE: "the judge has no answer",
}


def judgment_view(row: Row, votes: list[Vote], kinds: list[str], judge: str) -> JudgmentView:
    """Return a row of a run as the page shows it, from its ``votes`` and ``kinds``; ``judge`` is the name in the log."""
    pair = row.pair
    outcome = three_way_outcome(votes) if pair.tie else reduce_logged_votes("", votes, judge).outcome
    images = row.images_to_show()
    return JudgmentView(
        row=row.row,
        pair_id=pair.pair_id,
        group=row.group,
        kinds=kinds,
        question=pair.question,
        responses=[text.replace(IMAGE_MARK, "[image]") for text in pair.responses],
        preferred=pair.preferred,
        tie=pair.tie.replace("_", " ") if pair.tie else "",
        thumbnail=to_data_url(thumbnail(images[0], THUMBNAIL_PX)) if images else "",
        images=_urls(images),
        response_images=[_urls(images) for images in pair.response_images],
        num_votes=len(votes),
        num_right=sum(vote.winner == pair.preferred for vote in votes),
        outcome=(OUTCOMES_OF_TIES if pair.tie else OUTCOMES).get(outcome, ""),
        orders=[_order_view(order, there, pair.preferred) for order in Order if (there := in_order(votes, order))],
    )


def _order_view(order: Order, votes: Sequence[Vote], preferred: int | None) -> OrderView:
    views = [_vote_view(vote, preferred) for vote in votes[:SHOWN_VOTES]]
    return OrderView(response_at(Choice.FIRST, order), len(votes), tally(votes), views)


def tally(votes: Sequence[Vote]) -> str:
    """Return how many votes name which response: "3 of 4 votes for B, 1 without a verdict"."""
    winners, ties = [vote.winner for vote in votes], sum(vote.verdict.status is VerdictStatus.TIE for vote in votes)
    counts = [(f"for {RESPONSE_LETTERS[index]}", winners.count(index)) for index in (0, 1)]
    counts = [
        *sorted(counts, key=lambda item: -item[1]),
        ("for a tie", ties),
        ("without a verdict", winners.count(None) - ties),
    ]
    parts = [f"{n} {name}" for name, n in counts if n]
    first, *others = parts or ["0"]
    count, _, name = first.partition(" ")
    return ", ".join([f"{count} of {len(votes)} {'vote' if len(votes) == 1 else 'votes'} {name}", *others])


def _urls(images: Sequence[bytes]) -> list[str]:
    return [to_data_url(thumbnail(image)) for image in images]


def _vote_view(vote: Vote, preferred: int | None) -> VoteView:
    text = vote.completion.text
    return VoteView(
        text=text[:MOST_CHARACTERS],
        left_out=max(0, len(text) - MOST_CHARACTERS),
        status=vote.verdict.status.value,
        rule=vote.verdict.rule,
        error=vote.completion.error,
        winner=vote.winner,
        margin=vote.margin,
        right=None if preferred is None else vote.winner == preferred,
    )
