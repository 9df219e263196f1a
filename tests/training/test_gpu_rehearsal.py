"""The GPU run works at the first try: all of it is rehearsed on a CPU."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from eval import gpu_truth
from eval.gpu_truth import BEGAN

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "stages", [("equal", "fast"), pytest.param(gpu_truth.FIRST_CALL, marks=pytest.mark.nightly)], ids=["short", "whole"]
)
def test_it_works_on_a_cpu(stages: tuple[str, ...], tmp_path: Path) -> None:
    """From a tree that is not installed, in one call: every case of the stages works, and large files are gone. The commands of
    the stage `runs` have tests of their own."""
    tree = tmp_path / "tree"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "rewardlab", "eval", "configs", "data_recipes"], cwd=ROOT, capture_output=True
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if not name.startswith("eval/results"):
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tree / name)
    env = {name: value for name, value in os.environ.items() if name not in (BEGAN, "PYTHONPATH")}
    out, work = tmp_path / "out", tmp_path / "work"
    options = ["--out", out, "--work", work, "--on-cpu", "--minutes", "20", "--commit", "abc"]
    options += [word for stage in stages for word in ("--stage", stage)]
    words = [sys.executable, "-m", "eval.gpu_truth", *options]
    done = subprocess.run(list(map(str, words)), cwd=tree, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    facts = json.loads((out / "gpu_truth.json").read_text())
    assert facts["machine"]["commit"] == "abc"
    assert all(row["ok"] for stage in stages for row in facts[stage].values())
    gaps = [row["importance_gap"] for name, row in facts.get("runs", {}).items() if name.startswith("rl ")]
    assert all(gap > 0 for gap in gaps)
    kept = sorted(path.name for path in (work / "runs").iterdir()) if "runs" in stages else []
    assert kept == (["sft"] if "runs" in stages else [])
