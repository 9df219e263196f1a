"""Judgments that check before they choose: claims, what the image says of each, and the verdict that follows from them.

The reasoning of such a judgment is its checklist (DeltaRubric, MJ1 arXiv 2603.07990)::

    <think>Checks:
    1. [accuracy x2] Response 1: the star is red.
    2. [style] Response 2: the source is named.
    Verification:
    1. The star of the image is red: true
    2. No source is named: false
    </think><answer>1</answer>

A check is a claim that speaks for the response it names if it is true, and against it if it is false. Its criterion and the
weight of it may be left out. The verification has a line for each check, in the same order, that ends in a finding.
The response with the greater sum of weights, +w for true and -w for false, is the one that the checks speak for. A verdict for
the other one is CONTRADICTED; one where the sums are equal is UNSUPPORTED. Neither names a response.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from rewardlab.types import Choice, Criterion, Judgment, Outcome, Verdict, VerdictStatus, Vote
from rewardlab.verdicts.places import DIGITS, reasoning_of, without_markup
from rewardlab.verdicts.votes import judgment

MAX_CHECKS, MAX_NAMES = 100, 16  # names: of criteria that results are given for
OTHER_CRITERIA = "other_criteria"  # the rule of a verdict whose checks are not of the requested ones
WEIGHT = r"[0-9]{1,3}(?:\.[0-9]{1,6})?"  # as a checklist writes it


class ClaimFinding(StrEnum):
    """The result of verifying a check."""

    TRUE = "true"
    FALSE = "false"
    UNSEEN = "cannot be seen"


_SIGNS = {ClaimFinding.TRUE: 1, ClaimFinding.FALSE: -1, ClaimFinding.UNSEEN: 0}


@dataclass(frozen=True)
class ClaimCheck:
    """A claim that speaks for the response shown at ``choice`` if it is true. ``reason`` is the text of its verification."""

    choice: Choice
    claim: str
    finding: ClaimFinding
    criterion: str = ""
    weight: float = 1.0
    reason: str = ""

    @property
    def score(self) -> float:
        """Return the weight with the sign of the finding; 0 for a claim that cannot be seen."""
        return self.weight * _SIGNS[self.finding]


_HEADINGS = ("Checks:", "Verification:")
_PLANNED = re.compile(
    rf"([0-9]{{1,3}})\. (?:\[([^\[\]<>]{{1,80}}?)(?: x({WEIGHT}))?\] )?(?:Response|Answer|Image|Video) ([12]): (\S.*)"
)
_VERIFIED = re.compile(rf"([0-9]{{1,3}})\. (?:(\S.*): )?({'|'.join(ClaimFinding)})\.?", re.IGNORECASE | re.ASCII)


def read_checks(reasoning: str) -> tuple[ClaimCheck, ...] | None:
    """Return the checks of a reasoning; None unless it is a checklist, and nothing else: both headings once, checks numbered
    from 1 on, a line with a finding for each. Blank lines, and emphasis around headings, are ignored."""
    lines = [_plain_heading(stripped) for line in reasoning.split("\n") if (stripped := line.strip())]
    if not lines or lines[0] != _HEADINGS[0] or any(lines.count(heading) != 1 for heading in _HEADINGS):
        return None
    middle = lines.index(_HEADINGS[1])
    planned = [_PLANNED.fullmatch(line) for line in lines[1:middle]]
    verified = [_VERIFIED.fullmatch(line) for line in lines[middle + 1 :]]
    if not 1 <= len(planned) == len(verified) <= MAX_CHECKS:
        return None
    checks = []
    for number, (plan, verification) in enumerate(zip(planned, verified, strict=True), 1):
        if plan is None or verification is None or {int(plan[1]), int(verification[1])} != {number}:
            return None
        weight = float(plan[3] or 1)
        if weight <= 0:
            return None
        finding, reason = ClaimFinding(verification[3].lower()), verification[2] or ""
        checks.append(ClaimCheck(DIGITS[plan[4]], plan[5], finding, (plan[2] or "").strip(), weight, reason))
    return tuple(checks)


def checks_of(text: str) -> tuple[ClaimCheck, ...] | None:
    """Return the checks of a judgment; None if its reasoning is no checklist."""
    return read_checks(reasoning_of(text)) if _HEADINGS[0] in text else None


def _plain_heading(line: str) -> str:
    """Return a line without its emphasis, if it is a heading then."""
    plain = without_markup(line).strip()
    return plain if plain in _HEADINGS else line


def balance(checks: Sequence[ClaimCheck]) -> float:
    """Return the scores of the checks for the response shown first, less those for the second."""
    return math.fsum(check.score if check.choice is Choice.FIRST else -check.score for check in checks)


def supported_choice(checks: Sequence[ClaimCheck]) -> Choice | None:
    """Return the response that the checks speak for; None if they are balanced."""
    difference = balance(checks)
    return None if math.isclose(difference, 0, abs_tol=1e-9) else Choice.FIRST if difference > 0 else Choice.SECOND


def choices_by_criterion(checks: Sequence[ClaimCheck]) -> dict[str, Choice | None]:
    """Return the response that the checks of each named criterion speak for."""
    names = dict.fromkeys(check.criterion for check in checks if check.criterion)
    return {name: supported_choice([check for check in checks if check.criterion == name]) for name in names}


def judgments_by_criterion(judged: Judgment) -> dict[str, Judgment]:
    """Return what the votes on a pair come to for each criterion that their checks name, by the majority: for the first
    :data:`MAX_NAMES` of them, and none if the judge abstained.

    A vote is for the response that its checks of the criterion speak for, a tie if they are balanced. One without a verdict has
    none for any criterion; one without a check of the criterion has no verdict for this one. Members of a panel that write no
    checklists have no vote.
    """
    if judged.outcome is Outcome.ABSTAINED:
        return {}
    by_vote = [(vote, _choices_of(vote)) for vote in judged.votes]
    members = {vote.member for vote, choices in by_vote if choices}
    pairs = [(vote, choices) for vote, choices in by_vote if vote.member in members]
    names = list(dict.fromkeys(name for _, choices in pairs for name in choices))[:MAX_NAMES]
    return {name: judgment(name, [_criterion_vote(vote, choices, name) for vote, choices in pairs]) for name in names}


def _choices_of(vote: Vote) -> dict[str, Choice | None]:
    checks = None if vote.verdict.choice is None else checks_of(vote.completion.text)
    return choices_by_criterion(checks or ())


def _criterion_vote(vote: Vote, choices: Mapping[str, Choice | None], name: str) -> Vote:
    if vote.verdict.choice is None:
        return replace(vote, margin=None)
    choice = choices.get(name)
    unnamed = VerdictStatus.TIE if name in choices else VerdictStatus.NO_VERDICT
    return replace(vote, verdict=Verdict(choice, VerdictStatus.OK if choice else unnamed, "criterion"), margin=None)


def with_weights(checks: Sequence[ClaimCheck], criteria: Sequence[Criterion]) -> tuple[ClaimCheck, ...] | None:
    """Return the checks with the exact weights of the ``criteria``, which a judge may round; None unless the checks are of
    these criteria, and each has one."""
    weights: Mapping[str, float] = {criterion.name: criterion.weight for criterion in criteria}
    if {check.criterion for check in checks} != weights.keys():
        return None
    if not all(math.isclose(check.weight, weights[check.criterion], rel_tol=0.01) for check in checks):
        return None
    return tuple(replace(check, weight=weights[check.criterion]) for check in checks)


def checked_verdict(verdict: Verdict, reasoning: str, criteria: Sequence[Criterion] = ()) -> Verdict:
    """Return a verdict with the status of its checklist: as it is if it follows from the checks."""
    if verdict.choice is None:
        return verdict
    checks = read_checks(reasoning)
    if checks is None:
        return Verdict(None, VerdictStatus.NO_VERDICT, "no_checklist")
    if criteria and (checks := with_weights(checks, criteria)) is None:
        return Verdict(None, VerdictStatus.NO_VERDICT, OTHER_CRITERIA)
    choice = supported_choice(checks)
    if choice is None:
        return Verdict(None, VerdictStatus.UNSUPPORTED, "balanced_checks")
    return verdict if choice is verdict.choice else Verdict(None, VerdictStatus.CONTRADICTED, "checks")


def split_turns(text: str) -> tuple[str, str]:
    """Return the two turns of a judgment that is a checklist: its checks, and their verification with the verdict. Raise
    ValueError for any other judgment."""
    opening, begin, rest = text.partition("<think>")
    if opening.strip() or not begin or read_checks(reasoning_of(text)) is None:
        raise ValueError(f"{text[:60]!r} is no judgment with checks and their verification")
    lines = rest.split("\n")
    middle = [_plain_heading(line.strip()) for line in lines].index(_HEADINGS[1])
    verification = "\n".join([_HEADINGS[1], *lines[middle + 1 :]])
    return "\n".join(lines[:middle]).strip(), f"<think>{verification}"


def join_turns(checks: str, verification: str) -> str:
    """Return the judgment of two turns, as :func:`split_turns` splits it."""
    return f"<think>{checks.strip()}\n{verification.lstrip().removeprefix('<think>')}"


def write_checks(checks: Sequence[ClaimCheck]) -> str:
    """Return the reasoning that :func:`read_checks` reads as ``checks``."""
    planned, verified = [], []
    for number, check in enumerate(checks, 1):
        weight = "" if check.weight == 1 else f" x{check.weight:g}"
        label = f"[{check.criterion}{weight}] " if check.criterion else ""
        planned.append(f"{number}. {label}Response {1 if check.choice is Choice.FIRST else 2}: {check.claim}")
        verified.append(f"{number}. {f'{check.reason}: ' if check.reason else ''}{check.finding}")
    return "\n".join([_HEADINGS[0], *planned, _HEADINGS[1], *verified])
