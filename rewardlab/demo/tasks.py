"""The demonstration's questions: two pictures, one question, two answers.

Answer ``i`` is true of picture ``i`` and false of the other. A fair coin then decides which picture is shown. So whatever
the texts are, truth is a coin flip to anyone who does not look: no word, length or position can carry a signal, by
construction and not by balancing afterwards.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from rewardlab.demo.pictures import (
    COLORS,
    SHAPES,
    Card,
    Scene,
    Thing,
    card_of,
    is_held_out,
    plural,
    random_card,
    random_scene,
    with_shapes,
)

# In words, up to nine and nine: the digits 1 and 2 already name the responses.
_TO_NINE = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_TO_EIGHTEEN = ("ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen")
NUMBERS = (*_TO_NINE, *_TO_EIGHTEEN)
Picture = object  # a Scene or a Card; another difficulty has pictures of its own


@dataclass(frozen=True)
class ContrastPair:
    """One question, two answers, two pictures; answer ``i`` is true of picture ``i`` and false of the other.

    ``facts[i]`` is what a careful judge reads off picture ``i`` before it compares ("" where the comparison itself names
    every fact); ``checks[i][j]`` is what it then writes of answer ``j``.
    """

    question: str
    answers: tuple[str, str]
    pictures: tuple[Picture, Picture]
    facts: tuple[str, str]
    checks: tuple[tuple[str, str], tuple[str, str]]


def choose_other(rng: random.Random, options: tuple[str, ...] | list[str], than: str) -> str:
    """Return one of the options other than ``than``."""
    return rng.choice([option for option in options if option != than])


def _contrast(
    question: str, answer: str, pictures: tuple[Picture, Picture], fact: str | tuple[str, str], keys: tuple[str, str]
) -> ContrastPair:
    """Return a pair whose answers and checks differ in one key; ``{}`` stands for it in ``answer`` and ``fact``."""
    facts = (fact, fact) if isinstance(fact, str) else fact
    return ContrastPair(
        question,
        (answer.format(keys[0]), answer.format(keys[1])),
        pictures,
        (facts[0].format(keys[0]), facts[1].format(keys[1])),
        (keys, keys),
    )


def _altered(rng: random.Random, thing: Thing) -> Thing:
    """The same thing with another colour or another shape."""
    if rng.random() < 0.5:
        return Thing(thing.cell, choose_other(rng, list(COLORS), thing.color), thing.shape)
    return Thing(thing.cell, thing.color, choose_other(rng, SHAPES, thing.shape))


def color(rng: random.Random, scene: Scene) -> ContrastPair | None:
    single = [thing for thing in scene.things if scene.num_shape(thing.shape) == 1]
    if not single:
        return None
    thing = rng.choice(single)
    variant = Thing(thing.cell, choose_other(rng, list(COLORS), thing.color), thing.shape)
    pictures, keys, shape = (scene, scene.replace(thing, variant)), (thing.color, variant.color), thing.shape
    return _contrast(f"What color is the {shape}?", f"The {shape} is {{}}.", pictures, f"{shape}: {{}}.", keys)


def shape(rng: random.Random, scene: Scene) -> ContrastPair | None:
    single = [thing for thing in scene.things if scene.num_color(thing.color) == 1]
    if not single:
        return None
    thing = rng.choice(single)
    variant = Thing(thing.cell, thing.color, choose_other(rng, SHAPES, thing.shape))
    pictures, keys, color = (scene, scene.replace(thing, variant)), (thing.shape, variant.shape), thing.color
    return _contrast(f"What shape is {color}?", f"The {{}} is {color}.", pictures, f"{color}: {{}}.", keys)


def where(rng: random.Random, scene: Scene) -> ContrastPair | None:
    thing = rng.choice(scene.things)
    cell = rng.choice([c for c in range(4) if c != thing.cell])
    moved = Thing(cell, thing.color, thing.shape)
    rest = [Thing(thing.cell, t.color, t.shape) if t.cell == cell else t for t in scene.things if t != thing]
    pictures, keys = (scene, Scene.of([*rest, moved])), (thing.place, moved.place)
    return _contrast(f"Where is the {thing.name}?", "It is {}.", pictures, f"{thing.name}: {{}}.", keys)


def looked_up(scene: Scene, color: str, shape: str) -> tuple[str, str]:
    """The shapes of one colour in the scene, and whether ``shape`` is among them: "star circle" and "yes"."""
    shapes = [thing.shape for thing in scene.things if thing.color == color]
    return " ".join(shapes) or "none", "yes" if shape in shapes else "no"


def _looked_up(scene: Scene, name: str) -> str:
    color, shape = name.split()
    shapes, answer = looked_up(scene, color, shape)
    return f"{color}: {shapes}, {shape} {answer}"


def exists(rng: random.Random, scene: Scene) -> ContrastPair | None:
    thing = rng.choice(scene.things)
    variant = _altered(rng, thing)
    if variant.name in scene.names():
        return None
    pictures, keys = (scene, scene.replace(thing, variant)), ("yes", "no")
    return ContrastPair(
        f"Is there a {thing.name}?",
        ("Yes, there is.", "No, there is not."),
        pictures,
        (f"{_looked_up(pictures[0], thing.name)}.", f"{_looked_up(pictures[1], thing.name)}."),
        (keys, keys),
    )


def describe(rng: random.Random, scene: Scene) -> ContrastPair | None:
    thing, companion = rng.sample(scene.things, 2)
    variant = _altered(rng, thing)
    if variant.name in scene.names():
        return None
    slots = [(thing.name, variant.name), (companion.name, companion.name)]
    rng.shuffle(slots)
    first, second = zip(*slots, strict=True)

    def check(picture: Scene) -> tuple[str, str]:
        return (", ".join(_looked_up(picture, n) for n in first), ", ".join(_looked_up(picture, n) for n in second))

    pictures = (scene, scene.replace(thing, variant))
    return ContrastPair(
        "What is in the image?",
        (f"A {first[0]} and a {first[1]}.", f"A {second[0]} and a {second[1]}."),
        pictures,
        ("", ""),
        (check(pictures[0]), check(pictures[1])),
    )


def count(rng: random.Random, scene: Scene) -> ContrastPair | None:
    thing = rng.choice(scene.things)
    variant = Thing(thing.cell, thing.color, choose_other(rng, SHAPES, thing.shape))
    if variant.name in scene.names():
        return None
    pictures, word = (scene, scene.replace(thing, variant)), plural(thing.shape)
    keys = (NUMBERS[pictures[0].num_shape(thing.shape)], NUMBERS[pictures[1].num_shape(thing.shape)])
    return _contrast(f"How many {word} are there?", "There are {}.", pictures, f"{word}: {{}}.", keys)


def relations(a: Thing, b: Thing) -> list[tuple[str, str]]:
    """(holds, its opposite) for each axis on which ``a`` and ``b`` differ."""
    (row_a, col_a), (row_b, col_b) = divmod(a.cell, 2), divmod(b.cell, 2)
    holding = []
    if col_a != col_b:
        holding.append(("left of", "right of") if col_a < col_b else ("right of", "left of"))
    if row_a != row_b:
        holding.append(("above", "below") if row_a < row_b else ("below", "above"))
    return holding


def relation(rng: random.Random, scene: Scene) -> ContrastPair | None:
    a, b = rng.sample(scene.things, 2)
    keys = rng.choice(relations(a, b))
    first, second = keys if rng.random() < 0.5 else keys[::-1]
    axis = "side" if keys[0].endswith("of") else "height"
    moved_a, moved_b = Thing(b.cell, a.color, a.shape), Thing(a.cell, b.color, b.shape)
    rest = [thing for thing in scene.things if thing not in (a, b)]
    facts = [f"{x.name}: {x.place}. {y.name}: {y.place}. {axis}: {{}}." for x, y in ((a, b), (moved_a, moved_b))]
    question = f"Is the {a.name} {first} or {second} the {b.name}?"
    return _contrast(question, "It is {} it.", (scene, Scene.of([*rest, moved_a, moved_b])), (facts[0], facts[1]), keys)


def _exchange_shapes(scene: Scene, a: str, b: str) -> Scene:
    swap = {a: b, b: a}
    return Scene.of([Thing(t.cell, t.color, swap.get(t.shape, t.shape)) for t in scene.things])


def most(rng: random.Random, scene: Scene) -> ContrastPair | None:
    pool = rng.sample(SHAPES, 2)
    redrawn = with_shapes(rng, scene, pool)
    if redrawn is None:
        return None
    scene, counts = redrawn, {s: redrawn.num_shape(s) for s in pool}
    if counts[pool[0]] == counts[pool[1]] or min(counts.values()) == 0:
        return None
    winner, loser = sorted(pool, key=counts.__getitem__, reverse=True)
    pictures, keys = (scene, _exchange_shapes(scene, winner, loser)), (plural(winner), plural(loser))
    a, b = pool
    tallies = [" ".join(f"{plural(s)}: {NUMBERS[p.num_shape(s)]}." for s in pool) for p in pictures]
    question = f"Are there more {plural(a)} or {plural(b)}?"
    facts = (f"{tallies[0]} more: {{}}.", f"{tallies[1]} more: {{}}.")
    return _contrast(question, "There are more {}.", pictures, facts, keys)


def _other_digit(rng: random.Random, card: Card, held_out: bool) -> Card:
    """Return the card with one of its two digits (and the scan of it) replaced."""
    place = rng.randrange(2)
    new = list(card.digits)
    new[place] = rng.choice([d for d in range(10) if d != card.digits[place]])
    fresh = card_of(rng, (new[0], new[1]), held_out=held_out)
    scans = (fresh.scans[0], card.scans[1]) if place == 0 else (card.scans[0], fresh.scans[1])
    return Card(fresh.digits, scans, card.row)


def in_words(card: Card) -> str:
    """Return the number on a card, read digit by digit."""
    return " ".join(NUMBERS[digit] for digit in card.digits)


def word_by_word(claim: str, truth: str) -> str:
    """Return each word of a claimed number and whether it is the true one: "five yes, six no"."""
    return ", ".join(f"{a} {'yes' if a == b else 'no'}" for a, b in zip(claim.split(), truth.split(), strict=True))


def read_number(rng: random.Random, card: Card, held_out: bool) -> ContrastPair | None:
    variant = _other_digit(rng, card, held_out)
    keys = (in_words(card), in_words(variant))
    return ContrastPair(
        "Which number is written?",
        (f"It is {keys[0]}.", f"It is {keys[1]}."),
        (card, variant),
        (f"number: {keys[0]}.", f"number: {keys[1]}."),
        (
            (word_by_word(keys[0], keys[0]), word_by_word(keys[1], keys[0])),
            (word_by_word(keys[0], keys[1]), word_by_word(keys[1], keys[1])),
        ),
    )


def _both(card: Card) -> str:
    return f"left: {NUMBERS[card.digits[0]]}. right: {NUMBERS[card.digits[1]]}."


def add(rng: random.Random, card: Card, held_out: bool) -> ContrastPair | None:
    variant = _other_digit(rng, card, held_out)
    keys = (NUMBERS[card.total], NUMBERS[variant.total])
    facts = (f"{_both(card)} sum: {{}}.", f"{_both(variant)} sum: {{}}.")
    return _contrast("What is the sum of the digits?", "It is {}.", (card, variant), facts, keys)


def larger(rng: random.Random, card: Card, held_out: bool) -> ContrastPair | None:
    if card.digits[0] == card.digits[1]:
        return None
    variant = card.swapped()
    keys = ("left", "right") if card.digits[0] > card.digits[1] else ("right", "left")
    facts = (f"{_both(card)} larger: {{}}.", f"{_both(variant)} larger: {{}}.")
    return _contrast("Which digit is larger?", "The {} one.", (card, variant), facts, keys)


SceneTask = Callable[[random.Random, Scene], ContrastPair | None]
DigitTask = Callable[[random.Random, Card, bool], ContrastPair | None]

# name -> (category, the levels it is made at, the task). Level n draws n + 1 things.
SCENE_TASKS: dict[str, tuple[str, tuple[int, ...], SceneTask]] = {
    "color": ("general", (1, 2, 3), color),
    "shape": ("general", (1, 2, 3), shape),
    "where": ("general", (1, 2, 3), where),
    "exists": ("hallucination", (1, 2, 3), exists),
    "describe": ("hallucination", (1, 2, 3), describe),
    "count": ("reasoning", (1, 2, 3), count),
    "relation": ("reasoning", (1, 2, 3), relation),
    "most": ("reasoning", (2, 3), most),
}
# name -> (category, its level, the task)
DIGIT_TASKS: dict[str, tuple[str, int, DigitTask]] = {
    "read": ("general", 1, read_number),
    "larger": ("reasoning", 2, larger),
    "sum": ("reasoning", 3, add),
}


def draw_scene_contrast(rng: random.Random, task: str, level: int, *, held_out: bool) -> ContrastPair:
    """Return a contrast pair of one scene task at ``level`` 1..3; both scenes belong to the requested split."""
    while True:
        scene = random_scene(rng, level + 1)
        contrast = SCENE_TASKS[task][2](rng, scene) if is_held_out(scene) == held_out else None
        if contrast is not None and all(is_held_out(p) == held_out for p in contrast.pictures if isinstance(p, Scene)):
            return contrast


def draw_digit_contrast(rng: random.Random, task: str, *, held_out: bool) -> ContrastPair:
    """Return a contrast pair of one digit task, both cards from scans of one split."""
    while True:
        contrast = DIGIT_TASKS[task][2](rng, random_card(rng, held_out=held_out), held_out)
        if contrast is not None:
            return contrast
