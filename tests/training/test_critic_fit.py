"""Fitting a critic before RL begins: when it stops, what it took, that it was enough; for every way of making rollouts."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerControl, TrainerState

from rewardlab.config import RLConfig
from rewardlab.errors import ConfigError, HealthError
from rewardlab.prompts import load_template
from rewardlab.training.policy_gradient.build import run_method
from rewardlab.training.policy_gradient.critic import CriticFit, StopAtPlateau, StopRule, critic_config, record_fit
from rewardlab.training.policy_gradient.trainer import PolicyTrainer
from rewardlab.training.rl import train_rl
from rewardlab.training.run.inputs import ReadablePairs
from tests.support.configs import WITH_CRITIC, short_rl_config
from tests.support.rewards import TokenReward
from tests.support.weights import weights_of

RULE = StopRule(minimum=0.05, patience=5)


def fit_config(checkpoint: Path | str = "x", **changes: Any) -> RLConfig:
    return short_rl_config(checkpoint, **(WITH_CRITIC | {"max_steps": 2} | changes))


def end_of(explained: list[float], rule: StopRule = RULE) -> int | None:
    """Return after how many batches the rule ends the fit; None where it never does."""
    return next((n for n in range(1, len(explained) + 1) if rule.stops(explained[:n])), None)


def test_a_plateau_at_zero_does_not_end_the_fit() -> None:
    """Nor does one just below the minimum, however long; the same plateau above it does, once it is seen five times."""
    assert end_of([0.0] * 200) is None
    assert end_of([0.049] * 200) is None
    assert end_of([0.051] * 200) == 14


def test_a_rise_of_a_hundredth_goes_on() -> None:
    """From one five batches to the next."""
    assert end_of([0.1 + 0.0021 * n for n in range(100)]) is None
    assert end_of([0.1 + 0.0019 * n for n in range(100)]) == 14


def test_a_fall_below_the_minimum_goes_on() -> None:
    assert end_of([0.2] * 8 + [-0.5] * 100) is None


@pytest.mark.parametrize("seed", range(5))
def test_noise_neither_ends_it_early_nor_keeps_it_going(seed: int) -> None:
    """A critic that stays at 0 for twenty batches, rises for twenty, and stays at 0.2, each batch read with an error of 0.04:
    by the default patience it is stopped in the last part, and soon."""
    draw, rule = random.Random(seed), StopRule(0.05, RLConfig().value_patience)
    true = [0.0] * 20 + [0.01 * n for n in range(20)] + [0.2] * 60
    end = end_of([value + draw.gauss(0, 0.04) for value in true], rule)
    assert end is not None
    assert 50 <= end <= 90


def test_logs_without_the_number_do_not_count() -> None:
    """There is one a rollout batch, and several optimizer steps; a batch of equal returns has none."""
    stop, control, state = StopAtPlateau(StopRule(0.05, 3)), TrainerControl(), TrainerState()
    rows: list[dict[str, Any]] = []
    for explained in (0.2,) * 8:
        rows += [{"value/loss": 1.0}, {"value/explained_variance": None}, {"value/explained_variance": explained}]
    for row in rows:
        assert not control.should_training_stop
        state.log_history.append(row)
        stop.on_log(None, state, control)  # type: ignore[arg-type]
    assert control.should_training_stop


def test_the_config_of_a_fit() -> None:
    """Whole returns of whole rollouts at a constant rate, under a policy that can only stop or warn, of other draws; nothing
    else differs."""
    config = fit_config(
        value_pretrain_steps=30, window=4, gae_lambda_critic=0.95, kl="k2_loss", kl_coef=0.1, value_learning_rate=None,
        health={"policy": "roll_back", "patience": 3}, save_total_limit=4,
    )  # fmt: skip
    fitted = critic_config(config)
    assert (fitted.max_steps, fitted.gae_lambda_critic, fitted.window, fitted.kl_coef) == (30, 1.0, None, 0.0)
    assert (fitted.value_learning_rate, fitted.health.policy) == (2 * config.learning_rate, "stop")
    changed = {name for name in RLConfig.model_fields if getattr(config, name) != getattr(fitted, name)}
    assert changed == {"max_steps", "gae_lambda_critic", "window", "kl_coef", "value_learning_rate", "health", "seed"}


def test_a_fit_may_take_smaller_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its checkpoints are at the end of rollout batches, as RL's are."""
    sizes = {"rollout_batch_size": 16, "batch_size": 8, "micro_batch_size": 4, "group_size": 1, "save_steps": 6}
    sizes["value_pretrain_steps"] = 4
    fitted = critic_config(fit_config(value_pretrain_batch_size=2, **sizes))
    assert (fitted.batch_size, fitted.micro_batch_size, fitted.save_steps) == (2, 2, 8)
    assert critic_config(fit_config(**sizes)).save_steps == 6
    for wrong in (3, 6):
        with pytest.raises(ValueError, match=f"value_pretrain_batch_size {wrong} must divide rollout_batch_size 16"):
            fit_config(value_pretrain_batch_size=wrong, **sizes)
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert critic_config(fit_config(value_pretrain_batch_size=8, **sizes)).micro_batch_size == 2
    with pytest.raises(ConfigError, match=r"2 rollouts per step \(over all processes\) are not divisible by 4 processes"):
        critic_config(fit_config(value_pretrain_batch_size=2, **sizes))


def test_a_run_that_cannot_be_shared_out_is_refused_before_its_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the fit, in smaller steps, could be."""
    sizes = {"rollout_batch_size": 16, "batch_size": 8, "micro_batch_size": 8, "group_size": 1, "save_steps": 2}
    config = fit_config(value_pretrain_steps=4, value_pretrain_batch_size=4, **sizes)

    def build(**kwargs: Any) -> Any:
        raise AssertionError("a trainer is built")

    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="a batch has 8 sequences over all processes"):
        run_method(
            build,
            config,
            tmp_path / "rl",
            "data",
            load_template("plain"),
            name="rl",
            num_rows=16,
            readable=ReadablePairs([], [], {}, tmp_path / "rl"),
        )
    assert not (tmp_path / "rl").exists()


def test_a_fit_is_read_from_the_logs() -> None:
    state = TrainerState(global_step=12)
    state.log_history = [{"value/explained_variance": 0.1 * n, "tokens/generated": 100.0} for n in range(6)]
    state.log_history += [{"loss": 1.0}]
    fit = CriticFit.of(state, RULE)
    assert (fit.steps, fit.batches, fit.tokens, fit.plateau) == (12, 6, 600, False)
    assert fit.explained_variance == pytest.approx(0.3)  # of the last five
    assert "12 steps on 6 rollout batches (600 generated tokens), until its budget was spent" in str(fit)
    assert fit.shortfall(0.05) == ""
    assert "explains 0.30 of the variance" in fit.shortfall(0.31)
    assert "all returns were equal" in CriticFit.of(TrainerState(), RULE).shortfall(0.05)


def test_value_pretraining(hard: list[Any], tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a constant reward the critic comes to say that reward at every position; the policy is not touched by a bit."""
    closed = []
    monkeypatch.setattr(PolicyTrainer, "close_engine", lambda self: closed.append(Path(self.args.output_dir).name))
    changes = {"learning_rate": 1e-9, "value_learning_rate": 1e-2}
    out = tmp_path / "run"
    config = fit_config(tiny_checkpoint, value_pretrain_steps=40, **changes)
    final = train_rl(hard, config, out, reward=TokenReward(lambda ids, n: 1.5))
    lines = [json.loads(line) for line in (out / "value" / "metrics.jsonl").read_text().splitlines()]
    losses = [line["value/loss"] for line in lines if "value/loss" in line]
    assert losses[0] == pytest.approx(0.5 * 1.5**2)
    assert losses[-1] < 0.1 * losses[0]
    assert not list((out / "value").rglob("model.safetensors"))  # of a policy that stays as it is, nothing is saved
    assert (weights_of(final) - weights_of(tiny_checkpoint)).abs().max() < 1e-7
    first = json.loads((out / "metrics.jsonl").read_text().splitlines()[0])
    assert first["value/loss"] < 0.2 * losses[0]  # the run began with the critic that was made
    assert closed == ["value", "run"]  # two engines at once would not fit


@pytest.mark.nightly
def test_a_critic_below_the_minimum_ends_the_run(hard: list[Any], tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Before the policy has moved; begun again it is refused; who only wants to be warned goes on, and trains it no more."""
    changes = {"value_pretrain_steps": 4, "value_learning_rate": 1e-9, "health": {"policy": "stop"}}
    config, out = fit_config(tiny_checkpoint, **changes), tmp_path / "run"
    reward = TokenReward(lambda ids, n: float(sum(ids) % 5))
    with pytest.raises(HealthError, match=r"less than health\.min_explained_variance 0\.03.*raise value_pretrain_steps"):
        train_rl(hard, config, out, reward=reward)
    assert not (out / "metrics.jsonl").exists()
    with pytest.raises(HealthError, match="was ended at step 4"):
        train_rl(hard, config, out, reward=reward)
    warned = config.model_copy(update={"health": config.health.model_copy(update={"policy": "warn"})})
    assert train_rl(hard, warned, out, reward=reward).exists()
    events = [json.loads(line) for line in (out / "value" / "health.jsonl").read_text().splitlines()]
    assert [(event["signs"], event["done"]) for event in events] == [(["unfitted_critic"], done) for done in ("stop", "warn")]
    fit = json.loads((out / "value" / "fit.json").read_text())
    metrics = [json.loads(line) for line in (out / "value" / "metrics.jsonl").read_text().splitlines()]
    assert (fit["steps"], fit["batches"], fit["plateau"]) == (4, 2, False)
    assert fit["tokens"] == sum(row.get("tokens/generated", 0) for row in metrics) > 0


def test_a_baseline_below_the_minimum_is_only_named(tmp_path: Path) -> None:
    """With lambda 1 a critic's errors do not reach the policy."""
    config = fit_config(value_pretrain_steps=4, gae_lambda=1.0, health={"policy": "stop"})
    record_fit(CriticFit(4, 2, 100, False, 0.0), config, tmp_path)
    (event,) = map(json.loads, (tmp_path / "health.jsonl").read_text().splitlines())
    assert (event["signs"], event["done"]) == (["unfitted_critic"], "warn")


def parity(ids: list[int], n: int) -> float:
    return float(sum(ids) % 5)


@pytest.mark.parametrize(
    "changes", [{"self_verify": True, "gae_lambda_critic": 0.95, "kl_coef": 0.1}, {"window": 4}], ids=["pag", "t_ppo"]
)
def test_every_way_of_making_rollouts(
    hard: list[Any], tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    """Dialogues, windows and a KL term: the critic is fitted to returns of finished rollouts, and RL begins with it."""
    masks: list[tuple[bool, float, float]] = []
    generate = PolicyTrainer._generate_and_score_completions

    def observed(self: Any, inputs: Any) -> Any:
        batch = generate(self, inputs)
        fitted, policy = (
            batch["value_mask"].sum(),
            (batch["turns"] > 0).sum() if "turns" in batch else batch["completion_mask"].sum(),
        )
        masks.append((self.value_only, float(fitted), float(policy)))
        return batch

    monkeypatch.setattr(PolicyTrainer, "_generate_and_score_completions", observed)
    config = fit_config(tiny_checkpoint, value_pretrain_steps=4, **changes)
    train_rl(hard, config, tmp_path / "run", reward=TokenReward(parity, correct=parity))
    alone = [(fitted, policy) for value_only, fitted, policy in masks if value_only]
    assert len(alone) == 2
    assert all(fitted == policy > 0 for fitted, policy in alone)  # every token of the policy, and no other
    assert (tmp_path / "run" / "critic").exists()
