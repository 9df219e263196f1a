"""The long demonstration: `python -m eval.long_demo.build --out OUT` makes its pairs and its base model."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from PIL import Image

from eval.hard_demo.build import build_by_command
from eval.long_demo.facts import facts_of_sheet
from eval.long_demo.judgments import Teacher, short_judgment
from eval.long_demo.sheets import ERRORS, LABELS, TASKS, Sheet, random_sheet, render_sheet, with_error
from rewardlab.demo.build import DemoConfig
from rewardlab.demo.judgments import Truth
from rewardlab.demo.pairs import DemoDifficulty, Drawing
from rewardlab.demo.tasks import NUMBERS, ContrastPair, Picture

FOLDER = Path(__file__).parent
LINES_OF_LEVEL = {1: range(5, 9), 2: range(9, 13), 3: range(13, 17)}
TASK_NAMES = tuple(TASKS)
VALIDATION = "validation"
SPARSE = (2, 4, 8, 12, 16, 16)  # lines of a base model's sheets, anywhere: each label is learnt from easy sheets too
SEEN_TASKS = (*TASK_NAMES, "route", "program")  # the harder arithmetic is seen more


def draw_pair(rng: random.Random, split: str) -> Drawing:
    """Return two sheets of one task that differ in a digit, or in two whose effects cancel, and both solutions."""
    held_out = split != "train"
    task, error, level = rng.choice(TASK_NAMES), rng.choice(ERRORS), rng.choice(list(LINES_OF_LEVEL))
    while True:
        sheet = random_sheet(rng, task, range(rng.choice(LINES_OF_LEVEL[level])), held_out=held_out)
        if (variant := with_error(rng, sheet, error, held_out=held_out)) is not None:
            break
    sheets = (sheet, variant)
    contrast = ContrastPair(
        TASKS[task].question,
        (sheet.solution(), variant.solution()),
        sheets,
        (sheet.text, variant.text),
        (("", ""), ("", "")),
    )
    return Drawing(contrast, error, task, TASKS[task].category, level)


def _render(picture: Picture, rng: random.Random) -> Image.Image:
    assert isinstance(picture, Sheet)
    return render_sheet(picture, rng)


def _view(rng: random.Random, share_digits: float) -> Picture:
    task, num_lines = rng.choice(SEEN_TASKS), rng.choice(SPARSE)
    return random_sheet(rng, task, sorted(rng.sample(range(len(LABELS)), num_lines)), held_out=False)


def _words(picture: Picture) -> list[list[str]]:
    """Return the digit, the label and the sign of each cell."""
    assert isinstance(picture, Sheet)
    words: list[list[str]] = [[] for _ in LABELS]
    for line in picture.lines:
        words[line.cell] = [NUMBERS[line.digit], line.label, *filter(None, [line.sign])]
    return words


def _judgments(rng: random.Random, truth: Truth, responses: tuple[str, str]) -> list[str]:
    return [*(Teacher().judge(truth, responses, rng) for _ in range(3)), short_judgment(truth, responses)]


LONG = DemoDifficulty(draw_pair, _render, _view, facts_of_sheet, lambda seed, split: f"long {seed} {split}", _judgments, _words)


@dataclass(frozen=True)
class LongConfig(DemoConfig):
    """The demonstration's sizes; validation pairs are for choosing settings."""

    difficulty: ClassVar[DemoDifficulty] = LONG
    num_validation: int = 0

    @property
    def num_of_split(self) -> dict[str, int]:
        return {**super().num_of_split, VALIDATION: self.num_validation}


if __name__ == "__main__":
    build_by_command(LongConfig, FOLDER, __doc__)
