"""Recipes, which make pairs of a public source: the parts of every file of ``data_recipes/``, and of a YAML mapping.

A :class:`Recipe` is a function from one row of the source to its pairs, with the source's licence, address and number of rows.
The function only reads media. It yields :class:`Dropped` for what it leaves out on purpose, and raises an error for a bad row:
both are counted and listed.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import combinations
from pathlib import Path
from typing import Any

from rewardlab.config.data import MappingConfig
from rewardlab.data.columns import medium_column
from rewardlab.data.conversations import Content, is_conversation, is_put_second, place_media, split_answers
from rewardlab.data.files import leads_out
from rewardlab.data.images import read_image
from rewardlab.data.media import Files, embedded, path_of_medium
from rewardlab.data.ratings import UNNAMED, peoples_label, tie_of
from rewardlab.data.rows import FRAMES, check_marks, provenance, systems_of, truth_text, validate
from rewardlab.data.sources import TABLES, HubStream, media_folder, source_parts
from rewardlab.data.video import evenly, frame_files
from rewardlab.errors import DataError, InputError, MediaError
from rewardlab.types import IMAGE_MARK, VIDEO_MARK, PreferencePair, Rating, Tie

MOST_NAMES = 40  # columns that a message lists
_URLS = ("data:", "http://", "https://")
MOST_ANSWERS = 64  # of a row of a mapping: every two of them make a pair
MOST_VOTES = 1000  # of people, for one choice of a pair


@dataclass(frozen=True)
class Dropped:
    """A pair that a recipe leaves out on purpose: "tie", "empty answer", ..."""

    reason: str


@dataclass(frozen=True)
class SourceFolder:
    """The folder of a source's media; ``frames``: how many images of a folder of frames are read."""

    folder: Path
    frames: int = FRAMES

    def image(self, value: Any, where: str) -> bytes:
        """Return an image from embedded bytes, base64, a data URL, or a path from the folder. Raises MediaError."""
        value = embedded(value) if isinstance(value, str) else value  # base64
        if isinstance(value, str) and not value.startswith(_URLS):
            return read_image(self._locate(path_of_medium(value, "image", where).removeprefix("file://")))
        return Files(self.folder).image(value, where)

    def videos(self, values: Iterable[Any], where: str) -> tuple[bytes, ...]:
        """Return the files of videos, embedded or at paths from the folder. Raises MediaError."""

        def located(value: Any) -> Any:
            value = embedded(value) if isinstance(value, str) else value
            if not isinstance(value, str) or value.startswith(_URLS):
                return value
            return str(self._locate(path_of_medium(value, "video", where).removeprefix("file://")).absolute())

        return tuple(Files(self.folder).video(located(value), where) for value in values)

    def required_image(self, value: Any, where: str) -> tuple[bytes, ...]:
        """Return the image of a row that must have one. Raises DataError, MediaError."""
        if not value:
            raise DataError(f"{where}: is missing, but every row of this source should have one")
        return (self.image(value, where),)

    def images(self, value: Any, where: str) -> tuple[bytes, ...]:
        """Return one image or a list of them; none for null, "" and []."""
        items = value if isinstance(value, list | tuple) else [value] if value else []
        return tuple(self.image(item, where) for item in items)

    def _locate(self, path: str) -> Path:
        """Return a published path, or its last parts: archives unpack with and without their top folder. Raise MediaError if it
        is outside the source's folder."""
        if leads_out(path.lstrip("/")):
            raise MediaError(f"{path:.160}: is outside {self.folder}; the media of a source must be in its folder")
        parts = Path(path.lstrip("/")).parts
        candidates = [self.folder.joinpath(*parts[n:]) for n in range(len(parts))]
        return next((candidate for candidate in candidates if candidate.exists()), candidates[0])

    def frame_folder(self, path: str, where: str) -> tuple[bytes, ...]:
        """Return at most ``frames`` images of a folder, evenly spread, by name (frame2 before frame10). Raises MediaError."""
        folder = self._locate(path)
        if not folder.is_dir():
            raise MediaError(f"{where}: {folder}: no such folder of frames; unpack the source's archives below {self.folder}")
        if not (files := frame_files(folder)):
            raise MediaError(f"{where}: {folder}: a folder without frames")
        return tuple(map(read_image, evenly(files, self.frames)))


Answer = tuple[Content, Any]  # and the name of the system that wrote it
Convert = Callable[[Mapping[str, Any], SourceFolder], Iterable[PreferencePair | Dropped]]


@dataclass(frozen=True)
class Recipe:
    """``licence`` as the source states it, or ""; ``published``: its stated number of rows, None if unknown; ``files``:
    patterns of the data files within the folder, tried in turn until one matches. If a source has one answer per row,
    ``group_by`` is the column that the answers to one question share: ``convert`` takes ``{"rows": [...]}`` of a file."""

    name: str
    url: str
    licence: str
    published: int | None
    convert: Convert
    files: tuple[str, ...] = TABLES
    group_by: str = ""


@dataclass(frozen=True)
class Rejected:
    """Row ``row`` of ``file`` gave no pair, or one pair less: ``kind`` "bad" or "dropped"; later stages add their own."""

    file: str
    row: int
    kind: str
    reason: str


def check_images_folder(folder: Path | None) -> None:
    """Raise DataError for what is no folder."""
    if folder is not None and not folder.is_dir():
        raise DataError(f"--images {folder}: no such folder; expected the folder that media paths are relative to")


def convert_source(
    recipe: Recipe, source: Path | HubStream, *, frames: int = FRAMES, images: Path | None = None
) -> Iterator[PreferencePair | Rejected]:
    """Yield every checked pair of a source, and every row without pairs or with fewer, with the reason. A pair without an id
    gets one by its content. Paths of media start at ``images``, or at the source's folder.

    Raises DataError for a file that cannot be read, a stream that breaks off, and if ``images`` is no folder.
    """
    check_images_folder(images)
    folder = SourceFolder(images or media_folder(source), frames)
    for name, rows in source_parts(source, recipe.files, recipe.url):
        for number, row in _joined(rows, recipe.group_by):
            try:
                if isinstance(row, DataError):
                    raise row
                if not isinstance(row, Mapping):
                    raise DataError(f"expected an object, got {row!r:.60}")
                origin = provenance(recipe.name, row)
                for item in recipe.convert(row, folder):
                    if isinstance(item, Dropped):
                        yield Rejected(name, number, "dropped", item.reason)
                        continue
                    try:  # the other pairs of the row may be good
                        yield _complete_pair(item, recipe, origin, f"{name}, row {number}")
                    except InputError as error:
                        yield Rejected(name, number, "bad", str(error))
            except RecursionError:
                yield Rejected(name, number, "bad", "nested too deeply to be read")
            except InputError as error:
                yield Rejected(name, number, "bad", str(error))
            except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
                yield Rejected(name, number, "bad", f"{name}, row {number}: not of {recipe.name}'s shape ({error!r:.200})")


def _joined(rows: Iterable[Any], column: str) -> Iterator[tuple[int, Any]]:
    """Yield (number, row) of rows or, if there is a ``column``, of ``{"rows": [...]}`` that share a value of it, by the number
    of their first; rows without the column come as they are."""
    if not column:
        yield from enumerate(rows)
        return
    groups: dict[str, tuple[int, list[Any]]] = {}
    for number, row in enumerate(rows):
        if isinstance(row, Mapping) and row.get(column) not in (None, ""):
            groups.setdefault(str(row[column]), (number, []))[1].append(row)
        else:
            yield number, row
    yield from ((number, {"rows": some}) for number, some in groups.values())


def _complete_pair(pair: PreferencePair, recipe: Recipe, origin: str, where: str) -> PreferencePair:
    """Return the pair with its id, source and licence. Raises DataError if it is not a valid pair."""
    digest = hashlib.sha256(repr((pair.question, sorted(pair.responses))).encode(errors="backslashreplace"))
    for image in (*pair.images, *pair.videos):
        digest.update(hashlib.sha256(image).digest())
    digest.update("".join(sorted(_media_keys(pair))).encode())
    complete = replace(
        pair,
        pair_id=pair.pair_id or f"{recipe.name}-{digest.hexdigest()[:16]}",
        source=pair.source or recipe.name,
        licence=recipe.licence,
        provenance=origin,
    )
    check_marks(complete, where)
    return validate(complete, where=where)


def make_pair(question: str, better: str, worse: str, images: tuple[bytes, ...] = (), **fields: Any) -> PreferencePair:
    """Return a pair whose better answer is response 0 or 1 by :func:`is_put_second`. ``fields``: others of the pair."""
    return _by_coin(PreferencePair(fields.pop("pair_id", ""), question, (better, worse), 0, images, **fields))


def _media_keys(pair: PreferencePair) -> list[str]:
    """Return a text for the media of each response; "" without any."""
    media = [[*images, *videos] for images, videos in zip(pair.response_images, pair.response_videos, strict=True)]
    return ["".join(hashlib.sha256(medium).hexdigest() for medium in of_response) for of_response in media]


def _by_coin(pair: PreferencePair) -> PreferencePair:
    """Return a pair whose preferred response comes second if :func:`is_put_second` says so of texts and media, else first."""
    answers = [text + key for text, key in zip(pair.responses, _media_keys(pair), strict=True)]
    better, worse = (answers[n] for n in ((0, 1) if pair.preferred == 0 else (1, 0)))
    is_second = is_put_second(Content(pair.question), Content(better), Content(worse))
    return pair if pair.preferred == int(is_second) else replace(pair.swap(), order=pair.order)


def make_pair_or_drop(
    question: str, better: str, worse: str, images: tuple[bytes, ...] = (), **fields: Any
) -> PreferencePair | Dropped:
    """Return :func:`make_pair`, or why these two texts make no pair."""
    if not (better and worse):
        return Dropped("an answer is empty")
    if better == worse:
        return Dropped("the answers are equal")
    return make_pair(question, better, worse, images, **fields)


def make_pairs_by_score(
    question: str, scored: Iterable[tuple[str, float | None]], images: tuple[bytes, ...] = (), **fields: Any
) -> Iterator[PreferencePair | Dropped]:
    """Yield every two of several answers as a pair that the higher score wins; equal scores are ties. None: score not known."""
    answers: list[tuple[str, float]] = []
    for text, score in scored:
        if not text:
            yield Dropped("an answer is empty")
        elif score is None:
            yield Dropped("a score is missing")
        else:
            answers.append((text, score))
    for (first, first_score), (second, second_score) in combinations(answers, 2):
        if first_score == second_score:
            yield Dropped("tie")
        else:
            better, worse = (first, second) if first_score > second_score else (second, first)
            yield make_pair_or_drop(question, better, worse, images, **fields)


def clean_text(value: Any, name: str) -> str:
    """Return a text of a row, without media placeholders and outer blanks. Raises DataError if it is no text."""
    if not isinstance(value, str):
        raise DataError(f"{name!r} must be a string, got {value!r:.60}")
    text: str = value
    for mark in ("<image>", "<video>", "<ImageHere>", IMAGE_MARK, VIDEO_MARK):
        text = text.replace(mark, "")
    return text.strip()


def clean_truth(value: Any, name: str) -> str:
    """Return a truth of a row as text, "" for none. Raises DataError if it is none that JSON has."""
    text = truth_text(value)
    if not (text is None or isinstance(text, str)):
        raise DataError(f"{name!r} must be a text, a number, a list or an object, got {value!r:.60}")
    return text or ""


def value_at(row: Mapping[str, Any], path: str) -> Any:
    """Return ``row["a"]["b"][0]`` for path ``a.b.0``. Raises DataError if there is no such place."""
    value: Any = row
    for step in path.split("."):
        try:
            value = value[int(step)] if isinstance(value, list | tuple) else value[step]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            if not isinstance(value, Mapping):
                raise DataError(f"no {path!r} in the row: {step!r} is not an index or key of a {_kind_of(value)}") from error
            names = list(map(str, value))
            close = get_close_matches(step, names, n=1)
            meant = f"; did you mean {close[0]!r}?" if close else ""
            listed = ", ".join(names[:MOST_NAMES]) + (f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else "")
            raise DataError(f"no {path!r} in the row: {step!r} is not among {listed}{meant}") from error
    return value


def _kind_of(value: Any) -> str:
    return f"list of {len(value)}" if isinstance(value, list | tuple) else type(value).__name__


def _id_of(value: Any, name: str) -> str:
    """Return a row's id as text. Raises DataError if it is empty."""
    if value is None or not str(value).strip():
        raise DataError(f"{name!r} is empty; every row needs its own id, or leave `id` out of the mapping")
    return str(value)


def recipe_of(config: MappingConfig) -> Recipe:
    """Return the recipe that a YAML mapping describes: which columns of a file are what."""

    def text(row: Mapping[str, Any], path: str | None) -> str:
        return "" if path is None else str(value_at(row, path) or "")

    def convert(row: Mapping[str, Any], source: SourceFolder) -> Iterator[PreferencePair | Dropped]:
        category, origin = text(row, config.category), text(row, config.source)
        pair_id = "" if config.id is None else _id_of(value_at(row, config.id), config.id)
        values = _answers(row, config)
        prompt = None if config.question is None else value_at(row, config.question)
        system = row.get("system") if any(map(is_conversation, (prompt, *values))) else None
        question, contents = split_answers(prompt, [_as_part(value) for value in values], "row", system=system)
        media = [[one for path in paths for one in _listed(value_at(row, path))] for paths in (config.images, config.videos)]
        question, *contents = place_media([question, *contents], *media, where="row")
        answers = list(zip(contents, _systems(row, config, len(contents)), strict=True))

        def pair_of(one: Answer, other: Answer, preferred: int, name: str = "") -> PreferencePair | Dropped:
            (first, first_system), (second, second_system) = one, other
            if first == second:
                return Dropped("the answers are equal")
            return PreferencePair(
                pair_id + name if pair_id else "",
                question.text.strip(),
                (first.text.strip(), second.text.strip()),
                preferred,
                tuple(source.image(image, "image") for image in question.images),
                category,
                origin,
                response_images=(source.images(first.images, "image"), source.images(second.images, "image")),
                videos=source.videos(question.videos, "video"),
                response_videos=(source.videos(first.videos, "video"), source.videos(second.videos, "video")),
                systems=systems_of((first_system, second_system), "row"),
                truth="" if config.truth is None else clean_truth(value_at(row, config.truth), config.truth),
            )

        def tied(first: Answer, second: Answer, tie: Tie, name: str = "") -> PreferencePair | Dropped:
            pair = pair_of(first, second, 0, name) if config.keep_ties else Dropped("tie")
            return pair if isinstance(pair, Dropped) else replace(pair, preferred=None, tie=tie)

        def placed(pair: PreferencePair | Dropped) -> PreferencePair | Dropped:
            return pair if isinstance(pair, Dropped) else _by_coin(pair)

        if config.raters or config.counts:
            ratings = _ratings(row, config)
            people = peoples_label(ratings)
            if people.choice is None or people.agreement < config.least_agreement:
                yield Dropped("no rating" if people.choice is None else "people disagree")
                return
            two = (answers[0], answers[1])
            pair = tied(*two, people.choice) if isinstance(people.choice, Tie) else pair_of(*two, people.choice)
            yield pair if isinstance(pair, Dropped) else replace(pair, ratings=ratings)
            return
        label = None if config.preferred is None else str(value_at(row, config.preferred)).strip()
        if config.chosen is not None:
            yield placed(pair_of(answers[0], answers[1], 0))
        elif label in config.ties:
            yield tied(answers[0], answers[1], tie_of(label) or Tie.TIE)
        elif label is None:
            yield from _by_score(answers, _scores(row, config, len(answers)), lambda *of: placed(pair_of(*of)), tied)
        elif label in (config.first, config.second):
            yield pair_of(answers[0], answers[1], int(label == config.second))
        else:
            raise DataError(
                f"{config.preferred!r} is {label!r}; expected {config.first!r} or {config.second!r}, or of ties {config.ties}"
            )

    return Recipe(config.name, config.url, config.licence, config.published, convert, files=(*config.files,))


def _systems(row: Mapping[str, Any], config: MappingConfig, number: int) -> Sequence[Any]:
    """Return the names of the systems that wrote ``number`` answers, "" if the mapping has none. Raise DataError."""
    values = [value_at(row, path) for path in config.systems]
    names = list(_listed(values[0])) if len(values) == 1 else values or [""] * number
    if len(names) != number:
        raise DataError(f"{', '.join(config.systems)}: {len(names)} systems for {number} answers; expected one for each")
    return names


def _ratings(row: Mapping[str, Any], config: MappingConfig) -> tuple[Rating, ...]:
    """Return people's ratings in a row: of named people, or from counts of votes. Raise DataError for an unknown value."""
    paths = config.raters or config.counts
    names, values = [*paths], [value_at(row, path) for path in paths]
    if len(values) == 1 and isinstance(values[0], list | tuple):
        values = [*values[0]]
        names = [f"rater {place}" for place in range(1, len(values) + 1)]
    if config.raters:
        choices: dict[str, int | Tie] = {value: tie_of(value) or Tie.TIE for value in config.ties}
        choices |= {config.first: 0, config.second: 1}
        given = [(name, str(value).strip()) for name, value in zip(names, values, strict=True) if value not in (None, "")]
        # A column of whole numbers with gaps has 1.0 for 1.
        rated = [(name, value if value in choices else value.removesuffix(".0")) for name, value in given]
        if unknown := next((value for _, value in rated if value not in choices), None):
            raise DataError(f"{', '.join(paths)}: {unknown!r:.40} is none of {', '.join(map(repr, choices))}")
        return tuple(Rating(name, choices[value]) for name, value in rated)
    numbers = [_whole_number(value) for value in values]
    if len(values) not in (2, 3) or not all(number is not None and number <= MOST_VOTES for number in numbers):
        raise DataError(
            f"{', '.join(paths)}: {values!r:.60}; expected votes (0 to {MOST_VOTES}) for the first response, for the second "
            "and, optional, for ties"
        )
    kinds: tuple[int | Tie, ...] = (0, 1, Tie.TIE)
    of_votes = [choice for choice, number in zip(kinds, numbers, strict=False) for _ in range(number or 0)]
    return tuple(Rating(f"{UNNAMED}{place}", choice) for place, choice in enumerate(of_votes, start=1))


def _whole_number(value: Any) -> int | None:
    """Return a whole number of at least 0, also as CSV ("3") or a column with gaps (3.0) has it; None for anything else."""
    text = str(value).strip().removesuffix(".0")
    return int(text) if text.isdecimal() and text.isascii() and len(text) < 10 else None


def _answers(row: Mapping[str, Any], config: MappingConfig) -> Sequence[Any]:
    """Return the answers of a row: of two columns, or of the list in one."""
    if config.chosen is not None and config.rejected is not None:
        return [value_at(row, config.chosen), value_at(row, config.rejected)]
    values = [value_at(row, path) for path in config.responses]
    if len(values) > 1:
        return values
    if not isinstance(values[0], list | tuple) or len(values[0]) < 2:
        raise DataError(f"{config.responses[0]!r} must be a list of two or more answers, got {values[0]!r:.60}")
    if (number := len(values[0])) > MOST_ANSWERS:
        raise DataError(
            f"{config.responses[0]!r} has {number:,} answers, every two of which make {number * (number - 1) // 2:,} pairs; "
            f"expected at most {MOST_ANSWERS}: keep some of them"
        )
    return values[0]


def _as_part(value: Any) -> Any:
    """Return an answer that is a medium, ``{"bytes", "path"}`` or a path, as a part of that kind; any other as it is."""
    if (column := medium_column(value)) is None:
        return value
    kind = column.removesuffix("s")
    return [{"type": kind, kind: one} for one in _listed(value)]


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else [value] if value else []


def _scores(row: Mapping[str, Any], config: MappingConfig, number: int) -> list[float | None]:
    """Return a score for each answer, higher is better. Raise DataError for another number of them."""
    paths = config.scores or config.ranks
    values = [value_at(row, path) for path in paths]
    values = list(_listed(values[0])) if len(values) == 1 else values
    if len(values) != number:
        raise DataError(f"{', '.join(paths)}: {len(values)} scores or ranks for {number} answers; expected one for each")
    sign = 1 if config.scores else -1
    numbers = [_score(value, paths[n] if len(paths) > 1 else f"{paths[0]}.{n}") for n, value in enumerate(values)]
    return [None if value is None or math.isnan(value) else sign * value for value in numbers]


def _score(value: Any, name: str) -> float | None:
    """Return a score or rank, None if there is none. Raise DataError for what is no number."""
    try:
        if value is None or value == "":
            return None
        if isinstance(value, int | float | str) and not isinstance(value, bool):
            return float(value)
    except (ValueError, OverflowError):
        pass
    raise DataError(f"{name!r} is {value!r:.40}; expected a number, or nothing for an answer without one")


def _by_score(
    answers: Sequence[Answer],
    scores: Sequence[float | None],
    pair_of: Callable[..., PreferencePair | Dropped],
    tied: Callable[..., PreferencePair | Dropped],
) -> Iterator[PreferencePair | Dropped]:
    """Yield every two answers as a pair that the higher score wins; equal scores are a tie."""
    for first, second in combinations(range(len(answers)), 2):
        one, other = scores[first], scores[second]
        if one is None or other is None:
            yield Dropped("a score is missing")
        else:
            name = f"#{first}-{second}" if len(answers) > 2 else ""
            two = (answers[first], answers[second])
            yield tied(*two, Tie.TIE, name) if one == other else pair_of(*two, int(other > one), name)
