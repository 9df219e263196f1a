"""Runs of ``scaled_runs`` on several processes, under torchrun or a launcher's configuration."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

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
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-6000:]
