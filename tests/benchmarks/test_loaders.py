"""Every benchmark: its files in circulation are read as they are, counted against what is known, and refused in a sentence."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rewardlab.benchmarks import mm_rlhf, mmrb2, multimodal_rewardbench, rewardbench2, vl_rewardbench
from rewardlab.benchmarks.base import size_notes
from rewardlab.benchmarks.media import NUM_FRAMES, read_media
from rewardlab.benchmarks.official import official_lines
from rewardlab.benchmarks.registry import PACKAGED, find_benchmark
from rewardlab.benchmarks.report import accuracy_rows
from rewardlab.benchmarks.report_model import Report
from rewardlab.benchmarks.runner import run_bench
from rewardlab.benchmarks.settings import bench_settings
from rewardlab.data.video import evenly
from rewardlab.errors import DataError, MediaError
from rewardlab.prompts import build_messages, load_template
from rewardlab.types import IMAGE_MARK, Order

DATA = Path(__file__).parents[2].parent / "shared" / "data"
PLAIN = load_template("plain")


def published(name: str) -> Path:
    path = DATA / name
    if not path.exists():
        pytest.skip(f"{name} is not here: it is not ours to copy")
    return path


def test_vl_rewardbench_as_published() -> None:
    """1,250 rows in the official groups, of 1,225 ids."""
    rows = vl_rewardbench.BENCHMARK.load(published("vl_rewardbench.jsonl"), images=None, with_images=False)
    assert (len(rows), len({row.pair.pair_id for row in rows})) == (1250, 1225)
    assert size_notes(vl_rewardbench.BENCHMARK, rows) == []


def test_mm_rlhf_as_published(tmp_path: Path) -> None:
    """170 pairs of 46 ids; a judge that likes length scores 71.8 and 47.8, as known."""
    data = published("mm_rlhf_rewardbench.jsonl")
    rows = mm_rlhf.BENCHMARK.load(data, images=None, with_images=False)
    assert (len(rows), len({row.cluster for row in rows})) == (170, 46)
    assert size_notes(mm_rlhf.BENCHMARK, rows) == []
    report, _ = run_bench(bench_settings("mm_rlhf", data, "baseline:longest"), tmp_path)
    assert (round(100 * report.scores.accuracy.micro, 1), round(100 * report.scores.all_right.accuracy, 1)) == (71.8, 47.8)
    with pytest.raises(MediaError, match=r"media files are not in"):
        mm_rlhf.BENCHMARK.load(data, images=tmp_path, with_images=True)


def test_mmrb2_as_published() -> None:
    """Four tasks of 1,000, the label A as often as known; one file alone is one task."""
    folder = published("mmrb2")
    rows = mmrb2.BENCHMARK.load(folder, images=None, with_images=False)
    assert len(rows) == 4000
    assert size_notes(mmrb2.BENCHMARK, rows) == []
    reasoning = mmrb2.BENCHMARK.load(folder / "reasoning_response_only.json", images=None, with_images=False)
    assert {row.group for row in reasoning} == {"reasoning"}
    notes = size_notes(mmrb2.BENCHMARK, rows[1:])
    assert notes == [
        "group 't2i' has 999 rows, the published benchmark 1000",
    ]
    with pytest.raises(DataError, match="has no prompt"):
        mmrb2.BENCHMARK.load(folder, images=None, with_images=True)


@pytest.mark.parametrize("name", ["vl_rewardbench", "mm_rlhf", "mmrb2"])
def test_who_always_says_the_first_scores_a_half(name: str, tmp_path: Path) -> None:
    """Exactly, on every benchmark, with a lean of all there is; who says nothing readable scores nothing."""
    files = {"vl_rewardbench": "vl_rewardbench.jsonl", "mm_rlhf": "mm_rlhf_rewardbench.jsonl"}
    data = published(files.get(name, "mmrb2/interleaved_response_only.json"))
    report, rows = run_bench(bench_settings(name, data, "baseline:first"), tmp_path / "first")
    assert report.scores.accuracy.micro == 0.5
    assert report.scores.position_bias == 0.5
    lines = [{"row": row.row, "order": order, "text": "garbage"} for row in rows for order in ("given", "swapped")]
    (tmp_path / "garbage.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    report, _ = run_bench(bench_settings(name, data, f"replay:{tmp_path / 'garbage.jsonl'}"), tmp_path / "garbage")
    assert (report.scores.accuracy.micro, report.scores.invalid_rate) == (0.0, 1.0)


def png(demo_pairs: Any, number: int) -> bytes:
    image: bytes = demo_pairs[0][number].images[0]
    return image


def test_the_hubs_parquet(demo_pairs: Any, tmp_path: Path) -> None:
    """Responses in the order of the file, the better one by its ranking, images from inside."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [
        {
            "id": row_id,
            "query": "<image>\nWhat is it?",
            "response": ["a cat", "a dog"],
            "human_ranking": ranking,
            "image": {"bytes": png(demo_pairs, n), "path": None},
        }
        for n, (row_id, ranking) in enumerate((("RLAIF-V-1", [0, 1]), ("mathverse_2", [1, 0]), ("x", [0, 1])))
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "test.parquet")
    found = vl_rewardbench.BENCHMARK.load(tmp_path / "test.parquet", images=None, with_images=True)
    assert [(row.group, row.pair.preferred) for row in found] == [("hallucination", 0), ("reasoning", 1), ("general", 0)]
    assert found[1].pair.question == "What is it?"
    assert found[1].pair.images == (png(demo_pairs, 1),)
    pq.write_table(pa.Table.from_pylist([{**rows[0], "human_ranking": [1, 1]}]), tmp_path / "bad.parquet")
    with pytest.raises(DataError, match=r"row 0: expected id, query"):
        vl_rewardbench.BENCHMARK.load(tmp_path / "bad.parquet", images=None, with_images=True)


def test_videos_are_folders_of_frames(demo_pairs: Any, tmp_path: Path) -> None:
    """Thirty-two of them, evenly, the first and the last among them, in the order of their numbers."""
    folder = tmp_path / "video" / "v1"
    folder.mkdir(parents=True)
    for number in range(40):
        (folder / f"frame{number}.png").write_bytes(png(demo_pairs, number))
    assert len(read_media(folder)) == NUM_FRAMES
    assert read_media(folder)[0] == png(demo_pairs, 0)
    assert read_media(folder)[-1] == png(demo_pairs, 39)
    assert [path.name for path in evenly([Path(str(n)) for n in range(5)], 3)] == ["0", "2", "4"]
    row = {"id": "a", "video": "video/v1", "prompt": "What?", "chosen": "x", "rejected": "y"}
    (tmp_path / "b.jsonl").write_text(json.dumps(row) + "\n")
    (found,) = mm_rlhf.BENCHMARK.load(tmp_path / "b.jsonl", images=None, with_images=True)
    assert (found.group, len(found.pair.images)) == ("video", NUM_FRAMES)


def mmrb2_pair(**changes: Any) -> dict[str, Any]:
    answer = {"model_name": "m", "response_content": [["text", "before"], ["image", "a.png"], ["text", "after"]]}
    other = {"model_name": "n", "response_content": [["image", "b.png"], ["image", "a.png"]]}
    prompt = [["text", "Draw"], ["image", "c.png"]]
    pair = {"id": "p", "response_a": answer, "response_b": other, "chosen": "B", "prompt_source": "s", "prompt_content": prompt}
    return {**pair, **changes}


def test_images_within_answers_are_shown_at_their_place(demo_pairs: Any, tmp_path: Path) -> None:
    """In either order: the judge's message holds texts and images as they stand in the file."""
    for number, name in enumerate(("a.png", "b.png", "c.png")):
        (tmp_path / name).write_bytes(png(demo_pairs, number))
    (tmp_path / "t2i.json").write_text(json.dumps({"pairs": [mmrb2_pair()]}))
    (row,) = mmrb2.BENCHMARK.load(tmp_path / "t2i.json", images=None, with_images=True)
    a, b, c = (png(demo_pairs, n) for n in range(3))
    assert (row.pair.preferred, row.pair.responses[1]) == (1, f"{IMAGE_MARK}\n{IMAGE_MARK}")
    for order, images in ((Order.GIVEN, [c, a, b, a]), (Order.SWAPPED, [c, b, a, a])):
        (message,) = build_messages(row.pair, order=order, template=PLAIN)
        assert [part.image for part in message.parts if part.image is not None] == images
        assert all(part.text or part.image for part in message.parts)
        text = "".join(IMAGE_MARK if part.image else part.text for part in message.parts)
        first, second = row.pair.shown(order)
        assert text == PLAIN.text.format(question=row.pair.question, first=first, second=second)
    assert row.pair.swap().swap() == row.pair
    assert build_messages(row.pair.swap(), order=Order.SWAPPED, template=PLAIN) == build_messages(
        row.pair, order=Order.GIVEN, template=PLAIN
    )
    (tmp_path / "b.png").unlink()
    with pytest.raises(MediaError, match="1 of 3 media files"):
        mmrb2.BENCHMARK.load(tmp_path / "t2i.json", images=None, with_images=True)


def test_multimodal_rewardbench(demo_pairs: Any, tmp_path: Path) -> None:
    """The order of the file, the sub-categories of its scorer, and texts that still have to be fetched."""
    (tmp_path / "i.png").write_bytes(png(demo_pairs, 0))
    row = {
        "ID": "PAIRS-1",
        "Text": "q",
        "Image": "i.png",
        "Output1": "x",
        "Output2": "y",
        "Better": "Output2",
        "Category": "safety",
    }
    (tmp_path / "all.json").write_text(json.dumps([row]))
    (found,) = multimodal_rewardbench.BENCHMARK.load(tmp_path / "all.json", images=None, with_images=True)
    assert (found.group, found.pair.preferred, found.pair.images) == ("safety/bias", 1, (png(demo_pairs, 0),))
    report, _ = run_bench(bench_settings("multimodal_rewardbench", tmp_path / "all.json", "baseline:first"), tmp_path / "out")
    assert list(report.official) == ["acc all: 0 / 1 = 0.0", "acc safety/bias: 0 / 1 = 0.0"]  # B is right, shown last
    inside = {**row, "Image": {"bytes": png(demo_pairs, 0), "path": None}}
    pq.write_table(pa.Table.from_pylist([inside]), tmp_path / "all.parquet")
    assert multimodal_rewardbench.BENCHMARK.load(tmp_path / "all.parquet", images=None, with_images=True)[0].pair == found.pair
    (tmp_path / "all.json").write_text(json.dumps([{**row, "Text": None}]))
    with pytest.raises(DataError, match="0_download_data"):
        multimodal_rewardbench.BENCHMARK.load(tmp_path / "all.json", images=None, with_images=True)


def test_a_judge_that_does_not_look_keeps_no_images(demo_pairs: Any, tmp_path: Path) -> None:
    """Images within the Hub's files of Multimodal RewardBench are read for a page when it shows them, each from its row."""
    images = [png(demo_pairs, n) for n in range(5)]
    texts = {"Text": "q", "Output1": "x", "Output2": "y", "Better": "Output1", "Category": "safety"}
    rows = [{**texts, "ID": f"PAIRS-{n}", "Image": {"bytes": image, "path": None}} for n, image in enumerate(images)]
    for name, part in (("a", rows[:3]), ("b", rows[3:])):
        pq.write_table(pa.Table.from_pylist(part), tmp_path / f"{name}.parquet", row_group_size=2)
    found = multimodal_rewardbench.BENCHMARK.load(tmp_path, images=None, with_images=False)
    assert [row.images_to_show() for row in found] == [(image,) for image in images]
    held = pickle.dumps([(row.pair, row.media) for row in found])
    assert not any(image in held for image in images)
    (tmp_path / "b.parquet").unlink()
    assert found[4].images_to_show() == ()


def test_rewardbench2(tmp_path: Path) -> None:
    """Every right answer against every wrong one; a prompt is right where all of its pairs are."""
    prompts = [
        {"id": "1", "prompt": "q", "chosen": ["right answer"], "rejected": ["a", "bb", "c"], "subset": "Math"},
        {"id": "tied:2", "prompt": "q", "chosen": ["red", "blue"], "rejected": ["dog", "elephants"], "subset": "Ties"},
    ]
    (tmp_path / "rb2.jsonl").write_text("".join(json.dumps(one) + "\n" for one in prompts))
    rows = rewardbench2.BENCHMARK.load(tmp_path / "rb2.jsonl", images=None, with_images=True)
    assert [row.cluster for row in rows] == ["1"] * 3 + ["tied:2"] * 4
    report, _ = run_bench(bench_settings("rewardbench2", tmp_path / "rb2.jsonl", "baseline:longest"), tmp_path / "out")
    assert report.scores.all_right.accuracy == 0.5
    assert "prompts with all pairs right (Acc+)" in [name for name, *_ in accuracy_rows(report)]


def lines_of(report: Report, start: str) -> list[str]:
    return [line for line in report.official if line.startswith(start)]


def test_the_official_figures_stand_beside_ours(tmp_path: Path) -> None:
    """One judge on one file: the length baseline by MM-RLHF's scorer; VL-RewardBench leaves its own failures out."""
    mm, _ = run_bench(bench_settings("mm_rlhf", published("mm_rlhf_rewardbench.jsonl"), "baseline:longest"), tmp_path / "mm")
    assert lines_of(mm, "Overall") == ["Overall Metrics:", "Overall Accuracy: 0.72", "Overall ACC+: 0.48"]
    assert lines_of(mm, "Total Items") == ["Total Items: 170"]
    data = published("vl_rewardbench.jsonl")
    rows = vl_rewardbench.BENCHMARK.load(data, images=None, with_images=False)
    texts = {"given": "<think>x</think><answer>1</answer>", "swapped": "<think>x</think><answer>2</answer>"}
    answered = [
        {"row": row.row, "order": order, "text": text if row.row % 2 else "I cannot say."}
        for row in rows
        for order, text in texts.items()
        for _ in range(3)
    ]
    (tmp_path / "half.jsonl").write_text("".join(json.dumps(line) + "\n" for line in answered))
    half, _ = run_bench(bench_settings("vl_rewardbench", data, f"replay:{tmp_path / 'half.jsonl'}"), tmp_path / "vl")
    assert (half.scores.accuracy.micro, half.scores.invalid_rate) == (0.5, 0.5)
    assert lines_of(half, "Overall Accuracy") == ["Overall Accuracy: 100.00"] * 2  # K = 1 and 3: what failed has vanished
    assert lines_of(half, "k=") == ["k=1 ----------------", "k=3 ----------------"]
    exported = (tmp_path / "vl" / "official.jsonl").read_text().splitlines()
    assert len(exported) == 3 * 1250
    assert official_lines("vl_rewardbench", tmp_path / "vl" / "official.jsonl")[: len(half.official)] == list(half.official)


def test_the_official_figures_of_both_orders(tmp_path: Path) -> None:
    """MMRB2 counts forward and reverse; who always says the first is right in every second trial."""
    data = published("mmrb2") / "reasoning_response_only.json"
    report, _ = run_bench(bench_settings("mmrb2", data, "baseline:first"), tmp_path)
    assert lines_of(report, "Accuracy") == ["Accuracy: 0.5000 (50.00%)"]
    assert lines_of(report, "Task") == ["Task: task4_reasoning"]


@pytest.mark.parametrize("name", sorted(PACKAGED))
def test_what_is_not_the_benchmark_is_refused(name: str, tmp_path: Path) -> None:
    """A file that is not there, one of another shape, an empty one: one sentence with the file's name."""
    for content in (None, '{"nothing": 1}\n', "[1]\n", "not json\n", ""):
        path = tmp_path / "t2i.jsonl"
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_text(content)
        with pytest.raises(DataError, match=r"t2i\.jsonl"):
            find_benchmark(name).load(path, images=None, with_images=False)
