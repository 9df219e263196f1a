"""Conversations as frameworks send them (chats, special tokens, parts with images), split into question, response, images."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rewardlab.data.conversations import Content, Turn, joined_turns, media_beside, place_media, read_content, with_tool_calls
from rewardlab.data.rows import criteria_of
from rewardlab.errors import DataError
from rewardlab.prompts import with_criteria
from rewardlab.serving.schemas import JsonObject
from rewardlab.types import Criterion
from rewardlab.verdicts.formats import without_doubles

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
    """One response to a question, each with the references of its images and videos in the order of their marks, and the
    ``criteria`` to judge by, and an ``anchor`` to compare it with if it comes alone. Samples of different ``scope`` are never
    compared. ``rollout`` names the rollout that the response is of, "": not known."""

    question: str
    response: str
    images: tuple[str, ...] = ()
    anchor: str | None = None
    scope: str = ""
    response_images: tuple[str, ...] = ()
    rollout: str = ""
    videos: tuple[str, ...] = ()
    response_videos: tuple[str, ...] = ()
    criteria: tuple[Criterion, ...] = ()

    @staticmethod
    def of(question: Content, response: Content, anchor: str | None = None, scope: str = "", rollout: str = "") -> Sample:
        """Return the sample of two contents. Raise DataError for media that are no references."""
        check_references(question.images, question.videos, response.images, response.videos)
        return Sample(
            question.text,
            response.text,
            images=question.images,
            anchor=anchor,
            scope=scope,
            response_images=response.images,
            rollout=rollout,
            videos=question.videos,
            response_videos=response.videos,
        )

    @property
    def contents(self) -> tuple[Content, Content]:
        """Return the question and the response."""
        response = Content(self.response, self.response_images, self.response_videos)
        return Content(self.question, self.images, self.videos), response

    @property
    def prompt(self) -> tuple[object, ...]:
        """Return what samples of one prompt share: question with its criteria, images, videos, anchor and scope."""
        question = with_criteria(self.question, self.criteria)
        return question, self.images, self.videos, self.anchor, self.scope

    @property
    def key(self) -> str:
        """Return a hash of the prompt, as short for one with large images."""
        return _hash_of(*self.prompt)

    @property
    def digest(self) -> str:
        """Return a hash of the response, by which the same one is known among those of its key."""
        return _hash_of(self.response, self.response_images, self.response_videos)


def _hash_of(*values: Any) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def references(content: Content) -> tuple[str, ...]:
    """Return the references of a content's images. Raise DataError for a video, and for a place without an image."""
    if content.videos:
        raise DataError("a message contains a video, which this route does not read; send it as `videos` to /v1/rewards")
    check_references(content.images)
    return content.images


def check_references(*media: Sequence[Any]) -> None:
    """Raise DataError for an image or a video that is no reference, and for a place without one."""
    for one in (one for some in media for one in some):
        if not (isinstance(one, str) and one):
            raise DataError(f"an image or video is {one!r:.80}; expected a data URL, upload:ID, media:NAME or an allowed URL")


def read_item(item: Mapping[str, Any]) -> Turn:
    """Return the turn of a message, or of another item of the Responses API: tool calls and their results are texts, reasoning
    is dropped. Raise DataError for another item, and for media outside of a message's content."""
    if not isinstance(item, Mapping):
        raise DataError(f"a message is {item!r:.80}; expected an object with role and content")
    match item.get("type", "message"):
        case "message":
            if media := media_beside(item):
                raise DataError(f"a message has {media[0]!r} outside of its content; send images as parts of the content")
            role = str(item.get("role", "user"))
            content = with_tool_calls(read_content(item.get("content")), item, "a message")
            return Turn("system" if role == "developer" else role, content)
        case "function_call":
            return Turn("assistant", Content(f"Tool call: {item.get('name')}({item.get('arguments')})"))
        case "function_call_output":
            result = read_content(item.get("output"))
            return Turn("tool", replace(result, text=f"Tool result: {result.text}"))
        case "reasoning":
            return Turn("assistant", Content())
        case kind:
            raise DataError(
                f"an item is of type {kind!r:.80}; expected message, function_call, function_call_output or reasoning. Judges "
                "do not support others: leave it out"
            )


def read_conversation(messages: Sequence[Mapping[str, Any]]) -> Content:
    """Return the question of a chat: the content of a single turn, or all turns with their roles."""
    turns = [read_item(message) for message in messages]
    if not any(turn.content.text.strip() for turn in turns):
        raise DataError("the conversation has no text; expected at least one user message")
    [question] = place_media([joined_turns(turns)], where="the conversation")
    return question


def read_label(label: Any) -> JsonObject:
    """Return the fields of a label that is a JSON object, with ``media`` (image references), ``question``, ``anchor`` or
    ``criteria``; {} for any other label, such as a bare answer. Raise DataError for a key that appears twice."""
    if isinstance(label, str) and label.lstrip().startswith("{"):
        try:
            label = json.loads(label, object_pairs_hook=without_doubles)
        except (json.JSONDecodeError, RecursionError):
            return {}
        except ValueError as error:
            raise DataError(f"a label cannot be read: {error}") from error
    return dict(label) if isinstance(label, Mapping) else {}


def labeled_sample(question: str, response: str, label: Any = None, images: Sequence[str] = ()) -> Sample:
    """Return a sample of texts without chat markup, of the fields of its label, and of further ``images`` of the question.

    Raise DataError for media or an anchor of another type, and for a question with more or fewer image placeholders than
    images: judged without the image, the reward would be meaningless.
    """
    fields = read_label(label)
    media, anchor = fields.get("media") or [], fields.get("anchor")
    if not isinstance(media, list) or not all(isinstance(reference, str) for reference in media):
        raise DataError(f"a label's media is {media!r:.80}; expected a list of image references such as upload:ID")
    if anchor is not None and not isinstance(anchor, str):
        raise DataError(f"a label's anchor is {anchor!r:.80}; expected a string to compare with")
    where = 'the prompt (images are uploaded, and named in the label as {"media": ["upload:ID"]})'
    [placed] = place_media([Content(str(fields.get("question") or question))], [*media, *images], where=where, rendered=True)
    [placed] = place_media([replace(placed, text=strip_markup(placed.text))], where=where)
    criteria = criteria_of(fields.get("criteria"), "a label")
    return Sample(placed.text, strip_markup(response), placed.images, anchor, criteria=criteria)


def split_samples(texts: Sequence[str]) -> list[Sample]:
    """Return the sample of each decoded sequence. Raise what :func:`split_sequence` and :func:`labeled_sample` raise."""
    return [labeled_sample(*split_sequence(text)) for text in texts]


def chat_sample(messages: Sequence[Mapping[str, Any]]) -> Sample:
    """Return the last turn, the assistant's, as the response to the turns before. Raise DataError for another last turn, and
    for one that calls a tool."""
    if len(messages) < 2 or messages[-1].get("role") != "assistant":
        raise DataError("expected messages that end with the assistant's: a question and the response to be rewarded")
    if messages[-1].get("tool_calls") or messages[-1].get("function_call"):
        raise DataError("the response calls a tool, which judges do not support; include the call in the text")
    return Sample.of(read_conversation(messages[:-1]), read_item(messages[-1]).content)
