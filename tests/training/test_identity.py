"""A run goes on with the settings that make it what it is; others may change, and that is said."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rewardlab.config import SFTConfig
from rewardlab.errors import ConfigError
from rewardlab.training.run.folder import changed_settings, decides, has_begun, open_run, text_of_changes
from rewardlab.training.run.runner import record_models

TRAINED = '{"step": 1, "loss": 0.1}\n'
START = '{"step": 0, "eval/accuracy": 0.5}\n'


def config(**changes: Any) -> SFTConfig:
    return SFTConfig.model_validate({"model": "none"} | changes)


def run_json(out: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((out / "run.json").read_text())
    return read


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("batch_size", True),
        ("evaluation.batch_size", False),
        ("evaluation.every_steps", True),
        ("micro_batch_size", False),
        ("health.window", False),
        ("consistency.base_url", False),
        ("consistency.weight", True),
        ("dtype", False),
    ],
)
def test_which_settings_decide(key: str, expected: bool) -> None:
    assert decides(key, 1, 2) is expected


def test_the_address_of_a_judge_does_not_decide() -> None:
    """A cluster gives a run that goes on another node; another model, or one more judge, is another run."""
    here, there = "openai:m@http://node-3:8000/v1", "openai:m@https://node-7:8000/v1"
    for key, before, now, expected in (
        ("judge", here, here.replace("node-3", "node-7"), False),
        ("judge", here, here.replace("openai:m", "openai:n"), True),
        ("judge", "prob:hf:a", "prob:hf:b", True),
        ("other_judges", [here], [there], False),
        ("other_judges", [here], [here, "prob:hf:a"], True),
        ("signs.second_judge", here, there, False),
        ("signs.second_judge", None, there, True),
        ("model", here, there, True),
    ):
        assert decides(key, before, now) is expected, (key, before, now)


def test_changes_are_named_by_their_keys() -> None:
    """A mapping that is there on one side alone is one change."""
    before = {"a": 1, "lora": None, "evaluation": {"seed": 0, "patience": 2}}
    now = {"a": 1, "lora": {"r": 4}, "evaluation": {"seed": 1, "patience": 2}, "new": None}
    changes = changed_settings(before, now)
    assert changes == {"evaluation.seed": (0, 1), "lora": (None, {"r": 4})}
    assert text_of_changes({"data_workers": (4, 2)}) == "resumes with data_workers 2 (was 4)"
    assert text_of_changes({"micro_batch_tokens": (None, 2)}) == (
        "resumes with micro_batch_tokens 2 (was null); from here on its numbers differ from the same run's by rounding"
    )


def test_a_run_goes_on_with_other_surroundings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are in ``run.json`` and in the log, and what was recorded beside them stays."""
    open_run(tmp_path, config(), data="d")
    (tmp_path / "run.json").write_text(json.dumps({**run_json(tmp_path), "commit": "first", "attention": {"model": "sdpa"}}))
    (tmp_path / "metrics.jsonl").write_text(TRAINED)
    capsys.readouterr()
    other = config(attn_implementation="eager", dtype="bfloat16", data_workers=1, evaluation={"batch_size": 8})
    open_run(tmp_path, other, data="d")
    assert (run_json(tmp_path)["config"]["attn_implementation"], run_json(tmp_path)["commit"]) == ("eager", "first")
    said = capsys.readouterr().err
    assert (
        "resumes with attn_implementation eager (was auto), data_workers 1 (was 4), dtype bfloat16 (was auto), "
        "evaluation.batch_size 8 (was null); from here on its numbers differ from the same run's by rounding" in said
    )
    (tmp_path / "metrics.jsonl").write_text(TRAINED)  # without a checkpoint, the run before has begun anew
    with pytest.raises(ConfigError, match=r"other settings or data \(seed\)"):
        open_run(tmp_path, config(seed=1), data="d")


def test_another_attention_of_auto_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On another machine the same config may read its weights in another way."""
    open_run(tmp_path, config(), data="d")
    for attention in ("sdpa", "sdpa", "eager"):
        model = torch.nn.Linear(1, 1)
        model.config = SimpleNamespace(_attn_implementation=attention)  # type: ignore[assignment]
        record_models(tmp_path, SimpleNamespace(model=model))
    first, second, third = capsys.readouterr().err.splitlines()
    assert first == second
    assert first.endswith("model: attn_implementation sdpa, weights float32")
    assert third.endswith(
        "model: attn_implementation eager, weights float32; before: model: attn_implementation sdpa, weights float32, so "
        "numbers differ by rounding"
    )
    engine = SimpleNamespace(module=model, config={"zero_optimization": {"stage": 2}})  # as DeepSpeed wraps a reference
    record_models(tmp_path, SimpleNamespace(model=model, ref_model=engine))
    assert run_json(tmp_path)["attention"] == {"model": "eager", "reference": "eager"}


def test_the_file_of_another_program(tmp_path: Path) -> None:
    for text in ("[]", '{"config": 1, "data": ""}', '{"config": {}}', "{torn"):
        (tmp_path / "run.json").write_text(text)
        with pytest.raises(ConfigError, match=r"run.json: does not belong to a training run; use another --out"):
            open_run(tmp_path, config(), data="d")
        assert (tmp_path / "run.json").read_text() == text


def test_what_a_failed_start_made_is_not_of_other_settings(tmp_path: Path) -> None:
    """The watchdog's events and a policy's anchors go with the start; those of the same settings stay."""
    open_run(tmp_path, config(), data="d")
    for name in ("health.jsonl", "anchors.jsonl"):
        (tmp_path / name).write_text("{}\n")
    open_run(tmp_path, config(), data="d")
    assert (tmp_path / "health.jsonl").exists()
    assert (tmp_path / "anchors.jsonl").exists()
    open_run(tmp_path, config(batch_size=8), data="d")
    assert not (tmp_path / "health.jsonl").exists()
    assert not (tmp_path / "anchors.jsonl").exists()


def test_a_start_that_failed_is_no_run(tmp_path: Path) -> None:
    """An evaluation of the model begun with, and rollouts without a step: other settings take the folder, and evaluate anew;
    the same ones keep the evaluation."""
    open_run(tmp_path, config(), data="d")
    for same in (True, False):
        (tmp_path / "metrics.jsonl").write_text(START + '{"st')
        (tmp_path / "evaluations.jsonl").write_text('{"step": 0, "metrics": {}, "scores": []}\n')
        (tmp_path / "samples.jsonl").write_text('{"step": 0}\n')
        assert not has_begun(tmp_path)
        assert open_run(tmp_path, config() if same else config(seed=1), data="d") is None
        assert (tmp_path / "metrics.jsonl").exists() is same
        assert (tmp_path / "evaluations.jsonl").exists() is same
        assert not same or (tmp_path / "metrics.jsonl").read_text() == START
        assert not same or (tmp_path / "samples.jsonl").read_text() == ""
    assert run_json(tmp_path)["config"]["seed"] == 1
    (tmp_path / "value").mkdir()
    (tmp_path / "value" / "metrics.jsonl").write_text(TRAINED)
    assert has_begun(tmp_path)  # a critic that was fitted first would be taken up
    shutil.rmtree(tmp_path / "value")
    (tmp_path / "metrics.jsonl").write_text(START + TRAINED)
    assert has_begun(tmp_path)
    with pytest.raises(ConfigError, match=r"\(seed\)"):
        open_run(tmp_path, config(), data="d")
