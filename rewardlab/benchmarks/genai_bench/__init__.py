"""GenAI-Bench (arXiv 2406.04485): people's votes between two generated images, two edits of an image, or two generated videos.

A vote is left, right, tie or both bad; a tie has no better response. Response 0 is the left one. From the public code
(TIGER-AI-Lab/GenAI-Bench, ``inference.py`` and ``inference_configs.json``): the tasks and their columns, the split
``test_v1``, and that videos are URLs of which the last part is the file's name. From the Hub's card: the columns of the
models. From CodeGoat24/UnifiedReward: the JSON list of videos with ``video_left`` and ``video_right``. Guessed: nothing.

Its scorer is the mean of ``correct`` that ``inference.py`` prints, and the table that ``show_results.py`` makes of the tasks.
Quirks, kept because published numbers have them:

- *Four answers.* ``[[A>B]]``, ``[[B>A]]``, ``[[A=B=Good]]`` and ``[[A=B=Bad]]``; ``[[A=B]]`` is right for both kinds of tie.
- *Greedy brackets.* The vote is everything from the first ``[[`` of a line to its last ``]]``: two verdicts in one line are
  neither. A text without brackets is wrong, so the denominator is every row.
- *One order.* Each pair is judged once, left first.
- *Eight frames* of a video: the sixteen of its settings are under a misspelt key, which nothing reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rewardlab.benchmarks.base import Benchmark, BenchmarkFiles, Export, OfficialScorer, Row
from rewardlab.benchmarks.data_files import reason
from rewardlab.benchmarks.media_answers import MediaRow, checked, data_rows, labelled_pair, load_media, medium_of, text_of
from rewardlab.data.qwen_video import VideoPolicy
from rewardlab.data.row_files import data_files_of
from rewardlab.data.rows import FRAMES, systems_of
from rewardlab.errors import DataError
from rewardlab.types import IMAGE_MARK, Choice, Judgment, Order, Tie, VerdictStatus
from rewardlab.verdicts.votes import in_order

# task -> the columns of the left and the right answer
ANSWERS = {
    "image_edition": ("left_output_image", "right_output_image"),
    "image_generation": ("left_image", "right_image"),
    "video_generation": ("left_video", "right_video"),
}
TASKS = ("image_generation", "image_edition", "video_generation")
_REPACKED = {"video_left": "left_video", "video_right": "right_video"}  # names of UnifiedReward's list of videos
LABELS: dict[str, int | Tie] = {"leftvote": 0, "rightvote": 1, "tievote": Tie.TIE, "bothbad_vote": Tie.BOTH_BAD}
SPLIT = "test_v1"  # that the published numbers are of


def load_genai_bench(data: Path, *, images: Path | None, with_images: bool, policy: VideoPolicy | None = None) -> list[Row]:
    """Return the rows of Parquet or JSON of any of the tasks, or of a folder of them; if a folder has files of the split
    ``test_v1``, only those.

    Raise DataError for a malformed row, MediaError with the media that are missing.
    """
    rows = (checked(_row(number, fields, where), where) for number, fields, where in data_rows(_files(data)))
    folder = images or (data if data.is_dir() else data.parent)
    return load_media(rows, folder, "GenAI-Bench", with_images=with_images, policy=policy)


def _files(data: Path) -> list[Path]:
    files = data_files_of(data)
    return [file for file in files if file.name.startswith(SPLIT)] or files


def _row(number: int, fields: Mapping[str, Any], where: str) -> MediaRow:
    try:
        fields = {_REPACKED.get(name, name): value for name, value in fields.items()}
        task = next((task for task, columns in ANSWERS.items() if columns[0] in fields), "")
        if not task:
            columns = ", ".join(left for left, _ in ANSWERS.values())
            raise ValueError(f"has none of {columns}; its columns are {', '.join(map(str, fields))}")
        answers = tuple((_medium(fields[column], column),) for column in ANSWERS[task])
        label = LABELS[vote] if (vote := text_of(fields, "vote_type")) in LABELS else None
        if label is None:
            raise ValueError(f"'vote_type' is {vote!r}; expected one of {', '.join(LABELS)}")
        source = (medium_of(fields["source_image"], "source_image"),) if task == "image_edition" else ()
        question = _question(fields, task)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{where}: not a row of GenAI-Bench ({reason(error, fields)})") from error
    pair_id, marks = f"{task}-{fields.get('id', number)}", (IMAGE_MARK, IMAGE_MARK)
    systems = systems_of((fields.get("left_model"), fields.get("right_model")), where)
    pair = labelled_pair(pair_id, question, marks, label, category=task, source="genai_bench", systems=systems)
    return MediaRow(Row(number, pair, task, question.casefold(), {}), source, (answers[0], answers[1]))


def _medium(value: Any, column: str) -> Any:
    """Return an answer's medium; of a URL its last part, which is the name of the file."""
    medium = medium_of(value, column)
    return medium.rpartition("/")[2] if isinstance(medium, str) and "://" in medium else medium


def _question(fields: Mapping[str, Any], task: str) -> str:
    if task != "image_edition":
        return text_of(fields, "prompt")
    source, target, instruction = (text_of(fields, name) for name in ("source_prompt", "target_prompt", "instruct_prompt"))
    return f"{IMAGE_MARK}\nEdit this image: {instruction}\nIt shows: {source}\nAfter the edit it should show: {target}"


RIGHT = {
    "leftvote": ("[[A>>B]]", "[[A>B]]"),
    "rightvote": ("[[B>>A]]", "[[B>A]]"),
    "tievote": ("[[A=B]]", "[[A=B=Good]]"),
    "bothbad_vote": ("[[A=B]]", "[[A=B=Bad]]"),
}


def vote_in(response: str) -> str | None:
    """Return what stands from the first ``[[`` to the last ``]]`` of the first line that has both; None without any."""
    for line in response.split("\n"):
        begin, end = line.find("[["), line.rfind("]]")
        if 0 <= begin <= end - 2:
            return line[begin : end + 2]
    return None


def is_right_vote(response: str, human_vote: str) -> bool:
    """Return whether a text is right about a vote."""
    return vote_in(response) in RIGHT.get(human_vote, ())


def vote_fraction(records: Sequence[Mapping[str, Any]]) -> float:
    """Return the fraction of ``response`` that are right about ``human_vote``; nan of none."""
    right = [is_right_vote(record["response"], record["human_vote"]) for record in records]
    return sum(right) / len(right) if right else float("nan")


def genai_lines(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what ``inference.py`` prints last of one task; of records that name several (``task``), that of each, and the row
    of ``show_results.py`` where all three are there."""
    by_task: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        by_task.setdefault(record.get("task", ""), []).append(record)
    if len(by_task) < 2:
        return [f"Accuracy: {vote_fraction(records)}"]
    lines = [f"{task}: Accuracy: {vote_fraction(by_task[task])}" for task in by_task]
    if set(by_task) == set(TASKS):
        lines.append(" | ".join(map(str, merged_row({task: vote_fraction(by_task[task]) for task in TASKS}))))
    return lines


def merged_row(accuracies: Mapping[str, float]) -> list[float]:
    """Return the cells of ``show_results.py``: image generation, image editing, video generation and their average, in percent.
    It rounds as numpy does, and averages what it has rounded."""
    cells = [float(np.round(np.float64(accuracies[task]) * 100, 2)) for task in TASKS]
    return [*cells, float(np.round(np.mean(cells), 2))]


_VOTE_OF = {Choice.FIRST: "[[A>B]]", Choice.SECOND: "[[B>A]]"}


def records_of_votes(
    rows: Sequence[Row], judgments: Sequence[Judgment], verdict_format: str, seed: int
) -> list[dict[str, Any]]:
    """Return the first vote of each pair with the left answer first; a tie is ``[[A=B]]``, no verdict an empty text."""
    return [_record(row, judgment) for row, judgment in zip(rows, judgments, strict=True)]


def _record(row: Row, judgment: Judgment) -> dict[str, Any]:
    text = ""
    for vote in in_order(judgment.votes, Order.GIVEN)[:1]:
        is_tie = vote.verdict.status is VerdictStatus.TIE
        text = "[[A=B]]" if is_tie else _VOTE_OF[vote.verdict.choice] if vote.verdict.choice else ""
    label = row.pair.preferred if row.pair.tie is None else row.pair.tie
    human_vote = next(name for name, value in LABELS.items() if value == label)
    record = {"idx": row.row, "response": text, "model_vote": vote_in(text), "human_vote": human_vote}
    return {**record, "correct": is_right_vote(text, human_vote), "task": row.group}


def _lines_of_export(rows: Sequence[Row], records: Sequence[Mapping[str, Any]]) -> list[str]:
    return genai_lines(records)


BENCHMARK = Benchmark(
    name="genai_bench",
    load=load_genai_bench,
    load_videos=load_genai_bench,
    frames=FRAMES,
    sizes={"image_generation": 1735, "image_edition": 919, "video_generation": 1069},
    origins=("GenAI-Arena", "GenAI-Bench"),
    files=BenchmarkFiles(
        repo="TIGER-Lab/GenAI-Bench",
        media="images are inside; videos are in tianleliphoebe/genai-arena-video-mp4 of the Hub",
    ),
    scorers={
        "genai_bench": OfficialScorer(
            lambda rows, data: genai_lines(rows), "JSON lines with response and human_vote, as inference.py writes them"
        )
    },
    export=Export(records_of_votes, _lines_of_export),
)
