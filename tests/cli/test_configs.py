"""`rewardlab configs`: what is listed can be shown and copied; nothing is overwritten."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from rewardlab.cli import main
from rewardlab.config import RLConfig, config_names, configs_folder, load_config
from tests.support.shell import run_main


def rewardlab(*arguments: object) -> subprocess.CompletedProcess[str]:
    return run_main(main, "configs", *arguments)


def test_list() -> None:
    """Every config that ships, with a sentence; of one stage, also those of other folders."""
    listed = [line.strip().partition(": ") for line in rewardlab("list").stdout.splitlines() if line.startswith("  ")]
    assert sorted(name for name, _, _ in listed) == config_names()
    assert all(sentence for _, _, sentence in listed)
    names = {line.strip().partition(":")[0] for line in rewardlab("list", "sft").stdout.splitlines()[1:]}
    assert names == {name for name in config_names() if name.startswith("sft/") or name.endswith("/sft")}
    done = rewardlab("list", "sftt")
    assert (done.returncode, "did you mean 'sft'" in done.stderr) == (2, True)


@pytest.mark.slow
def test_show(tmp_path: Path) -> None:
    """A whole config with the changes, checked; a stage's defaults; a launcher's file as it is."""
    done = rewardlab("show", "grpo", "learning_rate=3e-6", "lora.r=8")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("# rl/grpo: GRPO (DeepSeekMath")
    (tmp_path / "mine.yaml").write_text(done.stdout)
    mine = load_config(RLConfig, tmp_path / "mine.yaml")
    assert mine == load_config(RLConfig, "grpo", {"learning_rate": 3e-6, "lora": {"r": 8}})
    assert "learning_rate: 3.0e-06  # DIFFERS from the default 1.0e-06" in done.stdout
    assert "DIFFERS" not in rewardlab("show", "rl").stdout
    as_it_is = (configs_folder() / "accelerate" / "zero3.yaml").read_text()
    assert rewardlab("show", "accelerate/zero3").stdout == as_it_is
    assert rewardlab("show", "accelerate/zero3", "num_processes=2").returncode == 2
    own = rewardlab("show", tmp_path / "mine.yaml")
    assert (own.returncode, "add --stage" in own.stderr) == (2, True)
    assert rewardlab("show", tmp_path / "mine.yaml", "--stage", "rl").returncode == 0


def test_copy(tmp_path: Path) -> None:
    """The file with its comments, into a folder or under a name; never over another."""
    original = (configs_folder() / "rl" / "grpo.yaml").read_text()
    for destination, written in [
        (tmp_path, tmp_path / "grpo.yaml"),
        (tmp_path / "new" / "a.yaml", tmp_path / "new" / "a.yaml"),
    ]:
        done = rewardlab("copy", "grpo", destination)
        assert (done.returncode, done.stdout.strip()) == (0, f"written: {written}")
        assert written.read_text() == original
    (tmp_path / "grpo.yaml").write_text("mine")
    done = rewardlab("copy", "rl/grpo", tmp_path)
    assert (done.returncode, "exists" in done.stderr) == (2, True)
    assert (tmp_path / "grpo.yaml").read_text() == "mine"


def test_copy_of_a_folder(tmp_path: Path) -> None:
    """All of its files, scripts with their mode; nothing where one of them exists."""
    done = rewardlab("copy", "launch", tmp_path / "configs" / "launch")
    assert done.returncode == 0, done.stderr
    written = {path.name: path.read_bytes() for path in (tmp_path / "configs" / "launch").iterdir()}
    assert written == {path.name: path.read_bytes() for path in (configs_folder() / "launch").iterdir()}
    (tmp_path / "slurm.sh").write_text("mine")
    done = rewardlab("copy", "launch", tmp_path)
    assert (done.returncode, "slurm.sh: exists" in done.stderr) == (2, True)
    assert not (tmp_path / "kubernetes.yaml").exists()
    rewardlab("copy", "rm", tmp_path / "mine.yaml")
    assert (tmp_path / "mine.yaml").is_file(), "to a YAML file goes a config of the same short name"


@pytest.mark.parametrize("stage", ["rl", "distill", "recipes"])
def test_keys(stage: str) -> None:
    """All of a stage, or those that have a word."""
    text = rewardlab("keys", stage).stdout
    assert text.count("\n    ") == text.count("\n") / 2
    some = rewardlab("keys", "rl", "preclip").stdout
    assert some.splitlines()[0] == "preclip ([float, float] | null; default [0.001, 1000.0])"
    assert rewardlab("keys", stage, "qqqq").returncode == 2
