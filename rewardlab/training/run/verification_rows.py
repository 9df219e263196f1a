"""Cold start of a judge that verifies itself: dialogues made of its own judgments and its teacher's.

A judge that has never been asked to verify says nothing that can be read, and RL finds nothing to reward. So it is shown, for
judgments of its own, right and wrong ones: the teacher's reasoning as the verification, ending in what is so, and after a
wrong one the teacher's judgment as the revision.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rewardlab.data.votes import read_votes
from rewardlab.errors import DataError
from rewardlab.prompts import Template
from rewardlab.prompts.verification import CORRECT, REVISE, VERIFY, WRONG
from rewardlab.training.run.rows import chat_columns
from rewardlab.types import Choice, PreferencePair, choice_of
from rewardlab.verdicts.parse import reasoning_of


def verification_rows(pairs: Sequence[PreferencePair], votes: Path, template: Template) -> list[dict[str, Any]]:
    """Return rows to fine-tune on: one per vote on a pair with a kept judgment, in the order the teacher saw it, and one more
    per wrong vote, whose completion is the revision. Votes without a verdict are left out. Raise DataError where none is
    left."""
    rows = []
    for vote in read_votes(votes):
        pair = pairs[vote.row]
        if not pair.judgment or vote.order is not pair.order or vote.choice is None or pair.preferred is None:
            continue
        better = choice_of(pair.preferred, vote.order)
        right = vote.choice is better
        columns = chat_columns(pair, vote.order, template)
        prompt = [*columns["prompt"], _turn("assistant", vote.text), _turn("user", VERIFY)]
        number = 1 if better is Choice.FIRST else 2
        answer = f"{reasoning_of(pair.judgment)} Response {number} is better. {CORRECT if right else WRONG}."
        rows.append({**columns, "prompt": prompt, "completion": [_turn("assistant", answer)]})
        if not right:
            prompt = [*prompt, _turn("assistant", answer), _turn("user", REVISE)]
            rows.append({**columns, "prompt": prompt, "completion": [_turn("assistant", pair.judgment)]})
    if not rows:
        raise DataError(f"{votes}: no vote is on a pair with a kept judgment, in its order; bench the judge on the same pairs")
    return rows


def _turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}
