"""Facts about sheets, in the words of judgments: what each line says, and runs with two claims about each state to check.

A sheet does not show what is asked of it, so a fact begins with the question, as a judge's prompt does.
"""

from __future__ import annotations

import random

from eval.long_demo.judgments import line_text
from eval.long_demo.sheets import TASKS, Sheet, State, words_of
from rewardlab.demo.facts import Fact
from rewardlab.demo.tasks import Picture, choose_other

SHARE_READ = 0.2
SHARE_WHOLE = 0.7  # of runs; the others begin at a later line


def facts_of_sheet(rng: random.Random, sheet: Picture) -> list[Fact]:
    """Return every line as it reads, in random order, or a run to the last line."""
    assert isinstance(sheet, Sheet)
    task = TASKS[sheet.task]
    if rng.random() < SHARE_READ:
        return [(f"Question: {task.question}\n", "")] + [
            (line.label, f" {task.read(line)}.") for line in rng.sample(sheet.lines, len(sheet.lines))
        ]
    first = 0 if rng.random() < SHARE_WHOLE else rng.randrange(len(sheet.lines))
    lines = sheet.lines[first:]
    before, *after = [task.start, *sheet.states()][first:]
    claims = [[words_of(_claim(rng, state)) for state in after] for _ in range(2)]
    one, two = (", ".join(f"{line.label} {claim}" for line, claim in zip(lines, of, strict=True)) for of in claims)
    start = "" if first == 0 else f"{words_of(before)}."
    facts: list[Fact] = [(f"Question: {task.question}\nResponse 1: {one}.\nResponse 2: {two}.\n{start}", "")]
    for line, state, *both in zip(lines, after, *claims, strict=True):
        text = line_text(task.read(line), line, before, state, (both[0], both[1]))
        facts.append((line.label, text.removeprefix(line.label)))
        before = state
    return facts


def _claim(rng: random.Random, state: State) -> State:
    if rng.random() < 0.5:
        return state
    place = rng.randrange(len(state))
    other = int(choose_other(rng, [str(d) for d in range(10)], str(state[place])))
    return (*state[:place], other, *state[place + 1 :])
