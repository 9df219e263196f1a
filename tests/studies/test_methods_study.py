"""The method table: its plan, the scaled recipes, the budget, one trial of each kind in small, and the report's arithmetic."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from eval.studies.method_report import markdown, summarize, write_report
from eval.studies.method_trials import Budget, MethodContext, scores_of
from eval.studies.methods import ARMS, Settings, config_of, scaled
from eval.studies.plans import Trial, plan
from eval.studies.runner import read_records, run_trials
from rewardlab.config import load_yaml
from rewardlab.errors import ConfigError
from rewardlab.types import (
    Choice,
    Completion,
    FinishReason,
    Judgment,
    Order,
    Outcome,
    PreferencePair,
    Verdict,
    VerdictStatus,
    Vote,
)

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "configs" / "rl"
SMALL = Settings(
    num_tokens=300,
    rollout_batch_size=16,
    batch_size=8,
    max_tokens=16,
    group=4,
    window=8,
    value_steps=2,
    num_test=4,
    num_votes=1,
    num_start_votes=1,
    verify_steps=2,
)


def test_every_recipe_is_in_the_table() -> None:
    """And every arm's config is valid, with nothing but its method of its own."""
    methods = {path.stem for path in RECIPES.glob("*.yaml") if not path.stem.startswith("stable_reinforce_")}  # of hardware
    assert methods == {arm.recipe for arm in ARMS.values()}
    configs = {arm: config_of(Trial(0, arm), Settings(), model="x", template="plain", configs=RECIPES) for arm in ARMS}
    assert {config.learning_rate for arm, config in configs.items() if not arm.endswith("_slow")} == {3e-4}
    assert (configs["ppo_slow"].learning_rate, configs["ppo_slow"].value_learning_rate) == (1e-4, 6e-4)
    assert {config.consistency.weight for config in configs.values()} == {0.0}
    assert (configs["swap_one"].swap_weight, configs["t_ppo"].window, configs["pag"].self_verify) == (1.0, 16, True)
    assert configs["dapo"].dynamic_sampling == "refill"


def test_scaling_changes_sizes_only() -> None:
    recipe = load_yaml(RECIPES / "t_ppo.yaml")
    changed = {name for name, value in scaled(recipe, Settings()).items() if recipe[name] != value}
    assert changed == {"window", "value_pretrain_steps"}


def test_the_plan() -> None:
    assert len(plan(ARMS, tuple(ARMS), tuple(range(5)))) == 5 * len(ARMS)
    assert [trial.name for trial in plan(ARMS, ("grpo", "ppo"), (0, 1))] == ["grpo-0", "ppo-0", "grpo-1", "ppo-1"]
    with pytest.raises(ConfigError, match="unknown arm nothing"):
        plan(ARMS, ("nothing",), (0,))


def test_the_budget_lowers_the_rate_and_stops() -> None:
    """Half of the tokens spent: half of the rate, of every group; all spent: stop."""

    def step(num_generated_tokens: int, num_tokens: int, **spent: int) -> tuple[list[float], bool]:
        """(rates, whether training stops) of a step that begins and ends with as many tokens."""
        groups, control = [{"lr": 1.0}, {"lr": 2.0}], SimpleNamespace(should_training_stop=False)
        trainer = SimpleNamespace(
            num_generated_tokens=num_generated_tokens,
            optimizer=SimpleNamespace(param_groups=groups),
            add_callback=lambda callback: None,
        )
        budget = Budget(trainer, num_tokens, decay=True, **spent)
        budget.on_step_begin(None, None, control)
        budget.on_step_end(None, None, control)
        return [group["lr"] for group in groups], control.should_training_stop

    assert step(0, 100) == ([1.0, 2.0], False)
    assert step(50, 100) == ([0.5, 1.0], False)
    assert step(130, 100) == ([0.0, 0.0], True)
    assert step(0, 140, spent=40) == ([1.0, 2.0], False)  # what was spent before does not lower the rate
    assert step(50, 140, spent=40) == ([0.5, 1.0], False)
    assert step(100, 140, spent=40) == ([0.0, 0.0], True)


def vote(order: Order, choice: Choice | None, text: str = "") -> Vote:
    status = VerdictStatus.OK if choice else VerdictStatus.NO_VERDICT
    return Vote(order, Verdict(choice, status, "answer_tag"), Completion(text, FinishReason.STOP, 10))


def judged(*votes: Vote) -> Judgment:
    return Judgment("p", votes, Outcome.NO_VALID_VOTE, None)


def test_scores_by_hand() -> None:
    """Two pairs, the first response better. Sampled: right, wrong, right with reasoning against itself, none. Greedy: one pair
    keeps its winner, the other flips it."""
    pairs = [PreferencePair(str(n), "q", ("a", "b"), 0) for n in range(2)]
    agree = "<think>Response 1: x, correct. Response 2: y, wrong.</think><answer>1</answer>"
    against = "<think>Response 1: x, wrong. Response 2: y, correct.</think><answer>1</answer>"
    given, swapped = Order.GIVEN, Order.SWAPPED
    sampled = [
        judged(vote(given, Choice.FIRST, agree), vote(swapped, Choice.FIRST)),
        judged(vote(given, Choice.FIRST, against), vote(swapped, None)),
    ]
    greedy = [
        judged(vote(given, Choice.FIRST), vote(swapped, Choice.SECOND)),
        judged(vote(given, Choice.FIRST), vote(swapped, Choice.FIRST)),
    ]
    scores = scores_of(sampled, greedy, pairs)
    assert (scores["accuracy"], scores["consistent"], scores["invalid"]) == (0.5, 0.5, 0.25)
    assert (scores["greedy_accuracy"], scores["swap_consistency"], scores["flipped"]) == (0.75, 0.5, 0.5)
    assert scores["length"] == 10


def record(arm: str, seed: int, accuracy: float) -> dict[str, Any]:
    numbers = {
        "greedy_accuracy": 0.8,
        "swap_consistency": 0.7,
        "flipped": 0.3,
        "consistent": 0.9,
        "invalid": 0.0,
        "length": 20.0,
    }
    numbers |= {"steps": 10, "train_cpu_s": 5.0, "num_tokens": 300, "cpu_s": 6.0, "wall_s": 12.0}
    return {"arm": arm, "seed": seed, "accuracy": accuracy, **numbers, "commit": "abc", "answers": []}


def test_the_report_pairs_by_seed(tmp_path: Path) -> None:
    """GRPO is two points better on each seed though both vary: a difference of +2.0 without width."""
    rows = [
        record(arm, seed, 0.7 + 0.01 * seed + (0.02 if arm == "grpo" else 0))
        for arm in ("stable_reinforce", "grpo")
        for seed in range(3)
    ]
    scores = {"accuracy": 0.7, "greedy_accuracy": 0.8, "swap_consistency": 0.7, "num_votes": 8, "answers": []}
    start = {"identity": {"settings": Settings().to_dict(), "judge": "j"}, "cpu_s": 6.0, "wall_s": 6.0}
    start |= dict.fromkeys(("plain", "verifying", "verified"), scores)
    summary = summarize(rows, start, 2)
    row = summary["table"]["grpo"]
    assert row["accuracy"][0] == pytest.approx(0.73)
    # t(0.975, 2 degrees) 4.303 times 0.01 / sqrt(3) is 0.0248
    assert row["accuracy"][1] == pytest.approx([0.73 - 0.02484, 0.73 + 0.02484], abs=1e-4)
    assert row["against"]["accuracy"]["difference"] == pytest.approx(0.02)
    assert row["against"]["accuracy"]["interval"] == pytest.approx([0.02, 0.02])
    assert summary["minutes"] == {"by_cpu_seconds": 0.3, "by_the_clock": 0.7}
    write_report(summary, tmp_path)
    assert "| GRPO | +2.0 [+2.0, +2.0] |" in (tmp_path / "methods.md").read_text()
    assert (tmp_path / "methods.png").stat().st_size > 5000
    assert markdown(json.loads((tmp_path / "methods.json").read_text())) == (tmp_path / "methods.md").read_text()


def test_trials_in_small(finished_run: Path, tmp_path: Path) -> None:
    """A critic-free, a windowed and a verifying method through the real trainers: the budget is met, every number there."""
    run = tmp_path / "run"
    shutil.copytree(finished_run / "rl", run / "sft")
    for name in ("distill", "demo"):
        shutil.copytree(finished_run / name, run / name)
    from dataclasses import replace

    from rewardlab.data.pairs import read_pairs, write_parquet

    path = run / "distill" / "distilled.parquet"
    write_parquet([replace(pair, attempts="2") for pair in read_pairs(path)], path)
    opener = partial(MethodContext, run, SMALL, tmp_path / "out", RECIPES)
    start = run_trials(opener, plan(ARMS, ("dapo", "t_ppo", "pag"), (0,)), tmp_path / "out", workers=1)
    records = {row["arm"]: row for row in read_records(tmp_path / "out")}
    assert {row["num_tokens"] >= 300 for row in records.values()} == {True}
    assert records["t_ppo"]["value_steps"] == 2
    assert 0 <= records["pag"]["verified"]["accuracy"] <= 1
    assert "PAG's last judgments" in markdown(summarize(list(records.values()), start, 1))
    with pytest.raises(ConfigError, match="finished quickstart"):
        MethodContext(tmp_path / "none", SMALL, tmp_path / "out", RECIPES)
