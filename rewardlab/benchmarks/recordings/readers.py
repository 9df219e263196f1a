"""Readers of recordings, one for each tool: its file becomes samples, each with the key of its pair.

What a tool leaves unsaid comes from its own rules: lmms-eval and VLMEvalKit show response 1 first where the responses of their
data have an odd number of characters together.
"""

from __future__ import annotations

import ast
import csv
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rewardlab.benchmarks.data_files import check_text, json_rows, whole_json
from rewardlab.benchmarks.recordings.samples import Key, RecordedSample, text_key
from rewardlab.benchmarks.recordings.xlsx import sheet_rows
from rewardlab.errors import DataError
from rewardlab.types import Choice, Order
from rewardlab.verdicts.parse import format_verdict


@dataclass(frozen=True)
class Recorder:
    """A tool's form: ``read`` gives its samples, ``template`` is the format of its texts (None: the default's),
    ``by`` how samples find rows: by their texts, an id, a prompt's id and medium, or the place within their group."""

    read: Callable[[Path], Iterator[RecordedSample]]
    template: str | None
    by: str
    inputs: str


def length_order(responses: Sequence[str]) -> int:
    """Return the index of the response that lmms-eval and VLMEvalKit show first."""
    return sum(map(len, responses)) % 2


def _shown(question: str, responses: Sequence[str], first: int, text: str) -> RecordedSample:
    return RecordedSample(text_key(question, responses), first=responses[first], text=text)


def vl_rewardbench_draws(path: Path) -> Iterator[RecordedSample]:
    """The JSON lines of VL-RewardBench's own inference, a row per draw; ``random_number`` 0 showed them as they stand."""
    for record, _ in json_rows(path, "the JSON lines of VL-RewardBench's inference"):
        record = record["0"] if set(record) == {"0"} else record
        meta = record["meta"]
        yield _shown(record["query"], record["response"], int(meta["random_number"]), str(meta["filter_choice"]))


def lmms_eval_samples(path: Path) -> Iterator[RecordedSample]:
    """The ``samples_vl_rewardbench.jsonl`` of lmms-eval: ``doc`` and ``filtered_resps`` or ``resps``."""
    for record, _ in json_rows(path, "the samples of lmms-eval"):
        doc, texts = record["doc"], record.get("filtered_resps") or record["resps"]
        while isinstance(texts, list):
            texts = texts[0]
        yield _shown(doc["query"], doc["response"], length_order(doc["response"]), str(texts))


def vlmevalkit_table(path: Path) -> Iterator[RecordedSample]:
    """The prediction table of VLMEvalKit (.xlsx, .tsv or .csv): question, response, prediction."""
    for line in _table_rows(path, "a table of VLMEvalKit with question, response, prediction, as .xlsx, .tsv or .csv"):
        responses = ast.literal_eval(line["response"])
        yield _shown(line["question"], responses, length_order(responses), line["prediction"])


def _table_rows(path: Path, expected: str) -> Iterator[Mapping[str, str]]:
    if path.suffix == ".xlsx":
        yield from sheet_rows(path, expected)
        return
    if path.suffix not in (".tsv", ".csv"):
        raise DataError(f"{path}: expected {expected}")
    check_text(path, expected)
    csv.field_size_limit(sys.maxsize)
    with path.open(encoding="utf-8-sig", newline="") as file:
        yield from csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ",")


def multimodal_rewardbench_outputs(path: Path) -> Iterator[RecordedSample]:
    """The JSON lines of Multimodal RewardBench's inference, in the order of the data."""
    for record, _ in json_rows(path, "JSON lines with ID, Label, Meta, output"):
        yield RecordedSample((str(record["ID"]),), text=str(record["output"]))


def mm_rlhf_rewards(path: Path) -> Iterator[RecordedSample]:
    """The JSON lines of MM-RLHF-RewardBench's scorer: rewards of the chosen and of the rejected answer."""
    for record, _ in json_rows(path, "JSON lines with id, image or video, rewards"):
        chosen, rejected = map(float, record["rewards"])
        yield RecordedSample((str(record["id"]), str(record.get("image") or record["video"])), scores=(chosen, rejected))


def mmrb2_predictions(path: Path) -> Iterator[RecordedSample]:
    """The ``predictions.json`` of Multimodal RewardBench 2: judgements forward and, of the exchanged pair, reverse."""
    for pair_id, orders in whole_json(path, "a JSON object of predictions").items():
        for name, order in (("forward", Order.GIVEN), ("reverse", Order.SWAPPED)):
            for judgement in orders.get(name, ()):
                letter = judgement.get("judgement")
                known = {"A": Choice.FIRST, "B": Choice.SECOND}.get(letter)
                text = format_verdict(known, "") if known else str(letter or "")
                yield RecordedSample((str(pair_id),), order=order, text=text)


def ixc_results(path: Path) -> Iterator[RecordedSample]:
    """The results of IXC-2.5-Reward on VL-RewardBench: three lists of 0 and 1, each of a group in the order of the data.

    A list's group is told by its length. Give ``--data`` the benchmark's own JSON lines, in whose order these are.
    """
    groups = {183: "general", 749: "hallucination", 318: "reasoning"}
    values = whole_json(path, "three lists of 0 and 1")
    lists = list(values.values()) if isinstance(values, Mapping) else values
    if not isinstance(lists, list) or sorted(len(marks) for marks in lists) != sorted(groups):
        raise DataError(f"{path}: expected three lists of 0 and 1, of {', '.join(map(str, groups))} items")
    for marks in lists:
        for place, mark in enumerate(marks):
            if mark not in (0, 1):
                raise ValueError(f"an outcome is {mark!r}, expected 0 or 1")
            yield RecordedSample((groups[len(marks)], str(place)), right=bool(mark))


def outcomes(path: Path) -> Iterator[RecordedSample]:
    """JSON lines ``{"id": ..., "right": true}`` or ``"correct": 1``: only whether each pair was judged right."""
    for record, _ in json_rows(path, 'JSON lines with "id" and "right" (or "correct")'):
        mark = record["right"] if "right" in record else record["correct"]
        if mark not in (0, 1):
            raise ValueError(f"an outcome is {mark!r}, expected true or false, 1 or 0")
        yield RecordedSample((str(record["id"]),), right=bool(mark))


RECORDERS: Mapping[str, Recorder] = {
    "vl_rewardbench": Recorder(vl_rewardbench_draws, "overall_judgment", "texts", "JSON lines of its inference"),
    "lmms_eval": Recorder(lmms_eval_samples, "overall_judgment", "texts", "lmms-eval's samples_*.jsonl"),
    "vlmevalkit": Recorder(vlmevalkit_table, "overall_judgment", "texts", "VLMEvalKit's table, .xlsx, .tsv or .csv"),
    "ixc": Recorder(ixc_results, None, "group", "IXC-2.5-Reward's results.json"),
    "multimodal_rewardbench": Recorder(multimodal_rewardbench_outputs, "double_brackets", "id", "JSON lines of its inference"),
    "mm_rlhf": Recorder(mm_rlhf_rewards, None, "medium", "JSON lines with id, image or video, rewards"),
    "mmrb2": Recorder(mmrb2_predictions, None, "id", "predictions.json"),
    "outcomes": Recorder(outcomes, None, "id", 'JSON lines with "id" and "right"'),
}


def row_keys(by: str, group: str, place: int, pair_id: str, prompt_id: str, medium: str) -> Key:
    """Return the key under which samples of a recorder name a row that is the ``place``-th of its group."""
    return {"group": (group, str(place)), "id": (pair_id,), "medium": (prompt_id, medium)}[by]
