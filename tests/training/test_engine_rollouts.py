"""Reinforcement learning whose rollouts come from another process, which is given each update's weights.

That process is ``vllm serve`` where REWARDLAB_VLLM names one: ``make vllm`` installs one for a CPU and runs this file. Else it
is ``tests/support/vllm_stand_in.py``, with vLLM's routes, real weights and a decoder that draws by them.
"""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from transformers import AutoTokenizer

from rewardlab.config import EngineConfig, ImportanceConfig, RLConfig
from rewardlab.demo.base_model import build_model, build_processor, save_model
from rewardlab.errors import ConfigError, EndpointError, HealthError
from rewardlab.models.loading import load_model, load_policy, load_processor
from rewardlab.samplers.base import SamplingParams
from rewardlab.samplers.vllm_server import START_S, VLLMServer
from rewardlab.training.policy_gradient.build import trl_arguments
from rewardlab.training.policy_gradient.rollouts import engine as engine_module
from rewardlab.training.policy_gradient.rollouts.engine import (
    CALL_S,
    TRIES,
    RolloutEngine,
    check_engine,
    messages_of,
    with_context_length,
)
from rewardlab.types import Completion, FinishReason, Message, Part
from tests.support import scaled_runs, vllm_stand_in
from tests.support.launching import train_on
from tests.support.servers import running

pytestmark = pytest.mark.timeout(600)
ENGINE = scaled_runs.ENGINE
REAL = bool(os.environ.get("REWARDLAB_VLLM"))
ROUNDING = 1e-5  # nats, in float32: 1e-7 were seen


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a run starts as ``vllm serve``."""
    if not os.environ.get("REWARDLAB_VLLM"):
        monkeypatch.setenv("REWARDLAB_VLLM", str(vllm_stand_in.program(tmp_path_factory.mktemp("program"))))


@pytest.fixture(scope="module")
def checkpoint(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Heads of 32, which vLLM's attention on a CPU wants."""
    folder = tmp_path_factory.mktemp("engine") / "base"
    tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint)
    save_model(folder, build_model(tokenizer, hidden=128, layers=2, seed=0), build_processor(tokenizer))
    return folder


def batches(run: Path) -> list[dict[str, float]]:
    """Return the metrics of the first step of each rollout batch."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "importance/gap" in line]


def gaps(run: Path) -> list[float]:
    """Return how far the engine's log-probs are from the trainer's of the same tokens, by batch. vLLM's are of the distribution
    that is sampled from, in which the tokens of images have no part: what these take from the trainer's is subtracted. It is
    0.005 nats on a model that knows nothing, and up to 0.013 after a few updates."""
    return [abs(line["importance/gap"] - REAL * line["importance/unsampled"]) for line in batches(run)]


@pytest.mark.nightly
@pytest.mark.usefixtures("server")
def test_the_engine_draws_by_the_newest_weights(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its log-probs stay the trainer's. Those of an engine that is given no new weights do not, which ends the run. The engine
    is gone when training ends. Prompts do not share their luck: eight of a model that knows nothing begin in different ways."""
    draw, firsts = RolloutEngine.draw, []

    def noted(self: Any, *args: Any) -> Any:
        tokens, logprobs = draw(self, *args)
        firsts.append({ids[0] for ids in tokens})
        return tokens, logprobs

    monkeypatch.setattr(RolloutEngine, "draw", noted)
    scaled_runs.run("rl", checkpoint, tmp_path / "synced", **ENGINE, data=scaled_runs.mixed())
    assert len(gaps(tmp_path / "synced")) == 4
    assert max(gaps(tmp_path / "synced")) < ROUNDING
    assert len(firsts[0]) >= 6
    assert not [p for p in psutil.Process().children(recursive=True) if "vllm" in " ".join(p.cmdline())]
    monkeypatch.setattr(RolloutEngine, "sync", lambda self, model: None)
    with pytest.raises(HealthError, match="log-probs of the sampler and the trainer differ by"):
        scaled_runs.run("rl", checkpoint, tmp_path / "stale", **ENGINE, data=scaled_runs.mixed())
    assert gaps(tmp_path / "stale")[-1] > 0.1


@pytest.mark.nightly
@pytest.mark.usefixtures("server")
def test_an_engine_that_dies_comes_back_with_the_weights_of_now(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before the third batch is asked for: what it would have drawn by the first weights is not used."""
    draw, calls = RolloutEngine.draw, []

    def killing(self: Any, *args: Any) -> Any:
        calls.append(self._server.num_starts)
        if len(calls) == 3:
            os.killpg(self._server.pid, signal.SIGKILL)
        return draw(self, *args)

    monkeypatch.setattr(RolloutEngine, "draw", killing)
    scaled_runs.run("rl", checkpoint, tmp_path / "run", **ENGINE)
    assert calls[-1] == 2
    assert len(gaps(tmp_path / "run")) == 4
    assert max(gaps(tmp_path / "run")) < ROUNDING


@pytest.mark.nightly
@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("fsdp", [False, True])
def test_one_engine_for_two_processes(fsdp: bool, checkpoint: Path, tmp_path: Path) -> None:
    """Also where their weights lie in parts: it is given whole ones. A critic is then the first to read anything."""
    train_on(checkpoint, tmp_path, "rl+engine+critic:critic", "rl+engine:run", fsdp=fsdp)
    for run in ("critic", "run"):
        assert len(gaps(tmp_path / run)) == 4
        assert max(gaps(tmp_path / run)) < ROUNDING


METHODS: dict[str, dict[str, Any]] = {  # by objective; bounds among the ratios, all of which are below 1
    "ppo_clip": {"mode": "token_mask", "cap": None, "floor": 0.995},
    "gspo": {"mode": "sequence_mask", "cap": None, "floor": 0.94},
    "response_clip": {"mode": "sequence_truncate", "cap": None, "floor": 0.94},
    "cispo": {"mode": "token_truncate", "cap": None, "floor": 0.995},
    "sapo": {"mode": "geometric_mask", "cap": None, "floor": 0.995},
    "gmpo": {"mode": "geometric_truncate", "cap": None, "floor": 0.5, "veto": 0.99},
}


@pytest.mark.nightly
@pytest.mark.skipif(not REAL, reason="the stand-in's log-probs are the trainer's: every ratio is 1; see make vllm")
def test_every_objective_and_every_correction_train(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two updates on each of two rollout batches, all runs with one engine, which takes their first weights too. The ratio of a
    token is 1 less the probability of the tokens that are not sampled: bounds among these ratios cut some tokens, not all."""
    begin, servers = RolloutEngine.__init__, list[Any]()

    def start_once(*args: Any, **options: Any) -> Any:
        servers[:] = servers or [VLLMServer(*args, **options)]
        return servers[0]

    def begin_with_weights(self: Any, *args: Any, **options: Any) -> None:
        begin(self, *args, **options)
        self._starts_at_write = self._starts
        self.load()

    monkeypatch.setattr(engine_module, "VLLMServer", start_once)
    monkeypatch.setattr(RolloutEngine, "__init__", begin_with_weights)
    monkeypatch.setattr(RolloutEngine, "close", lambda self: None)
    shape: dict[str, Any] = {"advantage": "grpo", "group_size": 4, "rollout_batch_size": 16, "preclip": None}
    try:
        for objective, importance in METHODS.items():
            changes = ENGINE | shape | {"objective": objective, "importance": importance}
            scaled_runs.run("rl", checkpoint, tmp_path / objective, **changes)
    finally:
        for server in servers:
            server.stop()
    for objective, importance in METHODS.items():
        steps = [json.loads(line) for line in (tmp_path / objective / "metrics.jsonl").read_text().splitlines()][:4]
        assert all(math.isfinite(line["loss"]) and 0 < line["grad_norm"] < math.inf for line in steps), objective
        assert len(gaps(tmp_path / objective)) == 2
        assert max(gaps(tmp_path / objective)) < ROUNDING
        assert 0 < batches(tmp_path / objective)[0]["importance/capped_frac"] < 1, objective
        for line in batches(tmp_path / objective):
            assert line["importance/missing_frac"] == 0.0
            lowest = 0.0 if importance["mode"].startswith("sequence") else 1 - 1.1 * line["importance/gap"]
            assert lowest < line["importance/mean"] < 1 - 0.9 * line["importance/gap"]


def test_a_chat_in_words_and_images() -> None:
    """Images lose nothing on their way."""
    pair = scaled_runs.pairs()[0]
    from rewardlab.data.images import decode_image

    image = decode_image(pair.images[0])
    turns = [{"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": "Which?"}]}]
    (message,) = messages_of([*turns])
    assert message.parts[1] == Part(text="Which?")
    assert decode_image(message.images[0]).tobytes() == image.tobytes()
    assert messages_of([{"role": "user", "content": "Which?"}])[0].text == "Which?"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"objective": "response_clip", "importance": {"mode": "token_mask"}}, "one ratio per response"),
        ({"lora": {"r": 2}}, "needs all weights"),
        ({"engine": {"kind": "colocate"}, "lora": {"quantize": "nf4"}}, "lora.quantize does not keep"),
        ({"engine": {"kind": "colocate"}, "health": {"policy": "roll_back"}}, "cannot be started twice"),
        ({"engine": {"kind": "server"}}, "needs base_url"),
        ({"engine": {"kind": "colocate"}, "advantage": "gae"}, "the critic's weights"),
        ({"advantage": "gae", "self_verify": True}, "an engine takes text"),
    ],
)
def test_what_goes_with_no_engine(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        RLConfig(**({"engine": {"kind": "serve"}} | change))
    assert RLConfig(engine={"kind": "serve"}).importance == ImportanceConfig(mode="sequence_mask", cap=3.0)


def test_where_an_engine_has_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a card that is trained on, unless it is told its share; on several nodes; where it is not installed."""
    with pytest.raises(ConfigError, match=r"pip install 'rewardlab\[vllm\]'"):
        check_engine(EngineConfig(kind="colocate"))
    monkeypatch.setenv("REWARDLAB_VLLM", "no-such-program")
    with pytest.raises(ConfigError, match="no vllm program found"):
        check_engine(EngineConfig())
    monkeypatch.setenv("REWARDLAB_VLLM", "true")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    with pytest.raises(ConfigError, match=r"set engine.devices to GPUs without a training process"):
        check_engine(EngineConfig())
    assert with_context_length(EngineConfig(args="--dtype half"), 4096).args == "--max-model-len 4096 --dtype half"
    for config in (EngineConfig(devices="7"), EngineConfig(args="--gpu-memory-utilization 0.3")):
        check_engine(config)
        assert with_context_length(config, None) is config
    monkeypatch.setenv("WORLD_SIZE", "16")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    with pytest.raises(ConfigError, match="on several use kind: server"):
        check_engine(EngineConfig(devices="7"))


def test_vllm_within_the_trainer_reads_images_by_the_checkpoint(checkpoint: Path, tmp_path: Path) -> None:
    """Another pixel budget than the checkpoint's would be the trainer's alone."""
    size = load_processor(str(checkpoint)).image_processor.size
    own = {"min": size["shortest_edge"], "max": size["longest_edge"]}
    changes: dict[str, Any] = {"model": str(checkpoint), "engine": {"kind": "colocate"}}
    load_policy(RLConfig(**changes, pixels=own), tmp_path)
    with pytest.raises(ConfigError, match="train the cold start with the same pixels"):
        load_policy(RLConfig(**changes, pixels=own | {"max": 784 * 9}), tmp_path)


@pytest.mark.parametrize("tied", [True, False])
def test_weights_are_written_once(checkpoint: Path, tmp_path: Path, tied: bool) -> None:
    """The file holds all of the policy's weights and no critic's, its head too where it is the embedding, under the names of
    checkpoints; no more bytes are written than it has."""
    model = load_model(str(checkpoint), device="cpu")[0]
    if not tied:
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach() + 1.0)
        model.config.tie_word_embeddings = model.config.text_config.tie_word_embeddings = False
    engine = object.__new__(RolloutEngine)
    engine._folder, engine._excluded = tmp_path / "engine", ("critic.",)
    engine._folder.mkdir()
    model.save_pretrained(tmp_path / "plain")
    state = model.state_dict() | {"critic.weight": torch.ones(9)}
    before = psutil.Process().io_counters().write_chars
    engine._write(model, state)
    written = psutil.Process().io_counters().write_chars - before
    (file,) = engine._folder.iterdir()
    assert written < file.stat().st_size + 100_000
    weights, plain = load_file(file), load_file(tmp_path / "plain" / "model.safetensors")
    embedded = next(value for name, value in weights.items() if name.endswith("embed_tokens.weight"))
    assert torch.equal(weights["lm_head.weight"], embedded) is tied
    assert weights.keys() - plain.keys() == ({"lm_head.weight"} if tied else set())
    for name, value in plain.items():
        assert torch.equal(weights[name], value)


def test_the_other_processes_wait_longer_than_the_engine_may_take(tmp_path: Path) -> None:
    """While the main process waits for a start, replaces weights in vain three times, and waits for a start after each."""
    config = RLConfig(engine=EngineConfig(deadline_s=5000), max_completion_length=8)
    longest = START_S + 3 * (4 * CALL_S + START_S)
    assert trl_arguments(config, tmp_path).ddp_timeout_delta.total_seconds() > max(longest, 5000)
    assert trl_arguments(RLConfig(), tmp_path).ddp_timeout == 1800


def test_a_failed_rollout_is_no_rollout() -> None:
    """Neither an error nor a prompt that the engine reads otherwise becomes a completion."""
    engine = object.__new__(RolloutEngine)
    engine._url, engine._folder = "http://127.0.0.1:9", Path("runs/engine")
    prompt = messages_of([{"role": "user", "content": "Which?"}])

    def answering(completion: Completion) -> Any:
        class Fixed:
            def sample(self, prompts: Any, params: Any) -> Any:
                return [[completion] * params.num_samples for _ in prompts]

        return Fixed()

    good = Completion("x", FinishReason.STOP, 2, 7, (5, 6), (-0.5, -0.25))
    engine._sampler = answering(good)
    assert engine.draw([prompt] * 3, [7] * 3, SamplingParams()) == ([[5, 6]] * 3, [[-0.5, -0.25]] * 3)
    with pytest.raises(EndpointError, match="reads a prompt as 7 tokens, the trainer as 8"):
        engine.draw([prompt], [8], SamplingParams())
    engine._sampler = answering(Completion("", FinishReason.TIMEOUT, error="no answer within 5 s"))
    with pytest.raises(EndpointError, match="no answer within 5 s"):
        engine.draw([prompt], [7], SamplingParams())


def test_prompts_that_differ_by_their_image_are_two_requests() -> None:
    """Equal ones are one; each rollout is of its own prompt."""
    sizes: dict[bytes, int] = {}

    class ByImage:
        def sample(self, prompts: Sequence[tuple[Message, ...]], params: SamplingParams) -> list[list[Completion]]:
            sizes.update({prompt[0].images[0]: params.num_samples for prompt in prompts})
            tokens = [prompt[0].images[0][0] for prompt in prompts]
            return [[Completion("x", FinishReason.STOP, 1, 7, (token,), (-0.5,))] * params.num_samples for token in tokens]

    engine: Any = object.__new__(RolloutEngine)
    engine._url, engine._folder, engine._sampler = "http://127.0.0.1:9", Path("runs/engine"), ByImage()
    a, b = ((Message("user", (Part(image=image), Part(text="Which?"))),) for image in (b"a", b"b"))
    tokens, _ = engine.draw([a, b, a], [7] * 3, SamplingParams())
    assert tokens == [[ord("a")], [ord("b")], [ord("a")]]
    assert sizes == {b"a": 2, b"b": 1}


class StandIn:
    """In the place of ``vllm serve`` and of its process: notes what it is asked, in order; ``failing`` paths answer 500."""

    def __init__(self, *failing: str) -> None:
        self.num_starts, self.healthy, self.failing = 1, True, failing
        self.asked: list[tuple[str, Any]] = []
        self.app = Starlette(routes=[Route("/{path:path}", self.answer, methods=["POST"])])

    async def answer(self, request: Request) -> Response:
        body = await request.body()
        self.asked.append((request.url.path, json.loads(body) if body else dict(request.query_params)))
        return Response(status_code=500 if request.url.path in self.failing else 200)

    def restart(self, why: str) -> None:
        self.asked.append(("restart", None))

    def await_start(self) -> None:
        self.asked.append(("await_start", None))

    def engine(self, url: str, folder: Path) -> Any:
        engine: Any = object.__new__(RolloutEngine)
        engine._server, engine._url, engine._folder, engine._starts = self, f"{url}/v1", folder, 1
        engine._accelerator = SimpleNamespace(
            get_state_dict=lambda model: {}, unwrap_model=lambda model: model, wait_for_everyone=lambda: None
        )
        engine._write = lambda model, state: self.asked.append(("write", None))
        return engine


RELOAD = "/collective_rpc"


def test_new_weights_are_written_then_read(tmp_path: Path) -> None:
    """While nothing is drawn, and behind what the server remembers of images that older weights have read."""
    server = StandIn()
    with running(server.app) as url:
        server.engine(url, tmp_path / "engine").sync(None)
    what = {"method": "reload_weights", "kwargs": {"weights_path": str(tmp_path / "engine")}}
    calls = [("/pause", {"mode": "wait"}), ("/reset_mm_cache", {}), (RELOAD, what), ("/resume", {})]
    assert server.asked == [("write", None), *calls]


def test_a_server_that_does_not_take_weights_is_started_again(tmp_path: Path) -> None:
    """One that was started since has read the file; one that never takes it ends the run."""
    server = StandIn(RELOAD)

    def start() -> None:
        server.asked.append(("await_start", None))
        server.num_starts += 1

    with running(server.app) as url:
        engine = server.engine(url, tmp_path / "engine")
        with pytest.raises(EndpointError, match=r"the engine did not load the new weights; see .*engine\.log"):
            engine.sync(None)
        round_of = ["/pause", "/reset_mm_cache", RELOAD, "restart", "await_start"]
        assert [name for name, _ in server.asked] == ["write", *round_of * TRIES]
        server.asked.clear()
        server.await_start = start  # type: ignore[method-assign]
        engine.sync(None)
    assert [name for name, _ in server.asked] == ["write", *round_of]
    assert engine._starts == 2
