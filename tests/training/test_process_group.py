"""Processes that train together: one that has ended is a sentence to the others."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rewardlab.config import SFTConfig
from rewardlab.errors import RewardlabError
from rewardlab.training.run.parallel import is_lost_peer
from rewardlab.training.run.resume import run_steps
from tests.support.shell import ROOT

PEER = """
import os, sys, torch
from rewardlab.training.run.parallel import is_lost_peer
rank, port = map(int, sys.argv[1:])
torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
torch.distributed.all_reduce(torch.ones(1))
if rank == 1:
    os._exit(0)
try:
    torch.distributed.all_reduce(torch.ones(1))
except RuntimeError as error:
    print(is_lost_peer(error), error, flush=True)
os._exit(0)
"""
NCCL = "NCCL error: remote process exited or there was a network error, NCCL version 2.27.5\nncclRemoteError"


@pytest.mark.nightly
def test_a_process_that_ends(tmp_path: Path) -> None:
    """Two real ones; what gloo says is known for what it is."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, "-c", PEER]
    with subprocess.Popen([*command, "1", port], cwd=ROOT) as other:
        done = subprocess.run([*command, "0", port], cwd=ROOT, capture_output=True, text=True, timeout=120)
        other.wait(60)
    assert done.stdout.startswith("True "), done.stdout + done.stderr


def test_other_faults_are_none() -> None:
    assert is_lost_peer(RuntimeError(NCCL))
    assert not is_lost_peer(RuntimeError("CUDA out of memory"))
    assert not is_lost_peer(OSError("gloo: Connection closed by peer"))


def test_the_others_end_with_a_sentence(tmp_path: Path) -> None:
    """And not with a traceback each."""

    class Trainer(SimpleNamespace):
        def add_callback(self, callback: Any) -> None: ...

        remove_callback = add_callback

        def train(self, **kwargs: Any) -> None:
            raise RuntimeError("[gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:1: Connection reset by peer. GLHF!")

    config = SFTConfig.model_validate({"model": "none"})
    with pytest.raises(RewardlabError, match="another process of this run has died") as caught:
        run_steps(Trainer(), config, tmp_path, None)
    assert "GLHF" not in str(caught.value)
