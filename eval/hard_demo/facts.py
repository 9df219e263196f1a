"""Short facts about grids and rows of digits, in the words that grounded judgments of them use."""

from __future__ import annotations

import random

from eval.hard_demo.grid_tasks import (
    MAX_LISTED,
    listed,
    many,
    number_in_line,
    other_value,
    path_from,
    paths,
    reference,
    sides,
    subject_of,
)
from eval.hard_demo.grids import GRID_PLACES, LINES, OPTIONS, SIDE, Grid, Item
from eval.hard_demo.row_tasks import DIGIT_PLACES, largest, words_of_digits
from eval.hard_demo.rows import DigitRow
from rewardlab.demo.facts import Fact, fact_with_checks
from rewardlab.demo.tasks import NUMBERS, Picture, choose_other, word_by_word

GRID_KINDS = {"at": 2, "attribute": 2, "where": 4, "exists": 4, "like": 2, "claims": 2, "relation": 1, "more": 2, "path": 4}


def facts_of_row(rng: random.Random, row: Picture) -> list[Fact]:
    """Return the facts of one kind about a row of digits."""
    assert isinstance(row, DigitRow)
    words = [NUMBERS[digit] for digit in row.digits]
    kind = rng.choice(("number", "number", "sum", "largest"))
    if kind == "number":
        number = words_of_digits(row)
        misread = [" ".join((*words[:k], other, *words[k + 1 :])) for k in range(SIDE) for other in NUMBERS[:10]]
        return fact_with_checks(rng, "number", number, misread, word_by_word)
    named = [(f"{place}:", f" {word}.") for place, word in zip(DIGIT_PLACES, words, strict=True)]
    if kind == "sum":
        a, b = sorted(rng.sample(range(SIDE), 2))
        return [named[a], named[b], *fact_with_checks(rng, "sum", NUMBERS[row.digits[a] + row.digits[b]], NUMBERS)]
    place = largest(row)
    return named if place is None else named + fact_with_checks(rng, "largest", place, DIGIT_PLACES)


def facts_of_grid(rng: random.Random, grid: Picture) -> list[Fact]:
    """Return the facts of one kind about a grid; none if the draw came to nothing."""
    assert isinstance(grid, Grid)
    [kind] = rng.choices(tuple(GRID_KINDS), tuple(GRID_KINDS.values()))
    item = rng.choice(grid.items)
    if kind == "at":
        cell = rng.randrange(SIDE * SIDE)
        return [(f"{GRID_PLACES[cell]}:", f" {there.name if (there := grid.at(cell)) else 'none'}.")]
    if kind == "attribute":
        return _attribute(rng, grid, item)
    if kind == "where":
        return fact_with_checks(rng, reference(rng, grid, item), item.place, GRID_PLACES)
    if kind == "exists":
        return _existence(rng, grid, item)
    if kind == "claims":
        return _claims(rng, grid)
    if kind == "like":
        return _like(rng, grid, item)
    if kind == "more":
        return _more(rng, grid)
    return _relation(rng, grid) if kind == "relation" else _path(rng, grid, item)


def _attribute(rng: random.Random, grid: Grid, item: Item) -> list[Fact]:
    attribute = rng.choice(tuple(OPTIONS))
    subject = subject_of(item, attribute)
    if not grid.is_only(subject.removesuffix(" one")):
        return []
    return fact_with_checks(rng, f"{subject} {attribute}", item.attribute(attribute), OPTIONS[attribute])


def _existence(rng: random.Random, grid: Grid, item: Item) -> list[Fact]:
    """What is of one colour, and whether one named shape is among it."""
    color, key = item.color, item.phrase(("fill", "shape"))
    if rng.random() < 0.5:
        attribute = rng.choice(tuple(OPTIONS))
        variant = item.altered(attribute, other_value(rng, grid, attribute, item.attribute(attribute)))
        color, key = variant.color, variant.phrase(("fill", "shape"))
    things = [thing.phrase(("fill", "shape")) for thing in grid.with_property(color)]
    answer = "yes" if key in things else "no"
    if len(things) > MAX_LISTED:
        return []
    return [(f"{color}:", f" {listed(grid, color)}."), *fact_with_checks(rng, key, answer, ("yes", "no"))]


def _like(rng: random.Random, grid: Grid, item: Item) -> list[Fact]:
    name, number = subject_of(item, "color"), len(grid.with_property(item.color))
    if not grid.is_only(name) or number > MAX_LISTED:
        return []
    facts = [(f"{name} color:", f" {item.color}."), (f"{item.color}:", f" {listed(grid, item.color)}.")]
    return facts + fact_with_checks(rng, "number", NUMBERS[number], NUMBERS[1 : MAX_LISTED + 1])


def _claims(rng: random.Random, grid: Grid) -> list[Fact]:
    """Two claims about two places, what is there, and which claim holds in full."""
    if len(grid.items) < 2:
        return []
    items = rng.sample(grid.items, 2)
    k, attribute = rng.randrange(2), rng.choice(tuple(OPTIONS))
    false = list(items)
    false[k] = items[k].altered(attribute, choose_other(rng, OPTIONS[attribute], items[k].attribute(attribute)))
    claims = [(items, " yes, yes, correct."), (false, " yes, no, wrong." if k else " no, yes, wrong.")]
    rng.shuffle(claims)
    first, second = (" ".join(f"A {item.name} is {item.place}." for item in of) for of, _ in claims)
    one, two = items
    seen = [(f"first: {first} second: {second} {one.place}:", f" {one.name}."), (f"{two.place}:", f" {two.name}.")]
    return [*seen, ("first:", claims[0][1]), ("second:", claims[1][1])]


def _relation(rng: random.Random, grid: Grid) -> list[Fact]:
    if len(grid.items) < 2:
        return []
    a, b = rng.sample(grid.items, 2)
    names = [reference(rng, grid, item) for item in (a, b)]
    keys = rng.choice(sides(a, b))
    axis = "side" if keys[0].endswith("of") else "height"
    return [(f"{names[0]}:", f" {a.place}."), (f"{names[1]}:", f" {b.place}."), *fact_with_checks(rng, axis, keys[0], keys)]


def _more(rng: random.Random, grid: Grid) -> list[Fact]:
    lines = rng.sample(LINES[:SIDE] if rng.random() < 0.5 else LINES[SIDE:], 2)
    attribute = rng.choice(tuple(OPTIONS))
    word = rng.choice(grid.items).attribute(attribute)
    numbers = [number_in_line(grid, line, word) for line in lines]
    tally = [(f"{many(attribute, word)} {line}:", f" {NUMBERS[n]}.") for line, n in zip(lines, numbers, strict=True)]
    if numbers[0] == numbers[1]:
        return tally
    return tally + fact_with_checks(rng, "more", lines[numbers[1] > numbers[0]], lines)


def _path(rng: random.Random, grid: Grid, start: Item) -> list[Fact]:
    steps, attribute = rng.choice(paths(rng.choice((1, 2)))), rng.choice(tuple(OPTIONS))
    met = path_from(grid, start, steps)
    if met is None:
        return []
    facts = [(f"{reference(rng, grid, start)}:", f" {start.place}.")]
    facts += [(f"{step.removesuffix(' of')}:", f" {item.place}.") for step, item in zip(steps, met, strict=True)]
    return facts + fact_with_checks(rng, attribute, met[-1].attribute(attribute), OPTIONS[attribute])
