"""Access to the hub, without minutes of retries if it is unreachable."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import httpx
from huggingface_hub import constants, is_offline_mode

CONNECT_S = 5.0


def hub_options(path: str) -> dict[str, bool]:
    """Return options for ``from_pretrained``: only the cache if the hub is unreachable.

    Otherwise each file of a missing model would be tried five times, for minutes.
    """
    return {} if Path(path).is_dir() or is_offline_mode() or reaches_hub() else {"local_files_only": True}


@cache
def reaches_hub() -> bool:
    """Return whether the hub accepted a connection at the first call, through the environment's proxies if any."""
    try:
        httpx.head(os.environ.get("HF_ENDPOINT") or constants.ENDPOINT, timeout=CONNECT_S)
    except httpx.TransportError:
        return False
    return True


def why_absent(path: str, error: Exception) -> str:
    """Return why a model could not be loaded: an unreachable hub, or the library's message."""
    if not hub_options(path):
        return " ".join(str(error).split())
    return f"no such folder, not in the hub's cache, and {constants.ENDPOINT} cannot be reached"
