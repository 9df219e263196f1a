"""Conversations as frameworks send them (chats, special tokens, parts with images), split into question, response, images."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rewardlab.errors import DataError
from rewardlab.serving.schemas import JsonObject

# Markup of chat templates that decoders leave in texts: Qwen, Llama 2 and 3, Mistral, Gemma, Phi, GLM, DeepSeek.
_ROLE = r"(?:system|user|assistant|model|tool|ipython)"
_TURN = re.compile(
    rf"<\|im_start\|>{_ROLE}\n?|<\|start_header_id\|>{_ROLE}<\|end_header_id\|>\s*|<start_of_turn>{_ROLE}\n?|<\|{_ROLE}\|>\n?"
)
_SPECIAL = re.compile(
    r"<\|[\w\-]{1,40}\|>|<｜[^<>｜]{1,40}｜>|<(?:start|end)_of_(?:turn|image)>|</?s>|<pad>|<eos>|<bos>|\[/?INST\]|<</?SYS>>"
)
# Marks of the assistant's turn, by family of templates. Only the family of a sequence's first mark counts: a policy of one
# family may write marks of another as text. The first families have special tokens, which no policy writes as text.
_FAMILIES = [
    re.compile(mark)
    for mark in (
        r"<\|im_start\|>assistant\n?",
        r"<\|start_header_id\|>assistant<\|end_header_id\|>\s*",
        r"<start_of_turn>model\n?",
        r"<\|assistant\|>\n?",
        r"<｜Assistant｜>",
    )
]
_INST = re.compile(r"\[/INST\]")
_SPOKEN = re.compile(r"(?:^|\s)(?:ASSISTANT:|Assistant:)\s?")
_SPOKEN_USER = re.compile(r"^(?:.*?\s)?(?:USER:|Human:|User:)\s?", re.DOTALL)
# Placeholders of images that did not come with the text.
_LOST_IMAGE = re.compile(r"<\|(?:image_pad|video_pad|vision_start|image|image_1)\|>|<image>|<start_of_image>")


def strip_markup(text: str) -> str:
    """Return the text without chat markup and special tokens."""
    return _SPECIAL.sub("", _TURN.sub("", text)).strip()


def split_sequence(text: str, prompt: str = "") -> tuple[str, str]:
    """Return (question, response) of a decoded sequence, with their markup (see :func:`labeled_sample`). The response follows
    ``prompt`` if the sequence begins with it, else the last mark of an assistant's turn, a special token or ``ASSISTANT:``.

    Raise DataError without a mark, and for several ``ASSISTANT:``: a response must not choose where it begins.
    """
    if prompt and text.startswith(prompt):
        return prompt, text[len(prompt) :]
    families = [marks for family in _FAMILIES if (marks := list(family.finditer(text)))]
    if families:
        last = min(families, key=lambda marks: marks[0].start())[-1]
        return text[: last.start()], text[last.end() :]
    for words, before in ((_INST, None), (_SPOKEN, _SPOKEN_USER)):
        if len(marks := list(words.finditer(text))) == 1:
            question = text[: marks[0].start()]
            return before.sub("", question) if before else question, text[marks[0].end() :]
        if marks:
            break
    raise DataError(
        "cannot tell where the response begins: a reward is for a response to a prompt. Send the prompt too, or a chat with "
        "marks such as <|im_start|>assistant"
    )


@dataclass(frozen=True)
class Sample:
    """One response to a question, with the references of its images, and an ``anchor`` to compare it with if it comes alone.
    Samples of different ``scope`` are never compared."""

    question: str
    response: str
    images: tuple[str, ...] = ()
    anchor: str | None = None
    scope: str = ""

    @property
    def key(self) -> str:
        """Return the key that samples of one prompt share: question, images, anchor and scope."""
        return json.dumps([self.question, self.images, self.anchor, self.scope])


def read_content(content: Any) -> tuple[str, tuple[str, ...]]:
    """Return (text, image references) of a message's content: a text, or parts of OpenAI's chat, its Responses API, or Qwen.
    Raise DataError for a part of another kind."""
    if content is None:
        return "", ()
    if isinstance(content, str):
        return content, ()
    if not isinstance(content, Sequence):
        raise DataError(f"a message's content is {type(content).__name__}; expected a string or a list of parts")
    texts, images = [], []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind in ("text", "input_text", "output_text") and isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif kind in ("image_url", "input_image", "image"):
            value = part.get("image_url") or part.get("image") or ""
            images.append(str(value.get("url", "") if isinstance(value, Mapping) else value))
        else:
            raise DataError(f"a part of a message is of kind {kind!r}; expected text or an image")
    return "\n".join(texts), tuple(images)


def text_alone(text: str, images: Sequence[str]) -> str:
    """Return the text of a response. Raise DataError if it has images: judged without them, its reward would be meaningless."""
    if images:
        raise DataError(
            "a response contains an image, but this server judges only its text. Judge such pairs offline, "
            "with their images as response_images (rewardlab bench run pairs), or move the image to the question"
        )
    return text


def media_beside(item: Mapping[str, Any]) -> list[str]:
    """Return the fields of a message or document with images, videos or sound beside its text."""
    return [name for name in ("image", "images", "image_url", "video", "videos", "audio") if item.get(name)]


def read_role(message: Mapping[str, Any]) -> str:
    """Return the role of a message; ``developer`` is OpenAI's newer word for ``system``."""
    role = str(message.get("role", "user"))
    return "system" if role == "developer" else role


def read_item(item: Mapping[str, Any]) -> tuple[str, str, tuple[str, ...]]:
    """Return (role, text, image references) of a message, or of another item of the Responses API: tool calls and their results
    are texts, reasoning is dropped. Raise DataError for another item, and for media outside of a message's content."""
    if not isinstance(item, Mapping):
        raise DataError(f"a message is {item!r:.80}; expected an object with role and content")
    match item.get("type", "message"):
        case "message":
            if media := media_beside(item):
                raise DataError(f"a message has {media[0]!r} beside its content; send images as parts of the content")
            return (read_role(item), *read_content(item.get("content")))
        case "function_call":
            return "assistant", f"Tool call: {item.get('name')}({item.get('arguments')})", ()
        case "function_call_output":
            text, images = read_content(item.get("output"))
            return "tool", f"Tool result: {text}", images
        case "reasoning":
            return "assistant", "", ()
        case kind:
            raise DataError(
                f"an item is of type {kind!r:.80}; expected message, function_call, function_call_output or reasoning. Judges "
                "do not support others: leave it out, or judge pairs whose responses hold images offline (response_images)"
            )


def read_conversation(messages: Sequence[Mapping[str, Any]]) -> tuple[str, tuple[str, ...]]:
    """Return (question, image references) of a chat: the text of a single turn, or all turns with their roles."""
    turns = [read_item(message) for message in messages]
    images = tuple(image for _, _, references in turns for image in references)
    texts = [(role, text) for role, text, _ in turns if text.strip()]
    if not texts:
        raise DataError("the conversation has no text; expected at least one user message")
    if len(texts) == 1:
        return texts[0][1], images
    return "\n".join(f"{role.capitalize()}: {text}" for role, text in texts), images


def read_label(label: Any) -> JsonObject:
    """Return the fields of a label that is a JSON object, with ``media`` (image references), ``question`` or ``anchor``; {} for
    any other label, such as a bare answer."""
    if isinstance(label, str) and label.lstrip().startswith("{"):
        try:
            label = json.loads(label)
        except (ValueError, RecursionError):
            return {}
    return dict(label) if isinstance(label, Mapping) else {}


def labeled_sample(question: str, response: str, label: Any = None) -> Sample:
    """Return a sample of texts without chat markup, and of the fields of its label.

    Raise DataError for media or an anchor of another type, and for a question with an image placeholder but no image: judged
    without the image, the reward would be meaningless.
    """
    fields = read_label(label)
    media, anchor = fields.get("media") or [], fields.get("anchor")
    if not isinstance(media, list) or not all(isinstance(reference, str) for reference in media):
        raise DataError(f"a label's media is {media!r:.80}; expected a list of image references such as upload:ID")
    if anchor is not None and not isinstance(anchor, str):
        raise DataError(f"a label's anchor is {anchor!r:.80}; expected a string to compare with")
    if not media and (lost := _LOST_IMAGE.search(question)):
        raise DataError(
            f"the prompt has a placeholder for an image ({lost[0]}) but no image "
            "was sent: upload it, and name it in the label as "
            '{"media": ["upload:ID"]}, or use a request format with images'
        )
    question = strip_markup(_LOST_IMAGE.sub("", str(fields.get("question") or question)))
    return Sample(question, strip_markup(response), tuple(media), anchor)


def split_samples(texts: Sequence[str]) -> list[Sample]:
    """Return the sample of each decoded sequence. Raise what :func:`split_sequence` and :func:`labeled_sample` raise."""
    return [labeled_sample(*split_sequence(text)) for text in texts]


def chat_sample(messages: Sequence[Mapping[str, Any]]) -> Sample:
    """Return the last turn, the assistant's, as the response to the turns before. Raise DataError for another last turn, and
    for one with more than text."""
    if len(messages) < 2 or messages[-1].get("role") != "assistant":
        raise DataError("expected messages that end with the assistant's: a question and the response to be rewarded")
    if messages[-1].get("tool_calls") or messages[-1].get("function_call"):
        raise DataError("the response calls a tool, which judges do not support; include the call in the text")
    question, images = read_conversation(messages[:-1])
    return Sample(question, text_alone(*read_item(messages[-1])[1:]), images)
