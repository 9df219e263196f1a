"""Multimodal RewardBench 2 (arXiv 2512.16899): 4 x 1,000 pairs of answers with images in them.

Four tasks, one file each: images from text, edits, interleaved answers, reasoning with images. The files in circulation have
the answers and labels; prompts and images come from the benchmark's own builder, and a judge that looks needs its output.

Multimodal RewardBench 2's ``compute_accuracy.py``: both orders of every pair, each a trial of its own.

Quirks, kept because published numbers have them:

- *Missing trials shrink the denominator.* A pair without a prediction, an order without one, and a first judgement that is
  empty are left out: a judge that fails on the hard pairs gains by it.
- *Any other word is wrong.* "tie" or "A better" is a trial that was not won.
- *One judgement.* Of several per order only the first counts; there is no vote.

Its overall figure is over the trials of all tasks, not the mean of the tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rewardlab.benchmarks.base import Benchmark, BenchmarkFiles, Export, OfficialScorer, Row
from rewardlab.benchmarks.data_files import reason, whole_json
from rewardlab.benchmarks.media import check_media
from rewardlab.data.images import read_image
from rewardlab.data.rows import validate
from rewardlab.errors import ConfigError, DataError
from rewardlab.types import IMAGE_MARK, Choice, Judgment, Order, PreferencePair, Rating
from rewardlab.verdicts.votes import in_order

_FLIPPED = {"A": "B", "B": "A"}
TASKS = {"t2i": "task1_image", "edit": "task2_edit", "interleaved": "task3_interleaved", "reasoning": "task4_reasoning"}


@dataclass(frozen=True)
class TaskScore:
    """``correct`` of ``trials``; pairs in the benchmark, with and without a prediction."""

    task: str
    pairs: int
    missing: int
    correct: int
    trials: int

    @property
    def accuracy(self) -> float:
        """0 where there is no trial, as there."""
        return self.correct / self.trials if self.trials else 0.0

    def lines(self) -> list[str]:
        """Return the lines that the scorer prints of one task."""
        rule = "=" * 50
        lines = ["", rule, f"Task: {self.task}", rule, f"Total pairs: {self.pairs}"]
        lines += [f"Evaluated: {self.pairs - self.missing}", f"Missing: {self.missing}"]
        return [*lines, f"Accuracy: {self.accuracy:.4f} ({self.accuracy * 100:.2f}%)", rule]


def score_task(pairs: Sequence[Mapping[str, Any]], predictions: Mapping[str, Any], task: str) -> TaskScore:
    """``pairs`` are those of the benchmark file (``id``, ``chosen``), ``predictions[id]`` has lists ``forward`` and ``reverse``
    of objects with ``judgement``."""
    missing = correct = trials = 0
    for pair in pairs:
        if pair["id"] not in predictions:
            missing += 1
            continue
        orders = predictions[pair["id"]]
        for order in ("forward", "reverse"):
            letter = orders[order][0].get("judgement") if orders.get(order) else None
            if letter:
                trials += 1
                correct += (_FLIPPED.get(letter, letter) if order == "reverse" else letter) == pair["chosen"]
    return TaskScore(task, len(pairs), missing, correct, trials)


def overall(scores: Sequence[TaskScore]) -> float:
    """Over the trials of all tasks, 0..1."""
    trials = sum(score.trials for score in scores)
    return sum(score.correct for score in scores) / trials if trials else 0.0


def summary_lines(scores: Sequence[TaskScore]) -> list[str]:
    """Return the lines with which the scorer sums up several tasks."""
    double, single = "=" * 50, "-" * 50
    lines = ["", double, "SUMMARY", double, f"{'Task':<25} {'Accuracy':<12} Missing", single]
    lines += [f"{score.task:<25} {score.accuracy * 100:>6.2f}%      {score.missing}" for score in scores]
    return [*lines, single, f"{'Overall':<25} {overall(scores) * 100:>6.2f}%", double]


def predictions_of_votes(
    rows: Sequence[Row], judgments: Sequence[Judgment], verdict_format: str, seed: int
) -> dict[str, dict[str, list[Any]]]:
    """Return the first vote of each pair in each order; one without a verdict is no judgement."""
    predictions = {}
    for row, judgment in zip(rows, judgments, strict=True):
        orders = {}
        for name, order in (("forward", Order.GIVEN), ("reverse", Order.SWAPPED)):
            votes = in_order(judgment.votes, order)[:1]
            letters = ["A" if vote.verdict.choice is Choice.FIRST else "B" for vote in votes if vote.verdict.choice]
            orders[name] = [{"judgement": letter, "evaluator": "rewardlab", "metadata": {}} for letter in letters]
        predictions[row.pair.pair_id] = orders
    return predictions


def task_lines(rows: Sequence[Row], predictions: Any) -> list[str]:
    """Return what the scorer prints on exported predictions: each task, and a summary of several."""
    tasks: dict[str, list[dict[str, str]]] = {row.group: [] for row in rows}
    for row in rows:
        tasks[row.group].append({"id": row.pair.pair_id, "chosen": "A" if row.pair.preferred == 0 else "B"})
    return _all_lines([score_task(pairs, predictions, TASKS[name]) for name, pairs in tasks.items()])


def lines_of_predictions(predictions: Any, data: Path | None) -> list[str]:
    """Return what the scorer prints on a predictions file and the labels of ``data``. Raise ConfigError without ``data``."""
    if data is None:
        raise ConfigError("mmrb2 is scored against its labels: name the task's benchmark file with --data")
    tasks = task_files(data)  # one task's file, or the folder of all
    return _all_lines([score_task(pairs_in(path), predictions, TASKS[task]) for path, task in tasks])


def _all_lines(scores: Sequence[TaskScore]) -> list[str]:
    """The lines of each task and, as the scorer's ``--task all`` has it, a summary of several."""
    return [line for score in scores for line in score.lines()] + (summary_lines(scores) if len(scores) > 1 else [])


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
        models = (str(fields["response_a"]["model_name"]), str(fields["response_b"]["model_name"]))
        question = _text(fields["prompt_content"]) if "prompt_content" in fields else UNKNOWN
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{where}: expected id, response_a, response_b and chosen A or B ({reason(error, fields)})") from error
    if with_images and question == UNKNOWN:
        raise DataError(
            f"{where}: has no prompt; build the benchmark with its own script (build_from_hf.py) and give its output"
        )
    source = str(fields.get("prompt_source", "unknown"))
    responses, ratings = (answers[0], answers[1]), ratings_in(fields, where)
    pair = PreferencePair(str(fields["id"]), question, responses, preferred, (), task, source, ratings=ratings, systems=models)
    validate(pair, where=where)
    slices = {"source": f"{task}/{source}", "models": "one model" if models[0] == models[1] else "two models"}
    return Row(number, pair, task, f"{source}/{(fields.get('prompt_metadata') or {}).get('id', fields['id'])}", slices)


def ratings_in(fields: Mapping[str, Any], where: str) -> tuple[Rating, ...]:
    """Return the three people's ratings of a pair: 1 to 6, of which 4 to 6 are for A. Raters are named by their place in the
    file. The reasoning task has letters for single answers, which rate no pair. Raise DataError for other numbers."""
    values = fields.get("human_annotations")
    if not isinstance(values, list):
        return ()
    if not all(type(value) is int and 1 <= value <= 6 for value in values):
        raise DataError(f"{where}: human_annotations is {values!r:.60}; expected whole numbers from 1 to 6")
    return tuple(Rating(f"rater {place}", int(value < 4)) for place, value in enumerate(values, start=1))


def _seen(row: Row, fields: Mapping[str, Any], folder: Path) -> Row:
    def read(content: Content) -> tuple[bytes, ...]:
        return tuple(read_image(folder / name) for name in _images(content))

    response_images = (read(fields["response_a"]["response_content"]), read(fields["response_b"]["response_content"]))
    return replace(row, pair=replace(row.pair, images=read(fields["prompt_content"]), response_images=response_images))


_FOLDER = "https://raw.githubusercontent.com/facebookresearch/MMRB2/main/benchmark"

BENCHMARK = Benchmark(
    name="mmrb2",
    load=load_mmrb2,
    sizes=dict.fromkeys(TASKS, 1000),
    first_preferred={"t2i": 532, "edit": 555, "interleaved": 575, "reasoning": 475},
    origins=(
        "EvalMuse",
        "OneIG-Bench",
        "R2I-Bench",
        "WISE",
        "RealUnify",
        "Emu-Edit",
        "DreamBench",
        "RISEBench",
        "ISG-Bench",
        "BLINK",
        "MuirBench",
        "VStar",
    ),
    files=BenchmarkFiles(
        urls={f"{task}_response_only.json": f"{_FOLDER}/{task}_response_only.json" for task in TASKS},
        sha256={
            "t2i_response_only.json": "b07eb7010934f475ea6e9195f9113c94911b99140b41ba59f9839771df714d8f",
            "edit_response_only.json": "c4c500c75742be4cafe0e48a6a27ee22089125f599baf970ccf783932cab416b",
            "interleaved_response_only.json": "8f71e0d699814715dc271bd83ee75eabedea3e9c420cb11dc98e4f7c591fa6f1",
            "reasoning_response_only.json": "f709e7cb72780c76ace483f38571f60f00ec2b5822f2ef91288915eb0ada732b",
        },
        media="prompts and images are added by build_from_hf.py of facebookresearch/MMRB2; give its output to bench run",
    ),
    scorers={"mmrb2": OfficialScorer(lines_of_predictions, "its predictions.json, and --data", is_object=True)},
    export=Export(predictions_of_votes, task_lines),
)
