"""A training run whose config stands on the command line: what is kept of it, and what a resumed run is held to."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rewardlab.cli import main
from rewardlab.cli.exit_codes import ExitCode
from rewardlab.data.pairs import write_parquet
from rewardlab.judging.spec import DEMO_JUDGE
from tests.support import scaled_runs
from tests.support.shell import run_main


def test_a_run_of_overrides(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """run.json has the resolved config; another value is refused by its key; a run that earned nothing says so and
    ends with a status of its own, unless the watchdog is only to warn."""
    data, out = tmp_path / "pairs.parquet", tmp_path / "rl"
    write_parquet(scaled_runs.pairs(), data)
    sizes = {"rollout_batch_size": 8, "batch_size": 8, "max_completion_length": 8, "max_steps": 3, "save_steps": 1}
    keys = {**scaled_runs.SHARED, **sizes, "model": tiny_checkpoint, "consistency.weight": 0, "format_weight": 0}
    keys |= {"warmup_ratio": 0, "min_lr_ratio": 0}  # the config's own, which go with a cosine
    del keys["learning_rate"]
    words = [f"{key}={json.dumps(value) if not isinstance(value, Path) else value}" for key, value in keys.items()]
    command = ["rl", "--data", data, "--out", out, "--config", "stable_reinforce", *words]
    done = run_main(main, *command, "learning_rate=3e-4")
    assert done.returncode == 4, done.stderr
    lines = done.stdout.strip().splitlines()
    assert lines[0].startswith(f"written: {out}/final")
    assert lines[1].startswith("nothing was learnt: every reward was 0")
    kept = json.loads((out / "run.json").read_text())["config"]
    assert (kept["learning_rate"], kept["consistency"]["weight"], kept["both_orders"]) == (3e-4, 0, False)
    shutil.rmtree(out / "final")  # as if it had been killed before its end
    other = run_main(main, *command, "learning_rate=4e-4")
    assert (other.returncode, "(learning_rate)" in other.stderr) == (2, True), other.stderr
    same = run_main(main, *command, "seed=0", "learning_rate=0.0003", "health.policy=warn")
    assert same.returncode == 0, same.stderr


@pytest.mark.parametrize("command", ["sft", "rl", "rm", "prm", "policy"])
def test_a_finished_run_is_refused_before_data_are_read(command: str, tmp_path: Path) -> None:
    """Which may take minutes; here there are none, and the sentence is not about them."""
    final = tmp_path / "run" / "final"
    final.mkdir(parents=True)
    (final / "rewardlab.json").write_text("{}")
    more = ("--steps", tmp_path / "steps.jsonl") if command == "prm" else ()
    done = run_main(main, command, "--data", tmp_path / "none.parquet", "--out", tmp_path / "run", *more)
    assert done.returncode == ExitCode.INPUT
    assert f"{tmp_path / 'run'}: holds a finished run; choose another --out, or delete it to train again" in done.stderr


@pytest.mark.parametrize("command", ["sft", "rl", "rm"])
def test_a_model_that_is_not_there_costs_no_import_of_torch(command: str, tmp_path: Path) -> None:
    """The sentence comes before the libraries, which take seconds; a model that is there is named before them."""
    code = (
        "import sys\nfrom rewardlab.cli import main\n"
        "try: main()\nexcept SystemExit as end: print(end.code)\nprint('torch' in sys.modules)"
    )
    words = [command, "--data", "none.parquet", "--out", "run", "learning_rate=1e-3"]
    done = subprocess.run(
        [sys.executable, "-c", code, *words, "--model", "runs/a/base"], capture_output=True, text=True, cwd=tmp_path
    )
    assert "runs/a/base: no such folder" in done.stderr
    assert done.stdout.split() == ["2", "False"]


def test_the_demo_judge_is_a_model_to_start_from() -> None:
    """By the name that it has as a judge; a command says what it starts from."""
    done = run_main(main, "sft", "--data", "none.parquet", "--out", "none", "--model", "demo", "learning_rate=1e-3")
    assert f"starting from {DEMO_JUDGE}" in done.stderr
