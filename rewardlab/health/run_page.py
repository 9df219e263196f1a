"""The page of a training run, from the files in its folder and the data it was trained on."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rewardlab.data.columns import ALL
from rewardlab.data.files import complete_lines, read_complete_lines, write_atomic
from rewardlab.data.images import thumbnail, to_data_url
from rewardlab.data.pair_table import PairTable, pair_facts
from rewardlab.errors import DataError, InputError
from rewardlab.models.model_config import video_policy_of
from rewardlab.reporting.run_page import (
    PairsOfRun,
    RolloutPair,
    TrainingRun,
    newest_ids,
    rollouts_by_step,
    run_page,
    steps_to_show,
)
from rewardlab.rewards.policy_signs.trends import bounds_of_signs, early_sentence
from rewardlab.types import PreferencePair

PAGE = "run.html"
PICTURE_PX = 320  # the longer side
MOST_OF_A_PAIR, MOST_PICTURES = 4, 160  # 160 of them are about 3 MB


def write_run_page(run: Path, *, data: Path | None = None, images: Path | None = None) -> Path:
    """Write ``run/run.html`` and return its path. Raise DataError if ``run`` is not the folder of a training run.

    ``data``: the pairs it was trained on, with media below ``images``, if they have moved; raise DataError or MediaError if
    these are other pairs or cannot be read.
    """
    if not (run / "run.json").exists():
        raise DataError(f"{run}: not a training run (no run.json in it); give the --out of sft, rl, rm, prm or policy")
    record = json.loads((run / "run.json").read_text(encoding="utf-8"))
    samples, metrics = _samples_to_show(run / "samples.jsonl"), read_complete_lines(run / "metrics.jsonl")
    limits = record["config"].get("signs") or {}  # of a policy
    page = run_page(
        TrainingRun(
            name=run.name,
            config=record["config"],
            commit=record["commit"],
            versions=record["versions"],
            is_finished=(run / "final").exists(),
            metrics=metrics,
            events=read_complete_lines(run / "health.jsonl"),
            samples=samples,
            evaluation=record.get("evaluation"),
            pairs=pairs_of_run(run, record, newest_ids(rollouts_by_step(samples)), data=data, images=images),
            bounds=bounds_of_signs(metrics, limits),
            too_early=early_sentence(metrics) if limits else "",
        )
    )
    write_atomic(run / PAGE, page)
    return run / PAGE


def _samples_to_show(path: Path) -> list[dict[str, Any]]:
    """Return the rollouts of the steps on the page, without loading all of a long run."""
    steps = set(steps_to_show(row["step"] for row in complete_lines(path)))
    return [row for row in complete_lines(path) if row["step"] in steps]


def pairs_of_run(
    run: Path, record: Mapping[str, Any], pair_ids: Sequence[str], *, data: Path | None = None, images: Path | None = None
) -> PairsOfRun:
    """Return the pairs of these ids from the data that ``record`` (``run.json``) names, or from ``data`` with media below
    ``images``. The first ids have images, up to :data:`MOST_PICTURES`. Pairs that share an id are left out.

    If the data cannot be read, or are not those of the run, a note says so; with ``data`` raise DataError or MediaError.
    """
    if not pair_ids:
        return PairsOfRun()
    source = record.get("data_files") or {}
    if data is None and not source.get("path"):
        return _without(run, "the run does not record the file that it was trained on")
    path = data or Path(source["path"])
    folder = images if data or images else Path(source["images"]) if source.get("images") else None
    try:
        return _of_table(_open(path, folder, record), pair_ids)
    except InputError as error:
        if data:
            raise
        return _without(run, str(error))


def _without(run: Path, why: str) -> PairsOfRun:
    return PairsOfRun(note=f"Questions and images are not shown: {why}; `rewardlab show {run} --data FILE` adds them.")


def _open(path: Path, images: Path | None, record: Mapping[str, Any]) -> PairTable:
    config = record["config"]
    table = PairTable(
        path,
        images=images,
        frames=config["frames"],
        policy=partial(video_policy_of, config["model"]),
        allow_columns=(ALL,),
        allow_without_images=True,
    )
    if not record["data"].startswith(table.fingerprint):
        raise DataError(f"{path}: not the pairs that the run was trained on, or they have changed since")
    return table


def _of_table(table: PairTable, pair_ids: Sequence[str]) -> PairsOfRun:
    facts = pair_facts(table)
    counts = Counter(fact.pair_id for fact in facts)
    numbers = {fact.pair_id: number for number, fact in enumerate(facts) if counts[fact.pair_id] == 1}
    by_id: dict[str, RolloutPair] = {}
    pictures: dict[str, int] = {}
    unreadable = 0
    for pair_id in pair_ids:
        if pair_id in numbers:
            try:
                by_id[pair_id] = _pair_with(pictures, table[numbers[pair_id]])
            except (InputError, OSError):  # one file that is gone hides its own pair alone
                unreadable += 1
    missing = len(pair_ids) - len(by_id) - unreadable
    notes = [f"{missing:,} pairs are not shown: their pair_id is not in {table.path}, or not only once."] if missing else []
    notes += [f"{unreadable:,} pairs are not shown: their media cannot be read."] if unreadable else []
    return PairsOfRun(by_id, tuple(pictures), " ".join(notes))


def _pair_with(pictures: dict[str, int], pair: PreferencePair) -> RolloutPair:
    """Return a pair and add its images to ``pictures`` (data URL -> index), the question's first, evenly spread if too many."""
    most = min(MOST_OF_A_PAIR, MOST_PICTURES - len(pictures))
    left, sets = most, []
    for images in (pair.images, *pair.response_images):
        chosen = _spread(images, left)
        left -= len(chosen)
        urls = (to_data_url(thumbnail(image, PICTURE_PX)) for image in chosen)
        sets.append(tuple(pictures.setdefault(url, len(pictures)) for url in urls))
    total = len(pair.images) + sum(map(len, pair.response_images))
    return RolloutPair(pair.question, pair.responses, pair.preferred, sets[0], (sets[1], sets[2]), total - most + left)


def _spread(images: Sequence[bytes], most: int) -> list[bytes]:
    if len(images) <= most:
        return list(images)
    return [images[round(n * (len(images) - 1) / max(1, most - 1))] for n in range(most)]
