"""The demonstration's questions: those about scenes, and the table of all; ``digit_tasks.py`` has those about digits."""

from __future__ import annotations

import random
from collections.abc import Callable

from rewardlab.demo import digits, scenes
from rewardlab.demo.contrast_pairs import NUMBERS, ContrastPair, choose_other
from rewardlab.demo.digit_tasks import add, larger, read_number
from rewardlab.demo.digits import Card
from rewardlab.demo.scenes import COLORS, SHAPES, Scene, Thing, plural


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
    keys = (thing.color, variant.color)
    return ContrastPair(
        f"What color is the {thing.shape}?",
        (f"The {thing.shape} is {keys[0]}.", f"The {thing.shape} is {keys[1]}."),
        (scene, scene.replace(thing, variant)),
        (f"{thing.shape}: {keys[0]}.", f"{thing.shape}: {keys[1]}."),
        (keys, keys),
    )


def shape(rng: random.Random, scene: Scene) -> ContrastPair | None:
    single = [thing for thing in scene.things if scene.num_color(thing.color) == 1]
    if not single:
        return None
    thing = rng.choice(single)
    variant = Thing(thing.cell, thing.color, choose_other(rng, SHAPES, thing.shape))
    keys = (thing.shape, variant.shape)
    return ContrastPair(
        f"What shape is {thing.color}?",
        (f"The {keys[0]} is {thing.color}.", f"The {keys[1]} is {thing.color}."),
        (scene, scene.replace(thing, variant)),
        (f"{thing.color}: {keys[0]}.", f"{thing.color}: {keys[1]}."),
        (keys, keys),
    )


def where(rng: random.Random, scene: Scene) -> ContrastPair | None:
    thing = rng.choice(scene.things)
    cell = rng.choice([c for c in range(4) if c != thing.cell])
    moved = Thing(cell, thing.color, thing.shape)
    rest = [Thing(thing.cell, t.color, t.shape) if t.cell == cell else t for t in scene.things if t != thing]
    keys = (thing.place, moved.place)
    return ContrastPair(
        f"Where is the {thing.name}?",
        (f"It is {keys[0]}.", f"It is {keys[1]}."),
        (scene, Scene.of([*rest, moved])),
        (f"{thing.name}: {keys[0]}.", f"{thing.name}: {keys[1]}."),
        (keys, keys),
    )


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
    pictures = (scene, scene.replace(thing, variant))
    keys = (NUMBERS[pictures[0].num_shape(thing.shape)], NUMBERS[pictures[1].num_shape(thing.shape)])
    return ContrastPair(
        f"How many {plural(thing.shape)} are there?",
        (f"There are {keys[0]}.", f"There are {keys[1]}."),
        pictures,
        (f"{plural(thing.shape)}: {keys[0]}.", f"{plural(thing.shape)}: {keys[1]}."),
        (keys, keys),
    )


def relations(a: Thing, b: Thing) -> list[tuple[str, str]]:
    """(holds, its opposite) for each axis on which ``a`` and ``b`` differ."""
    (row_a, col_a), (row_b, col_b) = divmod(a.cell, 2), divmod(b.cell, 2)
    holding = []
    if col_a != col_b:
        holding.append(("left of", "right of") if col_a < col_b else ("right of", "left of"))
    if row_a != row_b:
        holding.append(("above", "below") if row_a < row_b else ("below", "above"))
    return holding


def _located(a: Thing, b: Thing, axis: str, key: str) -> str:
    return f"{a.name}: {a.place}. {b.name}: {b.place}. {axis}: {key}."


def relation(rng: random.Random, scene: Scene) -> ContrastPair | None:
    a, b = rng.sample(scene.things, 2)
    keys = rng.choice(relations(a, b))
    first, second = keys if rng.random() < 0.5 else keys[::-1]
    axis = "side" if keys[0].endswith("of") else "height"
    moved_a, moved_b = Thing(b.cell, a.color, a.shape), Thing(a.cell, b.color, b.shape)
    rest = [thing for thing in scene.things if thing not in (a, b)]
    return ContrastPair(
        f"Is the {a.name} {first} or {second} the {b.name}?",
        (f"It is {keys[0]} it.", f"It is {keys[1]} it."),
        (scene, Scene.of([*rest, moved_a, moved_b])),
        (_located(a, b, axis, keys[0]), _located(moved_a, moved_b, axis, keys[1])),
        (keys, keys),
    )


def _exchange_shapes(scene: Scene, a: str, b: str) -> Scene:
    swap = {a: b, b: a}
    return Scene.of([Thing(t.cell, t.color, swap.get(t.shape, t.shape)) for t in scene.things])


def most(rng: random.Random, scene: Scene) -> ContrastPair | None:
    pool = rng.sample(SHAPES, 2)
    redrawn = scenes.with_shapes(rng, scene, pool)
    if redrawn is None:
        return None
    scene, counts = redrawn, {s: redrawn.num_shape(s) for s in pool}
    if counts[pool[0]] == counts[pool[1]] or min(counts.values()) == 0:
        return None
    winner, loser = sorted(pool, key=counts.__getitem__, reverse=True)
    pictures = (scene, _exchange_shapes(scene, winner, loser))
    a, b = pool

    def tally(picture: Scene, most_of: str) -> str:
        counts = [f"{plural(s)}: {NUMBERS[picture.num_shape(s)]}." for s in (a, b)]
        return f"{' '.join(counts)} more: {plural(most_of)}."

    keys = (plural(winner), plural(loser))
    return ContrastPair(
        f"Are there more {plural(a)} or {plural(b)}?",
        (f"There are more {keys[0]}.", f"There are more {keys[1]}."),
        pictures,
        (tally(pictures[0], winner), tally(pictures[1], loser)),
        (keys, keys),
    )


SceneTask = Callable[[random.Random, Scene], ContrastPair | None]
DigitTask = Callable[[random.Random, Card, bool], ContrastPair | None]

# name -> (category, the levels it can be asked at, the task). Level n draws n + 1 things.
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
        scene = scenes.random_scene(rng, level + 1)
        contrast = SCENE_TASKS[task][2](rng, scene) if scenes.is_held_out(scene) == held_out else None
        if contrast is not None and all(scenes.is_held_out(p) == held_out for p in contrast.pictures if isinstance(p, Scene)):
            return contrast


def draw_digit_contrast(rng: random.Random, task: str, *, held_out: bool) -> ContrastPair:
    """Return a contrast pair of one digit task, both cards from scans of one split."""
    while True:
        contrast = DIGIT_TASKS[task][2](rng, digits.random_card(rng, held_out=held_out), held_out)
        if contrast is not None:
            return contrast
