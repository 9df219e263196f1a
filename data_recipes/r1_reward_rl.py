"""R1-Reward-RL (arXiv 2505.02835): the hard pairs R1-Reward was trained on by reinforcement learning.

``question, message, answer, image``. ``message`` is a chat as a JSON text, its text the published judge prompt with question
and responses in it, its image a path of the authors' machine, whose folder names the source; ``image`` is the image itself in
base64. ``answer`` is ``["<answer>2</answer>"]``, the better response as shown. 17,261 rows in six files. Pairs keep the order
shown.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rewardlab.data.images import plain_image
from rewardlab.data.recipes import Dropped, Recipe, SourceFolder, clean_text
from rewardlab.errors import DataError, MediaError
from rewardlab.types import PreferencePair

_SHOWN = re.compile(
    r"\[Question\]\W*?:\s*(?P<question>.*?)\s*#+ ?\[Response 1\]\W*?:\s*(?P<first>.*?)"
    r"\s*#+ ?\[Response 2\]\W*?:\s*(?P<second>.*[^#\s])\s*#+ ?\**Output Format",
    re.DOTALL,
)
_ANSWER = re.compile(r"\s*<answer>\s*([12])\s*</answer>\s*")


def image_of(row: Mapping[str, Any], source: SourceFolder) -> bytes:
    """Return a row's image: base64, with or without the head of a data URL, or as ``datasets`` embeds it. Raises MediaError."""
    value = row["image"]
    if not isinstance(value, str):
        return source.image(value, "image")
    try:
        return plain_image(base64.b64decode(value.partition("base64,")[2] or value, validate=True), where="image")
    except ValueError as error:
        if isinstance(error, MediaError):
            raise
        raise MediaError(f"image: neither base64 nor a data URL ({error})") from error


def preferred_of(answer: Any) -> int:
    """Return 0 or 1. Raises DataError for another label: the reference's verifier paid such in full."""
    text = answer[0] if isinstance(answer, list | tuple) and len(answer) == 1 else answer
    match = _ANSWER.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise DataError(f"'answer' is {answer!r:.60}; expected ['<answer>1</answer>'] or ['<answer>2</answer>']")
    return int(match[1]) - 1


def convert(row: Mapping[str, Any], source: SourceFolder) -> Iterator[PreferencePair | Dropped]:
    """Yield one pair."""
    chat = json.loads(row["message"]) if isinstance(row["message"], str) else row["message"]
    parts = [part for turn in chat if turn["role"] == "user" for part in turn["content"]]
    prompt = "".join(part["text"] for part in parts if part["type"] == "text")
    match = _SHOWN.search(prompt)
    if match is None:
        raise DataError("'message' holds no [Question], [Response 1] and [Response 2] followed by an Output Format")
    question, first, second = (clean_text(match[name], name) for name in ("question", "first", "second"))
    paths = [part["image"] for part in parts if part["type"] == "image"]
    if not (first and second):
        yield Dropped("an answer is empty")
    elif first == second:
        yield Dropped("the answers are equal")
    else:
        category = Path(paths[0]).parent.name.removesuffix("-image") if paths else ""
        yield PreferencePair(
            "", question, (first, second), preferred_of(row["answer"]), (image_of(row, source),), category=category
        )


RECIPE = Recipe("r1_reward_rl", "https://huggingface.co/datasets/yifanzhang114/R1-Reward-RL", "", 17_261, convert)
