"""The pair format, version 2: what a row of a file holds, and how it becomes a pair.

=================  ==================  =================================================================================
column             type                meaning
=================  ==================  =================================================================================
pair_id            string              unique within a set
question           string              an image stands at each U+FFFC, a video at each U+FFF9; without any, media come first
images             list of images      ``{"bytes", "path"}``: embedded, or a path from the file's folder
videos             list of the same    MP4, MOV, WebM, Matroska, AVI; read as frames
responses          list of 2 strings   with a U+FFFC for each of its own images, a U+FFF9 for each of its own videos
response_images    2 lists of images
response_videos    2 lists of videos
preferred          int8                0 or 1, the better response; null: unknown, or neither (in JSON also "tie", "Both bad")
tie                string              "tie" or "both_bad": people called them so; "": no tie
category, source   string
truth              string              what a rule compares responses with, if not the preferred one's final answer
licence            string              of the source, as it names it
level              int8                0..127, difficulty by its maker; null: unknown
attempts           string              "1".."3": the teacher's first right answer; "unsolved"; "": not asked
teacher_share      float32             0..1, share of the teacher's votes over both orders for ``preferred``; null: not asked
order              string              "given" or "swapped": how ``judgment`` saw the responses
judgment           string              a teacher's reasoned verdict, "" without
provenance         string              ``RECIPE:HASH``, the SHA-256 (16 digits) of the source's row
ratings            list of ratings     of single people, each as a line of :mod:`rewardlab.data.ratings` without ``pair_id``
systems            list of 2 strings   names of the models that wrote the responses; empty: not known
criteria           list of criteria    ``{"name", "weight", "description"}``: what a judge is to judge by; empty: it chooses
others             list of strings     further responses for judges of lists, from better to worse, all worse than the pair's
=================  ==================  =================================================================================

Only ``question``, ``responses`` and ``preferred`` are required. A column of another name is an error unless it is allowed
(:mod:`rewardlab.data.columns`). In JSON lines an image or a video is a path, and a question or a response may be a list of
parts: ``{"type": "text", "text": ...}``, ``{"type": "image", "image": PATH}``, ``{"type": "video", "video": PATH}``. A
truth may also be a number, a list or an object, and a criterion its name alone.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from numbers import Real
from typing import Any

from rewardlab.data.columns import AllowedColumns
from rewardlab.data.conversations import Content, place_media, place_own, split_answers, without_empty_places
from rewardlab.data.files import has_lone_surrogate
from rewardlab.data.images import blank_like
from rewardlab.data.media import Files
from rewardlab.data.qwen_video import VideoPolicy
from rewardlab.data.ratings import RATING_FIELDS, rating_of, rating_record, tie_of
from rewardlab.data.video import frames_of_video
from rewardlab.errors import DataError, MediaError
from rewardlab.types import IMAGE_MARK, VIDEO_MARK, Candidates, Criterion, Order, PreferencePair, Tie
from rewardlab.verdicts.checklist import WEIGHT

VERSION = 2
TEXTS = ("category", "source", "licence", "attempts", "judgment", "provenance", "truth")
_ORDERS = ("", *Order)  # of a row
FRAMES = 8  # default number of frames of a video
BLANK = 240  # grey of a blank image, 0..255


def validate(pair: PreferencePair, *, where: str) -> PreferencePair:
    """Return the pair if it can be judged, and written. Raises DataError for a lone surrogate, an empty question, empty or
    equal responses, a bad label."""
    texts = {"pair_id": pair.pair_id, "question": pair.question, "responses": "".join(pair.responses)}
    texts |= {"systems": "".join(pair.systems)} | {name: getattr(pair, name) for name in TEXTS}
    if damaged := next((name for name, text in texts.items() if has_lone_surrogate(text)), None):
        raise DataError(f"{where}: {damaged!r} contains half a surrogate pair, which is not a valid character; clean it up")
    if not pair.question.strip():
        raise DataError(f"{where}: the question is empty")
    if not all(response.strip() for response in pair.responses):
        raise DataError(f"{where}: a response is empty; both must be non-empty text")
    same = pair.responses[0].strip() == pair.responses[1].strip()
    if same and not _differ_in_media(pair):
        raise DataError(f"{where}: the two responses are equal, so neither can be better; drop the pair")
    is_array = bool(getattr(pair.preferred, "shape", ()))  # which has no truth value
    if is_array or pair.preferred not in (0, 1, None) or isinstance(pair.preferred, bool | float):
        raise DataError(f"{where}: preferred is {pair.preferred!r:.60}; expected 0 or 1, the index of the better response")
    return pair


def _differ_in_media(pair: PreferencePair) -> bool:
    """Return whether responses of one text differ in their media; those of a judge of texts are not read, and may."""
    first, second = (pair.response_images[n] + pair.response_videos[n] for n in (0, 1))
    return bool({IMAGE_MARK, VIDEO_MARK} & {*pair.responses[0]}) and not (first and first == second)


COLUMNS = (
    *("pair_id", "question", "images", "videos", "responses", "response_images", "preferred", "category", "source"),
    *("response_videos", "tie", "licence", "level", "attempts", "teacher_share", "order", "judgment", "provenance"),
    *("ratings", "systems", "truth", "criteria", "others"),
)


def features() -> Any:
    """Return the columns as ``datasets`` knows them."""
    from datasets import Features, Image, List, Value

    kinds = {
        "images": List(Image()),
        "videos": List({"bytes": Value("binary"), "path": Value("string")}),
        "response_videos": List(List({"bytes": Value("binary"), "path": Value("string")})),
        "responses": List(Value("string")),
        "response_images": List(List(Image())),
        "preferred": Value("int8"),
        "level": Value("int8"),
        "teacher_share": Value("float32"),
        "ratings": List({name: Value("string") for name in RATING_FIELDS}),
        "systems": List(Value("string")),
        "others": List(Value("string")),
        "criteria": List({"name": Value("string"), "weight": Value("float64"), "description": Value("string")}),
    }
    return Features({name: kinds.get(name, Value("string")) for name in COLUMNS})


def to_row(pair: PreferencePair) -> dict[str, Any]:
    """Return the row of a pair, media embedded, its columns in the order of the format."""
    row = {name: getattr(pair, name) for name in COLUMNS}
    return row | {
        "images": _embedded(pair.images),
        "videos": _embedded(pair.videos),
        "responses": list(pair.responses),
        "response_images": [_embedded(images) for images in pair.response_images],
        "response_videos": [_embedded(videos) for videos in pair.response_videos],
        "order": pair.order.value,
        "tie": pair.tie.value if pair.tie else "",
        "ratings": [rating_record(rating) for rating in pair.ratings],
        "systems": list(pair.systems) if any(pair.systems) else [],
        "criteria": list(map(asdict, pair.criteria)),
        "others": list(pair.others),
    }


def _embedded(media: Sequence[bytes]) -> list[dict[str, bytes | None]]:
    return [{"bytes": data, "path": None} for data in media]


def from_row(
    row: Mapping[str, Any],
    *,
    index: int,
    files: Files | None = None,
    where: str = "row",
    columns: AllowedColumns | None = None,
    place: str = "",
    answers_quote: bool = False,
) -> PreferencePair:
    """Return one checked pair, its videos as files; ``columns``: other columns that may be in the row (None: none);
    ``answers_quote`` as in :func:`rewardlab.data.conversations.place_media`. Raises DataError or MediaError, naming the row and
    ``place``, words for its file and line; UnreadColumnsError, with the rest of the row, for columns of other names.

    A whole number may be 1.0 and a missing one NaN: pandas keeps columns with gaps as floats.
    """
    within, where, files = where, f"{where} {index}{place}", files or Files()
    if not isinstance(row, Mapping):
        raise DataError(f"{where}: expected an object with question, responses and preferred, got {row!r:.80}")
    responses = row.get("responses")
    if not (isinstance(responses, list | tuple) and len(responses) == 2):
        raise DataError(f"{where}: 'responses' must be a list of two strings, got {responses!r:.80}")
    if unread := (columns or AllowedColumns()).unread(row, where):
        rest = {name: value for name, value in row.items() if name not in unread.columns}
        try:
            unread.rest = from_row(rest, index=index, files=files, where=within, columns=columns, place=place)
        except (DataError, MediaError) as error:
            unread.rest = error
        raise unread
    question, answers = _contents(row, responses, where, answers_quote)
    order, named = row.get("order"), row.get("pair_id")
    if order is not None and (not isinstance(order, str) or order not in _ORDERS):
        raise DataError(f"{where}: 'order' is {order!r:.60}; expected given or swapped")
    texts: dict[str, str] = {}
    for name in TEXTS:
        text = row.get(name)
        if name == "truth" and text is not None:
            text = truth_text(text)
        if not (text is None or isinstance(text, str)) and (hasattr(text, "shape") or text):
            raise DataError(f"{where}: {name!r} must be a string, got {text!r:.60}")
        texts[name] = text or ""
    if not (named is None or isinstance(named, str | int | float)) and (hasattr(named, "shape") or named):
        raise DataError(f"{where}: 'pair_id' must be a string or a number, got {named!r:.60}")
    preferred, tie = _label(row, where)
    level, share = _number(row.get("level")), _number(row.get("teacher_share"))
    if level is not None and (not isinstance(level, int) or not 0 <= level < 128):
        raise DataError(f"{where}: 'level' is {level!r:.60}; expected a whole number from 0 to 127, or nothing")
    if share is not None and not (isinstance(share, int | float) and 0 <= share <= 1):
        raise DataError(f"{where}: 'teacher_share' is {share!r:.60}; expected a number from 0 to 1, or nothing")
    fields_of_row: dict[str, Any] = {**texts, **_lists(row, where)}
    pair = PreferencePair(
        pair_id=str(named or f"row-{index}"),
        question=question.text,
        responses=(answers[0].text, answers[1].text),
        preferred=preferred,
        tie=tie,
        images=_images(question.images, files, where),
        level=level,
        order=Order(order or "given"),
        response_images=(_images(answers[0].images, files, where), _images(answers[1].images, files, where)),
        videos=_videos(question.videos, files, where),
        response_videos=(_videos(answers[0].videos, files, where), _videos(answers[1].videos, files, where)),
        teacher_share=share,
        **fields_of_row,
    )
    check_marks(pair, where)
    return validate(pair, where=where)


_LISTS = frozenset(("ratings", "systems", "criteria", "others"))


def _lists(row: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the fields of a pair that few rows have. Raise DataError."""
    if not row.keys() & _LISTS:
        return {}
    ratings, others = _list(row, "ratings", where), _list(row, "others", where)
    if not all(isinstance(text, str) and text.strip() for text in others):
        raise DataError(f"{where}: 'others' is {others!r:.60}; expected a list of texts, further responses to the question")
    if any(has_lone_surrogate(text) or IMAGE_MARK in text or VIDEO_MARK in text for text in others):
        raise DataError(
            f"{where}: 'others' contains half a surrogate pair or a placeholder of media; only texts are read there"
        )
    return {
        "ratings": tuple(rating_of(value, f"{where}, rating {n}") for n, value in enumerate(ratings)),
        "systems": systems_of(_list(row, "systems", where), where),
        "criteria": criteria_of(row.get("criteria"), where),
        "others": tuple(others),
    }


def truth_text(value: Any) -> Any:
    """Return a truth as the format holds it: a number, a list (boxes, tests) or an object (constraints) as JSON. A whole number
    may be 3.0 and a missing one NaN, as in other columns; what JSON does not have is returned as it is."""
    value = _number(value)
    if not isinstance(value, int | float | list | dict):
        return value
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):  # bytes: a mask that is named truth
        return value


def candidates_from_row(
    row: Mapping[str, Any],
    responses: Sequence[Any],
    *,
    prompt_id: str,
    files: Files,
    where: str,
    answers_quote: bool = False,
) -> Candidates:
    """Return the ``question`` of a row with its ``criteria``, and its ``responses``, each in any form of
    :mod:`rewardlab.data.conversations`, videos as :data:`FRAMES` frames; ``answers_quote`` as in
    :func:`rewardlab.data.conversations.place_media`. Raise DataError or MediaError."""
    question, answers = _contents(row, responses, where, answers_quote)

    def with_media(content: Content) -> tuple[str, tuple[bytes, ...]]:
        images, videos = _images(content.images, files, where), _videos(content.videos, files, where)
        return text_with_frames(content.text, images, [frames_of_video(video, FRAMES, where=where) for video in videos])

    text, images = with_media(question)
    if not text.strip():
        raise DataError(f"{where}: the question is empty")
    read = [with_media(answer) for answer in answers]
    of_responses = tuple(images for _, images in read) if any(images for _, images in read) else ()
    criteria = criteria_of(row.get("criteria"), where)
    return Candidates(prompt_id, text, tuple(text for text, _ in read), images, response_images=of_responses, criteria=criteria)


def _contents(
    row: Mapping[str, Any], responses: Sequence[Any], where: str, answers_quote: bool = False
) -> tuple[Content, list[Content]]:
    """Return the question and the answers of a row with their media in their places."""
    question, answers = split_answers(row.get("question"), responses, where)
    images, videos = _list(row, "images", where), _list(row, "videos", where)
    own_images, own_videos = _list(row, "response_images", where), _list(row, "response_videos", where)
    if not (own_images or own_videos):
        question, *answers = place_media([question, *answers], images, videos, where=where, answers_quote=answers_quote)
        return question, answers
    for name, lists in (("response_images", own_images), ("response_videos", own_videos)):
        if lists and (len(lists) != len(answers) or not all(isinstance(media, list | tuple) for media in lists)):
            raise DataError(f"{where}: {name!r} must be a list for each response (two lists for a pair), got {lists!r:.80}")
    [question] = place_media([question], images, videos, where=where)
    if any(own_images) or any(own_videos):
        nothing: list[Sequence[Any]] = [()] * len(answers)
        answers = [
            place_own(answer, of_images, of_videos, f"{where}, response {n}")
            for n, (answer, of_images, of_videos) in enumerate(
                zip(answers, own_images or nothing, own_videos or nothing, strict=True)
            )
        ]  # if all are empty, as in files that rewardlab wrote, a mark in an answer is text
    return question, list(map(without_empty_places, answers)) if answers_quote else answers


def systems_of(names: Sequence[Any], where: str) -> tuple[str, str]:
    """Return the names of the systems that wrote the two responses, "" of both if there are none. Raise DataError."""
    if any(not (name is None or isinstance(name, str)) for name in names) or len(names) not in (0, 2):
        raise DataError(f"{where}: 'systems' is {names!r:.80}; expected a list of two names, one for each response")
    first, second = ((name or "").strip() for name in names) if names else ("", "")
    return first, second


MAX_CRITERIA = 16
MAX_DESCRIPTION = 1000
_NAME = re.compile(r"(?!.* x[\d.]+$)[^\[\]<>\n]{1,80}")  # as it is written in a checklist: [NAME x2]


def criteria_of(value: Any, where: str) -> tuple[Criterion, ...]:
    """Return the criteria of a row: names, or objects with the fields of a Criterion, "" and None for none. Raise DataError for
    more than :data:`MAX_CRITERIA`, two of one name, and a weight that is not above 0."""
    is_missing = value is None or (isinstance(value, float) and math.isnan(value))
    values = [] if is_missing else [value] * bool(value.strip()) if isinstance(value, str) else value
    values = list(values) if hasattr(values, "tolist") and getattr(values, "ndim", 0) == 1 else values  # of numpy
    if not isinstance(values, list | tuple) or len(values) > MAX_CRITERIA:
        raise DataError(f"{where}: 'criteria' is {value!r:.60}; expected a list of at most {MAX_CRITERIA} criteria")
    criteria = tuple(_criterion(item, where) for item in values)
    if len({criterion.name for criterion in criteria}) < len(criteria):
        raise DataError(f"{where}: two criteria have one name; expected each once")
    return criteria


def _criterion(value: Any, where: str) -> Criterion:
    given = {"name": value} if isinstance(value, str) else value
    names = [field.name for field in fields(Criterion)]
    if not isinstance(given, Mapping) or not {"name"} <= given.keys() <= {*names}:
        raise DataError(f"{where}: a criterion is {value!r:.60}; expected a name, or an object with {', '.join(names)}")
    name, description, weight = given["name"], given.get("description") or "", given.get("weight")
    weight = 1.0 if weight is None else weight
    if not isinstance(name, str) or not _NAME.fullmatch(name := name.strip()) or not name.isprintable():
        raise DataError(
            f"{where}: a criterion's name is {name!r:.60}; expected up to 80 characters on one line, without brackets, < and > "
            'and without a weight such as " x2" at the end'
        )
    if not isinstance(description, str) or len(description := " ".join(description.split())) > MAX_DESCRIPTION:
        raise DataError(
            f"{where}: the description of the criterion {name!r:.60} is {description!r:.40}; expected a text of at most "
            f"{MAX_DESCRIPTION} characters"
        )
    if has_lone_surrogate(name + description) or IMAGE_MARK in name + description or VIDEO_MARK in name + description:
        raise DataError(f"{where}: the criterion {name!r:.60} contains half a surrogate pair or a placeholder of media")
    if isinstance(weight, bool) or not isinstance(weight, Real) or not re.fullmatch(WEIGHT, f"{weight:g}") or not weight:
        raise DataError(
            f"{where}: the weight of the criterion {name!r:.60} is {weight!r:.40}; expected a number from 0.0001 to 999"
        )
    return Criterion(name, float(weight), description)


def _label(row: Mapping[str, Any], where: str) -> tuple[Any, Tie | None]:
    """Return (preferred, tie) of a row; :func:`validate` looks at the first."""
    preferred, tie = _number(row.get("preferred")), _number(row.get("tie"))
    if isinstance(preferred, str) and tie_of(preferred):
        preferred, tie = None, tie or preferred
    if tie is None or (not hasattr(tie, "shape") and not tie):
        return preferred, None
    if not isinstance(tie, str) or (read := tie_of(tie)) is None or preferred is not None:
        raise DataError(
            f"{where}: 'tie' is {tie!r:.40} and 'preferred' {preferred!r:.40}; expected tie or both_bad, and no preferred"
        )
    return None, read


def _number(value: Any) -> Any:
    """Return a whole float as an integer, None for NaN, and anything else unchanged."""
    if not isinstance(value, float):
        return value
    return None if math.isnan(value) else int(value) if value.is_integer() else value


def _list(row: Mapping[str, Any], name: str, where: str) -> Sequence[Any]:
    value = row.get(name)
    if value is None:
        return []
    if not isinstance(value, list | tuple):
        raise DataError(f"{where}: {name!r} must be a list, got {value!r:.80}")
    return value


def _images(values: Sequence[Any], files: Files, where: str) -> tuple[bytes, ...]:
    return tuple(files.image(image, f"{where}, image {n}") for n, image in enumerate(values)) if values else ()


def _videos(values: Sequence[Any], files: Files, where: str) -> tuple[bytes, ...]:
    return tuple(files.video(video, f"{where}, video {n}") for n, video in enumerate(values)) if values else ()


def check_marks(pair: PreferencePair, where: str) -> None:
    """Raise DataError if a text has more or fewer placeholders than there are media."""
    for name, text, images, videos in (("question", pair.question, pair.images, pair.videos), *_responses(pair)):
        if not (images or videos) and text.isascii():
            continue
        for mark, kind, media in ((IMAGE_MARK, "images", images), (VIDEO_MARK, "videos", videos)):
            if (places := text.count(mark)) != len(media) and (places or name != "question"):
                raise DataError(f"{where}: the {name} has {places} of the placeholders for {kind}, and {len(media)} {kind}")


def _responses(pair: PreferencePair) -> list[tuple[str, str, tuple[bytes, ...], tuple[bytes, ...]]]:
    """Return ("response", text, images, videos) of either response."""
    return [("response", *of) for of in zip(pair.responses, pair.response_images, pair.response_videos, strict=True)]


def with_frames(
    pair: PreferencePair, number: int = FRAMES, *, where: str = "", policy: VideoPolicy | None = None
) -> PreferencePair:
    """Return the pair with at most ``number`` frames of each video, sampled by ``policy``, among its images: at the video's
    placeholder or, in a question without any, after all images. Raises MediaError for a video that cannot be read."""
    if not (pair.videos or any(pair.response_videos)):
        return pair
    sampling = policy() if policy else None

    def sampled(text: str, images: tuple[bytes, ...], videos: tuple[bytes, ...]) -> tuple[str, tuple[bytes, ...]]:
        frames = [frames_of_video(video, number, where=where or pair.pair_id, policy=sampling) for video in videos]
        return text_with_frames(text, images, frames)

    question, images = sampled(pair.question, pair.images, pair.videos)
    first, second = (sampled(text, images, videos) for _, text, images, videos in _responses(pair))
    return replace(
        pair,
        question=question,
        images=images,
        videos=(),
        responses=(first[0], second[0]),
        response_images=(first[1], second[1]),
        response_videos=((), ()),
    )


def text_with_frames(text: str, images: Sequence[bytes], videos: Sequence[Sequence[bytes]]) -> tuple[str, tuple[bytes, ...]]:
    """Return a text and its images with the frames of each video at its place, or after the images."""
    if not videos:
        return text, tuple(images)
    all_frames = [frame for frames in videos for frame in frames]
    if VIDEO_MARK not in text and IMAGE_MARK not in text:
        return text, (*images, *all_frames)
    text_so_far, shown_images = "", list[bytes]()
    next_images, next_videos = iter(images), iter(videos)
    if VIDEO_MARK not in text:
        text_so_far, shown_images = IMAGE_MARK * len(all_frames), all_frames
    if IMAGE_MARK not in text:
        text_so_far, shown_images = IMAGE_MARK * len(images), list(images)
    for piece in re.split(f"([{IMAGE_MARK}{VIDEO_MARK}])", text):
        if piece == VIDEO_MARK:
            frames = next(next_videos)
            text_so_far, shown_images = text_so_far + IMAGE_MARK * len(frames), [*shown_images, *frames]
        else:
            text_so_far += piece
            shown_images += [next(next_images)] if piece == IMAGE_MARK else []
    return text_so_far, tuple(shown_images)


def media_of(pair: PreferencePair) -> tuple[bytes, ...]:
    """Return all encoded files of a pair."""
    of_responses = (*pair.response_images[0], *pair.response_images[1], *pair.response_videos[0], *pair.response_videos[1])
    return (*pair.images, *of_responses, *pair.videos)


def provenance(recipe: str, row: Mapping[str, Any]) -> str:
    """Return ``RECIPE:HASH`` of a source's row; media count by their content."""

    def plain(value: Any) -> Any:
        return hashlib.sha256(value).hexdigest() if isinstance(value, bytes | bytearray) else str(value)

    text = json.dumps(row, sort_keys=True, ensure_ascii=False, default=plain)
    return f"{recipe}:{hashlib.sha256(text.encode(errors='backslashreplace')).hexdigest()[:16]}"


def with_blank_images(pairs: Sequence[PreferencePair]) -> list[PreferencePair]:
    """Replace every image by a grey one of its size: a judge that still wins does not need the image. Those of response 1 are a
    shade of 255 darker, or responses that are images would be equal."""

    def blank(images: Sequence[bytes], shade: int) -> tuple[bytes, ...]:
        return tuple(blank_like(image, shade) for image in images)

    return [
        replace(
            pair,
            images=blank(pair.images, BLANK),
            response_images=(blank(pair.response_images[0], BLANK), blank(pair.response_images[1], BLANK - 1)),
        )
        for pair in pairs
    ]


def with_other_images(pairs: Sequence[PreferencePair]) -> list[PreferencePair]:
    """Return every pair with the images of another: the next pair, from half-way down the list on, with as many and different
    images. Images within responses stay. Raises DataError if there is no such pair."""

    def other(n: int) -> tuple[bytes, ...]:
        for step in range(len(pairs)):
            images = pairs[(n + len(pairs) // 2 + step) % len(pairs)].images
            if len(images) == len(pairs[n].images) and images != pairs[n].images:
                return images
        raise DataError("no pair has images other than its neighbours'; there is no other image to show")

    return [replace(pair, images=other(n)) if pair.images else pair for n, pair in enumerate(pairs)]
