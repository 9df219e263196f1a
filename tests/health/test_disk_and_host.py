"""The disk of checkpoints, by hand and against real folders; the memory of the host."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rewardlab.config import LoraConfig, PolicyConfig, RLConfig, SFTConfig, load_config
from rewardlab.health.memory import GIB, setup_of
from rewardlab.health.plan import Plan, checkpoint_bytes, disk_lines, host_bytes, needs
from rewardlab.models.architectures import build_on_meta
from rewardlab.processes import memory_here
from rewardlab.training.run.launcher import Launch
from tests.support import scaled_runs

BASE = "Qwen/Qwen2.5-VL-7B-Instruct"


def test_a_checkpoint_under_zero_3() -> None:
    """133 GB for 7B: float32 weights and two moments, bfloat16 weights, and model.safetensors. Three while one is saved."""
    setup = setup_of(build_on_meta(BASE), RLConfig(), Launch(4, 3))
    assert checkpoint_bytes(setup) / 1e9 == pytest.approx(132.7, abs=0.1)
    lines = {line.what: line.size for line in disk_lines(setup)}
    assert lines["checkpoints"] == 3 * checkpoint_bytes(setup)
    five = setup_of(build_on_meta(BASE), RLConfig(save_total_limit=5), Launch(4, 3))
    assert disk_lines(five)[0].size == 6 * checkpoint_bytes(setup)


@pytest.mark.slow
def test_checkpoints_as_they_are_written(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """A real run's folders, but for what names of tensors take."""
    scaled_runs.run("sft", tiny_checkpoint, tmp_path / "run")
    setup = setup_of(build_on_meta(str(tiny_checkpoint)), SFTConfig(), Launch())
    for folder, size in (("checkpoint-4", checkpoint_bytes(setup)), ("final", 4.0 * setup.total)):
        kinds = (".safetensors", ".pt", ".bin")
        written = sum(path.stat().st_size for path in (tmp_path / "run" / folder).iterdir() if path.suffix in kinds)
        assert 0 <= written - size < 100_000


def test_the_judge_is_on_disk_without_its_critic() -> None:
    """``final`` holds the policy; the critic lies beside it. The best is there three times, once with the critic."""
    config = RLConfig(advantage="gae", evaluation={"fraction": 0.1})
    lines = {line.what: line.size for line in disk_lines(setup_of(build_on_meta(BASE), config, Launch(4, 3)))}
    policy, critic = 2 * 8.292166656e9, 2 * (8.292166656e9 - 152064 * 3584)
    assert (lines["final"], lines["critic"], lines["best"]) == (policy, critic, 3 * policy + critic)
    no_best = config.model_copy(update={"evaluation": config.evaluation.model_copy(update={"keep_best": False})})
    for other in (no_best, RLConfig(advantage="gae")):
        assert "best" not in {line.what for line in disk_lines(setup_of(build_on_meta(BASE), other, Launch(4, 3)))}


def test_adapters_need_little() -> None:
    setup = setup_of(build_on_meta(BASE), SFTConfig(lora=LoraConfig()), Launch())
    assert checkpoint_bytes(setup) == 12 * setup.learning


@pytest.mark.parametrize(
    ("free", "outcome", "cure"),
    [(500, "ok", ""), (300, "failed", ": save_total_limit=1, or another --out"), (80, "failed", ": another --out")],
)
def test_the_free_disk(free: int, outcome: str, cure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """7B needs 415 GB, and 282 with one checkpoint fewer; the folder need not be there yet."""
    usage = type(shutil.disk_usage(tmp_path))(10**12, 10**12 - free * 10**9, free * 10**9)
    monkeypatch.setattr("rewardlab.health.plan.shutil.disk_usage", lambda folder: usage)
    disk = next(each for each in needs(RLConfig(), Plan(Launch(4, 3), out=tmp_path / "runs" / "rl")) if each.name == "disk")
    assert disk.outcome == outcome
    assert f"free at {tmp_path}{cure}" in disk.message


def test_what_is_compared_with_nothing_is_not_ok() -> None:
    """No card, no disk, no machine: "look", and the flag that would have it checked."""
    found = {each.name: each for each in needs(RLConfig(), Plan(Launch(4, 3)))}
    for name, flag in (("memory", "--memory"), ("disk", "--out"), ("host memory", "--host-memory")):
        assert found[name].outcome == "look"
        assert flag in found[name].message


@pytest.mark.parametrize(("gib", "outcome"), [(160, "ok"), (150, "failed")])
def test_the_hosts_memory(gib: float, outcome: str) -> None:
    """The optimizer of 7B in the memory of a machine with 8 cards: 8 x 20 GiB; of 32 processes, 8 are on one machine."""
    host = next(each for each in needs(RLConfig(), Plan(Launch(8, 3, True), 80, host_gib=gib)) if each.name == "host memory")
    assert host.outcome == outcome
    many = next(each for each in needs(RLConfig(), Plan(Launch(32, 3, True), 80, host_gib=gib)) if each.name == "host memory")
    assert many.outcome == "ok"
    assert "for the 8 on a machine" in many.message


def test_a_container_has_less_than_its_machine(tmp_path: Path) -> None:
    """Version 1 writes a number beyond any machine where there is no limit, version 2 a word."""
    machine = memory_here([])
    for content, seen in (("max", machine), ("9223372036854771712", machine), (str(3 << 30), 3 << 30)):
        (tmp_path / "memory.max").write_text(content + "\n")
        assert memory_here([tmp_path / "memory.max", tmp_path / "absent"]) == seen


def test_an_optimizer_in_the_hosts_memory() -> None:
    offloaded = host_bytes(setup_of(build_on_meta(BASE), RLConfig(), Launch(8, 3, offload=True)))
    assert offloaded["optimizer"] == pytest.approx(16 * 8.292e9 / 8, rel=1e-3)
    plain = host_bytes(setup_of(build_on_meta(BASE), RLConfig(), Launch()))
    assert plain["weights during loading"] == pytest.approx(30.9 * GIB, rel=0.01)


def test_a_configs_own_comment_says_the_same() -> None:
    """How much of the host's memory Pairwise-RL's policy half takes, under the launch that it is made for."""
    path = Path(__file__).parents[2] / "configs" / "policy" / "pairwise_rl.yaml"
    setup = setup_of(build_on_meta(BASE), load_config(PolicyConfig, path), Launch(8, 3, offload=True))
    assert f"{sum(host_bytes(setup).values()) / GIB:.0f} GiB of the host's memory a process" in path.read_text()
