"""VL-RewardBench (arXiv 2411.17451): 1,250 pairs about one image each, in three groups.

Groups go by the source in a row's id, as the official scorer has it. Two wrong groupings circulate: one that is blind to
capital letters' difference (484/448/318) and one that does not know ``hallucination_pair`` (631/301/318).

VL-RewardBench's ``cal.py``: majorities of the first K draws, items without a majority for either answer left out.

Quirks, kept because published numbers have them:

- *Dropped failures.* A draw that the pattern does not match counts as ``doesntMatch``, an item without a strict majority for
  one answer (ties included) as other; neither is in any denominator. A judge that answers one item of ten, right, scores 100 %.
- *Any other number agrees.* A draw agrees unless it names the rejected answer: "Answer 3 is better" agrees.
- *Far matches.* New lines are removed and the pattern is greedy: the last "Answer X is better" anywhere after the first
  "Overall Judgment" or "Therefore", in whatever sentence, is the verdict; the heading is optional in effect, for "therefore"
  may stand in any sentence.
- *Merged rows.* Items are keyed by id, query and the sorted responses, not by row: rows that share them are one item.
- *Shuffled draws.* Which K draws are looked at is random (seed 1234 once, the generator going on from K to K), and the swap it
  shuffles with is not uniform.
- *Reasoning alone* has 1e-6 added to its denominator.

One version of the released file (28 April 2025) misspells a variable in the branch for POVID, and ends in a NameError there;
that of 8 May 2025 has ``hallucination``, as here, which gives the published 183/749/318.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rewardlab.benchmarks.base import Benchmark, BenchmarkFiles, Export, OfficialScorer, Row, vote_text
from rewardlab.benchmarks.data_files import json_rows, reason
from rewardlab.benchmarks.media import check_media, embedded_image, read_within
from rewardlab.data.images import plain_image, read_image
from rewardlab.data.row_files import rows_of
from rewardlab.data.rows import validate
from rewardlab.errors import DataError
from rewardlab.types import BOTH_ORDERS, Judgment, Order, PreferencePair
from rewardlab.verdicts.votes import in_order

# id prefix, lower case -> group; any other prefix is one of the VLFeedback sources and general.
_GROUPS = {
    "hallucination_pair": "hallucination",  # POVID
    "rlaif-v": "hallucination",
    "rlhf-v": "hallucination",
    "mathverse": "reasoning",
    "mmmu_pro": "reasoning",
}


_OTHERS = ("wildvision", "jailbreak", "lrvinstruction", "politics", "svit")  # prefixes of general ids in the released file


def is_vl_rewardbench_row(fields: Mapping[str, Any]) -> bool:
    """Return whether a row is of this benchmark, by the source in its id."""
    return str(fields.get("id", "")).lower().startswith((*_GROUPS, *_OTHERS))


def official_group(row_id: str) -> str:
    """Return the official group of a row id."""
    lowered = row_id.lower()
    return next((group for prefix, group in _GROUPS.items() if lowered.startswith(prefix)), "general")


GROUPINGS: dict[str, Mapping[str, int]] = {
    "official": {"general": 183, "hallucination": 749, "reasoning": 318},
    "blind to capitals' difference (R1-Reward)": {"general": 484, "hallucination": 448, "reasoning": 318},
    "POVID as general (UnifiedReward)": {"general": 631, "hallucination": 301, "reasoning": 318},
}


def load_vl_rewardbench(data: Path, *, images: Path | None, with_images: bool) -> list[Row]:
    """Return the rows of the Hub's parquet (``id, query, response[2], human_ranking[2], image``), whose images are inside, or
    of JSON lines: the repacked ones (``id, prompt, chosen, rejected, image``), in which response 0 is ``chosen``, or the
    dataset's own (the Hub's columns, and ``image_path``).

    Raise DataError for a malformed row, MediaError with the list of missing images.
    """
    if not data.exists():
        raise DataError(f"{data}: no such file; expected VL-RewardBench as JSON lines or the Hub's parquet")
    if data.suffix == ".parquet" or data.is_dir():
        hub_rows = [_hub_row(n, fields, f"{data}, row {n}", with_images) for n, fields in enumerate(rows_of(data))]
        if not hub_rows:
            raise DataError(f"{data}: holds no rows")
        if with_images:
            return hub_rows
        return [replace(row, media=partial(embedded_image, data, "image", row.row)) for row in hub_rows]
    rows = [_row(n, fields, where) for n, (fields, where) in enumerate(json_rows(data, "VL-RewardBench as JSON lines"))]
    folder = images or data.parent
    if not with_images:
        return [replace(row, media=partial(read_within, folder, name)) for row, name in rows]
    check_media((name for _, name in rows), folder, "VL-RewardBench")
    return [_with_image(row, folder / name) for row, name in rows]


def _row(number: int, fields: Mapping[str, Any], where: str) -> tuple[Row, str]:
    """A row of the repack, or of the dataset's own JSON lines, which have the Hub's columns and the path of the image."""
    try:
        row_id, preferred = str(fields["id"]), 0
        if "human_ranking" in fields:
            question, image = fields["query"].replace("<image>\n", ""), fields["image_path"]
            (first, second), preferred = fields["response"], _better(fields["human_ranking"])
            responses = (first, second)
        else:
            question, responses, image = fields["prompt"], (fields["chosen"], fields["rejected"]), fields["image"]
        if not all(isinstance(text, str) for text in (question, *responses, image)):
            raise TypeError("one of them is not a string")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{where}: expected a JSON object with id, prompt, chosen, rejected, image, or with id, query, response[2], "
            f"human_ranking[2], image_path ({reason(error, fields)})"
        ) from error
    group = official_group(row_id)
    pair = PreferencePair(row_id, question, responses, preferred, category=group, source="vl_rewardbench")
    validate(pair, where=where)
    return Row(number, pair, group, f"{question}\n{image}", {"source": row_id.rsplit("-", 1)[0]}), image


def _better(human_ranking: Any) -> int:
    """Return the response of rank 0. Raise ValueError for other ranks than 0 and 1."""
    ranking = list(human_ranking)
    if sorted(ranking) != [0, 1]:
        raise ValueError(f"human_ranking is {ranking}, expected 0 for the better and 1 for the other")
    return ranking.index(0)


def _hub_row(number: int, fields: Mapping[str, Any], where: str, with_images: bool) -> Row:
    try:
        row_id, question = str(fields["id"]), fields["query"].replace("<image>\n", "")
        preferred = _better(fields["human_ranking"])
        first, second = fields["response"]
        image = fields["image"]["bytes"]
        medium = hashlib.sha256(image).hexdigest()
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(
            f"{where}: expected id, query, response[2], human_ranking[2] and image with bytes ({reason(error, fields)})"
        ) from error
    group, images = official_group(row_id), (plain_image(image, where=where),) if with_images else ()
    pair = PreferencePair(row_id, question, (first, second), preferred, images, group, "vl_rewardbench")
    validate(pair, where=where)
    return Row(number, pair, group, f"{question}\n{medium}", {"source": row_id.rsplit("-", 1)[0]})


def _with_image(row: Row, path: Path) -> Row:
    return replace(row, pair=replace(row.pair, images=(read_image(path),)))


KS = (1, 3, 5, 7, 9)
SEED = 1234
ENDS = "(the scorer ends here: division by zero)"
GROUPS = ("general", "hallucination", "reasoning")
_STATUSES = ("agree", "reject", "doesntMatch")
_PATTERN = re.compile(
    r"(?:Overall Judgment|Therefore)\s*.*\s*-*\s*Answer\s*(\d+)\s*is\s*(?:the\s*)?(?:slightly\s*)?better", re.IGNORECASE
)
_GROUP_OF = {
    "RLAIF": "hallucination",
    "RLHF": "hallucination",
    "hallucination": "hallucination",  # POVID
    "mathverse": "reasoning",
    "mmmu": "reasoning",
}
_SOURCE_OF = {"mathverse": "reasoning", "mmmu": "reasoning"}
_SOURCE_OF |= {name: name for name in ("RLAIF", "RLHF", "hallucination", "wildvision")}


def scorer_group(row_id: str) -> str:
    """Return the group by what is before the first dash or underscore of an id, capitals minded; else general."""
    return _GROUP_OF.get(_prefix(row_id), "general")


def _prefix(row_id: str) -> str:
    return re.split(r"[-_]", row_id)[0]


def answer_number(text: str) -> int | None:
    """The number X of the verdict that the scorer's pattern finds, not necessarily 1 or 2; None where it finds none."""
    match = _PATTERN.search(text.replace("\n", "").replace("*", ""))
    return int(match[1]) if match else None


@dataclass(frozen=True)
class AtK:
    """What is printed for one K. Shares are 0..1; None where the scorer ends in a division by zero before it has them.

    It does so where one of its six sources, or a group, is in the file without one decided item.
    """

    k: int
    num_items: int
    agree: int
    reject: int
    doesnt_match: int
    groups: Mapping[str, float | None]
    overall: float | None
    macro: float | None

    def lines(self) -> Iterator[str]:
        """Yield the lines that the scorer prints."""
        all_items, decided = self.num_items + 1e-6, self.agree + self.reject + 1e-6
        yield f"k={self.k} ----------------"
        yield f"Number of total items: {self.num_items}"
        yield (
            f"Number of agree items: {self.agree}, rate: {round(self.agree / all_items, 4)}, "
            f"normalized rate: {round(self.agree / decided, 4)}"
        )
        yield (
            f"Number of reject items: {self.reject}, rate: {round(self.reject / all_items, 4)}, "
            f"normalized rate: {round(self.reject / decided, 4)}"
        )
        yield f"Number of doesntMatch items: {self.doesnt_match}, rate: {round(self.doesnt_match / all_items, 4)}"
        if self.groups["reasoning"] is None:
            yield ENDS
            return
        yield "=" * 20
        yield "general\t hallucination\t reasoning"
        shares = [share for share in self.groups.values() if share is not None]
        if len(shares) == len(GROUPS):
            yield "\t ".join(f"{100.0 * share:.2f}" for share in shares)
        if self.overall is None or self.macro is None:
            yield ENDS
            return
        yield f"Overall Accuracy: {self.overall * 100:.2f}"
        yield f"Macro Average Acc: {self.macro * 100:.2f}"
        yield "=" * 20


def _shuffled(rows: Sequence[Any], dice: random.Random) -> list[Any]:
    mixed = list(rows)
    for place in range(len(mixed)):
        other = dice.randint(0, len(mixed) - 1)
        mixed[place], mixed[other] = mixed[other], mixed[place]
    return mixed


def draw_status(row: Mapping[str, Any]) -> str:
    """Return what a draw comes to: ``agree``, ``reject`` or ``doesntMatch``."""
    rejected = row["ranking"].index(1 if row["meta"]["random_number"] == 0 else 0) + 1
    number = answer_number(row["meta"]["filter_choice"])
    return "doesntMatch" if number is None else "reject" if number == rejected else "agree"


def _source(row_id: str) -> str | None:
    """The scorer's own finer grouping, each part of which must have a decided item, or it divides by zero; None for the rest,
    which is VLFeedback's."""
    return _SOURCE_OF.get(_prefix(row_id))


def score_draws(rows: Sequence[Mapping[str, Any] | None], ks: Sequence[int] = KS, seed: int = SEED) -> list[AtK]:
    """The scorer on the lines of an inference file, one row per draw.

    A row has ``id, query, response[2], ranking[2]`` and ``meta`` with ``filter_choice`` (the text) and ``random_number`` (0:
    shown as given). Rows that are null are passed over, as there. ``ks`` and ``seed`` are the scorer's own by default.
    """
    dice, table = random.Random(seed), []
    draws = [None if row is None else (_key(row), row["id"], draw_status(row)) for row in rows]
    for k in ks:
        votes: dict[str, list[str]] = {}
        ids: dict[str, str] = {}
        for draw in _shuffled(draws, dice):
            if draw is None:
                continue
            key, row_id, vote = draw
            ids.setdefault(key, row_id)
            if len(item := votes.setdefault(key, [])) < max(k, 1):
                item.append(vote)
        table.append(_at_k(k, votes, ids))
    return table


def _key(row: Mapping[str, Any]) -> str:
    return str(row["id"] + row["query"] + "\t".join(sorted(row["response"])))


def _at_k(k: int, votes: Mapping[str, Sequence[str]], ids: Mapping[str, str]) -> AtK:
    outcome = {key: _majority(item) for key, item in votes.items()}
    right, decided = dict.fromkeys(GROUPS, 0), dict.fromkeys(GROUPS, 0)
    undecided_sources = set(map(_source, ids.values()))
    for key, status in outcome.items():
        group = scorer_group(ids[key])
        right[group] += status == "agree"
        if status in ("agree", "reject"):
            decided[group] += 1
            undecided_sources.discard(_source(ids[key]))
    agree, reject, doesnt_match = (list(outcome.values()).count(status) for status in _STATUSES)
    groups: dict[str, float | None] = dict.fromkeys(GROUPS)
    overall = macro = None
    if not undecided_sources:
        for name in GROUPS:
            denominator = decided[name] + (1e-6 if name == "reasoning" else 0)
            groups[name] = right[name] / denominator if denominator else None
        if all(decided.values()):
            overall = sum(right.values()) / sum(decided.values())
            macro = sum(right[name] / decided[name] for name in reversed(GROUPS)) / 3
    return AtK(k, len(outcome), agree, reject, doesnt_match, groups, overall, macro)


def _majority(statuses: Sequence[str]) -> str | None:
    """Return the status of more than half of an item's draws."""
    return next((status for status in _STATUSES if statuses.count(status) > len(statuses) / 2), None)


def lines_of_draws(rows: list[Any], data: Path | None = None) -> list[str]:
    """Return what the scorer prints on the rows of an inference file; ``data`` is not looked at."""
    if rows and isinstance(rows[0], dict) and "0" in rows[0]:  # one column named 0, as pandas writes a list of objects
        rows = [row["0"] for row in rows]
    lines: list[str] = []
    for at_k in score_draws(rows):
        lines += at_k.lines()
        if at_k.overall is None:  # an exception ends the scorer
            break
    return lines


def draws_of_votes(rows: Sequence[Row], judgments: Sequence[Judgment], verdict_format: str, seed: int) -> list[Any]:
    """Return up to ten draws of each pair, each in an order drawn by ``seed``; the votes of an order in their sequence."""
    dice, records = random.Random(seed), []
    for row, judgment in zip(rows, judgments, strict=True):
        pools = {order: list(in_order(judgment.votes, order)) for order in BOTH_ORDERS}
        for _ in range(min(10, min(map(len, pools.values())))):
            order = dice.choice(BOTH_ORDERS)
            text = vote_text(pools[order].pop(0), "overall_judgment", verdict_format)
            meta: dict[str, Any] = {"filter_choice": text, "random_number": int(order is Order.SWAPPED)}
            ranking = [0, 1] if row.pair.preferred == 0 else [1, 0]
            pair = {"id": row.pair.pair_id, "query": row.pair.question, "response": list(row.pair.responses)}
            record: dict[str, Any] = {**pair, "ranking": ranking, "meta": meta}
            # cal.py reads what its inference found before it finds it anew from the text
            number = answer_number(text)
            reading = {"filter_number": -1 if number is None else number, "flag_status": draw_status(record)}
            records.append({**record, "meta": {**meta, **reading}})
    return records


def lines_of_export(rows: Sequence[Row], records: Sequence[Any]) -> list[str]:
    """Return what the scorer prints on exported draws, for each K that there are draws for."""
    ks = [k for k in KS if k * len(rows) <= len(records)]
    return [line for at_k in score_draws(records, ks or [1]) for line in at_k.lines()]


BENCHMARK = Benchmark(
    name="vl_rewardbench",
    load=load_vl_rewardbench,
    sizes=GROUPINGS["official"],
    origins=("RLAIF-V", "RLHF-V", "POVID", "WildVision", "VLFeedback", "MathVerse", "MMMU-Pro"),
    groupings=GROUPINGS,
    files=BenchmarkFiles(
        repo="MMInstruction/VL-RewardBench",
        sha256={"vl_rewardbench.jsonl": "17588bca00bf24d11d62cccbd3ab9e1327f08351d40a53d77370039861e02ec1"},
        media="the Hub's parquet has its images inside",
    ),
    is_row=is_vl_rewardbench_row,
    scorers={"vl_rewardbench": OfficialScorer(lines_of_draws, "the JSON lines of its inference.py", skips_null=True)},
    export=Export(draws_of_votes, lines_of_export),
)
