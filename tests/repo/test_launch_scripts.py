"""The launch examples, run by a shell up to accelerate, whose own parser reads what it is handed; the cluster is a stand-in."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from accelerate.commands.launch import launch_command_parser

from rewardlab.config import find_config

ROOT = Path(__file__).parents[2]
LAUNCH = ROOT / "configs" / "launch"
# What is not here: Slurm's list of nodes, its start of a task, and the launch, which says what it was given.
PROGRAMS = {
    "scontrol": "printf 'node-1\\nnode-2\\n'",
    "srun": 'while [ "$1" != bash ]; do shift; done; SLURM_NODEID=1 exec "$@"',
    "accelerate": 'printf "%s\\0" "$@"',
}
SLURM = {"SLURM_JOB_NODELIST": "node-[1-2]", "SLURM_NNODES": "2", "SLURM_CPUS_PER_TASK": "8"}


@pytest.fixture
def cluster(tmp_path: Path) -> dict[str, str]:
    """An environment with the stand-ins."""
    for name, line in PROGRAMS.items():
        (tmp_path / name).write_text(f"#!/usr/bin/env bash\n{line}\n")
        (tmp_path / name).chmod(0o755)
    return {**os.environ, **SLURM, "PATH": f"{tmp_path}:{os.environ['PATH']}"}


def launched(command: list[str], env: dict[str, str]) -> Any:
    """What accelerate reads of the arguments that the command hands to it."""
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    word, *arguments = done.stdout.split("\0")[:-1]
    assert word == "launch"
    return launch_command_parser().parse_args(arguments)


def test_slurm_starts_every_node_with_its_rank(cluster: dict[str, str]) -> None:
    """The second of two nodes of eight cards, and the options that are handed in."""
    args = launched(["bash", str(LAUNCH / "slurm.sh")], {**cluster, "OUT": "runs/other"})
    assert (args.num_machines, args.num_processes, args.machine_rank) == (2, 16, 1)
    assert (args.main_process_ip, args.main_process_port) == ("node-1", 29500)
    assert (args.module, args.training_script) == (True, "rewardlab.cli")
    options = dict(zip(args.training_script_args[1::2], args.training_script_args[2::2], strict=True))
    assert options["--out"] == "runs/other"
    assert find_config(options["--config"]).is_file()
    assert (ROOT / args.config_file).is_file()


def test_kubernetes_starts_a_process_for_every_card(cluster: dict[str, str]) -> None:
    """As many processes as the pod has cards; a pod whose run is whole starts nothing."""
    (document,) = yaml.safe_load_all((LAUNCH / "kubernetes.yaml").read_text(encoding="utf-8"))
    (container,) = document["spec"]["template"]["spec"]["containers"]
    args = launched(container["command"], cluster)
    assert args.num_processes == container["resources"]["limits"]["nvidia.com/gpu"]
    assert args.training_script_args[:2] == ["rl", "--config"]
    assert find_config(args.training_script_args[2]).is_file()
    assert (ROOT / args.config_file).is_file()
    whole = [*container["command"][:2], container["command"][2].replace("/data/runs/rl/final/rewardlab.json", "pyproject.toml")]
    done = subprocess.run(whole, env=cluster, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
