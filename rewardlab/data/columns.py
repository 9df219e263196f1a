"""Columns that are read. One of another name is an error: a pair without its picture would pass for any other."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any

from rewardlab.errors import DataError
from rewardlab.reporting.progress import log_line
from rewardlab.types import PreferencePair

PAIR_COLUMNS = frozenset(column.name for column in fields(PreferencePair)) - {"other_images"}
_REWARDBENCH2 = "subset num_correct num_incorrect total_completions models additional_metadata"  # columns that decide nothing
_CANDIDATES = "id question prompt responses chosen rejected images videos response_images response_videos criteria best group"
CANDIDATE_COLUMNS = frozenset(f"{_CANDIDATES} {_REWARDBENCH2}".split())
ALL = "all"
FLAG = "--allow"

# Names of a column in other formats, in lower case, without `_` and a plural's s.
_ALIASES = {
    "images": "image img pic picture photo photograph screenshot figure imagepath imagefile imageurl imagebyte picturepath "
    "pictureurl pictureid photopath photourl imageid",
    "videos": "video videopath videofile videourl clip movie",
    "question": "prompt query instruction input message conversation",
    "responses": "answer completion output candidate",
    "preferred": "label winner preference ranking humanranking better",
    "pair_id": "id uid uuid key questionid",
    "systems": "model",
    "": "system systemprompt",  # like systems, and none of them
}
_OTHER_NAMES = {alias: column for column, aliases in _ALIASES.items() for alias in aliases.split()}
_UNNAMED = re.compile(r"Unnamed: \d+")
_MEDIUM = re.compile(r"\.(png|jpe?g|webp|gif|bmp|tiff?|mp4|mov|webm|mkv|avi)$", re.I)
_VIDEO = re.compile(r"\.(mp4|mov|webm|mkv|avi)$", re.I)


def nearest_column(name: str, known: Collection[str]) -> str | None:
    """Return the column of ``known`` that a name most likely means, None if it is like none."""
    plain = name.lower().replace("_", "").replace("-", "").replace(" ", "")
    singular = plain if plain in _OTHER_NAMES else plain.removesuffix("s")
    if (other := _OTHER_NAMES.get(singular)) in (*known, ""):
        return other or None
    by_plain = {column.replace("_", ""): column for column in sorted(known)}
    close = get_close_matches(plain, by_plain, n=1, cutoff=0.75)
    return by_plain[close[0]] if close else None


def looks_like_media(value: Any) -> bool:
    """Return whether a value looks like an image or a video: bytes, a data URL, a path with the suffix of one, ``{"bytes",
    "path"}``, or a list with one of these."""
    if isinstance(value, Mapping):
        return bool(value.keys() & {"bytes", "path"})
    if isinstance(value, list | tuple):
        return any(map(looks_like_media, value))
    if isinstance(value, str):
        return value.startswith(("data:image/", "data:video/")) or bool(_MEDIUM.search(value.strip()))
    return isinstance(value, bytes)


def medium_column(value: Any, known: Collection[str] = ("images", "videos")) -> str | None:
    """Return the column of ``known`` for a value that :func:`looks_like_media`, None for another; its suffix tells a video."""
    if not looks_like_media(value):
        return None
    if isinstance(value, list | tuple):
        return next(column for one in value if (column := medium_column(one, known)) or one is value[-1])
    name = value.get("path") if isinstance(value, Mapping) else value
    is_video = isinstance(name, str) and (name.startswith("data:video/") or bool(_VIDEO.search(name.strip())))
    column = "videos" if is_video else "images"
    return column if column in known else None


class UnreadColumnsError(DataError):
    """A row has columns that are not read, each with a suggestion. ``rest``: the pair of the row without them, or its error."""

    def __init__(self, where: str, columns: Mapping[str, str]) -> None:
        super().__init__(f"{where}: {unread_words(columns)}")
        self.columns = columns
        self.rest: Any = None


def unread_words(columns: Mapping[str, str]) -> str:
    """Return the sentence on columns that are not read, with suggestions and the cure."""
    flag = f"{FLAG} {','.join(columns)}"
    if len(columns) == 1:
        [(name, meant)] = columns.items()
        return f"the column {name!r} is not read{f'; {meant}' if meant else '.'} Rename or drop it, or pass over it by {flag}"
    names = ", ".join(f"{name!r} ({meant})" if meant else repr(name) for name, meant in columns.items())
    return f"{len(columns)} columns are not read: {names}. Rename or drop them, or pass over them by {flag}"


@dataclass(frozen=True)
class AllowedColumns:
    """Columns that may be in a row and are not read: by name, or all but those that hold media. Each is logged once."""

    names: frozenset[str] = frozenset()
    logged: set[str] = field(default_factory=set, compare=False)

    @staticmethod
    def of(names: Iterable[str] = ()) -> AllowedColumns:
        """Return the allowed ``names``; "all" allows every column without media."""
        return AllowedColumns(frozenset(name.strip() for name in names if name.strip()))

    def unread(self, row: Mapping[str, Any], where: str, known: frozenset[str] = PAIR_COLUMNS) -> UnreadColumnsError | None:
        """Return the error of all non-empty columns that are neither known nor allowed, or None. An index that pandas wrote is
        ignored: a name that begins with ``__``, an empty name, or "Unnamed: 0"."""
        if row.keys() <= known:
            return None
        unread: dict[str, str] = {}
        for name in sorted(map(str, row.keys() - known)):
            value = row.get(name)
            is_empty = value is None or (isinstance(value, str | list | tuple | Mapping) and not value)
            if is_empty or name.startswith("__") or name == "" or _UNNAMED.fullmatch(name):
                continue
            is_media = ALL in self.names and looks_like_media(value)
            if name in self.names or (ALL in self.names and not is_media):
                if name not in self.logged:
                    self.logged.add(name)
                    log_line(f"the column {name!r} is not read")
                continue
            nearest = nearest_column(name, known) or medium_column(value, known)
            a_list = ", a list" if nearest in ("images", "videos") else ""
            meant = f"did you mean {nearest!r}{a_list}?" if nearest else ""
            unread[name] = f"{meant} It holds media, which `all` does not pass over.".strip() if is_media else meant
        return UnreadColumnsError(where, unread) if unread else None

    def check(self, row: Mapping[str, Any], where: str, known: frozenset[str] = PAIR_COLUMNS) -> None:
        """Raise the error that :meth:`unread` returns."""
        if error := self.unread(row, where, known):
            raise error
