"""What the world's teacher writes: judgments that look at the picture, and judgments that only sound like one.

A *grounded* judgment states the fact, checks each response against it and concludes. A *shallow* one praises a response
without looking. Kept judgments of real teachers are such a mixture; a student of it sometimes looks and sometimes guesses.
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass

from rewardlab.types import Choice
from rewardlab.world.scenes import Scene
from rewardlab.world.tasks import Picture

PRAISE = ("sounds more natural", "is more helpful", "reads better", "is clearer")


@dataclass(frozen=True)
class Truth:
    """What is true of one pair's image: the teacher's and the consistency judge's source of knowledge, never the student's."""

    image_sha256: str
    question: str
    right: str
    wrong: str
    right_key: str
    wrong_key: str
    right_fact: str
    wrong_fact: str
    present: tuple[str, ...]
    task: str
    level: int

    def to_json(self) -> dict[str, object]:
        return asdict(self)

    @staticmethod
    def from_json(row: dict[str, object]) -> Truth:
        fields = dict(row)
        fields["present"] = tuple(fields["present"])  # type: ignore[arg-type]
        return Truth(**fields)  # type: ignore[arg-type]


def names_present(picture: Picture) -> tuple[str, ...]:
    return tuple(picture.names()) if isinstance(picture, Scene) else ()


def label(choice: Choice) -> str:
    return "1" if choice is Choice.FIRST else "2"


def _close(choice: Choice) -> str:
    return f"</think><answer>{label(choice)}</answer>"


def _checked(key: str, is_right: bool, listing: bool, seen: tuple[str, ...]) -> str:
    if listing:
        key = ", ".join(f"{name} {'yes' if name in seen else 'no'}" for name in key.split(", "))
    return f"{key}, {'correct' if is_right else 'wrong'}."


def grounded(truth: Truth, shown: tuple[str, str], *, misread: bool = False) -> tuple[str, Choice]:
    """A judgment that looks; ``misread`` makes it see the twin picture and conclude, consistently, the opposite."""
    believed = truth.wrong if misread else truth.right
    fact = truth.wrong_fact if misread else truth.right_fact
    listing = truth.task == "describe"
    seen = truth.present
    if listing and misread:
        gone = set(truth.right_key.split(", ")) - set(truth.wrong_key.split(", "))
        seen = tuple((set(seen) - gone) | set(truth.wrong_key.split(", ")))
    keys = {truth.right: truth.right_key, truth.wrong: truth.wrong_key}
    checks = [f"Response {n}: {_checked(keys[text], text == believed, listing, seen)}" for n, text in enumerate(shown, start=1)]
    choice = Choice.FIRST if shown[0] == believed else Choice.SECOND
    return f"<think>{' '.join([fact, *checks] if fact else checks)}{_close(choice)}", choice


def shallow(rng: random.Random, *, contradict: float) -> tuple[str, Choice]:
    """A judgment that guesses; with probability ``contradict`` it praises one response and chooses the other."""
    praised = rng.choice(list(Choice))
    choice = praised.swap() if rng.random() < contradict else praised
    return f"<think>Response {label(praised)} {rng.choice(PRAISE)}.{_close(choice)}", choice
