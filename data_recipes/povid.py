"""POVID (arXiv 2402.11411): LLaVA-Instruct's answers against the same with hallucinations that GPT-4V put in.

``id, image (a COCO train2014 path), conversations, rejected_conversations``, each a list of ``{"from": "human" | "gpt",
"value"}``; images are not shipped. The human turns of the two lists must agree. Of several turns the last one is judged, the
earlier ones are its context; where the answers differ before that, there is no common context, and the row is dropped. 17,184
rows. 448 rows of VL-RewardBench come from here. The style of what was put in is a shortcut.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rewardlab.data.recipes import Dropped, Recipe, SourceFolder, clean_text, make_pair
from rewardlab.errors import DataError
from rewardlab.types import PreferencePair


def turns(value: Any, name: str) -> list[tuple[str, str]]:
    """Return (from, text) of each turn. Raises DataError unless people and model alternate and the model has the last word."""
    conversation = [(turn["from"], clean_text(turn["value"], name)) for turn in value]
    if not conversation or [who for who, _ in conversation] != ["human", "gpt"] * (len(conversation) // 2):
        raise DataError(f"{name!r}: expected turns of human and gpt, got {[who for who, _ in conversation]}")
    return conversation


def convert(row: Mapping[str, Any], source: SourceFolder) -> Iterator[PreferencePair | Dropped]:
    """Yield one pair."""
    good, bad = turns(row["conversations"], "conversations"), turns(row["rejected_conversations"], "rejected_conversations")
    if [text for who, text in good if who == "human"] != [text for who, text in bad if who == "human"]:
        yield Dropped("the two conversations ask different things")
    elif good[:-1] != bad[:-1]:
        yield Dropped("answers differ before the last turn")
    elif not (good[-1][1] and bad[-1][1]):
        yield Dropped("an answer is empty")
    elif good[-1] == bad[-1]:
        yield Dropped("the answers are equal")
    else:
        names = {"human": "User", "gpt": "Assistant"}
        context = "\n".join(f"{names[who]}: {text}" for who, text in good[:-1]) if len(good) > 2 else good[0][1]
        yield make_pair(context, good[-1][1], bad[-1][1], source.images(row.get("image"), "image"))


RECIPE = Recipe(
    "povid", "https://huggingface.co/datasets/YiyangAiLab/POVID_preference_data_for_VLLMs", "cc-by-4.0", 17_184, convert
)
