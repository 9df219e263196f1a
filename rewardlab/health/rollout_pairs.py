"""The pairs that a run's rollouts answer, read from the data that it was trained on: questions, responses, small images."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rewardlab.data.columns import ALL
from rewardlab.data.images import thumbnail, to_data_url
from rewardlab.data.pair_table import PairTable, pair_facts
from rewardlab.errors import DataError, InputError
from rewardlab.models.model_config import video_policy_of
from rewardlab.reporting.rollouts import PairsOfRun, ShownPair
from rewardlab.types import PreferencePair

PICTURE_PX = 320  # the longer side; on the page it stands smaller, and opens in full
MOST_OF_A_PAIR, MOST_PICTURES = 4, 160  # 160 of them are about 3 MB


def pairs_of_run(
    run: Path, record: Mapping[str, Any], pair_ids: Sequence[str], *, data: Path | None = None, images: Path | None = None
) -> PairsOfRun:
    """Return the pairs of these ids, each of them once: of the data that ``record`` (``run.json``) names, or of ``data`` with
    media below ``images``. The first ids have images, as long as there is room for them.

    Data that cannot be read, or are not those the run was trained on, are a note; raise DataError or MediaError for them where
    ``data`` is given. Pairs that share their id are left out: which of them a rollout answers is not known.
    """
    if not pair_ids:
        return PairsOfRun()
    source = record.get("data_files") or {}
    if data is None and not source.get("path"):
        return _without(run, "the run does not say which file it was trained on")
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
    """Return the pairs of these ids, with images for the first of them as long as there is room."""
    facts = pair_facts(table)
    counts = Counter(fact.pair_id for fact in facts)
    numbers = {fact.pair_id: number for number, fact in enumerate(facts) if counts[fact.pair_id] == 1}
    by_id: dict[str, ShownPair] = {}
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


def _pair_with(pictures: dict[str, int], pair: PreferencePair) -> ShownPair:
    """Return a pair whose images are added to ``pictures``, by their number: those of the question first; of more than there is
    room for, as of frames, evenly spread ones."""
    most = min(MOST_OF_A_PAIR, MOST_PICTURES - len(pictures))
    left, sets = most, []
    for images in (pair.images, *pair.response_images):
        chosen = _spread(images, left)
        left -= len(chosen)
        urls = (to_data_url(thumbnail(image, PICTURE_PX)) for image in chosen)
        sets.append(tuple(pictures.setdefault(url, len(pictures)) for url in urls))
    total = len(pair.images) + sum(map(len, pair.response_images))
    return ShownPair(pair.question, pair.responses, pair.preferred, sets[0], (sets[1], sets[2]), total - most + left)


def _spread(images: Sequence[bytes], most: int) -> list[bytes]:
    if len(images) <= most:
        return list(images)
    return [images[round(n * (len(images) - 1) / max(1, most - 1))] for n in range(most)]
