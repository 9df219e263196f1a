"""Judged pairs as training data for other libraries, in TRL's conversational form for vision-language models.

``prompt``, ``chosen``, ``rejected`` (for KTO ``completion`` and a ``label``) are lists of messages ``{"role", "content"}``. A
content is a list of ``{"type": "image"}`` and ``{"type": "text", "text"}``; ``images`` are those of the prompt, in order. Other
columns: ``margin`` (the winner's fraction of the votes minus the other's, 0..1), ``share`` (the winner's), ``swap_consistent``
and ``pair_id``. The prompt is the question alone, as `rewardlab policy` puts it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rewardlab.data.judgments import JudgedPair
from rewardlab.errors import DataError, OutputError
from rewardlab.prompts import build_messages, load_template
from rewardlab.prompts.sanitize import break_control_tokens
from rewardlab.types import Order, Outcome

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
