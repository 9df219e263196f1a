"""The loop's own processes: a stage on two of them, killed with the loop, its folder moved, and gone on with."""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rewardlab.data.pairs import write_parquet
from rewardlab.training import hardening
from rewardlab.training.hardening import harden_judge
from tests.support.hardening import Commands, plan_in

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]
KEYS = (
    *("max_steps=16", "save_steps=2", "rollout_batch_size=8", "batch_size=8", "micro_batch_size=4", "group_size=4"),
    *("advantage=grpo", "gradient_checkpointing=false", "lr_scheduler=constant"),
)


def wait_for(is_so: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.1)


def processes_of(folder: Path) -> list[str]:
    """Return the command lines of processes that name something in a folder."""
    lines = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            lines.append((process / "cmdline").read_text())
        except OSError:  # it has ended
            continue
    return [line for line in lines if f"{folder}/" in line]


@pytest.mark.timeout(600)
@pytest.mark.skipif(sys.platform != "linux", reason="a child that ends with its parent is Linux's")
def test_two_processes_end_with_the_loop_and_go_on(
    tiny_checkpoint: Path, demo_pairs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`rewardlab harden` is stopped, then killed; each time both processes of its stage end. From the folder, which is moved
    then, two go on. The policy and the judge that the stage began with are in the folder too."""
    out, now = tmp_path / "out", tmp_path / "moved"
    shutil.copytree(tiny_checkpoint, out / "start")
    logs = tmp_path / "logs"
    launcher = shlex.join([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"])
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    plan = replace(plan_in(tmp_path), policy_keys=KEYS, rounds=1, max_tokens=12, judge_max_tokens=12, checkpoints=2)
    write_parquet(demo_pairs[0][:20], Path(plan.data))
    write_parquet(demo_pairs[0][20:30], Path(plan.held_out))
    Path(plan.judge_config).write_text("template: plain\nrollout_batch_size: 4\nbatch_size: 4\nconsistency: {weight: 0}\n")

    words = ["--data", plan.data, "--held-out", plan.held_out, "--policy", str(out / "start"), "--judge", str(out / "start")]
    words += ["--policy-config", plan.policy_config, "--judge-config", plan.judge_config, "--truth", "exact", "--rounds", "1"]
    words += ["--max-tokens", "12", "--judge-max-tokens", "12", "--checkpoints", "2", "--mix", "1", "--launcher", launcher]
    words += ["--judge-file", plan.judge_file, "--out", str(out)]
    for key in KEYS:
        words += ["--policy-set", key]
    run = out / "round_0" / "policy"
    for step, stop in ((2, signal.SIGTERM), (4, signal.SIGKILL)):
        loop = subprocess.Popen([sys.executable, "-m", "rewardlab.cli", "harden", *words], stderr=subprocess.DEVNULL)
        try:
            wait_for((run / f"checkpoint-{step}" / "trainer_state.json").exists, 100)
            assert len([line for line in processes_of(run.parent) if "torch.distributed.run" not in line]) == 2
            loop.send_signal(stop)
            loop.wait(60)
            wait_for(lambda: not processes_of(out), 60)
        finally:
            loop.kill()
    steps = len((run / "metrics.jsonl").read_text().splitlines())
    assert steps < 16
    assert not (run / "final").exists()

    class Rest(Commands):
        """The policy's training is real."""

        def __call__(self, *words: Any, **how: Any) -> str:
            return command(*words, **how) if words[0] == "policy" else super().__call__(*words, **how)

    command = hardening._command
    monkeypatch.setattr(hardening, "_command", Rest())
    shutil.move(out, now)
    plan = replace(plan, policy=str(now / "start"), judge=str(now / "start"))
    last = harden_judge(replace(plan, launcher=f"{launcher} --log-dir {logs} --redirects 3"), now)
    assert last.policy == str(now / "round_0" / "policy" / "final")
    rows = [json.loads(line) for line in (now / "round_0" / "policy" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "loss" in row] == list(range(1, 17))
    ranks = sorted(path.parent.name for path in logs.rglob("stderr.log"))
    assert ranks == ["0", "1"]
    assert "goes on from checkpoint-" in next(logs.rglob("0/stderr.log")).read_text()
