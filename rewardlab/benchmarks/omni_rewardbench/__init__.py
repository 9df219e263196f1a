"""Omni-RewardBench (arXiv 2510.23451): pairs under a criterion in words, in nine tasks; here the seven without audio.

Answers are texts (about nothing, an image or a video), images (of a text, an edit, a 3D model's picture) or videos. Response 0
is ``response1``; a preference may be a tie. From the public code and README (HongbangYuan/OmniReward, ``run_exp.py``,
``load_omni_reward_bench.py``): the files ``TASK_preferences.json``, the columns, media as objects of ``datasets`` or paths
from the folder of ``media_data.zip``, and five frames of a generated video, ten of one that is asked about. Guessed: that
files of the Hub have the task in their name or folder; the sizes are not known. The sentence before the criterion is ours.

Its scorer is the accuracy that ``run_exp.py`` prints of a task, without ties or with them (``omni_rewardbench_with_tie``).
Quirks, kept because published numbers have them:

- *Both letters are none.* A text with ``[[A]]`` and ``[[B]]`` has no verdict and is wrong; one with A and C is A.
- *Asked again.* An answer without a verdict is asked again up to five times, and only the last counts.
- *One order.* Response 1 is shown first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from rewardlab.benchmarks.base import Benchmark, BenchmarkFiles, Export, OfficialScorer, Row
from rewardlab.benchmarks.data_files import reason
from rewardlab.benchmarks.media_answers import (
    MediaRow,
    Medium,
    checked,
    data_rows,
    labelled_pair,
    load_media,
    medium_of,
    text_of,
)
from rewardlab.data.qwen_video import VideoPolicy
from rewardlab.data.row_files import OTHER_TABLES
from rewardlab.data.rows import systems_of
from rewardlab.errors import ConfigError, DataError
from rewardlab.reporting.progress import log_line
from rewardlab.types import IMAGE_MARK, Choice, Judgment, Order, Tie, VerdictStatus
from rewardlab.verdicts.votes import in_order

# task -> the column of the question's medium ("" without one), and whether answers are media
TASKS = {
    "text_to_text": ("", False),
    "text_image_to_text": ("image", False),
    "text_video_to_text": ("video", False),
    "text_to_image": ("", True),
    "text_image_to_image": ("image", True),
    "text_to_video": ("", True),
    "text_to_3D": ("", True),
}
AUDIO = ("text_audio_to_text", "text_to_audio")
LABELS: dict[str, int | Tie] = {"response1": 0, "response2": 1, "tie": Tie.TIE}
ASKED_FRAMES, ANSWERED_FRAMES = 10, 5


def load_omni_rewardbench(
    data: Path, *, images: Path | None, with_images: bool, policy: VideoPolicy | None = None
) -> list[Row]:
    """Return the rows of one task's file, or of a folder of them; of a folder the tasks with audio are left out.

    Raise DataError for a malformed row or a file of no task, MediaError with the media that are missing.
    """
    tasks = files_by_task(data)
    numbers = count()
    rows = (
        checked(_row(next(numbers), fields, where, task), where)
        for file, task in tasks
        for _, fields, where in data_rows([file])
    )
    folder = images or (data if data.is_dir() else data.parent)
    return load_media(rows, folder, "Omni-RewardBench", with_images=with_images, policy=policy)


def files_by_task(data: Path) -> list[tuple[Path, str]]:
    """Return (file, task) of a file or a folder, in the order of :data:`TASKS`. Raise DataError if there is none."""
    kinds = (".parquet", ".jsonl", *OTHER_TABLES)
    files = sorted(file for file in data.rglob("*") if file.suffix in kinds) if data.is_dir() else [data]
    names = {file: str(file.relative_to(data)) if data.is_dir() else f"{file.parent.name}/{file.name}" for file in files}
    if silent := [file for file in files if any(task in names[file] for task in AUDIO)]:
        sentence = f"{silent[0]}: a task with audio, which no judge here is shown"
        if len(silent) == len(files):
            raise DataError(f"{sentence}; use the files of {', '.join(TASKS)}")
        log_line(f"{sentence}; {len(silent)} of {len(files)} files are left out")
    files_of_tasks = [(file, task) for task in TASKS for file in files if task in names[file] and file not in silent]
    if not files_of_tasks:
        raise DataError(f"{data}: expected files of Omni-RewardBench with the task in their name: {', '.join(TASKS)}")
    return files_of_tasks


def _row(number: int, fields: Mapping[str, Any], where: str, task: str) -> MediaRow:
    column, is_media = TASKS[task]
    try:
        prompt, criterion, label = (text_of(fields, name) for name in ("prompt", "criteria", "criteria_preference"))
        if label not in LABELS:
            raise ValueError(f"'criteria_preference' is {label!r}; expected one of {', '.join(LABELS)}")
        question_media = (_medium(fields, column),) if column else ()
        answers = tuple((_medium(fields, name),) if is_media else () for name in ("response1", "response2"))
        texts = (IMAGE_MARK,) * 2 if is_media else tuple(text_of(fields, name) for name in ("response1", "response2"))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{where}: not a row of {task} of Omni-RewardBench ({reason(error, fields)})") from error
    prompt = prompt.replace("<image>", "").strip()
    question = f"{IMAGE_MARK}\n" * len(question_media) + f"{prompt}\nJudge by this criterion alone: {criterion}"
    pair_id, source = f"{task}-{fields.get('id', number)}", "omni_rewardbench"
    systems = systems_of((fields.get("model1"), fields.get("model2")), where)
    pair = labelled_pair(pair_id, question, (texts[0], texts[1]), LABELS[label], category=task, source=source, systems=systems)
    frames = ASKED_FRAMES if column == "video" else ANSWERED_FRAMES
    return MediaRow(Row(number, pair, task, prompt.casefold(), {}), question_media, (answers[0], answers[1]), frames)


def _medium(fields: Mapping[str, Any], column: str) -> Medium:
    """Return the medium of a column, or the path in the column COLUMN_path."""
    value = fields.get(column)
    return medium_of(value if value else fields[f"{column}_path" if f"{column}_path" in fields else column], column)


_VERDICTS = {
    "[[A]]": "response1",
    "[[B]]": "response2",
    r"\boxed{A}": "response1",
    r"\boxed{B}": "response2",
    "[[C]]": "tie",
    r"\boxed{C}": "tie",
}


def verdict_in(text: str) -> str | None:
    """Return response1, response2 or tie; None without a verdict, or with A and B in the same brackets."""
    if ("[[A]]" in text and "[[B]]" in text) or (r"\boxed{A}" in text and r"\boxed{B}" in text):
        return None
    return next((label for mark, label in _VERDICTS.items() if mark in text), None)


def criterion_lines(results: Sequence[Mapping[str, Any]], *, with_tie: bool) -> list[str]:
    """Return what ``run_exp.py`` logs of results with ``criteria_preference`` and ``predicted``, of each task if they name one.

    Without ties, results whose preference is a tie are left out.
    """
    by_task: dict[str, list[bool]] = {}
    for result in results:
        if with_tie or result["criteria_preference"] != "tie":
            right = result["predicted"] == result["criteria_preference"]
            by_task.setdefault(result.get("task", ""), []).append(right)
    lines = []
    for task, flags in by_task.items():
        lines += [f"Task:{task}"] * bool(task) + [f"Acc: {sum(flags) / len(flags):.4f} ({sum(flags)}/{len(flags)})"]
    return lines


def _lines_of(results: Any, *, with_tie: bool) -> list[str]:
    if not isinstance(results, list):
        raise ConfigError("expected the JSON list of results that run_exp.py writes")
    return criterion_lines(results, with_tie=with_tie)


_WORDS = {Choice.FIRST: "[[A]]", Choice.SECOND: "[[B]]"}


def criterion_results(
    rows: Sequence[Row], judgments: Sequence[Judgment], verdict_format: str, seed: int
) -> list[dict[str, Any]]:
    """Return the first vote of each pair with response 1 first."""
    results = []
    for row, judgment in zip(rows, judgments, strict=True):
        vote = next(iter(in_order(judgment.votes, Order.GIVEN)), None)
        text = ""
        if vote is not None:
            is_tie = vote.verdict.status is VerdictStatus.TIE
            text = "[[C]]" if is_tie else _WORDS[vote.verdict.choice] if vote.verdict.choice else ""
        label = "tie" if row.pair.preferred is None else f"response{row.pair.preferred + 1}"
        facts = {"id": row.pair.pair_id, "task": row.group, "criteria_preference": label}
        results.append({**facts, "predicted": verdict_in(text)})
    return results


def _lines_of_export(rows: Sequence[Row], records: Sequence[Mapping[str, Any]]) -> list[str]:
    without = criterion_lines(records, with_tie=False)
    if not any(row.pair.tie for row in rows):
        return without
    return ["without ties:", *without, "with ties:", *criterion_lines(records, with_tie=True)]


BENCHMARK = Benchmark(
    name="omni_rewardbench",
    load=load_omni_rewardbench,
    load_videos=load_omni_rewardbench,
    frames=ASKED_FRAMES,
    files=BenchmarkFiles(repo="HongbangYuan/OmniRewardBench", media="media_data.zip of the dataset; --images is its folder"),
    scorers={
        "omni_rewardbench": OfficialScorer(
            lambda results, data: _lines_of(results, with_tie=False), "the JSON list of run_exp.py", is_object=True
        ),
        "omni_rewardbench_with_tie": OfficialScorer(
            lambda results, data: _lines_of(results, with_tie=True), "the JSON list of run_exp.py --with_tie", is_object=True
        ),
    },
    export=Export(criterion_results, _lines_of_export),
)
