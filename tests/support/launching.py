"""Runs of ``scaled_runs`` on several processes, under torchrun or a launcher's configuration, and whether two are alike."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import torch

from rewardlab.models.loading import load_model

ROOT = Path(__file__).parents[2]

# Stage 3 with no weight kept whole: DeepSpeed leaves those below 100,000 numbers, all of a small model's, with every process.
DEALT_OUT = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "zero_optimization": {
        "stage": 3,
        "stage3_gather_16bit_weights_on_model_save": True,
        "stage3_param_persistence_threshold": 0,
        "stage3_max_live_parameters": 1000,
        "stage3_prefetch_bucket_size": 1000,
        "reduce_bucket_size": 5000,
    },
}


def train_on(checkpoint: Path, folder: Path, *wanted: str, processes: int = 2, zero: str = "", fsdp: bool = False) -> None:
    """Train on ``processes`` under torchrun, or under the launcher's configuration that ships: for a ZeRO stage (``zero`` is 2
    or 3, or "3 dealt out" as :data:`DEALT_OUT` has it), or for FSDP2 (``fsdp``)."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "DS_ACCELERATOR": "cpu"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
    if zero or fsdp:
        file = ROOT / "configs" / "accelerate" / ("fsdp2.yaml" if fsdp else f"zero{zero}.yaml")
        if zero == "3 dealt out":
            (folder / "deepspeed.json").write_text(json.dumps(DEALT_OUT))
            file = folder / "launcher.yaml"
            told = {"deepspeed_config_file": str(folder / "deepspeed.json"), "zero3_init_flag": True}
            settings = {"compute_environment": "LOCAL_MACHINE", "distributed_type": "DEEPSPEED", "num_processes": processes}
            file.write_text(json.dumps({**settings, "num_machines": 1, "deepspeed_config": told}))  # JSON is YAML
        command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(file)]
        command += ["--num_processes", str(processes), "--main_process_port", "0"]
    command += [str(ROOT / "tests" / "support" / "scaled_runs.py"), str(checkpoint), str(folder), *wanted]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as launcher:
        try:
            _, errors = launcher.communicate(timeout=280)
        except subprocess.TimeoutExpired:
            launcher.terminate()  # it ends its processes, which would outlive it if it were killed
            raise
    assert launcher.returncode == 0, errors[-6000:]


CURVE = ("loss", "grad_norm", "reward", "entropy", "completions/mean_length", "advantage/outlier_frac", "reward_std")


def same(one: Path, other: Path) -> None:
    """Both curves within a ten-thousandth, and weights within 1e-5 of each other and away from where they began."""

    def curve(run: Path) -> list[list[float]]:
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        ours = CURVE if any("reward" in line for line in lines) else CURVE[:2]  # entropy in SFT is TRL's, of one process
        return [[line.get(name, 0.0) for name in ours] for line in lines if "loss" in line]

    torch.testing.assert_close(torch.tensor(curve(one)), torch.tensor(curve(other)), atol=1e-5, rtol=1e-4)
    assert len(curve(one)) == 4
    assert len({line[1] for line in curve(one)}) == 4
    a, b = (load_model(str(run / "final"), device="cpu")[0].state_dict() for run in (one, other))
    for name, weight in a.items():
        torch.testing.assert_close(weight, b[name], atol=1e-5, rtol=1e-4)
