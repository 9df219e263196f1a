"""The repository: its files and the layers of the package."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# A module may import from its own layer and from lower ones.
LAYERS = [
    {"types", "errors", "extensions"},
    {"prompts", "verdicts", "metrics", "rl"},
    {"config", "processes", "reporting"},
    {"data", "samplers", "models"},
    {"judging", "rewards", "distill"},
    {"training", "benchmarks", "serving", "integrations"},
    {"demo", "curation", "health", "pipelines"},
    {"cli"},
]


def tracked_files() -> list[Path]:
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()]
