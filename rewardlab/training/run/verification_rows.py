"""Cold start of a judge that verifies itself: dialogues made of its own judgments and its teacher's.

A judge that has never been asked to verify says nothing that can be read, and RL finds nothing to reward. So it is shown, for
judgments of its own, right and wrong ones: the teacher's reasoning as the verification, ending in what is so, and after a
wrong one the teacher's judgment as the revision.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rewardlab.config import SFTConfig
from rewardlab.data.pair_table import light_pairs, pair_facts
from rewardlab.data.votes import StoredVote, read_votes
from rewardlab.errors import DataError
from rewardlab.prompts import Template
from rewardlab.prompts.verification import CORRECT, REVISE, VERIFY, WRONG
from rewardlab.training.run.dialogue_lengths import places_that_fit
from rewardlab.training.run.rows import SFTDialogue, turn
from rewardlab.types import Choice, PreferencePair, choice_of
from rewardlab.verdicts.parse import reasoning_of

TOO_LONG_DIALOGUES = "too_long_dialogues.jsonl"


def verification_dialogues(pairs: Sequence[PreferencePair], votes: Path) -> list[SFTDialogue]:
    """Return dialogues to fine-tune on: one per vote on a pair with a kept judgment, in the order the teacher saw it, and one
    more per wrong vote, whose answer is the revision. Votes without a verdict are left out.

    ``pairs`` are all of those that the votes number. Raise DataError where no dialogue is left.
    """
    dialogues = []
    for vote, judgment in _votes_with_judgments(pairs, votes):
        preferred = choice_of(judgment.preferred, vote.order)
        right = vote.choice is preferred
        turns = (turn("assistant", vote.text), turn("user", VERIFY))
        number = 1 if preferred is Choice.FIRST else 2
        answer = f"{reasoning_of(judgment.text)} Response {number} is better. {CORRECT if right else WRONG}."
        dialogues.append(SFTDialogue(vote.row, vote.order, answer, turns))
        if not right:
            more = (*turns, turn("assistant", answer), turn("user", REVISE))
            dialogues.append(SFTDialogue(vote.row, vote.order, None, more))
    if not dialogues:
        raise DataError(f"{votes}: no vote is on a pair with a kept judgment, in its order; bench the judge on the same pairs")
    return dialogues


def short_dialogues(
    pairs: Sequence[PreferencePair], dialogues: Sequence[SFTDialogue], config: SFTConfig, template: Template, out: Path
) -> list[SFTDialogue]:
    """Return ``dialogues`` without the verifications and revisions that are too long, as :func:`places_that_fit` says, in
    ``out/too_long_dialogues.jsonl``; judgments alone are counted with their pairs."""
    verifying = [dialogue for dialogue in dialogues if dialogue.turns]
    kept = places_that_fit(pairs, verifying, config, template, out, name=TOO_LONG_DIALOGUES)
    return [dialogue for dialogue in dialogues if not dialogue.turns] + [verifying[place] for place in kept]


@dataclass(frozen=True)
class _TeacherJudgment:
    text: str
    preferred: int


def _votes_with_judgments(pairs: Sequence[PreferencePair], votes: Path) -> Iterator[tuple[StoredVote, _TeacherJudgment]]:
    """Yield the votes in the order in which the teacher judged their pairs, with its judgment. Raise DataError for a vote on a
    pair that is not there."""
    facts = pair_facts(pairs)
    stored = list(read_votes(votes))
    if beyond := [vote.row for vote in stored if vote.row >= len(facts)]:
        raise DataError(
            f"{votes}: has votes on pair {beyond[0]}, and there are {len(facts):,} pairs; name the votes of this --data"
        )
    usable = {vote.row for vote in stored if vote.choice is not None and vote.order is facts[vote.row].order}
    usable = {row for row in usable if facts[row].judged and facts[row].preferred is not None}
    judgments = {
        number: _TeacherJudgment(pair.judgment, pair.preferred)
        for number, pair in light_pairs(pairs)
        if number in usable and pair.preferred is not None
    }
    for vote in stored:
        if vote.row in judgments and vote.choice is not None and vote.order is facts[vote.row].order:
            yield vote, judgments[vote.row]
