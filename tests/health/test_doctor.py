"""Every configuration that ships passes without weights; what would not work is told before a run, by its cure."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rewardlab.cli import app
from rewardlab.config import SFTConfig
from rewardlab.data.pair_table import PairTable
from rewardlab.data.pairs import write_parquet
from rewardlab.errors import ConfigError, DataError
from rewardlab.health import doctor
from rewardlab.health.plan import Plan, needs
from rewardlab.health.run_page import write_run_page
from rewardlab.models.architectures import build_on_meta
from tests.support import scaled_runs
from tests.support.families import FAMILIES, NO_TRAINING, family

CONFIGS = Path(__file__).parents[2] / "configs"
SHIPPED = sorted(path for path in CONFIGS.rglob("*.yaml") if path.parent.name != "launch")  # a Kubernetes Job is no run's


def ask(*words: str) -> Any:
    return CliRunner().invoke(app, ["doctor", *words])


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: str(path.relative_to(CONFIGS)))
def test_what_ships_passes(path: Path) -> None:
    done = ask(str(path), "--dry-run")
    assert done.exit_code == 0, done.output
    assert "FAILED" not in done.output
    assert done.output.startswith("ok")


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("Qwen/Qwen2.5-VL-3B-Instruct", 3754.6),
        ("Qwen/Qwen2.5-VL-7B-Instruct", 8292.2),
        ("Qwen/Qwen3-VL-4B-Instruct", 4437.8),
        ("Qwen/Qwen3-VL-8B-Instruct", 8767.1),
        ("Qwen/Qwen3-VL-30B-A3B-Instruct", 31070.8),
        ("zai-org/GLM-4.6V-Flash", 10292.8),
    ],
)
def test_known_sizes(name: str, millions: float) -> None:
    """Weights as the published checkpoints have them, counted without any."""
    model = build_on_meta(name)
    assert model is not None
    assert sum(weight.numel() for weight in model.parameters()) / 1e6 == pytest.approx(millions, abs=0.1)


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        ("learning_rat: 1", (), "unknown key 'learning_rat'"),
        ("template: nobody", (), "unknown prompt template 'nobody'"),
        (
            "model: Qwen/Qwen2.5-VL-7B-Instruct",
            ("--memory", "80"),
            "more than the 76 that may be planned: configs/accelerate/zero3",
        ),
        (
            "{engine: {kind: colocate, gpu_memory_utilization: 0.1}}",
            ("--memory", "100", "--processes", "2", "--launcher", str(CONFIGS / "accelerate" / "zero3.yaml")),
            "= 10.0 GiB, is less than its weights there, 15.4",
        ),
        (
            "batch_size: 128",
            ("--processes", "6"),
            "6 processes x micro_batch_size 2 = 12",
        ),
        ("lr_scheduler: bogus", (), "'cosine', 'linear'"),
        ("freeze: ['(']", (), "nor a regular expression"),
        ("engine: {kind: server}", (), "needs base_url"),
    ],
)
def test_what_would_not_work(text: str, words: tuple[str, ...], message: str, tmp_path: Path) -> None:
    (tmp_path / "rl.yaml").write_text(text)
    done = ask(str(tmp_path / "rl.yaml"), "--dry-run", *words)
    assert done.exit_code == 1
    assert message in done.output


def test_a_scalar_model_is_tried_by_its_own_step(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """It writes no judgment, and needs none: labels are enough, as they are for `rewardlab rm`."""
    data, config = tmp_path / "pairs.parquet", tmp_path / "rm.yaml"
    write_parquet([replace(pair, judgment="", attempts="") for pair in scaled_runs.pairs()], data)
    settings = {"model": str(tiny_checkpoint), "batch_size": 8, "micro_batch_size": 8, "gradient_checkpointing": False}
    config.write_text(json.dumps(settings))
    done = ask(str(config), "--stage", "rm", "--data", str(data))
    assert done.exit_code == 0, done.output
    assert "one step: trained and saved in" in done.output
    assert "judgment" not in done.output


def test_a_trial_fits_no_critic_and_holds_nothing_out(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Held-out pairs would be missed among the few of a trial, and a critic's fit is many steps."""
    data, config = tmp_path / "pairs.parquet", tmp_path / "rl.yaml"
    write_parquet([replace(pair, judgment="") for pair in scaled_runs.pairs()], data)
    settings = {**scaled_runs.SHARED, "model": str(tiny_checkpoint), "rollout_batch_size": 8, "batch_size": 8}
    settings |= {"max_completion_length": 8, "consistency": {"weight": 0.0}, "advantage": "gae", "value_pretrain_steps": 40}
    settings |= {"evaluation": {"fraction": 0.5}}
    config.write_text(json.dumps(settings))
    done = ask(str(config), "--data", str(data))
    assert done.exit_code == 0, done.output
    assert "one step: trained and saved in" in done.output


def test_tried_with_weights_and_data(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """A judgment, a step, the tokens; a consistency endpoint that is away is a failure, and the rest is still looked at."""
    data, config = tmp_path / "pairs.parquet", tmp_path / "rl.yaml"
    write_parquet([replace(pair, judgment="") for pair in scaled_runs.pairs()], data)
    settings = {**scaled_runs.SHARED, "model": str(tiny_checkpoint), "rollout_batch_size": 8, "batch_size": 8}
    settings |= {"max_completion_length": 8, "consistency": {"weight": 0.0}}
    config.write_text(json.dumps(settings))  # JSON is YAML
    done = ask(str(config), "--data", str(data))
    assert done.exit_code == 0, done.output
    for line in (
        "32 pairs",
        "32 samples with room for an answer",
        "0 of 4 have a verdict",
        "one step: trained and saved in",
    ):
        assert line in done.output
    config.write_text(json.dumps(settings | {"consistency": {"base_url": "http://127.0.0.1:9/v1"}}))
    done = ask(str(config), "--data", str(data))
    assert done.exit_code == 1
    assert "FAILED consistency" in done.output
    assert "0 of 4 have a verdict" in done.output


def test_a_picture_that_cannot_be_decoded_is_named(tmp_path: Path) -> None:
    """Though its file says that its pictures were checked, in a dry run too."""
    pairs = scaled_runs.pairs()[:12]
    pairs[7] = replace(pairs[7], images=(pairs[7].images[0][:-30],))
    write_parquet(pairs, tmp_path / "bad.parquet")
    (tmp_path / "sft.yaml").write_text("model: Qwen/Qwen2.5-VL-7B-Instruct")
    done = ask(str(tmp_path / "sft.yaml"), "--dry-run", "--data", str(tmp_path / "bad.parquet"), "--memory", "10000")
    assert done.exit_code == 1
    assert "1 of 12 pairs" in done.output
    assert "bad.parquet, row 7, image 0: not a readable image" in " ".join(done.output.split())


def test_a_policy_is_tried_with_data(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """It answers, and no verdict is looked for in what it says."""
    data, config = tmp_path / "pairs.parquet", tmp_path / "policy.yaml"
    write_parquet([replace(pair, judgment="") for pair in scaled_runs.pairs()], data)
    settings = {"model": str(tiny_checkpoint), "judge": f"prob:hf:{tiny_checkpoint}", "max_completion_length": 8}
    config.write_text(json.dumps({**settings, "rollout_batch_size": 8, "batch_size": 8, "micro_batch_size": 8}))
    done = ask(str(config), "--stage", "policy", "--data", str(data))
    assert done.exit_code == 0, done.output
    assert "of 4 answers ended; " in done.output


def test_a_dry_run_counts_steps_and_names_what_it_leaves_out(tmp_path: Path) -> None:
    """32 hard pairs in both orders, 5 epochs of batches of 8; changes of the command line count."""
    data, config = tmp_path / "pairs.parquet", tmp_path / "rl.yaml"
    write_parquet(scaled_runs.pairs(), data)
    config.write_text("{rollout_batch_size: 16, batch_size: 8, attempts: ['', '2', '3', unsolved]}")
    done = ask(str(config), "--dry-run", "--data", str(data), "engine.kind=serve")
    assert done.exit_code == 0, done.output
    assert "ok     data: 32 pairs; an epoch has 64 sequences: 40 optimizer steps of 8 (epochs 5)" in done.output
    assert "look   engine: serve: not checked" in done.output
    assert "look   consistency: Qwen/Qwen2.5-VL-7B-Instruct at http://127.0.0.1:8000/v1: not checked" in done.output
    done = ask(str(config), "--dry-run", "--data", str(data), "max_steps=7", "both_orders=false")
    assert "an epoch has 32 sequences: 7 optimizer steps of 8 (max_steps)" in done.output
    assert ask(str(config), "--dry-run", "batch_size=7").exit_code == 1


def test_nothing_to_train_on_and_nothing_to_read(tmp_path: Path) -> None:
    """Pairs without a judgment are refused as `rewardlab sft` refuses them; a file that is no YAML is no suite."""
    data, config = tmp_path / "pairs.parquet", tmp_path / "sft.yaml"
    write_parquet([replace(pair, judgment="") for pair in scaled_runs.pairs()], data)
    config.write_text("{}")
    done = ask(str(config), "--dry-run", "--data", str(data))
    assert done.exit_code == 1
    assert "FAILED data: 32 pairs; no pair is left to train on" in done.output
    config.write_text("a: [")
    done = ask(str(config), "--dry-run")
    assert done.exit_code == 1
    assert "FAILED config" in done.output


def test_what_is_not_there(tmp_path: Path) -> None:
    """A sentence each; of weights that are yet to be trained what can be known is told, and the rest left out."""
    data, config = tmp_path / "pairs.parquet", tmp_path / "rl.yaml"
    write_parquet(scaled_runs.pairs(), data)
    config.write_text("{model: runs/of/nobody, consistency: {weight: 0}}")
    done = ask(str(config), "--data", str(data))
    assert done.exit_code == 0, done.output
    assert "look   memory: runs/of/nobody is neither a checkpoint here nor known by name" in done.output
    assert "Qwen/Qwen3-VL-8B-Instruct" in done.output
    assert "look   weights: runs/of/nobody: no such folder" in done.output
    done = ask(str(tmp_path / "no.yaml"))
    assert isinstance(done.exception, ConfigError)
    assert "no such file" in str(done.exception)
    done = ask(str(config), "--stage", "bogus")
    assert isinstance(done.exception, ConfigError)
    assert "bogus: no such stage; stages are distill" in str(done.exception)


def test_of_many_processes_and_long_samples(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """``model`` is what is tried; what max_tokens leaves out is told; a step of many processes is not taken by one."""
    data, config = tmp_path / "pairs.parquet", tmp_path / "rl.yaml"
    write_parquet(scaled_runs.pairs(), data)
    settings = {**scaled_runs.SHARED, "model": "runs/of/nobody", "rollout_batch_size": 8, "batch_size": 8}
    settings |= {"max_completion_length": 8, "consistency": {"weight": 0.0}}
    words = ("--data", str(data), f"model={tiny_checkpoint}", "--processes", "2")
    for limit, outcome in ((50, "look  "), (9, "FAILED")):
        config.write_text(json.dumps(settings | {"max_tokens": limit}))
        done = ask(str(config), *words)
        assert f"{outcome} tokens: 32 samples" in done.output, done.output
        assert f"longer than max_tokens {limit} and would be left out" in done.output
        assert "look   one step: skipped: it needs 2 processes" in done.output
        assert "0 of 4 have a verdict" in done.output


def test_a_run_page(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """The page shows a real run: every metric, what the watchdog saw, rollouts whose text is text, under their pictures."""
    pairs = scaled_runs.pairs()
    write_parquet(pairs, tmp_path / "pairs.parquet")
    scaled_runs.run("rl", tiny_checkpoint, tmp_path / "run", data=PairTable(tmp_path / "pairs.parquet"))
    event = {"step": 3, "signs": ["invalid"], "message": "no verdicts", "done": "warn"}
    (tmp_path / "run" / "health.jsonl").write_text(json.dumps(event) + "\n")
    row = {
        "step": 3,
        "pair_id": pairs[0].pair_id,
        "order": "given",
        "text": "<script>alert(1)</script>",
        "status": "ok",
        "correct": True,
    }
    (tmp_path / "run" / "samples.jsonl").write_text(json.dumps(row | {"reward": 1.5, "num_tokens": 3}) + "\n{half a li")
    page = write_run_page(tmp_path / "run").read_text()
    for shown in (
        "grad_norm",
        "gradient norm",
        "advantage/outlier_frac",
        "no verdicts",
        "&lt;script&gt;alert(1)",
        "reward 1.5",
        'class="picture"',
    ):
        assert shown in page
    assert "<script>alert" not in page
    with pytest.raises(DataError, match="not a training run"):
        write_run_page(tmp_path)


DAILY = ("qwen2_vl", "internvl", "gemma4")
FAMILY_NAMES = [family(name, daily=name in DAILY) for name in FAMILIES if name not in NO_TRAINING]


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_it_is_right_about_every_family(name: str, checkpoint_of: Callable[[str], Path]) -> None:
    """What trains is no failure: its memory is estimated, and its images are assigned to rows."""
    plan = Plan(memory_gib=24.0)
    config = SFTConfig(model=str(checkpoint_of(name)))
    [model] = [finding for finding in doctor._training(config, plan, None, dry=True) if finding.name == "model"]
    assert model.outcome == "ok"
    assert "agree to" in model.message
    [memory] = [finding for finding in needs(config, plan) if finding.name == "memory"]
    assert memory.outcome == "ok"


def test_unknown_shapes_are_a_look(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A family that trains is not failed because the doctor does not know it."""
    monkeypatch.setattr("rewardlab.health.memory.shapes_of", lambda model: model.config.no_such_key)
    [finding] = needs(SFTConfig(model=str(tiny_checkpoint)), Plan(memory_gib=24.0))
    assert (finding.name, finding.outcome) == ("memory", "look")
    assert "does not know the shapes" in finding.message
