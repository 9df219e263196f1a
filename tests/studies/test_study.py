"""The machinery of studies: what is planned, kept, resumed and refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import BaseModel

from eval.studies.study import Trial, flat, make_once, path_of, plan, read_records, run_trials
from eval.studies.tables import cell, mean_of, t_interval, table
from rewardlab.errors import ConfigError, RewardlabError


class Config(BaseModel):
    model: str = "m"
    rate: float = 1.0


class Context:
    """A study whose trials double their seed; the arm ``bad`` fails."""

    steps, rate = 1, 1.0
    runs: list[str] = []  # noqa: RUF012

    def identity(self) -> dict[str, Any]:
        return {"settings": {"steps": self.steps, "budgets": (1, 2)}, "judge": "j"}

    def start(self) -> dict[str, Any]:
        self.runs.append("start")
        return {"accuracy": 0.5}

    def prepare(self, start: dict[str, Any]) -> None:
        self.base = start["accuracy"]

    def config_of(self, trial: Trial) -> Config:
        return Config(model=f"folder of {trial.name}", rate=self.rate)

    def run(self, trial: Trial) -> dict[str, Any]:
        self.runs.append(trial.name)
        if trial.arm == "bad":
            raise ValueError("no numbers")
        return {"accuracy": self.base + trial.seed}


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(Context, "runs", [])
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_plans() -> None:
    """Whole seeds first, an arm that is named twice once; names are files."""
    trials = plan(("x", "y"), ("y", "x", "y"), range(2), (1e-4, 3e-4))
    assert [trial.name for trial in trials[:4]] == ["y-0.0001-0", "x-0.0001-0", "y-0.0003-0", "x-0.0003-0"]
    assert [trial.seed for trial in trials] == [0] * 4 + [1] * 4
    assert Trial(2, "x").name == "x-2"
    with pytest.raises(ConfigError, match="unknown arm 'z'; expected some of x, y"):
        plan(("x", "y"), ("x", "z"), (0,))
    for arms, seeds in (((), (0,)), (("x",), ())):
        with pytest.raises(ConfigError, match="at least one"):
            plan(("x",), arms, seeds)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_finished_trials_are_kept(tmp_path: Path, workers: int) -> None:
    """A failed trial ends no other; run again, only it is run, and the start is not measured again."""
    trials = plan(("x", "bad"), ("x", "bad"), (0, 1))
    for runs in (["start", "x-0", "bad-0", "x-1", "bad-1"], ["bad-0", "bad-1"])[: 3 - workers]:
        Context.runs.clear()
        with pytest.raises(RewardlabError, match=r"2 trials failed: bad-\d \(ValueError: no numbers\)"):
            run_trials(Context, trials, tmp_path, workers=workers)
        assert workers > 1 or runs == Context.runs  # other processes have lists of their own
    assert torch.get_num_threads() == 1
    records = read_records(tmp_path)
    assert [(record["name"], record["accuracy"]) for record in records] == [("x-0", 0.5), ("x-1", 1.5)]
    assert all(record.keys() >= {"arm", "seed", "wall_s", "cpu_s", "config"} for record in records)


def test_another_study_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other settings, and another config of an arm; another folder of the model is no other config."""
    trials = [Trial(0, "x")]
    run_trials(Context, trials, tmp_path, workers=1)
    run_trials(Context, trials, tmp_path, workers=1)
    monkeypatch.setattr(Context, "rate", 2.0)
    with pytest.raises(ConfigError, match=r"x-0\.json: run with .* arm: config.rate \(1.0 there, 2.0 here\); remove it"):
        run_trials(Context, trials, tmp_path, workers=1)
    monkeypatch.setattr(Context, "steps", 2)
    with pytest.raises(ConfigError, match=r"holds a study that differs in settings.steps \(1 there, 2 here\)"):
        run_trials(Context, trials, tmp_path, workers=1)
    assert Context.runs == ["start", "x-0"]


def test_a_new_key_at_its_default_is_no_other_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record keeps the whole config, so that a key that came later invalidates only trials that set it."""
    run_trials(Context, [Trial(0, "x")], tmp_path, workers=1)
    path = path_of(Trial(0, "x"), tmp_path)
    record = json.loads(path.read_text())
    assert record["config"] == {"rate": 1.0}
    path.write_text(json.dumps(record | {"config": {}}))
    run_trials(Context, [Trial(0, "x")], tmp_path, workers=1)
    monkeypatch.setattr(Context, "rate", 2.0)
    for kept in ({}, "a hash"):
        path.write_text(json.dumps(record | {"config": kept}))
        with pytest.raises(ConfigError, match="another config"):
            run_trials(Context, [Trial(0, "x")], tmp_path, workers=1)


def test_damaged_files_name_themselves(tmp_path: Path) -> None:
    run_trials(Context, [Trial(0, "x")], tmp_path, workers=1)
    path_of(Trial(0, "x"), tmp_path).write_text("{")
    with pytest.raises(ConfigError, match=r"x-0\.json: damaged"):
        read_records(tmp_path)
    (tmp_path / "start.json").write_text("[1]")
    with pytest.raises(ConfigError, match=r"start\.json: damaged"):
        run_trials(Context, [Trial(0, "x")], tmp_path, workers=1)


def test_what_is_made_once_is_read_afterwards(tmp_path: Path) -> None:
    assert make_once(tmp_path / "a" / "fit.json", lambda: {"n": 1}) == {"n": 1}
    assert make_once(tmp_path / "a" / "fit.json", lambda: {"n": 2}) == {"n": 1}
    assert json.loads((tmp_path / "a" / "fit.json").read_text()) == {"n": 1}
    assert flat({"a": {"b": 1, "c": {"d": 2}}, "e": 3}) == {"a.b": 1, "a.c.d": 2, "e": 3}


def test_means_by_hand() -> None:
    """0.8, 0.6 and 0: mean 7/15, deviation 0.4163, t(2) 4.3027."""
    assert t_interval([0.8, 0.6, 0.0]) == pytest.approx((-0.5675, 1.5009), abs=1e-3)
    assert mean_of([0.5]) == {"mean": 0.5, "interval": None}
    assert mean_of([0.5, None]) is mean_of([]) is None
    assert cell(mean_of([0.5, 0.5]), 100, sign=True) == "+50.0 [+50.0, +50.0]"
    assert (cell(None), cell(mean_of([1234.0, 1236.0]), digits=0)) == ("–", "1,235")
    assert table(["a", "b"], [["1", "2"]]) == ["", "| a | b |", "|---|---|", "| 1 | 2 |", ""]
