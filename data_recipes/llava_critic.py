"""LLaVA-Critic-113k (arXiv 2410.02712): judgments by GPT-4o, to be read out of the texts they were asked and given in.

``id, source, image {bytes, path}, conversations``: one human turn with question and answers, one gpt turn with the verdict. Two
configs, pairwise (40,154 rows) and pointwise (72,782). Read are four wordings; the rest of pointwise (captions scored 0..100,
choices, other scales) compares nothing and is dropped:

1. ``Question: [...]``, ``The first response: [...]``, ``The second response: [...]``; ``The better response: [first]``;
2. ``<|The Start of Assistant A's Answer|>`` ...; ``[[A>>B]]`` to ``[[B>>A]]``, the last one counts;
3. ``[Assistant 1] ... [End of Assistant 1]`` ...; two scores in the first line;
4. as 1 with ``Response 1``, ``Response A``.

The labels are a model's, and many pairs come from VLFeedback and its kin: near-duplicates of those.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from rewardlab.data.recipes import Dropped, Recipe, SourceFolder, clean_text
from rewardlab.errors import DataError
from rewardlab.types import PreferencePair

# Answers may hold brackets: each part ends where the next one's label begins.
_BRACKETS = re.compile(
    r"Question:\s*\[(?P<question>.*?)\]\s*\n\s*(?:The first response|Response (?:1|A)):\s*\[(?P<first>.*?)\]\s*\n\s*"
    r"(?:The second response|Response (?:2|B)):\s*\[(?P<second>.*)\]",
    re.DOTALL,
)
_ARENA = re.compile(
    r"<\|User Prompt\|>\s*(?P<question>.*?)\s*<\|The Start of Assistant A's Answer\|>\s*(?P<first>.*?)\s*"
    r"<\|The End of Assistant A's Answer\|>\s*<\|The Start of Assistant B's Answer\|>\s*(?P<second>.*?)\s*"
    r"<\|The End of Assistant B's Answer\|>",
    re.DOTALL,
)
_SCORED = re.compile(
    r"\[Question\]\s*(?P<question>.*?)\s*\[Assistant 1\]\s*(?P<first>.*?)\s*\[End of Assistant 1\]\s*"
    r"\[Assistant 2\]\s*(?P<second>.*?)\s*\[End of Assistant 2\]",
    re.DOTALL,
)
_BETTER = re.compile(r"The better response:\s*\[?\s*((?i:first|second)|1|2|A|B)\b")
_EQUAL = re.compile(r"equally good|The better response:\s*\[?\s*(?:an? )?(?:equal|tie|draw|both|neither)", re.IGNORECASE)
_ARROWS = re.compile(r"\[\[([AB])(>>|>|=)([AB])\]\]")
_TWO_SCORES = re.compile(r"\s*(\d+(?:\.\d+)?)[\s,]+(\d+(?:\.\d+)?)\s*(?:\n|$)")


def verdict(text: str, wording: re.Pattern[str]) -> int | None:
    """Return the index of the better answer; None for a tie. Raises DataError where none is said."""
    if wording is _ARENA and (arrows := _ARROWS.findall(text)):
        left, sign, right = arrows[-1]
        return None if sign == "=" or left == right else int(left == "B")
    if wording is _SCORED and (scores := _TWO_SCORES.match(text)):
        first, second = float(scores[1]), float(scores[2])
        return None if first == second else int(second > first)
    if wording is _BRACKETS:
        if match := _BETTER.search(text):
            return int(match[1].lower() in ("second", "2", "b"))
        if _EQUAL.search(text):
            return None
    raise DataError(f"no verdict in {text[:60]!r}")


def convert(row: Mapping[str, Any], source: SourceFolder) -> Iterator[PreferencePair | Dropped]:
    """Yield one pair, in the order it was shown in."""
    prompt, response = (turn["value"] for turn in row["conversations"])
    for wording in (_BRACKETS, _ARENA, _SCORED):
        if match := wording.search(prompt):
            break
    else:
        yield Dropped("no comparison of two answers")
        return
    question, first, second = (clean_text(match[name], name) for name in ("question", "first", "second"))
    better = verdict(response, wording)
    if better is None:
        yield Dropped("tie")
    elif not (first and second):
        yield Dropped("an answer is empty")
    elif first == second:
        yield Dropped("the answers are equal")
    else:
        images = source.required_image(row.get("image"), "image")
        yield PreferencePair("", question, (first, second), better, images, category=row.get("source") or "")


RECIPE = Recipe("llava_critic", "https://huggingface.co/datasets/lmms-lab/llava-critic-113k", "apache-2.0", 112_936, convert)
