"""A run that got to its end and learnt nothing: each reason at its bound, in the file, and on the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rewardlab.config import HealthConfig
from rewardlab.health.run_page import TrainingRun, run_page
from rewardlab.training.run.watchdog import read_outcome, record_outcome, why_nothing_was_learnt

FINE = {
    "loss": 0.1,
    "grad_norm": 1.0,
    "reward": 1.0,
    "reward_std": 0.5,
    "advantage/max_abs": 1.0,
    "reward/invalid_frac": 0.1,
    "reward/unscored_frac": 0.0,
}


@pytest.mark.parametrize(
    ("change", "signs"),
    [
        ({}, []),
        ({"reward": 0.0, "reward_std": 0.0, "advantage/max_abs": 0.0}, ["no_reward"]),
        ({"reward": 0.0, "reward_std": 0.0, "grad_norm": 0.0, "reward/unscored_frac": 1.0}, ["unscored"]),
        ({"reward": 0.0}, []),  # rewards of either sign whose mean is 0
        ({"advantage/max_abs": 0.0}, ["equal_rewards"]),
        ({"reward/invalid_frac": 0.96}, []),  # the others may have been learnt from
        ({"advantage/max_abs": 0.0, "reward/invalid_frac": 0.96}, ["equal_rewards", "invalid"]),
        ({"advantage/max_abs": 0.0, "reward/invalid_frac": 0.95}, ["equal_rewards"]),
        ({"grad_norm": 0.0}, []),  # of the row's last step alone: others had advantages
        ({"grad_norm": 0.0, "advantage/max_abs": 0.0}, ["equal_rewards", "no_gradient"]),
        ({"grad_norm": "nan"}, []),
        ({"reward": 0.5, "reward_std": 0.0}, ["equal_rewards"]),  # with a critic, whose advantages are never all 0
    ],
)
def test_reasons(change: dict[str, Any], signs: list[str]) -> None:
    """What holds in every row; one row in which it does not is enough."""
    bad = {"step": 1, **FINE, **change}
    assert list(why_nothing_was_learnt([bad, bad, bad, {"step": 2, "train_runtime": 1.0}], 0.95)) == signs
    assert not why_nothing_was_learnt([bad, bad, bad, {"step": 2, **FINE}], 0.95)
    assert not why_nothing_was_learnt([bad, bad, {"step": 2, "train_runtime": 1.0}], 0.95), "too few to tell"


def test_one_rollout_of_each_prompt_has_no_spread() -> None:
    """Where batches earn differently something was learnt from, whatever the spread within a group of one says."""
    rows = [{"step": n, **FINE, "reward": reward, "reward_std": 0.0} for n, reward in enumerate((0.5, 0.6, 0.5))]
    assert not why_nothing_was_learnt(rows, 0.95)


def test_supervised_runs_have_no_rewards() -> None:
    rows = [{"step": 1, "loss": 0.0, "grad_norm": 0.0}] * 3
    assert list(why_nothing_was_learnt(rows, 0.95)) == ["no_gradient"]
    assert not why_nothing_was_learnt([{"step": 1, "loss": 0.5, "grad_norm": 0.2}] * 3, 0.95)
    assert not why_nothing_was_learnt([{"step": 1, "grad_norm": 0.0, "value/grad_norm": 0.2}] * 3, 0.95), "a critic's fit"
    assert not why_nothing_was_learnt([], 0.95)


def test_the_file_and_the_page(tmp_path: Path) -> None:
    """The page has it in place of "the watchdog reported no sign"; a run that learnt has no event."""
    for out, row in ((tmp_path / "bad", FINE | {"reward": 0.0, "reward_std": 0.0}), (tmp_path / "fine", FINE)):
        out.mkdir()
        (out / "metrics.jsonl").write_text((json.dumps({"step": 3, **row}) + "\n") * 3)
        record_outcome(out, HealthConfig())
    assert read_outcome(tmp_path / "fine") == ""
    assert not (tmp_path / "fine" / "health.jsonl").exists()
    assert read_outcome(tmp_path / "bad").startswith("nothing was learnt: every reward was 0; look at samples.jsonl")
    (event,) = map(json.loads, (tmp_path / "bad" / "health.jsonl").read_text().splitlines())
    assert (event["step"], event["signs"], event["done"]) == (3, ["no_reward"], "finished")
    page = run_page(TrainingRun("rl", {"model": "m"}, "c" * 40, {}, True, [], [event], []))
    assert "nothing was learnt: every reward was 0" in page
    assert "The watchdog reported no sign" not in page
