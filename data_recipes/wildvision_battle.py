"""WildVision-Battle (arXiv 2406.11069): people's votes between two models' answers; access is by a form.

``question_id, model_a, model_b, conversation_a, conversation_b (lists of {"role", "content"}), image, language, turn, anony,
winner, judge``. ``winner`` is model_a, model_b, tie or "tie (bothbad)". Dropped: both ties; votes of which the voter saw the
models' names; votes by GPT-4V; conversations of several turns, whose answers have no common context; answers that are an API's
error. 10,383 rows by R1-Reward's paper. 173 rows of VL-RewardBench come from here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rewardlab.data.recipes import Dropped, Recipe, SourceFolder, clean_text
from rewardlab.data.rows import systems_of
from rewardlab.errors import DataError
from rewardlab.types import PreferencePair

WINNERS = {"model_a": 0, "model_b": 1}
TIES = ("tie", "tie (bothbad)")
ERRORS = ("API REQUEST ERROR", "NETWORK ERROR", "**NETWORK ERROR")


def convert(row: Mapping[str, Any], source: SourceFolder) -> Iterator[PreferencePair | Dropped]:
    """Yield one pair, the responses as the source has them: a is 0, b is 1."""
    conversations = [row["conversation_a"], row["conversation_b"]]
    if row["winner"] in TIES:
        yield Dropped(row["winner"])
    elif row["winner"] not in WINNERS:
        raise DataError(f"'winner' is {row['winner']!r}; expected one of {', '.join((*WINNERS, *TIES))}")
    elif row.get("anony") is False:
        yield Dropped("the voter saw the models' names")
    elif row.get("judge") == "gpt4v":
        yield Dropped("a vote by GPT-4V")
    elif any(len(conversation) != 2 for conversation in conversations):
        yield Dropped("several turns")
    elif len({clean_text(conversation[0]["content"], "content") for conversation in conversations}) > 1:
        yield Dropped("the two conversations ask different things")
    else:
        answers = [clean_text(conversation[1]["content"] or "", "content") for conversation in conversations]
        if not all(answers):
            yield Dropped("an answer is empty")
        elif any(answer.startswith(ERRORS) for answer in answers):
            yield Dropped("an answer is an API's error")
        elif answers[0] == answers[1]:
            yield Dropped("the answers are equal")
        else:
            yield PreferencePair(
                "",
                clean_text(conversations[0][0]["content"], "content"),
                (answers[0], answers[1]),
                WINNERS[row["winner"]],
                source.required_image(row["image"], "image"),
                category=row.get("domain") or row.get("language") or "",
                systems=systems_of((row.get("model_a"), row.get("model_b")), "row"),
            )


RECIPE = Recipe("wildvision_battle", "https://huggingface.co/datasets/WildVision/wildvision-battle", "odc-by", 10_383, convert)
