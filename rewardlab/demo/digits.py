"""Real input: scans of handwritten digits (1,797 of 8x8 px), two on a card.

``digits.npz`` holds the test set of Alpaydin and Kaynak, "Optical Recognition of Handwritten Digits" (UCI Machine Learning
Repository, https://doi.org/10.24432/C50P49, CC BY 4.0), with the values and in the order of scikit-learn's ``load_digits``.

Held-out cards use held-out scans only: no scan is seen both in training and in evaluation.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image

from rewardlab.demo.scenes import CELL_PX, canvas

HELD_OUT_EVERY = 4  # every fourth scan of a digit is held out


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


def card(rng: random.Random, digits: tuple[int, int], *, held_out: bool) -> Card:
    """Return a card that shows ``digits``, each by a scan drawn from one split."""
    pools = scans_by_digit(held_out)
    return Card(digits, (rng.choice(pools[digits[0]]), rng.choice(pools[digits[1]])), rng.randrange(2))


def random_card(rng: random.Random, *, held_out: bool) -> Card:
    return card(rng, (rng.randrange(10), rng.randrange(10)), held_out=held_out)


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
