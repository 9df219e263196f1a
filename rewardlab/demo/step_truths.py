"""The demonstration's truth about each step of a judgment: the answer key for step labels found without it."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from rewardlab.demo.judgments import Truth, grounded
from rewardlab.rewards.steps import judgment_steps
from rewardlab.types import Order, PreferencePair

PRAISE = re.compile(r"Response ([12]) (?:sounds|is|reads)\b")


def steps_of(text: str, ends: Sequence[int]) -> list[str]:
    """The steps of a judgment as texts, from where they end."""
    start = text.index("<think>") + len("<think>")
    return [text[a:b].strip() for a, b in pairwise([start, *ends])]


def truth_of_steps(steps: Sequence[str], truth: Truth, shown: tuple[str, str]) -> list[str]:
    """Each step by what the demonstration knows: true, false, praise of the right or of the wrong response, or unknown.

    A careful judgment of the true picture says one thing about each subject (what stands before the colon); a step that says
    another about it is false.
    """
    text = grounded(truth, shown)[0]
    known = {step.split(":")[0]: step for step in steps_of(text, judgment_steps(text))}
    right = str(shown.index(truth.right) + 1)

    def told(step: str) -> str:
        if praised := PRAISE.match(step):
            return "praise_right" if praised[1] == right else "praise_wrong"
        expected = known.get(step.split(":")[0])
        return "unknown" if expected is None else "true" if step == expected else "false"

    return [told(step) for step in steps]


def first_wrong(kinds: Sequence[str]) -> int | None:
    """The first step, counted from 1, that says something false or praises the wrong response; None where none does."""
    return next((k for k, kind in enumerate(kinds, start=1) if kind in ("false", "praise_wrong")), None)


def spoiled(pair: PreferencePair, truth: Truth, order: Order, rng: random.Random) -> PreferencePair | None:
    """The pair with a careful judgment that is true up to a step drawn at random and of the other picture from there on.

    None where the two pictures' judgments do not differ in at least two steps.
    """
    texts = [grounded(truth, pair.shown(order), misread=misread)[0] for misread in (False, True)]
    true, variant = (steps_of(text, judgment_steps(text)) for text in texts)
    places = [k for k, (a, b) in enumerate(zip(true, variant, strict=True)) if a != b]
    if len(true) != len(variant) or len(places) < 2:
        return None
    k = rng.choice(places)
    judgment = f"<think>{' '.join([*true[:k], *variant[k:]])}{texts[1][texts[1].index('</think>') :]}"
    return replace(pair, order=order, judgment=judgment)
