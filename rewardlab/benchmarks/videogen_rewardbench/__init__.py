"""VideoGen-RewardBench (arXiv 2501.13918): 26.5 thousand pairs of generated videos, labelled A, B or same.

The label of a pair is ``Overall``; those of visual quality (VQ), motion quality (MQ) and text alignment (TA) are read by the
official scorer alone. Response 0 is A. From the public code (KwaiVGI/VideoAlign, ``eval_videogen_rewardbench.py``) and the
Hub's card: the file ``videogen-rewardbench.csv`` and its columns. Guessed: nothing; the exact number of rows is not known.

The scorer takes a reward of either video and dimension (``calc_accuracy.py``). Quirks, kept because published numbers have
them:

- *A fitted threshold.* With ties, two rewards are a tie if they differ by no more than a threshold, and the threshold is the
  one that gives the best accuracy on these very labels (arXiv 2305.14324).
- *Equal differences are not moved together.* Of pairs with the same absolute difference, those later in the file still count
  as decided: a judge that gives few distinct rewards gets more thresholds than it has differences, and its accuracy depends on
  the order of the file. At least one pair is always called a tie.
- *Equal rewards are wrong* without ties, which leaves out the pairs whose label is a tie and no others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rewardlab.benchmarks.base import Benchmark, BenchmarkFiles, Export, OfficialScorer, Row
from rewardlab.benchmarks.data_files import reason
from rewardlab.benchmarks.media_answers import MediaRow, checked, data_rows, labelled_pair, load_media, medium_of, text_of
from rewardlab.data.qwen_video import VideoPolicy
from rewardlab.data.rows import FRAMES, systems_of
from rewardlab.errors import DataError
from rewardlab.types import IMAGE_MARK, Judgment, Tie
from rewardlab.verdicts.votes import share_of_valid

LABELS: dict[str, int | Tie] = {"A": 0, "B": 1, "same": Tie.TIE}
DIMENSIONS = ("VQ", "MQ", "TA", "Overall")
FILE = "videogen-rewardbench.csv"
GROUP = "overall quality"


def load_videogen_rewardbench(
    data: Path, *, images: Path | None, with_images: bool, policy: VideoPolicy | None = None
) -> list[Row]:
    """Return the rows of the CSV, or of the folder that holds it: ``path_A, path_B, prompt, Overall``.

    Raise DataError for a malformed row, MediaError with the videos that are missing.
    """
    file = data / FILE if data.is_dir() else data
    rows = (checked(_row(number, fields, where), where) for number, fields, where in data_rows([file]))
    return load_media(rows, images or file.parent, "VideoGen-RewardBench", with_images=with_images, policy=policy)


def _row(number: int, fields: Mapping[str, Any], where: str) -> MediaRow:
    try:
        first, second = (medium_of(fields[column], column) for column in ("path_A", "path_B"))
        prompt, label = text_of(fields, "prompt"), text_of(fields, "Overall")
        if label not in LABELS:
            raise ValueError(f"'Overall' is {label!r}; expected one of {', '.join(LABELS)}")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{where}: expected path_A, path_B, prompt, Overall ({reason(error, fields)})") from error
    source = "videogen_rewardbench"
    systems = systems_of((fields.get("A_model"), fields.get("B_model")), where)
    pair = labelled_pair(
        str(number), prompt, (IMAGE_MARK, IMAGE_MARK), LABELS[label], category=GROUP, source=source, systems=systems
    )
    return MediaRow(Row(number, pair, GROUP, prompt.casefold(), {}), answers=((first,), (second,)))


def accuracy_with_ties(labels: Sequence[float], differences: Sequence[float]) -> float:
    """Return the best accuracy over the prefixes of the pairs by absolute difference, which are called ties; the pairs behind
    are decided by the sign. ``labels``: 1 (A), -1 (B), 0 (tie); -inf without pairs."""
    decided = sum(label != 0 and label * difference > 0 for label, difference in zip(labels, differences, strict=True))
    best, ties, right = float("-inf"), 0, decided
    for label, difference in sorted(zip(labels, differences, strict=True), key=lambda pair: abs(pair[1])):
        ties += label == 0
        right -= label != 0 and label * difference > 0
        best = max(best, (right + ties) / len(labels))
    return best


def accuracy_without_ties(labels: Sequence[float], differences: Sequence[float]) -> float:
    """Return the fraction of the pairs with a preference whose difference has its sign; nan if there are none."""
    right = [label * difference > 0 for label, difference in zip(labels, differences, strict=True) if label != 0]
    return sum(right) / len(right) if right else float("nan")


_SIGNS = {"A": 1, "B": -1, "same": 0}


def videogen_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what the scorer prints of each dimension that the rows have rewards of."""
    lines = []
    for name in DIMENSIONS:
        if rows and f"reward_{name}_A" in rows[0]:
            labels = [_SIGNS.get(row[name], float("nan")) for row in rows]
            differences = [row[f"reward_{name}_A"] - row[f"reward_{name}_B"] for row in rows]
            with_ties, without = accuracy_with_ties(labels, differences), accuracy_without_ties(labels, differences)
            lines.append(f"{name} Accuracy: With ties: {with_ties}, Without ties: {without}")
    return lines


def video_rewards(rows: Sequence[Row], judgments: Sequence[Judgment], verdict_format: str, seed: int) -> list[Any]:
    """Return the share of votes for each video, both orders weighing the same, in place of a model's rewards."""
    records = []
    for row, judgment in zip(rows, judgments, strict=True):
        share = share_of_valid(judgment.votes)
        rewards = (0.0, 0.0) if share is None else (share, 1 - share)
        label = "same" if row.pair.preferred is None else "AB"[row.pair.preferred]
        records.append({"row": row.row, "Overall": label, "reward_Overall_A": rewards[0], "reward_Overall_B": rewards[1]})
    return records


BENCHMARK = Benchmark(
    name="videogen_rewardbench",
    load=load_videogen_rewardbench,
    load_videos=load_videogen_rewardbench,
    frames=FRAMES,
    origins=("VideoGen-Eval",),
    files=BenchmarkFiles(
        suffixes=(".csv",),
        repo="KwaiVGI/VideoGen-RewardBench",
        media="videos.zip of the same dataset; unpack it in the folder of the CSV",
    ),
    scorers={
        "videogen_rewardbench": OfficialScorer(
            lambda rows, data: videogen_lines(rows),
            "JSON lines with the columns of out_pair.csv: a label and reward_DIMENSION_A, _B of VQ, MQ, TA or Overall",
        )
    },
    export=Export(video_rewards, lambda rows, records: videogen_lines(records)),
)
