"""Damaged files of every benchmark end in one short sentence, or are read where nothing is lost."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from rewardlab.benchmarks.official import official_lines
from rewardlab.benchmarks.registry import find_benchmark
from rewardlab.benchmarks.runner import run_bench
from rewardlab.benchmarks.settings import bench_settings
from rewardlab.curation.decontaminate import BenchmarkFile, load_benchmark_pairs
from rewardlab.errors import ConfigError, DataError

VL = {"id": "RLAIF-V-1", "prompt": "q?", "chosen": "a", "rejected": "b", "image": "x.png"}
MM = {"id": "1", "image": "mcq/x.png", "prompt": "q?", "chosen": "a", "rejected": "b"}
MULTI = {
    "ID": "nocaps-1",
    "Text": "q?",
    "Image": "x.png",
    "Output1": "a",
    "Output2": "b",
    "Better": "Output1",
    "Category": "vqa",
}
SIDE = {"model_name": "m", "response_content": [["text", "q?"]]}
OTHER = {"model_name": "n", "response_content": [["text", "b"]]}
MMRB2 = {"id": "1", "response_a": SIDE, "response_b": OTHER, "chosen": "A"}
RB2 = {"id": "1", "prompt": "q?", "chosen": ["a"], "rejected": ["b"], "subset": "Math"}

FILES: dict[str, tuple[str, Any]] = {
    "vl_rewardbench": ("data.jsonl", VL),
    "mm_rlhf": ("data.jsonl", MM),
    "multimodal_rewardbench": ("all_data.json", [MULTI]),
    "mmrb2": ("t2i.json", {"pairs": [MMRB2]}),
    "rewardbench2": ("data.jsonl", RB2),
}
DAMAGE = {
    "binary": lambda text: b"\x89PNG\0\0" + bytes(range(256)) * 20,
    "UTF-16": lambda text: text.encode("utf-16"),
    "gzip": lambda text: gzip.compress(text.encode()),
    "deep": lambda text: b"[" * 100_000,
    "cut off": lambda text: text.encode()[: len(text) // 2],
    "Latin-1": lambda text: text.replace("q?", "\xe9?").encode("latin-1"),
    "list of numbers": lambda text: b"[1, 2, 3]",
    "number": lambda text: b"3",
    "column misspelt": lambda text: text.replace('"id"', '"idd"').replace('"ID"', '"IDD"').replace("pairs", "pair").encode(),
    "empty": lambda text: b"",
}


def load(name: str, path: Path) -> int:
    return len(find_benchmark(name).load(path, images=None, with_images=False))


@pytest.mark.parametrize("damage", sorted(DAMAGE))
@pytest.mark.parametrize("name", sorted(FILES))
def test_a_damaged_file_is_one_sentence(name: str, damage: str, tmp_path: Path) -> None:
    """Its name, what is wrong, what was expected; no bytes, no class of Python's."""
    file, content = FILES[name]
    path = tmp_path / file
    path.write_bytes(DAMAGE[damage](json.dumps(content, ensure_ascii=False)))
    with pytest.raises(DataError) as caught:
        load(name, path)
    said = str(caught.value).replace(str(tmp_path), "")
    assert file in said
    assert len(said) < 500
    assert "Error" not in said
    assert "object has no attribute" not in said


@pytest.mark.parametrize("name", ["vl_rewardbench", "mm_rlhf", "rewardbench2", "multimodal_rewardbench", "mmrb2"])
def test_a_byte_order_mark_and_blank_lines_lose_nothing(name: str, tmp_path: Path) -> None:
    """As editors leave them."""
    file, content = FILES[name]
    (tmp_path / file).write_text("\ufeff" + json.dumps(content) + "\n\n")
    assert load(name, tmp_path / file) == 1


def test_a_missing_column_is_named_beside_those_there(tmp_path: Path) -> None:
    """With the row, and the line of the file."""
    lines = [VL, {**{key: value for key, value in VL.items() if key != "image"}, "img": "x.png"}]
    (tmp_path / "d.jsonl").write_text("\n\n".join(map(json.dumps, lines)))
    with pytest.raises(DataError, match=r"row 1 \(line 3\).*lacks 'image', has id, prompt, chosen, rejected, img"):
        load("vl_rewardbench", tmp_path / "d.jsonl")


def test_vl_rewardbenchs_own_json_lines(tmp_path: Path) -> None:
    """The columns of its repository: the better response by its rank."""
    rows = [
        {"id": f"RLAIF-V-{n}", "query": "<image>\nq?", "response": ["a", "b"], "human_ranking": ranking, "image_path": "x.png"}
        for n, ranking in enumerate(([0, 1], [1, 0]))
    ]
    (tmp_path / "d.jsonl").write_text("\n".join(map(json.dumps, rows)))
    loaded = find_benchmark("vl_rewardbench").load(tmp_path / "d.jsonl", images=None, with_images=False)
    assert [row.pair.preferred for row in loaded] == [0, 1]
    assert {row.pair.question for row in loaded} == {"q?"}
    assert {row.group for row in loaded} == {"hallucination"}
    rows[1]["human_ranking"] = [0, 0]
    (tmp_path / "d.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(DataError, match="expected 0 for the better"):
        load("vl_rewardbench", tmp_path / "d.jsonl")


@pytest.mark.parametrize("damage", ["binary", "UTF-16", "gzip", "deep", "number", "empty"])
def test_damaged_outputs(damage: str, tmp_path: Path) -> None:
    """The official scorers' files as well."""
    (tmp_path / "o.jsonl").write_bytes(DAMAGE[damage](json.dumps({"id": 1})))
    for name in ("vl_rewardbench", "mm_rlhf", "mmrb2"):
        with pytest.raises(DataError) as caught:
            official_lines(name, tmp_path / "o.jsonl", tmp_path)
        assert len(str(caught.value)) < 500 + len(str(tmp_path))


def test_a_file_of_another_benchmark_is_refused(tmp_path: Path) -> None:
    """VL-RewardBench's columns are MM-RLHF-RewardBench's, too; a part of the right file still runs."""
    other = [{**MM, "id": str(n), "image": f"vl_reward/img/{n}.jpg"} for n in range(1250)]
    (tmp_path / "d.jsonl").write_text("\n".join(map(json.dumps, other)))
    settings = bench_settings("mm_rlhf", tmp_path / "d.jsonl", "baseline:first")
    with pytest.raises(DataError, match=r"is not mm_rlhf: 1,250 of 1,250 rows .*mcq, long.*as many rows as vl_rewardbench"):
        run_bench(settings, tmp_path / "out")
    (tmp_path / "d.jsonl").write_text("\n".join(map(json.dumps, [MM] * 3 + other[:2])))
    assert run_bench(settings, tmp_path / "out")[0].scores.num_pairs == 5


def test_the_right_benchmark_is_named(tmp_path: Path) -> None:
    """By the ids and media of the rows, before any is read as another's; wherever a benchmark's file is read."""
    (tmp_path / "mm.jsonl").write_text("\n".join(json.dumps({**MM, "image": f"{kind}/1.png"}) for kind in ("mcq", "long")))
    vl = [{**MM, "id": name, "image": f"i/{name}.png"} for name in ("RLAIF-V-1", "mathverse_2", "wildvision-battle-3")]
    (tmp_path / "vl.jsonl").write_text("\n".join(map(json.dumps, vl)))
    for wrong, right, file in (("vl_rewardbench", "mm_rlhf", "mm"), ("mm_rlhf", "vl_rewardbench", "vl")):
        data, number = tmp_path / f"{file}.jsonl", {"mm": 2, "vl": 3}[file]
        message = rf"is not {wrong}: {number} of its first {number} rows are of {right}; `rewardlab bench run {right}"
        with pytest.raises(DataError, match=message):
            run_bench(bench_settings(wrong, data, "baseline:first"), tmp_path / "out")
        with pytest.raises(DataError, match=message):
            load_benchmark_pairs([BenchmarkFile(wrong, data, None, texts_only=True)])
        assert run_bench(bench_settings(right, data, "baseline:first"), tmp_path / right)[0].scores.num_pairs == number


@pytest.mark.parametrize(("name", "near"), [("vl-rewardbench", "vl_rewardbench"), ("MM_RLHF", "mm_rlhf"), ("mmrb", "mmrb2")])
def test_a_misspelt_benchmark_is_guessed(name: str, near: str) -> None:
    """Beside the names there are."""
    with pytest.raises(ConfigError, match=rf"did you mean {near}\?\); expected one of vl_rewardbench, mm_rlhf"):
        find_benchmark(name)
