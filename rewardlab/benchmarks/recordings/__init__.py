"""Recordings of other tools, made into what ``--judge replay:FILE`` takes: a tool's file becomes samples, each with the key of
its pair.

lmms-eval and VLMEvalKit show response 1 first if the responses of their data have an odd number of characters together.
"""

from __future__ import annotations

import ast
import csv
import re
import sys
import zipfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from rewardlab.benchmarks.base import Row
from rewardlab.benchmarks.data_files import check_text, json_rows, reason, whole_json
from rewardlab.benchmarks.every_eval_ever import PROFILE, recorded_votes
from rewardlab.data.votes import vote_row
from rewardlab.errors import ConfigError, DataError
from rewardlab.types import Choice, Order, Vote
from rewardlab.verdicts.parse import format_verdict

Key = tuple[str, ...]


@dataclass(frozen=True)
class RecordedSample:
    """One recorded sample. ``key`` names its pair; ``first`` is the text of the response shown first, None: by ``order``.

    Exactly one of ``text``, ``scores`` (of the responses in the order of the data), ``right`` and ``vote`` is given.
    """

    key: Key
    order: Order = Order.GIVEN
    first: str | None = None
    text: str | None = None
    scores: tuple[float, float] | None = None
    right: bool | None = None
    vote: Vote | None = None


@dataclass(frozen=True)
class Import:
    """Replay rows of a recording: of ``num_samples`` as many as have a row; ``num_rows`` of the benchmark have one."""

    rows: tuple[Mapping[str, Any], ...]
    num_samples: int
    num_unmatched: int
    num_rows: int
    template: str | None


def plain_question(text: str) -> str:
    """Return a question without the place of its image, which copies of one benchmark write differently."""
    return text.replace("<image>\n", "").replace("<image>", "").strip()


def text_key(question: str, responses: Sequence[str]) -> Key:
    """Return the key of a pair by its words, in whatever order the responses stand."""
    return (plain_question(question), *sorted(response.strip() for response in responses))


def rows_by_text(rows: Iterable[Row]) -> dict[Key, list[Row]]:
    """Return the rows by :func:`text_key`; several where all words agree."""
    table: dict[Key, list[Row]] = defaultdict(list)
    for row in rows:
        table[text_key(row.pair.question, row.pair.responses)].append(row)
    return table


def replay_row(row: Row, sample: RecordedSample) -> dict[str, Any]:
    """Return the line of a replay file. Raise ValueError where the response shown first is none of the row's."""
    if sample.right is not None:
        return {"row": row.row, "right": sample.right}
    if sample.scores is not None:
        return {"row": row.row, "scores": list(sample.scores)}
    if sample.vote is not None:
        return {"row": row.row, "vote": vote_row(sample.vote)}
    order = sample.order
    if sample.first is not None:
        stripped = [response.strip() for response in row.pair.responses]
        order = Order.GIVEN if stripped.index(sample.first.strip()) == 0 else Order.SWAPPED
    return {"row": row.row, "order": order.value, "text": sample.text}


_MAIN = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
_SHEET, _SHARED = "xl/worksheets/sheet1.xml", "xl/sharedStrings.xml"
MOST_BYTES = 1 << 30  # of a part once unpacked
_ESCAPED = re.compile(r"_x([0-9A-Fa-f]{4})_")  # a character that XML cannot hold


def sheet_rows(path: Path, expected: str) -> Iterator[dict[str, str]]:
    """Yield the rows of the first sheet by the names in its first row; an empty cell is "". Raise DataError for a file that is
    none, ``expected`` says what it should be.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            shared = _shared_texts(archive, path)
            names: dict[int, str] | None = None
            for _, element in ElementTree.iterparse(_part(archive, _SHEET, path)):
                if element.tag != f"{_MAIN}row":
                    continue
                cells = dict(_cells(element, shared))
                element.clear()  # memory holds one row
                if names is None:
                    names = cells
                elif any(cells.values()):
                    yield {name: cells.get(place, "") for place, name in names.items()}
    except (OSError, KeyError, ValueError, IndexError, zipfile.BadZipFile, ElementTree.ParseError) as error:
        raise DataError(f"{path}: is not a readable .xlsx file; expected {expected}, or saved as .csv") from error


def _part(archive: zipfile.ZipFile, name: str, path: Path) -> zipfile.ZipExtFile:
    if (size := archive.getinfo(name).file_size) > MOST_BYTES:
        raise DataError(f"{path}: holds {size >> 20:,} MiB of cells, more than {MOST_BYTES >> 20:,}; save it as .csv")
    return archive.open(name)  # type: ignore[return-value]


def _shared_texts(archive: zipfile.ZipFile, path: Path) -> list[str]:
    if _SHARED not in archive.namelist():
        return []
    items = ElementTree.parse(_part(archive, _SHARED, path)).getroot()
    return [_text(item) for item in items]


def _text(item: ElementTree.Element) -> str:
    """Return a text in one piece or in several of different fonts."""
    return _plain("".join(piece.text or "" for piece in item.iter(f"{_MAIN}t")))


def _plain(text: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), text)


def _cells(row: ElementTree.Element, shared: list[str]) -> Iterator[tuple[int, str]]:
    place = -1
    for cell in row.iter(f"{_MAIN}c"):
        place = _column(cell.get("r", "")) if cell.get("r") else place + 1
        value, kind = cell.findtext(f"{_MAIN}v", ""), cell.get("t", "n")
        yield place, shared[int(value)] if kind == "s" else _text(cell) if kind == "inlineStr" else _plain(value)


def _column(reference: str) -> int:
    """Return the column of "B7" from 0: 1."""
    number = 0
    for letter in re.match(r"[A-Z]*", reference)[0]:  # type: ignore[index]
        number = 26 * number + ord(letter) - ord("A") + 1
    return number - 1


@dataclass(frozen=True)
class Recorder:
    """A tool's form: ``read`` gives its samples, ``template`` is the format of its texts (None: the default's),
    ``by`` how samples find rows: by their texts, an id, the row and id, a prompt's id and medium, or the place within their
    group."""

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


def every_eval_ever_votes(path: Path) -> Iterator[RecordedSample]:
    """The ``*_samples.jsonl`` of Every Eval Ever in the profile of :mod:`rewardlab.benchmarks.every_eval_ever`."""
    for row, pair_id, vote in recorded_votes(path):
        yield RecordedSample((row, pair_id), vote=vote)


RECORDERS: Mapping[str, Recorder] = {
    "vl_rewardbench": Recorder(vl_rewardbench_draws, "overall_judgment", "texts", "JSON lines of its inference"),
    "lmms_eval": Recorder(lmms_eval_samples, "overall_judgment", "texts", "lmms-eval's samples_*.jsonl"),
    "vlmevalkit": Recorder(vlmevalkit_table, "overall_judgment", "texts", "VLMEvalKit's table, .xlsx, .tsv or .csv"),
    "ixc": Recorder(ixc_results, None, "group", "IXC-2.5-Reward's results.json"),
    "multimodal_rewardbench": Recorder(multimodal_rewardbench_outputs, "double_brackets", "id", "JSON lines of its inference"),
    "mm_rlhf": Recorder(mm_rlhf_rewards, None, "medium", "JSON lines with id, image or video, rewards"),
    "mmrb2": Recorder(mmrb2_predictions, None, "id", "predictions.json"),
    "outcomes": Recorder(outcomes, None, "id", 'JSON lines with "id" and "right"'),
    "every_eval_ever": Recorder(every_eval_ever_votes, None, "row", f"*_samples.jsonl in the profile {PROFILE}"),
}


def row_key(by: str, row: Row, place: int) -> Key:
    """Return the key under which samples of a recorder name a row that is the ``place``-th of its group."""
    pair_id = row.pair.pair_id
    keys = {"group": (row.group, str(place)), "row": (str(row.row), pair_id), "medium": (row.cluster, row.medium)}
    return keys.get(by, (pair_id,))


MOST_UNMATCHED = 0.05  # share of the samples without a row from which the recording is of other data


def import_recording(name: str, path: Path, rows: Sequence[Row]) -> Import:
    """Return the samples of a file in the form ``name`` (:data:`RECORDERS`) as lines of a replay file of ``rows``.

    Samples that several rows share in all that names them go to these in turn. Raise ConfigError for an unknown form, DataError
    for a file of another one, and where more than a twentieth of the samples belong to no row.
    """
    if name not in RECORDERS:
        raise ConfigError(f"unknown recording format {name!r}; expected one of {', '.join(RECORDERS)}")
    recorder = RECORDERS[name]
    table = rows_by_text(rows) if recorder.by == "texts" else _rows_by_key(rows, recorder)
    lines, unmatched, total, turn = [], 0, 0, Counter[Key]()
    for sample in _samples(recorder, path):
        total += 1
        places = table.get(sample.key, [])
        if not places:
            unmatched += 1
            continue
        lines.append(replay_row(places[turn[sample.key] % len(places)], sample))
        turn[sample.key] += 1
    if not total:
        raise DataError(f"{path}: holds no samples")
    if unmatched > MOST_UNMATCHED * total:
        raise DataError(f"{path}: {unmatched:,} of {total:,} samples match no row of the data; is --data the same benchmark?")
    return Import(tuple(lines), total, unmatched, len({line["row"] for line in lines}), recorder.template)


def _samples(recorder: Recorder, path: Path) -> Iterator[RecordedSample]:
    try:
        yield from recorder.read(path)
    except DataError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, SyntaxError, csv.Error) as error:
        raise DataError(f"{path}: a sample cannot be read ({reason(error)}); expected {recorder.inputs}") from error


def _rows_by_key(rows: Sequence[Row], recorder: Recorder) -> dict[Key, list[Row]]:
    table: dict[Key, list[Row]] = defaultdict(list)
    places: Counter[str] = Counter()
    for row in rows:
        table[row_key(recorder.by, row, places[row.group])].append(row)
        places[row.group] += 1
    return table
