"""Pairs on disk that are read one at a time, in any order: what training reads, so that memory does not grow with the data.

A :class:`PairTable` goes through its files once, reading texts and leaving embedded media where they are, and keeps a few facts
of each pair (about 0.3 kB). A pair is read, media and all, when it is taken. Of Parquet that means its row group, which
:class:`rewardlab.data.pairs.Shard` keeps small; of JSON lines and CSV its lines and the files it names. The rows of a JSON
list or of a saved dataset are in memory (:mod:`rewardlab.data.row_files`).
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, overload

import numpy as np

from rewardlab.data.columns import AllowedColumns
from rewardlab.data.files import place_in_file
from rewardlab.data.guessed_mapping import data_files_of
from rewardlab.data.images import check_image
from rewardlab.data.media_mentions import MediaCount
from rewardlab.data.pairs import BadRow, read_row
from rewardlab.data.qwen_video import VideoPolicy
from rewardlab.data.row_files import open_rows
from rewardlab.data.rows import FRAMES, Files, media_of, path_of_medium, place_of, with_frames
from rewardlab.errors import DataError, MediaError
from rewardlab.reporting.progress import bar, log_line
from rewardlab.types import Order, PreferencePair


@dataclass(frozen=True, slots=True)
class PairFacts:
    """What is kept in memory of a pair. ``judged``: it has a teacher's judgment."""

    pair_id: str
    attempts: str
    preferred: int | None
    order: Order
    judged: bool

    @staticmethod
    def of(pair: PreferencePair) -> PairFacts:
        return PairFacts(pair.pair_id, pair.attempts, pair.preferred, pair.order, bool(pair.judgment))


@dataclass(frozen=True)
class MediaMarks(Files):
    """Stands a short mark in for each medium of a row: enough to count them, and with ``by_content`` to notice that others have
    taken their place. With ``look`` images are looked at, too, as :func:`check_image` does.
    """

    by_content: bool = False
    look: bool = False
    numbers: Iterator[int] = field(default_factory=count)

    def image(self, value: Any, where: str) -> bytes:
        if not self.by_content or self._was_not_read(value):
            return self._number()
        data, path = (value.get("bytes"), value.get("path")) if isinstance(value, Mapping) else (None, value)
        if isinstance(data, bytes) and data:
            if self.look:
                check_image(data, where=where)
            return hashlib.sha256(data).digest()
        if isinstance(path, str) and path.startswith("data:"):
            return super().image(value, where) if self.look else hashlib.sha256(_encoded(path)).digest()
        file = self.file_of(path_of_medium(value, "image", where), where)
        if self.look:
            check_image(file, where=place_of(where, file))
        return self._mark(file, path)

    def video(self, value: Any, where: str) -> bytes:
        if not self.by_content or self._was_not_read(value):
            return self._number()
        data, path = (value.get("bytes"), value.get("path")) if isinstance(value, Mapping) else (None, value)
        if isinstance(path, str) and not data and _size_of(file := self.file_of(path, where)):
            return self._mark(file, path)
        return hashlib.sha256(super().video(value, where)).digest()

    @staticmethod
    def _mark(file: Path, path: Any) -> bytes:
        return _encoded(f"{path} {_size_of(file)}")

    def _was_not_read(self, value: Any) -> bool:
        """Whether a medium is embedded, and its bytes were left where they are."""
        return self.checked and isinstance(value, Mapping) and "bytes" not in value and value.get("path") is None

    def _number(self) -> bytes:
        """Return a mark that no other medium has."""
        return b"embedded %d" % next(self.numbers)


def _encoded(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


def _size_of(file: Path) -> int:
    """Return the bytes of a file; 0 where there is none."""
    try:
        return file.stat().st_size if file.is_file() else 0
    except (OSError, ValueError):
        return 0


class PairTable(Sequence[PreferencePair]):
    """The pairs of a set on disk, read as they are taken; of videos ``frames``, by ``policy`` as a judge's family samples them;
    ``allow_columns`` as :func:`rewardlab.data.pairs.validate_rows` takes them.

    ``fingerprint`` names what was read: all texts, and of media their paths and sizes, or the hash of their bytes where these
    had to be read. Threads and worker processes may share one. Raise DataError at the first row that is no pair, for a set
    without any, and, unless ``allow_without_images``, for one without media whose questions speak of images. Media are not
    checked: a pair with an unreadable one raises MediaError when it is taken, or by :meth:`look_at`.
    """

    def __init__(
        self,
        path: Path,
        *,
        images: Path | None = None,
        frames: int = FRAMES,
        policy: VideoPolicy | None = None,
        allow_columns: Collection[str] = (),
        allow_without_images: bool = False,
    ) -> None:
        self.path, self.images, self._frames, self._policy = path, images, frames, policy
        self.allow_columns, self.allow_without_images = frozenset(allow_columns), allow_without_images
        self._columns = AllowedColumns.of(allow_columns)
        self._files = [open_rows(file) for file in data_files_of(path)]
        digest, media = hashlib.sha256(), MediaCount()
        with bar("pairs", sum(map(len, self._files)) or None) as advance:
            self._all_facts = [PairFacts.of(pair) for pair in media.of(self._light_pairs(digest, advance))]
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
        """Yield every pair of the set with marks in place of media; with ``digest``, the first time, marks by their content."""
        index, by_content = 0, digest is not None
        for file in self._files:
            files = MediaMarks(self.images or file.path.parent, checked=file.checked, by_content=by_content)
            for stored in file.light_rows(by_content=by_content):
                place = place_in_file(self.path, file.path, stored.line)
                read = partial(read_row, stored.row, index=index, path=self.path, columns=self._columns, place=place)
                pair = read(files=files)
                if isinstance(pair, BadRow) and isinstance(pair.error, MediaError):  # its texts count; reading it says why
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
        return with_frames(pair, self._frames, where=f"{self.path}, row {index}", policy=self._policy)

    def look_at(self, number: int, *, decode: bool = False) -> PreferencePair:
        """Return a pair, its videos as they are, with marks in place of images that were looked at as :func:`check_image` does;
        with ``decode`` these are decoded. Raise DataError or MediaError."""
        return self._read(number, Files() if decode else MediaMarks(by_content=True, look=True))

    def _read(self, number: int, files: Files | None = None) -> PreferencePair:
        """Return a pair, its videos as they are; ``files`` says how media are read (None: as when its turn comes)."""
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
            raise DataError(f"{self.path}, row {index}: is another pair than at the start; leave a set alone while it is read")
        return pair

    def number_of_row(self, message: str) -> int | None:
        """Return the number of the pair whose row of the file a message begins with."""
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


def text_identity(pair: PreferencePair) -> bytes:
    """Return what a training run reads of a pair besides media."""
    texts = (pair.pair_id, pair.question, *pair.responses, str(pair.preferred), pair.attempts, pair.order.value, pair.judgment)
    return "".join(f"{len(text)} {text}" for text in texts).encode(errors="surrogatepass")


# What training asks of pairs, wherever they are.


def pair_facts(pairs: Sequence[PreferencePair]) -> list[PairFacts]:
    """Return the facts of pairs on disk, or in memory."""
    return pairs.facts if isinstance(pairs, PairTable) else [PairFacts.of(pair) for pair in pairs]


def allowed_columns(pairs: Sequence[PreferencePair]) -> Collection[str]:
    """Return the further columns that a set on disk may have."""
    return pairs.allow_columns if isinstance(pairs, PairTable) else ()


def allows_without_images(pairs: Sequence[PreferencePair]) -> bool:
    """Return whether a set on disk may speak of images that it does not have."""
    return isinstance(pairs, PairTable) and pairs.allow_without_images


def select_pairs(pairs: Sequence[PreferencePair], numbers: Sequence[int]) -> Sequence[PreferencePair]:
    """Return some of the pairs; those on disk stay there."""
    return pairs.select(numbers) if isinstance(pairs, PairTable) else [pairs[n] for n in numbers]


def light_pairs(pairs: Sequence[PreferencePair]) -> Iterator[tuple[int, PreferencePair]]:
    """Yield (number, pair); those on disk in the order of their files, with marks in place of media."""
    return pairs.light_pairs() if isinstance(pairs, PairTable) else iter(enumerate(pairs))


def fingerprint_of(pairs: Sequence[PreferencePair]) -> str:
    """Return a hash of what a training run reads of its pairs: of those on disk, see :class:`PairTable`."""
    if isinstance(pairs, PairTable):
        return pairs.fingerprint
    digest = hashlib.sha256()
    for pair in pairs:
        digest.update(text_identity(pair))
        for image in (*pair.images, *pair.response_images[0], *pair.response_images[1]):
            digest.update(hashlib.sha256(image).digest())
    return digest.hexdigest()[:16]
