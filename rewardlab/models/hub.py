"""The hub, where it can be reached; and a sentence instead of minutes of retries where it cannot."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import httpx
from huggingface_hub import constants, is_offline_mode

CONNECT_S = 5.0


def hub_options(path: str) -> dict[str, bool]:
    """Return what to hand to ``from_pretrained``: where no hub can be reached, that only its cache is looked into.

    Else a model that is nowhere would be asked for during minutes: five times for each of its files.
    """
    return {} if Path(path).is_dir() or is_offline_mode() or reaches_hub() else {"local_files_only": True}


@cache
def reaches_hub() -> bool:
    """Return whether the hub takes connections, as found at the first call; proxies of the environment count."""
    try:
        httpx.head(os.environ.get("HF_ENDPOINT") or constants.ENDPOINT, timeout=CONNECT_S)
    except httpx.TransportError:
        return False
    return True


def why_absent(path: str, error: Exception) -> str:
    """Return why a model could not be read: the hub that cannot be reached, or else what the library says."""
    if not hub_options(path):
        return str(error)
    return f"no such folder, not in the hub's cache, and {constants.ENDPOINT} cannot be reached"
