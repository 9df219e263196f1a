"""MM-RLHF-RewardBench (arXiv 2502.10391): 170 pairs of 46 prompts about images and videos.

Five categories by the path of the medium. Beside the accuracy over pairs, Acc+ is the share of prompts whose every pair is
right; with 46 of them its interval is wide. Rows share ids, so nothing is keyed by id here: a resume by id drops rows.

MM-RLHF-RewardBench's scorer, and R1-Reward's copy of it: Acc over pairs, Acc+ over ids of which every pair is right.

Made for scalar rewards: no order, no parser. Quirks, kept because published numbers have them:

- *Categories by path.* The first of mcq, long, short, safety, video that is a part of the image's or video's path; a path with
  none is in the overall figures only.
- *Two ways to count ids.* An id that is right as a whole counts for the first category found in any of its paths, but the
  number of ids of a category is of those with the word in any path: where a path holds two of the words, Acc+ is too low.
- *Two digits.* Acc is printed as 0.72 where 71.76 % is meant.

- *Undivided*: a category that no row is counted in keeps its numbers of hits, which are above 0 where an image's path has no
  word and a video's beside it has.

Equal rewards are wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rewardlab.benchmarks.base import Benchmark, BenchmarkFiles, Export, OfficialScorer, Row
from rewardlab.benchmarks.data_files import json_rows, reason
from rewardlab.benchmarks.media import NUM_FRAMES, check_media, read_media, read_within
from rewardlab.data.qwen_video import VideoPolicy
from rewardlab.data.rows import validate
from rewardlab.data.video import is_video
from rewardlab.errors import DataError
from rewardlab.types import Judgment, PreferencePair
from rewardlab.verdicts.votes import share_of_valid


def load_mm_rlhf(data: Path, *, images: Path | None, with_images: bool, policy: VideoPolicy | None = None) -> list[Row]:
    """Return the rows of the JSON lines ``id, image | video, prompt, chosen, rejected``. Response 0 is ``chosen``.

    Raise DataError for a malformed row, MediaError with the media that are missing.
    """
    lines = json_rows(data, "MM-RLHF-RewardBench as JSON lines")
    rows = [_row(number, fields, where) for number, (fields, where) in enumerate(lines)]
    folder = images or data.parent
    if not with_images:
        return [replace(row, media=partial(read_within, folder, name)) for row, name in rows]
    check_media((name for _, name in rows), folder, "MM-RLHF-RewardBench")
    return [
        replace(
            row,
            pair=replace(row.pair, images=read_media(folder / name, policy=policy)),
            num_videos=int(is_video(folder / name)),
        )
        for row, name in rows
    ]


def is_mm_rlhf_row(fields: Mapping[str, Any]) -> bool:
    """Return whether a row is of this benchmark, by the category in the path of its medium."""
    media = [fields.get(name) for name in ("image", "video") if fields.get(name)]
    return bool(media) and all(isinstance(name, str) for name in media) and path_category(fields) is not None


def _row(number: int, fields: Mapping[str, Any], where: str) -> tuple[Row, str]:
    try:
        medium, texts = fields.get("image") or fields["video"], (fields["prompt"], fields["chosen"], fields["rejected"])
        if not all(isinstance(text, str) for text in (medium, *texts)):
            raise TypeError("one of them is not a string")
        row_id = str(fields["id"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{where}: expected a JSON object with id, image or video, prompt, chosen, rejected ({reason(error, fields)})"
        ) from error
    group = path_category(fields) or "other"
    pair = PreferencePair(f"{row_id}#{number}", texts[0], (texts[1], texts[2]), 0, category=group, source="mm_rlhf")
    validate(pair, where=where)
    slices = {"medium": "image" if fields.get("image") else "video"}
    return Row(number, pair, group, row_id, slices, medium), medium


CATEGORIES = ("mcq", "long", "short", "safety", "video")


def _paths(row: Mapping[str, Any]) -> tuple[str, str]:
    return row.get("image", ""), row.get("video", "")


def path_category(row: Mapping[str, Any]) -> str | None:
    image, video = _paths(row)
    return next((word for word in CATEGORIES if word in (image or video)), None)


def score_rewards(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """``accuracy`` and ``acc_plus`` (0..1) and ``total`` of each category and of ``overall``.

    A row: ``id``, ``image`` or ``video``, ``rewards`` of the chosen and the rejected answer.
    """
    by_id: dict[Any, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_id.setdefault(row.get("id", ""), []).append(row)
    right = {id(row): row["rewards"][0] > row["rewards"][1] for row in rows}
    all_right = [group for group in by_id.values() if all(right[id(row)] for row in group)]
    table = {}
    for word in CATEGORIES:
        total = sum(path_category(row) == word for row in rows)
        hits = sum(right[id(row)] for row in rows if _first(row) == word)
        plus = sum(_first_of(group) == word for group in all_right)
        ids = sum(any(word in image + video for image, video in map(_paths, group)) for group in by_id.values())
        table[word] = {"accuracy": hits / total, "acc_plus": plus / ids} if total else {"accuracy": hits, "acc_plus": plus}
        table[word]["total"] = total
    overall = {"accuracy": sum(right.values()) / len(rows), "acc_plus": len(all_right) / len(by_id)} if rows else {}
    return {**table, "overall": {"accuracy": 0, "acc_plus": 0, **overall, "total": len(rows)}}


def _first(row: Mapping[str, Any]) -> str | None:
    """The first word that is in either path."""
    image, video = _paths(row)
    return next((word for word in CATEGORIES if word in image or word in video), None)


def _first_of(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """The first word that is in any path of an id."""
    return next((word for word in CATEGORIES if any(word in path for row in rows for path in _paths(row))), None)


def reward_lines(table: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return the lines that the scorer prints."""
    lines = ["", "Category-wise Metrics:"]
    for word in CATEGORIES:
        cell = table[word]
        lines += [f"Category: {word}", f"  Accuracy: {cell['accuracy']:.2f}", f"  ACC+: {cell['acc_plus']:.2f}"]
        lines.append(f"  Total: {cell['total']}")
    cell = table["overall"]
    lines += ["", "Overall Metrics:", f"Overall Accuracy: {cell['accuracy']:.2f}", f"Overall ACC+: {cell['acc_plus']:.2f}"]
    return [*lines, f"Total Items: {cell['total']}"]


def rewards_of_votes(rows: Sequence[Row], judgments: Sequence[Judgment], verdict_format: str, seed: int) -> list[Any]:
    """Return the share of votes for each answer, both orders weighing the same, in place of a scalar model's rewards."""
    records = []
    for row, judgment in zip(rows, judgments, strict=True):
        share = share_of_valid(judgment.votes)
        rewards = [0.0, 0.0] if share is None else [share, 1 - share]
        records.append({"id": row.cluster, row.slices["medium"]: row.medium, "rewards": rewards})
    return records


BENCHMARK = Benchmark(
    name="mm_rlhf",
    load=load_mm_rlhf,
    load_videos=load_mm_rlhf,
    frames=NUM_FRAMES,
    sizes={"mcq": 42, "long": 37, "short": 34, "safety": 32, "video": 25},
    whole_prompts=True,
    num_prompts=46,
    origins=("MM-RLHF",),
    files=BenchmarkFiles(
        urls={
            "mm_reward_bench.jsonl": "https://raw.githubusercontent.com/yfzhang114/r1_reward/main/inference/"
            "MM-RLHF-Reward/mm_reward_bench.jsonl"
        },
        sha256={"mm_reward_bench.jsonl": "6d7b3589750b8837b54291b601220cdb000593a17b8bb1b81de298e5ebe772b9"},
        media="images, and folders of video frames, come with the release of Kwai-YuanQi/MM-RLHF",
    ),
    is_row=is_mm_rlhf_row,
    scorers={
        "mm_rlhf": OfficialScorer(
            lambda rows, data: reward_lines(score_rewards(rows)), "JSON lines with id, image or video, rewards"
        )
    },
    export=Export(rewards_of_votes, lambda rows, records: reward_lines(score_rewards(records))),
)
