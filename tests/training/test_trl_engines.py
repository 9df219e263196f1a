"""Rollouts by TRL's own two ways of sampling with vLLM: within the trainer's process, and by a server that takes weights.

Both are real runs in processes of their own. Where vLLM would be is ``tests/support/vllm_package.py``: real weights, checked
one by one as they come, and a decoder that draws by them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from transformers import AutoTokenizer

from rewardlab.models.loading import load_model
from tests.support import scaled_runs, vllm_package
from tests.support.families import FAMILIES
from tests.support.servers import free_port
from tests.training.test_engine_rollouts import gaps

pytestmark = pytest.mark.timeout(600)
ROOT = Path(__file__).parents[2]
STEPS = 4
EQUAL = 1e-5  # nats between the engine's log-probs and the trainer's, in float32; one bias that stays old makes 5e-4


@pytest.fixture(scope="module")
def checkpoints(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint)
    folder = tmp_path_factory.mktemp("families") / "qwen3_vl"
    return {"qwen2_5_vl": tiny_checkpoint, "qwen3_vl": FAMILIES["qwen3_vl"](tokenizer, folder)}


def environment(folder: Path) -> dict[str, str]:
    package = vllm_package.install(folder / "package")
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{package}:{ROOT}"}


@contextmanager
def server(checkpoint: Path, env: dict[str, str]) -> Iterator[str]:
    port = free_port()
    command = [sys.executable, vllm_package.__file__, "serve", str(checkpoint), "--port", str(port)]
    process = subprocess.Popen(command, env=env)
    try:
        yield f"http://127.0.0.1:{port}"
        assert httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False).status_code == 200  # it lives to the end
    finally:
        process.kill()
        process.wait()


def train(checkpoint: Path, out: Path, env: dict[str, str], **changes: Any) -> None:
    changes = {"max_steps": STEPS, **changes}
    command = [sys.executable, vllm_package.__file__, "train", str(checkpoint), str(out), json.dumps(changes)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-6000:]


@pytest.mark.parametrize(
    ("kind", "family", "lora"),
    [
        ("colocate", "qwen3_vl", {"r": 4}),
        pytest.param("server", "qwen3_vl", None, marks=pytest.mark.nightly),
        pytest.param("colocate", "qwen2_5_vl", None, marks=pytest.mark.nightly),
        pytest.param("server", "qwen2_5_vl", {"r": 4}, marks=pytest.mark.nightly),
    ],
)
def test_each_batch_is_drawn_by_the_newest_weights(
    kind: str, family: str, lora: dict[str, int] | None, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    """Whole ones, each brought once; the log-probs that come back are the trainer's, images seen."""
    env, checkpoint = environment(tmp_path), checkpoints[family]
    changes: dict[str, Any] = {"lora": lora} if lora else {}
    if kind == "colocate":
        train(checkpoint, tmp_path / "run", env, engine={"kind": "colocate"}, **changes)
    else:
        with server(checkpoint, env) as url:
            train(checkpoint, tmp_path / "run", env, engine={"kind": "server", "base_url": url}, **changes)
    assert len(gaps(tmp_path / "run")) == STEPS
    assert max(gaps(tmp_path / "run")) < EQUAL


def test_what_the_stand_in_refuses(checkpoints: dict[str, Path]) -> None:
    """Else the test above could not fail."""
    for family, checkpoint in checkpoints.items():
        model = load_model(str(checkpoint), device="cpu")[0]
        named = [(name, weight.detach().clone()) for name, weight in model.named_parameters()]
        weights = vllm_package.Weights(model)
        weights.begin()
        weights.load(named)
        weights.finish()
        for pairs, message in (
            ([named[0], named[0]], "brought twice"),
            ([("base_model.model." + named[0][0], named[0][1])], "there is no weight"),
            ([(named[0][0], torch.zeros(1))], "instead of"),
        ):
            weights.begin()
            with pytest.raises(ValueError, match=message):
                weights.load(pairs)
        weights.begin()
        weights.load(named[1:])
        with pytest.raises(ValueError, match="not brought"):
            weights.finish()
        assert scaled_runs.pairs(), family
