"""What a difficulty of the demonstration consists of: its pairs, its pictures and the facts that its base model learns."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from PIL import Image

from rewardlab.demo.contrast_pairs import ContrastPair, Picture
from rewardlab.demo.facts import Fact
from rewardlab.demo.splits import Split


@dataclass(frozen=True)
class Drawing:
    """A contrast pair and where it comes from; ``level`` is 1, 2 or 3."""

    contrast: ContrastPair
    source: str
    task: str
    category: str
    level: int


@dataclass(frozen=True)
class DemoDifficulty:
    """``draw`` a contrast pair of a split, ``render`` a picture of it; ``view`` a training picture, for ``facts`` about it.

    ``view`` takes the share of pictures that show scanned digits. ``facts`` may return none, where its draw came to nothing.
    ``pictures`` says in words what they show and how many kinds of questions there are.
    ``stream`` names the random numbers of a seed and a split: another string means other pairs.
    """

    pictures: str
    draw: Callable[[random.Random, Split], Drawing]
    render: Callable[[Picture, random.Random], Image.Image]
    view: Callable[[random.Random, float], Picture]
    facts: Callable[[random.Random, Picture], list[Fact]]
    stream: Callable[[int, Split], str]
    splits: tuple[Split, ...]
