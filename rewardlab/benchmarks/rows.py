"""The rows of a benchmark's data file, as a judge is asked about them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

from rewardlab.benchmarks.agreement import with_labels
from rewardlab.benchmarks.base import Benchmark, Row, equal_length_notes, size_notes
from rewardlab.benchmarks.pairs import PROMPT
from rewardlab.benchmarks.passes import AnyJudge
from rewardlab.benchmarks.registry import PACKAGED, find_benchmark, packaged_benchmarks
from rewardlab.benchmarks.settings import NO_ENGINES, BenchSettings
from rewardlab.benchmarks.systems import has_label, names_two_systems
from rewardlab.data.ratings import peoples_label, read_labels
from rewardlab.data.recipes import check_images_folder
from rewardlab.data.row_files import lines_of
from rewardlab.data.set_checks import SetCheck
from rewardlab.data.video import describe_frames
from rewardlab.errors import ConfigError, DataError, InputError, RewardlabError
from rewardlab.judging.spec import WITHOUT_SAMPLER, judge_video_policy
from rewardlab.types import Tie

NUM_ROWS = 200  # that are looked at
LIMITED = "only the first"  # begins the note of a run with --limit


def refuse_other_benchmark(benchmark: Benchmark, data: Path) -> None:
    """Raise DataError, by the right name, for JSON lines whose rows are more often another benchmark's than this one's."""
    if data.suffix != ".jsonl" or not data.is_file():
        return
    rows = [row for _, row in islice(lines_of(data), NUM_ROWS) if isinstance(row, Mapping)]
    counts = {other.name: sum(map(other.is_row, rows)) for other in packaged_benchmarks() if other.is_row}
    name = max(counts, key=lambda one: counts[one])
    if name != benchmark.name and 2 * counts[name] > len(rows) and counts[name] > counts.get(benchmark.name, 0):
        raise DataError(
            f"{data}: is not {benchmark.name}: {counts[name]:,} of its first {len(rows):,} rows are of {name}; "
            f"`rewardlab bench run {name} --data {data}` judges them"
        )


def check_fit(benchmark: Benchmark, rows: Sequence[Row], data: Path) -> None:
    """Raise DataError where the benchmark's groups are known and more than half of the rows are of none of them."""
    counts = Counter(row.group for row in rows)
    strangers = sum(number for group, number in counts.items() if group not in benchmark.sizes)
    if not benchmark.sizes or 2 * strangers <= len(rows):
        return
    like = [other.name for other in packaged_benchmarks() if other.sizes and sum(other.sizes.values()) == len(rows)]
    raise DataError(
        f"{data}: is not {benchmark.name}: {strangers:,} of {len(rows):,} rows are of none of its groups "
        f"({', '.join(benchmark.sizes)})" + (f"; it has as many rows as {like[0]}" if like else "")
    )


OWN_PAIRS = "pairs"


def load_benchmark_rows(benchmark: Benchmark, settings: BenchSettings, *, with_images: bool) -> list[Row]:
    """Return the rows of a data file. Raise DataError where the loader of a benchmark from outside fails in any way."""
    load: Callable[..., list[Row]] = benchmark.load
    if benchmark.load_videos is not None:
        load = partial(benchmark.load_videos, policy=judge_video_policy(settings.judge.judge, *NO_ENGINES, *WITHOUT_SAMPLER))
    return _load(load, benchmark, settings, with_images=with_images)


def load_rows_as_stored(benchmark: Benchmark, settings: BenchSettings, *, with_images: bool) -> list[Row]:
    """Return the rows for what asks no judge: :func:`load_benchmark_rows` with frames of videos evenly spread."""
    return _load(benchmark.load, benchmark, settings, with_images=with_images)


def _load(load: Callable[..., list[Row]], benchmark: Benchmark, settings: BenchSettings, *, with_images: bool) -> list[Row]:
    check_images_folder(settings.images)
    if settings.benchmark != OWN_PAIRS and (settings.cluster or settings.allow_columns or settings.allow_without_images):
        raise ConfigError("--cluster and --allow are only for `pairs`, a set of your own")
    if benchmark.sizes and settings.benchmark in PACKAGED:
        refuse_other_benchmark(benchmark, settings.data)
    if settings.benchmark == OWN_PAIRS:
        columns = {"cluster": settings.cluster or PROMPT, "allow_columns": settings.allow_columns}
        load = partial(load, **columns, unlabelled=settings.labels is not None)
    if settings.benchmark in PACKAGED:
        return load(settings.data, images=settings.images, with_images=with_images)
    try:
        return load(settings.data, images=settings.images, with_images=with_images)
    except RewardlabError:
        raise
    except (Exception, SystemExit) as error:  # the boundary: another's code may fail in any way
        raise DataError(
            f"{settings.data}: the loader of {settings.benchmark} fails ({type(error).__name__}: {error})"
        ) from error


def load_rows(settings: BenchSettings, judge: AnyJudge) -> tuple[list[Row], list[str]]:
    """Return the rows to judge, and what is odd about the file. Raise DataError for a replay of rows that it does not have."""
    benchmark = find_benchmark(settings.benchmark)
    rows = load_benchmark_rows(benchmark, settings, with_images=judge.sees)
    notes = list[str]()
    if settings.labels is not None:
        rows, notes = with_labels(rows, read_labels(settings.labels), str(settings.labels))
    check_fit(benchmark, rows, settings.data)
    if judge.rows is not None and (strangers := judge.rows - {row.row for row in rows}):
        raise DataError(f"{judge.name}: has samples for row {min(strangers)}, which {settings.data} does not have")
    rows, further = labelled_rows(rows, settings.data)
    notes += [*further, *size_notes(benchmark, rows), *equal_length_notes(rows)]
    notes += _own_pair_notes(rows, settings, looks=judge.sees) if settings.benchmark == OWN_PAIRS else _page_notes(rows)
    if num_videos := sum(row.num_videos for row in rows):
        policy = judge_video_policy(settings.judge.judge, *NO_ENGINES, *WITHOUT_SAMPLER)
        notes.append(
            f"videos ({num_videos:,}): each shown as {describe_frames(benchmark.frames, policy() if policy else None)}"
        )
    if settings.limit is not None and settings.limit < len(rows):
        notes.append(f"{LIMITED} {settings.limit} of {len(rows)} rows were judged (--limit)")
        rows = rows[: settings.limit]
    return rows, notes


def labelled_rows(rows: Sequence[Row], data: Path) -> tuple[list[Row], list[str]]:
    """Return the rows with a label or a tie, taken from their ratings where they have no other, those of two systems, with a
    label or not, and a sentence on other rows without a label, which are left out. Raise DataError if none has a label."""
    labelled = []
    for row in rows:
        pair = row.pair
        if not has_label(pair):
            choice = peoples_label(pair.ratings).choice
            of_people = {"tie": choice} if isinstance(choice, Tie) else {"preferred": choice}
            pair = replace(pair, **of_people)
        if has_label(pair) or names_two_systems(pair):
            labelled.append(replace(row, pair=pair))
    if not any(has_label(row.pair) for row in labelled):
        raise DataError(
            f"{data}: no pair has a label; to benchmark on it, 'preferred' must be 0, 1, tie or both_bad, or people's ratings "
            "come with --labels FILE"
        )
    sentence = f"{len(rows) - len(labelled):,} of {len(rows):,} pairs have neither a label nor a rating and are left out"
    return labelled, [sentence] if len(labelled) < len(rows) else []


def split_rows(rows: Sequence[Row], data: Path) -> tuple[list[Row], list[Row], list[Row]]:
    """Return the rows of ``data`` with a better response, the ties, and those without a label. Raise DataError if none has a
    better response."""
    tied = [row for row in rows if row.pair.tie is not None]
    unlabelled = [row for row in rows if not has_label(row.pair)]
    if rows and len(tied) + len(unlabelled) == len(rows):
        without = f" or have no label ({len(unlabelled):,})" if unlabelled else ""
        raise DataError(f"{data}: all {len(rows):,} pairs are ties{without}; an accuracy needs pairs with a better response")
    return [row for row in rows if row.pair.preferred is not None], tied, unlabelled


def _page_notes(rows: Sequence[Row]) -> list[str]:
    """Return why the page of a judge that does not look has no images, where the first row's are not at hand."""
    first = next((row for row in rows if row.media), None)
    if first is not None and (fault := _media_fault(first)):  # a video, too, that nothing here can read
        return [f"the judgments of the page are shown without their images ({fault}); --images names the folder of these"]
    return []


def _own_pair_notes(rows: Sequence[Row], settings: BenchSettings, *, looks: bool) -> list[str]:
    """Return how many prompts there are, and how many pairs have no image. Raise DataError where a judge looks and a question
    speaks of an image that is not there."""
    notes = []
    if (number := len({row.cluster for row in rows})) < len(rows):
        by = settings.cluster or "image, or question where there is none"
        notes.append(f"{len(rows):,} pairs of {number:,} prompts (by {by}); intervals draw prompts")
    if looks:
        count = SetCheck()
        for row in rows:
            count.add(row.pair, row.row)
        if not settings.allow_without_images:
            count.refuse_missing(str(settings.data))
        notes += count.notes()
    if faults := [fault for row in rows if (fault := _media_fault(row))]:
        notes.append(f"pairs with images that cannot be read, which this judge does not look at: {len(faults):,} ({faults[0]})")
    return notes


def _media_fault(row: Row) -> str:
    """Return why the media of a row cannot be shown; "" where they can, or there are none."""
    try:
        if row.media is not None:
            row.media()
    except InputError as error:
        return str(error)
    return ""


def images_hash(rows: Sequence[Row]) -> str:
    """Return the first 16 hex digits of the SHA-256 of all images of the rows, in the order of the data file."""
    digest = hashlib.sha256()
    for row in sorted(rows, key=lambda row: row.row):
        for image in (*row.pair.images, *row.pair.response_images[0], *row.pair.response_images[1]):
            digest.update(hashlib.sha256(image).digest())
    return digest.hexdigest()[:16]
