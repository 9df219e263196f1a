"""Statistics of a set of pairs, and a page of examples: counts, balance, lengths, how often the longer response wins."""

from __future__ import annotations

import hashlib
import heapq
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rewardlab.data.files import write_atomic
from rewardlab.data.images import check_image, thumbnail, to_data_url
from rewardlab.data.rows import VERSION
from rewardlab.data.texts import words_of
from rewardlab.metrics.intervals import share_with_interval
from rewardlab.reporting.pages import page_environment
from rewardlab.reporting.tables import percent, with_interval
from rewardlab.types import IMAGE_MARK, VIDEO_MARK, PreferencePair

STATS, PAGE = "stats.json", "stats.html"
SHOWN = 24
WORDS = (0, 5, 10, 20, 40, 80, 160, 320, 640)  # lower edges of the histograms
SIDES_PX = (0, 64, 128, 256, 512, 1024, 2048)


def bin_of(value: int, edges: Sequence[int]) -> int:
    """Return the largest edge that is not above ``value``."""
    return max(edge for edge in edges if edge <= value)


class Overview:
    """Statistics that grow pair by pair, with :data:`SHOWN` example pairs sampled by the seed."""

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._counts: dict[str, Counter[Any]] = {}
        self._longer: dict[str, Counter[bool]] = {}
        self._images: Counter[bytes] = Counter()
        self._examples: list[tuple[int, int, PreferencePair]] = []
        self.num_pairs = 0

    def _count(self, name: str, value: Any) -> None:
        self._counts.setdefault(name, Counter())[value] += 1

    def add(self, pair: PreferencePair) -> None:
        self.num_pairs += 1
        for name in ("source", "category", "licence", "attempts"):
            self._count(name, getattr(pair, name) or "not said")
        label = pair.tie.value if pair.tie else "not said"
        self._count("preferred", label if pair.preferred is None else pair.preferred)
        self._count("level", "not said" if pair.level is None else pair.level)
        self._count("teacher_share", "not asked" if pair.teacher_share is None else round(pair.teacher_share, 2))
        self._count("order", pair.order.value)
        self._count("images", len(pair.images))
        if pair.preferred is not None and pair.judgment:
            self._count("judgment", f"{pair.order.value}, {pair.preferred} preferred")
        self._count("question_words", bin_of(len(words_of(pair.question)), WORDS))
        for response in pair.responses:
            self._count("response_words", bin_of(len(words_of(response)), WORDS))
        for image in pair.images:
            self._images[hashlib.sha256(image).digest()[:12]] += 1
            self._count("image_side", bin_of(max(check_image(image)), SIDES_PX))
        self._lengths(pair)
        self._keep(pair)

    def _lengths(self, pair: PreferencePair) -> None:
        lengths = [len(text.replace(IMAGE_MARK, "").replace(VIDEO_MARK, "")) for text in pair.responses]
        if pair.preferred is not None and lengths[0] != lengths[1]:
            hit = lengths[pair.preferred] == max(lengths)
            for name in ("all", f"source {pair.source or 'not said'}"):
                self._longer.setdefault(name, Counter())[hit] += 1

    def _keep(self, pair: PreferencePair) -> None:
        rank = -int.from_bytes(hashlib.sha256(f"{self._seed} {pair.pair_id}".encode()).digest()[:8])
        item = (rank, self.num_pairs, pair)
        if len(self._examples) < SHOWN:
            heapq.heappush(self._examples, item)
        elif rank > self._examples[0][0]:
            heapq.heapreplace(self._examples, item)

    def numbers(self) -> dict[str, Any]:
        """Return the counts. ``longer_wins``: the fraction of labelled pairs of different lengths in which the longer response
        is preferred."""
        ordered = {
            name: dict(sorted(counts.items(), key=lambda item: (isinstance(item[0], str), item[0])))
            if not all(isinstance(value, str) for value in counts)
            else dict(counts.most_common())
            for name, counts in sorted(self._counts.items())
        }
        repeated = Counter(self._images.values())
        return {
            "schema_version": VERSION,
            "num_pairs": self.num_pairs,
            "num_distinct_images": len(self._images),
            "pairs_per_image": {str(times): number for times, number in sorted(repeated.items())},
            "longer_wins": {name: share_with_interval(hits[True], hits.total()) for name, hits in sorted(self._longer.items())},
            **{name: {str(value): number for value, number in counts.items()} for name, counts in ordered.items()},
        }

    def write(self, out: Path, *, title: str) -> dict[str, Any]:
        """Write ``stats.json`` and ``stats.html`` into ``out``; return the numbers. Raises OutputError."""
        numbers = self.numbers()
        out.mkdir(parents=True, exist_ok=True)
        write_atomic(out / STATS, json.dumps(numbers, indent=1) + "\n")
        examples = [_example(pair) for _, _, pair in sorted(self._examples, key=lambda item: item[:2], reverse=True)]
        page = page_environment("rewardlab.curation").get_template("overview.html")
        write_atomic(out / PAGE, page.render(title=title, numbers=numbers, charts=charts_of(numbers), examples=examples))
        return numbers


CHARTS = {
    "source": "Source",
    "category": "Category",
    "licence": "Licence",
    "preferred": "Preferred response",
    "order": "Order shown",
    "judgment": "Judgments: order, label",
    "attempts": "Teacher's attempts",
    "teacher_share": "Share of the teacher's votes for the label",
    "level": "Level by its maker",
    "images": "Images in a question",
    "image_side": "Longer side, px, from",
    "question_words": "Words in a question, from",
    "response_words": "Words in a response, from",
}
MOST_BARS = 12


def charts_of(numbers: dict[str, Any]) -> list[dict[str, Any]]:
    """Return bar charts of the counts with more than one value: the first twelve values and the rest together."""
    charts = []
    for name, title in CHARTS.items():
        counts = numbers.get(name, {})
        if len(counts) < 2:
            continue
        items = list(counts.items())
        if (more := sum(number for _, number in items[MOST_BARS:])) > 0:
            items = [*items[:MOST_BARS], (f"{len(counts) - MOST_BARS} more", more)]
        most = max(number for _, number in items)
        bars = [{"label": label, "number": number, "width": round(100 * number / most, 1)} for label, number in items]
        charts.append({"title": title, "bars": bars})
    return charts


MOST_VALUES = 6


def summary_lines(numbers: dict[str, Any]) -> list[str]:
    """Return the numbers of a set as lines of a table: one for each count, its most frequent values first."""
    total, rows = numbers["num_pairs"], [("pairs", f"{numbers['num_pairs']:,}")]
    rows.append(("different images", f"{numbers['num_distinct_images']:,}"))
    for name in ("preferred", "order", "source", "category", "licence", "level", "attempts", "images"):
        counts = sorted(numbers.get(name, {}).items(), key=lambda item: -item[1])
        parts = [f"{value} {number:,} ({percent(number / total, 0)} %)" for value, number in counts[:MOST_VALUES]]
        rest = [f"{len(counts) - MOST_VALUES:,} more"] if len(counts) > MOST_VALUES else []
        if counts:
            rows.append((CHARTS[name].lower(), ", ".join(parts + rest)))
    for name, (share, low, high) in numbers["longer_wins"].items():
        of = "" if name == "all" else f", {name}"
        rows.append((f"the longer response is preferred{of}", f"{with_interval(share, (low, high))} % (95 % interval)"))
    width = max(len(name) for name, _ in rows)
    return [f"{name:{width}}  {value}" for name, value in rows]


def _example(pair: PreferencePair) -> dict[str, Any]:
    def plain(text: str) -> str:
        return text.replace(IMAGE_MARK, "[image]").replace(VIDEO_MARK, "[video]")

    return {
        "pair": pair,
        "question": plain(pair.question),
        "responses": [plain(text) for text in pair.responses],
        "images": [to_data_url(thumbnail(image)) for image in pair.images[:8]],
        "response_images": [[to_data_url(thumbnail(image)) for image in images[:4]] for images in pair.response_images],
    }
