"""Drawn grids: 3x3 cells, 84x84 px, of coloured shapes that are solid or hollow, whose every fact is known.

A grid draws from few colours and shapes, so that most of its items share an attribute or two with others: no item is named
by one word. A cell is 28 px, exactly one visual token of Qwen2.5-VL.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from PIL import Image, ImageDraw

from rewardlab.demo.pictures import CELL_PX, COLORS, SHAPES, draw_shape

SIDE = 3  # cells
FILLS = ("solid", "hollow")
LINES = ("top row", "middle row", "bottom row", "left column", "center column", "right column")
GRID_PLACES = tuple(f"{row} {column}" for row in ("top", "middle", "bottom") for column in ("left", "center", "right"))
STEPS = {"left of": (0, -1), "right of": (0, 1), "above": (-1, 0), "below": (1, 0)}
OPTIONS: dict[str, tuple[str, ...]] = {"fill": FILLS, "color": tuple(COLORS), "shape": SHAPES}
POOL = (3, 4)  # colours, and shapes, of one grid


class Split(StrEnum):
    """No picture of one split is one of another's: ``VALIDATION`` is for choosing settings, ``TEST`` for reporting them.

    ``UNLIKE`` pairs differ from all others in their drawing, wording or shapes.
    """

    TRAIN = "train"
    TEST = "test"
    VALIDATION = "validation"
    UNLIKE = "unlike"


@dataclass(frozen=True, order=True)
class Item:
    """One shape in one cell; ``cell`` 0..8 counts row by row."""

    cell: int
    fill: str
    color: str
    shape: str

    @property
    def name(self) -> str:
        return f"{self.fill} {self.color} {self.shape}"

    @property
    def place(self) -> str:
        return GRID_PLACES[self.cell]

    def attribute(self, name: str) -> str:
        """Return the value of ``fill``, ``color`` or ``shape``."""
        return str(getattr(self, name))

    def phrase(self, attributes: Iterable[str]) -> str:
        """Return some of its attributes in words, in the order of the name: "hollow star"."""
        return " ".join(self.attribute(name) for name in attributes)

    def altered(self, attribute: str, value: str) -> Item:
        values = {name: self.attribute(name) for name in OPTIONS} | {attribute: value}
        return Item(self.cell, **values)


@dataclass(frozen=True)
class Grid:
    """Items in distinct cells, kept in the order of their cells."""

    items: tuple[Item, ...]

    @staticmethod
    def of(items: Iterable[Item]) -> Grid:
        return Grid(tuple(sorted(items)))

    def at(self, cell: int | None) -> Item | None:
        return next((item for item in self.items if item.cell == cell), None)

    def replace(self, old: Item, new: Item) -> Grid:
        return Grid.of(new if item == old else item for item in self.items)

    def with_property(self, word: str) -> list[Item]:
        """Return the items of a fill, a colour or a shape."""
        return [item for item in self.items if word in (item.fill, item.color, item.shape)]

    def is_only(self, phrase: str) -> bool:
        """Return whether exactly one item has all attributes of a phrase."""
        words = set(phrase.split())
        return sum(words <= {item.fill, item.color, item.shape} for item in self.items) == 1

    @property
    def has_twins(self) -> bool:
        """Whether two items are alike in every attribute."""
        return len({item.name for item in self.items}) < len(self.items)

    @property
    def key(self) -> str:
        """Identity of the grid: two grids with one key hold the same facts."""
        return ";".join(f"{item.cell},{item.name}" for item in self.items)


@dataclass(frozen=True)
class UnlikeGrid:
    """A grid that is drawn in another way: ``restyled``, or with ``strange`` shapes in some cells, or both."""

    grid: Grid
    restyled: bool = False
    strange: frozenset[int] = frozenset()

    @property
    def key(self) -> str:
        return f"{self.grid.key}|{self.restyled}|{sorted(self.strange)}"


def neighbor(cell: int, step: str) -> int | None:
    """Return the cell next to ``cell`` in a direction of :data:`STEPS`, None beyond the edge."""
    row, column = (a + b for a, b in zip(divmod(cell, SIDE), STEPS[step], strict=True))
    return row * SIDE + column if 0 <= row < SIDE and 0 <= column < SIDE else None


def cells_of_line(line: str) -> tuple[int, ...]:
    """Return the cells of one of :data:`LINES`."""
    n = LINES.index(line)
    return tuple(n * SIDE + k if n < SIDE else k * SIDE + n - SIDE for k in range(SIDE))


def split_of_key(key: str) -> Split:
    """Return the split that a picture of this identity is drawn for: an eighth each is held out for test and validation."""
    return {0: Split.TEST, 4: Split.VALIDATION}.get(zlib.crc32(key.encode()) % 8, Split.TRAIN)


def random_grid(rng: random.Random, num_items: int) -> Grid:
    """A grid of ``num_items`` (1..9) items of few colours and shapes, no two alike."""
    colors, shapes = (rng.sample(options, rng.choice(POOL)) for options in (OPTIONS["color"], SHAPES))
    cells = rng.sample(range(SIDE * SIDE), num_items)
    kinds: dict[tuple[str, str, str], None] = {}
    while len(kinds) < num_items:
        kinds[rng.choice(FILLS), rng.choice(colors), rng.choice(shapes)] = None
    return Grid.of(Item(cell, *kind) for cell, kind in zip(cells, kinds, strict=True))


def framed_card(rng: random.Random) -> tuple[Image.Image, tuple[int, ...]]:
    """Return an empty framed 84x84 px card of a light, random shade, and the shade."""
    shade = tuple(rng.randint(225, 255) for _ in range(3))
    side = SIDE * CELL_PX
    image = Image.new("RGB", (side, side), shade)
    ImageDraw.Draw(image).rectangle([0, 0, side - 1, side - 1], outline=(60, 60, 60), width=2)
    return image, shade


def paint_of(color: str, rng: random.Random) -> tuple[int, ...]:
    """Return a paint of a colour, each channel up to 18 of 255 off."""
    return tuple(min(255, max(0, v + rng.randint(-18, 18))) for v in COLORS[color])


def render_grid(grid: Grid, rng: random.Random) -> Image.Image:
    """Draw the grid; shade, size, place in the cell and colour vary with ``rng``, the facts do not."""
    image, shade = framed_card(rng)
    draw = ImageDraw.Draw(image)
    for item in grid.items:
        row, column = divmod(item.cell, SIDE)
        x = (column + 0.5) * CELL_PX + rng.uniform(-2, 2)
        y = (row + 0.5) * CELL_PX + rng.uniform(-2, 2)
        paint, r = paint_of(item.color, rng), rng.uniform(9, 11.5)
        draw_shape(draw, item.shape, x, y, r, paint)
        if item.fill == "hollow":
            down = 0.12 * r if item.shape == "triangle" else 0.0
            draw_shape(draw, item.shape, x, y + down, 0.55 * r, shade)
    return image
