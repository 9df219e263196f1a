"""Signs of a run that goes wrong, each at its bound; what is then done, in real runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rewardlab.config import HealthConfig, RLConfig
from rewardlab.errors import ConfigError, HealthError
from rewardlab.training.policy_gradient.trainer import PolicyTrainer
from rewardlab.training.run.folder import common_arguments
from rewardlab.training.run.watchdog import Signs, rollbacks
from tests.support import scaled_runs

FINE = {
    "loss": 0.1,
    "grad_norm": 1.0,
    "reward": 1.0,
    "entropy": 0.5,
    "reward/invalid_frac": 0.1,
    "completions/mean_length": 100.0,
    "verdict/first_frac": 0.5,
    "reward/accuracy": 0.7,
}


@pytest.mark.parametrize(
    ("change", "sign"),
    [
        ({}, None),
        ({"loss": float("nan")}, "not_finite"),
        ({"grad_norm": float("inf")}, "not_finite"),
        ({"entropy": 0.0049}, "entropy_collapse"),
        ({"entropy": 0.0051}, None),
        ({"reward/invalid_frac": 0.96}, "invalid"),
        ({"completions/mean_length": 401.0}, "length_runaway"),
        ({"completions/mean_length": 399.0}, None),
        ({"verdict/first_frac": 0.04}, "one_position"),
        ({"verdict/first_frac": 0.96}, "one_position"),
        ({"verdict/first_frac": 0.94}, None),
    ],
)
def test_signs(change: dict[str, float], sign: str | None) -> None:
    signs = Signs(HealthConfig(window=20))
    for _ in range(20):
        assert not signs.of(FINE)
    assert set(signs.of(FINE | change)) == ({sign} if sign else set())


def test_low_entropy_of_a_cold_start_is_no_sign() -> None:
    """Of labels, not of rollouts: it is meant to fall."""
    assert not Signs(HealthConfig()).of({"loss": 0.1, "entropy": 0.001})


def test_reward_hacking() -> None:
    """Consistency pays more and more while verdicts get worse; the same fall of accuracy with the reward is none."""

    def seen(reward_by_step: float) -> list[str]:
        signs = Signs(HealthConfig(window=10))
        found: list[str] = []
        for step in range(20):
            row = {"reward": 1.0 + reward_by_step * step, "reward/accuracy": 0.8 - 0.015 * step}
            found += signs.of(FINE | row)
        return found

    assert seen(0.01) == ["reward_hacking"]
    assert seen(-0.01) == []


def collapsing(monkeypatch: pytest.MonkeyPatch, from_step: int, times: int) -> list[tuple[int, float]]:
    """As :func:`scaled_runs.collapsing`; returns (step, rate) of every log."""
    faulty, seen = scaled_runs.collapsing(from_step, times)
    monkeypatch.setattr(PolicyTrainer, "log", faulty)
    return seen


def test_a_run_is_ended(tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After two logs of the sign; the event is there, the run is not called finished."""
    seen = collapsing(monkeypatch, 3, 9)
    with pytest.raises(HealthError, match=r"step 4: 100% of the rollouts have no verdict.*lower learning_rate"):
        scaled_runs.run("rl", tiny_checkpoint, tmp_path / "run", max_steps=6, health={"patience": 2})
    assert [step for step, _ in seen] == [1, 2, 3, 4]
    event = json.loads((tmp_path / "run" / "health.jsonl").read_text())
    assert (event["step"], event["signs"], event["done"]) == (4, ["invalid"], "stop")
    assert not (tmp_path / "run" / "final").exists()


def test_a_run_is_only_told(tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collapsing(monkeypatch, 3, 9)
    scaled_runs.run("rl", tiny_checkpoint, tmp_path / "run", max_steps=6, health={"patience": 2, "policy": "warn"})
    assert (tmp_path / "run" / "final").exists()
    assert json.loads((tmp_path / "run" / "health.jsonl").read_text())["done"] == "warn"


def test_a_run_is_taken_back(tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the checkpoint before the sign built up (not that of step 3), at half the rate, with other draws; then it ends as any
    run."""
    seen = collapsing(monkeypatch, 3, 1)
    changes = {"health": {"patience": 2, "policy": "roll_back"}, "save_steps": 1, "save_total_limit": 3}
    scaled_runs.run("rl", tiny_checkpoint, tmp_path / "run", max_steps=6, **changes)
    assert (tmp_path / "run" / "final").exists()
    assert rollbacks(tmp_path / "run") == [4]
    usual = scaled_runs.SHARED["learning_rate"]
    assert seen[:4] == [(step, usual) for step in (1, 2, 3, 4)]
    assert seen[4:] == [(step, usual / 2) for step in (3, 4, 5, 6)]
    steps = [json.loads(line)["step"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 3, 4, 5, 6, 6]


def test_a_run_that_was_ended_is_not_gone_on_with(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever starts jobs again is told why; who sees it otherwise goes on from the checkpoint."""
    seen = collapsing(monkeypatch, 3, 9)
    with pytest.raises(HealthError, match="no verdict"):
        scaled_runs.run("rl", tiny_checkpoint, tmp_path / "run", health={"patience": 2})
    with pytest.raises(HealthError, match=r"was ended at step 4: 100% of the rollouts.*policy: warn"):
        scaled_runs.run("rl", tiny_checkpoint, tmp_path / "run", health={"patience": 2})
    assert [step for step, _ in seen] == [1, 2, 3, 4]
    scaled_runs.run("rl", tiny_checkpoint, tmp_path / "run", health={"patience": 2, "policy": "warn"})
    assert [step for step, _ in seen] == [1, 2, 3, 4, 3, 4]
    assert (tmp_path / "run" / "final").exists()


def test_what_was_seen_before_a_kill_counts(tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sign that held at the last log before the checkpoint, and at the first after it, held twice."""
    collapsing(monkeypatch, 2, 9)
    scaled_runs.run("rl", tiny_checkpoint, tmp_path / "run", kill=True, health={"patience": 2})
    with pytest.raises(HealthError, match="step 3: 100%"):
        scaled_runs.run("rl", tiny_checkpoint, tmp_path / "run", health={"patience": 2})


def test_trackers_are_there_before_a_run_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"tensorbord is no tracker; there are none, tensorboard, wandb, trackio"):
        RLConfig(report_to="tensorbord")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install wandb trackio, or report_to: none"):
        common_arguments(RLConfig(report_to="wandb,trackio"), tmp_path)


def test_going_back_needs_something_to_go_back_to() -> None:
    with pytest.raises(ValueError, match=r"patience x logging_steps = 50 steps, and save_total_limit 2 keeps the last 40"):
        RLConfig(health={"policy": "roll_back"}, logging_steps=10, save_steps=40)
    RLConfig(health={"policy": "roll_back"}, logging_steps=8, save_steps=40)


def test_not_for_ever(tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collapsing(monkeypatch, 3, 9)
    health = {"patience": 1, "policy": "roll_back", "max_rollbacks": 1}
    with pytest.raises(HealthError):
        scaled_runs.run("rl", tiny_checkpoint, tmp_path / "run", max_steps=6, health=health)
    assert len((tmp_path / "run" / "health.jsonl").read_text().splitlines()) == 2


def test_a_loss_that_is_no_number(tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Is seen in the metrics, and ends a cold start at once."""
    from rewardlab.training.sft import ResumableSFTTrainer

    compute = ResumableSFTTrainer.compute_loss

    def faulty(self: Any, *args: Any, **kwargs: Any) -> Any:
        return compute(self, *args, **kwargs) * (float("nan") if self.state.global_step == 1 else 1.0)

    monkeypatch.setattr(ResumableSFTTrainer, "compute_loss", faulty)
    with pytest.raises(HealthError, match=r"step 2: .*nan"):
        scaled_runs.run("sft", tiny_checkpoint, tmp_path / "run")
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert (last["step"], last["loss"]) == (2, "nan")
