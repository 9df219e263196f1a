"""Cold start of a judge that verifies itself: dialogues made of its own judgments and its teacher's.

A judge that has never been asked to verify says nothing that can be read, and RL finds nothing to reward. So it is shown, for
judgments of its own: the teacher's reasoning as the verification, ending in what is so, and after a wrong one the teacher's
judgment as the revision. Two things decide whether its verification is worth anything afterwards.

*Balance*: most of a judge's votes are right, and a judge that is shown them as they come learns to answer "correct". So as many
right votes as wrong ones are shown, on the same pairs where there are both: neither the pair nor habit gives the answer away.

*Grounds*: a verification that reads nothing is one more guess. So only those reasonings of the teacher verify that mention
something in which the two responses differ; one that only says which response it likes better mentions nothing of the kind.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rewardlab.config import SFTConfig
from rewardlab.data.pair_table import light_pairs, pair_facts
from rewardlab.data.votes import StoredVote, read_votes
from rewardlab.errors import DataError
from rewardlab.processes import is_main
from rewardlab.prompts import Template
from rewardlab.prompts.verification import CORRECT, REVISE, VERIFY, WRONG
from rewardlab.reporting.progress import log_line
from rewardlab.training.run.dialogue_lengths import places_that_fit
from rewardlab.training.run.rows import SFTDialogue, turn
from rewardlab.types import Choice, PreferencePair, choice_of
from rewardlab.verdicts.parse import reasoning_of

TOO_LONG_DIALOGUES = "too_long_dialogues.jsonl"
_WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True)
class TeacherJudgment:
    """A kept judgment, and the response that is preferred, as the teacher saw them."""

    text: str
    preferred: Choice


JudgedVote = tuple[StoredVote, TeacherJudgment]


def verification_dialogues(pairs: Sequence[PreferencePair], votes: Path, left_out: Collection[int] = ()) -> list[SFTDialogue]:
    """Return dialogues to fine-tune on: a verification of each chosen vote, and the revision of each wrong one.

    Votes name pairs by their rows in a set, of which the rows ``left_out`` are not among ``pairs``. Votes on these, on pairs
    without a kept judgment whose reasoning mentions what the responses differ in, in the other order than the teacher's, or
    without a verdict, are left out; of the others as many right as wrong ones are chosen (:func:`choose_evenly`). How many is
    logged. Raise DataError where no wrong or no right one is left.
    """
    usable = list(_votes_with_judgments(pairs, votes, left_out))
    right = [item for item in usable if item[0].choice is item[1].preferred]
    wrong = [item for item in usable if item[0].choice is not item[1].preferred]
    if not usable:
        raise DataError(
            f"{votes}: no vote is on a pair with a kept judgment that mentions what the responses differ in, in its order; "
            "bench the judge on the same pairs"
        )
    if not right or not wrong:
        raise DataError(
            f"{votes}: all {len(usable):,} votes that can be verified are {'right' if right else 'wrong'}, and a judge learns "
            "to verify from both; bench it with more --votes, or on more pairs"
        )
    chosen = choose_evenly(right, wrong)
    if is_main():
        log_line(
            f"verification is taught from {len(chosen) // 2:,} right and as many wrong votes, of {len(right):,} and "
            f"{len(wrong):,} that can be verified"
        )
    return [dialogue for vote, judgment in chosen for dialogue in _dialogues(vote, judgment)]


def mentions_difference(reasoning: str, responses: Sequence[str]) -> bool:
    """Return whether a reasoning has a word that stands in one of two responses alone, whatever its case."""
    first, second = ({*_WORD.findall(response.lower())} for response in responses)
    return not (first ^ second).isdisjoint(_WORD.findall(reasoning.lower()))


def choose_evenly(right: Sequence[JudgedVote], wrong: Sequence[JudgedVote]) -> list[JudgedVote]:
    """Return all of the fewer, and as many of the others, in the order of the votes: of pairs that have both kinds first, and
    of each pair one before another."""
    number = min(len(right), len(wrong))
    rows = [{vote.row for vote, _ in votes} for votes in (right, wrong)]
    shared = rows[0] & rows[1]

    def few(votes: Sequence[JudgedVote]) -> list[JudgedVote]:
        counts: Counter[int] = Counter()
        ranks = []
        for place, (vote, _) in enumerate(votes):
            ranks.append((vote.row not in shared, counts[vote.row], place))
            counts[vote.row] += 1
        return [votes[place] for _, _, place in sorted(ranks)[:number]]

    return sorted((*few(right), *few(wrong)), key=lambda item: item[0].row)


def _dialogues(vote: StoredVote, judgment: TeacherJudgment) -> Iterator[SFTDialogue]:
    """Yield the verification of a vote, and the revision of a wrong one."""
    turns = (turn("assistant", vote.text), turn("user", VERIFY))
    is_right = vote.choice is judgment.preferred
    better, named = (1 if choice is Choice.FIRST else 2 for choice in (judgment.preferred, vote.choice))
    answer = (
        f"{reasoning_of(judgment.text)} Response {better} is better, and the judgment names Response {named}. "
        f"{CORRECT if is_right else WRONG}."
    )
    yield SFTDialogue(vote.row, vote.order, answer, turns)
    if not is_right:
        yield SFTDialogue(vote.row, vote.order, None, (*turns, turn("assistant", answer), turn("user", REVISE)))


def short_dialogues(
    pairs: Sequence[PreferencePair], dialogues: Sequence[SFTDialogue], config: SFTConfig, template: Template, out: Path
) -> list[SFTDialogue]:
    """Return ``dialogues`` without the verifications and revisions that are too long, as :func:`places_that_fit` says, in
    ``out/too_long_dialogues.jsonl``; judgments alone are counted with their pairs."""
    verifying = [dialogue for dialogue in dialogues if dialogue.turns]
    kept = places_that_fit(pairs, verifying, config, template, out, name=TOO_LONG_DIALOGUES)
    return [dialogue for dialogue in dialogues if not dialogue.turns] + [verifying[place] for place in kept]


def _votes_with_judgments(pairs: Sequence[PreferencePair], votes: Path, left_out: Collection[int]) -> Iterator[JudgedVote]:
    """Yield the votes in the order in which the teacher judged their pairs, with its judgment, where that mentions what the
    responses differ in. Raise DataError for a vote on a pair that is not there."""
    facts = pair_facts(pairs)
    stored, num_rows = list(read_votes(votes)), len(facts) + len(left_out)
    if beyond := [vote.row for vote in stored if vote.row >= num_rows]:
        raise DataError(
            f"{votes}: has votes on pair {beyond[0]}, and there are {num_rows:,} pairs; name the votes of this --data"
        )
    numbers = {row: number for number, row in enumerate(row for row in range(num_rows) if row not in left_out)}
    stored = [replace(vote, row=numbers[vote.row]) for vote in stored if vote.row in numbers]
    usable = {vote.row for vote in stored if vote.choice is not None and vote.order is facts[vote.row].order}
    usable = {row for row in usable if facts[row].judged and facts[row].preferred is not None}
    judgments = {
        number: TeacherJudgment(pair.judgment, choice_of(pair.preferred, pair.order))
        for number, pair in light_pairs(pairs)
        if number in usable and pair.preferred is not None and mentions_difference(reasoning_of(pair.judgment), pair.responses)
    }
    for vote in stored:
        if vote.row in judgments and vote.choice is not None and vote.order is facts[vote.row].order:
            yield vote, judgments[vote.row]
