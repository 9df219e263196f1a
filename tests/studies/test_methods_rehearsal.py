"""The method study in small: real trainers at two budgets, and what is refused."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from eval.studies.method_trials import MethodContext, run_methods
from eval.studies.methods import Settings
from eval.studies.study import Trial, read_records
from rewardlab.data.pairs import read_pairs, write_parquet
from rewardlab.errors import RewardlabError
from rewardlab.types import PreferencePair, choice_of
from rewardlab.verdicts.parse import format_verdict

SMALL = Settings(
    budgets=(150, 300),
    rates=(1e-3,),
    warmup_steps=1,
    rollout_batch_size=16,
    batch_size=8,
    max_tokens=16,
    group=4,
    window=8,
    value_steps=2,
    num_validation=2,
    num_test=4,
    num_votes=1,
    num_vote_pairs=1,
    num_unlike=2,
    value_batch_size=8,
    verify_pairs=4,
    verify_steps=2,
)


def judgment_of(pair: PreferencePair) -> str:
    """A judgment whose reasoning is the better response: it mentions what the two differ in, as one that verifies must."""
    preferred = pair.preferred or 0
    return format_verdict(choice_of(preferred, pair.order), pair.responses[preferred])


@pytest.fixture(scope="module")
def world(finished_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A quickstart's folder up to SFT, with an unlike set, whose pairs are tagged as hard."""
    run = tmp_path_factory.mktemp("world") / "run"
    shutil.copytree(finished_run / "rl", run / "sft")
    for name in ("distill", "demo"):
        shutil.copytree(finished_run / name, run / name)
    path = run / "distill" / "distilled.parquet"
    write_parquet([replace(pair, attempts="2", judgment=judgment_of(pair)) for pair in read_pairs(path)], path)
    shutil.copy(run / "demo" / "test.parquet", run / "demo" / "unlike.parquet")
    return run


def test_a_study_in_small(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the real trainers, of a verifying and of a critic-free method, and of preferences: one run meets both budgets,
    every number is there, all seeds share PAG's critic. Run again with an arm that fails, nothing else is run."""
    opener = partial(MethodContext, world, SMALL, tmp_path)
    report = run_methods(opener, tmp_path, ("consistency", "pag", "mpo", "right_votes"), num_seeds=1, workers=1)
    rows = {row["name"]: row for row in read_records(tmp_path)}
    learnt = [rows.pop(name) for name in sorted(rows) if name.startswith(("mpo", "right_votes"))]
    assert sorted((row["seed"], len(row["budgets"])) for row in learnt) == [*[(0, 2)] * 2, *[(100, 1)] * 6]
    for part in [part for row in learnt for part in row["budgets"]]:
        assert part["num_tokens"] >= part["budget"]
        assert min(part["comparisons"], part["steps"], part["train_cpu_s"]) > 0
    assert sorted(rows) == ["consistency-0.001-0", "pag-0.001-0", "pag-0.001-100", "stable_reinforce-0.001-100"]
    for row in rows.values():
        assert [part["num_tokens"] >= part["budget"] for part in row["budgets"]] == [True] * (2 if row["seed"] == 0 else 1)
        assert len(row["series"]["tokens"]) == len(row["series"]["right"]) > 0
    rewarded, verifying = rows["consistency-0.001-0"], rows["pag-0.001-0"]
    assert rewarded["budgets"][0]["num_tokens"] < rewarded["budgets"][1]["num_tokens"]
    assert (verifying["fit"]["steps"], "first" in verifying["explained"]) == (2, True)
    assert {"vote_15", "unlike"} <= rewarded["budgets"][1].keys()
    assert not {"vote_15", "unlike"} & rewarded["budgets"][0].keys()
    assert 0 <= verifying["budgets"][1]["revision"]["last"] == verifying["budgets"][1]["accuracy"]
    assert "accuracy" in verifying["start"]
    critics = [path.name.split("-") for path in sorted((tmp_path / "critics").iterdir())]
    assert [(recipe, seed) for recipe, _, seed in critics] == [("pag", "100")]
    assert "## Revision" in report.read_text()

    runs: list[str] = []

    def run(self: MethodContext, trial: Trial) -> dict[str, Any]:
        runs.append(trial.name)
        raise ValueError("no rollouts")

    monkeypatch.setattr(MethodContext, "run", run)
    with pytest.raises(RewardlabError, match=r"no_filter-0.001-0 \(ValueError: no rollouts\)"):
        run_methods(opener, tmp_path, ("consistency", "no_filter"), num_seeds=1, workers=1)
    assert runs == ["no_filter-0.001-0"]
