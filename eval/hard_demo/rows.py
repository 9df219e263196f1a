"""Cards of three scanned digits in one row, under noise: grain over the whole card and a stroke through some digits.

The scans are those of :mod:`rewardlab.demo.pictures`; of its held-out scans every other one is for validation.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw

from eval.hard_demo.grids import SIDE, Split, framed_card
from rewardlab.demo.pictures import CELL_PX, enlarged_scan, scans_by_digit

GRAIN = 18.0  # standard deviation of the noise, in shades of 255
SHARE_STRUCK = 0.3  # of digits
INK = (30, 30, 40)


@dataclass(frozen=True)
class DigitRow:
    """Three digits in one ``row`` (0 top to 2 bottom); ``scans`` are indices into the scan collection."""

    digits: tuple[int, ...]
    scans: tuple[int, ...]
    row: int

    def arranged(self, order: tuple[int, ...]) -> DigitRow:
        """Return the row with its digits in another order."""
        return DigitRow(tuple(self.digits[k] for k in order), tuple(self.scans[k] for k in order), self.row)

    @property
    def key(self) -> str:
        return f"{','.join(map(str, self.scans))},{self.row}"


@lru_cache(maxsize=3)
def scans_of_split(split: Split) -> tuple[tuple[int, ...], ...]:
    """Ten tuples of scan indices, the scans of one split only."""
    pools = scans_by_digit(split is not Split.TRAIN)
    if split is Split.TRAIN:
        return pools
    return tuple(pool[split is Split.VALIDATION :: 2] for pool in pools)


def random_row(rng: random.Random, split: Split) -> DigitRow:
    digits = tuple(rng.randrange(10) for _ in range(SIDE))
    return DigitRow(digits, tuple(rng.choice(scans_of_split(split)[d]) for d in digits), rng.randrange(SIDE))


def with_digit(rng: random.Random, row: DigitRow, place: int, digit: int, split: Split) -> DigitRow:
    """Return the row with another digit, and a scan of it, at ``place`` (0 left to 2 right)."""
    scan = rng.choice(scans_of_split(split)[digit])
    digits, scans = ((*old[:place], new, *old[place + 1 :]) for old, new in ((row.digits, digit), (row.scans, scan)))
    return replace(row, digits=digits, scans=scans)


def render_row(row: DigitRow, rng: random.Random) -> Image.Image:
    """Draw the scans, enlarged to 22-26 px; size, place, strokes and grain vary with ``rng``, the digits do not."""
    card, _ = framed_card(rng)
    draw = ImageDraw.Draw(card)
    for column, scan in enumerate(row.scans):
        ink = enlarged_scan(scan, rng.randint(22, 26))
        slack = CELL_PX - ink.width
        left, top = column * CELL_PX + rng.randint(0, slack), row.row * CELL_PX + rng.randint(0, slack)
        card.paste(INK, (left, top), mask=ink)
        if rng.random() < SHARE_STRUCK:
            ends = [(left + rng.uniform(0, ink.width), top + edge) for edge in (0, ink.height)]
            draw.line(ends if rng.random() < 0.5 else [(y - top + left, x - left + top) for x, y in ends], fill=INK, width=2)
    grain = np.random.default_rng(rng.getrandbits(32)).normal(0, GRAIN, (card.height, card.width, 1))
    return Image.fromarray(np.clip(np.asarray(card) + grain, 0, 255).astype(np.uint8))
