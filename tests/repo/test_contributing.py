"""CONTRIBUTING's ways of adding a part, followed in a copy of the package: what is only half added is refused."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def edit(folder: Path, name: str, before: str, after: str) -> None:
    path = folder / "rewardlab" / name
    text = path.read_text(encoding="utf-8")
    assert text.count(before) == 1, f"{name}: {before}"
    path.write_text(text.replace(before, after), encoding="utf-8")


def said(folder: Path, program: str) -> str:
    """Return what a program prints by the edited copy, or its error."""
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=folder, env=environment)
    return (done.stdout if done.returncode == 0 else done.stderr).strip()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "rewardlab", tmp_path / "rewardlab", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def test_an_estimator_without_kl_in_its_reward_refuses_it(folder: Path) -> None:
    """By its three files: a penalty that its advantages do not have is refused; in the loss it is taken."""
    edit(
        folder,
        "rl/groups.py",
        "def leave_one_out(",
        "def maxrl(rewards_G, groups_G):\n    return rewards_G\n\n\ndef leave_one_out(",
    )
    edit(folder, "training/policy_gradient/algorithm.py", '"rloo": leave_one_out}', '"rloo": leave_one_out, "maxrl": maxrl}')
    edit(folder, "training/policy_gradient/algorithm.py", "leave_one_out, standardized", "leave_one_out, maxrl, standardized")
    edit(folder, "config/method.py", '"rloo", "gae"]', '"rloo", "gae", "maxrl"]')
    program = "from rewardlab.config import RLConfig\nprint(RLConfig(advantage='maxrl', group_size=4, kl_coef=0.5{}).kl)"
    assert "advantage maxrl has no KL divergence in its reward" in said(folder, program.format(""))
    assert said(folder, program.format(", kl='k3_loss'")) == "k3_loss"


def test_a_reward_term_without_a_weight_is_refused(folder: Path) -> None:
    """Its field, its line and its key, and not the line that gives the one to the other."""
    edit(
        folder,
        "rewards/judgment.py",
        "    swap: float = 0.0\n    overlong:",
        "    swap: float = 0.0\n    brevity: float = 0.0\n    overlong:",
    )
    edit(folder, "rewards/judgment.py", "        cost = 0.0\n", "        total += weights.brevity\n        cost = 0.0\n")
    edit(folder, "config/rl.py", "    swap_weight: float =", "    brevity_weight: float = 0.0\n    swap_weight: float =")
    program = """
from pathlib import Path
from types import SimpleNamespace
from rewardlab.config import RLConfig
from rewardlab.prompts import load_template
from rewardlab.training.rl import judgment_reward_of
config = RLConfig(brevity_weight=0.5, consistency={"weight": 0.0})
model = SimpleNamespace(config=SimpleNamespace(eos_token_id=1), generation_config=SimpleNamespace(eos_token_id=1))
print(judgment_reward_of(config, load_template("plain"), model, Path("out"))._weights.brevity)
"""
    sentence = said(folder, program)
    assert "brevity" in sentence
    assert "would pay 0" in sentence
    edit(folder, "training/rl.py", "swap=config.swap_weight,", "swap=config.swap_weight, brevity=config.brevity_weight,")
    assert said(folder, program) == "0.5"
