"""Fetching a benchmark's files, and checking what is at hand: hashes, counts, labels.

From the Hub every file of a data format is fetched at one revision, and compared with the hash that the Hub names of large
files. Files whose hash is known here, of the copies in circulation, are compared with that. What was fetched is written down,
so that the same files can be told again.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rewardlab.benchmarks.base import Benchmark, BenchmarkFiles, size_notes
from rewardlab.benchmarks.registry import find_benchmark, packaged_benchmarks
from rewardlab.data.files import sha256_of, write_atomic
from rewardlab.errors import ConfigError, DataError, OutputError
from rewardlab.reporting.progress import bar

if TYPE_CHECKING:
    import httpx

RECORD = "prepared.json"


@dataclass(frozen=True)
class FetchRecord:
    """What was fetched: the revision, and the SHA-256 of each file, by its name. ``prepared.json`` holds it."""

    benchmark: str
    repo: str
    revision: str
    files: Mapping[str, str]


def fetch_files(name: str, out: Path, *, hub: str = "https://huggingface.co") -> FetchRecord:
    """Fetch to ``out`` what is not there yet; returns the record, which is also written there.

    Raise ConfigError for an unknown benchmark, DataError where the network or a hash says no: nothing half-written stays.
    """
    import httpx

    source, before = known_files(find_benchmark(name)), _record(out)
    if out.exists() and not out.is_dir():
        raise OutputError(f"{out}: is a file; name a folder with --out")
    try:
        with httpx.Client(follow_redirects=True, timeout=60) as client:
            revision, urls, hashes = _hub_files(client, hub, source) if source.repo else ("main", source.urls, source.sha256)
            recorded = before.files if before and before.revision == revision and source.repo else {}
            for file, url in urls.items():
                _download(client, url, _inside(out, file), hashes.get(file), recorded.get(file))
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, DataError):
            raise
        place = f"the dataset {source.repo} of the Hub" if source.repo else ", ".join(source.urls.values())
        raise DataError(
            f"{name} could not be fetched ({error}); on a machine with network "
            f"access, download {place}, copy it here, and check it "
            f"with `rewardlab bench prepare {name} --check PATH`"
        ) from error
    record = FetchRecord(name, source.repo, revision, {file: sha256_of(out / file) for file in urls})
    write_atomic(out / RECORD, json.dumps(asdict(record), indent=1) + "\n")
    return record


def prepared_folder(name: str) -> Path:
    """Return where a benchmark's files are put and looked for where nobody names a folder: below ``REWARDLAB_DATA``, or the
    user's cache."""
    return Path(os.environ.get("REWARDLAB_DATA") or Path.home() / ".cache" / "rewardlab" / "benchmarks") / name


def prepared_data(name: str) -> Path:
    """Return the data of a benchmark that :func:`fetch_files` has put into its :func:`prepared_folder`. Raise ConfigError where
    it has not."""
    benchmark = find_benchmark(name)
    folder = prepared_folder(benchmark.name)
    if benchmark.files is None:
        raise ConfigError(f"{name}: expected --data FILE, because the location of its files is unknown")
    if _record(folder) is None:
        raise ConfigError(
            f"{name}: expected --data FILE; without it {folder} is searched, where `rewardlab bench prepare {name}` puts "
            "the files (REWARDLAB_DATA sets another folder)"
        )
    return _loadable(folder, benchmark.files)


def known_files(benchmark: Benchmark) -> BenchmarkFiles:
    """Return where a benchmark's files are. Raise ConfigError if nothing is known of them."""
    if benchmark.files is None:
        names = [other.name for other in packaged_benchmarks() if other.files]
        raise ConfigError(f"{benchmark.name}: has no known files; expected one of {', '.join(names)}")
    return benchmark.files


def _inside(out: Path, file: str) -> Path:
    """Return the path of a file in ``out``. Raise DataError for a name that is outside it."""
    path = out / file
    if not path.resolve().is_relative_to(out.resolve()):
        raise DataError(f"a file named {file!r} would be written outside {out}; do not trust this source")
    return path


def _hub_files(client: httpx.Client, hub: str, source: BenchmarkFiles) -> tuple[str, Mapping[str, str], Mapping[str, str]]:
    """The revision that ``main`` is, the URL of every data file there, and the SHA-256 of those that the Hub keeps as large."""
    repo = source.repo
    answer = client.get(f"{hub}/api/datasets/{repo}/revision/main", params={"blobs": True})
    answer.raise_for_status()
    info = answer.json()
    listed = {file["rfilename"]: file.get("lfs") or {} for file in info["siblings"]}
    files = {name: large for name, large in listed.items() if name.endswith(source.suffixes)}
    urls = {name: f"{hub}/datasets/{repo}/resolve/{info['sha']}/{name}" for name in files}
    return info["sha"], urls, {name: large["sha256"] for name, large in files.items() if large.get("sha256")}


def _download(client: httpx.Client, url: str, path: Path, expected: str | None, recorded: str | None) -> None:
    """To a neighbour, then into place. What is there already is kept only if its hash is the right one, or, where the source
    names none, the one recorded of the same revision."""
    if path.exists() and sha256_of(path) == (expected or recorded):
        return
    partial = path.with_name(f".{path.name}.partial")
    try:
        with client.stream("GET", url) as answer:
            answer.raise_for_status()
            path.parent.mkdir(parents=True, exist_ok=True)
            size = int(answer.headers.get("content-length", 0))
            with partial.open("wb") as file, bar(path.name, size) as advance:
                for block in answer.iter_bytes(1 << 20):
                    file.write(block)
                    advance(len(block))
        if expected and (digest := sha256_of(partial)) != expected:
            raise DataError(f"{url}: its SHA-256 is {digest}, expected {expected}; the file has changed or is corrupt")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def check_files(name: str, data: Path) -> tuple[list[str], bool]:
    """Return (sentences, whether all is as known): each file's hash, then what its loader counts.

    Raise DataError, ConfigError.
    """
    benchmark = find_benchmark(name)
    source, sentences, is_good = known_files(benchmark), list[str](), True
    record = _record(data if data.is_dir() else data.parent)
    recorded = record.files if record else {}
    for file in _files(data, source):
        digest = sha256_of(file)
        before = recorded.get(str(file.relative_to(data)) if data.is_dir() else file.name)
        if digest in source.sha256.values():
            sentences.append(f"{file.name}: SHA-256 {digest}, the known file")
        elif before == digest:
            sentences.append(f"{file.name}: SHA-256 {digest}, as fetched")
        elif before or file.name in source.sha256:
            expected = before or source.sha256[file.name]
            sentences.append(f"{file.name}: SHA-256 {digest}, expected {expected}: not the same file")
            is_good = False
        else:
            sentences.append(f"{file.name}: SHA-256 {digest}, nothing to compare it with")
    rows = benchmark.load(_loadable(data, source), images=None, with_images=False)
    counts = Counter(row.group for row in rows)
    sentences.append(f"{len(rows):,} pairs: " + ", ".join(f"{group} {count:,}" for group, count in counts.items()))
    notes = size_notes(benchmark, rows)
    return [*sentences, *notes, f"media: {source.media}"], is_good and not notes


def _files(data: Path, source: BenchmarkFiles) -> Sequence[Path]:
    if not data.exists():
        raise DataError(f"{data}: no such file or folder")
    files = (
        sorted(path for path in data.rglob("*") if path.name.endswith(source.suffixes) and path.name != RECORD)
        if data.is_dir()
        else [data]
    )
    if not files:
        raise DataError(f"{data}: has no file of {', '.join(source.suffixes)}")
    return files


def _record(folder: Path) -> FetchRecord | None:
    """What was fetched to a folder; None where nothing was, or the record is damaged."""
    try:
        return FetchRecord(**json.loads((folder / RECORD).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def _loadable(data: Path, source: BenchmarkFiles) -> Path:
    """What a loader takes: the file, the only file of a folder, or the folder."""
    files = _files(data, source)
    return files[0] if len(files) == 1 else data
