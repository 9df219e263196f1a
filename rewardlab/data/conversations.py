"""Texts with media at their places, and conversations: what files, mappings, the Python API, adapters and the server read.

A text holds U+FFFC (``IMAGE_MARK``) at the place of an image and U+FFF9 (``VIDEO_MARK``) at that of a video. Other formats
write ``<image>`` and ``<video>`` and list the media separately (LLaMA-Factory, ms-swift, LLaVA), or send parts (OpenAI,
Qwen, TRL). A conversation is a list of messages: ``{"role", "content"}``, or ShareGPT's ``{"from", "value"}``.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, compress, pairwise, takewhile
from typing import Any, TypeVar

from rewardlab.errors import DataError
from rewardlab.types import IMAGE_MARK, VIDEO_MARK

T = TypeVar("T")
_WRITTEN = {IMAGE_MARK: r"<image>|<ImageHere>", VIDEO_MARK: r"<video>"}
# In a rendered prompt: what the chat templates of Qwen, Llama, Phi, GLM and Gemma write for an image or a video.
_RENDERED = {
    IMAGE_MARK: r"<\|vision_start\|>(?:<\|image_pad\|>)+<\|vision_end\|>|(?:<\|image_pad\|>)+|<\|image(?:_\d+)?\|>"
    r"|<\|vision_start\|>|<start_of_image>",
    VIDEO_MARK: r"<\|vision_start\|>(?:<\|video_pad\|>)+<\|vision_end\|>|(?:<\|video_pad\|>)+",
}
_ANY = re.compile(f"[{IMAGE_MARK}{VIDEO_MARK}]")
_TEXTS = ("text", "input_text", "output_text")  # of parts: of chat templates and OpenAI's chats; of its Responses API
_IMAGES = ("image", "image_url", "input_image")
_VIDEOS = ("video", "video_url")
_KEYS = {IMAGE_MARK: ("image", "image_url", "url", "path", "value"), VIDEO_MARK: ("video", "video_url", "url", "path", "value")}
_BESIDE = ("image", "images", "image_url", "video", "videos", "audio")
_ROLES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "bot": "assistant", "model": "assistant"} | {
    "developer": "system",
    "observation": "tool",
    "function_call": "assistant",
    "function": "assistant",
}


@dataclass(frozen=True)
class Content:
    """A text, and its media in the order of their marks; None for a place whose medium is in a separate list."""

    text: str = ""
    images: tuple[Any, ...] = ()
    videos: tuple[Any, ...] = ()

    def media(self, mark: str) -> tuple[Any, ...]:
        """Return the images for ``IMAGE_MARK``, the videos for ``VIDEO_MARK``."""
        return self.images if mark == IMAGE_MARK else self.videos

    def holding(self, mark: str, text: str, media: Sequence[Any]) -> Content:
        """Return the content with another text and other media of one kind."""
        return replace(self, text=text, **{"images" if mark == IMAGE_MARK else "videos": tuple(media)})

    @property
    def is_text(self) -> bool:
        return not (self.images or self.videos)


@dataclass(frozen=True)
class Turn:
    """One message: "system", "user", "assistant" or "tool", and what it holds."""

    role: str
    content: Content


def read_content(value: Any, where: str = "a message") -> Content:
    """Return the content of a message: a text, or parts of text, images and videos. Neighbouring texts are on lines of their
    own unless a blank separates them. Beside media of parts, a mark within a text is no place and is left out. Raise DataError
    for a part of another kind."""
    if value is None:
        return Content()
    if isinstance(value, str):
        return Content(value)
    if not isinstance(value, list | tuple):
        raise DataError(f"{where}: expected a string, a list of text, image and video parts, or messages, got {value!r:.60}")
    parts = [_read_part(part, where) for part in value]
    has_media = not all(isinstance(part, str) for part in parts)
    texts, media, was_text, end = list[str](), {IMAGE_MARK: list[Any](), VIDEO_MARK: list[Any]()}, False, ""
    for part in parts:
        if isinstance(part, str):
            words = _ANY.sub("", part) if has_media else part
            is_apart = was_text and end and words and not (end.isspace() or words[0].isspace())
            texts += ["\n", words] if is_apart else [words]
            was_text, end = True, words[-1:] or end
        else:
            mark, medium = part
            media[mark].append(medium)
            texts.append(mark)
            was_text, end = False, mark
    return Content("".join(texts), tuple(media[IMAGE_MARK]), tuple(media[VIDEO_MARK]))


def _read_part(part: Any, where: str) -> str | tuple[str, Any]:
    """Return the text of a part, or (mark, medium); the medium is None if the part is a place alone."""
    if isinstance(part, str):
        return part
    fields = part if isinstance(part, Mapping) else {"type": type(part).__name__}
    kind = fields.get("type")
    if kind == "text" and len(fields) == 2 and isinstance(fields.get("text"), str):
        return str(fields["text"])  # most are so
    text = next((fields[key] for key in ("text", "value") if isinstance(fields.get(key), str)), None)
    if kind in _TEXTS and text is not None:
        return _refuse_second(str(text), fields, (), where)
    for mark, kinds in ((IMAGE_MARK, _IMAGES), (VIDEO_MARK, _VIDEOS)):
        medium = next((fields[key] for key in _KEYS[mark] if fields.get(key) is not None), None)
        if kind in kinds or (kind is None and medium is not None and kinds[0] in fields):
            same = [key for key in _KEYS[mark] if is_same(fields.get(key), medium)]
            medium = medium.get("url", medium) if isinstance(medium, Mapping) else medium
            return _refuse_second((mark, medium), fields, same, where)
    if kind is None and isinstance(fields.get("text"), str):
        return _refuse_second(str(fields["text"]), fields, (), where)
    raise DataError(f"{where}: a part is {part!r:.80}; expected a text, image or video part")


def _refuse_second(read: T, fields: Mapping[str, Any], keys: Sequence[str], where: str) -> T:
    """Return what was ``read`` of a part, a text or the medium under ``keys``. Raise DataError for something else in the part,
    which would be lost."""
    others = media_beside(fields)
    if isinstance(read, tuple):
        others += [key for key in ("text", "url", "path") if _holds_something(fields.get(key))]
    if lost := [key for key in others if key not in keys]:
        raise DataError(f"{where}: a part holds {lost[0]!r} besides; expected one text, image or video in each part")
    return read


def _holds_something(value: Any) -> bool:
    """Return whether a field has a value; ``datasets`` writes one without as an object of nulls. Arrays have no truth value."""
    if isinstance(value, Mapping):
        return any(item is not None for item in value.values())
    return value is not None and (hasattr(value, "shape") or bool(value))


def is_same(one: Any, other: Any) -> bool:
    """Return whether two media are equal, arrays among them, which ``==`` compares by element."""
    if one is other:
        return True
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(is_same(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    if hasattr(one, "shape") or hasattr(other, "shape"):
        return getattr(one, "shape", None) == getattr(other, "shape", None) and bool((one == other).all())
    return bool(one == other)


def are_alike(turns: Sequence[Turn]) -> bool:
    """Return whether turns have one role, one text and the same media."""
    (first, content), rest = (turns[0], turns[0].content), turns[1:]
    return not [
        turn
        for turn in rest
        if turn.role != first.role
        or turn.content.text != content.text
        or (turn.content.images is not content.images and not is_same(turn.content.images, content.images))
        or (turn.content.videos is not content.videos and not is_same(turn.content.videos, content.videos))
    ]


def is_conversation(value: Any) -> bool:
    """Return whether a value is a message or a list of messages, not a list of parts."""
    first = value[0] if isinstance(value, list | tuple) and value else value
    return isinstance(first, Mapping) and ("role" in first or "from" in first or "messages" in first)


def read_turns(value: Any, where: str = "the conversation", *, role: str = "user") -> list[Turn]:
    """Return the turns of a conversation: messages, one message, or a text or parts, which are one turn of ``role``. Raise
    DataError for anything else, and for media outside of a message's content, which would be lost."""
    if isinstance(value, Mapping) and "messages" in value:  # OpenAI's preference pairs
        value = value["messages"]
    if not is_conversation(value):
        is_empty = value is None or (isinstance(value, str | list | tuple) and not value)
        return [] if is_empty else [Turn(role, read_content(value, where))]
    turns = []
    for message in [value] if isinstance(value, Mapping) else value:
        if not isinstance(message, Mapping):
            raise DataError(f"{where}: a message is {message!r:.80}; expected an object with role and content")
        if media := media_beside(message):
            raise DataError(f"{where}: a message has {media[0]!r} outside of its content; give media as parts of the content")
        name = str(message.get("role", message.get("from", "user"))).lower()
        content = read_content(message["content"] if "content" in message else message.get("value"), where)
        turns.append(Turn(_ROLES.get(name, name), with_tool_calls(content, message, where)))
    return turns


def with_tool_calls(content: Content, message: Mapping[str, Any], where: str) -> Content:
    """Return the content of a message, and of each tool that it calls a line, ``Tool call: NAME(ARGUMENTS)``. Raise DataError
    for calls in another form than OpenAI's."""
    if not (given := message.get("tool_calls") or message.get("function_call")):
        return content
    lines = [content.text] if content.text else []
    for call in [given] if isinstance(given, Mapping) else given if isinstance(given, list | tuple) else [None]:
        function = call.get("function") or call if isinstance(call, Mapping) else {}
        name, arguments = function.get("name"), function.get("arguments")
        if name is None and arguments is None and isinstance(call, Mapping):
            continue  # an object of nulls
        if not isinstance(name, str):
            raise DataError(f"{where}: a tool call is {call!r:.80}; expected an object with a function's name and arguments")
        lines.append(f"Tool call: {name}({arguments if isinstance(arguments, str) else json.dumps(arguments)})")
    return replace(content, text="\n".join(lines))


def media_beside(item: Mapping[str, Any]) -> list[str]:
    """Return the fields of a message or document with images, videos or sound outside of its text."""
    return [] if item.keys().isdisjoint(_BESIDE) else [name for name in _BESIDE if _holds_something(item.get(name))]


def joined_turns(turns: Iterable[Turn]) -> Content:
    """Return turns as one content: that of a single turn, or every turn after its role, ``User: ...``, a line each. If a turn
    has images as parts, U+FFFC in the text of another is no place and is left out, as within a message."""
    turns = list(turns)
    for mark in (IMAGE_MARK, VIDEO_MARK) if len(turns) > 1 else ():
        if any(turn.content.media(mark) for turn in turns):
            turns = [replace(turn, content=without_empty_places(turn.content, mark)) for turn in turns]
    spoken = [turn for turn in turns if turn.content.text.strip()]
    if len(spoken) == 1:
        return spoken[0].content
    return Content(
        "\n".join(f"{turn.role.capitalize()}: {turn.content.text}" for turn in spoken),
        tuple(image for turn in spoken for image in turn.content.images),
        tuple(video for turn in spoken for video in turn.content.videos),
    )


def split_answers(prompt: Any, answers: Sequence[Any], where: str, *, system: Any = None) -> tuple[Content, list[Content]]:
    """Return (question, answers) of a prompt and two or more answers, each a text or a conversation.

    An answer that is a conversation may begin with the prompt (TRL's implicit prompt): what all answers begin with alike, up
    to the last turn of the user, belongs to the question. An answer that begins with the assistant follows that of the others.
    Raise DataError for an answer that is missing, and if the answers do not follow one question.
    """
    if isinstance(prompt, str) and not system and all(isinstance(answer, str) for answer in answers):
        return Content(prompt), [Content(answer) for answer in answers]
    if missing := [n for n, answer in enumerate(answers) if answer is None]:
        raise DataError(f"{where}: response {missing[0]} is missing; expected a text, parts or messages")
    prompt_turns = read_turns(prompt, f"{where}, question")
    answer_turns = [read_turns(answer, f"{where}, response {n}", role="assistant") for n, answer in enumerate(answers)]
    are_whole = [bool(turns) and turns[0].role != "assistant" for turns in answer_turns]
    if any(are_whole):
        abreast = zip(*compress(answer_turns, are_whole), strict=False)
        alike = [turns[0] for turns in takewhile(are_alike, abreast)]
        if not (users := [n for n, turn in enumerate(alike) if turn.role in ("user", "tool")]):
            raise DataError(f"{where}: the conversations of the answers do not begin with the same question")
        begin = alike[: users[-1] + 1]
        answer_turns = [
            turns[len(begin) :] if is_whole else turns for turns, is_whole in zip(answer_turns, are_whole, strict=True)
        ]
        added = [turn for turn in prompt_turns if not any(are_alike((turn, other)) for other in begin)]
        if all(turn.role == "system" for turn in added):  # the prompt once more
            prompt_turns = [*added, *begin]
        elif prompt_turns[-1].role == "assistant":
            prompt_turns = [*prompt_turns, *begin]
        else:
            raise DataError(
                f"{where}: the prompt is not in the conversations of the answers; expected the question they answer"
            )
    if system and not any(turn.role == "system" for turn in prompt_turns):
        prompt_turns = [Turn("system", read_content(system, f"{where}, system")), *prompt_turns]
    if prompt_turns and prompt_turns[-1].role == "assistant":
        raise DataError(f"{where}: the prompt ends with the assistant; expected a turn of the user, which the answers follow")
    for n, turns in enumerate(answer_turns):
        if turns and turns[0].role != "assistant":
            raise DataError(f"{where}: answer {n} begins with the {turns[0].role}; expected a turn of the assistant")
    return joined_turns(prompt_turns), [joined_turns(turns) for turns in answer_turns]


def place_media(
    contents: Sequence[Content],
    images: Sequence[Any] = (),
    videos: Sequence[Any] = (),
    *,
    where: str,
    rendered: bool = False,
    answers_quote: bool = False,
) -> list[Content]:
    """Return a question and its answers with media from separate lists at their places, in the order of the texts.

    ``<image>`` in the question is a place if there are as many as images. One mark at the beginning may be that of several
    images. Images without a mark, and those whose marks are all at the beginning of the question, come before the text.
    Marks of answers are places if each answer has some, the numbers fit with those of the question, and each such mark is on a
    line of its own or the question has marks, too few for the images: within a sentence ``<image>`` may be quoted.
    With ``rendered`` the marks of chat templates are places, too, and ``<image>`` beside enough of them is text.
    With ``answers_quote``, for answers to be judged, marks are places on lines of their own alone, and text otherwise; images
    without a mark are the question's. Raise DataError if the numbers of marks and media differ, or an answer in a file may
    quote a mark or mean it: media elsewhere would mislead.
    """
    placed = list(contents)
    if all(content.is_text and _has_no_mark(content.text) for content in placed):
        return [Content(placed[0].text, tuple(images), tuple(videos)), *placed[1:]] if images or videos else placed
    for mark, media, name in ((IMAGE_MARK, images, "image"), (VIDEO_MARK, videos, "video")):
        written = re.compile(_WRITTEN[mark])
        if rendered:
            tokens = re.compile(_RENDERED[mark])
            is_enough = media and len(tokens.findall(placed[0].text)) == len(media)
            written = tokens if is_enough else re.compile(f"{tokens.pattern}|{written.pattern}")
        placed = _place(placed, mark, list(media), written, name, where, answers_quote)
    question, *answers = placed
    if len({*question.text} & {IMAGE_MARK, VIDEO_MARK}) == 1 and (text := _ahead(question.text, _ANY)):
        question = question if has_written_mark(text) else replace(question, text=text)
    return [question, *(map(without_empty_places, answers) if answers_quote else answers)]


def without_empty_places(content: Content, marks: str = IMAGE_MARK + VIDEO_MARK) -> Content:
    """Return a content without the characters U+FFFC and U+FFF9 if it has no image or no video for them."""
    for mark in marks:
        if mark in content.text and not content.media(mark):
            content = replace(content, text=content.text.replace(mark, ""))
    return content


def place_own(answer: Content, images: Sequence[Any], videos: Sequence[Any], where: str) -> Content:
    """Return an answer with its own media, at its marks or before its text; without media ``<image>`` is text. Raise DataError
    as :func:`place_media` does."""
    if not (images or videos):
        return answer
    placed = answer
    for mark, media, name in ((IMAGE_MARK, images, "image"), (VIDEO_MARK, videos, "video")):
        [placed] = _place([placed], mark, list(media), re.compile(_WRITTEN[mark]), name, where, answers_quote=False)
    text = placed.text
    for mark in (VIDEO_MARK, IMAGE_MARK):
        text = text if mark in text else mark * len(placed.media(mark)) + text
    return replace(placed, text=text)


def content_parts(content: Content) -> str | list[dict[str, Any]]:
    """Return a content as a text if it has no media, else as the parts that :func:`read_content` reads."""
    if content.is_text:
        return content.text
    rest = {mark: iter(content.media(mark)) for mark in (IMAGE_MARK, VIDEO_MARK)}
    kinds, parts = {IMAGE_MARK: "image", VIDEO_MARK: "video"}, list[dict[str, Any]]()
    for piece in re.split(f"({_ANY.pattern})", content.text):
        if kind := kinds.get(piece):
            parts.append({"type": kind, kind: next(rest[piece])})
        elif piece:
            parts.append({"type": "text", "text": piece})
    return parts


def is_put_second(question: Content, better: Content, worse: Content, *, seed: str = "") -> bool:
    """Return whether the better answer becomes response 1, a coin that the texts decide: sources put it first throughout. If
    the answers have one text, ``seed`` decides too: pairs of pictures with one question must not all have the better first."""
    texts = sorted((better.text, worse.text))  # which is first of these does not depend on which is better
    texts += [seed] if seed and better.text == worse.text else []
    is_odd = bool(hashlib.sha256("\0".join((question.text, *texts)).encode(errors="backslashreplace")).digest()[0] % 2)
    return is_odd if better.text == worse.text else (better.text > worse.text) != is_odd


def _place(
    contents: list[Content],
    mark: str,
    media: list[Any],
    written: re.Pattern[str],
    name: str,
    where: str,
    answers_quote: bool,
) -> list[Content]:
    """Return the contents with the media of one kind at their places."""
    given = [content.media(mark) for content in contents]
    if any(given[1:]) and not given[0] and not any(medium is None for of_answer in given for medium in of_answer):
        return [
            *_place(contents[:1], mark, media, written, name, where, answers_quote),
            *contents[1:],
        ]  # the answers have their own
    if any(given):  # parts say where: marks in their texts are text
        return _fill(contents, mark, media, name, where)
    texts = [content.text for content in contents]
    counts = [text.count(mark) or len(written.findall(text)) for text in texts]
    in_answers = counts[1:]
    fit = any(in_answers) and all(in_answers) and sum(counts) == len(media) and counts[0] != len(media)
    may_be_quoted = counts[0] == 0 or answers_quote
    if fit and (not may_be_quoted or all(_are_lines(text, mark, written) for text in texts[1:])):
        texts, numbers = [_marked(text, mark, written) for text in texts], counts
    elif not answers_quote and any(mark in text for text in texts[1:]):
        raise _other_number(counts, len(media), name, where, mark)
    elif counts[0] == len(media):
        texts[0], numbers = _marked(texts[0], mark, written), [len(media), *(0 for _ in in_answers)]
    elif (answers_quote or not any(in_answers)) and (
        counts[0] == 0 or (counts[0] == 1 and media and _ahead(texts[0], written) is not None)
    ):
        texts[0] = texts[0] if counts[0] == 0 else str(_ahead(texts[0], written))
        numbers = [len(media), *(0 for _ in in_answers)]
    else:
        raise _other_number(counts, len(media), name, where, mark if any(mark in text for text in texts) else "")
    ends = list(accumulate(numbers, initial=0))
    return [
        content.holding(mark, text, media[begin:end])
        for content, text, (begin, end) in zip(contents, texts, pairwise(ends), strict=True)
    ]


def _other_number(counts: Sequence[int], num_media: int, name: str, where: str, mark: str) -> DataError:
    """Return the error for other numbers of marks and media; ``mark`` is the character that the texts hold, "" for none."""
    sign = f"<{name}>" + (f" (the character U+{ord(mark):04X})" if mark else "")
    marks = "is 1 mark" if counts[0] == 1 else f"are {counts[0]} marks"
    media = f"1 {name}" if num_media == 1 else f"{num_media} {name}s"
    in_answers, cure = "", f"give one {name} for each mark, or remove the marks"
    if sum(counts[1:]):
        in_answers = f" and {sum(counts[1:])} in the answers"
        cure = (
            f"mark the places of the question's {name}s by <{name}>, or give those of the answers as parts (in a file also "
            f"as 'response_{name}s')"
        )
    return DataError(f"{where}: there {marks} {sign} in the text{in_answers}, and {media}; {cure}")


def has_written_mark(text: str) -> bool:
    """Return whether a text has ``<image>`` or the like: read again without the places of its media, that would be one."""
    return "<" in text and any(re.search(written, text) for written in _WRITTEN.values())


def _has_no_mark(text: str) -> bool:
    """Return whether a text surely has no mark: searching it takes many times as long."""
    return "<" not in text and IMAGE_MARK not in text and VIDEO_MARK not in text


def _are_lines(text: str, mark: str, written: re.Pattern[str]) -> bool:
    """Return whether each mark of a text is on a line with marks alone."""
    pattern = re.compile(mark) if mark in text else written
    return all(not pattern.sub("", line).strip() for line in text.splitlines() if pattern.search(line))


def _marked(text: str, mark: str, written: re.Pattern[str]) -> str:
    return text if mark in text else written.sub(mark, text)


def _ahead(text: str, written: re.Pattern[str]) -> str | None:
    """Return a text without the marks that it begins with, None if it has others or none."""
    begin = re.match(rf"\s*(?:(?:{written.pattern})\s*)+", text)
    return None if begin is None or written.search(text, begin.end()) else text[begin.end() :]


def _fill(contents: list[Content], mark: str, media: list[Any], name: str, where: str) -> list[Content]:
    """Return contents whose empty places hold ``media``, in their order; media without a place come first in the question."""
    num_empty = sum(medium is None for content in contents for medium in content.media(mark))
    if num_empty != len(media):
        raise DataError(
            f"{where}: {num_empty} {name} parts hold no {name}, and {len(media)} {name}s came with them; give one {name} for "
            "each such part"
        )
    rest = iter(media)
    return [
        content.holding(mark, content.text, [next(rest) if medium is None else medium for medium in content.media(mark)])
        for content in contents
    ]
