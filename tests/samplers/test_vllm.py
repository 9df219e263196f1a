"""The same judgments from vLLM as from transformers, in process and behind ``vllm serve``; one that is killed comes back.

Needs a vLLM, named in REWARDLAB_VLLM: ``make vllm`` installs one for a CPU and runs this file.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from rewardlab.errors import EndpointError
from rewardlab.judging.engines import open_generative_judge
from rewardlab.judging.margins import ProbabilityJudge
from rewardlab.prompts import build_messages, load_template
from rewardlab.samplers.base import SamplingParams
from rewardlab.samplers.hf import HFSampler
from rewardlab.samplers.vllm_server import VLLMServerSampler
from rewardlab.types import BOTH_ORDERS, FinishReason

ROOT = Path(__file__).parents[2]
PROGRAM = os.environ.get("REWARDLAB_VLLM", "")
pytestmark = [
    pytest.mark.skipif(not PROGRAM, reason="needs vLLM, its program named in REWARDLAB_VLLM (make vllm)"),
    pytest.mark.timeout(600),
]
# Of a model this small, on a CPU; a request's own seed breaks vLLM's CPU generator where prompts are read in chunks.
ARGS = (
    "--max-model-len 1024 --enforce-eager --dtype float32 --block-size 32 --kv-cache-memory-bytes 134217728 "
    "--no-enable-chunked-prefill --max-num-batched-tokens 8192"
)
GREEDY = SamplingParams(temperature=0, max_tokens=12)
BEGINNING = "<think>x</think><answer>"
OFFLINE = """
import json, sys
from rewardlab.data.pairs import read_pairs
from rewardlab.prompts import build_messages, load_template
from rewardlab.samplers.base import SamplingParams
from rewardlab.samplers.vllm import VLLMSampler
from rewardlab.types import BOTH_ORDERS
from pathlib import Path

def main(model, data, args, beginning):
    sampler = VLLMSampler.load(model, args=args)
    prompts = [build_messages(p, order=o, template=load_template("plain")) for p in read_pairs(Path(data)) for o in BOTH_ORDERS]
    drawn = sampler.sample(prompts, SamplingParams(temperature=0, max_tokens=12))
    margins, coverage = sampler.verdict_margins(prompts, [beginning] * len(prompts))
    rows = [[one[0].token_ids, one[0].logprobs, one[0].num_prompt_tokens] for one in drawn]
    many = sampler.sample(prompts[:2], SamplingParams(num_samples=5, max_tokens=12, seed=3))
    again = sampler.sample(prompts[:1], SamplingParams(num_samples=5, max_tokens=12, seed=3))
    same = [one.token_ids for one in many[0]] == [one.token_ids for one in again[0]]
    print("RESULT" + json.dumps([rows, margins.tolist(), coverage.tolist(), [len(row) for row in many], same]))

if __name__ == "__main__":
    main(*sys.argv[1:])
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, demo_pairs: Any) -> Path:
    """Like ``tiny_checkpoint``, with heads of 32: vLLM's attention on a CPU knows that width and 64."""
    import random

    from rewardlab.demo.base_model import build_model, build_processor, save_model, train_tokenizer
    from rewardlab.demo.build import corpus

    pairs, truths = demo_pairs
    tokenizer = train_tokenizer(corpus(pairs, truths, random.Random(0)), 700)
    folder = tmp_path_factory.mktemp("wide") / "base"
    save_model(folder, build_model(tokenizer, hidden=128, layers=2, seed=0), build_processor(tokenizer))
    return folder


@pytest.fixture(scope="module")
def here(checkpoint: Path) -> HFSampler:
    return HFSampler.load(checkpoint)


@pytest.fixture(scope="module")
def prompts(demo_pairs: Any) -> list[Any]:
    return [build_messages(p, order=o, template=load_template("plain")) for p in demo_pairs[0][:8] for o in BOTH_ORDERS]


@pytest.fixture(scope="module")
def server(checkpoint: Path) -> Iterator[VLLMServerSampler]:
    sampler = VLLMServerSampler.load(str(checkpoint), args=ARGS, deadline_s=60)
    yield sampler
    sampler.server.stop()


def test_in_process(here: HFSampler, prompts: list[Any], checkpoint: Path, demo_pairs: Any, tmp_path: Path) -> None:
    """Greedy tokens equal, log-probs and verdict margins close; a seed fixes a prompt's draws whatever is asked beside it."""
    from rewardlab.data.pairs import write_parquet

    write_parquet(list(demo_pairs[0][:8]), tmp_path / "pairs.parquet")
    (tmp_path / "offline.py").write_text(OFFLINE)
    command = [Path(PROGRAM).absolute().parent / "python", tmp_path / "offline.py", checkpoint, tmp_path / "pairs.parquet"]
    done = subprocess.run(
        [*map(str, command), ARGS, BEGINNING], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result = next(line for line in done.stdout.splitlines() if line.startswith("RESULT"))
    rows, margins, coverage, sizes, same = json.loads(result.removeprefix("RESULT"))
    for [ours], (ids, logprobs, num) in zip(here.sample(prompts, GREEDY), rows, strict=True):
        assert (list(ours.token_ids), ours.num_prompt_tokens) == (ids, num)
        assert ours.logprobs == pytest.approx(logprobs, abs=1e-3)
    assert (sizes, same) == ([5, 5], True)
    # An untrained model hardly ever means to write a verdict: what the likeliest tokens do not tell is bounded, not known.
    _, known = here.verdict_margins(prompts, [BEGINNING] * len(prompts))
    assert all(found <= whole + 1e-4 for found, whole in zip(coverage, known.tolist(), strict=True))
    assert len(margins) == len(prompts)


def test_behind_a_server(here: HFSampler, prompts: list[Any], server: VLLMServerSampler) -> None:
    """The same over HTTP: tokens, log-probs, counts of the prompt; all draws of a prompt in one request."""
    for [ours], [theirs] in zip(here.sample(prompts, GREEDY), server.sample(prompts, GREEDY), strict=True):
        assert ours.token_ids == theirs.token_ids
        assert ours.text == theirs.text
        assert (ours.num_tokens, ours.num_prompt_tokens) == (theirs.num_tokens, theirs.num_prompt_tokens)
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-3)
    many = server.sample(prompts[:3], SamplingParams(num_samples=4, max_tokens=12))
    assert [len(row) for row in many] == [4, 4, 4]
    assert all(one.token_ids and len(one.token_ids) == len(one.logprobs) for row in many for one in row)
    judge = ProbabilityJudge(server, load_template("plain"), max_tokens=8)
    assert judge.sampler is server


def test_a_killed_server_comes_back(prompts: list[Any], server: VLLMServerSampler) -> None:
    """Its death is a status of the draws, and of check(); then it is started again and answers as before."""
    before = server.sample(prompts[:2], GREEDY)
    assert server.server.pid is not None
    for child in [*psutil.Process(server.server.pid).children(recursive=True), psutil.Process(server.server.pid)]:
        os.kill(child.pid, signal.SIGKILL)
    [[lost]] = server.sample(prompts[:1], GREEDY)
    assert (lost.finish, lost.text) == (FinishReason.ERROR, "")
    with pytest.raises(EndpointError):
        server.check()
    end = time.monotonic() + 300
    while True:
        try:
            server.check()
            break
        except EndpointError:
            assert time.monotonic() < end
            time.sleep(0.5)
    assert server.server.num_starts == 2
    assert server.sample(prompts[:2], GREEDY) == before


def test_a_judge_by_its_spec(checkpoint: Path) -> None:
    """``vllm:`` with a template that the checkpoint does not name; a folder that is none is told before anything starts."""
    from rewardlab.errors import CheckpointError

    with pytest.raises(CheckpointError, match="no such"):
        open_generative_judge("vllm:/nowhere/at/all", template="plain", restart_after_s=60)
