"""Two pictures, one question, two answers: what every task of the demonstration draws.

Answer ``i`` is true of picture ``i`` and false of the other. A fair coin then decides which picture is shown. So whatever
the texts are, truth is a coin flip to anyone who does not look: no word, length or position can carry a signal, by
construction and not by balancing afterwards.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from rewardlab.demo.digits import Card
from rewardlab.demo.hard.grids import Grid, UnlikeGrid
from rewardlab.demo.hard.rows import DigitRow
from rewardlab.demo.scenes import Scene

Picture = Scene | Card | Grid | UnlikeGrid | DigitRow
# In words, up to nine and nine: the digits 1 and 2 already name the responses.
_TO_NINE = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_TO_EIGHTEEN = ("ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen")
NUMBERS = (*_TO_NINE, *_TO_EIGHTEEN)


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
