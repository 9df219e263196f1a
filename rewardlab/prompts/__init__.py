"""What a judge is asked: a pair in a stated order becomes messages. One ``.txt`` per template, beside its parser's name."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rewardlab.errors import ConfigError
from rewardlab.types import Message, Order, Part, PreferencePair

# template -> the convention (of rewardlab.verdicts) that reads its answers.
# r1_reward: the published prompt of R1-Reward (arXiv 2505.02835, Table 1); a judge must be asked what it was trained on.
# plain: no instructions, for judges whose fine-tuning is the instruction.
# verdict: the verdict at once, without reasoning, for a judge that is a classifier (Pairwise-RL, arXiv 2504.04950).
# single: one response alone, the one shown first, for a scalar reward model; nothing is written, so nothing is read.
# answer: the question itself, asked of a policy whose answers a judge compares.
CONVENTIONS = {"r1_reward": "think_answer", "plain": "think_answer", "verdict": "bare", "single": "unread", "answer": "unread"}

_SLOT = re.compile(r"\{(question|first|second)\}")


@dataclass(frozen=True)
class Template:
    """A prompt text with the slots {question}, {first} and (but for a single response) {second}, and the verdict convention it
    asks for.

    Images come before the text, in training as in inference. ``hash`` names all of this: it is stored in a checkpoint and
    checked when the checkpoint is loaded, so that a judge is never asked in words it was not trained on.
    """

    name: str
    text: str
    convention: str

    @property
    def hash(self) -> str:
        """First 16 hex digits of the SHA-256 of text, convention and the place of the images."""
        return hashlib.sha256(f"images-first\n{self.convention}\n{self.text}".encode()).hexdigest()[:16]


@cache
def load_template(name: str) -> Template:
    """The template called ``name``. Raises ConfigError for an unknown name."""
    if name not in CONVENTIONS:
        raise ConfigError(f"unknown prompt template {name!r}; expected one of {sorted(CONVENTIONS)}")
    text = (Path(__file__).parent / f"{name}.txt").read_text(encoding="utf-8").removesuffix("\n")
    return Template(name, text, CONVENTIONS[name])


def render(template: Template, question: str, first: str, second: str) -> str:
    """Fill the slots, all at once: braces inside a question or an answer are plain text."""
    values = {"question": question, "first": first, "second": second}
    return _SLOT.sub(lambda match: values[match.group(1)], template.text)


def build_messages(pair: PreferencePair, *, order: Order, template: Template) -> tuple[Message, ...]:
    """One user turn: the images, then the filled template with the responses in ``order``. The label is not looked at."""
    first, second = pair.shown(order)
    images = tuple(Part(image=image) for image in pair.images)
    return (Message("user", (*images, Part(text=render(template, pair.question, first, second)))),)
