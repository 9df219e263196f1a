"""Sets of pairs on the Hub: a repository, the files and the card of a push, and what a set's card says.

Files, card and deletions are one commit.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

from rewardlab.data.pairs import stream_pairs, write_shards
from rewardlab.data.row_files import files_of, is_checked
from rewardlab.data.rows import VERSION
from rewardlab.errors import ConfigError, DataError, OutputError
from rewardlab.reporting.cards import README
from rewardlab.reporting.tables import markdown_table

COLUMNS = {
    "pair_id": "unique within the set",
    "question": "an image stands at each U+FFFC, a video at each U+FFF9; without any, media come first",
    "images, videos": "of the question, embedded",
    "responses": "two texts",
    "response_images": "images within either response",
    "tie": "``tie`` or ``both_bad`` where people preferred neither",
    "response_videos": "videos within either response",
    "preferred": "0 or 1, the better response; null: unknown",
    "judgment, order": "a teacher's reasoned verdict, and how it saw the responses",
    "attempts, teacher_share": "how hard the pair was for the teacher",
    "truth": "what a rule compares responses with, if not the preferred one's final answer",
    "ratings, systems": "choices of single people, and the models that wrote the responses",
    "criteria": "what a judge is to judge by, with weights; empty: it chooses",
    "others": "further responses for judges of lists, from better to worse",
    "category, source, licence, level, provenance": "where the pair comes from",
}
SHARDS = "part-[0-9]*.parquet"  # the files of a set as `data build` and `push` name them
SPLITS = ("train", "test", "validation")
COUNTS = ("converted", "kept", "dropped", "bad", "duplicate", "contaminated")


def split_of(name: str) -> str:
    """Return the split of a file in a set: its folder, or its own name if that is one of :data:`SPLITS`, else train. Characters
    that a split's name may not have become "_"."""
    path = PurePosixPath(name)
    split = path.parts[0] if len(path.parts) > 1 else path.stem if path.stem in SPLITS else "train"
    return re.sub(r"\W", "_", split, flags=re.ASCII)


def split_patterns(names: Sequence[str]) -> dict[str, list[str]]:
    """Return the files of each split, train first: names, or one pattern for all shards."""
    patterns: dict[str, list[str]] = {}
    for name in sorted(names, key=lambda name: (split_of(name) != "train", name)):
        path, of_split = PurePosixPath(name), patterns.setdefault(split_of(name), [])
        pattern = (path.parent / SHARDS if fnmatchcase(path.name, SHARDS) else path).as_posix()
        if pattern not in of_split:
            of_split.append(pattern)
    return patterns


def dataset_front_matter(
    num_pairs: int, build: Mapping[str, Any], splits: Mapping[str, Sequence[str]], **given: Any
) -> dict[str, Any]:
    """Return the front matter of a set of ``num_pairs``; a ``given`` value that is not empty wins. ``build``: the report of
    `data build`, or {}; ``splits``: the patterns of each split's files."""
    data_files = [{"split": split, "path": list(paths)} for split, paths in splits.items()]
    licence = str(build.get("licence", ""))
    front = {
        "license": None if licence in ("", "not stated") else licence.lower(),
        "task_categories": ["image-text-to-text"],
        "tags": ["rewardlab", "preference", "reward-model"],
        "size_categories": [size_category(num_pairs)],
        "configs": [{"config_name": "default", "data_files": data_files}],
    }
    return front | {name: value for name, value in given.items() if value}


def size_category(number: int) -> str:
    """Return the Hub's name for a number of rows: "n<1K", "1K<n<10K", ..."""
    names = ("n<1K", "1K<n<10K", "10K<n<100K", "100K<n<1M", "1M<n<10M", "10M<n<100M")
    return next((name for power, name in enumerate(names, start=3) if number < 10**power), "100M<n<1B")


CARD = """# {name}

{num_pairs:,} pairs of responses to compare, pair format {version} of rewardlab.

```python
import datasets

{loads}
```

## Columns

{columns}
{numbers}
## What made it

{origin}"""


def dataset_card_body(
    name: str, num_pairs: int, build: Mapping[str, Any], stats: Mapping[str, Any], splits: Iterable[str]
) -> str:
    """Return the card's text, Markdown. ``stats`` are those of `data stats`, {} if there are none."""

    def table(rows: Sequence[tuple[str, str]], head: tuple[str, str] = ("", "")) -> str:
        return "\n".join(markdown_table(head, rows))

    facts = [(key, json.dumps(stats[key])) for key in ("num_distinct_images", "preferred", "longer_wins") if key in stats]
    origin = "Not recorded: the set has no report of `rewardlab data build`."
    if build:
        rows = [("source", str(build.get("url") or build.get("recipe"))), ("licence", str(build.get("licence")))]
        rows += [(count, f"{build[count]:,}") for count in COUNTS if count in build]
        rows += [("compared with", "; ".join(build.get("against", [])) or "no benchmark")]
        origin = table([*rows, *([("command", f"`{build['command']}`")] if build.get("command") else [])])
    return CARD.format(
        name=name,
        num_pairs=num_pairs,
        version=VERSION,
        loads="\n".join(f'{split} = datasets.load_dataset("{name}", split="{split}")' for split in splits),
        columns=table(list(COLUMNS.items()), ("column", "meaning")),
        numbers=f"\n## Numbers\n\n{table(facts)}\n" if stats else "",
        origin=origin,
    )


@dataclass(frozen=True)
class HubRepo:
    """A repository: ``kind`` is "model" or "dataset", ``name`` OWNER/NAME. ``HF_ENDPOINT`` names another hub, ``HF_TOKEN`` the
    token (default: that of `hf auth login`)."""

    name: str
    kind: str

    def __post_init__(self) -> None:
        if self.name.count("/") != 1 or not all(self.name.split("/")):
            raise ConfigError(f"{self.name!r}: expected OWNER/NAME, the repository to push to")

    @property
    def _api(self) -> Any:
        from huggingface_hub import HfApi

        return HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None)

    def read_readme(self) -> str | None:
        """Return the repository's README, None if there is none. Raise OutputError if the hub cannot be reached."""
        with self._failures("nothing of it was sent"):
            if not self._api.file_exists(self.name, README, repo_type=self.kind):
                return None
            path = self._api.hf_hub_download(self.name, README, repo_type=self.kind)
            return Path(path).read_text(encoding="utf-8")

    def create(self, *, private: bool) -> str:
        """Create the repository if it does not exist; return its address. Raise ConfigError if it is public although
        ``private`` is wanted, OutputError if the token may not write."""
        with self._failures("nothing of it was sent"):
            self._api.whoami()
            url = str(self._api.create_repo(self.name, repo_type=self.kind, private=private or None, exist_ok=True))
            is_public = private and not self._api.repo_info(self.name, repo_type=self.kind).private
        if is_public:
            raise ConfigError(f"{self.name}: exists and is public; make it private on its page, or leave out --private")
        return url

    def list_files(self) -> list[str]:
        """Return the names of the repository's files; [] if there is no repository, or none that the token may see. Raise
        OutputError if the hub cannot be reached."""
        from huggingface_hub.errors import RepositoryNotFoundError

        with self._failures("nothing of it was sent"):
            try:
                return list(self._api.list_repo_files(self.name, repo_type=self.kind))
            except RepositoryNotFoundError:
                return []

    def send(self, upload: HubUpload, card: str, *, deleted: Collection[str]) -> str:
        """Send an upload with its card, and delete ``deleted``, in one commit; return its address. Raise OutputError if that
        fails: the repository is unchanged."""
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        operations = [CommitOperationAdd(name, upload.folder / name) for name in upload.files]
        changed = {**upload.changed, README: card.encode()}
        operations += [CommitOperationAdd(name, content) for name, content in changed.items()]
        with self._failures("the repository is unchanged; run the same command again"):
            deletions = [CommitOperationDelete(name, is_folder=False) for name in deleted]
            commit = self._api.create_commit(
                self.name, [*operations, *deletions], repo_type=self.kind, commit_message="rewardlab push"
            )
        return str(commit.commit_url)

    @contextmanager
    def _failures(self, consequence: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # the boundary: an upload may break in any way of the library's
            status = getattr(getattr(error, "response", None), "status_code", None)
            cure = {
                401: "the token is missing or wrong; log in by `hf auth login`, or set HF_TOKEN",
                403: "the token may not write there; take one with write access, or another owner",
            }.get(status or 0, "see the network and HF_ENDPOINT")
            if type(error).__name__ == "LocalTokenNotFoundError":
                cure = "there is no token; log in by `hf auth login`, or set HF_TOKEN"
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise OutputError(f"{self.name}: cannot be pushed ({reason}); {cure}; {consequence}") from error


@dataclass(frozen=True)
class HubUpload:
    """The content of a push: ``files`` of ``folder``, and ``changed`` ones (name -> content). ``stale``: name patterns of
    files of an earlier push; ``readme``: the folder's README."""

    folder: Path
    files: Sequence[str]
    front: Mapping[str, Any]
    body: str
    stale: Sequence[str]
    readme: str | None = None
    changed: Mapping[str, bytes] = field(default_factory=dict)
    left_out: Sequence[str] = ()
    notes: Sequence[str] = ()

    def leftovers(self, names: Sequence[str]) -> list[str]:
        """Return the files of a repository that an earlier push left: not sent again, with a stale name. A pattern matches
        only in its own folder."""
        sent = {*self.files, *self.changed}
        left = [PurePosixPath(name) for name in names if name not in sent]
        patterns = [PurePosixPath(pattern) for pattern in self.stale]
        return sorted(
            str(path) for path in left if any(path.parent == p.parent and fnmatchcase(path.name, p.name) for p in patterns)
        )


@contextmanager
def pairs_upload(data: Path, repo: str, *, images: Path | None, **given: Any) -> Iterator[HubUpload]:
    """Yield a set as Parquet shards with media inside, rewritten if it is in another form, and its card. Raise DataError or
    MediaError at the first bad row."""
    import pyarrow.parquet as pq

    if not data.exists():
        raise DataError(f"{data}: no such file or folder; expected a checkpoint, or pairs as .parquet or .jsonl")
    beside = data if data.is_dir() else data.parent / data.stem
    build, stats = _read_json(beside / "report.json"), _read_json(beside / "stats.json")
    with TemporaryDirectory(prefix="rewardlab-push-") as temporary:
        folder, notes = data if data.is_dir() else data.parent, list[str]()
        files = files_of(data)
        if not all(is_checked(file) and not (file.parent / "media").exists() for file in files):
            files = list(_write_anew(data, folder, Path(temporary), images))
            folder = Path(temporary)
            notes.append(f"{data}: written anew as {len(files):,} Parquet shards, media inside")
        number = sum(pq.read_metadata(file).num_rows for file in files)
        if not number:
            raise DataError(f"{data}: holds no pairs")
        names = [file.relative_to(folder).as_posix() for file in files]
        splits = split_patterns(names)
        front = dataset_front_matter(number, build, splits, **given)
        if not front["license"]:
            notes.append("no license stated: license=cc-by-4.0 (or another) puts it on the card")
        body = dataset_card_body(repo, number, build, stats, splits)
        readme = readme_of(data) if data.is_dir() else None
        stale = sorted({SHARDS, *((PurePosixPath(name).parent / SHARDS).as_posix() for name in names)})
        yield HubUpload(folder, names, front, body, stale, readme, notes=notes)


def _write_anew(data: Path, folder: Path, out: Path, images: Path | None) -> Iterator[Path]:
    """Write a set as Parquet shards with media inside, each of several splits into its folder; yield the files."""
    files = files_of(data)
    names = {file: split_of(file.relative_to(folder).as_posix()) for file in files}
    if len(set(names.values())) == 1:
        yield from write_shards(stream_pairs(data, images=images, frames=None), out)
        return
    for split in dict.fromkeys(names.values()):
        pairs = (pair for file in files if names[file] == split for pair in stream_pairs(file, images=images, frames=None))
        yield from write_shards(pairs, out / split)


def _read_json(path: Path) -> dict[str, Any]:
    """Return a JSON object beside a set, {} if there is none."""
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}


def readme_of(folder: Path) -> str | None:
    """Return the README of a folder, None if there is none."""
    path = folder / README
    return path.read_text(encoding="utf-8") if path.is_file() else None
