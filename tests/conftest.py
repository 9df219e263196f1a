"""Shared fixtures: one small world, one tiny untrained judge, one real server of the world's remote models."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

import pytest
import uvicorn
from hypothesis import settings

from rewardlab.types import PreferencePair
from rewardlab.world.judgments import Truth
from rewardlab.world.pairs import make_pairs
from rewardlab.world.server import Faults, TeacherConfig, build_app

# The same examples at every run and no limit in milliseconds: a failing law is one that anybody can see fail again.
# `--hypothesis-profile default` explores further.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.load_profile("fixed")

SHARED_DATA = Path(__file__).parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def world_pairs() -> tuple[list[PreferencePair], list[Truth]]:
    """200 training pairs and their truths."""
    return make_pairs(200, seed=0, held_out=False)


@contextmanager
def running(app: object) -> Iterator[str]:
    """Serve an ASGI app on a free port in a thread; yields its base URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(timeout=10)


@pytest.fixture
def world_server(world_pairs: tuple[list[PreferencePair], list[Truth]]) -> Iterator[Callable[..., str]]:
    """``start(faults=..., config=...)`` serves the world's teacher and checker and returns the API's base URL."""
    from contextlib import ExitStack

    with ExitStack() as stack:

        def start(faults: Faults | None = None, config: TeacherConfig | None = None) -> str:
            app = build_app(world_pairs[1], config or TeacherConfig(), faults)
            return stack.enter_context(running(app)) + "/v1"

        yield start


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint folder of a real, tiny, untrained Qwen2.5-VL with processor and trained tokenizer."""
    import random

    from rewardlab.world.base_model import build_model, build_processor, save, train_tokenizer
    from rewardlab.world.build import corpus

    pairs, truths = make_pairs(300, seed=0, held_out=False)
    tokenizer = train_tokenizer(corpus(pairs, truths, random.Random(0)), 700)
    folder = tmp_path_factory.mktemp("tiny") / "base"
    save(folder, build_model(tokenizer, hidden=32, layers=2, seed=0), build_processor(tokenizer))
    return folder
