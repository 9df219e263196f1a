"""The study of RLCS: its arms, tokens to a level by hand, ratios by seed, and a trial and report in small."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from eval.rlcs import ARMS, RLCSContext, Settings, config_of
from eval.rlcs_report import highest_mean, markdown, ratio_to, summarize, tokens_to, write_report
from eval.studies.plans import Trial, changes_of, refuse_other_arms
from eval.studies.runner import read_records, run_trials
from rewardlab.errors import ConfigError

SMALL = Settings(
    num_tokens=300,
    num_pairs=6,
    rollout_batch_size=16,
    batch_size=8,
    max_tokens=16,
    eval_tokens=150,
    num_test=4,
    level=0.0,
    margin=0.0,
)


def test_arms_differ_in_the_sampler_alone() -> None:
    configs = {arm: config_of(Trial(0, arm), Settings(), model="x", template="plain").model_dump() for arm in ARMS}
    for config in configs.values():
        assert config["group_size"] == 8
        assert config["attempts"] == ["", "1", "2", "3", "unsolved"]
    sampler = {arm: (config.pop("dynamic_sampling"), config.pop("difficulty_weighted")) for arm, config in configs.items()}
    assert sampler == {
        "uniform": ("off", False),
        "refill": ("refill", False),
        "oversample": ("oversample", False),
        "rlcs": ("oversample", True),
        "without_tags": ("oversample", True),
    }
    assert all(config == configs["rlcs"] for config in configs.values())


def test_tokens_to_a_level() -> None:
    """Linearly between the points; of a curve that falls its mean; None where it does not come there."""
    assert tokens_to(0.85, [100, 200], [0.8, 0.9], 0.7) == pytest.approx(150)
    assert tokens_to(0.8, [100, 200], [0.8, 0.9], 0.7) == pytest.approx(100)
    assert tokens_to(0.75, [100], [0.8], 0.7) == pytest.approx(50)
    assert tokens_to(0.7, [100], [0.8], 0.7) == 0
    assert tokens_to(0.95, [100, 200], [0.8, 0.9], 0.7) is None
    assert tokens_to(0.88, [100, 200, 300], [0.95, 0.85, 1.0], 0.7) == pytest.approx(90)  # read as 0.9, 0.9, 1.0


def record(seed: int, to_level: float | None, num_tokens: int = 1000) -> dict[str, Any]:
    return {"seed": seed, "to_level": to_level, "num_tokens": num_tokens}


def test_ratios_by_seed() -> None:
    """Half and a quarter: the geometric mean; what did not arrive counts with its budget, and is said to."""
    base = [record(0, 400.0), record(1, 800.0), record(2, None)]
    ours = ratio_to([record(0, 200.0), record(1, 200.0)], base)
    assert ours is not None
    assert ours["ratio"] == pytest.approx(0.125**0.5)
    assert ours["interval"][0] < ours["ratio"] < ours["interval"][1]
    assert (ours["at_least"], ours["at_most"]) == (0, 0)
    late = ratio_to([record(0, None), record(2, 500.0)], base)
    assert late is not None
    assert late["ratio"] == pytest.approx((2.5 * 0.5) ** 0.5)
    assert (late["at_least"], late["at_most"]) == (1, 1)
    assert ratio_to([record(3, 100.0)], base) is None


def test_two_levels() -> None:
    """Where uniform sampling ends below the level that was set, both that one and its own less the margin are shown."""
    rows = [
        {"arm": arm, "seed": seed, "tokens": [100, 200], "accuracy": [0.8, last], "num_tokens": 200, "steps": 4, "cpu_s": 1.0}
        for seed in range(2)
        for arm, last in (("uniform", 0.82), ("rlcs", 0.86 + 0.02 * seed))
    ]
    records = [{**row, "series": {}, "commit": "c"} for row in rows]
    facts = {"settings": Settings().__dict__, "judge": "j"}
    start = {"accuracy": 0.7, "pass_rates": [0.5], "tags": {"1": 1.0}, "cpu_s": 1.0, "identity": facts}
    summary = summarize(records, start, {"uniform": "uniform sampling", "rlcs": "RLCS"})
    assert [each["level"] for each in summary["levels"]] == [pytest.approx(0.8), 0.85]
    (_, literal) = (each["table"] for each in summary["levels"])
    assert (literal["uniform"]["arrived"], literal["rlcs"]["arrived"]) == (0, 2)
    assert (literal["uniform"]["came_to"], literal["rlcs"]["came_to"]) == (0, 0)  # the mean of 0.8 and 0.86 or 0.88 is below
    assert literal["rlcs"]["against"]["uniform"]["at_most"] == 2
    assert summary["table"]["rlcs"]["over_uniform"][0] == pytest.approx(0.05)
    text = markdown(summary, "rlcs")
    assert "| RLCS | 87.0 [74.3, 99.7] | 5.0 [-7.7, 17.7] | 83.5 [77.1, 89.9] | 4 |" in text
    assert "thousand tokens to 80.0 %" in text
    assert "| uniform sampling | 0.2 [0.2, 0.2] | 0 of 2 | 0 of 2 | – | – |" in text


def test_what_a_judge_came_to() -> None:
    """The best mean of three evaluations in a row, also where it falls afterwards."""
    assert highest_mean([0.7, 0.8, 0.9, 0.85, 0.6]) == pytest.approx(0.85)
    assert highest_mean([0.7, 0.8]) == pytest.approx(0.75)
    with pytest.raises(ValueError, match="at least one evaluation"):
        highest_mean([])


def test_an_arm_that_changed_is_another(tmp_path: Path) -> None:
    record = {"name": "refill-0", "arm": "refill", "changes": changes_of(ARMS["refill"])}
    refuse_other_arms([record], ARMS)
    refuse_other_arms([record], ARMS | {"refill": replace(ARMS["refill"], title="another title")})
    with pytest.raises(ConfigError, match="refill-0: was run with other settings of its arm"):
        refuse_other_arms([record], ARMS | {"refill": replace(ARMS["refill"], changes={"learning_rate": 1.0})})
    with pytest.raises(ConfigError, match="there is no arm refill"):
        refuse_other_arms([record], {})


def test_a_study_in_small(finished_run: Path, tmp_path: Path) -> None:
    """Two arms once; a second call finds both trials done, and the report is written."""
    run = tmp_path / "run"
    shutil.copytree(finished_run / "rl", run / "sft")
    for name in ("distill", "demo"):
        shutil.copytree(finished_run / name, run / name)
    trials = [Trial(0, arm) for arm in ("uniform", "rlcs")]
    for _ in range(2):
        start = run_trials(partial(RLCSContext, run, SMALL), trials, tmp_path / "out", workers=1)
    records = read_records(tmp_path / "out")
    assert {r["arm"] for r in records} == {"uniform", "rlcs"}
    for r in records:
        assert r["tokens"] == sorted(r["tokens"])
        assert r["tokens"][-1] == r["num_tokens"] >= SMALL.num_tokens
    summary = summarize(records, start, {name: arm.title for name, arm in ARMS.items()})
    text = write_report(summary, tmp_path / "results", "rlcs").read_text()
    assert "| RLCS |" in text
    assert (tmp_path / "results" / "rlcs.png").exists()
