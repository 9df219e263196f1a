"""Multimodal RewardBench 2 (arXiv 2512.16899): 4 x 1,000 pairs of answers with images in them.

Four tasks, one file each: images from text, edits, interleaved answers, reasoning with images. The files in circulation have
the answers and labels; prompts and images come from the benchmark's own builder, and a judge that looks needs its output.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rewardlab.benchmarks.base import Row
from rewardlab.benchmarks.data_files import reason, whole_json
from rewardlab.benchmarks.media import check_media
from rewardlab.data.images import read_image
from rewardlab.data.rows import validate
from rewardlab.errors import DataError
from rewardlab.types import IMAGE_MARK, PreferencePair

TASKS = ("t2i", "edit", "interleaved", "reasoning")
UNKNOWN = "(the prompt is not in this file)"  # of files before the builder; only judges that do not look are shown it
Content = Sequence[Sequence[str]]


def load_mmrb2(data: Path, *, images: Path | None, with_images: bool) -> list[Row]:
    """Return the rows of one task's JSON, or of a folder of them (``t2i.json`` or ``t2i_response_only.json``, ...). Response 0
    is A.

    Raise DataError for a file of another shape or without prompts for a judge that looks, MediaError for missing images.
    """
    raw = [(pair, task, path) for path, task in task_files(data) for pair in pairs_in(path)]
    rows = [_row(pair, task, number, path, with_images) for number, (pair, task, path) in enumerate(raw)]
    if not with_images:
        return rows
    folder = images or (data if data.is_dir() else data.parent)
    check_media((name for pair, _, _ in raw for name in _names(pair)), folder, "Multimodal RewardBench 2")
    return [_seen(row, pair, folder) for row, (pair, _, _) in zip(rows, raw, strict=True)]


def task_files(data: Path) -> list[tuple[Path, str]]:
    """Return (file, task) of a file or a folder. Raise DataError if no task can be told."""
    if data.is_dir():
        present = [
            (path, task)
            for task in TASKS
            for path in (data / f"{task}.json", data / f"{task}_response_only.json")
            if path.is_file()
        ]
        files = {task: path for path, task in reversed(present)}  # the built file before the one with answers alone
        if files:
            return [(files[task], task) for task in TASKS if task in files]
    task = next((task for task in TASKS if data.name.startswith(task)), None)
    if task is None or not data.is_file():
        raise DataError(
            f"{data}: expected a task of Multimodal RewardBench 2 ({', '.join(f'{t}.json' for t in TASKS)}) or a folder"
        )
    return [(data, task)]


def pairs_in(path: Path) -> list[dict[str, Any]]:
    """Return the ``pairs`` of a file. Raise DataError."""
    expected = "a JSON object with a list 'pairs'"
    values = whole_json(path, expected)
    pairs = values.get("pairs") if isinstance(values, dict) else None
    if not isinstance(pairs, list) or not all(isinstance(pair, dict) for pair in pairs):
        raise DataError(f"{path}: expected {expected}, each of them an object")
    return pairs


def _text(content: Content) -> str:
    return "\n".join(IMAGE_MARK if kind == "image" else text.replace(IMAGE_MARK, "") for kind, text in content)


def _images(content: Content) -> Iterator[str]:
    return (name for kind, name in content if kind == "image")


def _names(pair: Mapping[str, Any]) -> Iterator[str]:
    for content in (pair["prompt_content"], *(pair[side]["response_content"] for side in ("response_a", "response_b"))):
        yield from _images(content)


def _row(fields: Mapping[str, Any], task: str, number: int, path: Path, with_images: bool) -> Row:
    where = f"{path}, pair {fields.get('id', number)}"
    try:
        answers = tuple(_text(fields[side]["response_content"]) for side in ("response_a", "response_b"))
        preferred = {"A": 0, "B": 1}[fields["chosen"]]
        models = tuple(fields[side]["model_name"] for side in ("response_a", "response_b"))
        question = _text(fields["prompt_content"]) if "prompt_content" in fields else UNKNOWN
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{where}: expected id, response_a, response_b and chosen A or B ({reason(error, fields)})") from error
    if with_images and question == UNKNOWN:
        raise DataError(
            f"{where}: has no prompt; build the benchmark with its own script (build_from_hf.py) and give its output"
        )
    source = str(fields.get("prompt_source", "unknown"))
    pair = PreferencePair(str(fields["id"]), question, (answers[0], answers[1]), preferred, category=task, source=source)
    validate(pair, where=where)
    slices = {"source": f"{task}/{source}", "models": "one model" if models[0] == models[1] else "two models"}
    return Row(number, pair, task, f"{source}/{(fields.get('prompt_metadata') or {}).get('id', fields['id'])}", slices)


def _seen(row: Row, fields: Mapping[str, Any], folder: Path) -> Row:
    def read(content: Content) -> tuple[bytes, ...]:
        return tuple(read_image(folder / name) for name in _images(content))

    response_images = (read(fields["response_a"]["response_content"]), read(fields["response_b"]["response_content"]))
    return replace(row, pair=replace(row.pair, images=read(fields["prompt_content"]), response_images=response_images))
