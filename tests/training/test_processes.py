"""A run is the same run on any number of processes, and goes on from a checkpoint on another number of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from rewardlab.config import SFTConfig
from rewardlab.errors import ConfigError
from rewardlab.models.loading import load_model
from rewardlab.training.policy_gradient.rollouts.prompts import PromptSource
from rewardlab.training.run.folder import common_arguments, micro_batches
from rewardlab.training.run.watchdog import rollbacks
from tests.support import scaled_runs
from tests.support.launching import same, train_on


@pytest.fixture(scope="module")
def alone(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one process makes of the runs: whole ones, and a begun one of each stage for every launcher to go on with."""
    folder = tmp_path_factory.mktemp("alone")
    for stage in ("sft", "rl"):
        scaled_runs.run(stage, tiny_checkpoint, folder / stage)
        scaled_runs.run(stage, tiny_checkpoint, folder / f"{stage}_begun", kill=True)
    return folder


def test_two_processes_are_as_one(tiny_checkpoint: Path, alone: Path, tmp_path: Path) -> None:
    """DDP: SFT and RL; a run begun by one process is resumed by two, and the other way round."""
    for stage in ("sft", "rl"):
        shutil.copytree(alone / f"{stage}_begun", tmp_path / f"{stage}_grown")  # without the lock that this process holds
    train_on(
        tiny_checkpoint,
        tmp_path,
        *(f"{stage}:{stage}{end}" for stage in ("sft", "rl") for end in ("", "_grown", "_begun:kill")),
    )
    for stage in ("sft", "rl"):
        same(alone / stage, tmp_path / stage)
        same(alone / stage, tmp_path / f"{stage}_grown")
        scaled_runs.run(stage, tiny_checkpoint, tmp_path / f"{stage}_begun")
        same(alone / stage, tmp_path / f"{stage}_begun")


def lines_of(run: Path) -> list[dict[str, float]]:
    """The metrics of a run's four steps."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()[:4]]


@pytest.mark.nightly
def test_two_processes_share_uneven_batches(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Adapters, text alone on one process and images on the other, rollouts of unequal length, rollouts that are masked for
    their importance ratio, comparisons in passes of unequal number, a rollback: as one process."""
    for stage in ("sft", "rl"):
        scaled_runs.run(stage, tiny_checkpoint, tmp_path / f"{stage}_alone", data=scaled_runs.mixed(), micro_batch_size=1)
        scaled_runs.run(stage, tiny_checkpoint, tmp_path / f"{stage}+lora_alone", **scaled_runs.CHANGES[f"{stage}+lora"])
    scaled_runs.run("rl", tiny_checkpoint, tmp_path / "unequal_alone", unequal=True)
    scaled_runs.run("rl", tiny_checkpoint, tmp_path / "importance_alone", **scaled_runs.CHANGES["rl+importance"])
    dpo_parts = scaled_runs.CHANGES["dpo+parts+mixed"]
    scaled_runs.run("dpo", tiny_checkpoint, tmp_path / "dpo_alone", data=scaled_runs.mixed(), **dpo_parts)
    halves = scaled_runs.CHANGES["rl+halves+mixed"]
    scaled_runs.run("rl", tiny_checkpoint, tmp_path / "halves_alone", data=scaled_runs.mixed(), **halves)
    kinds = ["sft+lora:sft+lora", "rl+lora:rl+lora", "sft+mixed:sft_mixed", "rl+mixed:rl_mixed", "rl+halves+mixed:halves"]
    kinds += ["dpo+parts+mixed:dpo", "rl+unequal:unequal", "rl+importance:importance", "rl+taken_back:back"]
    train_on(tiny_checkpoint, tmp_path, *kinds)
    of_halves = [lines_of(tmp_path / run)[0] for run in ("halves_alone", "halves")]
    for name in ("reward", "reward_std", "completions/mean_length"):  # which rollouts an optimizer step has differs
        assert of_halves[0][name] == pytest.approx(of_halves[1][name], rel=1e-5)
    assert rollbacks(tmp_path / "back") == [4]
    assert (tmp_path / "back" / "final").exists()
    same(tmp_path / "unequal_alone", tmp_path / "unequal")
    for line in lines_of(tmp_path / "unequal"):
        # among the four tokens of its own process it would be no outlier: none of four is beyond 1.8 deviations
        assert line["advantage/outlier_frac"] == pytest.approx(1 / (8 * line["completions/mean_length"]))
        assert line["reward"] == pytest.approx(sum(scaled_runs.UNEQUAL) / 8)
    same(tmp_path / "dpo_alone", tmp_path / "dpo")  # passes of one and of two comparisons
    margins = [[line["margin"] for line in lines_of(tmp_path / run)] for run in ("dpo_alone", "dpo")]
    assert margins[0] == pytest.approx(margins[1], abs=1e-4)
    same(tmp_path / "importance_alone", tmp_path / "importance")
    for line in lines_of(tmp_path / "importance"):
        assert 0 < line["importance/capped_frac"] < 1  # tokens of three rollouts: one on one process, two on the other
    for stage in ("sft", "rl"):
        same(tmp_path / f"{stage}_alone", tmp_path / f"{stage}_mixed")  # text alone on one process, images on the other
        same(tmp_path / f"{stage}+lora_alone", tmp_path / f"{stage}+lora")


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["idefics3", "lfm2_vl", "molmo2", "ovis2", "kimi_k25"])
def test_two_processes_of_other_families(name: str, checkpoint_of: Callable[[str], Path], tmp_path: Path) -> None:
    """Tiles, patches of several sizes, patches by number: text alone on one process and images on the other, as one process."""
    changes = scaled_runs.CHANGES["sft+gently+mixed"]
    for stage in ("sft", "rl"):
        scaled_runs.run(stage, checkpoint_of(name), tmp_path / f"{stage}_alone", data=scaled_runs.mixed(), **changes)
    train_on(checkpoint_of(name), tmp_path, "sft+gently+mixed:sft", "rl+gently+mixed:rl")
    for stage in ("sft", "rl"):
        same(tmp_path / f"{stage}_alone", tmp_path / stage)


@pytest.mark.nightly
def test_ties_and_pictures_in_answers(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """A set with ties on two processes gives the run of one process on the set without them."""
    labelled = [pair for pair in scaled_runs.tied() if pair.tie is None]
    for stage in ("sft", "rl"):
        scaled_runs.run(stage, tiny_checkpoint, tmp_path / f"{stage}_alone", data=labelled)
    train_on(tiny_checkpoint, tmp_path, "sft+tied:sft", "rl+tied:rl")
    for stage in ("sft", "rl"):
        same(tmp_path / f"{stage}_alone", tmp_path / stage)


@pytest.mark.nightly
def test_rewards_that_compare_rollouts(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """The two orders of a pair, a group that is compared with itself, and what a batch pays at least and on average are on two
    processes: everyone earns what they do on one."""
    kinds = ("swap", "group", "scalar")
    for kind in kinds:
        scaled_runs.run(kind, tiny_checkpoint, tmp_path / f"{kind}_alone", **scaled_runs.CHANGES.get(kind, {}))
    train_on(tiny_checkpoint, tmp_path, *(f"{kind}:{kind}" for kind in kinds))
    for kind in kinds:
        same(tmp_path / f"{kind}_alone", tmp_path / kind)
    lines = [json.loads(line) for line in (tmp_path / "swap" / "metrics.jsonl").read_text().splitlines()]
    assert any(0 < line.get("reward/swap_agreement", 0) < 1 for line in lines)
    lines = [json.loads(line) for line in (tmp_path / "scalar" / "metrics.jsonl").read_text().splitlines()]
    assert any(0 < line.get("policy/truncated_frac", 0) < 1 for line in lines)


@pytest.mark.nightly
def test_two_processes_draw_the_same_prompts(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """RLCS: the same groups chosen out of the same prompts, and a run that one process began goes on with two."""
    changes = scaled_runs.CHANGES["rl+rlcs"]
    scaled_runs.run("rl", tiny_checkpoint, tmp_path / "alone", **changes)
    scaled_runs.run("rl", tiny_checkpoint, tmp_path / "begun", kill=True, **changes)
    shutil.copytree(tmp_path / "begun", tmp_path / "grown")
    train_on(tiny_checkpoint, tmp_path, "rl+rlcs:both", "rl+rlcs:grown")

    def logged(run: Path) -> list[dict[str, float]]:
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        prefixes = ("tier/", "sampling/", "loss", "grad_norm")  # what is sampled to even the parts out is in reward's mean
        return [{name: value for name, value in line.items() if name.startswith(prefixes)} for line in lines if "loss" in line]

    whole = load_model(str(tmp_path / "alone" / "final"), device="cpu")[0].state_dict()
    assert {line["tier/hard"] for line in logged(tmp_path / "alone")} != {1.0}  # the rates have moved
    for name in ("both", "grown"):
        for line, other in zip(logged(tmp_path / "alone"), logged(tmp_path / name), strict=True):
            assert line == pytest.approx(other, abs=1e-4, rel=1e-3)
        for key, weight in load_model(str(tmp_path / name / "final"), device="cpu")[0].state_dict().items():
            torch.testing.assert_close(weight, whole[key], atol=1e-5, rtol=1e-4)


@pytest.mark.extra("deepspeed")
@pytest.mark.parametrize("zero", ["2", "3", "3 dealt out"])
def test_zero_is_as_one_process(tiny_checkpoint: Path, alone: Path, tmp_path: Path, zero: str) -> None:
    """Under the configurations that ship; shards that two have left are joined for one."""
    kinds = [f"{stage}:{stage}{end}" for stage in ("sft", "rl") for end in ("", "_begun:kill")]
    scaled_runs.run("sft", tiny_checkpoint, tmp_path / "sft_alone", data=scaled_runs.mixed(), micro_batch_size=1)
    train_on(tiny_checkpoint, tmp_path, *kinds, "sft+mixed:sft_mixed", "rl+halves+mixed:halves", zero=zero)
    assert (tmp_path / "halves" / "final").exists()
    same(tmp_path / "sft_alone", tmp_path / "sft_mixed")
    train_on(tiny_checkpoint, tmp_path, "sft:sft_begun", "rl:rl_begun", processes=1, zero=zero)
    for stage in ("sft", "rl"):
        same(alone / stage, tmp_path / stage)
        same(alone / stage, tmp_path / f"{stage}_begun")


def test_several_cards_want_a_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainer would split each batch over them by rows, its images anyhow."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: 8)
    with pytest.raises(ConfigError, match=r"8 GPUs found, but no launcher: .*CUDA_VISIBLE_DEVICES=0 on one"):
        common_arguments(SFTConfig(), tmp_path)


def test_killed_before_its_final_folder(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Gone on with, the run has made all its steps: it makes none more, also where epochs end within one."""
    for _ in range(2):
        scaled_runs.run("rl", tiny_checkpoint, tmp_path / "run", epochs=0.3, max_steps=-1, save_steps=1)
        lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
        assert [line["step"] for line in lines if "loss" in line] == [1, 2, 3]
        weights = load_model(str(tmp_path / "run" / "final"), device="cpu")[0].state_dict()
        shutil.rmtree(tmp_path / "run" / "final")
    last = load_model(str(tmp_path / "run" / "checkpoint-3"), device="cpu")[0].state_dict()
    assert all(torch.equal(weight, last[name]) for name, weight in weights.items())


def test_a_batch_is_dealt_out_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    """256 sequences are 64 micro-batches of 4 for one process, 8 for each of eight; 6 processes cannot share them."""
    config = SFTConfig(batch_size=256, micro_batch_size=4)
    for processes, parts in ((1, 64), (8, 8), (64, 1)):
        monkeypatch.setenv("WORLD_SIZE", str(processes))
        assert micro_batches(config, 256) == parts
    monkeypatch.setenv("WORLD_SIZE", "6")
    with pytest.raises(ConfigError, match="= 24"):
        micro_batches(config, 256)


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 1), (2, 2)])
def test_prompts_are_dealt_out_anew(before: int, after: int) -> None:
    """Among twelve prompts, those not drawn yet are there once, whoever draws them now."""
    rows = [{"name": str(n)} for n in range(12)]

    def sources(number: int) -> list[PromptSource]:
        return [PromptSource(rows, seed=0, process=n, num_processes=number) for n in range(number)]

    old = sources(before)
    drawn = {row["name"] for source in old for place, row in source.take(2)}
    states = [source.state_dict() for source in old]
    new = sources(after)
    for source in new:
        source.load_state_dicts(states)
    assert sum(source.passes * len(range(n, 12, after)) for n, source in enumerate(new)) == pytest.approx(2 * before)
    left = [source.state_dict()["left"] for source in new]
    assert sorted(number for own in left for number in own) == sorted(set(range(12)) - {int(name) for name in drawn})
