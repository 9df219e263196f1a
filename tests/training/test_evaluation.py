"""Evaluation while training: numbers of both orders, the same on two processes and after a kill, and training untouched."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from transformers import TrainerCallback

from rewardlab.config import EvaluationConfig, RMConfig
from rewardlab.data.pairs import write_parquet
from rewardlab.errors import ConfigError, DataError, MediaError
from rewardlab.models.checkpoints import read_card
from rewardlab.models.loading import load_model, load_processor
from rewardlab.prompts import load_template
from rewardlab.training import sft as sft_module
from rewardlab.training.reward_model import train_reward_model
from rewardlab.training.run.evaluation import BEST, Evaluation, evaluate, evaluation_mode, greedy_judge, plan_evaluation
from rewardlab.types import (
    Completion,
    FinishReason,
    Judgment,
    Order,
    PreferencePair,
    Verdict,
    VerdictStatus,
    Vote,
    choice_of,
)
from rewardlab.verdicts.votes import judgment
from tests.support import scaled_runs
from tests.support.killing import KilledError
from tests.support.launching import train_on
from tests.support.weights import weights_of

TEMPLATE = load_template("plain")


def rows(run: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / name).read_text().splitlines()]


def evaluations(run: Path) -> list[dict[str, Any]]:
    """Without how long they took."""
    found = rows(run, "evaluations.jsonl")
    for row in found:
        del row["metrics"]["eval/seconds"]
        row["metrics"].pop("eval/time_frac", None)  # none at the start
    return found


def vote(order: Order, winner: int | None, tokens: int = 10) -> Vote:
    verdict = Verdict(None, VerdictStatus.NO_VERDICT) if winner is None else Verdict(choice_of(winner, order), VerdictStatus.OK)
    return Vote(order, verdict, Completion("", FinishReason.STOP, tokens))


def says(pair: PreferencePair, given: int | None, swapped: int | None) -> Judgment:
    return judgment(pair.pair_id, [vote(Order.GIVEN, given), vote(Order.SWAPPED, swapped, 30)])


def alone(model: Any) -> Any:
    """What an evaluation asks of a trainer, of a model that nothing wraps."""
    accelerator = Accelerator(cpu=True)
    return SimpleNamespace(kept_elsewhere=(), model_wrapped=model, accelerator=accelerator)


class Module(torch.nn.Module):
    """A model that is never read: a judge of this file's own answers."""

    is_gradient_checkpointing = False


def evaluation_of(pairs: Sequence[PreferencePair], judge: Any, **changes: Any) -> Evaluation:
    config = EvaluationConfig.model_validate({"data": "test.parquet", **changes})
    return Evaluation(config, pairs, TEMPLATE, None, judge, 4)


@pytest.fixture
def four(demo_pairs: Any) -> list[PreferencePair]:
    return [replace(pair, question=f"{pair.question} ({n})") for n, pair in enumerate(demo_pairs[0][:4])]


def test_numbers_by_hand(four: list[PreferencePair]) -> None:
    """One pair right in both orders, one by its place alone (always the first), one wrong in both, one unread in one order.

    Accuracy (2 + 1 + 0 + 1) / 8; by order 3/4 and 1/4 where response 0 is the better one; the first is named in 5 of 7.
    """
    pairs = [replace(pair, preferred=0) for pair in four]
    said = [(0, 0), (0, 1), (1, 1), (0, None)]

    def judge(model: Any, processor: Any, asked: Sequence[PreferencePair]) -> list[Judgment]:
        blank = asked[0].images != next(pair.images for pair in pairs if pair.pair_id == asked[0].pair_id)
        places = [next(n for n, pair in enumerate(pairs) if pair.pair_id == one.pair_id) for one in asked]
        return [says(one, *((1, 1) if blank else said[n])) for n, one in zip(places, asked, strict=True)]

    result = evaluate(evaluation_of(pairs, judge), alone(Module()))
    metrics = result.metrics
    assert result.scores == [1.0, 0.5, 0.0, 0.5]
    expected = {
        "accuracy": 0.5,
        "accuracy_given": 0.75,
        "accuracy_swapped": 0.25,
        "consistent_accuracy": 0.25,
        "swap_consistency": 0.5,
        "invalid_frac": 1 / 8,
        "mean_length": 20.0,
        "first_frac": 5 / 7,
        "pairs": 4,
        "blank_accuracy": 0.0,
    }
    assert {name: metrics[f"eval/{name}"] for name in expected} == pytest.approx(expected)
    assert metrics["eval/accuracy_low"] < 0.5 < metrics["eval/accuracy_high"]
    both = evaluate(evaluation_of(pairs, judge, metric="consistent_accuracy", blank_images=False), alone(Module()))
    assert both.scores == [1.0, 0.0, 0.0, 0.0]
    assert not any("blank" in name for name in both.metrics)


def test_a_failure_is_no_score(four: list[PreferencePair]) -> None:
    """A pair that cannot be judged ends the run with what it was; the generators and modes are as before all the same."""

    def judge(*_: Any) -> list[Judgment]:
        torch.rand(3)
        raise MediaError("picture 7 is torn")

    model = Module()
    state = torch.get_rng_state()
    with pytest.raises(DataError, match="the held-out pairs cannot be judged: picture 7 is torn"):
        evaluate(evaluation_of(four, judge), alone(model))
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training


def test_modes_are_given_back(tiny_checkpoint: Path) -> None:
    """Module by module: what was frozen in eval mode stays so, and checkpointing is as it was."""
    model, _ = load_model(str(tiny_checkpoint), device="cpu")
    model.train()
    model.lm_head.eval()
    model.activation_checkpointing_enable()
    before = [(module.training, getattr(module, "gradient_checkpointing", None)) for module in model.modules()]
    functions = [getattr(module, "_gradient_checkpointing_func", None) for module in model.modules()]
    with evaluation_mode(alone(model)) as whole:
        assert not any(module.training for module in whole.modules())
    assert [(module.training, getattr(module, "gradient_checkpointing", None)) for module in model.modules()] == before
    assert [getattr(module, "_gradient_checkpointing_func", None) for module in model.modules()] == functions


def test_as_the_benchmark_judges(finished_run: Path, demo_pairs: Any) -> None:
    """The accuracy of an evaluation is that of the same checkpoint in `bench run pairs`, one greedy vote in each order, with
    pictures and with grey ones."""
    from rewardlab.benchmarks.runner import run_bench
    from rewardlab.benchmarks.settings import bench_settings

    pairs = demo_pairs[0][100:112]
    model, processor = load_model(str(finished_run / "rl" / "final"), device="cpu")
    planned = Evaluation(EvaluationConfig(fraction=0.1), pairs, TEMPLATE, processor, greedy_judge(TEMPLATE, 32, 8), 8)
    metrics = evaluate(planned, alone(model)).metrics
    data = finished_run / "twelve.parquet"
    write_parquet(pairs, data)
    judge = f"hf:{finished_run / 'rl' / 'final'}"
    settings = bench_settings("pairs", data, judge, votes=1, temperature=0.0, max_tokens=32, controls=("blank",))
    report, _ = run_bench(settings, finished_run / "bench_twelve")
    scores = report.scores
    assert metrics["eval/accuracy"] == pytest.approx(scores.accuracy.micro)
    assert metrics["eval/invalid_frac"] == pytest.approx(scores.invalid_rate)
    assert metrics["eval/swap_consistency"] == pytest.approx(scores.swap_consistency)
    assert metrics["eval/first_frac"] == pytest.approx((scores.position_bias or 0.0) + 0.5)
    assert metrics["eval/mean_length"] == pytest.approx(scores.tokens_per_vote)
    assert metrics["eval/blank_accuracy"] == pytest.approx(report.controls["blank"].accuracy.micro)


@pytest.fixture(scope="module")
def test_set(demo_pairs: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten pairs apart from those that scaled runs train on."""
    path = tmp_path_factory.mktemp("held_out") / "test.parquet"
    write_parquet(demo_pairs[0][150:160], path)
    return path


@pytest.mark.parametrize("stage", ["sft", pytest.param("rl", marks=pytest.mark.nightly)])
def test_training_is_untouched(stage: str, finished_run: Path, test_set: Path, tmp_path: Path) -> None:
    """With evaluations between its steps a run logs and ends with the very same numbers: dropout, draws and rollouts."""
    model = finished_run / "rl" / "final"
    lora = {"r": 4, "dropout": 0.2 if stage == "sft" else 0.0}  # RL refuses it
    changes: dict[str, Any] = {"lora": lora, "gradient_checkpointing": stage == "sft"}
    evaluation = {"data": str(test_set), "every_steps": 1, "max_tokens": 8, "batch_size": 4}
    scaled_runs.run(stage, model, tmp_path / "without", **changes)
    scaled_runs.run(stage, model, tmp_path / "with", evaluation=evaluation, **changes)

    def lines(run: Path) -> list[dict[str, Any]]:
        kept = [row for row in rows(run, "metrics.jsonl") if "eval/accuracy" not in row]
        clocks = ("step_time", "data/seconds", "train_runtime", "train_samples_per_second", "train_steps_per_second")
        return [{name: value for name, value in row.items() if name not in clocks} for row in kept]

    assert lines(tmp_path / "with") == lines(tmp_path / "without")
    assert [row["step"] for row in evaluations(tmp_path / "with")] == [0, 1, 2, 3, 4]
    assert len({row["metrics"]["eval/mean_length"] for row in evaluations(tmp_path / "with")}) >= 1
    with_, without = (tmp_path / name / "final" / "adapter_model.safetensors" for name in ("with", "without"))
    assert with_.read_bytes() == without.read_bytes()


@pytest.mark.nightly
def test_two_processes_evaluate_as_one(finished_run: Path, tmp_path: Path) -> None:
    """Under torchrun: every pair once, whichever process judges it, and one line an evaluation."""
    model = finished_run / "rl" / "final"
    scaled_runs.run("sft", model, tmp_path / "one", evaluation=scaled_runs.EVALUATION)
    train_on(model, tmp_path, "sft+evaluated:two", "rl+evaluated:rl")
    assert evaluations(tmp_path / "two") == evaluations(tmp_path / "one")
    assert len(evaluations(tmp_path / "rl")) == 3
    for run in ("one", "two", "rl"):
        logged = [row for row in rows(tmp_path / run, "metrics.jsonl") if "eval/accuracy" in row]
        assert [row["step"] for row in logged] == [0, 2, 4]
        assert all(row["eval/pairs"] == 6 for row in logged)


@pytest.mark.extra("deepspeed")
def test_weights_that_are_dealt_out(finished_run: Path, tmp_path: Path) -> None:
    """ZeRO-3: whole for the evaluation, also where a process has less to judge than another, and dealt out again after it."""
    model = finished_run / "rl" / "final"
    evaluation = scaled_runs.EVALUATION | {"batch_size": 10}  # three tasks for two processes
    scaled_runs.run("sft", model, tmp_path / "one", evaluation=evaluation)
    train_on(model, tmp_path, "sft+dealt:two", "rl+evaluated:rl", zero="3 dealt out")
    assert evaluations(tmp_path / "two") == evaluations(tmp_path / "one")
    assert len(evaluations(tmp_path / "rl")) == 3
    assert read_card(tmp_path / "rl" / "final") is not None


class Scripted:
    """Judges that are right about the first ``values[n]`` of all pairs in evaluation ``start + n``; None: without a verdict."""

    def __init__(self, values: Sequence[int | None], start: int = 0) -> None:
        self._values, self._next = values, start

    def __call__(self, model: Any, processor: Any, pairs: Sequence[PreferencePair]) -> list[Judgment]:
        right = self._values[self._next]
        self._next += 1
        if right is None:
            return [says(pair, None, None) for pair in pairs]
        winners = [(pair.preferred or 0) ^ (n >= right) for n, pair in enumerate(pairs)]
        return [says(pair, winner, winner) for pair, winner in zip(pairs, winners, strict=True)]


class KillBefore(TrainerCallback):
    """Ends a run after its evaluation at a step, at the beginning of the next."""

    def __init__(self, step: int) -> None:
        self._step = step

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self._step:
            raise KilledError


def scripted_run(
    monkeypatch: pytest.MonkeyPatch, judge: Scripted, out: Path, checkpoint: Path, kill: int | None = None, **changes: Any
) -> None:
    """An SFT whose evaluations go by a script; ``kill`` ends it after that step."""
    trainer = sft_module.ResumableSFTTrainer

    def build(*args: Any, **kwargs: Any) -> Any:
        built = trainer(*args, **kwargs)
        if kill is not None:
            built.add_callback(KillBefore(kill))
        return built

    evaluation = {"every_steps": 1, "blank_images": False, "fraction": 0.2, "batch_size": 64} | changes.pop("evaluation", {})
    with monkeypatch.context() as patched:
        patched.setattr(sft_module, "plan_evaluation", partial(plan_evaluation, judge=judge))
        patched.setattr(sft_module, "ResumableSFTTrainer", build)
        scaled_runs.run("sft", checkpoint, out, evaluation=evaluation, **changes)


@pytest.mark.nightly
def test_the_best_survives_a_kill(tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Best at step 3, killed there, one step after a checkpoint that knows step 1 as the best: the resumed run forgets step 3
    until it comes to it again, and ends as a run that nobody killed."""
    values = [1, 3, 2, 5, 4, 4, 0]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    scripted_run(monkeypatch, Scripted(values), whole, tiny_checkpoint, max_steps=6)
    scripted_run(monkeypatch, Scripted(values), killed, tiny_checkpoint, kill=3, max_steps=6)
    assert read_card(killed / BEST)["step"] == 3  # type: ignore[index]
    assert [row["step"] for row in evaluations(killed)] == [0, 1, 2, 3]
    scripted_run(monkeypatch, Scripted(values, start=3), killed, tiny_checkpoint, kill=2, max_steps=6)  # before it has begun
    assert read_card(killed / BEST)["step"] == 1  # type: ignore[index]
    assert [row["step"] for row in evaluations(killed)] == [0, 1, 2]
    scripted_run(monkeypatch, Scripted(values, start=3), killed, tiny_checkpoint, max_steps=6)
    assert evaluations(killed) == evaluations(whole)
    assert [row["step"] for row in rows(killed, "metrics.jsonl") if "eval/accuracy" in row] == [0, 1, 2, 3, 4, 5, 6]
    summaries = [json.loads((run / "run.json").read_text())["evaluation"] for run in (whole, killed)]
    for summary in summaries:
        summary.pop("time_frac")
    assert summaries[0] == summaries[1]
    assert summaries[0]["best_step"] == 3
    assert summaries[0]["gain"] == pytest.approx(5 / 6)
    assert summaries[0]["best_kept"]
    assert not summaries[0]["stopped_early"]
    for run in (whole, killed):
        assert torch.equal(weights_of(run / BEST), weights_of(whole / BEST))
        assert not torch.equal(weights_of(run / BEST), weights_of(run / "final"))
        assert sorted(path.name for path in run.glob("*best*")) == [BEST]
        assert load_processor(str(run / BEST)).image_processor is not None
        assert (run / BEST / "README.md").exists()
    assert not (whole / "checkpoint-2").exists()  # save_total_limit took it, and left the best


def test_an_early_end(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Two evaluations in a row no better than step 1's: the run ends after step 3, whole, and says why. A run that was killed
    before its final folder makes no step more; the folder of a finished run is refused as ever."""
    patient = {"evaluation": {"patience": 2}, "max_steps": 8, "save_steps": 4}
    scripted_run(monkeypatch, Scripted([1, 3, 3, 2]), tmp_path / "run", tiny_checkpoint, **patient)
    assert "ends early, for 2 evaluations in a row brought no accuracy above 50.0 % of step 1" in capfd.readouterr().err
    for _ in range(2):
        summary = json.loads((tmp_path / "run" / "run.json").read_text())["evaluation"]
        assert summary["stopped_early"]
        assert (summary["best_step"], summary["last_step"]) == (1, 3)
        timed = ["eval/time_frac" in row for row in rows(tmp_path / "run", "metrics.jsonl") if "eval/pairs" in row]
        assert timed == [False, True, True, True]
        assert [row["step"] for row in rows(tmp_path / "run", "metrics.jsonl") if "loss" in row] == [1, 2, 3]
        assert (tmp_path / "run" / "final" / "rewardlab.json").exists()
        with pytest.raises(ConfigError, match="holds a finished run"):
            scripted_run(monkeypatch, Scripted([]), tmp_path / "run", tiny_checkpoint, **patient)
        shutil.rmtree(tmp_path / "run" / "final")
        scripted_run(monkeypatch, Scripted([]), tmp_path / "run", tiny_checkpoint, **patient)


def test_the_start_may_be_the_best(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Training made it worse: no weights are kept, for they are those of `model`, and the log says so."""
    scripted_run(monkeypatch, Scripted([4, 3, 1]), tmp_path / "run", tiny_checkpoint, max_steps=2)
    assert not (tmp_path / "run" / BEST).exists()
    said = capfd.readouterr().err
    assert "the best is that of the model that the run began with" in said
    assert f"its weights are {tiny_checkpoint} as it was: there is no {tmp_path / 'run' / BEST}" in said
    assert "50.0 points" in said
    assert "It was chosen on the same 6 pairs" in said


def test_a_scalar_head(tiny_checkpoint: Path, demo_pairs: Any, test_set: Path, tmp_path: Path) -> None:
    """`rewardlab rm`: responses alone, in no order; the untrained head is even about every pair, which is not right."""
    evaluation = {"data": str(test_set), "every_steps": 2}
    shared = {key: value for key, value in scaled_runs.SHARED.items() if key != "template"}
    config = RMConfig.model_validate({**shared, "model": str(tiny_checkpoint), "batch_size": 8, "evaluation": evaluation})
    train_reward_model(demo_pairs[0][:16], config, tmp_path / "rm")
    found = evaluations(tmp_path / "rm")
    assert [row["step"] for row in found] == [0, 2, 4]
    assert found[0]["metrics"]["eval/accuracy"] == 0.0
    assert found[0]["metrics"]["eval/invalid_frac"] == 0.0
    assert all("eval/swap_consistency" not in row["metrics"] for row in found)
    assert found[-1]["metrics"]["eval/accuracy"] > 0.0
