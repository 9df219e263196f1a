"""Remove training pairs that a benchmark contains: the same or nearly the same image, prompt, or answer.

Images: :mod:`rewardlab.curation.image_hashes`. Texts: the Jaccard similarity of their word shingles, and whether a longer text
of a benchmark is contained in another. Short texts ("What is in the image?") are not compared, unless question and both
responses are equal. A longer prompt about another image, and an answer that anybody may give, such as a refusal, are reported
but are no match. Paraphrases and parts of a text are not found.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from rewardlab.benchmarks.registry import find_benchmark
from rewardlab.benchmarks.rows import OWN_PAIRS, load_rows_as_stored
from rewardlab.benchmarks.settings import bench_settings
from rewardlab.config import MatchConfig
from rewardlab.curation.image_hashes import ImageLimits, Picture, PictureIndex, picture_of
from rewardlab.data.files import write_atomic
from rewardlab.data.images import thumbnail, to_data_url
from rewardlab.data.pairs import read_pairs, write_parquet
from rewardlab.data.texts import words_of
from rewardlab.errors import ConfigError, OutputError
from rewardlab.reporting.pages import page_environment
from rewardlab.reporting.progress import bar
from rewardlab.reporting.tables import markdown_table
from rewardlab.types import PreferencePair

OTHER_IMAGE = "prompt about another image"  # reported, but no match: many ask the same about different pictures
BOILERPLATE = "boilerplate answer"  # reported, but no match: a refusal, or an answer to several prompts
SHARED = ("image", "prompt", "answer", "whole pair", OTHER_IMAGE, BOILERPLATE)
SHINGLE = 3  # words
WHOLE_SHINGLES, WHOLE_SHARE = 18, 0.9  # a text of 20 words or more is contained in one with this fraction of its shingles
REFUSAL_WORDS = 40  # a longer text that begins like a refusal has content
SHORT_WORDS = 25  # an answer that two prompts share is boilerplate up to this length, one that three share at any

_REFUSAL = re.compile(
    r"^\W*(?:i(?:['’]m| am) (?:\w+ )?(?:sorry|unable|not able)|i (?:can(?:not|['’]t| not)|won['’]t)"
    r"|(?:sorry|unfortunately|apologies)\b|i apologi[sz]e|as an? (?:ai|artificial|language)|my apologies)",
    re.IGNORECASE,
)


def is_refusal_text(text: str) -> bool:
    """Return whether a text is a short refusal or apology."""
    return bool(_REFUSAL.search(text)) and len(words_of(text)) <= REFUSAL_WORDS


@dataclass(frozen=True)
class BenchmarkPair:
    """One pair of a benchmark: ``name`` of the benchmark, ``row`` of its file."""

    name: str
    row: int
    pair: PreferencePair


@dataclass(frozen=True)
class Match:
    """Training pair ``index`` shares its ``what`` (one of :data:`SHARED`) with a benchmark's row.

    ``similarity`` is 1 for equal ones, 1 - differing bits / 64 for near images, the Jaccard similarity for near texts, and for
    a text within a longer one the fraction of it that is there, below 1.
    """

    index: int
    what: str
    name: str
    row: int
    similarity: float

    @property
    def contains(self) -> bool:
        """Return whether the benchmark contains the training pair because of this match."""
        return self.what not in (OTHER_IMAGE, BOILERPLATE)


def shingles(text: str) -> frozenset[str]:
    """Return runs of three words, in lower case and without punctuation; a shorter text is one shingle."""
    words = words_of(text)
    return frozenset(" ".join(words[n : n + SHINGLE]) for n in range(max(1, len(words) - SHINGLE + 1)))


class TextIndex:
    """An index of the prompts, or the answers, of benchmarks."""

    def __init__(self, texts: Sequence[tuple[str, int, str]], limits: MatchConfig) -> None:
        """``texts``: (benchmark, row, text)."""
        self._limits = limits
        self._rows: dict[frozenset[str], set[tuple[str, int]]] = defaultdict(set)
        for name, row, text in texts:
            if len(words_of(text)) >= limits.least_words:
                self._rows[shingles(text)].add((name, row))
        self._grams = list(self._rows)
        self._having: dict[str, list[int]] = defaultdict(list)  # shingle -> texts that have it
        for number, grams in enumerate(self._grams):
            for gram in grams:
                self._having[gram].append(number)

    def find(self, text: str) -> dict[tuple[str, int], float]:
        """Return rows with this text or nearly this text, and their similarity."""
        if len(words_of(text)) < self._limits.least_words:
            return {}
        grams, similarities = shingles(text), {}
        shared = Counter(number for gram in grams for number in self._having.get(gram, ()))
        for number, both in shared.items():
            similarity = both / (len(grams) + len(self._grams[number]) - both)
            share = both / len(self._grams[number])
            if similarity < self._limits.similarity and len(self._grams[number]) >= WHOLE_SHINGLES and share >= WHOLE_SHARE:
                similarity = min(share, 0.99)
            if similarity >= self._limits.similarity:
                similarities.update(dict.fromkeys(self._rows[self._grams[number]], similarity))
        return similarities


class Contamination:
    """An index of benchmarks' pairs; ``advance`` is called for each of their images."""

    def __init__(self, benchmark_pairs: Sequence[BenchmarkPair], limits: MatchConfig, advance: Callable[[int], None]) -> None:
        self._pictures: PictureIndex[tuple[str, int]] = PictureIndex(ImageLimits(bits=limits.image_bits), crops=True)
        for entry in benchmark_pairs:
            for image in pair_images(entry.pair):
                self._pictures.add(image, (entry.name, entry.row))
                advance(1)
        self._prompts = TextIndex([(entry.name, entry.row, entry.pair.question) for entry in benchmark_pairs], limits)
        common = _common_answers(benchmark_pairs)
        answers = [(entry.name, entry.row, text) for entry in benchmark_pairs for text in entry.pair.responses]
        self._answers = TextIndex([answer for answer in answers if answer[2] not in common], limits)
        self._boilerplate = TextIndex([answer for answer in answers if answer[2] in common], limits)
        self._whole: dict[tuple[object, ...], list[tuple[str, int]]] = defaultdict(list)
        for entry in benchmark_pairs:
            self._whole[_whole(entry.pair)].append((entry.name, entry.row))
        self._with_images = {(entry.name, entry.row) for entry in benchmark_pairs if entry.pair.images}

    def matches(self, index: int, pair: PreferencePair, pictures: Sequence[Picture] | None = None) -> list[Match]:
        """Return all matches of training pair ``index``, best first; ``pictures`` of its images, None: compute them."""
        similarities: dict[tuple[str, str, int], float] = {}
        if pictures is None:
            pictures = [picture_of(image, views=True) for image in pair_images(pair)]
        lookups = [("image", self._pictures.find(picture)) for picture in pictures]
        lookups += [("prompt", self._prompts.find(pair.question))]
        answers = (*pair.responses, *pair.others)
        lookups += [("answer", self._answers.find(text)) for text in answers]
        lookups += [(BOILERPLATE, self._boilerplate.find(text)) for text in answers]
        lookups.append(("whole pair", dict.fromkeys(self._whole.get(_whole(pair), ()), 1.0)))
        for what, hits in lookups:
            for (name, row), similarity in hits.items():
                other_image = what == "prompt" and pair.images and (name, row) in self._with_images
                key = (OTHER_IMAGE if other_image else what, name, row)
                similarities[key] = max(similarity, similarities.get(key, 0.0))
        ranked = sorted(similarities.items(), key=lambda item: (-item[1], item[0]))
        return [Match(index, what, name, row, similarity) for (what, name, row), similarity in ranked]


def _common_answers(benchmark_pairs: Sequence[BenchmarkPair]) -> set[str]:
    """Return the boilerplate answers of benchmarks: refusals, and answers to several prompts."""
    prompts: dict[tuple[str, ...], set[tuple[str, ...]]] = defaultdict(set)
    texts = {text: tuple(words_of(text)) for entry in benchmark_pairs for text in entry.pair.responses}
    for entry in benchmark_pairs:
        for text in entry.pair.responses:
            prompts[texts[text]].add(tuple(words_of(entry.pair.question)))
    return {
        text
        for text, words in texts.items()
        if is_refusal_text(text) or len(prompts[words]) >= (2 if len(words) <= SHORT_WORDS else 3)
    }


def find_matches(
    pairs: Iterable[PreferencePair],
    benchmark_pairs: Sequence[BenchmarkPair],
    limits: MatchConfig,
    advance: Callable[[int], None],
) -> list[Match]:
    """Return all matches of training pairs with rows of benchmarks, best first within a pair; ``advance`` is called for each
    of :func:`num_steps`."""
    index, matches = Contamination(benchmark_pairs, limits, advance), []
    for number, pair in enumerate(pairs):
        matches += index.matches(number, pair)
        advance(1)
    return matches


def _whole(pair: PreferencePair) -> tuple[object, ...]:
    """Return question and responses without their order, spacing and case."""
    return tuple(words_of(pair.question)), frozenset(tuple(words_of(text)) for text in pair.responses)


def num_images(benchmark_pairs: Sequence[BenchmarkPair]) -> int:
    """Return how often :class:`Contamination` calls ``advance``."""
    return sum(len(pair_images(entry.pair)) for entry in benchmark_pairs)


def num_steps(pairs: Sequence[PreferencePair], benchmark_pairs: Sequence[BenchmarkPair]) -> int:
    """Return how often :func:`find_matches` calls ``advance``."""
    return len(pairs) + num_images(benchmark_pairs)


def pair_images(pair: PreferencePair) -> tuple[bytes, ...]:
    return (*pair.images, *pair.response_images[0], *pair.response_images[1])


def summary(matches: Sequence[Match]) -> dict[str, int]:
    """Count the training pairs that share each of :data:`SHARED` with a benchmark, those it contains, and its rows that
    match."""
    counts = {what: len({match.index for match in matches if match.what == what}) for what in SHARED}
    contained = [match for match in matches if match.contains]
    return {
        **counts,
        "contained": len({match.index for match in contained}),
        "benchmark_rows": len({match.row for match in contained}),
    }


CLEAN, TAKEN = "clean.parquet", "contaminated.jsonl"
SHOWN = 60


class ContaminationReport(TypedDict):
    """The content of ``report.json``; ``by_benchmark`` counts the pairs that share something, by :data:`SHARED`."""

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
    """A benchmark to compare with; ``images``: their folder, None: beside the data, or inside it."""

    name: str
    data: Path
    images: Path | None
    texts_only: bool = False


def parse_against(spec: str) -> BenchmarkFile:
    """Parse ``NAME=DATA``, ``NAME=DATA,IMAGES``, or ``NAME=DATA,-`` without images. Raises ConfigError."""
    name, equals, rest = spec.partition("=")
    data, comma, images = rest.partition(",")
    if not equals or not data or (comma and not images):
        raise ConfigError(f"--against {spec}: expected NAME=DATA or NAME=DATA,IMAGES (IMAGES a folder, or - for none)")
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
    limits: MatchConfig,
    command: str,
    allow_columns: Collection[str] = (),
) -> ContaminationReport:
    """Write ``clean.parquet``, ``contaminated.jsonl``, ``report.json`` and ``report.html`` to ``out``; return the report.

    A training pair is removed if it shares an image, a prompt (unless about another image) or an answer with any row. Raises
    what the loaders raise, and OutputError if ``out`` holds a result.
    """
    if (out / CLEAN).exists():
        raise OutputError(f"{out / CLEAN}: exists already; choose another --out")
    labels = labels_of(against)
    benchmark_pairs, notes = load_benchmark_pairs(against, allow_columns=allow_columns)
    pairs = read_pairs(train, images=images, allow_columns=allow_columns)
    texts = (text for pair in pairs for text in (pair.question, *pair.responses))
    if short := sum(len(words_of(text)) < limits.least_words for text in texts):
        few = f"{short:,} of {3 * len(pairs):,} training texts have fewer than {limits.least_words} words"
        notes.append(f"{few} and were not compared alone")
    with bar("comparing", num_steps(pairs, benchmark_pairs)) as advance:
        matches = find_matches(pairs, benchmark_pairs, limits, advance)
    removed = {match.index for match in matches if match.contains}
    report: ContaminationReport = {
        "train": str(train),
        "against": {label: str(benchmark.data) for label, benchmark in zip(labels, against, strict=True)},
        "limits": limits.model_dump(),
        "num_pairs": len(pairs),
        "num_removed": len(removed),
        "num_kept": len(pairs) - len(removed),
        "by_benchmark": {label: summary([match for match in matches if match.name == label]) for label in labels},
        "removed_by_source": dict(Counter(pairs[index].source or "unknown" for index in removed).most_common()),
        "notes": notes,
        "command": command,
    }
    _write(report, pairs, benchmark_pairs, matches, removed, out)
    return report


def labels_of(against: Sequence[BenchmarkFile]) -> list[str]:
    """Return the label of each: its name, with its file if the name occurs twice. Raises ConfigError."""
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
    """Return the pairs of benchmarks, and notes about comparing with them; ``allow_columns`` applies to plain sets of pairs.
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
    # The least similar first: they show whether a limit is too loose.
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
