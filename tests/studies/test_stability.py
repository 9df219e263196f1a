"""The stability study: its arms, the faults it measures, its sums by hand, and the whole of it in small."""

from __future__ import annotations

import copy
import json
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from eval.studies.stability import (
    ARMS,
    Settings,
    StabilityContext,
    config_of,
    delete_around_raw_mean,
    hide_images,
)
from eval.studies.stability_report import draw, markdown, paired, summarize, summary_of
from eval.studies.study import Trial, plan, read_records, run_trials
from eval.studies.tables import write_report
from rewardlab.config import Method
from rewardlab.errors import ConfigError, DataError
from rewardlab.metrics.intervals import wilson_interval
from rewardlab.models.loading import load_model
from rewardlab.prompts import load_template
from rewardlab.training.policy_gradient.algorithm import (
    LossInputs,
    LossScale,
    Rewards,
    compute_advantages,
    policy_loss,
)
from rewardlab.training.policy_gradient.batch import RolloutBatch
from rewardlab.training.rl import build_trainer, rl_rows
from tests.support.rewards import TokenReward

PLAIN = load_template("plain")
SMALL = Settings(
    rollout_batches=2,
    rollout_batch_size=8,
    batch_size=4,
    max_tokens=16,
    num_candidates=40,
    num_draws=1,
    keep_from=0.0,
    num_test=6,
    num_votes=1,
    num_start_votes=2,
)


# ---- the arms


def test_arms_differ_in_what_they_name_and_in_nothing_else() -> None:
    """Against StableReinforce, which is the defaults of the config."""
    configs = {arm: config_of(Trial(0, arm, 1e-4), Settings(), model="m", template="plain").model_dump() for arm in ARMS}
    base = configs["stable_reinforce"]
    assert (base["outliers"], base["preclip"], base["dual_clip"]) == ("delete", (1e-3, 1e3), None)
    differences = {arm: {k: v for k, v in config.items() if v != base[k]} for arm, config in configs.items()}
    assert differences == {
        "reinforce_pp": {"outliers": "keep", "preclip": None},
        "preclip": {"outliers": "keep"},
        "filter": {"preclip": None},
        "stable_reinforce": {},
        "raw_mean_filter": {"outliers": "keep"},
        "preclip_clip": {"outliers": "clip"},
        "dual_clip": {"outliers": "keep", "preclip": None, "dual_clip": 3.0},
        "grpo": {"advantage": "grpo", "group_size": 8, "preclip": None},
        "blind_stable_reinforce": {},
        "blind_reinforce_pp": {"outliers": "keep", "preclip": None},
    }
    assert {name: arm.parts for name, arm in ARMS.items() if arm.parts} == {
        "raw_mean_filter": {"outliers": delete_around_raw_mean},
        "blind_stable_reinforce": {"image_fields": hide_images},
        "blind_reinforce_pp": {"image_fields": hide_images},
    }
    assert configs["grpo"]["max_steps"] == 5 * 8
    assert config_of(Trial(3, "filter", 1e-3), Settings(), model="m", template="plain").seed == 3


# ---- the faults


def trainer_of(arm: str, checkpoint: Path, pairs: Any, out: Path, *, reward: Any = None, **changes: Any) -> Any:
    settings = replace(SMALL, **changes)
    config = config_of(Trial(0, arm, 1e-3), settings, model=str(checkpoint), template="plain")
    model, processor = load_model(str(checkpoint), device="cpu")
    rows = rl_rows(pairs[:20], PLAIN, both_orders=True)
    return build_trainer(rows, config, model, processor, PLAIN, out, reward=reward, **ARMS[arm].parts)


def test_the_raw_mean_filter_on_uneven_rollouts() -> None:
    """Eight successes of a token each, two failures of two and one: 8 x 1.5 and 3 x 0.5 make a raw mean of 13.5 / 11 = 1.2273,
    so that the lower bound is -1.7727; whitened failures are (0.5 - 1.2273) / 0.4454 = -1.6330 and stay. With failures of
    a token each the mean is 1.3, the bound -1.7, the failures -2.0, and they go."""
    rewards_N = torch.tensor([1.5] * 8 + [0.5] * 2)
    for lengths, failure in (([1] * 8 + [2, 1], -1.6330), ([1] * 10, 0.0)):
        mask_NT = (torch.arange(2) < torch.tensor(lengths)[:, None]).long()
        zeros_NT = torch.zeros_like(mask_NT)
        batch = RolloutBatch(zeros_NT, zeros_NT, zeros_NT, mask_NT, mask_NT, {})
        outputs = compute_advantages(
            batch,
            Rewards(rewards_N, slice(0, 10)),
            Method(outliers="keep"),
            sum_processes=lambda sums: sums,
            outliers=delete_around_raw_mean,
        )
        success = (1.5 - 13.5 / 11) / 0.4454 if failure else 0.5
        expected_NT = torch.tensor([success] * 8 + [failure] * 2)[:, None] * mask_NT
        torch.testing.assert_close(outputs.advantages_NT, expected_NT, atol=1e-3, rtol=0)
        assert outputs.metrics["advantage/outlier_frac_negative"].value == pytest.approx(0.0 if failure else 0.2)
        assert outputs.metrics["advantage/max_abs"].value == pytest.approx(1.6330 if failure else 2.0, abs=1e-3)


def test_the_raw_mean_filter_in_the_trainer(tiny_checkpoint: Path, demo_pairs: Any, tmp_path: Path) -> None:
    """The same eighty percent through the trainer: its failures have advantage 0, StableReinforce's have -2."""
    reward = TokenReward(lambda tokens, n: 1.5 if n < 8 else 0.5)
    for arm, failures in (("raw_mean_filter", 0.0), ("stable_reinforce", -2.0)):
        size = {"rollout_batch_size": 10, "batch_size": 10, "max_tokens": 3}
        trainer = trainer_of(arm, tiny_checkpoint, demo_pairs[0], tmp_path, reward=reward, **size)
        trainer.model.train()
        batch = trainer._generate_and_score_completions(next(iter(trainer.get_train_dataloader())))
        assert batch["loss_mask"].tolist() == [[1, 1, 1]] * 10
        expected = torch.tensor([0.5] * 8 + [failures] * 2)[:, None].expand(10, 3)
        torch.testing.assert_close(batch["advantages"], expected)
        trainer.log({})
        logged = trainer.state.log_history[-1]["advantage/outlier_frac_negative"]
        assert logged == pytest.approx(0.2 if failures == 0 else 0.0)


@pytest.mark.parametrize("arm", ["blind_stable_reinforce", "stable_reinforce"])
def test_a_blind_actor_does_not_see_the_image(arm: str, tiny_checkpoint: Path, demo_pairs: Any, tmp_path: Path) -> None:
    """Another image, the same log-probs and no gradient of the vision tower; a sighted actor's change. Both sample sighted."""
    trainer = trainer_of(arm, tiny_checkpoint, demo_pairs[0], tmp_path)
    trainer.model.train()
    batch = RolloutBatch.from_trl(trainer._prepare_inputs(next(iter(trainer.get_train_dataloader()))))
    pixels = batch.image_fields["pixel_values"]
    mask = batch.completion_mask_NT
    other = replace(batch, image_fields={**batch.image_fields, "pixel_values": pixels + 0.5})
    (seen, entropies), (changed, _) = (trainer._logprobs(trainer.model, inputs) for inputs in (batch, other))
    blind = ARMS[arm].parts == {"image_fields": hide_images}
    assert (((seen - changed).abs() * mask).max() < 1e-9) == blind
    torch.testing.assert_close(seen * mask, batch.old_logprobs_NT * mask, atol=1e-5, rtol=1e-4)  # old and new alike
    paid = replace(batch, advantages_NT=torch.ones_like(mask).float())
    policy_loss(LossInputs(paid, seen, entropies, LossScale(1, 1, 1)), Method()).loss.backward()
    touched = [name for name, p in trainer.model.model.visual.named_parameters() if p.grad is not None and p.grad.any()]
    assert (touched == []) == blind
    # The sampler's own log-probs of what it drew are those of a sighted policy.
    sampled = [sum(rollout.trajectory.logprobs) for rollout in trainer._current]
    sums = (seen * mask).sum(1).tolist()
    agree = all(any(abs(trained - drawn) < 1e-3 for drawn in sampled) for trained in sums)
    assert agree != blind


# ---- the sums


def record(arm: str, seed: int, accuracy: float, **changes: Any) -> dict[str, Any]:
    series = {
        "grad_norm": [1.0, 2.0, None],
        "loss": [0.1, None],
        "right": [0.9, 0.5],
        "invalid": [0.0, 0.1],
        "entropy": [0.3, 0.2],
        "preclip_frac": [0.0, 0.02],
        "clip_frac": [0.1, 0.3],
        "outlier_frac_negative": [0.08, 0.0],
        "outlier_frac_positive": [0.0, 0.0],
    }
    made = {
        "arm": arm,
        "learning_rate": 1e-3,
        "seed": seed,
        "status": "finished",
        "accuracy": accuracy,
        "invalid": 0.1,
        "num_votes": 100,
        "answers": ["a"],
        "steps": 3,
        "series": series,
        "wall_s": 12.0,
        "cpu_s": 10.0,
        "commit": "c",
    }
    return {**copy.deepcopy(made), **changes}


START: dict[str, Any] = {
    "accuracy": 0.85,
    "invalid": 0.01,
    "num_votes": 400,
    "right": {"a": 8},
    "wall_s": 30.0,
    "cpu_s": 20.0,
    "identity": {"judge": "j", "settings": asdict(Settings())},
}


def test_a_cell_by_hand() -> None:
    """Accuracies 0.8, 0.6 and 0 of which the last is no number: mean 7/15, deviation 0.4163, t(2) 4.3027."""
    records = [record("preclip", 0, 0.8), record("preclip", 1, 0.6), record("preclip", 2, 0.0, status="non_finite")]
    summary = summary_of(records, 0.85)
    assert (summary["num_seeds"], summary["collapsed"], summary["non_finite"]) == (3, 2, 1)
    assert summary["accuracy"] == pytest.approx(0.4667, abs=1e-4)
    assert summary["accuracy_interval"] == [0.0, 1.0]  # 0.4667 -+ 1.034, bounded
    assert summary["collapse_interval"] == pytest.approx([0.2077, 0.9385], abs=1e-3)  # Wilson, 2 of 3
    assert summary["right_of_rollouts"] == [pytest.approx(0.9), pytest.approx(0.5)]
    assert summary["grad_norm"]["median"] == 1.5
    assert summary["grad_norm"]["max"] == 2.0
    assert summary["grad_norm_non_finite"] == 3
    assert summary["preclip_frac"] == pytest.approx(0.01)
    assert summary["outlier_frac_negative"] == pytest.approx(0.04)
    assert summary["first_outlier_frac_negative"] == pytest.approx(0.08)
    assert summary["last_entropy"] == pytest.approx(0.2)
    assert wilson_interval(0, 5) == pytest.approx((0.0, 0.4345), abs=1e-3)


def test_pairs_by_seed_by_hand() -> None:
    """Differences 0.1 and 0.3 on the seeds that both have: mean 0.2, half-width 12.706 x 0.1414 / sqrt 2 = 1.2706."""
    records = [record("grpo", 0, 0.8), record("grpo", 1, 0.7), record("grpo", 7, 0.1)]
    base = [record("reinforce_pp", 1, 0.4), record("reinforce_pp", 0, 0.7), record("reinforce_pp", 5, 0.9)]
    summary = paired(records, base, 0.85)
    assert summary["num_seeds"] == 2
    assert summary["difference"] == pytest.approx(0.2)
    assert summary["interval"] == pytest.approx([-1.0706, 1.4706], abs=1e-3)
    assert (summary["only_this_collapsed"], summary["only_the_other_collapsed"]) == (0, 1)


def test_summary_and_report() -> None:
    """Cells by arm and rate, both bases, the time; tables without what was not measured."""
    records = [
        *(record(arm, seed, value) for arm, value in (("reinforce_pp", 0.5), ("stable_reinforce", 0.8)) for seed in (0, 1)),
        record("grpo", 0, 0.9, series={**{key: [] for key in record("grpo", 0, 0)["series"]}, "right": [0.95]}),
    ]
    summary = summarize(records, START, 2)
    assert list(summary["cells"]) == ["reinforce_pp", "stable_reinforce", "grpo"]
    assert summary["cells"]["reinforce_pp"]["0.001"]["collapsed"] == 2
    assert summary["against_reinforce_pp"]["stable_reinforce"]["0.001"]["difference"] == pytest.approx(0.3)
    assert summary["against_stable_reinforce"]["grpo"]["0.001"]["num_seeds"] == 1
    assert summary["minutes"] == {"by_cpu_seconds": 0.6, "by_the_clock": 1.0}  # (20 + 5 x 10) / 2 s; 30 + 5 x 12 / 2 s
    assert summary["right_at_start"] == {"mean": pytest.approx(0.91), "lowest": 0.9, "highest": 0.95}
    text = markdown(summary)
    assert "| REINFORCE++ | 2 of 2 [34, 100] | 50.0 [50.0, 50.0] | 10.0 [10.0, 10.0] | 90 50 |" in text
    assert "| REINFORCE++ | -30.0 [-30.0, -30.0] | 2 / 0 | 2 of 2 |" in text
    assert "| GRPO, groups of 8 | +10.0 | 0 / 0 | 0 of 1 |" in text
    assert "| REINFORCE++ | 50.0 [50.0, 50.0]; 2 of 2 |" in text
    with pytest.raises(ValueError, match="no finished trial"):
        summarize([], START, 2)


# ---- the whole of it


def test_a_study_in_small(finished_run: Path, tmp_path: Path) -> None:
    """Two trials: a record of each, and a report."""
    trials = plan(ARMS, ("reinforce_pp", "stable_reinforce"), (0,), (1e-2,))
    start = run_trials(partial(StabilityContext, finished_run, SMALL), trials, tmp_path, workers=1)
    records = read_records(tmp_path)
    assert [r["arm"] for r in records] == ["reinforce_pp", "stable_reinforce"]
    for record in records:
        assert (record["status"], record["steps"], record["num_votes"]) == ("finished", 8, 12)
        assert len(record["series"]["right"]) == 2
        assert any(0 < right < 1 for right in record["series"]["right"])
        assert max(record["series"]["grad_norm"]) > 0
        assert record["cpu_s"] > 0
    assert records[0]["series"]["right"][0] == records[1]["series"]["right"][0]  # the same pairs, the same draws
    assert records[0]["series"]["preclip_frac"] == []
    path = write_report("stability", summarize(records, start, 2), tmp_path, markdown=markdown, draw=draw)
    assert path.read_text().startswith("# Does StableReinforce")
    assert json.loads(path.with_suffix(".json").read_text())["num_trials"] == 2
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_weights_that_are_no_numbers_are_a_collapse(finished_run: Path) -> None:
    """Training stops at once; nothing could be read of such a judge, so that it is right on nothing."""
    context = StabilityContext(finished_run, SMALL)
    context.keep_late({pair.pair_id: 2 for pair in context.candidates})
    record = context.run(Trial(0, "reinforce_pp", 1e38))
    assert (record["status"], record["accuracy"], record["invalid"]) == ("non_finite", 0.0, 1.0)
    assert record["steps"] < 8
    json.dumps(record, allow_nan=False)


def test_what_cannot_be_studied(finished_run: Path, tmp_path: Path) -> None:
    """No quickstart, and a judge that is right too seldom."""
    with pytest.raises(ConfigError, match="rewardlab quickstart --out"):
        StabilityContext(tmp_path / "none", SMALL)
    context = StabilityContext(finished_run, replace(SMALL, keep_from=0.75))
    with pytest.raises(DataError, match=r"0 of 40 pairs.*train the judge for longer"):
        context.keep_late({pair.pair_id: 1 for pair in context.candidates})
