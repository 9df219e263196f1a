"""The method study in small: real trainers at two budgets, records that stand in for a folder, what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from eval.studies.method_report import write_report
from eval.studies.method_study import run_study
from eval.studies.method_summary import summarize
from eval.studies.method_trials import MethodContext
from eval.studies.methods import MethodTrial, Settings
from eval.studies.runner import read_records, restore
from rewardlab.data.pairs import read_pairs, write_parquet
from rewardlab.errors import ConfigError, RewardlabError
from rewardlab.types import PreferencePair, choice_of
from rewardlab.verdicts.parse import format_verdict

RECIPES = Path(__file__).parents[2] / "configs" / "rl"
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


@pytest.fixture(scope="module")
def study(world: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Callable[[Path, Settings], Any], Path]:
    """(opener of a context, folder of a finished study of a verifying and of a critic-free method)."""
    folder = tmp_path_factory.mktemp("study")

    def opener(out: Path, settings: Settings = SMALL) -> partial[MethodContext]:
        return partial(MethodContext, world, settings, out, RECIPES)

    lines: list[str] = []
    arms = ("consistency", "pag")
    run_study(opener(folder / "out"), folder / "out", folder / "r.jsonl", arms, num_seeds=1, workers=1, show=lines.append)
    assert "0 of 4 trials are done" in lines[0]
    assert "4 of 4 trials are done" in lines[1]
    return opener, folder


def test_a_study_in_small(study: Any) -> None:
    """Through the real trainers: both budgets are met in one run, every number is there, one critic serves a seed."""
    _, folder = study
    rows = {row["name"]: row for row in read_records(folder / "out")}
    assert sorted(rows) == [
        "consistency-0.001-0",
        "pag-0.001-0",
        "pag-0.001-100",
        "stable_reinforce-0.001-100",
    ]
    for row in rows.values():
        assert [part["num_tokens"] >= part["budget"] for part in row["budgets"]] == [True] * (2 if row["seed"] == 0 else 1)
        assert len(row["series"]["tokens"]) == len(row["series"]["right"]) > 0
    paid, verifying = rows["consistency-0.001-0"], rows["pag-0.001-0"]
    assert paid["budgets"][0]["num_tokens"] < paid["budgets"][1]["num_tokens"]
    assert (verifying["fit"]["steps"], "first" in verifying["explained"]) == (2, True)
    assert {"vote_15", "unlike"} <= paid["budgets"][1].keys()
    assert not {"vote_15", "unlike"} & paid["budgets"][0].keys()
    assert 0 <= verifying["budgets"][1]["revision"]["last"] == verifying["budgets"][1]["accuracy"]
    assert "accuracy" in verifying["start"]
    critics = [path.name.split("-") for path in sorted((folder / "out" / "critics").iterdir())]
    assert [(recipe, seed) for recipe, _, seed in critics] == [("pag", "100")], "one for all seeds"
    assert "## Revision" in (folder / "r.md").read_text()


def test_completions_in_the_place_of_a_critic(study: Any, tmp_path: Path) -> None:
    """There is no fit; the tokens of completions are no part of the budget, and it is only the smaller one."""
    opener, folder = study
    record = opener(tmp_path)().run(MethodTrial("oracle_ppo", 1e-3, 0))
    assert (record["fit"], record["oracle"]) == (None, {"completions": 8, "stride": 4})
    assert [row["budget"] for row in record["budgets"]] == [150]
    assert record["oracle_tokens"] > record["budgets"][0]["num_tokens"]
    assert record["explained"]
    start = json.loads((folder / "out" / "start.json").read_text())
    summary = summarize([*read_records(folder / "out"), {"name": "oracle_ppo-0.001-0", **record}], start, 1)
    assert ["oracle_ppo" in summary["table"][budget] for budget in ("150", "300")] == [True, False]
    assert "No critic but completions" in write_report(summary, tmp_path / "r.md").read_text()
    assert (tmp_path / "r.png").exists()


def test_records_stand_in_for_a_folder(study: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A study begun in an empty folder does nothing again; a trial that is missing is run; another study is refused."""
    opener, folder = study
    records = tmp_path / "r.jsonl"
    lines = (folder / "r.jsonl").read_text().splitlines()
    records.write_text("\n".join(line for line in lines if '"consistency-0.001-0"' not in line) + '\n{"kind": "tr')
    runs: list[str] = []
    original = MethodContext.run

    def run(self: MethodContext, trial: MethodTrial) -> dict[str, Any]:
        runs.append(trial.name)
        return original(self, trial)

    monkeypatch.setattr(MethodContext, "run", run)
    monkeypatch.setattr(MethodContext, "start", None)
    options: dict[str, Any] = {"num_seeds": 1, "workers": 1}
    out = tmp_path / "out"
    run_study(opener(out), out, records, ("consistency", "pag"), end=0.0, **options)
    assert runs == []
    run_study(opener(out), out, records, ("consistency", "pag"), **options)
    assert runs == ["consistency-0.001-0"]
    assert sorted(json.loads(line).get("name", "") for line in records.read_text().splitlines())[1:] == sorted(
        row["name"] for row in read_records(folder / "out")
    )
    with pytest.raises(ConfigError, match=r"differs in settings.group \(4 there, 2 here\)"):
        run_study(opener(tmp_path / "x", replace(SMALL, group=2)), tmp_path / "x", records, ("pag",), **options)
    with pytest.raises(ConfigError, match="unknown arm nothing"):
        run_study(opener(out), out, records, ("nothing",), **options)


def test_another_recipe_is_refused(study: Any, tmp_path: Path) -> None:
    """A record of an arm whose recipe has changed since does not count as that arm's."""
    opener, folder = study
    records = tmp_path / "r.jsonl"
    records.write_text((folder / "r.jsonl").read_text().replace('"clip_high":0.28', '"clip_high":0.3'))
    with pytest.raises(ConfigError, match=r"pag-0.001-\d+ was run with another recipe: clip_high \(0.3 there, 0.28 here\)"):
        run_study(opener(tmp_path / "out"), tmp_path / "out", records, ("pag",), num_seeds=1, workers=1)
    records.write_text((folder / "r.jsonl").read_text().replace('"max_grad_norm":1.0', '"max_grad_norm":2.0'))
    with pytest.raises(ConfigError, match=r"another recipe: max_grad_norm \(2.0 there, 1.0 here\)"):  # of the code, no YAML
        run_study(opener(tmp_path / "other"), tmp_path / "other", records, ("pag",), num_seeds=1, workers=1)
    records.write_text((folder / "r.jsonl").read_text().replace('"fit_steps":null', '"fit_steps":6'))
    with pytest.raises(ConfigError, match=r"another recipe: fit_steps \(6 there, None here\)"):
        run_study(opener(tmp_path / "third"), tmp_path / "third", records, ("pag",), num_seeds=1, workers=1)


def test_one_trial_that_fails_ends_no_other(study: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opener, folder = study
    records = tmp_path / "r.jsonl"
    lines = (folder / "r.jsonl").read_text().splitlines()
    records.write_text("\n".join(line for line in lines if '-0.001-0"' not in line) + "\n")
    kept = {json.loads(line)["name"]: json.loads(line) for line in lines[1:]}

    def run(self: MethodContext, trial: MethodTrial) -> dict[str, Any]:
        if trial.arm == "consistency":
            raise ValueError("no checker")
        return {key: value for key, value in kept[trial.name].items() if key not in ("kind", "name")}

    monkeypatch.setattr(MethodContext, "run", run)
    with pytest.raises(RewardlabError, match=r"consistency-0.001-0 \(ValueError: no checker\)"):
        run_study(opener(tmp_path / "o"), tmp_path / "o", records, ("consistency", "pag"), num_seeds=1, workers=1)
    assert "pag-0.001-0" in {row["name"] for row in read_records(tmp_path / "o")}
    assert (tmp_path / "r.md").exists()


def test_what_cannot_be_studied(world: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="finished quickstart"):
        MethodContext(tmp_path / "none", SMALL, tmp_path / "out", RECIPES)
    with pytest.raises(ConfigError, match="20 pairs are fewer than 15 to test and 10 to choose a rate by"):
        MethodContext(world, replace(SMALL, num_test=15, num_validation=10), tmp_path / "out", RECIPES)
    with pytest.raises(ConfigError, match=r"has no .*\.yaml; expected the folder of the methods' recipes"):
        MethodContext(world, SMALL, tmp_path / "out", tmp_path)
    empty = tmp_path / "empty.jsonl"
    restore(empty, tmp_path / "out", {})  # no file yet: nothing is brought
    assert not (tmp_path / "out").exists()
