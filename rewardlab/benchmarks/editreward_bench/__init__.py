"""EditReward-Bench of TIGER-Lab (arXiv 2509.26346): comparisons of two to four edits of an image, ranked by people.

Another benchmark of the same name is EditScore's (:mod:`rewardlab.benchmarks.editscore_bench`). A row compares two of the
edits: A and B of two, every two of three or four. Only of two may the people's ranking be a tie. Response 0 is
``candidate_1``. From the public code (TIGER-AI-Lab/EditReward, ``evaluate/inference_{2,3,4}pair_hf.py`` and
``eval_bench.py``): the columns, that candidates are in the order of ``comparison_type``, and how ids name a group. From its
README: the sizes. Guessed: nothing.

Two scorers. ``editreward_bench`` is that of the inference of generative judges, on its results: accuracy of comparisons, and
of groups whose every comparison is right. ``editreward_bench_rewards`` is that of reward models (``eval_bench.py``), on a
reward of each edit. Its lines are without their emoji. Quirks, kept because published numbers have them:

- *Missing results shrink the denominator.* A comparison that failed is null and left out; its group is wrong.
- *One order.* The better edit's place is the file's.
- *A fitted threshold* of ties (rewards), on the labels that it is scored on: of two edits, and again of all together.
- *A=B alone is A>B* for the scorer of rewards, which knows the ties ``A=B=Good`` and ``A=B=Bad``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from rewardlab.benchmarks.base import Benchmark, BenchmarkFiles, Export, OfficialScorer, Row
from rewardlab.benchmarks.data_files import reason
from rewardlab.benchmarks.media_answers import MediaRow, checked, data_rows, labelled_pair, load_media, medium_of, text_of
from rewardlab.benchmarks.videogen_rewardbench import accuracy_without_ties  # calc_accuracy.py is VideoAlign's
from rewardlab.errors import DataError
from rewardlab.types import IMAGE_MARK, Choice, Judgment, Order, Tie, VerdictStatus
from rewardlab.verdicts.votes import in_order

COMPARISONS = {"2pair": 1, "3pair": 3, "4pair": 6}  # of the edits of one image


def load_editreward_bench(data: Path, *, images: Path | None, with_images: bool) -> list[Row]:
    """Return the rows of the Hub's Parquet, or of a folder of it: ``id, instruction, source_image, candidate_1, candidate_2,
    ranking, comparison_type, dataset``. Raise DataError for a malformed row, MediaError with the images that are missing."""
    rows = (checked(_row(number, fields, where), where) for number, fields, where in data_rows([data]))
    folder = images or (data if data.is_dir() else data.parent)
    return load_media(rows, folder, "EditReward-Bench", with_images=with_images)


def group_of(row_id: str) -> str:
    """Return what the comparisons of one image's edits have in common."""
    return row_id.split("_")[0] if "_" in row_id else row_id[:10]


def label_of(ranking: str, comparison: str) -> int | Tie:
    """Return the better of the two candidates of a comparison, as "AvsC", by a ranking of them. Raise ValueError."""
    first, second = comparison[:1], comparison[-1:]
    if ranking in (f"{first}>{second}", f"{second}<{first}"):
        return 0
    if ranking in (f"{second}>{first}", f"{first}<{second}"):
        return 1
    if ranking.startswith(f"{first}={second}"):
        return Tie.BOTH_BAD if ranking.endswith("Bad") else Tie.TIE
    raise ValueError(f"'ranking' is {ranking!r}; expected a ranking of {first} and {second}")


def _row(number: int, fields: Mapping[str, Any], where: str) -> MediaRow:
    try:
        row_id, dataset, instruction = str(fields["id"]), text_of(fields, "dataset"), text_of(fields, "instruction")
        comparison = fields.get("comparison_type") or "AvsB"
        label = label_of(text_of(fields, "ranking"), str(comparison))
        source, first, second = (medium_of(fields[c], c) for c in ("source_image", "candidate_1", "candidate_2"))
        if dataset not in COMPARISONS:
            raise ValueError(f"'dataset' is {dataset!r}; expected one of {', '.join(COMPARISONS)}")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{where}: not a row of TIGER-Lab's EditReward-Bench ({reason(error, fields)})") from error
    question = f"{IMAGE_MARK}\nEdit this image: {instruction}"
    pair = labelled_pair(row_id, question, (IMAGE_MARK, IMAGE_MARK), label, category=dataset, source="editreward_bench")
    slices = {"comparison": str(comparison)}
    return MediaRow(Row(number, pair, dataset, f"{dataset}/{group_of(row_id)}", slices), (source,), ((first,), (second,)))


def comparison_lines(results: Sequence[Mapping[str, Any] | None], dataset: str = "") -> list[str]:
    """Return what the inference prints of its results: ``id``, ``human_vote`` and ``model_vote``, null where it failed.

    Results of two edits have no group accuracy. Results are of ``dataset``, of the one that each names, or of the one that has
    the letters they compare.
    """
    by_dataset: dict[str, list[Mapping[str, Any]]] = {}
    for result in results:
        if result is not None:
            by_dataset.setdefault(dataset or result.get("dataset") or _dataset_of(results), []).append(result)
    return [line for name, some in by_dataset.items() for line in _dataset_lines(name, some, named=len(by_dataset) > 1)]


def _dataset_of(results: Sequence[Mapping[str, Any] | None]) -> str:
    """Return which of the three a file of results is of, by the letters that it compares."""
    letters = {letter for result in results if result for letter in str(result.get("comparison_type") or "AvsB")}
    return "4pair" if "D" in letters else "3pair" if "C" in letters else "2pair"


def _dataset_lines(name: str, results: Sequence[Mapping[str, Any]], *, named: bool) -> Iterator[str]:
    right = {id(result): result["human_vote"] == result["model_vote"] for result in results}
    correct, total = sum(right.values()), len(results)
    if named:
        yield f"EditReward-Bench {name[0]}-Pair"
    if name == "2pair":
        yield f"Accuracy: {correct / total:.4f} ({correct}/{total})"
    else:
        groups: dict[str, list[bool]] = {}
        for result in results:
            groups.setdefault(group_of(result["id"]), []).append(right[id(result)])
        whole = sum(len(group) == COMPARISONS[name] and all(group) for group in groups.values())
        yield f"Individual Accuracy: {correct / total:.4f} ({correct}/{total})"
        yield f"Group Accuracy: {whole / len(groups):.4f} ({whole}/{len(groups)})"
    yield "Detailed Statistics:"
    votes = Counter(result["model_vote"] for result in results)
    yield from (f"   {vote}: {count} ({count / total * 100:.1f}%)" for vote, count in sorted(votes.items()))


def comparisons_of_votes(
    rows: Sequence[Row], judgments: Sequence[Judgment], verdict_format: str, seed: int
) -> dict[str, list[dict[str, Any]]]:
    """Return the first vote of each comparison in the order of the file; one without a verdict is ``Unknown``."""
    return {"results": [_result(row, judgment) for row, judgment in zip(rows, judgments, strict=True)]}


def _result(row: Row, judgment: Judgment) -> dict[str, Any]:
    comparison = row.slices["comparison"]
    first, second = comparison[:1], comparison[-1:]
    words = {0: f"{first}>{second}", 1: f"{second}>{first}", None: f"{first}={second}"}
    vote = next(iter(in_order(judgment.votes, Order.GIVEN)), None)
    model_vote = "Unknown"
    if vote is not None and vote.verdict.status is VerdictStatus.TIE:
        model_vote = words[None]
    elif vote is not None and vote.verdict.choice is not None:
        model_vote = words[int(vote.verdict.choice is Choice.SECOND)]
    facts = {"id": row.pair.pair_id, "dataset": row.group, "comparison_type": comparison}
    return {**facts, "human_vote": words[row.pair.preferred], "model_vote": model_vote}


def best_threshold(labels: Sequence[int], differences: Sequence[float]) -> tuple[float, float]:
    """Return the best accuracy, ties included, and the least threshold that gives it: two rewards that differ by no more than
    the threshold are a tie. (0, 0) without pairs. ``labels``: 1 (first), -1 (second), 0 (tie)."""
    best, at = -1.0, -1.0
    for threshold in (0.0, *sorted({abs(difference) for difference in differences})) if labels else ():
        right = sum(
            label == 0 if abs(difference) <= threshold else label * difference > 0
            for label, difference in zip(labels, differences, strict=True)
        )
        if right / len(labels) > best:
            best, at = right / len(labels), threshold
    return (best, at) if labels else (0.0, 0.0)


_TIES = ("A=B=Good", "A=B=Bad")
_FILES = ("2-Pair", "3-Pair", "4-Pair")


def pair_label(ranking: str, first: int, second: int) -> int:
    """Return 1 if edit ``first`` is ahead of ``second`` in a ranking such as "C>A>B", -1 behind it, 0 tied or not named."""
    if ranking == "A>B":
        return 1
    if ranking in ("B>A", "A<B"):
        return -1
    if ranking in _TIES:
        return 0
    places = ranking.find(chr(ord("A") + first)), ranking.find(chr(ord("A") + second))
    return 0 if -1 in places else 1 if places[0] < places[1] else -1


def whole_ranking(ranking: str, number: int) -> tuple[int, ...] | None:
    """Return the edits from the best on, () for a tie of two, None for a ranking that is malformed."""
    if ranking in _TIES:
        return ()
    if ranking in ("A>B", "B>A", "A<B"):
        return (0, 1) if ranking == "A>B" else (1, 0)
    letters = ranking.replace(">", "").replace("<", "")
    return None if "=" in ranking or len(letters) != number else tuple(ord(letter) - ord("A") for letter in letters)


def ranking_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what ``eval_bench.py`` logs of rows with ``file_name`` (2-Pair, 3-Pair, 4-Pair), ``ranking`` and ``scores``, a
    reward of each edit."""
    lines: list[str] = []
    all_labels, all_differences, all_strict, total = list[int](), list[float](), 0, 0
    for name in _FILES:
        some = [row for row in rows if row["file_name"] == name]
        if not some:
            continue
        labels, differences = _pairs_of(some)
        threshold, kind = 0.0, "without"
        if name == "2-Pair":
            (accuracy, threshold), kind = best_threshold(labels, differences), "with"
            lines.append(f"Optimal Epsilon for 2-Pair data: {threshold:.4f}")
        else:
            accuracy = accuracy_without_ties(labels, differences)
        strict = sum(_is_strictly_right(row["ranking"], row["scores"], threshold) for row in some)
        lines += [f"--- Result for {name} ---", f"Pairwise Acc ({kind} ties): {accuracy:.4f}"]
        lines.append(f"Strict Ranking Accuracy: {strict / len(some):.4f} ({strict}/{len(some)} samples)")
        all_labels, all_differences = all_labels + labels, all_differences + differences
        all_strict, total = all_strict + strict, total + len(some)
    overall, _ = best_threshold(all_labels, all_differences)
    lines += ["====== [EditReward_Bench] Final Overall Results ======", f"Overall Pairwise Accuracy (with ties): {overall:.4f}"]
    share = all_strict / total if total else 0.0
    return [*lines, f"Overall Strict Ranking Accuracy: {share:.4f} ({all_strict}/{total} samples)"]


def _pairs_of(rows: Sequence[Mapping[str, Any]]) -> tuple[list[int], list[float]]:
    """Return the label and the difference of rewards of every two edits."""
    labels, differences = [], []
    for row in rows:
        for first, second in combinations(range(len(row["scores"])), 2):
            labels.append(pair_label(row["ranking"], first, second))
            differences.append(row["scores"][first] - row["scores"][second])
    return labels, differences


def _is_strictly_right(ranking: str, scores: Sequence[float], threshold: float) -> bool:
    expected = whole_ranking(ranking, len(scores))
    if expected == ():
        return abs(scores[0] - scores[1]) <= threshold
    return expected == tuple(sorted(range(len(scores)), key=lambda place: scores[place])[::-1])


BENCHMARK = Benchmark(
    name="editreward_bench",
    load=load_editreward_bench,
    sizes={"2pair": 186, "3pair": 450, "4pair": 888},
    whole_prompts=True,
    num_prompts=484,
    files=BenchmarkFiles(repo="TIGER-Lab/EditReward-Bench", media="images are inside"),
    scorers={
        "editreward_bench": OfficialScorer(
            lambda file, data: comparison_lines(file["results"], str(file.get("data_type", "")).removeprefix("huggingface_")),
            "the JSON of inference_2pair_hf.py, or of its kin for three and four edits",
            is_object=True,
        ),
        "editreward_bench_rewards": OfficialScorer(
            lambda rows, data: ranking_lines(rows), "JSON lines with file_name (2-Pair, 3-Pair, 4-Pair), ranking, scores"
        ),
    },
    export=Export(comparisons_of_votes, lambda rows, records: comparison_lines(records["results"])),
)
