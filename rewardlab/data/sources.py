"""Sources of `data build`: files of a folder, a dataset saved by ``datasets``, or a dataset of the Hub, streamed or
downloaded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rewardlab.data.row_files import HUB, log_splits, saved_dataset_files, stored_rows
from rewardlab.errors import ConfigError, DataError

HUB_FORM = "hf:OWNER/NAME[@REVISION][:CONFIG[:SPLIT]]"
TABLES = ("**/*.parquet", "**/*.jsonl", "**/*.json")  # the usual files of a source; a recipe may name particular ones

SourceRows = Iterable[Mapping[str, Any] | DataError]


@dataclass(frozen=True)
class HubStream:
    """A dataset of the Hub, streamed row by row: all splits in their order, or ``split`` alone. ``config`` "" is the dataset's
    default."""

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
                self.name, self.config or None, split=self.split or None, revision=self.revision or None, streaming=True
            )
            streams = dataset if isinstance(dataset, IterableDatasetDict) else {self.split: dataset}
            return {str(name): stream.decode(False) for name, stream in streams.items()}
        except Exception as error:  # the boundary: the library fails in many ways
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            raise DataError(
                f"{self}: cannot be read ({reason}); check name, config and split, accept its terms and log in "
                "with `hf auth login`, or fetch its files (download=true)"
            ) from error

    def parts(self) -> Iterator[tuple[str, SourceRows]]:
        """Yield each split's name and rows. Raises DataError, also if a stream breaks off."""
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
                f"{self}: split {split} ends early, after {number:,} rows ({error}); run the command again"
            ) from error

    def download(self) -> Path:
        """Download the dataset's files, continuing an interrupted download; return their folder. Raises ConfigError for a
        config or a split, DataError."""
        if self.config or self.split:
            raise ConfigError(f"{self}: download=true fetches all files, without CONFIG and SPLIT; use hf:{self.name} alone")
        from huggingface_hub import snapshot_download

        from rewardlab.models.hub import hub_options

        offline = bool(hub_options(self.name))
        try:
            folder = snapshot_download(self.name, repo_type="dataset", revision=self.revision or None, local_files_only=offline)
        except Exception as error:  # the boundary: see above
            raise DataError(
                f"{self}: cannot be fetched ({error}); accept its terms and log in with `hf auth login`, or fetch it on a "
                "machine with a network and name its folder"
            ) from error
        return Path(folder)


def open_source(text: str, files: tuple[str, ...], *, download: bool = False) -> Path | HubStream:
    """Return the source that ``--from`` names: a folder, a file, or for ``hf:`` a stream.

    With ``download``, or if a recipe's ``files`` name particular ones, return the folder that the dataset was downloaded to.
    Raises ConfigError, DataError.
    """
    if not text.startswith(HUB):
        return Path(text)
    stream = HubStream.parse(text)
    return stream if not download and set(TABLES) <= set(files) else stream.download()


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
        yield str(file.relative_to(folder)), (stored.row for stored in stored_rows(file))


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
