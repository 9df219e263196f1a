"""Without a network a model that is nowhere is one sentence, at once."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from rewardlab.errors import CheckpointError
from rewardlab.models import hub
from rewardlab.models.loading import load_processor
from rewardlab.training.run.preflight import context_of


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A hub whose port nobody listens on, and none of its offline mode."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{free.getsockname()[1]}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    hub.reaches_hub.cache_clear()
    yield
    hub.reaches_hub.cache_clear()


@pytest.mark.parametrize("read", [load_processor, context_of])
def test_no_retries_without_a_network(read: object, no_hub: None) -> None:
    """Where one file took five tries of up to eight seconds each."""
    began = time.monotonic()
    with pytest.raises(CheckpointError, match=r"not in the hub's cache, and http://127\.0\.0\.1:[0-9]+ cannot be reached"):
        read("nobody/nothing")  # type: ignore[operator]
    assert time.monotonic() - began < 20


def test_a_folder_needs_no_hub(no_hub: None, tmp_path: Path) -> None:
    """Nothing is asked about it."""
    assert hub.hub_options(str(tmp_path)) == {}
    assert hub.reaches_hub.cache_info().misses == 0
