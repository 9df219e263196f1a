"""Questions about rows of three scanned digits."""

from __future__ import annotations

import random
from collections.abc import Callable

from eval.hard_demo.grids import SIDE, Split
from eval.hard_demo.rows import DigitRow, random_row, with_digit
from rewardlab.demo.tasks import NUMBERS, ContrastPair, choose_other, word_by_word

DIGIT_PLACES = ("left", "middle", "right")
RowTask = Callable[[random.Random, DigitRow, Split], ContrastPair | None]


def _other_digit(rng: random.Random, row: DigitRow, place: int, split: Split) -> DigitRow:
    return with_digit(rng, row, place, int(choose_other(rng, [str(d) for d in range(10)], str(row.digits[place]))), split)


def words_of_digits(row: DigitRow) -> str:
    """Return the number of a row, read digit by digit."""
    return " ".join(NUMBERS[digit] for digit in row.digits)


def name_digits(row: DigitRow, places: tuple[int, ...] = (0, 1, 2)) -> str:
    """Return digits with their places: "left: five. right: nine."."""
    return " ".join(f"{DIGIT_PLACES[k]}: {NUMBERS[row.digits[k]]}." for k in places)


def largest(row: DigitRow) -> str | None:
    """Return the place of the largest digit, None if two share it."""
    top = max(row.digits)
    return DIGIT_PLACES[row.digits.index(top)] if row.digits.count(top) == 1 else None


def read_three(rng: random.Random, row: DigitRow, split: Split) -> ContrastPair | None:
    """The number, one digit of it misread."""
    variant = _other_digit(rng, row, rng.randrange(SIDE), split)
    keys = (words_of_digits(row), words_of_digits(variant))
    checks = [[word_by_word(claim, truth) for claim in keys] for truth in keys]
    return ContrastPair(
        "Which number is written?",
        (f"It is {keys[0]}.", f"It is {keys[1]}."),
        (row, variant),
        (f"number: {keys[0]}.", f"number: {keys[1]}."),
        ((checks[0][0], checks[0][1]), (checks[1][0], checks[1][1])),
    )


def largest_of_three(rng: random.Random, row: DigitRow, split: Split) -> ContrastPair | None:
    """The place of the largest digit; in the other picture it has changed places with another."""
    place = largest(row)
    if place is None:
        return None
    k = DIGIT_PLACES.index(place)
    n = rng.choice([other for other in range(SIDE) if other != k])
    order = list(range(SIDE))
    order[k], order[n] = n, k
    variant = row.arranged(tuple(order))
    keys = (place, DIGIT_PLACES[n])
    return ContrastPair(
        "Which digit is the largest?",
        (f"The {keys[0]} one.", f"The {keys[1]} one."),
        (row, variant),
        (f"{name_digits(row)} largest: {keys[0]}.", f"{name_digits(variant)} largest: {keys[1]}."),
        (keys, keys),
    )


def add_two(rng: random.Random, row: DigitRow, split: Split) -> ContrastPair | None:
    """The sum of two of the digits."""
    a, b = sorted(rng.sample(range(SIDE), 2))
    variant = _other_digit(rng, row, rng.choice((a, b)), split)
    sums = [NUMBERS[picture.digits[a] + picture.digits[b]] for picture in (row, variant)]
    facts = [f"{name_digits(p, (a, b))} sum: {total}." for p, total in zip((row, variant), sums, strict=True)]
    keys = (sums[0], sums[1])
    return ContrastPair(
        f"What is the sum of the {DIGIT_PLACES[a]} and the {DIGIT_PLACES[b]} digit?",
        (f"It is {keys[0]}.", f"It is {keys[1]}."),
        (row, variant),
        (facts[0], facts[1]),
        (keys, keys),
    )


# name -> (category, its level, the task)
ROW_TASKS: dict[str, tuple[str, int, RowTask]] = {
    "read": ("general", 1, read_three),
    "largest": ("reasoning", 2, largest_of_three),
    "sum": ("reasoning", 3, add_two),
}


def draw_row_contrast(rng: random.Random, task: str, split: Split) -> ContrastPair:
    """Return a contrast pair of one digit task, both rows from scans of one split."""
    while True:
        contrast = ROW_TASKS[task][2](rng, random_row(rng, split), split)
        if contrast is not None:
            return contrast
