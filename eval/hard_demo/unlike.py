"""Pairs unlike those that anything trains on, in words that the tokenizer has: how far does a judge carry?

Each is a pair about a held-out grid with one thing changed, which its category names:

- ``unlike_rendering``: other paints of the same colours, a dark striped background, shapes that are tilted and smaller;
- ``unlike_wording``: the same question and answers in other words;
- ``unlike_shapes``: hearts, hexagons, arrows and houses, asked for by place, colour, fill and number, never by name;
- ``unlike_all``: the three together.
"""

from __future__ import annotations

import math
import random
import re
from dataclasses import replace

from PIL import Image, ImageChops, ImageDraw, ImageFilter

from eval.hard_demo.grid_tasks import GRID_TASKS, draw_grid_contrast
from eval.hard_demo.grids import SIDE, Grid, Split, UnlikeGrid, paint_of, render_grid
from rewardlab.demo.pairs import Drawing
from rewardlab.demo.pictures import CELL_PX, SHAPES, draw_shape, plural

CHANGES = ("unlike_rendering", "unlike_wording", "unlike_shapes", "unlike_all")
WITHOUT_SHAPES = ("next", "path", "more")  # tasks whose answer can be had without the name of a shape
PAINTS = {
    "red": (255, 110, 110),
    "green": (150, 230, 90),
    "blue": (110, 150, 255),
    "yellow": (255, 245, 150),
    "purple": (205, 120, 235),
    "cyan": (140, 250, 240),
}
ZOOM = 4  # shapes are drawn larger and tilted, then made small


def _strange_outline(shape: str, x: float, y: float, r: float) -> list[tuple[float, float]]:
    """Return the outline of the shape that stands for a known one: a heart, a hexagon, an arrow or a house."""
    turns = [2 * math.pi * k / 24 for k in range(24)]
    kind = SHAPES.index(shape) % 4
    if kind == 0:  # a heart
        points = [
            (math.sin(t) ** 3, -(13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t)) / 16)
            for t in turns
        ]
    elif kind == 1:  # a hexagon
        points = [(math.cos(t), math.sin(t)) for t in turns[::4]]
    elif kind == 2:  # an arrow
        points = [(-1, -0.4), (0, -0.4), (0, -0.95), (1, 0), (0, 0.95), (0, 0.4), (-1, 0.4)]
    else:  # a house
        points = [(0, -1), (0.9, -0.1), (0.9, 0.9), (-0.9, 0.9), (-0.9, -0.1)]
    return [(x + r * a, y + r * b) for a, b in points]


def _stamp(shape: str, r: float, angle: float, *, hollow: bool, strange: bool) -> Image.Image:
    """Return a mask of one cell with the shape in its middle."""
    side = CELL_PX * ZOOM
    mask = Image.new("L", (side, side), 0)
    draw, middle, size = ImageDraw.Draw(mask), side / 2, r * ZOOM
    if strange:
        draw.polygon(_strange_outline(shape, middle, middle, size), fill=255)
    else:
        draw_shape(draw, shape, middle, middle, size, (255,))
    if hollow:
        mask = ImageChops.subtract(mask, mask.filter(ImageFilter.MinFilter(3 * ZOOM + 1)))  # an edge of 1.5 pixels stays
    return mask.rotate(angle, Image.Resampling.BICUBIC).resize((CELL_PX, CELL_PX), Image.Resampling.LANCZOS)


def _striped(rng: random.Random) -> Image.Image:
    """Return a dark card with stripes."""
    side = SIDE * CELL_PX
    dark = tuple(rng.randint(20, 50) for _ in range(3))
    image = Image.new("RGB", (side, side), dark)
    draw, period, slant = ImageDraw.Draw(image), rng.randint(6, 10), rng.choice((-side, 0, side))
    for start in range(-side, 2 * side, period):
        draw.line([(start, 0), (start + slant, side)], fill=tuple(v + 25 for v in dark), width=2)
    return image


def render_unlike(picture: UnlikeGrid, rng: random.Random) -> Image.Image:
    """Draw the grid with its changes; what is of known shape and style is drawn as ever."""
    known = Grid(tuple(item for item in picture.grid.items if not picture.restyled and item.cell not in picture.strange))
    image = _striped(rng) if picture.restyled else render_grid(known, rng)
    for item in picture.grid.items:
        if item in known.items:
            continue
        row, column = divmod(item.cell, SIDE)
        r = rng.uniform(7, 9) if picture.restyled else rng.uniform(9, 11)
        angle = rng.choice((-1, 1)) * rng.uniform(5, 12) if picture.restyled else 0.0
        mask = _stamp(item.shape, r, angle, hollow=item.fill == "hollow", strange=item.cell in picture.strange)
        paint = PAINTS[item.color] if picture.restyled else paint_of(item.color, rng)
        at = (column * CELL_PX + rng.randint(-1, 1), row * CELL_PX + rng.randint(-1, 1))
        image.paste(paint, at, mask=mask)
    return image


# What a question and its answers become, in words that occur in others; the first line that fits is taken.
QUESTIONS = (
    (r"What (\w+) is (.+)\?", r"The \1 of \2 is what?"),
    (r"Is (.+) solid or hollow\?", r"Solid or hollow, what is \1?"),
    (r"Where is (.+)\?", r"In the image, where is \1?"),
    (r"Is there a (.+)\?", r"Is a \1 in the image?"),
    (r"What is in the image\?", r"What is there?"),
    (r"Is (.+) (left of or right of|right of or left of|above or below|below or above) (.+)\?", r"Where is \1: \2 \3?"),
    (r"How many shapes have the color of (.+)\?", r"What is the number of shapes that have the color of \1?"),
    (r"Are there more (.+) in the (.+) or in the (.+)\?", r"Where are there more \1, in the \2 or the \3?"),
)
ANSWERS = (
    (r"It is (.+) it", r"\1 it"),
    (r"It is (.+)", r"There it is \1"),
    (r"Yes, there is", r"Yes, it is"),
    (r"No, there is not", r"No, it is not"),
    (r"A (.+?) is (.+?)\. A (.+?) is (.+)", r"In the \2 is a \1. In the \4 is a \3"),
    (r"There are (.+)", r"The number is \1"),
    (r"In the (.+)", r"There are more in the \1"),
)


def reworded(text: str, rules: tuple[tuple[str, str], ...]) -> str:
    """Return a text by the first rule that fits the whole of it."""
    return next(re.sub(pattern, form, text) for pattern, form in rules if re.fullmatch(pattern, text))


def _strange_cells(question: str, grid: Grid) -> frozenset[int]:
    """Return the cells of all items whose shape the question does not name."""
    named = {shape for shape in SHAPES if re.search(rf"\b({shape}|{plural(shape)})\b", question)}
    return frozenset(item.cell for item in grid.items if item.shape not in named)


def draw_unlike(rng: random.Random) -> Drawing:
    """Return a contrast pair about held-out grids with one of :data:`CHANGES`."""
    change = rng.choice(CHANGES)
    restyled, worded, strange = (change in (name, "unlike_all") for name in CHANGES[:3])
    while True:
        task = rng.choice(WITHOUT_SHAPES if strange else tuple(GRID_TASKS))
        level = rng.choice(GRID_TASKS[task][1])
        contrast = draw_grid_contrast(rng, task, level, Split.TEST)
        grids = [picture for picture in contrast.pictures if isinstance(picture, Grid)]
        cells = _strange_cells(contrast.question, grids[0]) if strange else frozenset()
        altered = {item.cell for a, b in (grids, grids[::-1]) for item in a.items if item not in b.items}
        asks_shape = strange and any(f" {shape}" in contrast.answers[0] for shape in SHAPES)
        if not strange or (altered & cells and not asks_shape):
            break
    pictures = tuple(UnlikeGrid(grid, restyled, cells) for grid in grids)
    if strange and task == "more":  # its pictures exchange two rows: what is strange is what the question does not name
        pictures = tuple(replace(p, strange=_strange_cells(contrast.question, p.grid)) for p in pictures)
    if worded:
        question = reworded(contrast.question, QUESTIONS)
        answers = [f"{reworded(answer.removesuffix('.'), ANSWERS)}." for answer in contrast.answers]
        contrast = replace(contrast, question=question, answers=(answers[0], answers[1]))
    return Drawing(replace(contrast, pictures=(pictures[0], pictures[1])), "scenes", task, change, level)
