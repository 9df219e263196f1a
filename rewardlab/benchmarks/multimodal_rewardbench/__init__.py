"""Multimodal RewardBench (arXiv 2502.14191): about 5,000 pairs about one image each, in eight sub-categories.

The released file leaves the texts of several sources to a download script, and the part on toxicity out altogether.

Multimodal RewardBench's ``2_get_accuracy.py``: one answer per pair, in the order of the data.

Quirks, kept because published numbers have them:

- *A wins ties of the parser.* ``[[A]]`` anywhere in the text is the verdict, even where ``[[B]]`` stands there too, or stands
  last: "I first thought [[A]], but [[B]]" is A.
- *A coin for failures.* A text with neither is a coin flip (seed 123, one flip per such text in the order of the file), so a
  judge that answers garbage scores about 50 %.
- *One order.* The better answer's place is the file's; a lean to either side is not seen.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rewardlab.benchmarks.base import Benchmark, BenchmarkFiles, Export, OfficialScorer, Row, vote_text
from rewardlab.benchmarks.data_files import reason, whole_json
from rewardlab.benchmarks.media import check_media, embedded_image, read_within
from rewardlab.data.images import plain_image
from rewardlab.data.row_files import rows_of
from rewardlab.data.rows import validate
from rewardlab.errors import DataError
from rewardlab.types import Judgment, Order, PreferencePair
from rewardlab.verdicts.votes import in_order


def _raw(data: Path) -> Iterable[Any]:
    """Return the rows of the released JSON list, or of Parquet one at a time. Raises DataError."""
    if data.suffix == ".parquet" or data.is_dir():
        return rows_of(data)
    raw = whole_json(data, "Multimodal RewardBench as one JSON list")
    if not isinstance(raw, list):
        raise DataError(f"{data}: expected a JSON list of pairs")
    return raw


def load_multimodal_rewardbench(data: Path, *, images: Path | None, with_images: bool) -> list[Row]:
    """Return the rows of ``all_data.json``, or of the Hub's parquet with images inside: ``ID, Text, Image, Output1, Output2,
    Better, Category``. Response 0 is ``Output1``.

    Raise DataError for a malformed or unfilled row, MediaError with the images that are missing.
    """
    rows, folder, paths = list[Row](), images or data.parent, dict[int, str]()
    for number, fields in enumerate(_raw(data)):
        row, image = _row(number, fields, data)
        if isinstance(image, str):
            paths[number] = image
            row = replace(row, media=partial(read_within, folder, image))
        elif with_images:
            row = _seen(row, (plain_image(image["bytes"], where=f"row {number}"),))
        else:  # its bytes stay where they are
            row = replace(row, media=partial(embedded_image, data, "Image", number))
        rows.append(row)
    if not rows:
        raise DataError(f"{data}: holds no pairs")
    if with_images:
        check_media(paths.values(), folder, "Multimodal RewardBench")
        for number, name in paths.items():
            rows[number] = _seen(rows[number], read_within(folder, name))
    return rows


def _seen(row: Row, images: tuple[bytes, ...]) -> Row:
    return replace(row, pair=replace(row.pair, images=images))


def _row(number: int, fields: Any, data: Path) -> tuple[Row, Any]:
    where = f"{data}, row {number}"
    try:
        row_id, question, image = str(fields["ID"]), fields["Text"], fields["Image"]
        answers, preferred = (fields["Output1"], fields["Output2"]), {"Output1": 0, "Output2": 1}[fields["Better"]]
        group = sub_category({"ID": row_id, "Meta": {"Category": fields["Category"]}})
        inside = isinstance(image, Mapping) and isinstance(image.get("bytes"), bytes)
        if not all(isinstance(text, str) for text in (*answers, *([] if inside else [image]))):
            raise TypeError("one of them is not a string")
    except (KeyError, TypeError) as error:
        raise DataError(
            f"{where}: expected ID, Text, Image, Output1, Output2, Better, Category ({reason(error, fields)})"
        ) from error
    if not isinstance(question, str) or not question.strip():
        raise DataError(f"{where}: has no Text; fill the released file with the benchmark's 0_download_data.py first")
    pair = PreferencePair(row_id, question, answers, preferred, category=group, source="multimodal_rewardbench")
    validate(pair, where=where)
    medium = hashlib.sha256(image["bytes"]).hexdigest() if inside else image
    return Row(number, pair, group, f"{question}\n{medium}", {"source": row_id.rpartition("-")[0] or row_id}), image


SEED = 123


def sub_category(row: Mapping[str, Any]) -> str:
    """The sub-category a row is counted in, beside ``all``."""
    category, row_id = row["Meta"]["Category"], row["ID"].lower()
    if category == "safety":
        return "safety/bias" if row_id.startswith("pairs") else "safety/toxicity"
    if category == "reasoning":
        return "reasoning/math" if row_id.startswith("math") else "reasoning/coding"
    return str(category)


def score_outputs(rows: Sequence[Mapping[str, Any]], seed: int = SEED, *, reseeds: bool = False) -> dict[str, tuple[int, int]]:
    """(right, rows) for ``all`` and each sub-category, in the order met. A row: ``ID, Label (A|B), output, Meta.Category``.

    ``reseeds``: the coin is seeded anew for each row, as lmms-eval does; with its seed every text without a verdict is A.
    """
    dice, table = random.Random(seed), dict[str, tuple[int, int]]()
    for row in rows:
        if reseeds:
            dice = random.Random(seed)
        text = row["output"]
        letter = "A" if "[[A]]" in text else "B" if "[[B]]" in text else "A" if dice.random() < 0.5 else "B"
        for name in ("all", sub_category(row)):
            right, total = table.get(name, (0, 0))
            table[name] = (right + (letter == row["Label"]), total + 1)
    return table


def output_lines(table: Mapping[str, tuple[int, int]]) -> list[str]:
    """Return the lines that the scorer prints."""
    return [f"acc {name}: {right} / {total} = {right / total}" for name, (right, total) in table.items()]


def lmms_eval_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what lmms-eval logs of the same rows (EvolvingLMMs-Lab/lmms-eval, ``tasks/multimodal_rewardbench/utils.py``), and
    the accuracy that it reports. It shows the file's order and keeps the benchmark's parser, with A for every failure."""
    table = score_outputs(rows, reseeds=True)
    lines = [f"{name}: {right} / {total} = {right / total:.2f}" for name, (right, total) in table.items()]
    right, total = table.get("all", (0, 1))
    return [*lines, f"multimodal_rewardbench_accuracy: {right / total:.4f}"]


def outputs_of_votes(rows: Sequence[Row], judgments: Sequence[Judgment], verdict_format: str, seed: int) -> list[Any]:
    """Return the first vote of each pair in the order of the file."""
    records = []
    for row, judgment in zip(rows, judgments, strict=True):
        votes = in_order(judgment.votes, Order.GIVEN)
        output = vote_text(votes[0], "double_brackets", verdict_format) if votes else ""
        label = "A" if row.pair.preferred == 0 else "B"
        meta = {"Category": row.group.partition("/")[0]}  # its scorer divides safety and reasoning by the id
        records.append({"ID": row.pair.pair_id, "Label": label, "output": output, "Meta": meta})
    return records


BENCHMARK = Benchmark(
    name="multimodal_rewardbench",
    load=load_multimodal_rewardbench,
    origins=(
        "NoCaps",
        "VisIT-Bench",
        "MMMU-Pro",
        "MathVista",
        "EMMA",
        "Image2Struct",
        "RealWorldQA",
        "MMBench",
        "SEED-Bench",
        "PAIRS",
    ),
    files=BenchmarkFiles(
        repo="MMRB/Multimodal-RewardBench",
        media="inside the Hub's copy, or built by scripts/ of facebookresearch/multimodal_rewardbench",
    ),
    scorers={
        "multimodal_rewardbench": OfficialScorer(
            lambda rows, data: output_lines(score_outputs(rows)), "JSON lines with ID, Label, Meta, output"
        ),
        "multimodal_rewardbench_lmms_eval": OfficialScorer(
            lambda rows, data: lmms_eval_lines(rows), "JSON lines with ID, Label, Meta, output, by lmms-eval's rule"
        ),
    },
    export=Export(outputs_of_votes, lambda rows, records: output_lines(score_outputs(records))),
)
