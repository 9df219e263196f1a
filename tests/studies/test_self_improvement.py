"""The study of self-improvement: the reward of the majority, its stages in small and gone on with, the report's arithmetic."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from eval.studies.methods import Settings as MethodSettings
from eval.studies.plans import Trial, plan
from eval.studies.runner import read_records, run_trials
from eval.studies.self_improvement import ARMS, Settings, plan_lines, rl_config, sft_config, stages_of
from eval.studies.self_improvement_report import markdown, summarize, write_report
from eval.studies.self_improvement_trials import SelfImprovementContext
from eval.studies.vote_reward import VoteReward
from rewardlab.data.pairs import read_pairs, write_parquet
from rewardlab.rewards.rollout import Rollout, Scored, Trajectory

RECIPES = Path(__file__).parents[2] / "configs" / "rl"
TRAINING = MethodSettings(warmup_steps=1, rollout_batch_size=16, batch_size=8, max_tokens=16, group=4)
SMALL = Settings(num_tokens=100, num_pairs=4, samples=2, alpha=1.0, sft_epochs=1, num_test=2, training=TRAINING)


def test_a_right_majority_is_paid_to_its_whole_group() -> None:
    """Right, right, wrong: paid. Right and wrong: a tie. Right beside two without a verdict: paid. The other order of a pair is
    another group; a rollout that cannot be scored stays so."""
    groups = [("a", "given", "rrw"), ("a", "swapped", "rw"), ("b", "given", "r--"), ("c", "given", "w?")]
    rows = [({"pair_id": pair, "order": order}, mark) for pair, order, marks in groups for mark in marks]
    rollouts = [Rollout(row, [], Trajectory([1]), "") for row, _ in rows]

    def inner(rollouts: Any, step: int) -> Scored:
        marks = [mark for _, mark in rows]
        rewards = [None if mark == "?" else float(mark == "r") for mark in marks]
        return Scored(rewards, [float(mark == "r") for mark in marks], [mark in "rw" for mark in marks])

    scored = VoteReward(inner, 0.5)(rollouts, 0)
    assert scored.rewards == [1.5, 1.5, 0.5, 1.0, 0.0, 1.5, 0.5, 0.5, 0.0, None]
    assert scored.metrics["reward/majority_right"].value == 0.5  # type: ignore[union-attr]
    assert VoteReward(lambda rollouts, step: Scored([], [], []), 0.5)([], 0).rewards == []


def test_arms_differ_in_what_they_say() -> None:
    configs = {arm: rl_config(arm, 0, Settings(), model="x", template="plain", configs=RECIPES) for arm in ARMS}
    assert (configs["clip_higher"].clip_high, configs["kl"].kl_coef, configs["grouped"].group_size) == (0.28, 0.04, 8)
    assert configs["vote_reward"] == configs["grouped"]
    assert configs["longer"] == configs["two_rounds"]
    assert stages_of("two_rounds") == ["rl_1", "distil", "sft", "rl_2"]
    assert configs["hot_token"] == configs["two_rounds"]
    assert stages_of("hot_token") == stages_of("two_rounds")
    assert stages_of("longer") == ["rl_1"]
    kept = [sft_config(0, Settings(), count, model="x", template="plain").max_steps for count in (10, 1600)]
    assert kept == [2, 100]  # two epochs of batches of 32, or of all there are


def stage(name: str, vote: float, **more: Any) -> dict[str, Any]:
    row = {"stage": name, "accuracy": 0.7, "vote_15": vote, "greedy_accuracy": 0.75, "swap_consistency": 0.8, "consistent": 0.9}
    return row | {"invalid": 0.0, "length": 20.0, "cpu_s": 50.0, "wall_s": 60.0} | more


def record(arm: str, seed: int, rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {"arm": arm, "seed": seed, "rows": rows, "cpu_s": sum(row["cpu_s"] for row in rows), "commit": "abc"}


def test_the_report_by_hand(tmp_path: Path) -> None:
    """The majority of the second round is four points above the first on each seed, and one above RL alone."""
    kept = {"num_pairs": 9, "num_kept": 4, "num_pairs_kept": 3, "num_votes": 80, "right": 60, "distinct_openings": 2}
    rows = []
    for seed in range(3):
        vote = 0.8 + 0.01 * seed
        distil = {"stage": "distil", **kept, "cpu_s": 10.0, "wall_s": 10.0}
        rounds = [stage("rl_1", vote, budget=100_000), distil, stage("sft", vote), stage("rl_2", vote + 0.04, budget=100_000)]
        rows.append(record("two_rounds", seed, rounds))
        hot = [stage("rl_1", vote, budget=100_000), distil, stage("sft", vote - 0.02), stage("rl_2", vote, budget=100_000)]
        rows.append(record("hot_token", seed, hot))
        budgets = ARMS["longer"].budgets
        rows.append(record("longer", seed, [stage("rl_1", vote + 0.03 * n, budget=100_000 * m) for n, m in enumerate(budgets)]))
    start = {"identity": {"settings": Settings().to_dict(), "judge": "j"}, "cpu_s": 12.0, "scores": stage("", 0.72)}
    summary = summarize(rows, start, 2)
    second = summary["differences"]["second round against first"]["vote_15"]
    assert second["mean"] == pytest.approx(0.04)
    assert second["interval"] == pytest.approx([0.04, 0.04])
    assert summary["differences"]["two rounds against RL alone, as many tokens of RL"]["vote_15"]["mean"] == pytest.approx(0.01)
    assert summary["differences"]["RL against its start"]["vote_15"]["mean"] == pytest.approx(0.09)
    assert summary["table"]["two_rounds"]["rl_2@100000"]["vote_gain"]["mean"] == pytest.approx(0.15)
    assert summary["differences"]["hot token against none, after SFT"]["vote_15"]["mean"] == pytest.approx(-0.02)
    own = summary["differences"]["SFT on its own judgments against SFT on the teacher's"]["vote_15"]
    assert own["mean"] == pytest.approx(0.09)  # 0.81 on average, from 0.72
    assert summary["minutes"] == 11.8  # (12 + 3 * (160 + 160 + 150)) seconds / 2 processes / 60
    path = write_report(summary, tmp_path / "study.md")
    assert "| second round against first | +0.0 [+0.0, +0.0] | +4.0 [+4.0, +4.0] |" in path.read_text()
    assert markdown(json.loads(path.with_suffix(".json").read_text())) == path.read_text()


def test_the_plan_counts_rounds() -> None:
    """Two rounds cost twice one: 60 CPU seconds for one leave 120 for two rounds, a minute with two processes."""
    trials = plan(ARMS, ("two_rounds", "kl"), (0,))
    text = plan_lines(trials, [record("kl", 0, [stage("rl_1", 0.8, cpu_s=60.0)])], 2)
    assert "1 of 2 trials are done, in 60 CPU seconds; about 1 minutes are left" in text


@pytest.fixture
def world(finished_run: Path, tmp_path: Path) -> Path:
    run = tmp_path / "run"
    shutil.copytree(finished_run / "rl", run / "sft")
    for name in ("distill", "demo"):
        shutil.copytree(finished_run / name, run / name)
    path = run / "distill" / "distilled.parquet"
    write_parquet([replace(pair, attempts="2") for pair in read_pairs(path)], path)
    return run


def test_a_chain_in_small(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed within its SFT, the trial goes on there: what came before is not made again, what was half made is removed."""
    out, trials = tmp_path / "out", [Trial(0, "two_rounds"), Trial(0, "vote_reward")]
    opener = partial(SelfImprovementContext, world, SMALL, out, RECIPES)

    class KilledError(BaseException):
        pass

    def killed(self: SelfImprovementContext, trial: Trial, data: Path, folder: Path) -> dict[str, Any]:
        (folder / "run").mkdir()
        raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr(SelfImprovementContext, "_sft", killed)
        with pytest.raises(KilledError):
            run_trials(opener, trials, out, workers=1)
    made = {path: path.stat().st_mtime_ns for path in out.rglob("stage.json")}
    assert sorted(path.parent.name for path in made) == ["distil", "rl_1"]
    start = run_trials(opener, trials, out, workers=1)
    assert {path: path.stat().st_mtime_ns for path in made} == made
    records = {row["arm"]: row for row in read_records(out)}
    assert [row["stage"] for row in records["two_rounds"]["rows"]] == ["rl_1", "distil", "sft", "rl_2"]
    assert records["two_rounds"]["rows"][1]["num_kept"] > 0
    assert all(0 <= row["vote_15"] <= 1 for row in records["vote_reward"]["rows"])
    assert "SFT on its own judgments" in markdown(summarize(list(records.values()), start, 1))
