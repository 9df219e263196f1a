"""The teacher's judgments of two worked solutions, and the checker that says which of their steps are true.

A *careful* judgment runs the sheet line by line and compares both solutions with each state; a *half* one stops in the middle,
and a *shallow* one does not look. A careful teacher slips: it misreads a line and goes on from the wrong state. If neither
solution agrees then, it may read the line again ("wait"); if no solution is left at the end, it may begin again.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from eval.long_demo.sheets import MOVES, TASKS, Line, Sheet, State, is_writable, words_of
from rewardlab.demo.judgments import PRAISE, Truth
from rewardlab.demo.tasks import NUMBERS, choose_other
from rewardlab.rewards.steps import judgment_steps
from rewardlab.verdicts.places import reasoning_span

WAIT = "wait"
MOST_PASSES = 2


@dataclass(frozen=True)
class Case:
    """A pair as its teacher knows it: its sheet, the sheet of the wrong solution, and the states of both solutions as shown."""

    sheet: Sheet
    other: Sheet
    claims: list[tuple[str, str]]
    right: int

    @staticmethod
    def of(truth: Truth, responses: Sequence[str]) -> Case:
        first, second = (solution_states(text) for text in responses)
        claims = list(zip(first, second, strict=True))
        return Case(Sheet.parse(truth.fact), Sheet.parse(truth.other_fact), claims, int(responses[1] == truth.right))


@dataclass(frozen=True)
class Teacher:
    """Rates by level 1..3: judgments that are ``shallow`` or ``half``, and lines that are read as in the other solution's sheet
    where the two differ (``misled``). ``slip``: lines that are misread by chance. ``reread``: of the lines that part from both
    solutions; ``again``: of the passes that end without a solution that holds."""

    shallow: tuple[float, float, float] = (0.52, 0.56, 0.58)
    half: tuple[float, float, float] = (0.10, 0.12, 0.14)
    misled: tuple[float, float, float] = (0.02, 0.06, 0.12)
    slip: float = 0.012
    reread: float = 0.4
    again: float = 0.3
    seed: int = 0

    def judge(self, truth: Truth, responses: Sequence[str], rng: random.Random) -> str:
        """Return one judgment."""
        return _judge(self, Case.of(truth, responses), truth.level, rng)


def solution_states(solution: str) -> list[str]:
    """Return the states of a worked solution, in words, without its answer."""
    return [step.split(" ", 1)[1] for step in solution.removesuffix(".").split(", ")[:-1]]


def line_text(read: str, line: Line, before: State, after: State, claims: tuple[str, str]) -> str:
    """Return one line of a careful judgment: what is read, the states before and after, and both solutions against it."""
    state, label = words_of(after), line.label
    first, second = (f"{label} {claim} {'yes' if claim == state else 'no'}" for claim in claims)
    return f"{label} {read}, {words_of(before)}, {state}; first {first}; second {second}."


def read_line(rng: random.Random, number: int, case: Case, misled: float, slip: float) -> Line:
    """Return a line as a teacher reads it: true, as in the other solution's sheet, or with another digit."""
    true, other = case.sheet.lines[number], case.other.lines[number]
    if other != true and rng.random() < misled:
        return other
    if rng.random() < slip:
        return replace(true, digit=int(choose_other(rng, [str(d) for d in range(10)], str(true.digit))))
    return true


def careful_pass(rng: random.Random, case: Case, teacher: Teacher, level: int, num_lines: int) -> tuple[list[str], list[int]]:
    """Return the sentences of one pass over the first ``num_lines`` lines, and with how many states each solution agrees."""
    task, state, confirmed, texts, agreed = TASKS[case.sheet.task], TASKS[case.sheet.task].start, [0, 0], list[str](), True
    for number, (true, claims) in enumerate(zip(case.sheet.lines[:num_lines], case.claims, strict=False)):
        line = read_line(rng, number, case, teacher.misled[level - 1], teacher.slip)
        if not is_writable(task.step(state, line)):
            line = true
        if not is_writable(task.step(state, line)):  # after a slip the sum may leave what can be written
            state = case.sheet.states()[number - 1] if number else task.start
        after = task.step(state, line)
        texts.append(line_text(task.read(line), line, state, after, claims))
        if agreed and words_of(after) not in claims and rng.random() < teacher.reread:
            after = task.step(state, true)
            texts += [f"{WAIT}.", line_text(task.read(true), true, state, after, claims)]
        confirmed = [num + (words_of(after) == claim) for num, claim in zip(confirmed, claims, strict=True)]
        state, agreed = after, words_of(after) in claims
    return texts, confirmed


def _judge(teacher: Teacher, case: Case, level: int, rng: random.Random) -> str:
    roll = rng.random()
    if roll < teacher.shallow[level - 1]:
        praised = rng.randrange(2)
        return f"<think>Response {praised + 1} {rng.choice(PRAISE)}.{_close(praised)}"
    num_lines = len(case.sheet.lines)
    if is_half := roll < teacher.shallow[level - 1] + teacher.half[level - 1]:
        num_lines = (num_lines + 1) // 2
    texts: list[str] = []
    for number in range(1, MOST_PASSES + 1):
        more, confirmed = careful_pass(rng, case, teacher, level, num_lines)
        texts += more
        if num_lines in confirmed or is_half or number == MOST_PASSES or rng.random() >= teacher.again:
            break
        texts.append(f"{WAIT}.")
    best = rng.randrange(2) if confirmed[0] == confirmed[1] else int(confirmed[1] > confirmed[0])
    marks = [f"Response {n + 1}: {'correct' if n == best else 'wrong'}." for n in range(2)]
    return f"<think>{' '.join([*texts, *marks])}{_close(best)}"


def short_judgment(truth: Truth, responses: Sequence[str]) -> str:
    """Return a judgment of the first line in which the solutions differ, from the state on which they agree."""
    case = Case.of(truth, responses)
    number = next(n for n, (first, second) in enumerate(case.claims) if first != second)
    task, states = TASKS[case.sheet.task], [TASKS[case.sheet.task].start, *case.sheet.states()]
    line = case.sheet.lines[number]
    text = line_text(task.read(line), line, states[number], states[number + 1], case.claims[number])
    marks = [f"Response {n + 1}: {'correct' if n == case.right else 'wrong'}." for n in range(2)]
    return f"<think>{' '.join([text, *marks])}{_close(case.right)}"


def verdict_only(truth: Truth, responses: Sequence[str]) -> str:
    """Return a judgment without reasoning."""
    return f"<think>{_close(Case.of(truth, responses).right)}"


def _close(choice: int) -> str:
    return f"</think><answer>{choice + 1}</answer>"


_DIGIT = "(?:" + "|".join(NUMBERS[:10]) + ")"
_STATE = f"({_DIGIT}(?: {_DIGIT})?)"
_LINE = re.compile(
    rf"([a-p]) ((?:(?:add|take|odd|{'|'.join(MOVES)}) )?{_DIGIT}(?: (?:in|out))?), {_STATE}, {_STATE}"
    rf"; first \1 {_STATE} (yes|no); second \1 {_STATE} (yes|no)\."
)
_MARK = re.compile(r"Response ([12]): (correct|wrong)\.")


@dataclass(frozen=True)
class Step:
    """A sentence of a judgment, up to the character ``end``. ``kind``: line, mark, wait or other. ``true``: all that it says is
    true of the picture and of the solutions; ``follows``: it would be, were the state that it starts from."""

    end: int
    kind: str
    true: bool
    follows: bool


def check_steps(truth: Truth, responses: Sequence[str], text: str) -> list[Step]:
    """Return the sentences of a judgment's reasoning, each checked; none without a closed reasoning.

    A line is checked against the sheet, whatever was written before it: it is true if reading, both states, both quotations and
    both comparisons are. A mark is true if it says of the right solution "correct" or of the wrong one "wrong". Praise, and a
    sentence in no known form, are ``other`` and never true; "wait" always is.
    """
    case, steps, (begin, _) = Case.of(truth, responses), [], reasoning_span(text) or (0, 0)
    states = [TASKS[case.sheet.task].start, *case.sheet.states()]
    place_of = {line.label: place for place, line in enumerate(case.sheet.lines)}
    for end in judgment_steps(text):
        sentence = text[begin:end].strip()
        begin = end
        if line := _LINE.fullmatch(sentence):
            steps.append(_check_line(case, states, place_of.get(line[1]), line.groups()[1:], end))
        elif mark := _MARK.fullmatch(sentence):
            holds = (int(mark[1]) - 1 == case.right) == (mark[2] == "correct")
            steps.append(Step(end, "mark", holds, holds))
        else:
            waits = sentence == f"{WAIT}."
            steps.append(Step(end, WAIT if waits else "other", waits, waits))
    return steps


def _check_line(case: Case, states: list[State], place: int | None, said: Sequence[str], end: int) -> Step:
    if place is None:
        return Step(end, "line", False, False)
    task, line = TASKS[case.sheet.task], case.sheet.lines[place]
    read, before, after, *comparisons = said
    start = tuple(NUMBERS.index(word) for word in before.split())
    quoted = (comparisons[0], comparisons[2]) == case.claims[place]
    compared = all(
        (claim == after) == (verdict == "yes") for claim, verdict in zip(comparisons[::2], comparisons[1::2], strict=True)
    )
    fits = len(start) == len(task.start) and after == words_of(task.step(start, line))
    follows = read == task.read(line) and quoted and compared and fits
    return Step(end, "line", follows and before == words_of(states[place]), follows)
