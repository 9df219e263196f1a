"""Pairs with their judgments, read from the votes of a `bench run pairs` or the matches of a `rank`."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rewardlab.data.candidates import candidates_hash, read_candidates
from rewardlab.data.files import data_hash
from rewardlab.data.pairs import PairSet
from rewardlab.data.rows import with_frames
from rewardlab.data.votes import TIES_PASS, num_failed, vote_of
from rewardlab.errors import DataError, OutputError
from rewardlab.prompts import build_messages, load_template
from rewardlab.prompts.sanitize import break_control_tokens
from rewardlab.types import BOTH_ORDERS, Judgment, Order, Outcome, PreferencePair, Vote
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
    was_judged = set[int]()

    def row_of(entry: Mapping[str, Any]) -> int | None:
        if entry["pass"] in ("votes", TIES_PASS):
            was_judged.add(entry["row"])
        return entry["row"] if entry["pass"] == "votes" else None

    identity, votes = _read_log(log, row_of)
    if identity.get("benchmark") != "pairs":
        raise DataError(f"{log}: votes of {identity.get('benchmark')!r}; {EXPECTED}")
    if identity.get("data") != data_hash(data):
        raise DataError(f"{log}: its votes belong to another version of {data}; give the --data of that run")
    judge = str(identity.get("judge", ""))
    compared = _ImagesOf()
    for number, stored in enumerate(PairSet(data, images=images, frames=None, allow_columns=allow_columns)):
        pair = with_frames(stored)
        if number in was_judged:  # not beyond the run's --limit, nor without a label where others have one
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
            digest.update(b"".join(hashlib.sha256(image).digest() for image in images))
        self._has_videos = self._has_videos or bool(pair.videos) or any(pair.response_videos)

    def may_be(self, recorded: str) -> bool:
        """Return whether a run saw these images, or, as a judge of texts, only those of responses. True if the run recorded
        nothing, and for videos, whose frames differ from judge to judge."""
        known = [digest.hexdigest()[:16] for digest in (self._all, self._of_responses)]
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


GROUP_ROWS = 200  # of images, a row group is tens of megabytes
KINDS = ("dpo", "kto")
_TEMPLATE = "answer"


@dataclass(frozen=True)
class PreferenceRules:
    """Keep judged pairs with a margin of ``min_margin`` (0..1) or more and, unless ``keep_inconsistent``, the same winner in
    both orders."""

    min_margin: float = 0.0
    keep_inconsistent: bool = False

    def reason_against(self, judged: JudgedPair) -> str | None:
        """Return why a pair is dropped, None for one that is kept."""
        share = judged.judgment.share_0
        if judged.pair.tie is not None:
            return "people call it a tie"
        if not judged.has_votes:
            return "not judged"
        if judged.failed:
            return "a vote failed at the endpoint"
        if judged.judgment.outcome is Outcome.NO_VALID_VOTE:
            return judged.judgment.outcome.words
        if share is None:
            return "too few valid votes"
        if not judged.consistent and not self.keep_inconsistent:
            one_order = judged.consistent is None
            return "judged in one order only" if one_order else "the two orders do not name the same winner"
        if judged.judgment.outcome.winner is None:
            return "a tie" if judged.judgment.outcome is Outcome.TIE else "no majority of the votes asked"
        if margin_of(judged) < self.min_margin:
            return f"a margin below {self.min_margin:g}"
        return "a response holds an image" if any(judged.pair.response_images) else None


def margin_of(judged: JudgedPair) -> float:
    """Return the fraction of the votes, or the probability, for the winner minus that for the other; both orders weigh the
    same. It can be negative for a panel, and for orders with different numbers of votes."""
    share, winner = judged.judgment.share_0, judged.judgment.outcome.winner
    assert share is not None
    assert winner is not None
    return 2 * (share if winner == 0 else 1 - share) - 1


def preference_features(kind: str) -> Any:
    """Return the columns of a file of ``kind`` (of :data:`KINDS`) as ``datasets`` knows them."""
    from datasets import Features, Image, List, Value

    messages = List({"role": Value("string"), "content": List({"type": Value("string"), "text": Value("string")})})
    texts = {"chosen": messages, "rejected": messages} if kind == "dpo" else {"completion": messages, "label": Value("bool")}
    facts = {
        "margin": Value("float32"),
        "share": Value("float32"),
        "swap_consistent": Value("bool"),
        "pair_id": Value("string"),
    }
    return Features({"prompt": messages, **texts, "images": List(Image()), **facts})


def preference_rows(judged: JudgedPair, kind: str) -> Iterator[dict[str, Any]]:
    """Yield the row of a pair, or for KTO two rows: the winner first."""
    pair, winner, margin = judged.pair, judged.judgment.outcome.winner, margin_of(judged)
    assert winner is not None
    (question,) = build_messages(pair, order=Order.GIVEN, template=load_template(_TEMPLATE))
    content = [{"type": "text", "text": p.text} if p.image is None else {"type": "image", "text": None} for p in question.parts]
    chosen, rejected = (_answer(pair.responses[n]) for n in (winner, 1 - winner))
    facts = {"margin": margin, "share": (1 + margin) / 2, "swap_consistent": judged.consistent, "pair_id": pair.pair_id}
    images = [{"bytes": image, "path": None} for image in question.images]
    shared = {"prompt": [{"role": "user", "content": content}], "images": images, **facts}
    if kind == "dpo":
        yield {**shared, "chosen": chosen, "rejected": rejected}
    else:
        yield {**shared, "completion": chosen, "label": True}
        yield {**shared, "completion": rejected, "label": False}


def _answer(text: str) -> list[dict[str, Any]]:
    """Return a response as a message; control tokens in it are broken up, as in prompts, other tags are not."""
    return [{"role": "assistant", "content": [{"type": "text", "text": break_control_tokens(text)}]}]


@dataclass(frozen=True)
class PreferenceCounts:
    """``kept`` pairs became ``num_rows`` rows; ``dropped`` pairs by reason."""

    kept: int
    num_rows: int
    dropped: dict[str, int]


def write_preferences(pairs: Iterable[JudgedPair], path: Path, kind: str, rules: PreferenceRules) -> PreferenceCounts:
    """Write the kept pairs as one new Parquet file that is whole or absent. Raise DataError if no pair is kept, OutputError if
    ``path`` exists or cannot be written."""
    if path.suffix != ".parquet":
        raise OutputError(f"{path}: expected the name of a .parquet file")
    if path.exists():
        raise OutputError(f"{path}: already exists; choose another --out, or remove it")
    from rewardlab.data.parquet import TableFile

    dropped, kept = Counter[str](), 0
    with TableFile(path, preference_features(kind).arrow_schema, group_rows=GROUP_ROWS) as table:
        for judged in pairs:
            if (reason := rules.reason_against(judged)) is not None:
                dropped[reason] += 1
                continue
            kept += 1
            for row in preference_rows(judged, kind):
                table.add(row)
        if not kept:
            reasons = "; ".join(f"{number:,} × {reason}" for reason, number in dropped.most_common())
            raise DataError(f"{path}: no pair is kept, so there is nothing to write ({reasons or 'there are no pairs'})")
    return PreferenceCounts(kept, table.num_rows, dict(dropped.most_common()))
