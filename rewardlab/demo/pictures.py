"""The demonstration's pictures, 56x56 px: drawn scenes, whose every fact is known, and cards of two scanned digits.

A scene is a 2x2 grid of coloured shapes. A cell is 28 px: with Qwen2.5-VL's patch of 14 and merge of 2, exactly one visual
token. ``digits.npz`` holds 1,797 scans of 8x8 px: the test set of Alpaydin and Kaynak, "Optical Recognition of Handwritten
Digits" (UCI Machine Learning Repository, https://doi.org/10.24432/C50P49, CC BY 4.0), with the values and in the order of
scikit-learn's ``load_digits``. No scene and no scan is used both in training and in evaluation.
"""

from __future__ import annotations

import math
import random
import zlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

COLORS = {
    "red": (220, 40, 40),
    "green": (40, 170, 60),
    "blue": (40, 80, 220),
    "yellow": (240, 210, 30),
    "purple": (150, 50, 180),
    "cyan": (40, 200, 210),
}
SHAPES = ("circle", "square", "triangle", "star", "cross", "diamond")
PLACES = ("top left", "top right", "bottom left", "bottom right")
CELL_PX = 28
HELD_OUT_EVERY = 4  # every fourth scan of a digit is held out


def plural(shape: str) -> str:
    return "crosses" if shape == "cross" else f"{shape}s"


@dataclass(frozen=True, order=True)
class Thing:
    """One shape in one cell; ``cell`` 0..3 counts row by row."""

    cell: int
    color: str
    shape: str

    @property
    def name(self) -> str:
        return f"{self.color} {self.shape}"

    @property
    def place(self) -> str:
        return PLACES[self.cell]


@dataclass(frozen=True)
class Scene:
    """Two to four things in distinct cells, kept in the order of their cells."""

    things: tuple[Thing, ...]

    @staticmethod
    def of(things: list[Thing]) -> Scene:
        return Scene(tuple(sorted(things)))

    def replace(self, old: Thing, new: Thing) -> Scene:
        return Scene.of([new if thing == old else thing for thing in self.things])

    def names(self) -> list[str]:
        return [thing.name for thing in self.things]

    def num_shape(self, shape: str) -> int:
        return sum(thing.shape == shape for thing in self.things)

    def num_color(self, color: str) -> int:
        return sum(thing.color == color for thing in self.things)

    @property
    def key(self) -> str:
        """Identity of the scene: two scenes with one key hold the same facts."""
        return ";".join(f"{thing.cell},{thing.color},{thing.shape}" for thing in self.things)


def is_held_out(scene: Scene) -> bool:
    """A quarter of all scenes, by a hash of their facts: no scene of one split can be drawn for the other."""
    return zlib.crc32(scene.key.encode()) % 4 == 0


def random_scene(rng: random.Random, num_things: int) -> Scene:
    """A scene of ``num_things`` (2..4) things, no two alike in both colour and shape."""
    cells = rng.sample(range(4), num_things)
    kinds: set[tuple[str, str]] = set()
    while len(kinds) < num_things:
        kinds.add((rng.choice(list(COLORS)), rng.choice(SHAPES)))
    ordered = sorted(kinds)
    rng.shuffle(ordered)
    return Scene.of([Thing(cell, *kind) for cell, kind in zip(cells, ordered, strict=True)])


def with_shapes(rng: random.Random, scene: Scene, pool: list[str]) -> Scene | None:
    """The scene with every shape drawn anew from ``pool``; None where two things come out alike."""
    things = [Thing(thing.cell, thing.color, rng.choice(pool)) for thing in scene.things]
    return Scene.of(things) if len({thing.name for thing in things}) == len(things) else None


def _polygon(kind: str, x: float, y: float, r: float) -> list[tuple[float, float]]:
    if kind == "triangle":
        return [(x, y - r), (x + r, y + 0.9 * r), (x - r, y + 0.9 * r)]
    if kind == "diamond":
        return [(x, y - r), (x + r, y), (x, y + r), (x - r, y)]
    radii = [r if k % 2 == 0 else 0.42 * r for k in range(10)]  # a star
    angles = [-math.pi / 2 + k * math.pi / 5 for k in range(10)]
    return [(x + q * math.cos(a), y + q * math.sin(a)) for q, a in zip(radii, angles, strict=True)]


def draw_shape(draw: ImageDraw.ImageDraw, kind: str, x: float, y: float, r: float, fill: tuple[int, ...]) -> None:
    if kind == "circle":
        draw.ellipse([x - r, y - r, x + r, y + r], fill=fill)
    elif kind == "square":
        draw.rectangle([x - 0.85 * r, y - 0.85 * r, x + 0.85 * r, y + 0.85 * r], fill=fill)
    elif kind == "cross":
        w = 0.36 * r
        draw.rectangle([x - w, y - r, x + w, y + r], fill=fill)
        draw.rectangle([x - r, y - w, x + r, y + w], fill=fill)
    else:
        draw.polygon(_polygon(kind, x, y, r), fill=fill)


def canvas(rng: random.Random) -> Image.Image:
    """An empty framed 56x56 px card of a light, random shade."""
    shade = tuple(rng.randint(225, 255) for _ in range(3))
    image = Image.new("RGB", (2 * CELL_PX, 2 * CELL_PX), shade)
    ImageDraw.Draw(image).rectangle([0, 0, 2 * CELL_PX - 1, 2 * CELL_PX - 1], outline=(60, 60, 60), width=2)
    return image


def render_scene(scene: Scene, rng: random.Random) -> Image.Image:
    """Draw the scene; shade, size, place in the cell and colour vary with ``rng``, the facts do not."""
    image = canvas(rng)
    draw = ImageDraw.Draw(image)
    for thing in scene.things:
        row, column = divmod(thing.cell, 2)
        x = (column + 0.5) * CELL_PX + rng.uniform(-2, 2)
        y = (row + 0.5) * CELL_PX + rng.uniform(-2, 2)
        fill = tuple(min(255, max(0, v + rng.randint(-18, 18))) for v in COLORS[thing.color])
        draw_shape(draw, thing.shape, x, y, rng.uniform(8, 11), fill)
    return image


@dataclass(frozen=True)
class Card:
    """Two digits side by side in one ``row`` (0 top, 1 bottom); ``scans`` are indices into the scan collection."""

    digits: tuple[int, int]
    scans: tuple[int, int]
    row: int

    @property
    def total(self) -> int:
        return sum(self.digits)

    def swapped(self) -> Card:
        return Card(self.digits[::-1], self.scans[::-1], self.row)

    @property
    def key(self) -> str:
        return f"{self.scans[0]},{self.scans[1]},{self.row}"


@lru_cache(maxsize=1)
def collection() -> tuple[np.ndarray, np.ndarray]:
    """Return all scans, shape (1797, 8, 8) with values 0 (paper) to 16 (ink), and the digit that each shows."""
    with np.load(Path(__file__).parent / "digits.npz") as archive:
        return archive["images"], archive["labels"]


@lru_cache(maxsize=2)
def scans_by_digit(held_out: bool) -> tuple[tuple[int, ...], ...]:
    """Ten tuples of scan indices, the scans of one split only."""
    _, target = collection()
    return tuple(
        tuple(int(i) for n, i in enumerate(np.flatnonzero(target == digit)) if (n % HELD_OUT_EVERY == 0) == held_out)
        for digit in range(10)
    )


def card_of(rng: random.Random, digits: tuple[int, int], *, held_out: bool) -> Card:
    """Return a card that shows ``digits``, each by a scan drawn from one split."""
    pools = scans_by_digit(held_out)
    return Card(digits, (rng.choice(pools[digits[0]]), rng.choice(pools[digits[1]])), rng.randrange(2))


def random_card(rng: random.Random, *, held_out: bool) -> Card:
    return card_of(rng, (rng.randrange(10), rng.randrange(10)), held_out=held_out)


def enlarged_scan(scan: int, size_px: int) -> Image.Image:
    """Return a scan as a mask of ink, ``size_px`` wide and high."""
    scan_8bit = (collection()[0][scan] * (255 / 16)).astype(np.uint8)
    return Image.fromarray(scan_8bit).resize((size_px, size_px), Image.Resampling.BILINEAR)


def render_card(card: Card, rng: random.Random) -> Image.Image:
    """Draw the two scans, enlarged to 22-26 px, onto a card; size and place vary with ``rng``."""
    picture = canvas(rng)
    for column, scan in enumerate(card.scans):
        size_px = rng.randint(22, 26)
        ink = enlarged_scan(scan, size_px)
        slack = CELL_PX - size_px
        at = (column * CELL_PX + rng.randint(0, slack), card.row * CELL_PX + rng.randint(0, slack))
        picture.paste((30, 30, 40), at, mask=ink)
    return picture
