"""The method study: its plan, the scaled recipes, the budgets, and the report's arithmetic."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from eval.studies.method_evaluation import LocalChecker, revision_of, scores_of
from eval.studies.method_report import markdown, summarize, write_tables
from eval.studies.method_trials import AtBudgets, SeriesLog
from eval.studies.methods import (
    ARMS,
    FITTED,
    Settings,
    choose_rates,
    config_of,
    preference_config,
    study_plan,
    validation_plan,
)
from eval.studies.study import Trial
from rewardlab.prompts.verification import CORRECT, WRONG
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

RECIPES = Path(__file__).parents[2] / "configs" / "rl"


def test_every_recipe_is_in_the_table() -> None:
    """Every arm's config is valid, with nothing but its method of its own; a critic's rate is twice the policy's."""
    methods = {path.stem for path in RECIPES.glob("*.yaml") if not path.stem.startswith("stable_reinforce_")}  # of hardware
    preferences = {name for name, arm in ARMS.items() if arm.is_preference}
    assert methods - {"rlcs", "gspo"} == {arm.recipe for name, arm in ARMS.items() if name not in preferences}
    assert {f"dpo/{path.stem}" for path in RECIPES.with_name("dpo").glob("*.yaml")} == {ARMS[n].recipe for n in preferences}
    learnt = [preference_config(ARMS[n], Trial(0, n, 1e-4), Settings(), model="x", template="plain") for n in preferences]
    assert {(config.learning_rate, config.batch_size, config.comparisons_per_order) for config in learnt} == {(1e-4, 128, 8)}
    arms = [arm for arm in ARMS if arm not in preferences]
    configs = {arm: config_of(ARMS[arm], Trial(0, arm, 1e-4), Settings(), model="x", template="plain") for arm in arms}
    assert {config.learning_rate for config in configs.values()} == {1e-4}
    assert {config.consistency.weight for config in configs.values()} == {0.0}
    assert {config.value_pretrain_steps for config in configs.values()} == {0}
    assert {ARMS[arm].recipe for arm, config in configs.items() if config.advantage == "gae"} == set(FITTED)
    assert (configs["no_parts"].outliers, configs["no_parts"].preclip) == ("keep", None)
    assert (configs["no_filter"].outliers, configs["no_filter"].preclip) == ("keep", configs["stable_reinforce"].preclip)
    assert (configs["no_preclip"].outliers, configs["no_preclip"].preclip) == ("delete", None)
    assert (configs["t_ppo"].window, configs["pag"].self_verify) == (16, True)
    assert configs["dapo"].dynamic_sampling == "refill"


def test_plans_and_the_choice_of_rates() -> None:
    settings = Settings(rates=(1e-4, 1e-3))
    assert [trial.name for trial in validation_plan(("grpo", "ppo"), settings)] == [
        "grpo-0.0001-100",
        "grpo-0.001-100",
        "ppo-0.0001-100",
        "ppo-0.001-100",
    ]
    records = [
        {"arm": arm, "learning_rate": rate, "seed": seed, "budgets": [{"accuracy": accuracy}]}
        for arm, rate, seed, accuracy in (
            ("grpo", 1e-3, 100, 0.8),
            ("grpo", 1e-4, 100, 0.8),
            ("grpo", 1e-3, 0, 0.99),
            ("ppo", 1e-4, 100, 0.7),
            ("vapo", 1e-4, 100, 0.7),
            ("vapo", 1e-3, 100, 0.71),
        )
    ]
    chosen = choose_rates(records, ("grpo", "ppo", "vapo"), settings.rates)
    assert chosen == {"grpo": 1e-4, "vapo": 1e-3}  # of equals the lowest; ppo was not tried at all rates
    renamed = [{**record, "arm": "stable_reinforce"} for record in records if record["arm"] == "vapo"]
    assert choose_rates(renamed, ("no_filter",), settings.rates) == {"no_filter": 1e-3}  # that of StableReinforce
    assert [trial.arm for trial in validation_plan(("no_filter", "no_preclip"), settings)] == ["stable_reinforce"] * 2
    assert [trial.name for trial in study_plan(chosen, 2)] == ["grpo-0.0001-0", "vapo-0.001-0", "grpo-0.0001-1", "vapo-0.001-1"]


def test_budgets_are_points_of_one_run() -> None:
    """Each budget is evaluated once, when all that was generated is trained on, in two steps; after the last the run ends; what
    is left of one whose weights are no numbers counts as wrong."""
    trainer = SimpleNamespace(num_generated_tokens=0, state=SimpleNamespace(global_step=9))
    model = SimpleNamespace(train=lambda: None)
    at = AtBudgets(trainer, (100, 60), lambda budget: {"accuracy": budget / 1000}, 2)
    stops = []
    for tokens in (50, 70, 80, 90, 110, 120):
        trainer.num_generated_tokens, control = tokens, SimpleNamespace(should_training_stop=False)
        at.on_step_end(None, SimpleNamespace(global_step=tokens // 10), control, model=model)
        stops.append(control.should_training_stop)
    assert stops == [False, False, False, False, False, True]
    assert [(row["budget"], row["num_tokens"], row["steps"], row["accuracy"]) for row in at.results] == [
        (60, 80, 8, 0.06),
        (100, 120, 12, 0.1),
    ]

    def fails(budget: int) -> dict[str, Any]:
        raise ValueError("no numbers")

    failing = AtBudgets(trainer, (100,), fails, 1)  # on the very step that reaches the budget
    with pytest.raises(ValueError, match="no numbers"):
        failing.on_step_end(None, SimpleNamespace(global_step=12), control, model=model)
    failing.fail_rest(verifies=False)
    assert [row["budget"] for row in failing.results] == [100]
    broken = AtBudgets(trainer, (100, 200), lambda budget: {"accuracy": 1.0}, 1)
    broken.fail_rest(verifies=True)
    assert broken.results[0]["revision"]["last"] == 0.0
    assert [(row["budget"], row["accuracy"], row["invalid"]) for row in broken.results] == [(100, 0.0, 1.0), (200, 0.0, 1.0)]

    trainer.num_generated_tokens = 30
    short = AtBudgets(trainer, (100, 60), lambda budget: {"accuracy": 0.5}, 2, most_steps=12)
    control = SimpleNamespace(should_training_stop=False)
    short.on_step_end(None, SimpleNamespace(global_step=12), control, model=model)
    assert control.should_training_stop
    assert [(row["budget"], row["num_tokens"]) for row in short.results] == [(60, 30), (100, 30)]


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
    with pytest.raises(ValueError, match="no pair"):
        scores_of([], [], [])


def test_revisions_by_hand() -> None:
    """Of four judgments one is lost, one is mended, one is revised to the same winner, one stays."""
    first, second = "<answer>1</answer>", "<answer>2</answer>"  # the first response is better

    def verified(*turns: str) -> Vote:
        last = Choice.FIRST if turns[-1] == first else Choice.SECOND
        return replace(vote(Order.GIVEN, last), completion=Completion("", FinishReason.STOP, 10, turns=turns))

    votes = [verified(first, WRONG, second), verified(second, WRONG, first), verified(first, WRONG, first)]
    stays = replace(vote(Order.GIVEN, Choice.FIRST), completion=Completion("", FinishReason.STOP, 10, turns=(first, CORRECT)))
    shares = revision_of([judged(*votes, stays)], [PreferencePair("0", "q", ("a", "b"), 0)], "think_answer")
    assert shares == {"first": 0.75, "last": 0.75, "lost": 0.25, "mended": 0.25, "revised": 0.75}


def test_the_local_checker_answers_as_the_served_one() -> None:
    import asyncio

    checker, reasoning = LocalChecker(), "Response 1: x, correct. Response 2: y, wrong."
    answers = [asyncio.run(checker.score("q", text, Choice.FIRST)) for text in (reasoning, "nothing")]
    assert (answers, asyncio.run(checker.score("q", reasoning, Choice.SECOND))) == ([1, 0], -1)


def row_of(budget: int, accuracy: float) -> dict[str, Any]:
    shares = dict.fromkeys(("greedy_accuracy", "swap_consistency", "flipped", "consistent", "vote_15"), 0.8)
    return {"budget": budget, "accuracy": accuracy, "invalid": 0.0, "length": 20.0, "steps": 10, "train_cpu_s": 5.0, **shares}


def record(arm: str, seed: int, accuracy: float, **more: Any) -> dict[str, Any]:
    budgets = [row_of(60_000, accuracy - 0.1)] + ([row_of(300_000, accuracy)] if seed < 100 else [])
    series = {"tokens": [1000, 2000, 20_000], "right": [0.5, 0.7, accuracy]}
    facts: dict[str, Any] = {"arm": arm, "seed": seed, "learning_rate": 1e-4, "name": f"{arm}-{seed}", "status": "finished"}
    facts |= {"budgets": budgets, "series": series, "events": [], "fit": None, "explained": None, "start": None}
    return facts | {"config": {}, "cpu_s": 60.0 if seed < 100 else 12.0, "wall_s": 60.0, "commit": "abc"} | more


def the_start() -> dict[str, Any]:
    settings = asdict(Settings(rates=(1e-4,)))
    return {
        "identity": {"settings": settings, "judge": "j"},
        "plain": {**row_of(0, 0.7), "num_votes": 8, "answers": []},
        "cpu_s": 6.0,
        "wall_s": 6.0,
    }


def test_the_report_pairs_by_seed(tmp_path: Path) -> None:
    """GRPO is two points better on each seed though both vary: a difference of +2.0 without width."""
    events = [{"step": 4, "signs": ["invalid"], "message": "half of it is invalid"}]
    rows = [record("stable_reinforce", 100, 0.8), record("grpo", 100, 0.8)]
    rows += [record("stable_reinforce", seed, 0.7 + 0.01 * seed) for seed in range(3)]
    rows += [record("grpo", seed, 0.72 + 0.01 * seed, events=events if seed == 2 else []) for seed in range(3)]
    fit = {"steps": 40, "num_tokens": 1000, "cpu_s": 9.0, "explained": [-0.1, 0.1, 0.2]}
    verifying = {"cpu_s": 7.0, **row_of(0, 0.6), "num_votes": 8, "answers": []}
    explained = {"first": 0.2, "last": 0.4}
    for seed in range(3):
        pag = record("pag", seed, 0.75, fit=fit, explained=explained, start=verifying)
        pag["budgets"][1]["revision"] = {"first": 0.7, "last": 0.75, "lost": 0.02, "mended": 0.07, "revised": 0.1}
        rows.append(pag)
    summary = summarize(rows, the_start(), 2)
    cell = summary["table"]["300000"]["grpo"]
    assert cell["accuracy"]["mean"] == pytest.approx(0.73)
    # t(0.975, 2 degrees) 4.303 times 0.01 / sqrt(3) is 0.0248
    assert cell["accuracy"]["interval"] == pytest.approx([0.73 - 0.02484, 0.73 + 0.02484], abs=1e-4)
    assert cell["against_base"]["accuracy"]["mean"] == pytest.approx(0.02)
    assert cell["against_base"]["accuracy"]["interval"] == pytest.approx([0.02, 0.02])
    assert cell["gain"]["accuracy"]["mean"] == pytest.approx(0.03)
    assert summary["table"]["300000"]["pag"]["gain"]["accuracy"]["mean"] == pytest.approx(0.15)  # of its own start
    assert summary["revision"]["300000"]["pag"]["net"]["mean"] == pytest.approx(0.05)
    assert summary["chosen"] == {"stable_reinforce": 1e-4, "grpo": 1e-4}
    path = write_tables(summary, tmp_path)
    text = path.read_text()
    assert "| GRPO | +2.0 [+2.0, +2.0] |" in text
    assert "| GRPO | 2 | 4 | half of it is invalid |" in text
    assert "| PAG, last judgment | 300,000 | 70.0 [70.0, 70.0] | 75.0" in text
    assert all((tmp_path / name).stat().st_size > 5000 for name in ("methods.png", "methods_curves.png"))
    assert markdown(json.loads(path.with_suffix(".json").read_text())) == text


def test_a_record_keeps_the_largest_fractions_of_a_batchs_steps() -> None:
    """At the first step on rollouts no ratio has left 1."""
    log = SeriesLog()
    for n, clipped in enumerate((0.0, 0.3, 0.2, 0.0)):
        rewarded = {"reward/accuracy": 0.5, "loss/preclip_frac": 0.0} if n in (0, 3) else {}
        log.on_log(None, None, None, logs=rewarded | {"loss/clip_frac": clipped, "entropy": float(n)})
    columns = log.columns()
    assert {key: columns[key] for key in ("right", "entropy", "clip_frac", "preclip_frac")} == {
        "right": [0.5, 0.5],
        "entropy": [0.0, 3.0],
        "clip_frac": [0.3, 0.0],
        "preclip_frac": [0.0, 0.0],
    }
