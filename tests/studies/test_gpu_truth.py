"""What is tried on a GPU, tried without one: commands that the configs take, a comparison, a stage that takes too long."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eval.gpu_truth import RECIPES, Options, cases_of, curves_of, last_metric, run_stage, stage_equal
from rewardlab.config import RLConfig, SFTConfig, find_config, load_config, parse_overrides


def options_for(out: Path, **changes: Any) -> Options:
    values = {"out": out, "on_cpu": True, "minutes": 5.0, "model": "Qwen/Qwen2.5-VL-3B-Instruct", "image_px": 56, "answer": 12}
    return Options(**{**values, **changes})


@pytest.mark.parametrize("on_cpu", [True, False])
def test_the_configs_take_the_commands(tmp_path: Path, on_cpu: bool) -> None:
    """Every key of every training exists and has a value that fits, in small and in the sizes of a card."""
    cases = cases_of(options_for(tmp_path, on_cpu=on_cpu, answer=256), tmp_path / "model", tmp_path / "pairs.parquet")
    assert {f"rl {recipe}" for recipe in RECIPES} <= cases.keys()
    for name, (words, _) in cases.items():
        stage = words[3]
        if stage in ("sft", "rl"):
            keys = parse_overrides([word for word in words if "=" in word])
            schema: Any = SFTConfig if stage == "sft" else RLConfig
            config = load_config(schema, Path(find_config(words[words.index("--config") + 1])), keys, model="m")
            assert config.max_steps == 2, name


def test_equal(tmp_path: Path) -> None:
    """The packaged judge in bfloat16 says what it says in float32, for the most part, and its gradient points the same way."""
    stage_equal(options_for(tmp_path))
    rows = json.loads((tmp_path / "equal.json.part").read_text())
    assert rows["greedy_texts_equal"] >= 0.5
    assert 0 < rows["logprob_gap_mean"] < 0.05
    assert rows["gradient_cosine"] > 0.99
    assert rows["loss"][0] == pytest.approx(rows["loss"][1], rel=0.02)


def test_a_stage_ends_with_its_minutes(tmp_path: Path) -> None:
    """It is not done, so that it is run again; one that is done is not."""
    assert not run_stage("equal", options_for(tmp_path, minutes=0.01))
    assert not (tmp_path / "equal.json").exists()
    (tmp_path / "equal.json").write_text("{}")
    assert run_stage("equal", options_for(tmp_path))


def test_metrics_of_a_run(tmp_path: Path) -> None:
    """The last value of one, and curves of what is there."""
    assert last_metric(tmp_path) is None
    (tmp_path / "rl").mkdir()
    rows = [{"step": 1, "importance/gap": 0.5, "loss": 2.0}, {"step": 2, "importance/gap": 0.25}, {"step": 3}]
    (tmp_path / "rl" / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert last_metric(tmp_path / "rl") == 0.25
    assert curves_of(tmp_path)["rl"]["loss"] == [[1, 2.0]]
    assert curves_of(tmp_path)["sft"]["loss"] == []
