"""Pairs with their judgments, read from the votes of a `bench run pairs` or the matches of a `rank`."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rewardlab.data.candidates import candidates_hash, read_candidates
from rewardlab.data.files import data_hash
from rewardlab.data.pairs import PairSet
from rewardlab.data.rows import with_frames
from rewardlab.data.votes import num_failed, vote_of
from rewardlab.errors import DataError
from rewardlab.types import BOTH_ORDERS, Judgment, PreferencePair, Vote
from rewardlab.verdicts.panel import panel_judgment, votes_with_voice
from rewardlab.verdicts.votes import both_orders_or_none, in_order, reduce_votes

VOTES, MATCHES, RANKINGS = "votes.jsonl", "matches.jsonl", "rankings.jsonl"
EXPECTED = "expected the votes.jsonl of a finished `bench run pairs`, or the folder of a run or of a `rank`"


@dataclass(frozen=True)
class JudgedPair:
    """A pair and the judgment of its votes. ``consistent``: both orders name the same winner; None if only one was judged.
    ``failed``: a vote failed, which says nothing about the pair. ``has_votes``: the pair was judged."""

    pair: PreferencePair
    judgment: Judgment
    consistent: bool | None
    failed: bool
    has_votes: bool


def reduce_logged_votes(pair_id: str, votes: Sequence[Vote], judge: str) -> Judgment:
    """Return the judgment of logged votes as ``judge``, the name in the log, reduced them: for a panel, whose votes name their
    ``member``, one voice for each member, by log-odds for a ``pool:``."""
    if any(vote.member for vote in votes):
        return panel_judgment(pair_id, votes, by_log_odds=judge.startswith("pool:"))
    return reduce_votes(pair_id, votes)


def judge_of_votes(pair: PreferencePair, votes: Sequence[Vote], judge: str = "") -> JudgedPair:
    """Return a pair with the judgment of its votes by the rule of ``judge``; without outcome if no valid vote of a judged order
    names a response."""
    orders = tuple({vote.order for vote in votes})
    judgment = both_orders_or_none(reduce_logged_votes(pair.pair_id, votes, judge), orders)
    valid = votes_with_voice(votes) if any(vote.member for vote in votes) else votes
    winners = [reduce_logged_votes("", in_order(valid, order), judge).outcome.winner for order in BOTH_ORDERS]
    consistent = winners[0] is not None and winners[0] == winners[1] if len(orders) == 2 else None
    return JudgedPair(pair, judgment, consistent, bool(num_failed(votes)), bool(votes))


def read_judged(
    run: Path, data: Path, *, images: Path | None = None, allow_columns: Collection[str] = ()
) -> Iterator[JudgedPair]:
    """Yield every pair of ``data`` with its votes in ``run``, a folder or its log; of a ranking, the two responses of a match.

    The votes are held in memory, the pairs are not. Raise DataError if the votes are on other data or of another kind, and,
    after the last pair, if they are on other images.
    """
    log = _log_of(run)
    if log.name == MATCHES:
        yield from _matches(log, data, images, allow_columns)
        return
    identity, votes = _read_log(log, lambda row: row["row"] if row["pass"] == "votes" else None)
    if identity.get("benchmark") != "pairs":
        raise DataError(f"{log}: votes of {identity.get('benchmark')!r}; {EXPECTED}")
    if identity.get("data") != data_hash(data):
        raise DataError(f"{log}: its votes belong to another version of {data}; give the --data of that run")
    judge = str(identity.get("judge", ""))
    compared, limit = _ImagesOf(), identity.get("limit")
    for number, stored in enumerate(PairSet(data, images=images, frames=None, allow_columns=allow_columns)):
        pair = with_frames(stored)
        if limit is None or number < limit:
            compared.add(stored)
        yield judge_of_votes(pair, [vote_of(vote) for rows in votes.get(number, [])[-1:] for vote in rows], judge)
    if not compared.may_be(str(identity.get("images", ""))):
        raise DataError(f"{log}: its votes belong to other images than those of {data}; give the --images of that run")


class _ImagesOf:
    """Hashes of the images of pairs, as `bench run` records them."""

    def __init__(self) -> None:
        self._all, self._of_responses, self._has_videos = hashlib.sha256(), hashlib.sha256(), False

    def add(self, pair: PreferencePair) -> None:
        of_responses = (*pair.response_images[0], *pair.response_images[1])
        for digest, images in ((self._all, (*pair.images, *of_responses)), (self._of_responses, of_responses)):
            for image in images:
                digest.update(hashlib.sha256(image).digest())
        self._has_videos = self._has_videos or bool(pair.videos)

    def may_be(self, recorded: str) -> bool:
        """Return whether a run saw these images, or, as a judge of texts, only those of responses. True if the run recorded
        nothing, and for videos, whose frames differ from judge to judge."""
        known = (self._all.hexdigest()[:16], self._of_responses.hexdigest()[:16])
        return not recorded or self._has_videos or recorded in known


def _log_of(run: Path) -> Path:
    candidates = [run] if run.is_file() else [run / VOTES, run / MATCHES]
    if (log := next((path for path in candidates if path.is_file()), None)) is None:
        raise DataError(f"{run}: holds neither {VOTES} nor {MATCHES}; {EXPECTED}")
    return log


def _read_log(log: Path, key_of: Callable[[dict[str, Any]], Any]) -> tuple[dict[str, Any], dict[Any, list[Any]]]:
    """Return a log's identity and, by key, the votes of each of its rows, as JSON without their texts; a repeated row comes
    later. Rows with key None are left out. Raise DataError for another kind of file."""
    entries: dict[Any, list[Any]] = defaultdict(list)
    try:
        with log.open(encoding="utf-8") as lines:
            identity = dict(json.loads(next(lines))["identity"])
            for line in lines:
                row = json.loads(line)
                if (key := key_of(row)) is not None:
                    entries[key].append([{**vote, "text": ""} for vote in row["votes"]])
        for rows in entries.values():
            vote_of(rows[-1][0])
    except (ValueError, KeyError, IndexError, TypeError, StopIteration) as error:
        raise DataError(f"{log}: not the log of a judge ({error!r}); {EXPECTED}") from error
    return identity, entries


def _matches(log: Path, data: Path, images: Path | None, allow_columns: Collection[str]) -> Iterator[JudgedPair]:
    """Yield the two responses of each match, the votes of all its turns together."""
    rankings = log.with_name(RANKINGS)
    if not rankings.is_file():
        raise DataError(f"{rankings}: is missing; run the same `rewardlab rank` command again to finish the run")
    with rankings.open(encoding="utf-8") as lines:
        prompts = read_candidates(data, images=images, allow_columns=allow_columns)[: sum(1 for _ in lines)]
    identity, turns = _read_log(log, lambda row: (row["row"], row["first"], row["second"], row["nth"]))
    if identity.get("data") != candidates_hash(prompts):
        raise DataError(f"{log}: its matches belong to another version of {data}; give the file of that run")
    votes: dict[tuple[int, int, int], list[Vote]] = defaultdict(list)
    for (row, first, second, _), rows in turns.items():
        of_turn = [vote_of(vote) for vote in rows[-1]]
        votes[row, min(first, second), max(first, second)] += of_turn if first < second else [vote.swap() for vote in of_turn]
    for (row, first, second), of_match in votes.items():
        yield judge_of_votes(prompts[row].pair(first, second), of_match, str(identity.get("judge", "")))
