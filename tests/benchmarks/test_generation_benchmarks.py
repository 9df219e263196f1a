"""Benchmarks of generated images, edits and videos: rows as public loaders read them, and scorers by their rules anew."""

from __future__ import annotations

import csv
import json
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from rewardlab.benchmarks.base import Row
from rewardlab.benchmarks.official import official_lines
from rewardlab.benchmarks.registry import find_benchmark
from rewardlab.data.images import encode_png
from rewardlab.errors import DataError, MediaError
from rewardlab.prompts import build_messages, load_template
from rewardlab.types import IMAGE_MARK, Order, Tie

REAL = Path(__file__).parents[2].parent / "shared" / "data" / "real"
SEEDS = range(100)


def png(shade: int) -> bytes:
    return encode_png(Image.new("RGB", (30, 20), (shade, 40, 200)))


def embedded(shade: int) -> dict[str, Any]:
    return {"bytes": png(shade), "path": None}


def load(name: str, data: Path, *, images: Path | None = None, with_images: bool = True) -> list[Row]:
    return find_benchmark(name).load(data, images=images, with_images=with_images)


def parquet(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(rows)), path)
    return path


def labels_of(rows: Sequence[Row]) -> list[int | Tie | None]:
    return [row.pair.preferred if row.pair.tie is None else row.pair.tie for row in rows]


GENERATED = {"prompt": "a tie", "left_model": "m", "left_image": embedded(1), "right_model": "n", "right_image": embedded(2)}
EDITED = {
    "source_prompt": "a taxi",
    "target_prompt": "a taxi among sheep",
    "instruct_prompt": "add sheep",
    "source_image": embedded(3),
    "left_output_image": embedded(4),
    "right_output_image": embedded(5),
}


def test_genai_bench_of_the_hub(tmp_path: Path) -> None:
    """Of a folder with both splits the one that numbers are published of; four votes, two of them without a better answer."""
    votes = ("leftvote", "rightvote", "tievote", "bothbad_vote")
    parquet(tmp_path / "image_generation" / "test_v1-0.parquet", [GENERATED | {"vote_type": vote} for vote in votes])
    parquet(tmp_path / "image_generation" / "test-0.parquet", [GENERATED | {"vote_type": "leftvote"}])
    parquet(tmp_path / "image_edition" / "test_v1-0.parquet", [EDITED | {"vote_type": "rightvote"}])
    rows = load("genai_bench", tmp_path)
    assert Counter(row.group for row in rows) == {"image_generation": 4, "image_edition": 1}
    edit, *generated = sorted(rows, key=lambda row: row.group)
    assert labels_of(generated) == [0, 1, Tie.TIE, Tie.BOTH_BAD]
    assert (generated[0].pair.systems, edit.pair.systems) == (("m", "n"), ("", ""))
    assert (generated[0].pair.question, generated[0].pair.responses) == ("a tie", (IMAGE_MARK, IMAGE_MARK))
    assert generated[0].pair.response_images == ((png(1),), (png(2),))
    assert (edit.pair.images, edit.pair.response_images) == ((png(3),), ((png(4),), (png(5),)))
    assert "add sheep" in edit.pair.question
    for order, shades in ((Order.GIVEN, (3, 4, 5)), (Order.SWAPPED, (3, 5, 4))):
        (message,) = build_messages(edit.pair, order=order, template=load_template("r1_reward"))
        assert message.images == tuple(map(png, shades))
    bad = parquet(tmp_path / "bad.parquet", [GENERATED | {"vote_type": "both"}])
    with pytest.raises(DataError, match=r"bad\.parquet, row 0: .*'vote_type' is 'both'; expected one of leftvote"):
        load("genai_bench", bad)


@pytest.mark.skipif(not REAL.exists(), reason="needs the published votes")
def test_genai_benchs_votes_on_videos() -> None:
    """The list in circulation, by its counts; its clips are not here, which is one sentence with a file's name."""
    data = REAL / "genai_bench_video.json"
    rows = load("genai_bench", data, with_images=False)
    assert Counter(map(str, labels_of(rows))) == {"1": 651, "0": 619, "both_bad": 404, "tie": 215}
    with pytest.raises(MediaError, match=r"3,778 of 3,778 media files are not in .*\.mp4"):
        load("genai_bench", data)


def frames_of(folder: Path, name: str, shades: Sequence[int]) -> None:
    (folder / name).mkdir(parents=True)
    for number, shade in enumerate(shades):
        (folder / name / f"frame{number}.png").write_bytes(png(shade))


def test_videos_are_answers(tmp_path: Path) -> None:
    """A URL names a file by its last part; a video's frames stand at its place, and at most as many as are shown."""
    frames_of(tmp_path, "a.mp4", range(20))
    frames_of(tmp_path, "b.mp4", (100, 101))
    url = "https://huggingface.co/datasets/someone/videos/blob/main/dir/a.mp4"
    row = {"prompt": "a ball", "left_video": url, "right_video": "b.mp4", "vote_type": "tievote"}
    (tmp_path / "v.json").write_text(json.dumps([row]))
    (loaded,) = load("genai_bench", tmp_path / "v.json")
    assert loaded.pair.responses == (IMAGE_MARK * 8, IMAGE_MARK * 2)
    assert loaded.pair.response_images[1] == (png(100), png(101))
    assert [len(images) for images in loaded.pair.response_images] == [8, 2]
    assert loaded.pair.tie is Tie.TIE


def test_videogen_rewardbench(tmp_path: Path) -> None:
    """The CSV of the Hub, of which the overall label is the pair's."""
    columns = [
        "path_A",
        "path_B",
        "A_model",
        "B_model",
        "prompt",
        "VQ",
        "MQ",
        "TA",
        "Overall",
        "fps_A",
        "num_frames_A",
        "fps_B",
        "num_frames_B",
    ]
    with (tmp_path / "videogen-rewardbench.csv").open("w") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        for label in ("A", "B", "same"):
            writer.writerow(
                ["videos/k/1.mp4", "videos/m/1.mp4", "k", "m", "a ball, rolling", "A", "B", "A", label, 24, 9, 24, 9]
            )
    frames_of(tmp_path / "videos" / "k", "1.mp4", (1, 2))
    with pytest.raises(MediaError, match=r"1 of 2 media files are not in .*'videos/m/1\.mp4'"):
        load("videogen_rewardbench", tmp_path)
    frames_of(tmp_path / "videos" / "m", "1.mp4", (3,))
    rows = load("videogen_rewardbench", tmp_path)
    assert labels_of(rows) == [0, 1, Tie.TIE]
    assert rows[0].pair.response_images == ((png(1), png(2)), (png(3),))
    assert {(row.pair.question, row.pair.systems) for row in rows} == {("a ball, rolling", ("k", "m"))}
    text = (tmp_path / "videogen-rewardbench.csv").read_text().replace(",same,", ",Same,")
    (tmp_path / "other.csv").write_text(text)
    with pytest.raises(DataError, match=r"row 2: .*'Overall' is 'Same'; expected one of A, B, same"):
        load("videogen_rewardbench", tmp_path / "other.csv")


COMPARED = {
    "id": "abc_AvsC",
    "instruction": "make it red",
    "source_image": embedded(1),
    "candidate_1": embedded(2),
    "candidate_2": embedded(3),
    "model_1": "m",
    "model_2": "n",
}


@pytest.mark.parametrize(
    ("dataset", "comparison", "ranking", "label"),
    [
        ("2pair", "AvsB", "A>B", 0),
        ("2pair", "AvsB", "B>A", 1),
        ("2pair", None, "A=B", Tie.TIE),
        ("2pair", None, "A=B=Good", Tie.TIE),
        ("2pair", None, "A=B=Bad", Tie.BOTH_BAD),
        ("3pair", "AvsC", "C>A", 1),
        ("4pair", "CvsD", "C>D", 0),
    ],
)
def test_editreward_bench(dataset: str, comparison: str | None, ranking: str, label: int | Tie, tmp_path: Path) -> None:
    """Candidates are in the order of the comparison; the comparisons of one image's edits are one cluster."""
    row = COMPARED | {"dataset": dataset, "comparison_type": comparison, "ranking": ranking}
    (loaded,) = load("editreward_bench", parquet(tmp_path / "d.parquet", [row]))
    assert (labels_of([loaded]), loaded.group, loaded.cluster) == ([label], dataset, f"{dataset}/abc")
    assert (loaded.pair.images, loaded.pair.response_images) == ((png(1),), ((png(2),), (png(3),)))
    with pytest.raises(DataError, match="'ranking' is 'D>E'; expected a ranking of"):
        load("editreward_bench", parquet(tmp_path / "d.parquet", [row | {"ranking": "D>E"}]))


def test_editscore_bench(tmp_path: Path) -> None:
    """The first edit is the better one; the dimension is told."""
    row = {
        "key": ["k1", "k2"],
        "instruction": "remove the cat",
        "input_image": embedded(1),
        "output_images": [embedded(2), embedded(3)],
        "task_type": "subject-remove",
    }
    dimensions = ("prompt_following", "consistency", "overall")
    data = parquet(tmp_path / "d.parquet", [row | {"dimension": dimension} for dimension in dimensions])
    rows = load("editscore_bench", data)
    assert [(row.group, row.pair.preferred) for row in rows] == [(dimension, 0) for dimension in dimensions]
    assert len({row.pair.question for row in rows}) == 3
    assert rows[0].pair.response_images == ((png(2),), (png(3),))
    with pytest.raises(DataError, match="'dimension' is 'colour'; expected one of prompt_following"):
        load("editscore_bench", parquet(tmp_path / "d.parquet", [row | {"dimension": "colour"}]))


def test_omni_rewardbench(tmp_path: Path) -> None:
    """Texts, images and videos as answers and as what is asked about, embedded or by a path; tasks with audio are left out."""
    row = {"prompt": "p", "criteria": "be brief", "criteria_preference": "response2", "id": "7", "model1": "m", "model2": "n"}
    texts, paths = {"response1": "a", "response2": "b"}, {"response1": "1.png", "response2": "2.png"}
    for number in (1, 2, 3):
        (tmp_path / f"{number}.png").write_bytes(png(number))
    frames_of(tmp_path, "v.mp4", range(30))
    tasks = {
        "text_to_text": row | texts | {"criteria_preference": "tie"},
        "text_image_to_text": row | texts | {"image": embedded(9), "image_path": "3.png"},
        "text_video_to_text": row | texts | {"video": "v.mp4"},
        "text_to_image": row | paths,
        "text_image_to_image": row | paths | {"image_path": "3.png"},
        "text_to_video": row | {"response1": "v.mp4", "response2": "v.mp4"},
        "text_to_audio": row | paths,
    }
    for task, fields in tasks.items():
        (tmp_path / f"{task}_preferences.json").write_text(json.dumps([fields], default=lambda data: None))
    parquet(tmp_path / "text_image_to_text" / "a.parquet", [tasks["text_image_to_text"]])
    (tmp_path / "text_image_to_text_preferences.json").unlink()
    by_task = {row.group: row.pair for row in load("omni_rewardbench", tmp_path)}
    assert set(by_task) == set(tasks) - {"text_to_audio"}
    assert (by_task["text_to_text"].tie, by_task["text_to_image"].preferred) == (Tie.TIE, 1)
    assert by_task["text_image_to_text"].images == (png(9),)
    assert by_task["text_image_to_image"].images == (png(3),)
    assert by_task["text_to_image"].response_images == ((png(1),), (png(2),))
    assert (len(by_task["text_video_to_text"].images), len(by_task["text_to_video"].response_images[0])) == (10, 5)
    assert all("be brief" in pair.question and pair.systems == ("m", "n") for pair in by_task.values())
    with pytest.raises(DataError, match="a task with audio"):
        load("omni_rewardbench", tmp_path / "text_to_audio_preferences.json")
    with pytest.raises(DataError, match="with the task in their name"):
        load("omni_rewardbench", tmp_path / "v.mp4" / "frame0.png")


def outputs(path: Path, records: Any, *, is_object: bool = False) -> Path:
    path.write_text(json.dumps(records) if is_object else "".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.mark.parametrize("seed", SEEDS)
def test_genai_benchs_scorer(seed: int, tmp_path: Path) -> None:
    """The bracketed text of a line, greedily, compared with what is right for each of the four votes."""
    dice = random.Random(seed)
    words = [
        "[[A>B]]",
        "[[B>A]]",
        "[[A=B]]",
        "[[A=B=Good]]",
        "[[A=B=Bad]]",
        "[[A>>B]]",
        "[[",
        "]]",
        "so",
        "\n",
        "[[A>B]] no [[B>A]]",
    ]
    votes = ["leftvote", "rightvote", "tievote", "bothbad_vote"]
    records = [
        {"idx": n, "response": " ".join(dice.choices(words, k=dice.randrange(6))), "human_vote": dice.choice(votes)}
        for n in range(dice.randrange(1, 60))
    ]

    def right(record: dict[str, Any]) -> bool:
        found = re.search(r"\[\[.*\]\]", record["response"])
        if found is None:
            return False
        inside = {"leftvote": "A>>?B", "rightvote": "B>>?A", "tievote": "A=B(=Good)?", "bothbad_vote": "A=B(=Bad)?"}
        return re.fullmatch(rf"\[\[{inside[record['human_vote']]}\]\]", found.group()) is not None

    expected = [f"Accuracy: {np.mean([right(record) for record in records])}"]
    assert official_lines("genai_bench", outputs(tmp_path / "o.jsonl", records)) == expected


def test_genai_benchs_table_of_three_tasks(tmp_path: Path) -> None:
    """Each task in percent of two digits, and the mean of what is rounded."""
    tasks = {"image_generation": (2, 3), "image_edition": (1, 3), "video_generation": (0, 1)}
    records = [
        {"task": task, "response": "[[A>B]]" if n < right else "", "human_vote": "leftvote"}
        for task, (right, total) in tasks.items()
        for n in range(total)
    ]
    lines = official_lines("genai_bench", outputs(tmp_path / "o.jsonl", records))
    assert lines[0] == "image_generation: Accuracy: 0.6666666666666666"
    assert lines[-1] == "66.67 | 33.33 | 0.0 | 33.33"


def by_every_prefix(labels: Sequence[int], differences: Sequence[float]) -> float:
    """Accuracy with ties by its definition: every prefix of the pairs by absolute difference is tied, from the first on."""
    order = sorted(range(len(labels)), key=lambda n: abs(differences[n]))
    accuracies = []
    for cut in range(1, len(order) + 1):
        tied = set(order[:cut])
        says = [0 if n in tied else int(np.sign(differences[n])) or 2 for n in range(len(labels))]
        accuracies.append(sum(says[n] == labels[n] for n in range(len(labels))) / len(labels))
    return max(accuracies)


def some_rewards(dice: random.Random) -> Callable[[], float]:
    """Rewards of few values, of which many are equal, or of any value."""
    return (lambda: dice.randrange(3) / 2) if dice.random() < 0.5 else dice.random


@pytest.mark.parametrize("seed", SEEDS)
def test_videogen_rewardbenchs_scorer(seed: int, tmp_path: Path) -> None:
    dice, signs = random.Random(seed), {"A": 1, "B": -1, "same": 0}
    reward, names = some_rewards(dice), ("VQ", "MQ", "TA", "Overall")
    rows = []
    for _ in range(dice.randrange(1, 40)):
        row: dict[str, Any] = {name: dice.choice(list(signs)) for name in names}
        rows.append(row | {f"reward_{name}_{side}": reward() for name in names for side in "AB"})
    expected = []
    for name in names:
        labels = [signs[row[name]] for row in rows]
        differences = [row[f"reward_{name}_A"] - row[f"reward_{name}_B"] for row in rows]
        decided = [np.sign(d) == label for label, d in zip(labels, differences, strict=True) if label]
        without = sum(map(bool, decided)) / len(decided) if decided else float("nan")
        expected.append(f"{name} Accuracy: With ties: {by_every_prefix(labels, differences)}, Without ties: {without}")
    assert official_lines("videogen_rewardbench", outputs(tmp_path / "o.jsonl", rows)) == expected


@pytest.mark.parametrize("seed", SEEDS)
def test_editreward_benchs_scorer(seed: int, tmp_path: Path) -> None:
    """Comparisons, and groups of three or six whose every comparison is there and right: by what stands before the first
    underscore of an id, or by ten characters."""
    dice = random.Random(seed)
    name_of = dice.choice(["g{}_{}", "sample{:04}{}"])
    letters = dice.choice(["AB", "ABC", "ABCD"])
    results: list[dict[str, Any] | None] = []
    for group in range(dice.randrange(1, 12)):
        for first, second in combinations(letters, 2):
            votes = [f"{first}>{second}", f"{second}>{first}"]
            result = {
                "id": name_of.format(group, f"{first}vs{second}"),
                "group": group,
                "comparison_type": f"{first}vs{second}",
                "human_vote": dice.choice(votes),
            }
            likely = [result["human_vote"]] * 6 + [*votes, "Unknown", f"{first}={second}"]
            results.append(None if dice.random() < 0.05 else result | {"model_vote": dice.choice(likely)})
    there = [result for result in results if result is not None]
    if not there:
        return
    right = [result["human_vote"] == result["model_vote"] for result in there]
    head = f"{np.mean(right):.4f} ({sum(right)}/{len(there)})"
    expected = [f"Accuracy: {head}"]
    if len(letters) > 2:
        groups: dict[int, list[bool]] = defaultdict(list)
        for result, flag in zip(there, right, strict=True):
            groups[result["group"]].append(flag)
        whole = [len(flags) == len(list(combinations(letters, 2))) and min(flags) for flags in groups.values()]
        expected = [
            f"Individual Accuracy: {head}",
            f"Group Accuracy: {sum(whole) / len(whole):.4f} ({sum(whole)}/{len(whole)})",
        ]
    counts = Counter(result["model_vote"] for result in there)
    expected += [
        "Detailed Statistics:",
        *(f"   {vote}: {counts[vote]} ({100 * counts[vote] / len(there):.1f}%)" for vote in sorted(counts)),
    ]
    data_type = f"huggingface_{len(letters)}pair"
    shown = official_lines(
        "editreward_bench", outputs(tmp_path / "o.json", {"results": results, "data_type": data_type}, is_object=True)
    )
    assert shown == expected


@pytest.mark.parametrize("seed", SEEDS)
def test_editreward_benchs_scorer_of_rewards(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    reward, rows = some_rewards(dice), []
    for name, letters in (("2-Pair", "AB"), ("3-Pair", "ABC"), ("4-Pair", "ABCD")):
        for _ in range(dice.randrange(1, 15)):
            ranking = ">".join(dice.sample(letters, len(letters)))
            if name == "2-Pair":
                ranking = dice.choice(["A>B", "B>A", "A<B", "A=B=Good", "A=B=Bad"])
            rows.append({"file_name": name, "ranking": ranking, "scores": [reward() for _ in letters]})

    def order(ranking: str) -> str:
        return "BA" if ranking == "A<B" else ranking.replace(">", "")

    def label(ranking: str, first: int, second: int) -> int:
        return 0 if "=" in ranking else 1 if order(ranking).index("ABCD"[first]) < order(ranking).index("ABCD"[second]) else -1

    def best(pairs: Sequence[tuple[int, float]]) -> tuple[float, float]:
        thresholds = sorted({0.0, *(abs(d) for _, d in pairs)})
        hits = [np.mean([label == (0 if abs(d) <= t else np.sign(d)) for label, d in pairs]) for t in thresholds]
        return float(max(hits)), thresholds[int(np.argmax(hits))]

    expected, everything, all_strict = [], [], []
    for name in ("2-Pair", "3-Pair", "4-Pair"):
        some = [row for row in rows if row["file_name"] == name]
        pairs = [
            (label(row["ranking"], i, j), row["scores"][i] - row["scores"][j])
            for row in some
            for i, j in combinations(range(len(row["scores"])), 2)
        ]
        threshold, kind = 0.0, "without"
        if name == "2-Pair":
            (accuracy, threshold), kind = best(pairs), "with"
            expected.append(f"Optimal Epsilon for 2-Pair data: {threshold:.4f}")
        else:
            accuracy = float(np.mean([np.sign(d) == sign for sign, d in pairs]))
        strict = []
        for row in some:
            by_score = np.argsort(row["scores"], kind="stable")[::-1]
            says = "".join("ABCD"[place] for place in by_score)
            is_tied = abs(row["scores"][0] - row["scores"][1]) <= threshold
            strict.append(is_tied if "=" in row["ranking"] else says == order(row["ranking"]))
        share = f"{sum(strict) / len(strict):.4f} ({sum(strict)}/{len(strict)} samples)"
        expected += [
            f"--- Result for {name} ---",
            f"Pairwise Acc ({kind} ties): {accuracy:.4f}",
            f"Strict Ranking Accuracy: {share}",
        ]
        everything, all_strict = everything + pairs, all_strict + strict
    share = f"{sum(all_strict) / len(all_strict):.4f} ({sum(all_strict)}/{len(all_strict)} samples)"
    shown = official_lines("editreward_bench_rewards", outputs(tmp_path / "o.jsonl", rows))
    assert shown[:-3] == expected
    assert shown[-2:] == [
        f"Overall Pairwise Accuracy (with ties): {best(everything)[0]:.4f}",
        f"Overall Strict Ranking Accuracy: {share}",
    ]


@pytest.mark.parametrize("seed", SEEDS)
def test_editscore_benchs_scorer(seed: int, tmp_path: Path) -> None:
    """The fraction of pairs whose better edit has more, by task and dimension; groups and the average are means of tasks."""
    dice = random.Random(seed)
    reward = some_rewards(dice)
    groups = {
        "object": ["subject-add", "subject-remove", "subject-replace"],
        "appearance": ["color_alter", "material_alter", "style_change", "tone_transfer"],
        "scene": ["background_change", "extract"],
        "advanced": ["ps_human", "text_change", "motion_change", "compose"],
    }
    tasks = sorted(task for some in groups.values() for task in some)
    names = {"prompt_following": "Prompt Following", "consistency": "Consistency", "overall": "Overall"}
    rows = [
        {"task_type": task, "dimension": dimension, "score": [reward(), reward()]}
        for task in tasks
        for dimension in names
        for _ in range(dice.randrange(1, 4))
    ]
    dice.shuffle(rows)
    share = {
        (dimension, task): np.mean(
            [row["score"][0] > row["score"][1] for row in rows if (row["dimension"], row["task_type"]) == (dimension, task)]
        )
        for dimension in names
        for task in tasks
    }
    lines = official_lines("editscore_bench", outputs(tmp_path / "o.jsonl", rows))
    shown = lines[2].split(" & ")
    assert (sorted(shown), shown[-1]) == (sorted([*tasks, "average"]), "average")
    for number, (dimension, title) in enumerate(names.items()):
        average = sum(float(share[dimension, task]) for task in tasks) / len(tasks)
        cells = [f"{share[dimension, task]:.3f}" for task in shown[:-1]] + [f"{average:.3f}"]
        assert lines[3 + number] == f"{title}: " + " & ".join(cells)
    for group, of_group in groups.items():
        means = [np.mean([share[dimension, task] for task in of_group]) for dimension in names]
        assert lines[lines.index(f"{group}:") + 2] == " & ".join(f"{mean:.3f}" for mean in means)
    for dimension, title in names.items():
        scores = [
            score
            for task in tasks
            for row in rows
            if (row["task_type"], row["dimension"]) == (task, dimension)
            for score in row["score"]
        ]
        facts = (min(scores), max(scores), np.mean(scores), np.std(scores))
        assert lines[lines.index(f"{title} Scores:") + 2] == " & ".join(f"{fact:.3f}" for fact in facts)


@pytest.mark.parametrize("seed", SEEDS)
def test_omni_rewardbenchs_scorer(seed: int, tmp_path: Path) -> None:
    dice, labels = random.Random(seed), ["response1", "response2", "tie"]
    results = [
        {"criteria_preference": dice.choice(labels), "predicted": dice.choice([*labels, None])}
        for _ in range(dice.randrange(1, 50))
    ]
    path = outputs(tmp_path / "o.json", results, is_object=True)
    for name, counted in (
        ("omni_rewardbench_with_tie", results),
        ("omni_rewardbench", [result for result in results if result["criteria_preference"] != "tie"]),
    ):
        right = [result["criteria_preference"] == result["predicted"] for result in counted]
        expected = [f"Acc: {np.mean(right):.4f} ({sum(right)}/{len(right)})"] if right else []
        assert official_lines(name, path) == expected


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("so [[A]]", "response1"),
        (r"\boxed{B}", "response2"),
        ("[[C]] or [[A]]", "response1"),
        ("[[A]] and [[B]]", None),
        (r"[[A]] and \boxed{B}", "response1"),
        ("[[C]]", "tie"),
        ("A", None),
    ],
)
def test_omni_rewardbenchs_verdicts(text: str, verdict: str | None) -> None:
    from rewardlab.benchmarks.omni_rewardbench import verdict_in

    assert verdict_in(text) == verdict
