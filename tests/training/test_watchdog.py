"""Signs of a run that goes wrong, each at its bound; what is then done, in real runs."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR

from rewardlab.config import HealthConfig, RLConfig, RMConfig
from rewardlab.errors import ConfigError, HealthError
from rewardlab.training.policy_gradient.trainer import PolicyTrainer
from rewardlab.training.reward_model import BradleyTerryTrainer, train_reward_model
from rewardlab.training.run.folder import common_arguments
from rewardlab.training.run.watchdog import Alarms, HalveLearningRate, Signs, Watchdog, rollbacks
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


def seen_in(signs: Signs, logs: dict[str, float]) -> set[str]:
    return {name for name, message in signs.of(logs).items() if message}


@pytest.mark.parametrize(
    ("change", "sign"),
    [
        ({}, None),
        ({"loss": float("nan")}, "not_finite"),
        ({"grad_norm": float("inf")}, "not_finite"),
        ({"entropy": 0.0049}, "entropy_collapse"),
        ({"entropy": 0.0051}, None),
        ({"reward/invalid_frac": 0.96}, "invalid"),
        ({"verify/unclear_frac": 0.96}, "unverified"),
        ({"judge/unreadable_frac": 0.95}, None),
        ({"judge/unreadable_frac": 0.96}, "unreadable"),
        ({"verify/unclear_frac": 0.94}, None),
        ({"reward/unscored_frac": 0.96}, "unscored"),
        ({"reward/unscored_frac": 0.94}, None),
        ({"importance/gap": 0.11}, "sampler"),
        ({"importance/gap": 0.09, "importance/capped_frac": 0.49, "importance/missing_frac": 0.49}, None),
        ({"importance/gap": 0.0, "importance/capped_frac": 0.51}, "sampler"),
        ({"importance/gap": 0.0, "importance/missing_frac": 0.51}, "sampler"),
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
        assert not seen_in(signs, FINE)
    assert seen_in(signs, FINE | change) == ({sign} if sign else set())


@pytest.mark.parametrize(
    ("first", "gap", "staleness", "is_sign"),
    [
        (0.0, 0.21, 0.0, True),
        (0.0, 0.19, 0.0, False),
        (0.1, 0.51, 0.0, True),
        (0.1, 0.49, 0.0, False),
        (0.0, 0.3, 1.0, False),  # drawn ahead: the weights are older on purpose
    ],
)
def test_a_sampler_that_falls_behind(first: float, gap: float, staleness: float, is_sign: bool) -> None:
    """Within two rollout batches after one with the trainer's weights; other steps log no gap."""
    alarms = Alarms(HealthConfig())
    rows: list[dict[str, float]] = [{"importance/gap": 0.01, "importance/relative_gap": part} for part in (first, gap, gap)]
    rows = [rows[0], {}, rows[1], {}, rows[2]]
    seen = [set(alarms.of(FINE | {"rollouts/staleness": staleness} | row, step)) for step, row in enumerate(rows)]
    assert seen == [set(), set(), set(), set(), {"sampler"} if is_sign else set()]


@pytest.mark.parametrize(("gap", "staleness"), [(0.11, 1.0), (0.11, 0.0)])
def test_a_sampler_far_from_the_trainer(gap: float, staleness: float) -> None:
    """Also with weights that are older on purpose."""
    alarms = Alarms(HealthConfig())
    row = FINE | {"importance/gap": gap, "importance/relative_gap": 0.1, "rollouts/staleness": staleness}
    assert [set(alarms.of(row, step)) for step in range(2)] == [set(), {"sampler"}]


def test_low_entropy_of_a_cold_start_is_no_sign() -> None:
    """The rate is of labels, not of rollouts: it is meant to fall."""
    assert not seen_in(Signs(HealthConfig()), {"loss": 0.1, "entropy": 0.001})


def test_reward_hacking() -> None:
    """Consistency pays more and more while verdicts get worse; the same fall of accuracy with the reward is none."""

    def seen(reward_by_step: float) -> list[str]:
        signs = Signs(HealthConfig(window=10))
        found: list[str] = []
        for step in range(20):
            row = {"reward": 1.0 + reward_by_step * step, "reward/accuracy": 0.8 - 0.015 * step}
            found += sorted(seen_in(signs, FINE | row))
        return found

    assert seen(0.01) == ["reward_hacking"]
    assert seen(-0.01) == []


def test_a_sign_must_hold_without_a_break(tmp_path: Path) -> None:
    """Bad, fine, bad is no event under a patience of 2; one more bad log is."""
    watchdog, bad = Watchdog(HealthConfig(policy="warn", patience=2), tmp_path), FINE | {"reward/invalid_frac": 0.97}
    events = tmp_path / "health.jsonl"
    for step, logs in enumerate((bad, FINE, bad, bad), 1):
        assert not events.exists()
        watchdog.on_log(SimpleNamespace(logging_steps=1), SimpleNamespace(global_step=step), None, logs)
    assert json.loads(events.read_text())["step"] == 4


def first_alarm(rows: list[dict[str, float]], config: HealthConfig, **more: bool) -> tuple[int, set[str]] | None:
    alarms = Alarms(config, **more)
    events = [(step, set(alarms.of(row, step))) for step, row in enumerate(rows, 1)]
    return next((event for event in events if event[1]), None)


def test_rollouts_that_several_steps_are_trained_on() -> None:
    """They are logged with the first of these steps: the lines between neither add to a sign nor end it."""
    bad, between = FINE | {"reward/invalid_frac": 0.97}, {"loss": 0.1, "entropy": 0.5}
    config = HealthConfig(patience=3)
    assert first_alarm([bad, between, bad, between, bad], config) == (5, {"invalid"})
    assert first_alarm([bad, between, bad, between, FINE, between, bad, between, bad], config) is None


def critic_rows(explained: float, bias: float, number: int = 12) -> list[dict[str, float]]:
    return [FINE | {"value/explained_variance": explained, "advantage/position_bias": bias}] * number


@pytest.mark.parametrize(
    ("explained", "bias", "expected"),
    [
        (0.029, 0.0, (6, {"starved_critic"})),
        (0.031, 0.0, None),
        (0.2, 1.01, (2, {"advantage_by_position"})),
        (0.2, -1.01, (2, {"advantage_by_position"})),
        (0.2, 0.99, None),
    ],
)
def test_signs_of_a_critic(explained: float, bias: float, expected: tuple[int, set[str]] | None) -> None:
    """Named at once where its errors reach the policy; at lambda 1 they are a baseline."""
    rows = critic_rows(explained, bias)
    assert first_alarm(rows, HealthConfig(), bootstraps=True) == expected
    assert first_alarm(rows, HealthConfig()) is None


@pytest.mark.parametrize("window", [1, 5, 20])
def test_a_short_window_hides_no_starved_critic(window: int) -> None:
    rows = critic_rows(-0.05, 0.0)
    assert first_alarm(rows, HealthConfig(window=window), bootstraps=True) == (6, {"starved_critic"})


def test_a_critics_signs_end_no_run(tmp_path: Path) -> None:
    watchdog = Watchdog(HealthConfig(policy="stop"), tmp_path, bootstraps=True)
    for step, row in enumerate(critic_rows(0.2, 1.4), 1):
        watchdog.on_log(SimpleNamespace(logging_steps=1), SimpleNamespace(global_step=step), None, row)
    (event,) = map(json.loads, (tmp_path / "health.jsonl").read_text().splitlines())
    assert (event["signs"], event["done"]) == (["advantage_by_position"], "warn")


def test_one_poor_batch_is_no_sign_of_a_critic() -> None:
    """Single batches vary: means count, twice in a row."""
    for poor in (critic_rows(-0.2, 0.0, 1), critic_rows(0.2, 1.9, 1)):
        rows = critic_rows(0.2, 0.0, 6) + poor + critic_rows(0.2, 0.0, 4)
        assert first_alarm(rows, HealthConfig(), bootstraps=True) is None


def test_returns_that_hardly_vary_are_no_sign_later() -> None:
    rows = critic_rows(0.2, 0.0, 20) + critic_rows(-0.1, 0.0, 30)
    assert first_alarm(rows, HealthConfig(window=20), bootstraps=True) is None


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"advantage": "gae"}, True),
        ({"advantage": "gae", "gae_lambda": 1.0}, False),
        ({"advantage": "gae", "length_alpha": 0.05}, True),
        ({"advantage": "gae", "gae_lambda": 1.0, "window": 64}, True),
        ({}, False),
    ],
)
def test_where_a_critics_errors_reach_the_policy(changes: dict[str, Any], expected: bool) -> None:
    assert RLConfig(**changes).bootstraps is expected


def test_rates_are_halved_before_the_first_step() -> None:
    """That of the policy and that of the critic, of a checkpoint that had them whole or halved already."""
    weights = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    groups = [{"params": [weight], "lr": rate} for weight, rate in zip(weights, (0.4, 0.1), strict=True)]
    optimizer = torch.optim.SGD(groups)
    scheduler = LambdaLR(optimizer, lambda step: 1.0)
    for _ in range(2):
        HalveLearningRate(1, 0.4).on_train_begin(None, None, None, optimizer=optimizer, lr_scheduler=scheduler)
        assert scheduler.base_lrs == [0.2, 0.05]
        for name in ("lr", "initial_lr"):
            assert [group[name] for group in optimizer.param_groups] == [0.2, 0.05]


def collapsing(monkeypatch: pytest.MonkeyPatch, from_step: int, times: int) -> list[tuple[int, float]]:
    """Run like :func:`scaled_runs.collapsing`; returns (step, rate) of every log."""
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


def test_a_run_is_taken_back(tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the checkpoint before the sign built up (not that of step 3), at half the rate, with other draws; then it ends as any
    run."""
    seen = collapsing(monkeypatch, 3, 1)
    changes = {"health": {"patience": 2, "policy": "roll_back"}, "save_steps": 1, "save_total_limit": 3}
    generate, drawn = PolicyTrainer._generate_and_score_completions, []

    def noted(self: Any, inputs: Any) -> Any:
        batch = generate(self, inputs)
        drawn.append((self.state.global_step, batch["completion_ids"].tolist()))
        return batch

    monkeypatch.setattr(PolicyTrainer, "_generate_and_score_completions", noted)
    scaled_runs.run("rl", tiny_checkpoint, tmp_path / "run", max_steps=6, **changes)
    assert (tmp_path / "run" / "final").exists()
    assert rollbacks(tmp_path / "run") == [4]
    usual = scaled_runs.SHARED["learning_rate"]
    assert seen[:4] == [(step, usual) for step in (1, 2, 3, 4)]
    assert seen[4:] == [(step, usual / 2) for step in (3, 4, 5, 6)]
    before, after = [ids for step, ids in drawn if step == 2]  # by the same weights
    assert before != after
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


@pytest.mark.nightly
def test_what_was_seen_before_a_kill_counts(tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sign that held at the last log before the checkpoint, and at the first after it, held twice."""
    collapsing(monkeypatch, 2, 9)
    scaled_runs.run("rl", tiny_checkpoint, tmp_path / "run", kill=True, health={"patience": 2})
    with pytest.raises(HealthError, match="step 3: 100%"):
        scaled_runs.run("rl", tiny_checkpoint, tmp_path / "run", health={"patience": 2})


def test_trackers_are_there_before_a_run_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"tensorbord is not a tracker; expected none, tensorboard, wandb, trackio"):
        RLConfig(report_to="tensorbord")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install wandb trackio, or report_to: none"):
        common_arguments(RLConfig(report_to="wandb,trackio"), tmp_path)


def test_going_back_needs_something_to_go_back_to() -> None:
    with pytest.raises(
        ValueError, match=r"patience x 10 steps between logs = 50 steps, and save_total_limit 2 keeps the last 40"
    ):
        RLConfig(health={"policy": "roll_back"}, logging_steps=10, save_steps=40)
    RLConfig(health={"policy": "roll_back"}, logging_steps=8, save_steps=40)
    with pytest.raises(ValueError, match=r"patience x 16 steps between logs = 80 steps"):  # logged once a rollout batch
        RLConfig(health={"policy": "roll_back"}, rollout_batch_size=256, batch_size=16, save_steps=64)


@pytest.mark.nightly
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


@pytest.mark.nightly
def test_a_fit_of_a_value_model_is_taken_back(tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss of its fourth step is no number: half the rate from the checkpoint before it on, and a finished run."""
    compute, seen = BradleyTerryTrainer.compute_loss, list[tuple[int, float]]()

    def faulty(self: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append((self.state.global_step + 1, self.optimizer.param_groups[0]["lr"]))
        fails = seen[-1][0] == 4 and not rollbacks(tmp_path / "run")
        return compute(self, *args, **kwargs) * (float("nan") if fails else 1.0)

    monkeypatch.setattr(BradleyTerryTrainer, "compute_loss", faulty)
    shared = scaled_runs.SHARED | {"template": "single", "model": str(tiny_checkpoint), "batch_size": 8, "max_steps": 6}
    shared |= {"health": {"policy": "roll_back", "patience": 2}, "save_steps": 1, "save_total_limit": 3}
    train_reward_model(scaled_runs.pairs()[:16], RMConfig(**shared), tmp_path / "run")
    assert rollbacks(tmp_path / "run") == [4]
    assert (tmp_path / "run" / "final").exists()
    usual, rates = scaled_runs.SHARED["learning_rate"], list(dict.fromkeys(seen))
    assert rates == [*((step, usual) for step in (1, 2, 3, 4)), *((step, usual / 2) for step in (3, 4, 5, 6))]


@pytest.mark.nightly
def test_a_run_with_a_critic_is_taken_back(tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both rates are halved, that of the critic and that of the policy."""
    collapsing(monkeypatch, 3, 1)
    rates: list[tuple[int, set[float]]] = []
    step = PolicyTrainer._clip_grad_norm

    def observed(self: Any, model: Any) -> Any:
        rates.append((self.state.global_step + 1, {group["lr"] for group in self.optimizer.param_groups}))
        return step(self, model)

    monkeypatch.setattr(PolicyTrainer, "_clip_grad_norm", observed)
    changes = {"health": {"patience": 2, "policy": "roll_back"}, "save_steps": 1, "save_total_limit": 3}
    critic = {"advantage": "gae", "gae_lambda": 1.0, "outliers": "keep", "preclip": None, "value_learning_rate": 4e-3}
    scaled_runs.run("rl", tiny_checkpoint, tmp_path / "run", max_steps=6, **changes, **critic)
    usual = scaled_runs.SHARED["learning_rate"]
    assert rates[:4] == [(step, {usual, 4e-3}) for step in (1, 2, 3, 4)]
    assert rates[4:] == [(step, {usual / 2, 2e-3}) for step in (3, 4, 5, 6)]


def test_weights_that_are_no_numbers_are_seen_by_the_watchdog(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """They draw any tokens, whose loss is no number; the draw itself is no error that would come before it."""
    with pytest.raises(HealthError, match="is nan"):
        scaled_runs.run("rl", tiny_checkpoint, tmp_path, learning_rate=1e38, health={"policy": "stop"})
