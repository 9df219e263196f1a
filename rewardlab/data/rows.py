"""The pair format, version 2: what a row of a file holds, and how it becomes a pair.

=================  ==================  =================================================================================
column             type                meaning
=================  ==================  =================================================================================
pair_id            string              unique within a set
question           string              an image stands at each U+FFFC, a video at each U+FFF9; without any, media come first
images             list of images      ``{"bytes", "path"}``: embedded, or a path from the file's folder
videos             list of the same    MP4, MOV, WebM, Matroska, AVI; read as frames
responses          list of 2 strings   with a U+FFFC for each of its own images
response_images    2 lists of images
preferred          int8                0 or 1, the better response; null: unknown
category, source   string
licence            string              of the source, as it names it
level              int8                0..127, difficulty by its maker; null: unknown
attempts           string              "1".."3": the teacher's first right answer; "unsolved"; "": not asked
teacher_share      float32             0..1, share of the teacher's votes over both orders for ``preferred``; null: not asked
order              string              "given" or "swapped": how ``judgment`` saw the responses
judgment           string              a teacher's reasoned verdict, "" without
provenance         string              ``RECIPE:HASH``, the SHA-256 (16 digits) of the source's row
=================  ==================  =================================================================================

Only ``question``, ``responses`` and ``preferred`` are required. A column of another name is an error unless it is allowed
(:mod:`rewardlab.data.columns`). In JSON lines an image or a video is a path, and a question or a response may be a list of
parts: ``{"type": "text", "text": ...}``, ``{"type": "image", "image": PATH}``, ``{"type": "video", "video": PATH}``.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rewardlab.data.columns import AllowedColumns
from rewardlab.data.files import leads_out
from rewardlab.data.images import blank_like, from_data_url, plain_image, refuse_devices
from rewardlab.data.qwen_video import VideoPolicy
from rewardlab.data.video import frames_of_video
from rewardlab.errors import DataError, MediaError
from rewardlab.types import IMAGE_MARK, VIDEO_MARK, Order, PreferencePair

VERSION = 2
TEXTS = ("category", "source", "licence", "attempts", "judgment", "provenance")
FRAMES = 8  # default number of frames of a video


def _has_lone_surrogate(text: str) -> bool:
    try:
        text.encode()  # much faster than a search
    except UnicodeEncodeError:
        return True
    return False


def validate(pair: PreferencePair, *, where: str) -> PreferencePair:
    """Return the pair if it can be judged, and written. Raises DataError for a lone surrogate, an empty question, empty or
    equal responses, a bad label."""
    texts = {"pair_id": pair.pair_id, "question": pair.question, "responses": "".join(pair.responses)}
    texts |= {name: getattr(pair, name) for name in TEXTS}
    if damaged := next((name for name, text in texts.items() if _has_lone_surrogate(text)), None):
        raise DataError(f"{where}: {damaged!r} contains half a surrogate pair, which is not a valid character; clean it up")
    if not pair.question.strip():
        raise DataError(f"{where}: the question is empty")
    if not all(response.strip() for response in pair.responses):
        raise DataError(f"{where}: a response is empty; both must be non-empty text")
    same = pair.responses[0].strip() == pair.responses[1].strip()
    images = pair.response_images  # empty for a judge of texts: images that are not read may differ
    if same and (IMAGE_MARK not in pair.responses[0] or (images[0] and images[0] == images[1])):
        raise DataError(f"{where}: the two responses are equal, so neither can be better; drop the pair")
    if pair.preferred not in (0, 1, None) or isinstance(pair.preferred, bool | float):
        raise DataError(f"{where}: preferred is {pair.preferred!r}; expected 0 or 1, the index of the better response")
    return pair


COLUMNS = (
    *("pair_id", "question", "images", "videos", "responses", "response_images", "preferred", "category", "source"),
    *("licence", "level", "attempts", "teacher_share", "order", "judgment", "provenance"),
)


def features() -> Any:
    """Return the columns as ``datasets`` knows them."""
    from datasets import Features, Image, List, Value

    kinds = {
        "images": List(Image()),
        "videos": List({"bytes": Value("binary"), "path": Value("string")}),
        "responses": List(Value("string")),
        "response_images": List(List(Image())),
        "preferred": Value("int8"),
        "level": Value("int8"),
        "teacher_share": Value("float32"),
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
        "order": pair.order.value,
    }


def _embedded(media: Sequence[bytes]) -> list[dict[str, bytes | None]]:
    return [{"bytes": data, "path": None} for data in media]


@dataclass(frozen=True)
class Files:
    """Where a row's media are: paths start at ``folder``; with ``checked`` embedded images were checked when written.

    A relative path that is outside ``folder`` by ``..`` is refused, unless ``is_callers`` says that the caller and no
    file named it. An absolute path is read, and links are followed. ``undecodable``, for readers that do not look at images,
    takes images that cannot be decoded, with the reason (None: they are errors); a missing image is an error all the same.
    """

    folder: Path = Path()
    checked: bool = False
    is_callers: bool = False
    undecodable: dict[bytes, str] | None = None

    def file_of(self, path: str, where: str) -> Path:
        """Return the file that a row's ``path`` names. Raise MediaError for a relative one out of the folder."""
        if not self.is_callers and leads_out(path):
            raise MediaError(
                f"{where}: {path:.160} is outside {self.folder}, which paths are relative to; set --images to a "
                "folder with all media and use paths relative to it, or absolute paths"
            )
        return self.folder / path

    def image(self, value: Any, where: str) -> bytes:
        """Return an image of a row: ``{"bytes", "path"}``, a path, or a data URL. Raises MediaError that names ``where``."""
        data = value.get("bytes") if isinstance(value, Mapping) else None
        if isinstance(data, bytes) and data:
            return data if self.checked else self._plain(data, where)
        path = path_of_medium(value, "image", where)
        if path.startswith("data:"):
            return self._plain(from_data_url(path, where=where), where)
        file = self.file_of(path, where)
        where = place_of(where, file)
        return self._plain(read_media(file, where), where)

    def _plain(self, data: bytes, where: str) -> bytes:
        try:
            return plain_image(data, where=where)
        except MediaError as error:
            if self.undecodable is None or not data:
                raise
            self.undecodable.setdefault(data, str(error))
            return data

    def video(self, value: Any, where: str) -> bytes:
        """Return a video file, undecoded. Raises MediaError."""
        data = value.get("bytes") if isinstance(value, Mapping) else None
        if isinstance(data, bytes) and data:
            return data
        file = self.file_of(path_of_medium(value, "video", where), where)
        where = place_of(where, file)
        if not (data := read_media(file, where)):
            raise MediaError(f"{where}: the file is empty; expected a video")
        return data


def read_media(file: Path, where: str) -> bytes:
    """Return the bytes of a media file. Raises MediaError."""
    try:
        refuse_devices(file, where)
        return file.read_bytes()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise MediaError(f"{where}: cannot be read ({why}); check --images and the file name") from error


def path_of_medium(value: Any, kind: str, where: str) -> str:
    """Return the path, or the data URL, of an image or a video (``kind``) without bytes. Raises MediaError if there is none."""
    path = value.get("path") if isinstance(value, Mapping) else value
    if isinstance(value, Mapping) and path is None:
        raise MediaError(f"{where}: holds neither bytes nor a path; give one of them, or remove the {kind} from the list")
    if not isinstance(path, str):
        raise MediaError(f"{where}: expected the path of the {kind}, or {{'bytes': ...}}, got {type(path).__name__}")
    if not path.strip():
        raise MediaError(f"{where}: the path is empty; give the path of a file, or an empty list for no {kind}")
    if _URL.match(path):
        raise MediaError(f"{where}: {path:.80} is not fetched; download the {kind} and give its path")
    return path


def place_of(where: str, file: Path) -> str:
    """Return the name of a media file in messages, cut to 160 characters."""
    return f"{where}, {file!s:.160}"


_URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.I)


@dataclass
class _Content:
    """A text and the media in it."""

    text: str
    images: list[Any]
    videos: list[Any]

    @staticmethod
    def of(value: Any, name: str, where: str) -> _Content:
        """Read a text, or a list of parts. Raises DataError."""
        if isinstance(value, str):
            return _Content(value, [], [])
        content = _Content("", [], [])
        for part in value if isinstance(value, list | tuple) else [None]:
            fields = part if isinstance(part, Mapping) else {}
            kind = fields.get("type")
            if kind == "text" and isinstance(fields.get("text"), str):
                content.text += fields["text"]
            elif kind == "image" and fields.get("image"):
                content.text += IMAGE_MARK
                content.images.append(fields["image"])
            elif kind == "video" and fields.get("video"):
                content.text += VIDEO_MARK
                content.videos.append(fields["video"])
            else:
                raise DataError(
                    f"{where}: {name!r} must be a string, or a list of text, image and video parts; got {part!r:.80}"
                )
        return content


def from_row(
    row: Mapping[str, Any],
    *,
    index: int,
    files: Files | None = None,
    where: str = "row",
    columns: AllowedColumns | None = None,
    place: str = "",
) -> PreferencePair:
    """Return one checked pair, its videos as files; ``columns``: other columns that may be in the row (None: none). Raises
    DataError or MediaError, naming the row and ``place``, words for its file and line; UnreadColumnsError, with the rest of the
    row, for columns of other names.

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
    question = _Content.of(row.get("question"), "question", where)
    contents = [_Content.of(response, "responses", where) for response in responses]
    if any(VIDEO_MARK in content.text for content in contents):
        raise DataError(f"{where}: a response contains a video, which judges do not support; give its frames as images")
    if row.get("order") not in (None, "", *Order):
        raise DataError(f"{where}: 'order' is {row['order']!r}; expected given or swapped")
    for name in TEXTS:
        if not isinstance(row.get(name) or "", str):
            raise DataError(f"{where}: {name!r} must be a string, got {row[name]!r:.60}")
    level, share = _number(row.get("level")), _number(row.get("teacher_share"))
    if level is not None and (not isinstance(level, int) or not 0 <= level < 128):
        raise DataError(f"{where}: 'level' is {level!r}; expected a whole number from 0 to 127, or nothing")
    if share is not None and not (isinstance(share, int | float) and 0 <= share <= 1):
        raise DataError(f"{where}: 'teacher_share' is {share!r}; expected a number from 0 to 1, or nothing")
    response_images = _list(row, "response_images", where) or [[], []]
    if len(response_images) != 2 or not all(isinstance(images, list | tuple) for images in response_images):
        raise DataError(f"{where}: 'response_images' must be two lists, got {response_images!r:.80}")
    pair = PreferencePair(
        pair_id=str(row.get("pair_id") or f"row-{index}"),
        question=question.text,
        responses=(contents[0].text, contents[1].text),
        preferred=_number(row.get("preferred")),
        images=_images([*question.images, *_list(row, "images", where)], files, where),
        level=level,
        order=Order(row.get("order") or "given"),
        response_images=(
            _images([*contents[0].images, *response_images[0]], files, where),
            _images([*contents[1].images, *response_images[1]], files, where),
        ),
        videos=tuple(
            files.video(video, f"{where}, video {n}")
            for n, video in enumerate([*question.videos, *_list(row, "videos", where)])
        ),
        teacher_share=share,
        **{name: row.get(name) or "" for name in TEXTS},
    )
    check_marks(pair, where)
    return validate(pair, where=where)


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
    return tuple(files.image(image, f"{where}, image {n}") for n, image in enumerate(values))


def check_marks(pair: PreferencePair, where: str) -> None:
    """Raise DataError if a text has more or fewer placeholders than there are media."""
    for text, images in zip(pair.responses, pair.response_images, strict=True):
        if text.count(IMAGE_MARK) != len(images):
            raise DataError(
                f"{where}: a response has {text.count(IMAGE_MARK)} placeholders "
                f"(U+FFFC) for images and {len(images)} response_images"
            )
    for mark, media, name in ((IMAGE_MARK, pair.images, "images"), (VIDEO_MARK, pair.videos, "videos")):
        if (places := pair.question.count(mark)) not in (0, len(media)):
            raise DataError(f"{where}: the question has {places} placeholders for {name}, but {len(media)} {name} were given")


def with_frames(
    pair: PreferencePair, number: int = FRAMES, *, where: str = "", policy: VideoPolicy | None = None
) -> PreferencePair:
    """Return the pair with at most ``number`` frames of each video, sampled by ``policy``, among its images: at the video's
    placeholder or after all images. Raises MediaError for a video that cannot be read."""
    if not pair.videos:
        return pair
    sampling = policy() if policy else None
    videos = [frames_of_video(video, number, where=where or pair.pair_id, policy=sampling) for video in pair.videos]
    all_frames = [frame for frames in videos for frame in frames]
    if VIDEO_MARK not in pair.question and IMAGE_MARK not in pair.question:
        return replace(pair, images=(*pair.images, *all_frames), videos=())
    question, images = "", list[bytes]()
    next_images, next_videos = iter(pair.images), iter(videos)
    if VIDEO_MARK not in pair.question:
        question, images = IMAGE_MARK * len(all_frames), all_frames
    if IMAGE_MARK not in pair.question:
        question, images = IMAGE_MARK * len(pair.images), list(pair.images)
    for piece in re.split(f"([{IMAGE_MARK}{VIDEO_MARK}])", pair.question):
        if piece == VIDEO_MARK:
            frames = next(next_videos)
            question, images = question + IMAGE_MARK * len(frames), [*images, *frames]
        else:
            question += piece
            images += [next(next_images)] if piece == IMAGE_MARK else []
    return replace(pair, question=question, images=tuple(images), videos=())


def media_of(pair: PreferencePair) -> tuple[bytes, ...]:
    """Return all encoded files of a pair."""
    return (*pair.images, *pair.response_images[0], *pair.response_images[1], *pair.videos)


def provenance(recipe: str, row: Mapping[str, Any]) -> str:
    """Return ``RECIPE:HASH`` of a source's row; media count by their content."""

    def plain(value: Any) -> Any:
        return hashlib.sha256(value).hexdigest() if isinstance(value, bytes | bytearray) else str(value)

    text = json.dumps(row, sort_keys=True, ensure_ascii=False, default=plain)
    return f"{recipe}:{hashlib.sha256(text.encode(errors='backslashreplace')).hexdigest()[:16]}"


def with_blank_images(pairs: Sequence[PreferencePair]) -> list[PreferencePair]:
    """Replace every image by a grey one of its size: a judge that still wins does not need the image."""

    def blank(images: Sequence[bytes]) -> tuple[bytes, ...]:
        return tuple(map(blank_like, images))

    return [
        replace(
            pair, images=blank(pair.images), response_images=(blank(pair.response_images[0]), blank(pair.response_images[1]))
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
