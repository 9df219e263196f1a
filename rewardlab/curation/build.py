"""From a public source to a clean set of pairs: converted, checked, balanced, deduplicated, without benchmark rows.

One pass, pair by pair. Everything that is left out is in ``rejected.jsonl`` with its reason; ``report.json`` is written last,
so that a folder without it is not a finished set. An interrupted build starts anew.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from rewardlab.config import BuildConfig
from rewardlab.curation.decontaminate import Contamination, pair_images
from rewardlab.curation.duplicates import Duplicates
from rewardlab.curation.image_hashes import picture_of
from rewardlab.curation.overview import Overview
from rewardlab.data.files import mark_unfinished, write_atomic
from rewardlab.data.pairs import write_parts
from rewardlab.data.recipes import Recipe, Rejected, check_images_folder, convert_source
from rewardlab.data.sources import HubStream, source_files
from rewardlab.errors import DataError, OutputError
from rewardlab.reporting.progress import Advance
from rewardlab.types import BOTH_ORDERS, Order, PreferencePair

CELLS = tuple((preferred, order) for preferred in (0, 1) for order in BOTH_ORDERS)


class Balance:
    """Balances pairs within each source and category: counts of the four cells (which response is preferred, which is shown
    first) differ by one at most, unless pairs have judgments.

    Swapping the responses of a pair with a judgment swaps its order, too, so that the judgment still fits; such a pair has two
    of the four cells to go to. The seed and the pair break ties.
    """

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._cells: Counter[tuple[str, str, int, Order]] = Counter()

    def place(self, pair: PreferencePair) -> PreferencePair:
        """Return the pair, its responses swapped or not; a pair without label is unchanged."""
        if pair.preferred is None:
            return pair
        dice = random.Random(f"place {self._seed} {pair.pair_id}")
        open_cells = [cell for cell in CELLS if not pair.judgment or self._at(pair, cell[0]).order == cell[1]]
        dice.shuffle(open_cells)
        preferred, order = min(open_cells, key=lambda cell: self._cells[pair.source, pair.category, *cell])
        self._cells[pair.source, pair.category, preferred, order] += 1
        return replace(self._at(pair, preferred), order=order)

    @staticmethod
    def _at(pair: PreferencePair, preferred: int) -> PreferencePair:
        return pair if pair.preferred == preferred else pair.swap()


REPORT, REJECTED = "report.json", "rejected.jsonl"
MOST_LETTERS = 300  # of a reason, where reasons are counted


class _Build:
    def __init__(self, config: BuildConfig, contamination: Contamination | None, rejected: Any, advance: Advance) -> None:
        self.contamination, self.rejected, self.advance = contamination, rejected, advance
        self.duplicates = Duplicates(config.similarity) if config.similarity else None
        self.balance = Balance(config.seed)
        self.counts: Counter[str] = Counter()
        self.ids: dict[int, int] = {}  # hash of an id -> its count; ids themselves would take too much memory
        self.reasons: dict[str, Counter[str]] = {kind: Counter() for kind in ("dropped", "bad", "duplicate", "contaminated")}
        self.overview = Overview(config.seed)

    def pairs(self, rows: Iterable[PreferencePair | Rejected], limit: int | None) -> Iterator[PreferencePair]:
        """Yield the pairs of the set, ``limit`` at most."""
        for item in rows:
            self.advance()
            if isinstance(item, Rejected):
                self.reject(item.kind, item.reason, file=item.file, row=item.row)
                continue
            self.counts["converted"] += 1
            if (pair := self._screen(item)) is not None:
                self.counts["kept"] += 1
                pair = self._with_unique_id(pair)
                self.overview.add(pair)
                yield pair
                if self.counts["kept"] == limit:
                    return

    def _with_unique_id(self, pair: PreferencePair) -> PreferencePair:
        """Return the pair under an id that is unique in the set: repeated pairs, and a user's ids, may share one."""
        key = hash(pair.pair_id)
        if key not in self.ids:
            self.ids[key] = 1
            return pair
        self.counts["repeated_ids"] += 1
        self.ids[key] += 1
        while hash(name := f"{pair.pair_id}#{self.ids[key]}") in self.ids:  # an id of the source
            self.ids[key] += 1
        self.ids[hash(name)] = 1
        return replace(pair, pair_id=name)

    def _screen(self, pair: PreferencePair) -> PreferencePair | None:
        compares = self.contamination is not None or self.duplicates is not None
        pictures = [picture_of(image, views=True) for image in pair_images(pair)] if compares else []
        if self.contamination is not None:
            matches = self.contamination.matches(self.counts["converted"], pair, pictures)
            if (best := next((match for match in matches if match.contains), None)) is not None:
                self.reject("contaminated", f"{best.what} of {best.name}", pair=pair, with_row=best.row)
                return None
        if self.duplicates is not None and (earlier := self.duplicates.find_or_add(pair, pictures)) is not None:
            reason = "repeats a pair, with the other preferred" if earlier.contradicts else "repeats a pair"
            self.reject("duplicate", reason, pair=pair, of=earlier.pair_id)
            return None
        return self.balance.place(pair)

    def reject(self, kind: str, reason: str, *, pair: PreferencePair | None = None, **facts: Any) -> None:
        self.counts[kind] += 1
        short_reason = _short(reason)
        if short_reason in self.reasons[kind] or len(self.reasons[kind]) < 100:
            self.reasons[kind][short_reason] += 1
        else:
            self.reasons[kind]["other"] += 1
        origin = {} if pair is None else {"pair_id": pair.pair_id, "provenance": pair.provenance}
        self.rejected.write(json.dumps({"kind": kind, "reason": reason, **origin, **facts}, ensure_ascii=False) + "\n")


def _short(reason: str) -> str:
    """Return a reason without the row's number and texts."""
    short = reason.partition(", row ")[2].partition(": ")[2] or reason if ", row " in reason else reason
    return short[:MOST_LETTERS]


def build(
    recipe: Recipe,
    source: Path | HubStream,
    out: Path,
    *,
    config: BuildConfig,
    contamination: Contamination | None,
    advance: Advance,
    facts: dict[str, Any],
) -> dict[str, Any]:
    """Write ``part-*.parquet``, ``rejected.jsonl``, ``stats.json``, ``stats.html`` and ``report.json`` into ``out``; return the
    report, with ``facts``. Raises OutputError if ``out`` holds a finished set or other shards, DataError if no pair is left, or
    ``config.images`` is no folder."""
    if (out / REPORT).exists():
        raise OutputError(f"{out / REPORT}: already holds a finished set; choose another --out")
    check_images_folder(config.images)
    if isinstance(source, Path):
        source_files(source, recipe.files, recipe.url)  # write nothing if there is nothing to read
    with mark_unfinished(out):
        with (out / REJECTED).open("w", encoding="utf-8", errors="backslashreplace") as rejected:
            run = _Build(config, contamination, rejected, advance)
            pairs = run.pairs(convert_source(recipe, source, frames=config.frames, images=config.images), config.limit)
            shards = list(write_parts(pairs, out, embed=not config.media_folder))
        if not shards:
            most = max(
                ((number, reason) for counts in run.reasons.values() for reason, number in counts.items()),
                default=(0, "no rows"),
            )
            raise DataError(
                f"{source}: no pair of it is kept; most frequent reason ({most[0]:,} ×): "
                f"{most[1]}; see {out / REJECTED} for every reason"
            )
        report = {
            "recipe": recipe.name,
            "url": recipe.url,
            "licence": recipe.licence or "not stated",
            "published_rows": recipe.published,
            "source": str(source),
            **{name: run.counts[name] for name in ("converted", "kept", *run.reasons, "repeated_ids")},
            "reasons": {kind: dict(counts.most_common()) for kind, counts in run.reasons.items() if counts},
            "options": config.model_dump(mode="json"),
            "shards": len(shards),
            **facts,
        }
        run.overview.write(out, title=f"{recipe.name}: {run.counts['kept']:,} pairs")
        write_atomic(out / REPORT, json.dumps(report, indent=1) + "\n")
        return report
