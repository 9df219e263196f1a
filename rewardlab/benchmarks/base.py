"""What a benchmark is: a loader of rows, what is known of its size, where its files are, and its own scorer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from rewardlab.data.qwen_video import VideoPolicy
from rewardlab.errors import InputError
from rewardlab.types import Judgment, PreferencePair, Vote
from rewardlab.verdicts.formats import WRITERS

VOTES, REPORT, SCORES, OFFICIAL = "votes.jsonl", "report.json", "scores.jsonl", "official.jsonl"
REFUSED_FIELDS = "refused_fields.json"  # of a request, by the judge's endpoint
PARTIAL_VOTES = "votes.partial.jsonl"  # of rows that lack some, while a run is not finished


@dataclass(frozen=True)
class Row:
    """A pair of a benchmark. ``row`` is its 0-based row in the data file: ids repeat in published files, rows do not.

    ``cluster`` names pairs that share a prompt, for the intervals; ``slices`` further ways to group it; ``medium`` the path of
    its image or video in the data file, where official groups go by it. ``num_videos`` were read as frames. ``media`` reads the
    images of a pair that has none because its judge does not look, for people to look at; it raises MediaError.
    """

    row: int
    pair: PreferencePair
    group: str
    cluster: str
    slices: Mapping[str, str]
    medium: str = ""
    num_videos: int = 0
    media: Callable[[], tuple[bytes, ...]] | None = field(default=None, compare=False)

    def images_to_show(self) -> tuple[bytes, ...]:
        """Return the images of the question, read now where the judge was not shown them; none where they are not at hand."""
        if self.pair.images or self.media is None:
            return self.pair.images
        try:
            return self.media()
        except InputError:
            return ()


class Loader(Protocol):
    """Reads a benchmark's data file as published."""

    def __call__(self, data: Path, *, images: Path | None, with_images: bool) -> list[Row]:
        """Return all rows. ``with_images`` False leaves the images out, for judges that do not look."""
        ...


class VideoLoader(Protocol):
    """A :class:`Loader` that is told how the judge's family samples videos."""

    def __call__(self, data: Path, *, images: Path | None, with_images: bool, policy: VideoPolicy | None = None) -> list[Row]:
        """Return all rows, with at most :attr:`Benchmark.frames` of each video by ``policy``; None: evenly spread."""
        ...


@dataclass(frozen=True)
class BenchmarkFiles:
    """The place of a benchmark's files: a dataset of the Hub, or single ``urls`` by file name.

    ``sha256`` are the hashes of the copies in circulation, by file name; ``media`` says how to get what is not fetched;
    ``suffixes`` are those of the data files among the dataset's.
    """

    repo: str = ""
    urls: Mapping[str, str] = field(default_factory=dict)
    sha256: Mapping[str, str] = field(default_factory=dict)
    media: str = ""
    suffixes: tuple[str, ...] = (".parquet", ".json", ".jsonl")


@dataclass(frozen=True)
class OfficialScorer:
    """A benchmark's own scorer: ``lines`` is what it prints on the records of an outputs file and the path of ``--data``.

    An outputs file is JSON lines, or one JSON object where ``is_object``. ``inputs`` says in words what is in it. Where it
    ``skips_null``, lines may be null.
    """

    lines: Callable[[Any, Path | None], list[str]]
    inputs: str
    is_object: bool = False
    skips_null: bool = False


@dataclass(frozen=True)
class Export:
    """A run in the form that the benchmark's own inference writes.

    ``records`` takes the rows, their judgments, the judge's verdict format and a seed, and gives JSON objects (or one);
    ``lines`` is what the benchmark's own scorer prints on them.
    """

    records: Callable[[Sequence[Row], Sequence[Judgment], str, int], Any]
    lines: Callable[[Sequence[Row], Any], list[str]]


@dataclass(frozen=True)
class Benchmark:
    """A benchmark: how it is read, what is known of its size, and what belongs to it.

    ``sizes`` are the known rows per group, ``first_preferred`` those of them whose response 0 is the better one (empty: not
    known, or always). ``whole_prompts``: prompts with several pairs count as right where all of these are; ``num_prompts`` is
    their published number (None: not known, or that of the rows). ``origins`` are the public datasets it draws on: training
    on them is training near it. ``groupings`` are the rows per group under each grouping in circulation, ``official`` first.
    ``scorers`` are its own scorers by name: the benchmark's, and further ones of it. ``load_videos`` is ``load`` where rows may
    have video files, ``frames`` the most that are shown of one. ``is_row``: whether a row of its JSON lines is its own and no
    other benchmark's (None: nothing tells).
    """

    name: str
    load: Loader
    sizes: Mapping[str, int] = field(default_factory=dict)
    first_preferred: Mapping[str, int] = field(default_factory=dict)
    whole_prompts: bool = False
    num_prompts: int | None = None
    origins: tuple[str, ...] = ()
    groupings: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    files: BenchmarkFiles | None = None
    scorers: Mapping[str, OfficialScorer] = field(default_factory=dict)
    is_row: Callable[[Mapping[str, Any]], bool] | None = None
    export: Export | None = None
    load_videos: VideoLoader | None = None
    frames: int = 0


def vote_text(vote: Vote, benchmark_format: str, verdict_format: str) -> str:
    """Return the text of a judge's vote in ``verdict_format`` as the benchmark has it in ``benchmark_format``."""
    if verdict_format == benchmark_format:
        return vote.completion.text
    return "" if vote.verdict.choice is None else WRITERS[benchmark_format](vote.verdict.choice, "").strip()


def run_date(folder: Path) -> str:
    """Return when the run in ``folder`` wrote its last vote, as ISO 8601 in UTC."""
    return datetime.fromtimestamp((folder / VOTES).stat().st_mtime, UTC).isoformat(timespec="seconds")


def size_notes(benchmark: Benchmark, rows: list[Row]) -> list[str]:
    """Return one sentence for each group whose number of rows, or of labels, is not the published one."""
    counts, firsts = Counter(row.group for row in rows), Counter(row.group for row in rows if row.pair.preferred == 0)
    notes = [
        f"group {name!r} has {counts[name]} rows, the published benchmark {size}"
        for name, size in benchmark.sizes.items()
        if counts[name] not in (0, size)
    ]
    prompts = len({row.cluster for row in rows})
    if benchmark.num_prompts not in (None, prompts):
        notes.append(f"there are {prompts:,} prompts, the published benchmark has {benchmark.num_prompts:,}")
    if absent := [name for name in benchmark.sizes if not counts[name]]:
        notes.append(f"no rows of {', '.join(absent)} are in this file")
    return notes + [
        f"group {name!r} has {firsts[name]} rows whose first response is the better one, the published benchmark {number}"
        for name, number in benchmark.first_preferred.items()
        if counts[name] and firsts[name] != number
    ]


def equal_length_notes(rows: list[Row]) -> list[str]:
    """Return one sentence where most pairs of a group are equally long, such as images alone: there length says nothing."""
    is_even: dict[str, list[bool]] = {}
    for row in rows:
        is_even.setdefault(row.group, []).append(len(row.pair.responses[0]) == len(row.pair.responses[1]))
    wordless = [name for name, flags in is_even.items() if 2 * sum(flags) > len(flags)]
    return (
        [f"responses of {', '.join(wordless)} are mostly of equal length: longest and shortest are no baselines there"]
        if wordless
        else []
    )
