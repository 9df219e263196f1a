"""Processes: which one of a run writes and prints, children that do not outlive their parent, the memory there is."""

from __future__ import annotations

import ctypes
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

PR_SET_PDEATHSIG = 1
# Where a container's limit stands: of control groups of version 2, and of 1, whose "none" is a number beyond any machine.
CONTAINER_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def is_main() -> bool:
    """Return whether this process writes and prints what all processes of a run have in common."""
    return os.environ.get("RANK", "0") == "0"


def process_index() -> int:
    """Return the number of this process among those that train together, from 0 on."""
    return int(os.environ.get("RANK", "0"))


def num_processes() -> int:
    """Return how many processes train together, as the launcher says."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def num_cores() -> int:
    """Return the number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def end_with_parent() -> None:
    """Have Linux end this child when its parent is killed; to be called in the child (Popen's ``preexec_fn``)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def return_freed_memory() -> None:
    """Have glibc give the system what was freed between blocks in use.

    Pixels of megapixel images are too small for it to do so by itself: the gaps they leave would grow from batch to batch.
    """
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)


def command_line() -> str:
    """Return the `rewardlab` command that this process runs, "" for another program that uses the package."""
    program = Path(sys.argv[0])
    is_ours = program.name == "rewardlab" or program.parts[-3:] == ("rewardlab", "cli", "__main__.py")
    return shlex.join(["rewardlab", *sys.argv[1:]]) if is_ours else ""


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes, 0 where ``/proc`` does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def memory_here(limits: Sequence[Path] = CONTAINER_LIMITS) -> int:
    """Return the bytes of memory that a process may have: this machine's, or fewer in a container with a limit."""
    here = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    contents = [file.read_text(encoding="utf-8").strip() for file in limits if file.is_file()]
    return min([here, *(int(limit) for limit in contents if limit.isdigit())])  # "max" is none
