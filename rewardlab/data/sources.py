"""Where the rows of a source are: files of a folder, a dataset saved by ``datasets``, or one of the Hub, streamed or
fetched."""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rewardlab.data.csv_rows import csv_rows
from rewardlab.data.files import json_fault
from rewardlab.data.pairs import lines_of, rows_of
from rewardlab.errors import ConfigError, DataError
from rewardlab.reporting.progress import log_line

HUB = "hf:"  # before OWNER/NAME of a dataset of the Hub
HUB_FORM = "hf:OWNER/NAME[@REVISION][:CONFIG[:SPLIT]]"
TABLES = ("**/*.parquet", "**/*.jsonl", "**/*.json")  # the usual files of a source; another list names files in particular
ARROW_ROWS = 64  # of a record batch, turned into Python at a time

SourceRows = Iterable[Mapping[str, Any] | DataError]


@dataclass(frozen=True)
class HubStream:
    """A dataset of the Hub, read row by row without being stored: all splits in their order, or ``split`` alone. ``config`` ""
    is the dataset's default."""

    name: str
    revision: str = ""
    config: str = ""
    split: str = ""

    @staticmethod
    def parse(text: str) -> HubStream:
        """Read ``hf:OWNER/NAME[@REVISION][:CONFIG[:SPLIT]]``. Raises ConfigError."""
        place, *parts = text.removeprefix(HUB).split(":")
        name, _, revision = place.partition("@")
        if name.count("/") != 1 or not all(name.split("/")) or len(parts) > 2:
            raise ConfigError(f"{text!r}: expected {HUB_FORM}")
        config, split = [*parts, "", ""][:2]
        return HubStream(name, revision, config, split)

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        parts = f":{self.config}" if self.config or self.split else ""
        return f"{HUB}{self.name}{revision}{parts}{f':{self.split}' if self.split else ''}"

    def splits(self) -> dict[str, Any]:
        """Return the streams by split, media as the bytes they are stored as. Raises DataError."""
        from datasets import IterableDatasetDict, load_dataset

        from rewardlab.models.hub import hub_options, why_absent

        if hub_options(self.name):  # before minutes of retries
            raise DataError(
                f"{self}: {why_absent(self.name, OSError())}; fetch its files on a machine with a network and name their folder"
            )
        try:
            dataset = load_dataset(
                self.name,
                self.config or None,
                split=self.split or None,
                revision=self.revision or None,
                streaming=True,
            )
            streams = dataset if isinstance(dataset, IterableDatasetDict) else {self.split: dataset}
            return {str(name): stream.decode(False) for name, stream in streams.items()}
        except Exception as error:  # the boundary: the library fails in many ways
            raise DataError(f"{self}: {_unreadable(error)}") from error

    def parts(self) -> Iterator[tuple[str, SourceRows]]:
        """Yield each split's name and rows. Raises DataError, also where a stream breaks off."""
        for name, stream in self.splits().items():
            yield name, self._rows(name, stream)

    def _rows(self, split: str, stream: Any) -> Iterator[Mapping[str, Any]]:
        number = 0
        try:
            for row in stream:
                yield row
                number += 1
        except Exception as error:  # the boundary: see above
            raise DataError(
                f"{self}: split {split} breaks off after {number:,} rows ({error}); run the command again"
            ) from error


def _unreadable(error: Exception) -> str:
    reason = " ".join(str(error).split())[:300] or type(error).__name__
    return (
        f"cannot be read ({reason}); check name, config and split, accept its terms and log in by `hf auth login`, or fetch "
        "its files (--download)"
    )


def open_source(text: str, files: tuple[str, ...], *, download: bool = False) -> Path | HubStream:
    """Return the source that ``--from`` names: a folder or file as it is, of ``hf:`` a stream.

    With ``download``, and where a recipe's ``files`` name some in particular, the folder the dataset's files were fetched
    to. Raises ConfigError, DataError.
    """
    if not text.startswith(HUB):
        return Path(text)
    stream = HubStream.parse(text)
    if not download and set(TABLES) <= set(files):
        return stream
    if stream.config or stream.split:
        raise ConfigError(f"{text}: files are fetched whole, without CONFIG and SPLIT; name hf:{stream.name} alone")
    return fetch_source(text)


def fetch_source(source: str) -> Path:
    """Return a folder or file as it is; of ``hf:OWNER/NAME`` or ``hf:OWNER/NAME@REVISION`` the folder that the Hub's data set
    was downloaded to, which continues where it was cut off. Raises DataError.
    """
    if not source.startswith(HUB):
        return Path(source)
    from huggingface_hub import snapshot_download

    from rewardlab.models.hub import hub_options

    name, _, revision = source.removeprefix(HUB).partition("@")
    try:
        return Path(
            snapshot_download(name, repo_type="dataset", revision=revision or None, local_files_only=bool(hub_options(name)))
        )
    except Exception as error:  # the boundary: a download may break in any way of the library's
        raise DataError(
            f"{source}: cannot be fetched ({error}); accept its terms and log in by `hf auth login`, or fetch it on a machine "
            "with a network and name its folder"
        ) from error


def media_folder(source: Path | HubStream) -> Path:
    """Return the folder that paths of media start at; a stream has none, and its name stands in the errors."""
    if isinstance(source, HubStream):
        return Path(str(source))
    return source if source.is_dir() else source.parent


def source_parts(source: Path | HubStream, patterns: tuple[str, ...], url: str) -> Iterator[tuple[str, SourceRows]]:
    """Yield the name and the rows of each file, or of each split of a stream. Raises DataError."""
    if isinstance(source, HubStream):
        yield from source.parts()
        return
    folder, files = media_folder(source), source_files(source, patterns, url)
    log_splits(folder, tuple(files))
    for file in files:
        yield str(file.relative_to(folder)), source_rows(file)


def source_files(source: Path, patterns: tuple[str, ...], url: str = "") -> list[Path]:
    """Return the source's data files: itself, those of a saved dataset, or by the patterns, tried in turn. Raises DataError."""
    if source.is_file():
        return [source]
    if saved := saved_dataset_files(source):
        return saved
    for pattern in (*patterns, "**/*.arrow"):
        if files := sorted(source.glob(pattern)):
            return files
    what = "no data file in it" if source.is_dir() else "no such file or folder"
    cure = f"; download {url}" if url else ""
    raise DataError(f"{source}: {what} (looked for {', '.join(patterns)}, and a dataset saved by `datasets`){cure}")


def saved_dataset_files(folder: Path) -> list[Path]:
    """Return the Arrow files of what ``Dataset.save_to_disk`` or ``DatasetDict.save_to_disk`` wrote, in their order; [] for any
    other folder. Raises DataError for one that is not whole."""
    if (listing := folder / "dataset_dict.json").is_file():
        splits = _read_listing(listing).get("splits", [])
        return [file for split in splits for file in saved_dataset_files(folder / str(split))]
    if not (state := folder / "state.json").is_file():
        return []
    files = [folder / str(entry["filename"]) for entry in _read_listing(state).get("_data_files", [])]
    if missing := [file.name for file in files if not file.is_file()]:
        raise DataError(f"{folder}: a saved dataset that lacks {', '.join(missing)}; save it again")
    return files


_SPLIT = re.compile(r"(train|training|test|testing|validation|valid|val|dev|eval)(?:[-_.0-9]|$)", re.IGNORECASE)


def splits_of(folder: Path, files: Iterable[Path]) -> dict[str, list[Path]]:
    """Return the files of a folder by split, as far as its own listing, their folders' names or their own tell."""
    splits: dict[str, list[Path]] = {}
    saved = (folder / "dataset_dict.json").is_file()
    for file in files:
        parts = file.relative_to(folder).parts if file.is_relative_to(folder) else ()
        names = parts[:1] if saved else [match[1] for part in parts if (match := _SPLIT.match(part))]
        if names:
            splits.setdefault(names[0], []).append(file)
    return splits


@cache
def log_splits(folder: Path, files: tuple[Path, ...]) -> None:
    """Log, once, that a folder's files are of several splits, and how one of them is named."""
    splits = splits_of(folder, files)
    if len(splits) < 2:
        return
    first, parts = next(iter(splits.values()))[0], [f"{name} ({len(of_split):,})" for name, of_split in splits.items()]
    example = first.parent if first.parent != folder else first
    log_line(f"{folder}: all splits are read, {', '.join(parts)}, of {len(files):,} files; name {example} for one alone")


def _read_listing(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: not the listing of a saved dataset ({error})") from error


def source_rows(path: Path) -> Generator[Mapping[str, Any] | DataError, None, None]:
    """Yield the rows of .parquet, .arrow, .jsonl (in place of a broken line why it is), .json with one list, .csv, .tsv. Raises
    DataError.
    """
    if path.suffix in (".csv", ".tsv"):
        yield from (row.cells for row in csv_rows(path))
    elif path.suffix == ".arrow":
        yield from _rows_of_arrow(path)
    elif path.suffix == ".jsonl":
        yield from (row for _, row in lines_of(path))
    elif path.suffix == ".json":
        yield from _rows_of_json(path)
    else:
        yield from rows_of(path)


def _rows_of_json(path: Path) -> Iterator[Mapping[str, Any]]:
    text = ""
    try:
        text = path.read_text(encoding="utf-8-sig")
        rows = json.loads(text)
    except ValueError as error:
        raise DataError(f"{path}: not readable as JSON ({json_fault(error, text)})") from error
    except (OSError, RecursionError) as error:
        raise DataError(f"{path}: not readable as JSON ({error})") from error
    if not isinstance(rows, list):
        raise DataError(f"{path}: expected one JSON list of rows, got {type(rows).__name__}")
    yield from rows


def _rows_of_arrow(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of an Arrow stream, as ``datasets`` writes it, or of an Arrow file; one record batch is in memory."""
    import pyarrow as pa

    try:
        with pa.OSFile(str(path)) as file:
            if file.read(6) == b"ARROW1":
                reader = pa.ipc.open_file(file)
                batches: Iterable[Any] = map(reader.get_batch, range(reader.num_record_batches))
            else:
                file.seek(0)
                batches = pa.ipc.open_stream(file)
            for batch in batches:
                for start in range(0, batch.num_rows, ARROW_ROWS):
                    yield from batch.slice(start, ARROW_ROWS).to_pylist()
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: not a readable Arrow file ({error})") from error
