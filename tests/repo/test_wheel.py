"""What a user installs: the package with its configs, and no experiments."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that pip builds of this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("rewardlab", "data_recipes", "configs", "eval"):
        shutil.copytree(ROOT / name, folder / "source" / name, ignore=shutil.ignore_patterns("__pycache__", "results"))
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "source")
    isolation = ["--no-build-isolation"] if find_spec("setuptools") else []
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", *isolation, "--wheel-dir", str(folder), "./source"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    if done.returncode and not isolation:
        pytest.skip(f"setuptools is not installed, and no package index provides it: {done.stderr[-200:]}")
    assert done.returncode == 0, done.stderr
    return next(folder.glob("rewardlab-*.whl"))


def test_configs_travel_and_experiments_stay(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    configs = {str(path.relative_to(ROOT)) for path in (ROOT / "configs").rglob("*") if path.is_file()}
    assert configs
    assert {name.removeprefix("rewardlab/") for name in names if name.startswith("rewardlab/configs/")} == configs
    assert not [name for name in names if "studies" in name or name.startswith(("eval/", "tests/"))]
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"rewardlab", "data_recipes"}


def test_the_demo_judge_travels(wheel: Path) -> None:
    """Weights, card, tokenizer, examples and scans, byte for byte."""
    archive = zipfile.ZipFile(wheel)
    folders = [ROOT / "rewardlab" / "demo" / name for name in ("judge", "examples")]
    shipped = [ROOT / "rewardlab" / "demo" / "digits.npz", *(path for folder in folders for path in folder.iterdir())]
    assert {"model.safetensors", "card.json", "README.md", "tokenizer.json", "pairs.jsonl"} <= {path.name for path in shipped}
    for path in shipped:
        assert archive.read(path.relative_to(ROOT).as_posix()) == path.read_bytes()


def test_the_page_of_the_server_travels(wheel: Path) -> None:
    archive, folder = zipfile.ZipFile(wheel), ROOT / "rewardlab" / "serving" / "page"
    for path in folder.iterdir():
        assert archive.read(path.relative_to(ROOT).as_posix()) == path.read_bytes()


def test_configs_are_found_where_the_wheel_is_unpacked(wheel: Path, tmp_path: Path) -> None:
    """Configs are found by name in an empty folder."""
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    (tmp_path / "empty").mkdir()
    code = (
        "from rewardlab.config import *; print(find_config('rl/ppo'), find_config('configs/rl/ppo.yaml'), "
        "find_configs('tiny'), load_yaml('tiny/demo')['hidden'])"
    )
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, cwd=tmp_path / "empty")
    configs = tmp_path / "site" / "rewardlab" / "configs"
    ppo = str(configs / "rl" / "ppo.yaml")
    assert done.stdout.split() == [ppo, ppo, str(configs / "tiny"), "96"], done.stderr
