"""A ``vllm serve`` that cannot be started: said at once, not after the time that a start may take."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rewardlab.errors import EndpointError
from rewardlab.samplers.vllm_server import VLLMServer
from tests.support.vllm_stand_in import program


@pytest.mark.parametrize("fault", ["program", "log"])
def test_what_hinders_the_first_start(
    fault: str, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that is none, or a log in a folder that is not there."""
    path = program(tmp_path)
    if fault == "program":
        path.write_text("garbage")
    monkeypatch.setenv("REWARDLAB_VLLM", str(path))
    log, words = (tmp_path / "nowhere" / "log", "No such file") if fault == "log" else (None, "Exec format error")
    began = time.monotonic()
    with pytest.raises(EndpointError, match=f"cannot be started .*{words}"):
        VLLMServer(str(tiny_checkpoint), log=log, start_timeout_s=30)
    assert time.monotonic() - began < 15


@pytest.mark.nightly
def test_a_start_that_fails_later_is_tried_again(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program is away for a while, as where it is installed anew."""
    path = program(tmp_path)
    monkeypatch.setenv("REWARDLAB_VLLM", str(path))
    server = VLLMServer(str(tiny_checkpoint), start_timeout_s=60, dev=True)
    try:
        path.rename(tmp_path / "away")
        server.restart("for a test")
        while server.num_starts < 3:
            assert not server.healthy
            time.sleep(0.05)
        (tmp_path / "away").rename(path)
        server.await_start()
        assert server.healthy
    finally:
        server.stop()
