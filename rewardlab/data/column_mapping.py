"""Which columns of a file are a pair's: read without a mapping if there is one way to read them, or suggested as YAML.

Names decide, by :func:`rewardlab.data.columns.nearest_column`: ``chosen`` and ``rejected``, or two responses and a label. A
suggestion also looks at the first rows: media by their form, a label by its few values; what neither tells is left open.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from rewardlab.data.columns import PAIR_COLUMNS, looks_like_media, medium_column, nearest_column
from rewardlab.data.conversations import Content, is_conversation, is_put_second, place_media, split_answers
from rewardlab.data.files import place_in_file
from rewardlab.data.ratings import tie_of
from rewardlab.data.row_files import FileRow, data_files_of, stored_rows
from rewardlab.errors import DataError
from rewardlab.reporting.progress import log_line

OWN_MEDIA = ("response_images", "response_videos")
ORDERED = (
    *OWN_MEDIA,
    "judgment",
    "order",
    "preferred",
    "ratings",
    "systems",
)  # columns of a pair that describe one of the responses
_EMPTY: tuple[Any, ...] = (None, "", [], [[], []])
NUMBERS = ("preferred", "level", "teacher_share")
LISTS = ("responses", "images", "videos", "response_images", "response_videos", "systems")
CURE = (
    "write a mapping for `rewardlab data build MAPPING.yaml`; `rewardlab data validate FILE --suggest` prints one "
    "(docs/how-to/own_data.md)"
)
BETTER = ("chosen", "better", "preferred_response", "chosen_response", "chosen_messages", "preferred_output")
WORSE = ("rejected", "worse", "rejected_response", "rejected_messages", "non_preferred_output")
CONVERSATIONS = (
    "messages",
    "conversations",
)  # columns with turns; with a worse answer in another column they end in the better one
_SIDES = (("a", "b"), ("1", "2"), ("0", "1"), ("left", "right"))
_SYSTEMS = ("model_", "system_", "model", "system")  # stems of names of the columns that name who wrote the responses
_STEMS = ("response_", "answer_", "output_", "completion_", "response", "answer", "")
Names = tuple[tuple[str, ...], tuple[str, ...]]  # what a label calls the first and the second response
NUM_ROWS = 200  # rows that a suggestion looks at
MOST_LABELS = 4  # different values of a column that may be a label
OPEN = "FILL_IN"


@dataclass(frozen=True)
class ColumnMapping:
    """Which column is what; ``responses`` are the better and the worse one, or with ``label`` the two that its values name:
    ``names`` of the first and of the second. Without ``question`` the responses are conversations that begin with it."""

    question: str | None
    responses: tuple[str, str]
    images: str | None = None
    videos: str | None = None
    label: str | None = None
    names: Names = ((), ())
    systems: tuple[str, ...] = ()

    def __str__(self) -> str:
        sides = ("chosen", "rejected") if self.label is None else ("first response", "second response")
        question_words = self.question or "what the responses begin with"
        parts: dict[str, str | None] = {"question": question_words, sides[0]: self.responses[0], sides[1]: self.responses[1]}
        parts |= {"images": self.images, "videos": self.videos, "preferred": self.label, "systems": " and ".join(self.systems)}
        return ", ".join(f"{what} = {column}" for what, column in parts.items() if column)

    def row_of(self, row: Mapping[str, Any], where: str, number: int = 0) -> Mapping[str, Any] | DataError:
        """Return row ``number`` with the columns of a pair and its other columns, or why its label cannot be read."""
        values = [row.get(self.question) if self.question else None, *(row.get(name) for name in self.responses)]
        read = {self.question, *self.responses, self.images, self.videos, self.label, *self.systems}
        read |= {"system"} if any(map(is_conversation, values)) else set()
        pair = {name: value for name, value in row.items() if name not in read}
        pair |= {"systems": [row.get(name) for name in self.systems]} if self.systems else {}
        ordered_by = [name for name in ORDERED if name in row and row[name] not in _EMPTY]
        if ordered_by and (self.label is None or (self.label != "preferred" and "preferred" in ordered_by)):
            return DataError(f"{where}: {ordered_by[0]!r} depends on which response is which, and that is guessed; {CURE}")
        try:
            system = row.get("system") if "system" in read else None
            question, answers = split_answers(values[0], values[1:], where, system=system)
            images, videos = (_list_of(row.get(column)) if column else [] for column in (self.images, self.videos))
            listed = [name for name in OWN_MEDIA if row.get(name) not in (None, "", [])]
            question, *placed = place_media([question, *([] if listed else answers)], images, videos, where=where)
            answers = placed or answers
        except DataError as error:
            return error
        if not self.question and not question.text:
            return DataError(f"{where}: no column is the question, and the responses do not begin with one; {CURE}")
        if self.label is None:
            preferred: int | None = 0
            seed = _paths_of(answers) or str(row.get("pair_id") or number)
            if is_put_second(question, answers[0], answers[1], seed=seed):
                answers, preferred = answers[::-1], 1
        else:
            label, preferred = _label_of(row.get(self.label)), None
            if tie := tie_of(label):
                pair = {**pair, "tie": tie}
            elif label is not None and not any(label in names for names in self.names):
                first_names, second_names = (" or ".join(names) for names in self.names)
                return DataError(f"{where}: {self.label!r} is {label!r:.40}; expected {first_names}, or {second_names}; {CURE}")
            elif label is not None:
                preferred = int(label in self.names[1])
        media: dict[str, Any] = {"images": question.images} if self.images or question.images else {}
        media |= {"videos": question.videos} if question.videos else {}
        for column, name in zip(OWN_MEDIA, ("images", "videos"), strict=True):
            of_answers = [getattr(answer, name) for answer in answers]
            if any(of_answers) and column in ordered_by:
                return DataError(
                    f"{where}: the responses hold {name}, and {column!r} holds others; give them in one of the two"
                )
            if any(of_answers) or column not in listed:
                media[column] = of_answers
        return {
            **pair,
            "question": question.text,
            "responses": [answer.text for answer in answers],
            "preferred": preferred,
            **media,
        }


def _paths_of(answers: Sequence[Content]) -> str:
    """Return the paths of the media of answers. Their bytes are left out, because not every reader reads them."""
    media = [medium for answer in answers for medium in (*answer.images, *answer.videos)]
    paths = [medium.get("path") if isinstance(medium, Mapping) else medium for medium in media]
    return "\0".join(path for path in paths if isinstance(path, str))


def _label_of(value: Any) -> str | None:
    """Return a label in lower case, a whole float as its integer, None for an empty cell."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    return re.sub(r"^(\d+)\.0+$", r"\1", str(value).strip().lower()) or None


def _list_of(value: Any) -> list[Any]:
    """Return the images of a cell: a list, a JSON list, one image, or none."""
    if value is None or value == "":
        return []
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except ValueError:
            return [value]
    return list(value) if isinstance(value, list | tuple) else [value]


def guess_mapping(columns: Sequence[str], where: str) -> ColumnMapping | None:
    """Return the mapping of a file with these columns, None if it has no two responses under known names. Raise DataError if
    several columns could be the question or the image, or none the question."""

    def like(read: str) -> list[str]:
        return [read] if read in columns else [name for name in columns if nearest_column(name, PAIR_COLUMNS) == read]

    better, worse = _better_and_worse(columns)
    sides, talks = sides_of(columns), [name for name in columns if name.lower() in CONVERSATIONS]
    questions, images, videos = like("question"), like("images"), like("videos")
    if len(talks) == 1 and len(worse) == 1 and not better:  # ms-swift: the better answer ends the conversation
        better, questions = talks, []
    is_chosen = len(better) == len(worse) == 1
    if talks and not is_chosen and not sides:
        raise DataError(
            f"{where}: has conversations ({talks[0]!r}) with one answer each, but no second answer to compare it with; "
            "expected columns such as chosen and rejected, or rejected_response with messages"
        )
    if not is_chosen and not sides:
        return None
    is_unique = len(questions) == 1 or (is_chosen and not questions)  # conversations may begin with the question
    if not is_unique or max(len(images), len(videos)) > 1 or is_chosen == bool(sides) or len(sides) > 1:
        raise DataError(
            f"{where}: the columns ({', '.join(columns)}) cannot be mapped, or not uniquely: question "
            f"{' or '.join(questions) or 'none'}, images {' or '.join(images) or 'none'}; {CURE}"
        )
    question, image, video = (names[0] if names else None for names in (questions, images, videos))
    if not sides:
        return ColumnMapping(question, (better[0], worse[0]), image, video)
    labels = [name for name in like("preferred") if name not in sides[0]]
    if len(labels) != 1:
        raise DataError(f"{where}: {len(labels)} of the columns ({', '.join(columns)}) could be the label; {CURE}")
    first, second, names = sides[0]
    systems = _systems_of(columns)
    return ColumnMapping(question, (first, second), image, video, labels[0], _with_systems(names, systems), systems)


def _better_and_worse(columns: Iterable[str]) -> tuple[list[str], list[str]]:
    by_name = {name.lower(): name for name in columns}
    return [by_name[name] for name in BETTER if name in by_name], [by_name[name] for name in WORSE if name in by_name]


def _systems_of(columns: Iterable[str]) -> tuple[str, ...]:
    """Return the two columns with the names of the models that wrote the responses; none if there are no or several such."""
    sides = sides_of(columns, _SYSTEMS)
    return sides[0][:2] if len(sides) == 1 else ()


def _with_systems(names: Names, systems: Sequence[str]) -> Names:
    """Return ``names`` with those of the columns of systems, which labels name too: model_a."""
    first, second = ((name.lower(),) for name in systems) if systems else ((), ())
    return (*names[0], *first), (*names[1], *second)


def sides_of(columns: Iterable[str], stems: Sequence[str] = _STEMS) -> list[tuple[str, str, Names]]:
    """Return each two columns that are a first and a second response by their names, and what a label calls them: (response_a,
    response_b, (("a", "response_a"), ("b", "response_b")))."""
    by_name = {name.lower(): name for name in columns}
    return [
        (
            by_name[f"{stem}{one}"],
            by_name[f"{stem}{two}"],
            (tuple(dict.fromkeys((one, f"{stem}{one}"))), tuple(dict.fromkeys((two, f"{stem}{two}")))),
        )
        for stem in stems
        for one, two in _SIDES
        if f"{stem}{one}" in by_name and f"{stem}{two}" in by_name
    ]


@dataclass(frozen=True)
class PairForm:
    """How a file's rows become rows with the columns of a pair: by a guessed mapping, and if its ``cells`` are texts (CSV) by
    parsing the numbers and lists in them."""

    mapping: ColumnMapping | None = None
    cells: bool = False

    @staticmethod
    def of(file: Path, columns: Sequence[str]) -> PairForm:
        """Return the form of a file with these columns; a mapping is logged. Raise DataError as :func:`guess_mapping` does."""
        mapping = None if "responses" in columns else guess_mapping(list(map(str, columns)), str(file))
        if mapping:
            log_line(f"{file}: read as {mapping}")
        return PairForm(mapping, file.suffix in (".csv", ".tsv"))

    @property
    def media_columns(self) -> tuple[str, ...]:
        """Columns besides those of a pair that may hold media: also within the parts of conversations."""
        if (mapping := self.mapping) is None:
            return ()
        columns = (mapping.images, mapping.videos, mapping.question, *mapping.responses)
        return tuple(column for column in columns if column)

    def of_row(self, stored: FileRow, file: Path, number: int) -> FileRow:
        """Return row ``number`` of ``file`` in pair form, or why it has none."""
        row = stored.row
        if not isinstance(row, Mapping) or not (self.mapping or self.cells):
            return stored
        where = f"{file}, row {number}{place_in_file(file, file, stored.line)}"
        try:
            row = self.mapping.row_of(row, where, number) if self.mapping else row
            row = pair_cells(row) if self.cells and isinstance(row, Mapping) else row
        except RecursionError:
            row = DataError(f"{where}: a list in a cell is nested too deeply to be read; expected a flat one")
        return FileRow(row, stored.line)


def pair_cells(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of a CSV with the numbers and the lists in a pair's columns parsed; other texts stay as they are."""
    cells = {name: value for name, value in row.items() if name not in NUMBERS or value != ""}
    for name in NUMBERS:
        with suppress(TypeError, ValueError):
            cells[name] = float(cells.get(name) or "")
    for name in LISTS:
        if isinstance(value := cells.get(name), str):
            cells[name] = _list_of(value)
    return cells


def rows_in_pair_form(file: Path) -> Generator[FileRow, None, None]:
    """Yield a file's rows with the columns of a pair, by the :class:`PairForm` of its first row."""
    form: PairForm | None = None
    for number, stored in enumerate(stored_rows(file)):
        if form is None and isinstance(stored.row, Mapping):
            form = PairForm.of(file, list(map(str, stored.row)))
        yield (form or PairForm()).of_row(stored, file, number)


def suggested_mapping(path: Path) -> str:
    """Return the YAML of a mapping for the columns of a set, with comments on what to check. Raise DataError if no row can be
    read, or the rows have a pair's columns already."""
    file = data_files_of(path)[0]
    rows = [stored.row for stored in islice(stored_rows(file), NUM_ROWS) if isinstance(stored.row, Mapping)]
    if not rows:
        raise DataError(f"{file}: has no row of columns to map; expected objects, or a first line with names")
    if {"question", "responses"} <= rows[0].keys() and not _ranked_fields(rows, {}):
        raise DataError(f"{file}: has the columns of a pair already; `rewardlab data validate {file}` says what is wrong")
    columns: dict[str, list[Any]] = {}
    try:
        for row in rows:
            for column, value in _leaves(row, ()):
                columns.setdefault(column, []).append(value)
    except RecursionError:
        raise DataError(f"{file}: a row is nested too deeply to be read; expected columns with values") from None
    name, place = re.sub(r"[^a-z0-9]+", "_", path.stem.lower()).strip("_") or "mine", _remark(str(path))
    lines = [
        f"# A mapping for {place}, of its first {len(rows):,} rows. Check it, save it as {name}.yaml, then",
        f"# rewardlab data build {name}.yaml --from {place} --against none --out sets/{name}",
        f"name: {_quoted(name)}",
        *(_ranked_fields(rows, columns) or _conversation_fields(file, rows) or _fields(columns)),
    ]
    return "\n".join(lines) + "\n"


_NO_YAML = re.compile(r"[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")  # JSON escapes other controls


def _quoted(value: str) -> str:
    """Return a text as YAML in double quotes, on one line."""
    return _NO_YAML.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(value, ensure_ascii=False))


def _quoted_list(values: Sequence[str]) -> str:
    return f"[{', '.join(map(_quoted, values))}]"


def _remark(*texts: str) -> str:
    """Return texts for a comment, which ends with its line: quoted if they would break it."""
    return ", ".join(text if text.isprintable() else _quoted(text) for text in texts)


def _leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Yield (path, value) of nested values, ``a.b.0``; media are one value."""
    is_nested = isinstance(value, Mapping | list | tuple) and value and not looks_like_media(value)
    if is_nested and len(path) < 4:
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value[:4]):
            yield from _leaves(item, (*path, str(key)))
    else:
        yield ".".join(path), value


def _ranked_fields(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, Sequence[Any]]) -> list[str]:
    """Return the lines for rows with a list of answers and a list of their ranks or scores; none for other rows."""

    def lists(kind: type | tuple[type, ...]) -> list[str]:
        return [
            name
            for name in map(str, rows[0])
            if all(
                isinstance(row.get(name), list) and row[name] and all(isinstance(v, kind) for v in row[name]) for row in rows
            )
        ]

    answers, numbers = [name for name in lists(str) if not looks_like_media(rows[0][name])], lists((int, float))
    fits = [(a, n) for a in answers for n in numbers if all(len(row[a]) == len(row[n]) for row in rows)]
    if not fits:
        return []
    answer, number = fits[0]
    rest = {name: values for name, values in columns.items() if name.split(".")[0] not in (answer, number)}
    of_question = [line for line in _fields(rest) if line.startswith(("id:", "question:", "images:", "videos:", "category:"))]
    is_rank = "rank" in number.lower()
    check = "1 is the best, whole numbers may be equal" if is_rank else "the higher the better"
    return [
        *of_question,
        f"responses: {_quoted_list([answer])}",
        f"{'ranks' if is_rank else 'scores'}: {_quoted_list([number])}  # check: {check}",
    ]


def _conversation_fields(file: Path, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines for rows that hold conversations and are read without a mapping; none for other rows."""
    if not any(is_conversation(value) for row in rows for value in row.values()):
        return []
    try:
        mapping = guess_mapping(list(map(str, rows[0])), str(file))
    except DataError:
        return []
    if mapping is None or mapping.label is not None:
        return []
    named = {"question": mapping.question, "chosen": mapping.responses[0], "rejected": mapping.responses[1]}
    media = {"images": mapping.images, "videos": mapping.videos}
    return [
        f"# `rewardlab data validate {_remark(str(file))}` reads these conversations without a mapping as well",
        *(f"{key}: {_quoted(column)}" for key, column in named.items() if column),
        *(f"{key}: {_quoted_list([column])}" for key, column in media.items() if column),
    ]


def _twins(names: Iterable[str]) -> list[tuple[str, str, Names]]:
    """Return each two names that differ in their side alone, as :func:`sides_of` returns them: path1 and path2."""
    known, twins = set(names), list[tuple[str, str, Names]]()
    for name in sorted(known):
        for one, two in _SIDES:
            other = re.sub(
                rf"(?<![a-z0-9]){one}(?![a-z])|(?<=[a-z]){one}(?![a-z0-9])" if one.isdigit() else rf"(?<![a-z]){one}(?![a-z])",
                two,
                name,
            )
            if other != name and other in known:
                twins.append((name, other, ((one, name), (two, other))))
    return twins


def _fields(columns: Mapping[str, Sequence[Any]]) -> Iterator[str]:
    media = [name for name, values in columns.items() if any(map(looks_like_media, values))]
    sides = sides_of(columns) or _twins(media)
    media = [
        name for name in media if not sides or name not in sides[0][:2]
    ]  # those of the answers are no media of the question
    texts = [name for name in columns if name not in media and any(isinstance(value, str) for value in columns[name])]

    def like(read: str, names: Sequence[str]) -> list[str]:
        return [name for name in names if nearest_column(name, PAIR_COLUMNS) == read]

    if ids := like("pair_id", texts):
        yield _field("id", ids, ())
    questions = like("question", texts)
    yield _field("question", questions, texts)
    for kind in ("images", "videos"):
        if of_kind := [name for name in media if medium_column(columns[name][0]) == kind]:
            yield f"{kind}: {_quoted_list(of_kind)}"
    better, worse = _better_and_worse(columns)
    if sides and not (better and worse):
        yield from _labelled_fields(columns, media, *sides[0])
    else:
        answers = [name for name in texts if name not in questions]
        yield _field("chosen", better, answers)
        yield _field("rejected", worse, answers)
        if not (better and worse):
            yield "# or, if another column says which is better: responses: [FIRST, SECOND], preferred, first and second"
    if categories := [name for name in texts if name.lower() in ("category", "task", "subset", "type")]:
        yield _field("category", categories, ())


def _labelled_fields(
    columns: Mapping[str, Sequence[Any]],
    media: Sequence[str],
    first: str,
    second: str,
    names: Names,
) -> Iterator[str]:
    yield f"responses: {_quoted_list([first, second])}"
    if systems := _systems_of(columns):
        yield f"systems: {_quoted_list(systems)}"
    names = _with_systems(names, systems)
    by_name = {name: nearest_column(name, PAIR_COLUMNS) == "preferred" for name in columns}
    labels = [
        name
        for name, cells in columns.items()
        if name not in (first, second, *media)
        and not any(name in twins[:2] for twins in _twins(columns))
        and (by_name[name] or (len(cells) > MOST_LABELS and 2 <= len({str(cell).strip() for cell in cells}) <= MOST_LABELS))
    ]
    if not labels and (
        scores := [t for t in _twins(columns) if all(isinstance(v, int | float) for n in t[:2] for v in columns[n])]
    ):
        scores.sort(key=lambda twins: "overall" not in twins[0])
        others = _remark(*(f"{one} and {two}" for one, two, _ in scores[1:]))
        also = f"; there are also {others}" if others else ""
        yield f"scores: {_quoted_list(scores[0][:2])}  # check: the higher the better{also}"
        return
    yield _field("preferred", [name for name in labels if by_name[name]] or labels[:1], labels)
    cells = columns.get(labels[0] if labels else "", ())  # an empty one is no tie: its pairs are left out as bad
    values = list(dict.fromkeys(str(value).strip() for value in cells if _label_of(value) not in (None, "none", "nan", "null")))
    for key, expected in zip(("first", "second"), names, strict=True):
        yield _field(key, [value for value in values if _names_side(value, expected)], values, "value")
    if rest := [value for value in values if not any(_names_side(value, expected) for expected in names)]:
        yield f"ties: {_quoted_list(rest)}  # are these ties? keep_ties: true keeps them, for benchmarks"


def _names_side(value: str, names: Sequence[str]) -> bool:
    """Return whether a label is one of the names, or begins with one that is a word: leftvote."""
    return any(value.lower() == name or (len(name) > 1 and value.lower().startswith(name)) for name in names)


def _field(key: str, matches: Sequence[str], others: Sequence[str], what: str = "column") -> str:
    if len(matches) == 1:
        return f"{key}: {_quoted(matches[0])}"
    if matches:
        return f"{key}: {_quoted(matches[0])}  # check: {_remark(*matches)} could all be it"
    return f"{key}: {OPEN}  # no {what} by a known name; there are: {_remark(*others[:12]) or 'none'}"
