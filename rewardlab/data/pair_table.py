"""Pairs on disk that are read one at a time, in any order: what training reads, so that memory does not grow with the data.

A :class:`PairTable` goes through its files once, reading texts and leaving embedded media where they are, and keeps a few facts
of each pair (about 0.3 kB). A pair is read, media and all, when it is taken: from Parquet with its row group, which
:class:`rewardlab.data.pairs.Shard` keeps small; from JSON lines by its line. The rows of a CSV, a JSON list or a saved dataset
are in memory.
"""

from __future__ import annotations

import hashlib
import re
import threading
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Protocol, overload

import numpy as np

from rewardlab.data.column_mapping import PairForm, rows_in_pair_form
from rewardlab.data.columns import PAIR_COLUMNS, AllowedColumns
from rewardlab.data.files import place_in_file
from rewardlab.data.images import check_image
from rewardlab.data.media import Files, embedded, path_of_medium, place_of
from rewardlab.data.pairs import MEDIA_HASH, BadRow, read_row
from rewardlab.data.parquet import parquet_batches, unreadable_parquet
from rewardlab.data.qwen_video import VideoPolicy
from rewardlab.data.row_files import FileRow, data_files_of, is_checked, parse_line
from rewardlab.data.rows import FRAMES, media_of, with_frames
from rewardlab.data.set_checks import SetCheck
from rewardlab.errors import DataError, InputError, MediaError
from rewardlab.reporting.progress import bar, log_line
from rewardlab.types import Order, PreferencePair

MEDIA = ("images", "response_images", "videos", "response_videos")
MOST_GROUP_BYTES, LARGE_GROUP_BYTES = 512 << 20, 24 << 20  # of a row group, which is read whole for any pair in it
MOST_HELD_BYTES = 1 << 30  # of a file whose rows are all in memory
REWRITE = "`rewardlab data convert FILE --out FOLDER` writes it anew, in small ones"


class RowFile(Protocol):
    """A file of rows in pair form, read by number. ``checked``: embedded images were checked when it was written. Except for
    Parquet, the number of rows and each row are known only after :meth:`light_rows` has ended."""

    path: Path
    checked: bool

    def __len__(self) -> int: ...

    def row(self, number: int) -> FileRow:
        """Return row ``number``, from 0. Raise DataError for a file that has changed."""
        ...

    def light_rows(self, *, by_content: bool) -> Iterator[FileRow]:
        """Yield all rows. Bytes of media may be left out; with ``by_content`` only those that :meth:`identity` covers."""
        ...

    def identity(self) -> bytes:
        """Return what changes with embedded media that :meth:`light_rows` leaves out."""
        ...


def open_rows(path: Path) -> RowFile:
    """Return the rows of a file by its suffix. Raise DataError for one that cannot be read."""
    kinds: dict[str, Callable[[Path], RowFile]] = {".parquet": ParquetRows, ".jsonl": LineRows}
    return kinds.get(path.suffix, HeldRows)(path)


class ParquetRows:
    """Rows of a Parquet file; the row group last read stays in memory, one for each thread."""

    def __init__(self, path: Path) -> None:
        import pyarrow.parquet as pq

        self.path, self.checked = path, is_checked(path)
        with self._readable():
            self._metadata = pq.read_metadata(path)
        groups = [self._metadata.row_group(n) for n in range(self._metadata.num_row_groups)]
        self._form = PairForm.of(path, self._metadata.schema.to_arrow_schema().names)
        self._media = {*MEDIA, *self._form.media_columns}
        self._mixes_paths = {name for name in self._media if _holds(groups, name, "bytes") and _holds(groups, name, "path")}
        self._starts = np.cumsum([0, *(group.num_rows for group in groups)])
        self._columns = [self._metadata.schema.column(n).path for n in range(len(self._metadata.schema))]
        largest = max((group.total_byte_size for group in groups), default=0)
        if largest > MOST_GROUP_BYTES:
            raise DataError(f"{path}: a row group of {largest >> 20:,} MiB is read as a whole for each of its pairs; {REWRITE}")
        if largest > LARGE_GROUP_BYTES:
            log_line(f"{path}: row groups of up to {largest >> 20} MiB make reading slow; {REWRITE}")
        self._local = threading.local()

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_local"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._local = threading.local()

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except InputError:
            raise
        except (OSError, ValueError) as error:  # damaged, or changed while it is read
            raise unreadable_parquet(self.path, error) from error

    @contextmanager
    def _file(self) -> Iterator[Any]:
        import pyarrow.parquet as pq

        with self._readable(), pq.ParquetFile(self.path, metadata=self._metadata) as file:  # mapped pages would count as memory
            yield file

    def row(self, number: int) -> FileRow:
        group = bisect_right(self._starts, number) - 1
        if getattr(self._local, "group", None) != group:
            with self._file() as file:
                self._local.table, self._local.group = file.read_row_group(group, use_threads=False), group
        rows: list[dict[str, Any]] = self._local.table.slice(number - self._starts[group], 1).to_pylist()
        return self._form.of_row(FileRow(rows[0]), self.path, number)

    def _is_read(self, column: str, by_content: bool) -> bool:
        """Return whether light rows need a leaf column: all texts; of media their paths, and their bytes if no hash in the file
        covers them, or if only the bytes tell which of its paths count."""
        name, _, leaf = column.partition(".")
        if name in PAIR_COLUMNS and name not in self._media:
            return True
        is_needed = name in self._media and by_content and (not self.checked or name in self._mixes_paths)
        return is_needed or leaf.rpartition(".")[2] != "bytes"

    def light_rows(self, *, by_content: bool) -> Iterator[FileRow]:
        columns = [column for column in self._columns if self._is_read(column, by_content)]
        with self._file() as file:
            rows = (row for batch in parquet_batches(file, columns) for row in batch.to_pylist())
            for number, row in enumerate(rows):
                yield self._form.of_row(FileRow(row), self.path, number)

    def identity(self) -> bytes:
        """Return the hash of all media in a file that we wrote."""
        return bytes((self._metadata.metadata or {}).get(MEDIA_HASH, b""))


def _holds(groups: Sequence[Any], name: str, leaf: str) -> bool:
    """Return whether a leaf ("bytes" or "path") of the media column ``name`` has any value, or the file has no statistics."""
    chunks = [group.column(n) for group in groups for n in range(group.num_columns)]
    of_leaf = [c for c in chunks if c.path_in_schema.startswith(f"{name}.") and c.path_in_schema.endswith(f".{leaf}")]
    return any(
        chunk.statistics is None or not chunk.statistics.has_null_count or chunk.statistics.null_count < chunk.num_values
        for chunk in of_leaf
    )


class LineRows:
    """Rows of JSON lines: their places in the file are in memory, 16 bytes each."""

    checked = False

    def __init__(self, path: Path) -> None:
        self.path = path
        self._form: PairForm | None = None  # by the first row
        self._offsets = self._lines = np.empty(0, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._offsets)

    def row(self, number: int) -> FileRow:
        try:
            with self.path.open("rb") as file:
                file.seek(self._offsets[number])
                line = int(self._lines[number])
                stored = FileRow(parse_line(_text_of(file.readline()), self.path, line), line)
        except OSError as error:
            raise DataError(f"{self.path}: cannot be read any more ({error.strerror})") from error
        return (self._form or PairForm()).of_row(stored, self.path, number)

    def light_rows(self, *, by_content: bool) -> Iterator[FileRow]:
        offsets, lines, place = list[int](), list[int](), 0
        with self.path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                text = _text_of(line)
                if text.strip():
                    row = parse_line(text, self.path, number)
                    if self._form is None and isinstance(row, Mapping):
                        self._form = PairForm.of(self.path, list(row))
                    yield (self._form or PairForm()).of_row(FileRow(row, number), self.path, len(lines))
                    offsets.append(place)
                    lines.append(number)
                place += len(line)
        self._offsets, self._lines = np.array(offsets, dtype=np.int64), np.array(lines, dtype=np.int64)

    def identity(self) -> bytes:
        return b""


def _text_of(line: bytes) -> str:
    return line.decode("utf-8-sig", "surrogateescape")


class HeldRows:
    """Rows of a CSV, a JSON list or an Arrow file, all of them in memory; a larger set is to be converted first."""

    checked = False

    def __init__(self, path: Path) -> None:
        self.path = path
        if (size := path.stat().st_size) > MOST_HELD_BYTES:
            raise DataError(f"{path}: its {size >> 20:,} MiB would all be loaded into memory; {REWRITE}")
        self._rows = list(rows_in_pair_form(path))

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, number: int) -> FileRow:
        return self._rows[number]

    def light_rows(self, *, by_content: bool) -> Iterator[FileRow]:
        yield from self._rows

    def identity(self) -> bytes:
        return b""


@dataclass(frozen=True, slots=True)
class PairFacts:
    """What is kept in memory of a pair. ``tied``: people call it a tie; ``judged``: a teacher judged it, and it is none."""

    pair_id: str
    attempts: str
    preferred: int | None
    order: Order
    judged: bool
    tied: bool

    @staticmethod
    def of(pair: PreferencePair) -> PairFacts:
        tied = pair.tie is not None
        judged = bool(pair.judgment) and not tied
        return PairFacts(pair.pair_id, pair.attempts, pair.preferred, pair.order, judged, tied)


@dataclass(frozen=True)
class MediaMarks(Files):
    """Short marks in place of a row's media: enough to count them, and with ``by_content`` to notice other media in their
    place. With ``look`` images are checked by :func:`check_image`."""

    by_content: bool = False
    look: bool = False
    numbers: Iterator[int] = field(default_factory=count)

    def image(self, value: Any, where: str) -> bytes:
        if not self.by_content or self._was_not_read(value):
            return self._number()
        path = embedded(value)
        if isinstance(path, bytes):
            if self.look:
                check_image(path, where=where)
            return hashlib.sha256(path).digest()
        if isinstance(path, str) and path.startswith("data:"):
            return super().image(value, where) if self.look else hashlib.sha256(_encoded(path)).digest()
        file = self.file_of(path_of_medium(path, "image", where), where)
        if self.look:
            check_image(file, where=place_of(where, file))
        return self._mark(file, path)

    def video(self, value: Any, where: str) -> bytes:
        if not self.by_content or self._was_not_read(value):
            return self._number()
        path = embedded(value)
        if isinstance(path, str) and not path.startswith("data:") and _size_of(file := self.file_of(path, where)):
            return self._mark(file, path)
        return hashlib.sha256(self.video_file(value, where)[0]).digest()

    @staticmethod
    def _mark(file: Path, path: Any) -> bytes:
        return _encoded(f"{path} {_size_of(file)}")

    def _was_not_read(self, value: Any) -> bool:
        """Return whether a medium is embedded and its bytes were not read."""
        return self.checked and isinstance(value, Mapping) and "bytes" not in value and value.get("path") is None

    def _number(self) -> bytes:
        """Return a mark that no other medium has."""
        return b"embedded %d" % next(self.numbers)


def _encoded(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


def _size_of(file: Path) -> int:
    """Return the size of a file in bytes; 0 if there is none."""
    try:
        return file.stat().st_size if file.is_file() else 0
    except (OSError, ValueError):
        return 0


class PairTable(Sequence[PreferencePair]):
    """The pairs of a set on disk, read when they are taken; videos become ``frames`` (None: they stay files), sampled by
    ``policy``; ``allow_columns`` as :func:`rewardlab.data.pairs.validate_rows` takes them.

    ``fingerprint`` is a hash of all texts and, for media, of their paths and sizes, or of their bytes if these had to be read.
    Threads and worker processes may share a table. Raise DataError at the first bad row, for a set without pairs, and, unless
    ``allow_without_images``, for a set without media whose questions refer to images. Media are not checked: an unreadable one
    raises MediaError when its pair is taken, or by :meth:`look_at`.
    """

    def __init__(
        self,
        path: Path,
        *,
        images: Path | None = None,
        frames: int | None = FRAMES,
        policy: VideoPolicy | None = None,
        allow_columns: Collection[str] = (),
        allow_without_images: bool = False,
    ) -> None:
        self.path, self.images, self._frames, self._policy = path, images, frames, policy
        self.allow_columns, self.allow_without_images = frozenset(allow_columns), allow_without_images
        self._columns = AllowedColumns.of(allow_columns)
        self._files = [open_rows(file) for file in data_files_of(path)]
        digest, media = hashlib.sha256(), SetCheck()
        with bar("pairs", sum(map(len, self._files)) or None) as advance:
            self._all_facts = [PairFacts.of(pair) for pair in media.of(self._light_pairs(digest, advance))]
        media.refuse_broken(str(path), allow_columns)
        if not allow_without_images:
            media.refuse_blind_set(str(path))
        for note in media.notes():
            log_line(f"{path}: {note}")
        for file in self._files:
            digest.update(file.identity())
        if not self._all_facts:
            raise DataError(f"{path}: holds no pairs")
        self._starts = np.cumsum([0, *map(len, self._files)])
        self._rows: Sequence[int] | np.ndarray = range(len(self._all_facts))
        self.fingerprint = digest.hexdigest()[:16]

    def _light_pairs(self, digest: Any = None, advance: Any = None) -> Iterator[PreferencePair]:
        """Yield all pairs with marks in place of media; with ``digest`` (the first time), marks by content."""
        index, by_content = 0, digest is not None
        for file in self._files:
            files = MediaMarks(self.images or file.path.parent, checked=file.checked, by_content=by_content)
            for stored in file.light_rows(by_content=by_content):
                place = place_in_file(self.path, file.path, stored.line)
                read = partial(read_row, stored.row, index=index, path=self.path, columns=self._columns, place=place)
                pair = read(files=files)
                if isinstance(pair, BadRow) and isinstance(pair.error, MediaError):  # its texts count
                    pair = read(files=replace(files, by_content=False))
                if isinstance(pair, BadRow):
                    raise pair.error
                if digest is not None:
                    digest.update(text_identity(pair))
                    digest.update(repr([mark for mark in media_of(pair) if not mark.startswith(b"embedded ")]).encode())
                    advance(1)
                index += 1
                yield pair

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, number: int) -> PreferencePair: ...

    @overload
    def __getitem__(self, number: slice) -> PairTable: ...

    def __getitem__(self, number: int | slice) -> PreferencePair | PairTable:
        if isinstance(number, slice):
            return self.select(range(*number.indices(len(self))))
        pair, index = self._read(number), int(self._rows[number])
        if self._frames is None:
            return pair
        return with_frames(pair, self._frames, where=f"{self.path}, row {index}", policy=self._policy)

    def look_at(self, number: int, *, decode: bool = False) -> PreferencePair:
        """Return a pair, its videos as files, with marks in place of images that passed :func:`check_image`; with ``decode``
        images are decoded. Raise DataError or MediaError."""
        return self._read(number, Files() if decode else MediaMarks(by_content=True, look=True))

    def _read(self, number: int, files: Files | None = None) -> PreferencePair:
        """Return a pair, its videos as files; ``files`` reads its media (None: as usual)."""
        index = int(self._rows[number])
        number_of_file = bisect_right(self._starts, index) - 1
        file = self._files[number_of_file]
        files = replace(files or Files(checked=file.checked), folder=self.images or file.path.parent)
        stored = file.row(index - int(self._starts[number_of_file]))
        place = place_in_file(self.path, file.path, stored.line)
        pair = read_row(stored.row, index=index, files=files, path=self.path, columns=self._columns, place=place)
        if isinstance(pair, BadRow):
            raise pair.error
        if PairFacts.of(pair) != self._all_facts[index]:
            raise DataError(
                f"{self.path}, row {index}: has changed since the start; do not change a data file while it is being read"
            )
        return pair

    def number_of_row(self, message: str) -> int | None:
        """Return the number of the pair whose row an error message names."""
        begin = re.match(rf"{re.escape(str(self.path))}, row (\d+)\b", message)
        numbers = np.flatnonzero(np.asarray(self._rows) == int(begin[1])).tolist() if begin else []
        return numbers[0] if numbers else None

    def select(self, numbers: Sequence[int]) -> PairTable:
        """Return the pairs of these numbers, in their order; nothing is read."""
        chosen = object.__new__(PairTable)
        chosen.__dict__.update(self.__dict__)
        chosen._rows = np.asarray(self._rows)[np.asarray(numbers, dtype=np.int64)]
        return chosen

    @property
    def facts(self) -> list[PairFacts]:
        return [self._all_facts[n] for n in self._rows]

    def light_pairs(self) -> Iterator[tuple[int, PreferencePair]]:
        """Yield (number, pair) with marks in place of media, in the order of the files; nothing large is read."""
        numbers: dict[int, list[int]] = {}
        for number, row in enumerate(self._rows):
            numbers.setdefault(int(row), []).append(number)
        for index, pair in enumerate(self._light_pairs()):
            for number in numbers.get(index, ()):
                yield number, pair


def _with_lengths(texts: Iterable[str]) -> str:
    return "".join(f"{len(text)} {text}" for text in texts)


def text_identity(pair: PreferencePair) -> bytes:
    """Return all that a training run reads of a pair, without media; with a truth also the category, which names its rule, and
    criteria and others if there are any."""
    texts = (pair.pair_id, pair.question, *pair.responses, str(pair.preferred), pair.attempts, pair.order.value, pair.judgment)
    ruled = (pair.category, pair.truth) if pair.truth else ()  # without, the identity is that of earlier versions
    criteria = [text for each in pair.criteria for text in (each.name, str(each.weight), each.description)]
    joined = _with_lengths((*texts, *ruled))
    joined += f" {len(criteria)} {_with_lengths((*criteria, *pair.others))}" if criteria or pair.others else ""
    return joined.encode(errors="surrogatepass") + str(pair.tie or "").encode()


# Access to pairs on disk or in memory.


def pair_facts(pairs: Sequence[PreferencePair]) -> list[PairFacts]:
    """Return the facts of pairs on disk, or in memory."""
    return pairs.facts if isinstance(pairs, PairTable) else [PairFacts.of(pair) for pair in pairs]


def allowed_columns(pairs: Sequence[PreferencePair]) -> Collection[str]:
    """Return the other columns that a set on disk may have."""
    return pairs.allow_columns if isinstance(pairs, PairTable) else ()


def allows_without_images(pairs: Sequence[PreferencePair]) -> bool:
    """Return whether questions of a set on disk may refer to missing images."""
    return isinstance(pairs, PairTable) and pairs.allow_without_images


def select_pairs(pairs: Sequence[PreferencePair], numbers: Sequence[int]) -> Sequence[PreferencePair]:
    """Return some of the pairs; pairs on disk are not read."""
    return pairs.select(numbers) if isinstance(pairs, PairTable) else [pairs[n] for n in numbers]


def without_ties(pairs: Sequence[PreferencePair]) -> Sequence[PreferencePair]:
    """Return the pairs that are no ties; pairs on disk are not read."""
    return select_pairs(pairs, [number for number, facts in enumerate(pair_facts(pairs)) if not facts.tied])


def light_pairs(pairs: Sequence[PreferencePair]) -> Iterator[tuple[int, PreferencePair]]:
    """Yield (number, pair); pairs on disk in the order of their files, with marks in place of media."""
    return pairs.light_pairs() if isinstance(pairs, PairTable) else iter(enumerate(pairs))


def fingerprint_of(pairs: Sequence[PreferencePair]) -> str:
    """Return a hash of all that a training run reads of its pairs; for pairs on disk, see :class:`PairTable`."""
    if isinstance(pairs, PairTable):
        return pairs.fingerprint
    digest = hashlib.sha256()
    for pair in pairs:
        digest.update(text_identity(pair))
        for image in (*pair.images, *pair.response_images[0], *pair.response_images[1]):
            digest.update(hashlib.sha256(image).digest())
    return digest.hexdigest()[:16]
