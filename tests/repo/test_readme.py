"""What the README has a stranger type: the first screen from an empty directory, and the pipeline below "Train a judge"."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from rewardlab.cli import main
from rewardlab.config import RLConfig, load_config, parse_overrides
from rewardlab.data.pairs import write_parquet
from rewardlab.training.rl import require_consistency_judge
from tests.support.markdown import Block, blocks_of, commands_of
from tests.support.shell import run_main

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
TEXT = README.read_text(encoding="utf-8")
FIRST = next(block for block in blocks_of(README) if block.language == "sh")
TRAIN_PAGES = [README, ROOT / "docs" / "how-to" / "train.md"]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of the files as they are here: what a stranger clones."""
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    folder = tmp_path_factory.mktemp("origin")
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "-A"], [*who, "commit", "-q", "-m", "all"]):
        subprocess.run(["git", *words], cwd=folder, check=True)
    return folder


def typed(script: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script as a stranger's shell would, with this Python as its python3; the first failing command ends it."""
    words = {**os.environ, "PYTHON": sys.executable, **environment}
    for name in ("PYTHONPATH", "MAKEFLAGS", "MAKELEVEL", "MFLAGS"):  # of the make that runs the tests
        words.pop(name, None)
    return subprocess.run(["bash", "-ec", script], cwd=folder, capture_output=True, text=True, env=words, timeout=1800)


def clone(repository: Path, folder: Path) -> Path:
    """Type what comes before ``make``; return the clone."""
    before = FIRST.code.partition("make demo")[0].replace("URL", str(repository), 1)
    done = typed(before, folder)
    assert done.returncode == 0, done.stderr
    return folder / "rewardlab"


def test_the_first_command_is_there_to_be_typed() -> None:
    """No package index has the package: nothing on the first screen asks one for it."""
    assert [words[0] for words in commands_of(FIRST.code)] == ["git", "cd", "make"]
    assert "pip install rewardlab" not in TEXT
    for block in blocks_of(README):
        assert "pip install 'rewardlab" not in block.code


@pytest.mark.slow
def test_every_target_of_make_is_there(repository: Path, tmp_path: Path) -> None:
    """As ``make -n`` says what it would do: the demonstration in its own environment, without a developer's tools."""
    folder = clone(repository, tmp_path)
    targets = sorted(set(re.findall(r"(?:^|`)make ([a-z-]+)", TEXT, re.M)))
    assert {"demo", "quickstart", "test", "check"} <= set(targets)
    for target in targets:
        done = typed(f"make -n {target}", folder)
        assert done.returncode == 0, done.stderr
        if target == "demo":
            assert done.stdout.rstrip().endswith(".venv-demo/bin/rewardlab demo")
            assert "'.[demo]'" in done.stdout
            assert ".[dev]" not in done.stdout


@pytest.mark.slow
def test_the_first_screen_without_its_installation(repository: Path, tmp_path: Path) -> None:
    """With an environment that is there: the six judgments, of which the README prints two to the letter."""
    folder = clone(repository, tmp_path)
    program = folder / ".venv-demo" / "bin" / "rewardlab"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m rewardlab.cli "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    (folder / ".venv-demo" / ".ready").touch()
    done = typed("make demo", folder, COLUMNS="80", PYTHONPATH=str(folder), NO_COLOR="1")
    assert done.returncode == 0, done.stderr
    assert_judgments(done.stdout)


@pytest.mark.skipif(not os.environ.get("REWARDLAB_INSTALL"), reason="installs over a gigabyte: REWARDLAB_INSTALL=1")
@pytest.mark.timeout(1800)
def test_the_first_screen(repository: Path, tmp_path: Path) -> None:
    folder = clone(repository, tmp_path)
    done = typed("make demo", folder, COLUMNS="80")
    assert done.returncode == 0, done.stderr
    assert_judgments(done.stdout)


def assert_judgments(printed: str) -> None:
    shown = next(block for block in blocks_of(README) if block.language == "text").code
    for line in shown.splitlines():
        if line.strip() and not line.startswith(("...", "6 pairs")):
            assert line in printed, line
    assert shown.splitlines()[-1].partition("(")[0] in printed


def pipeline_of(page: Path) -> dict[str, list[str]]:
    """The words of each command of the page's block that trains, by the command's name."""
    [block] = [block for block in blocks_of(page) if is_pipeline(block)]
    return {words[1]: words for words in commands_of(block.code)}


def is_pipeline(block: Block) -> bool:
    return all(f"rewardlab {name}" in block.code for name in ("distill", "sft", "rl"))


def option(words: list[str], name: str) -> str:
    return words[words.index(name) + 1]


def rl_config(words: list[str]) -> RLConfig:
    return load_config(
        RLConfig, option(words, "--config"), parse_overrides([word for word in words if re.match(r"[a-z.]+=", word)])
    )


@pytest.mark.parametrize("page", TRAIN_PAGES, ids=lambda page: page.name)
def test_one_command_reads_what_the_last_one_wrote(page: Path) -> None:
    """And none needs a server that is not named: with the consistency judge of the config RL would not begin."""
    commands = pipeline_of(page)
    distilled = f"{option(commands['distill'], '--out')}/distilled.parquet"
    assert option(commands["sft"], "--data") == option(commands["rl"], "--data") == distilled
    config = rl_config(commands["rl"])
    assert f"model={option(commands['sft'], '--out')}/final" in commands["rl"]
    assert config.model == f"{option(commands['sft'], '--out')}/final"
    require_consistency_judge(config)


@pytest.mark.slow
@pytest.mark.parametrize("page", TRAIN_PAGES, ids=lambda page: page.name)
def test_the_pipeline_runs_as_printed(
    page: Path, tiny_checkpoint: Path, demo_pairs: Any, demo_server: Callable[..., str], tmp_path: Path
) -> None:
    """With the demonstration's teacher, a small model and small batches, and not a word of the page changed."""
    write_parquet(demo_pairs[0][:100], tmp_path / "pairs.parquet")
    small = {"template": "plain", "batch_size": 8, "micro_batch_size": 8, "max_steps": 1, "gradient_checkpointing": False}
    further = {
        "distill": {"base_url": demo_server(), "model": "demo-teacher", "template": "plain"},
        "sft": {**small, "model": str(tiny_checkpoint)},
        "rl": {
            **small,
            "rollout_batch_size": 8,
            "max_completion_length": 16,
            "attempts": ["1", "2", "3"],
        },
    }
    for name, changes in further.items():
        words = pipeline_of(page)[name]
        done = run_main(
            main,
            *words[1:],
            *(f"{key}={yaml.safe_dump(value).strip().removesuffix('...').strip()}" for key, value in changes.items()),
            folder=tmp_path,
        )
        ends = (0, 4) if name == "rl" else (0,)  # 4: an untrained judge gives no verdict, so that every reward is 0
        assert done.returncode in ends, f"{name}: {done.stdout[-1500:]}{done.stderr[-1500:]}"
    assert (tmp_path / "runs" / "rl" / "final").is_dir()
