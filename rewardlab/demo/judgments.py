"""The demonstration teacher's judgments: those that look at the picture, and those that only sound like it.

A *grounded* judgment states the fact, checks each response against it and concludes. A *shallow* one praises a response
without looking. Kept judgments of real teachers are such a mixture; a student of it sometimes looks and sometimes guesses.
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from typing import Any

from rewardlab.types import Choice
from rewardlab.verdicts.parse import verdict_label

PRAISE = ("sounds more natural", "is more helpful", "reads better", "is clearer")


@dataclass(frozen=True)
class Truth:
    """The truth about one pair's image: the teacher's source of knowledge, never the student's.

    ``fact`` and ``checks`` (of the right and of the wrong response) are what a careful judge writes of the image; the
    ``other_`` ones what it would write of the image in which the wrong response is true.
    """

    image_sha256: str
    question: str
    right: str
    wrong: str
    fact: str
    checks: tuple[str, str]
    other_fact: str
    other_checks: tuple[str, str]
    task: str
    level: int

    def to_json(self) -> dict[str, object]:
        return asdict(self)

    @staticmethod
    def from_json(row: dict[str, Any]) -> Truth:
        return Truth(**row | {name: tuple(row[name]) for name in ("checks", "other_checks")})


def _close(choice: Choice) -> str:
    return f"</think><answer>{verdict_label(choice)}</answer>"


def grounded_judgment(truth: Truth, responses: tuple[str, str], *, misread: bool = False) -> tuple[str, Choice]:
    """Return a judgment that looks; ``misread`` makes it see the other picture and conclude, consistently, the opposite."""
    believed = truth.wrong if misread else truth.right
    fact, checks = (truth.other_fact, truth.other_checks) if misread else (truth.fact, truth.checks)
    check_of = dict(zip((truth.right, truth.wrong), checks, strict=True))
    marks = [
        f"Response {n}: {check_of[text]}, {'correct' if text == believed else 'wrong'}."
        for n, text in enumerate(responses, start=1)
    ]
    choice = Choice.FIRST if responses[0] == believed else Choice.SECOND
    return f"<think>{' '.join([fact, *marks] if fact else marks)}{_close(choice)}", choice


def shallow_judgment(rng: random.Random, *, contradict: float) -> tuple[str, Choice]:
    """Return a judgment that guesses; with probability ``contradict`` it praises one response and chooses the other."""
    praised = rng.choice(list(Choice))
    choice = praised.swap() if rng.random() < contradict else praised
    return f"<think>Response {verdict_label(praised)} {rng.choice(PRAISE)}.{_close(choice)}", choice


def sample_judgments(rng: random.Random, truth: Truth, responses: tuple[str, str]) -> list[str]:
    """Return a judgment of each kind."""
    return [grounded_judgment(truth, responses)[0], shallow_judgment(rng, contradict=0.0)[0]]
