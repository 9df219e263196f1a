"""The demonstration's truth about each step of a judgment: the answer key for step labels found without it."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from rewardlab.demo.judgments import Truth, grounded_judgment
from rewardlab.rewards.steps import judgment_steps
from rewardlab.types import Order, PreferencePair

PRAISE = re.compile(r"Response ([12]) (?:sounds|is|reads)\b")


def steps_of(text: str, ends: Sequence[int]) -> list[str]:
    """Return the steps of a judgment as texts, given where they end."""
    start = text.index("<think>") + len("<think>")
    return [text[a:b].strip() for a, b in pairwise([start, *ends])]


def truth_of_steps(steps: Sequence[str], truth: Truth, responses: tuple[str, str]) -> list[str]:
    """Return the kind of each step: true, false, praise of the right or of the wrong response, or unknown.

    A careful judgment of the true picture says one thing about each subject (what stands before the colon); a step that says
    another about it is false.
    """
    text = grounded_judgment(truth, responses)[0]
    step_of_subject = {step.split(":")[0]: step for step in steps_of(text, judgment_steps(text))}
    right = str(responses.index(truth.right) + 1)

    def kind_of(step: str) -> str:
        if praised := PRAISE.match(step):
            return "praise_right" if praised[1] == right else "praise_wrong"
        expected = step_of_subject.get(step.split(":")[0])
        return "unknown" if expected is None else "true" if step == expected else "false"

    return [kind_of(step) for step in steps]


def first_wrong(kinds: Sequence[str]) -> int | None:
    """Return the number, from 1, of the first step that is false or praises the wrong response; None if there is none."""
    return next((k for k, kind in enumerate(kinds, start=1) if kind in ("false", "praise_wrong")), None)


def spoil_judgment(pair: PreferencePair, truth: Truth, order: Order, rng: random.Random) -> PreferencePair | None:
    """Return the pair with a careful judgment that is true up to a random step and of the other picture from there on.

    Return None if the two pictures' judgments do not differ in at least two steps.
    """
    texts = [grounded_judgment(truth, pair.shown(order), misread=misread)[0] for misread in (False, True)]
    true, variant = (steps_of(text, judgment_steps(text)) for text in texts)
    places = [k for k, (a, b) in enumerate(zip(true, variant, strict=True)) if a != b]
    if len(true) != len(variant) or len(places) < 2:
        return None
    k = rng.choice(places)
    judgment = f"<think>{' '.join([*true[:k], *variant[k:]])}{texts[1][texts[1].index('</think>') :]}"
    return replace(pair, order=order, judgment=judgment)
