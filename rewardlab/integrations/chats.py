"""Prompts and completions of trainers: a text, or a chat, with its images as parts or separate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rewardlab.data.conversations import Content, joined_turns, place_media, read_turns
from rewardlab.errors import DataError


def read_prompt(turns: Any, images: Sequence[Any] | None = None) -> tuple[str, list[Any]]:
    """Return the question of a prompt, a U+FFFC at the place of each image unless all come before the text, and its images:
    ``images`` of its row, else those in its messages. Raise DataError if a place has no image or an image no
    place: the judge would answer another question."""
    content = joined_turns(read_turns(turns))
    given = list(() if images is None else images)
    if given:  # of a row whose messages hold the same images once more
        content = replace(content, images=(None,) * len(content.images))
    [question] = place_media([content], given, where=f"the prompt {content.text!r:.80}", rendered=True)
    return question.text.strip(), list(_images(question, "prompt"))


def chat_text(turns: Any) -> str:
    """Return the text of a completion: a text, or messages with texts or parts. Raise DataError for one with images."""
    completion = joined_turns(read_turns(turns, role="assistant"))
    _images(completion, "completion")
    return completion.text


def _images(content: Content, name: str) -> tuple[Any, ...]:
    if content.videos:
        raise DataError(f"a {name} has a 'video', which rewards do not support; expected text or images")
    if name == "completion" and content.images:
        raise DataError("a completion has an image, which this adapter cannot send; expected text")
    return content.images
