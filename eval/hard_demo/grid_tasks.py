"""Questions about grids. The wrong answer names what is in the picture too; what is asked for shares attributes with others."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise, product

from eval.hard_demo.grids import (
    LINES,
    OPTIONS,
    SIDE,
    STEPS,
    Grid,
    Item,
    Split,
    cells_of_line,
    neighbor,
    random_grid,
    split_of_key,
)
from rewardlab.demo.pictures import plural
from rewardlab.demo.tasks import NUMBERS, ContrastPair, choose_other

ITEMS_OF_LEVEL = {1: 4, 2: 5, 3: 7}
MAX_LISTED = 4  # items of one colour that a judgment lists
GridTask = Callable[[random.Random, Grid], ContrastPair | None]
REFERENCES = (("fill", "shape"), ("color", "shape"), ("fill", "color", "shape"))


def other_value(rng: random.Random, grid: Grid, attribute: str, value: str) -> str:
    """Return another value of an attribute: one that the grid shows, if it shows another."""
    seen = sorted({item.attribute(attribute) for item in grid.items} - {value})
    return rng.choice(seen) if seen else choose_other(rng, OPTIONS[attribute], value)


def _altered(rng: random.Random, grid: Grid, item: Item) -> Item:
    attribute = rng.choice(tuple(OPTIONS))
    return item.altered(attribute, other_value(rng, grid, attribute, item.attribute(attribute)))


def swapped(grid: Grid, a: Item, b: Item) -> Grid:
    """Return the grid with two items in each other's cells."""
    rest = [item for item in grid.items if item not in (a, b)]
    return Grid.of([*rest, Item(b.cell, a.fill, a.color, a.shape), Item(a.cell, b.fill, b.color, b.shape)])


def reference(rng: random.Random, grid: Grid, item: Item) -> str:
    """Return two or three words for an item that fit no other: "hollow star", "red star" or its name."""
    return rng.choice([words for options in REFERENCES if grid.is_only(words := item.phrase(options))])


def subject_of(item: Item, attribute: str) -> str:
    """Return an item without one attribute: "hollow star", "solid red one"."""
    phrase = item.phrase(name for name in OPTIONS if name != attribute)
    return f"{phrase} one" if attribute == "shape" else phrase


def says(attribute: str, value: str) -> str:
    """Return the answer that an item has a value."""
    return f"It is a {value}." if attribute == "shape" else f"It is {value}."


def asks(attribute: str, subject: str) -> str:
    """Return the question for an attribute of a subject."""
    return f"Is {subject} solid or hollow?" if attribute == "fill" else f"What {attribute} is {subject}?"


def _of_keys(
    question: str, answers: tuple[str, str], pictures: tuple[Grid, Grid], facts: list[str], keys: tuple[str, str]
) -> ContrastPair:
    """Return a contrast pair whose checks repeat the key of each answer."""
    return ContrastPair(question, answers, pictures, (facts[0], facts[1]), (keys, keys))


def attribute_of(rng: random.Random, grid: Grid) -> ContrastPair | None:
    """One attribute of an item that two others name: "What color is the hollow star?"."""
    item, attribute = rng.choice(grid.items), rng.choice(tuple(OPTIONS))
    subject = subject_of(item, attribute)
    if not grid.is_only(subject.removesuffix(" one")):
        return None
    variant = item.altered(attribute, other_value(rng, grid, attribute, item.attribute(attribute)))
    keys = (item.attribute(attribute), variant.attribute(attribute))
    return _of_keys(
        asks(attribute, f"the {subject}"),
        (says(attribute, keys[0]), says(attribute, keys[1])),
        (grid, grid.replace(item, variant)),
        [f"{subject} {attribute}: {key}." for key in keys],
        keys,
    )


def where_in_grid(rng: random.Random, grid: Grid) -> ContrastPair | None:
    """The place of an item; in the other picture it has changed places with another."""
    item, other = rng.sample(grid.items, 2)
    keys = (item.place, other.place)
    return _of_keys(
        f"Where is the {item.name}?",
        (f"It is {keys[0]}.", f"It is {keys[1]}."),
        (grid, swapped(grid, item, other)),
        [f"{item.name}: {key}." for key in keys],
        keys,
    )


def listed(grid: Grid, color: str) -> str:
    """Return what is of one colour: "hollow star, solid circle", or "none"."""
    return ", ".join(item.phrase(("fill", "shape")) for item in grid.with_property(color)) or "none"


def exists_in_grid(rng: random.Random, grid: Grid) -> ContrastPair | None:
    """Whether there is an item; in the other picture it differs in one attribute."""
    item = rng.choice(grid.items)
    pictures = (grid, grid.replace(item, _altered(rng, grid, item)))
    if pictures[1].has_twins or max(len(p.with_property(item.color)) for p in pictures) > MAX_LISTED:
        return None
    keys, key = ("yes", "no"), item.phrase(("fill", "shape"))
    return _of_keys(
        f"Is there a {item.name}?",
        ("Yes, there is.", "No, there is not."),
        pictures,
        [f"{item.color}: {listed(p, item.color)}. {key}: {k}." for p, k in zip(pictures, keys, strict=True)],
        keys,
    )


def describe_two(rng: random.Random, grid: Grid) -> ContrastPair | None:
    """Two sentences about two items, one detail of them wrong."""
    item, companion = rng.sample(grid.items, 2)
    variant = _altered(rng, grid, item)
    pictures = (grid, grid.replace(item, variant))
    if pictures[1].has_twins:
        return None
    first = rng.random() < 0.5

    def in_order(one: str, other: str, between: str) -> str:
        return between.join((one, other) if first else (other, one))

    def sentence(of: Item) -> str:
        return f"A {of.name} is {of.place}."

    return ContrastPair(
        "What is in the image?",
        (in_order(sentence(item), sentence(companion), " "), in_order(sentence(variant), sentence(companion), " ")),
        pictures,
        (
            in_order(f"{item.place}: {item.name}.", f"{companion.place}: {companion.name}.", " "),
            in_order(f"{variant.place}: {variant.name}.", f"{companion.place}: {companion.name}.", " "),
        ),
        (("yes, yes", in_order("no", "yes", ", ")), (in_order("no", "yes", ", "), "yes, yes")),
    )


def sides(a: Item, b: Item) -> list[tuple[str, str]]:
    """(holds, its opposite) for each axis on which ``a`` and ``b`` differ."""
    (row_a, col_a), (row_b, col_b) = divmod(a.cell, SIDE), divmod(b.cell, SIDE)
    axes = ((col_a - col_b, ("left of", "right of")), (row_a - row_b, ("above", "below")))
    return [words if difference < 0 else words[::-1] for difference, words in axes if difference]


def relation_in_grid(rng: random.Random, grid: Grid) -> ContrastPair | None:
    """On which side of an item another is; in the other picture both have changed places."""
    a, b = rng.sample(grid.items, 2)
    names = [reference(rng, grid, item) for item in (a, b)]
    keys = rng.choice(sides(a, b))
    first, second = keys if rng.random() < 0.5 else keys[::-1]
    axis = "side" if keys[0].endswith("of") else "height"
    places = ((a.place, b.place), (b.place, a.place))
    return _of_keys(
        f"Is the {names[0]} {first} or {second} the {names[1]}?",
        (f"It is {keys[0]} it.", f"It is {keys[1]} it."),
        (grid, swapped(grid, a, b)),
        [f"{names[0]}: {p}. {names[1]}: {q}. {axis}: {key}." for (p, q), key in zip(places, keys, strict=True)],
        keys,
    )


def count_like(rng: random.Random, grid: Grid) -> ContrastPair | None:
    """How many items have the colour of one: find it, find those of its colour, count."""
    item, other = rng.sample(grid.items, 2)
    name = subject_of(item, "color")
    color = other_value(rng, grid, "color", item.color) if other.color == item.color else item.color
    pictures = (grid, grid.replace(other, other.altered("color", color)))
    numbers = [len(p.with_property(item.color)) for p in pictures]
    if pictures[1].has_twins or not all(p.is_only(name) for p in pictures) or max(numbers) > MAX_LISTED:
        return None
    keys = (NUMBERS[numbers[0]], NUMBERS[numbers[1]])
    facts = [f"{name} color: {item.color}. {item.color}: {listed(p, item.color)}." for p in pictures]
    return _of_keys(
        f"How many shapes have the color of the {name}?",
        (f"There are {keys[0]}.", f"There are {keys[1]}."),
        pictures,
        [f"{fact} number: {key}." for fact, key in zip(facts, keys, strict=True)],
        keys,
    )


def number_in_line(grid: Grid, line: str, word: str) -> int:
    """Return how many items of a row or column have a fill, a colour or a shape."""
    return sum(item.cell in cells_of_line(line) for item in grid.with_property(word))


def many(attribute: str, word: str) -> str:
    """Return the plural of items with a property: "stars", "red shapes"."""
    return plural(word) if attribute == "shape" else f"{word} shapes"


def tally_lines(grid: Grid, subject: str, word: str, lines: tuple[str, str]) -> str:
    """Return the numbers of two rows or columns: "stars top row: two. stars bottom row: one."."""
    return " ".join(f"{subject} {line}: {NUMBERS[number_in_line(grid, line, word)]}." for line in lines)


def more_in_line(rng: random.Random, grid: Grid) -> ContrastPair | None:
    """In which of two rows or columns there are more of a kind; in the other picture both have changed places."""
    one, two = rng.sample(LINES[:SIDE] if rng.random() < 0.5 else LINES[SIDE:], 2)
    attribute = rng.choice(tuple(OPTIONS))
    word = rng.choice(grid.items).attribute(attribute)
    numbers = [number_in_line(grid, line, word) for line in (one, two)]
    if numbers[0] == numbers[1]:
        return None
    moves = dict(zip((*cells_of_line(one), *cells_of_line(two)), (*cells_of_line(two), *cells_of_line(one)), strict=True))
    pictures = (grid, Grid.of(Item(moves.get(i.cell, i.cell), i.fill, i.color, i.shape) for i in grid.items))
    keys, subject = (one, two) if numbers[0] > numbers[1] else (two, one), many(attribute, word)
    return _of_keys(
        f"Are there more {subject} in the {one} or in the {two}?",
        (f"In the {keys[0]}.", f"In the {keys[1]}."),
        pictures,
        [f"{tally_lines(p, subject, word, (one, two))} more: {key}." for p, key in zip(pictures, keys, strict=True)],
        keys,
    )


def path_from(grid: Grid, start: Item, steps: tuple[str, ...]) -> list[Item] | None:
    """Return the items met by going from one to its neighbours; None if a cell on the way is empty or beyond the edge."""
    items, cell = [], start.cell
    for step in steps:
        item = grid.at(neighbor(cell, step))
        if item is None:
            return None
        items.append(item)
        cell = item.cell
    return items


def walk(start: str, steps: tuple[str, ...], places: list[str], attribute: str, value: str) -> str:
    """Return the path to an item in words: "red cross: top left. below: middle left. color: blue."."""
    met = " ".join(f"{step.removesuffix(' of')}: {place}." for step, place in zip(steps, places[1:], strict=True))
    return f"{start}: {places[0]}. {met} {attribute}: {value}."


def paths(num_steps: int) -> list[tuple[str, ...]]:
    """Return the paths of a number of steps that turn at every step: no direction is gone twice, none back."""
    axis = {"left of": 0, "right of": 0, "above": 1, "below": 1}
    return [p for p in product(STEPS, repeat=num_steps) if all(axis[a] != axis[b] for a, b in pairwise(p))]


def at_end_of_path(num_steps: int) -> GridTask:
    """Return the task that asks for an attribute of what lies ``num_steps`` from an item."""

    def task(rng: random.Random, grid: Grid) -> ContrastPair | None:
        start, steps, attribute = rng.choice(grid.items), rng.choice(paths(num_steps)), rng.choice(tuple(OPTIONS))
        met = path_from(grid, start, steps)
        if met is None:
            return None
        end = met[-1]
        variant = end.altered(attribute, other_value(rng, grid, attribute, end.attribute(attribute)))
        pictures = (grid, grid.replace(end, variant))
        name = reference(rng, grid, start)
        if pictures[1].has_twins or not pictures[1].is_only(name):
            return None
        between = [f"the {item.shape} {step}" for item, step in zip(met[-2::-1], steps[-2::-1], strict=True)]
        subject = " ".join((f"the shape {steps[-1]}", *between, f"the {name}"))
        keys = (end.attribute(attribute), variant.attribute(attribute))
        places = [item.place for item in (start, *met)]
        return _of_keys(
            asks(attribute, subject),
            (says(attribute, keys[0]), says(attribute, keys[1])),
            pictures,
            [walk(name, steps, places, attribute, key) for key in keys],
            keys,
        )

    return task


# name -> (category, the levels it can be asked at, the task). Level n draws a grid of ITEMS_OF_LEVEL[n].
GRID_TASKS: dict[str, tuple[str, tuple[int, ...], GridTask]] = {
    "attribute": ("general", (1, 2, 3), attribute_of),
    "where": ("general", (1, 2, 3), where_in_grid),
    "exists": ("hallucination", (1, 2, 3), exists_in_grid),
    "describe": ("hallucination", (1, 2, 3), describe_two),
    "relation": ("reasoning", (1, 2, 3), relation_in_grid),
    "next": ("reasoning", (1, 2), at_end_of_path(1)),
    "like": ("reasoning", (2, 3), count_like),
    "more": ("reasoning", (2, 3), more_in_line),
    "path": ("reasoning", (2, 3), at_end_of_path(2)),
}


def draw_grid_contrast(rng: random.Random, task: str, level: int, split: Split) -> ContrastPair:
    """Return a contrast pair of one task about grids at ``level`` 1..3; both grids belong to the split."""
    while True:
        grid = random_grid(rng, ITEMS_OF_LEVEL[level])
        contrast = GRID_TASKS[task][2](rng, grid) if split_of_key(grid.key) is split else None
        if contrast is not None and all(split_of_key(picture.key) is split for picture in contrast.pictures):
            return contrast
