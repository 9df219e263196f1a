"""CONTRIBUTING's recipes, followed to the letter in a copy of the repository: the part works, and no other test fails."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
Edits = dict[str, list[tuple[str, str]]]
"""File -> (text, the same text with the addition); a text of "" makes a new file."""

ESTIMATOR: Edits = {
    "rewardlab/rl/groups.py": [
        (
            "def varying_frac(",
            "def mean_scaled(rewards_N: Tensor, groups_N: Tensor) -> Tensor:\n"
            '    """(R - mean) / mean of the group."""\n'
            "    means_N = group_means(rewards_N, groups_N)\n"
            "    return ((rewards_N.double() - means_N) / means_N).float()\n\n\ndef varying_frac(",
        )
    ],
    "rewardlab/rl/estimators.py": [
        ('"rloo", "gae"]', '"rloo", "gae", "maxrl"]'),
        ('    "gae": Estimator(', '    "maxrl": Estimator("mean_scaled", kl_in_reward=True),\n    "gae": Estimator('),
    ],
    "rewardlab/rl/reference.py": [
        ('in ("grpo", "dr_grpo", "rloo"):', 'in ("grpo", "dr_grpo", "rloo", "maxrl"):'),
        (
            "    deviation = math.sqrt(",
            '    if method.advantage == "maxrl":\n        return (reward - mean) / mean\n    deviation = math.sqrt(',
        ),
    ],
}
KL_PROGRAM = """
import torch
from rewardlab.config import RLConfig
from rewardlab.training.policy_gradient.algorithm import Rewards, compute_advantages
from rewardlab.training.policy_gradient.batch import RolloutBatch
config = RLConfig(advantage="maxrl", group_size=4, kl_coef=0.5)
assert config.kl == "k1_reward"
ones = torch.ones(4, 3)
batch = RolloutBatch(ones, ones, ones, ones, ones, {})
rewards, groups, penalty = torch.tensor([2.0, 0.0, 2.0, 0.0]), torch.zeros(4, dtype=torch.long), torch.tensor([1.0, 0, 0, 0])
for taken in (None, config.kl_coef * penalty):
    parts = Rewards(rewards, slice(0, 4), groups, kl_penalty_G=taken)
    print(compute_advantages(batch, parts, config, sum_processes=lambda sums: sums).advantages_NT[:, 0].tolist())
"""

BENCHMARK: Edits = {
    "rewardlab/benchmarks/colours/__init__.py": [
        (
            "",
            "from dataclasses import replace\n\nfrom rewardlab.benchmarks.pairs import BENCHMARK as PAIRS\n\n"
            'BENCHMARK = replace(PAIRS, name="colours")\n',
        )
    ],
    "rewardlab/benchmarks/registry.py": [('    "pairs",\n)', '    "pairs",\n    "colours",\n)')],
    "eval/images.yaml": [("benchmarks:\n", "benchmarks:\n  - {benchmark: colours, data: colours.jsonl, votes: 1}\n")],
}

TERM: Edits = {
    "rewardlab/rewards/judgment.py": [
        (
            "SHIPPED: dict[",
            "def brevity_term(config: RLConfig) -> RewardTerm:\n"
            '    return RewardTerm("brevity", config.brevity_weight, lambda judged, part: 1 / judged.completion.num_tokens)\n'
            "\n\nSHIPPED: dict[",
        ),
        (
            '    "overlong_margin": overlong_term,\n',
            '    "overlong_margin": overlong_term,\n    "brevity_weight": brevity_term,\n',
        ),
    ],
    "rewardlab/config/rl.py": [
        (
            "    swap_weight: float = Field(",
            '    brevity_weight: float = Field(0.0, ge=0, description="Reward for a short judgment.")\n'
            "    swap_weight: float = Field(",
        )
    ],
    "docs/reference/metrics.md": [
        ("| `reward/overlong` |", "| `reward/brevity` | mean of 1 / tokens; with `brevity_weight` |\n| `reward/overlong` |")
    ],
}
PAY_PROGRAM = """
from pathlib import Path
from types import SimpleNamespace
from rewardlab.config import RLConfig
from rewardlab.prompts import load_template
from rewardlab.rewards.rollout import Rollout, Trajectory
from rewardlab.training.rl import judgment_reward_of
config = RLConfig(brevity_weight=0.5, consistency={"weight": 0.0})
model = SimpleNamespace(config=SimpleNamespace(eos_token_id=1), generation_config=SimpleNamespace(eos_token_id=1))
reward = judgment_reward_of(config, load_template("plain"), model, Path("."))
row = {"question": "q", "order": "given", "preferred": 0, "pair_id": "p"}
scored = reward([Rollout(row, [], Trajectory([2, 3, 4, 1]), "no verdict")], 0)
print(scored.rewards, scored.metrics["reward/brevity"].value)
reward.close()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    ignored = shutil.ignore_patterns("__pycache__", ".*", "runs", "shared", "site")
    shutil.copytree(ROOT, tmp_path / "repository", ignore=ignored)
    return tmp_path / "repository"


def follow(folder: Path, edits: Edits, recipe: str) -> None:
    """Apply the edits: of at most three files, each of which the row of CONTRIBUTING's table names."""
    row = next(line for line in (ROOT / "CONTRIBUTING.md").read_text().splitlines() if line.startswith(f"| {recipe} |"))
    named = [re.sub(r"NAME|\*", r"[\\w]+", path) for path in re.findall(r"`([\w./*]+(?:\.py|\.yaml|\.md|/))`", row)]
    assert len(edits) <= 3
    for name, changes in edits.items():
        place = name.removeprefix("rewardlab/") if name.startswith("rewardlab/") else f"../{name}"
        assert any(re.match(pattern, place) for pattern in named), f"CONTRIBUTING's recipe does not name {place}"
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        for before, after in changes:
            assert not before or text.count(before) == 1, f"{name}: {before}"
            text = text.replace(before, after) if before else after
        path.write_text(text, encoding="utf-8")


def run(folder: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=folder, env=environment)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def passes(folder: Path, *tests: str) -> None:
    """Run tests of the copy, the docs pages' among them."""
    run(folder, "-m", "pytest", "-q", "-x", "-p", "no:xdist", "-m", "not nightly", "tests/repo/test_docs_pages.py", *tests)


@pytest.mark.nightly
def test_an_estimator(folder: Path) -> None:
    """The penalty of a response moves its group's advantages; one declared without KL in the reward refuses it."""
    follow(folder, ESTIMATOR, "an advantage estimator")
    plain, penalised = run(folder, "-c", KL_PROGRAM).splitlines()
    assert plain == "[1.0, -1.0, 1.0, -1.0]"
    assert penalised != plain
    passes(folder, "tests/rl", "tests/config")
    path = folder / "rewardlab/rl/estimators.py"
    path.write_text(path.read_text().replace('"mean_scaled", kl_in_reward=True', '"mean_scaled", kl_in_reward=False'))
    with pytest.raises(AssertionError, match="advantage maxrl has no KL divergence in its reward"):
        run(folder, "-c", KL_PROGRAM)


@pytest.mark.nightly
def test_a_benchmark(folder: Path) -> None:
    """The package lists and loads it."""
    follow(folder, BENCHMARK, "a benchmark")
    print_name = "from rewardlab.benchmarks.registry import find_benchmark; print(find_benchmark('colours').name)"
    assert run(folder, "-c", print_name).strip() == "colours"
    passes(
        folder, "tests/benchmarks/test_suite.py", "tests/benchmarks/test_loaders.py", "tests/benchmarks/test_own_benchmark.py"
    )


@pytest.mark.nightly
def test_a_reward_term(folder: Path) -> None:
    """A run with its key pays it and logs it: 0.5 x 1 / 4 for a judgment of four tokens without a verdict."""
    follow(folder, TERM, "a reward term")
    assert run(folder, "-c", PAY_PROGRAM).strip() == "[0.125] 0.25"
    passes(folder, "tests/rewards/test_compose.py", "tests/config")
