"""Processes: which of a run's writes and tells, and children that do not outlive their parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def is_main() -> bool:
    """Whether this process is the one that writes and tells what all processes of a run have in common."""
    return os.environ.get("RANK", "0") == "0"


def num_processes() -> int:
    """Return how many processes train together, as the launcher says."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def end_with_parent() -> None:
    """Called in a child (Popen's ``preexec_fn``): Linux ends it when its parent is killed without a chance to say so."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
