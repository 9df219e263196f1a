"""EditReward-Bench of EditScore (arXiv 2509.23909): pairs of edits of an image, compared in one of three dimensions.

Another benchmark of the same name is TIGER-Lab's (:mod:`rewardlab.benchmarks.editreward_bench`). The dimensions are prompt
following, consistency and overall, the tasks thirteen kinds of edits. Response 0, the first of ``output_images``, is the
better one in every row. From the public code (VectorSpaceLab/EditScore, ``evaluation.py`` and ``calculate_statistics.py``):
the columns ``key, instruction, input_image, output_images, task_type, dimension``, the tasks, and that the first edit is the
better one. Guessed: nothing; the number of rows is not known. The sentence that tells a judge its dimension is ours.

The scorer takes a score of either edit. Quirks, kept because published numbers have them:

- *Equal scores are wrong.* There are no ties.
- *A mean of tasks.* The average is over the tasks, each weighing the same whatever its number of pairs.
- *All thirteen tasks.* Its tables end in an error if one is missing; here they show those that are there, nan in a dimension
  without any.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rewardlab.benchmarks.base import Benchmark, BenchmarkFiles, Export, OfficialScorer, Row
from rewardlab.benchmarks.data_files import reason
from rewardlab.benchmarks.media_answers import MediaRow, checked, data_rows, load_media, medium_of, text_of
from rewardlab.data.row_files import saved_dataset_files
from rewardlab.errors import DataError
from rewardlab.types import IMAGE_MARK, Judgment, PreferencePair
from rewardlab.verdicts.votes import share_of_valid

DIMENSIONS = {"prompt_following": "Prompt Following", "consistency": "Consistency", "overall": "Overall"}
_CRITERIA = {
    "prompt_following": "\nJudge only how well the instruction is followed.",
    "consistency": "\nJudge only how well everything stays that the instruction does not name.",
    "overall": "",
}
TASKS = (
    *("background_change", "color_alter", "style_change", "subject-add", "subject-remove", "subject-replace", "material_alter"),
    *("motion_change", "ps_human", "text_change", "tone_transfer", "extract", "compose"),
)
TASK_GROUPS = {
    "object": ("subject-add", "subject-remove", "subject-replace"),
    "appearance": ("color_alter", "material_alter", "style_change", "tone_transfer"),
    "scene": ("background_change", "extract"),
    "advanced": ("ps_human", "text_change", "motion_change", "compose"),
}


def load_editscore_bench(data: Path, *, images: Path | None, with_images: bool) -> list[Row]:
    """Return the rows of the Hub's dataset: a file, or a folder of Arrow or Parquet files. Raise DataError for a malformed row,
    MediaError with the images that are missing."""
    rows = (checked(_row(number, fields, where), where) for number, fields, where in data_rows(_files(data)))
    folder = images or (data if data.is_dir() else data.parent)
    return load_media(rows, folder, "EditScore's EditReward-Bench", with_images=with_images)


def _files(data: Path) -> list[Path]:
    """Return the data files; of a folder without the listing that ``datasets`` writes, its Arrow files by name."""
    shards = sorted(data.rglob("*.arrow")) if data.is_dir() and not saved_dataset_files(data) else []
    return shards or [data]


def _row(number: int, fields: Mapping[str, Any], where: str) -> MediaRow:
    try:
        instruction, task, dimension = (text_of(fields, name) for name in ("instruction", "task_type", "dimension"))
        source, outputs = medium_of(fields["input_image"], "input_image"), fields["output_images"]
        if dimension not in DIMENSIONS:
            raise ValueError(f"'dimension' is {dimension!r}; expected one of {', '.join(DIMENSIONS)}")
        if len(outputs) != 2 or len(fields["key"]) != 2:
            raise ValueError("'key' and 'output_images' must have two values each")
        first, second = (medium_of(image, "output_images") for image in outputs)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{where}: not a row of EditScore's EditReward-Bench ({reason(error, fields)})") from error
    question = f"{IMAGE_MARK}\nEdit this image: {instruction}{_CRITERIA[dimension]}"
    pair_id = f"{'-'.join(map(str, fields['key']))}-{dimension}"
    pair = PreferencePair(pair_id, question, (IMAGE_MARK, IMAGE_MARK), 0, category=dimension, source="editscore_bench")
    row = Row(number, pair, dimension, f"{task}/{instruction}", {"task": task})
    return MediaRow(row, (source,), ((first,), (second,)))


def score_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what the scorer prints of rows with ``task_type``, ``dimension``, and ``score`` of the better and worse edit."""
    tasks = sorted({row["task_type"] for row in rows})
    accuracies = {name: _by_task([row for row in rows if row["dimension"] == name], tasks) for name in DIMENSIONS}
    columns = [task for task in (*TASKS, "average") if any(task in accuracies[name] for name in DIMENSIONS)]
    lines = [str(tasks), f"dict_keys({[*tasks, 'average']})", " & ".join(columns)]
    for name, title in DIMENSIONS.items():
        lines.append(f"{title}: " + " & ".join(f"{accuracies[name].get(task, np.nan):.3f}" for task in columns))
    lines += ["-" * 32, "-" * 32]
    heading = " & ".join(DIMENSIONS.values())
    for group, of_group in TASK_GROUPS.items():
        if set(of_group) <= set(columns):
            means = [np.mean([accuracies[name].get(task, np.nan) for task in of_group]) for name in DIMENSIONS]
            lines += [f"{group}:", heading, " & ".join(f"{mean:.3f}" for mean in means)]
    if "average" in columns:
        lines += ["Average:", heading, " & ".join(f"{accuracies[name].get('average', np.nan):.3f}" for name in DIMENSIONS)]
    for name, title in DIMENSIONS.items():
        scores = [score for task in tasks for row in rows for score in row["score"][:2] if _is_of(row, task, name)]
        if scores:
            facts = (np.min(scores), np.max(scores), np.mean(scores), np.std(scores))
            lines += [f"{title} Scores:", "Min & Max & Mean & Std", " & ".join(f"{fact:.3f}" for fact in facts)]
    return lines


def _is_of(row: Mapping[str, Any], task: str, dimension: str) -> bool:
    return (row["task_type"], row["dimension"]) == (task, dimension)


def _by_task(rows: Sequence[Mapping[str, Any]], tasks: Sequence[str]) -> dict[str, float]:
    """Return the fraction of right pairs of each task that has any, and their average."""
    right = {task: [row["score"][0] > row["score"][1] for row in rows if row["task_type"] == task] for task in tasks}
    table = {task: sum(flags) / len(flags) for task, flags in right.items() if flags}
    return table | ({"average": sum(table.values()) / len(table)} if table else {})


def scores_of_votes(rows: Sequence[Row], judgments: Sequence[Judgment], verdict_format: str, seed: int) -> list[Any]:
    """Return the share of votes for each edit, both orders weighing the same, in place of a model's scores."""
    records = []
    for row, judgment in zip(rows, judgments, strict=True):
        share = share_of_valid(judgment.votes)
        score = [0.0, 0.0] if share is None else [share, 1 - share]
        records.append({"idx": row.row, "task_type": row.slices["task"], "dimension": row.group, "score": score})
    return records


BENCHMARK = Benchmark(
    name="editscore_bench",
    load=load_editscore_bench,
    files=BenchmarkFiles(repo="EditScore/EditReward-Bench", media="images are inside", suffixes=(".arrow", ".parquet")),
    scorers={
        "editscore_bench": OfficialScorer(
            lambda rows, data: score_lines(rows),
            "JSON lines with task_type, dimension and score: those of its result folder, with the names of folder and file",
        )
    },
    export=Export(scores_of_votes, lambda rows, records: score_lines(records)),
)
