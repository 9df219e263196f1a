"""Training pairs freed of what benchmarks contain: a cleaned file, what was taken out and why, and a page to look at."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypedDict

from rewardlab.benchmarks.registry import find_benchmark
from rewardlab.benchmarks.rows import OWN_PAIRS, load_rows_as_stored
from rewardlab.benchmarks.settings import bench_settings
from rewardlab.curation.decontaminate import (
    BOILERPLATE,
    OTHER_IMAGE,
    SHARED,
    BenchmarkPair,
    Match,
    MatchLimits,
    find_matches,
    num_short,
    num_steps,
    summary,
)
from rewardlab.data.files import write_atomic
from rewardlab.data.images import thumbnail, to_data_url
from rewardlab.data.pairs import read_pairs, write_parquet
from rewardlab.errors import ConfigError, OutputError
from rewardlab.reporting.pages import page_environment
from rewardlab.reporting.progress import bar
from rewardlab.reporting.tables import markdown_table
from rewardlab.types import PreferencePair

CLEAN, TAKEN = "clean.parquet", "contaminated.jsonl"
SHOWN = 60


class ContaminationReport(TypedDict):
    """The content of ``report.json``; ``by_benchmark`` counts the pairs that share something, by what is shared."""

    train: str
    against: dict[str, str]
    limits: dict[str, float]
    num_pairs: int
    num_removed: int
    num_kept: int
    by_benchmark: dict[str, dict[str, int]]
    removed_by_source: dict[str, int]
    notes: list[str]
    command: str


@dataclass(frozen=True)
class BenchmarkFile:
    """A benchmark to compare with: its name, data file, and folder of images (None: beside the data, or inside it)."""

    name: str
    data: Path
    images: Path | None
    texts_only: bool = False


def parse_against(spec: str) -> BenchmarkFile:
    """Parse ``NAME=DATA``, ``NAME=DATA,IMAGES``, or ``NAME=DATA,-`` where no images are at hand. Raises ConfigError."""
    name, equals, rest = spec.partition("=")
    data, comma, images = rest.partition(",")
    if not equals or not data or (comma and not images):
        raise ConfigError(f"--against {spec}: expected NAME=DATA or NAME=DATA,IMAGES (IMAGES a folder, or - for none at hand)")
    try:
        find_benchmark(name)
    except ConfigError as error:
        raise ConfigError(f"--against {spec}: {error}") from error
    folder = Path(images) if images and images != "-" else None
    return BenchmarkFile(name, Path(data), folder, texts_only=images == "-")


def decontaminate(
    train: Path,
    against: Sequence[BenchmarkFile],
    out: Path,
    *,
    images: Path | None,
    limits: MatchLimits,
    command: str,
    allow_columns: Collection[str] = (),
) -> ContaminationReport:
    """Write ``clean.parquet``, ``contaminated.jsonl``, ``report.json`` and ``report.html`` to ``out``; returns the report.

    A training pair goes if it shares an image, a prompt (unless about another image) or an answer with any row. Raises what
    the loaders raise, and OutputError where ``out`` holds a result already.
    """
    if (out / CLEAN).exists():
        raise OutputError(f"{out / CLEAN}: exists already; choose another --out")
    labels = labels_of(against)
    benchmark_pairs, notes = load_benchmark_pairs(against, allow_columns=allow_columns)
    pairs = read_pairs(train, images=images, allow_columns=allow_columns)
    if short := num_short(pairs, limits):
        few = f"{short:,} of {3 * len(pairs):,} training texts have fewer than {limits.least_words} words"
        notes.append(f"{few} and were not compared alone")
    with bar("comparing", num_steps(pairs, benchmark_pairs)) as advance:
        matches = find_matches(pairs, benchmark_pairs, limits, advance)
    removed = {match.index for match in matches if match.contains}
    report: ContaminationReport = {
        "train": str(train),
        "against": {label: str(benchmark.data) for label, benchmark in zip(labels, against, strict=True)},
        "limits": asdict(limits),
        "num_pairs": len(pairs),
        "num_removed": len(removed),
        "num_kept": len(pairs) - len(removed),
        "by_benchmark": {**{label: _nothing() for label in labels}, **summary(matches)},
        "removed_by_source": dict(Counter(pairs[index].source or "unknown" for index in removed).most_common()),
        "notes": notes,
        "command": command,
    }
    _write(report, pairs, benchmark_pairs, matches, removed, out)
    return report


def labels_of(against: Sequence[BenchmarkFile]) -> list[str]:
    """Return the label of each: its name, and its file too if the name occurs twice. Raises ConfigError."""
    names = [benchmark.name for benchmark in against]
    labels = [
        name if names.count(name) == 1 else f"{name} ({benchmark.data})" for name, benchmark in zip(names, against, strict=True)
    ]
    if len(set(labels)) < len(labels):
        raise ConfigError("--against names the same file twice")
    return labels


def load_benchmark_pairs(
    against: Sequence[BenchmarkFile], *, allow_columns: Collection[str] = ()
) -> tuple[list[BenchmarkPair], list[str]]:
    """Return the pairs of benchmarks, and notes about comparing with them; ``allow_columns``: of sets of one's own among them.
    Raises what the loaders raise, and DataError for the file of another benchmark."""
    pairs: list[BenchmarkPair] = []
    notes: list[str] = []
    labels = labels_of(against)
    for label, file in zip(labels, against, strict=True):
        benchmark = find_benchmark(file.name)
        allowed = tuple(allow_columns) if file.name == OWN_PAIRS else ()
        settings = bench_settings(file.name, file.data, "baseline:first", images=file.images, allow_columns=allowed)
        rows = load_rows_as_stored(benchmark, settings, with_images=not file.texts_only)
        pairs += [BenchmarkPair(label, row.row, row.pair) for row in rows]
        if not any(row.pair.images or any(row.pair.response_images) for row in rows):
            notes.append(f"{label}: its images were not compared, there are none")
        if origins := ", ".join(benchmark.origins):
            notes.append(f"{label} is made of {origins}: pairs of other splits of these are near it in kind")
    return pairs, notes


def _nothing() -> dict[str, int]:
    return dict.fromkeys((*SHARED, "contained", "benchmark_rows"), 0)


def _write(
    report: ContaminationReport,
    pairs: Sequence[PreferencePair],
    benchmark_pairs: Sequence[BenchmarkPair],
    matches: Sequence[Match],
    removed: set[int],
    out: Path,
) -> None:
    by_pair: dict[int, list[Match]] = {}
    for match in (match for match in matches if match.contains):
        by_pair.setdefault(match.index, []).append(match)
    lines = []
    for index, hits in sorted(by_pair.items()):
        entries = [{"what": m.what, "benchmark": m.name, "row": m.row, "similarity": round(m.similarity, 3)} for m in hits]
        lines.append(json.dumps({"row": index, "pair_id": pairs[index].pair_id, "matches": entries}))
    out.mkdir(parents=True, exist_ok=True)
    write_atomic(out / TAKEN, "".join(line + "\n" for line in lines))
    write_atomic(out / "report.json", json.dumps(report, indent=1) + "\n")
    rows = {(entry.name, entry.row): entry.pair for entry in benchmark_pairs}
    # The least alike first: where a limit is too loose it shows there.
    best_matches = sorted((hits[0] for hits in by_pair.values()), key=lambda match: match.similarity)
    examples = [_side_by_side(match, pairs, rows) for match in best_matches[:SHOWN]]
    page = (
        page_environment("rewardlab.curation")
        .get_template("contamination.html")
        .render(report=report, columns=COLUMNS, limits=LIMITS, table=contamination_rows(report), shown=examples)
    )
    write_atomic(out / "report.html", page)
    write_parquet((pair for index, pair in enumerate(pairs) if index not in removed), out / CLEAN)


def _side_by_side(
    match: Match, pairs: Sequence[PreferencePair], rows: dict[tuple[str, int], PreferencePair]
) -> dict[str, object]:
    sides = []
    for title, pair in (
        (f"training row {match.index}", pairs[match.index]),
        (f"{match.name} row {match.row}", rows[match.name, match.row]),
    ):
        urls = [to_data_url(thumbnail(image)) for image in pair.images[:2]]
        sides.append({"title": title, "question": pair.question, "responses": pair.responses, "images": urls})
    return {"what": match.what, "similarity": match.similarity, "sides": sides}


COLUMNS = (
    *("benchmark", "same image", "same prompt", "same answer", "all the same", "pairs removed", "of its rows"),
    "same prompt, another image",
)
LIMITS = {
    "image_bits": "bits of 64 in which hashes of one picture may differ",
    "image_change": "change of a thumbnail, of its contrast",
    "image_shift": "change of its mean colour, levels of 255",
    "similarity": "least similarity of texts (Jaccard, word triples)",
    "least_words": "fewest words of a text that is compared",
}
KEYS = ("image", "prompt", "answer", "whole pair", "contained", "benchmark_rows", OTHER_IMAGE, BOILERPLATE)


def contamination_rows(report: ContaminationReport) -> list[tuple[str, ...]]:
    return [(name, *(f"{counts[key]:,}" for key in KEYS)) for name, counts in report["by_benchmark"].items()]


def contamination_markdown(report: ContaminationReport) -> str:
    """Return the report for a terminal."""
    lines = markdown_table(COLUMNS, contamination_rows(report))
    totals = f"{report['num_removed']:,} of {report['num_pairs']:,} training pairs removed, {report['num_kept']:,} kept."
    sources = ", ".join(f"{name} {count:,}" for name, count in report["removed_by_source"].items())
    return "\n".join([*lines, "", totals, *([f"Removed by source: {sources}."] if sources else []), *report["notes"]])
