"""Checklists of worked solutions: what a teacher checks of two, and which of its checks are true.

The checks are the two states after the first line in which the solutions differ; up to there they agree, so that the line and
the state before it decide. The teacher slips as that of the plain judgments does: it praises without looking, or misreads the
line. Some pairs name two criteria that disagree, and their weights: the right solution lacks its full stop, which the wrong one
has.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from eval.long_demo.judgments import Case, Teacher, read_line
from eval.long_demo.sheets import TASKS, Sheet, is_writable, words_of
from rewardlab.demo.judgments import PRAISE, Truth
from rewardlab.distill.teacher import order_of, seed_of
from rewardlab.types import Choice, Completion, Criterion, FinishReason, PreferencePair, choice_of
from rewardlab.verdicts.checklist import ClaimCheck, ClaimFinding, supported_choice, write_checks
from rewardlab.verdicts.parse import CHECKLIST, verdict_of

TEMPLATE = f"checklist:{Path(__file__).parent / 'checklist.txt'}"  # the plain words, read as checklists
ATTEMPTS, EVERY = 3, 4  # every fourth pair has criteria
ACCURACY, STYLE, STOP = "accuracy", "style", "ends with a stop"
CHOICES = (Choice.FIRST, Choice.SECOND)


def first_difference(case: Case) -> int:
    """Return the first line after which the solutions are in different states."""
    return next(n for n, (first, second) in enumerate(case.claims) if first != second)


def with_criteria_that_disagree(pair: PreferencePair, weights: tuple[int, int]) -> PreferencePair:
    """Return a pair whose right solution lacks its full stop, to be judged by accuracy and style of these weights, which must
    not be equal."""
    assert pair.preferred is not None
    texts = [text.removesuffix(".") for text in pair.responses]
    texts[1 - pair.preferred] += "."
    criteria = (Criterion(ACCURACY, float(weights[0])), Criterion(STYLE, float(weights[1])))
    preferred = pair.preferred if weights[0] > weights[1] else 1 - pair.preferred
    return replace(pair, responses=(texts[0], texts[1]), criteria=criteria, preferred=preferred)


def check_solutions(
    teacher: Teacher, truth: Truth, responses: Sequence[str], rng: random.Random, criteria: Sequence[Criterion] = ()
) -> str:
    """Return one checklist. If both solutions are called wrong, the checks support neither and the verdict is a guess."""
    case = Case.of(truth, [text.removesuffix(".") for text in responses])
    if not criteria and rng.random() < teacher.shallow[truth.level - 1]:
        return _judgment([ClaimCheck(rng.choice(CHOICES), rng.choice(PRAISE), ClaimFinding.TRUE)], rng)
    number = first_difference(case)
    task, true = TASKS[case.sheet.task], case.sheet.lines[number]
    before = [task.start, *case.sheet.states()][number]
    line = read_line(rng, number, case, teacher.misled[truth.level - 1], teacher.slip)
    line = line if is_writable(task.step(before, line)) else true
    after = words_of(task.step(before, line))
    reasons = (f"{line.label} {task.read(line)}, {words_of(before)}, {after}", after)
    checks = [
        ClaimCheck(choice, f"{line.label} {claim}", ClaimFinding.TRUE if claim == after else ClaimFinding.FALSE, reason=reason)
        for choice, claim, reason in zip(CHOICES, case.claims[number], reasons, strict=True)
    ]
    if criteria:
        weights = {criterion.name: criterion.weight for criterion in criteria}
        checks = [replace(check, criterion=ACCURACY, weight=weights[ACCURACY]) for check in checks]
        for choice, text in zip(CHOICES, responses, strict=True):
            finding = ClaimFinding.TRUE if text.endswith(".") else ClaimFinding.FALSE
            checks.append(ClaimCheck(choice, STOP, finding, STYLE, weights[STYLE]))
    return _judgment(checks, rng)


def _judgment(checks: Sequence[ClaimCheck], rng: random.Random) -> str:
    choice = supported_choice(checks) or rng.choice(CHOICES)
    return f"<think>{write_checks(checks)}\n</think><answer>{CHOICES.index(choice) + 1}</answer>"


def is_true(truth: Truth, check: ClaimCheck) -> bool | None:
    """Return whether a claim about a line is true of the picture; None for any other claim."""
    sheet = Sheet.parse(truth.fact)
    label, _, state = check.claim.removesuffix(".").partition(" ")
    states = {line.label: words_of(after) for line, after in zip(sheet.lines, sheet.states(), strict=True)}
    return states[label] == state if label in states else None


def distil_checks(pairs: Sequence[PreferencePair], truths: dict[str, Truth], seed: int) -> list[PreferencePair]:
    """Return the pairs with the first right checklist of up to :data:`ATTEMPTS`, and their tags, as `rewardlab distill` makes
    them of a teacher's judgments; ``truths`` by pair id. Every fourth pair has criteria."""
    teacher, made, dice = Teacher(), [], random.Random(f"criteria {seed}")
    for number, pair in enumerate(pairs):
        if number % EVERY == 0:
            pair = with_criteria_that_disagree(pair, dice.choice([(2, 1), (1, 2), (3, 1), (1, 3), (3, 2), (2, 3)]))
        assert pair.preferred is not None
        tagged = replace(pair, attempts="unsolved", judgment="", order=order_of(pair.pair_id, seed, 1))
        for attempt in range(1, ATTEMPTS + 1):
            order, rng = order_of(pair.pair_id, seed, attempt), random.Random(seed_of(pair.pair_id, seed, attempt))
            text = check_solutions(teacher, truths[pair.pair_id], pair.shown(order), rng, pair.criteria)
            if verdict_of(Completion(text, FinishReason.STOP), CHECKLIST, pair.criteria).choice is choice_of(
                pair.preferred, order
            ):
                tagged = replace(pair, attempts=str(attempt), judgment=text, order=order)
                break
        made.append(tagged)
    return made
