"""Facts about sheets, in the words of judgments: what each line says, and runs from some state on with two claims to check."""

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
        return [(line.label, f" {task.read(line)}.") for line in rng.sample(sheet.lines, len(sheet.lines))]
    first = 0 if rng.random() < SHARE_WHOLE else rng.randrange(len(sheet.lines))
    lines = sheet.lines[first:]
    before, *after = [task.start, *sheet.states()][first:]
    claims = [[words_of(_claim(rng, state)) for state in after] for _ in range(2)]
    solutions = [", ".join(f"{line.label} {claim}" for line, claim in zip(lines, of, strict=True)) for of in claims]
    facts: list[Fact] = [(f"Response 1: {solutions[0]}. Response 2: {solutions[1]}. {words_of(before)}.", "")]
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
