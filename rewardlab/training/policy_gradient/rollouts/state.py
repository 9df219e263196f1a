"""The state of rollouts in a checkpoint: one file a process, read by any number of processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from rewardlab.errors import CheckpointError

State = dict[str, Any]  # what a strategy, or dynamic sampling, goes on with
_FILE = "rollouts-{process}.pt"


def save_state(checkpoint: Path, state: State, process: int, num_processes: int) -> None:
    """Write the state of one of ``num_processes`` into a checkpoint folder, which is made."""
    checkpoint.mkdir(exist_ok=True)
    torch.save({**state, "num_processes": num_processes}, checkpoint / _FILE.format(process=process))


def load_states(checkpoint: Path) -> list[State]:
    """Return the states of all processes that wrote the checkpoint. Raise CheckpointError where one is missing."""
    paths = sorted(checkpoint.glob(_FILE.format(process="*")), key=lambda path: int(path.stem.rsplit("-", 1)[1]))
    states = [torch.load(path) for path in paths]
    if not states or len(states) != states[0]["num_processes"]:
        needed = states[0]["num_processes"] if states else "those"
        raise CheckpointError(
            f"{checkpoint}: the rollouts of {len(states)} of {needed} processes are in it; restore the others' files "
            f"({_FILE.format(process='N')}), or delete the checkpoint to go back to the one before"
        )
    return states
