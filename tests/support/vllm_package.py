"""What TRL's two ways of sampling ask of vLLM, for machines without one: a package to import and a server to ask.

Real weights, taken as vLLM takes them, and a real decoder behind them; what is left out is vLLM's own speed and arithmetic, and
NCCL, whose place a socket takes. A round of new weights must bring each of the model's weights once, in its shape and under the
name that vLLM's loader has for it. Asleep, and before the first round where it is asleep at first, the model has no weights.
"""

from __future__ import annotations

import argparse
import base64
import io
import math
import os
import sys
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from rewardlab.models.families import end_token_ids, image_token_id, left_pad
from rewardlab.models.loading import load_model
from rewardlab.samplers.decode import draw
from rewardlab.samplers.vllm_server import FORBIDDEN

VERSION = "0.31.0"
MODULES = {
    "vllm": "LLM, RequestOutput, SamplingParams",
    "vllm.sampling_params": "StructuredOutputsParams",
    "vllm.utils.network_utils": "get_ip",
    "vllm.distributed.weight_transfer.nccl_common": "trainer_init",
    "vllm.distributed.weight_transfer.packed_tensor": "packed_nccl_broadcast_producer",
}
# vLLM's hf_to_vllm_mapper of Qwen2.5-VL and Qwen3-VL: the first beginning that a name has is replaced.
BEGINNINGS = {
    "model.language_model.": "language_model.model.",
    "model.visual.": "visual.",
    "lm_head.": "language_model.lm_head.",
    "model.": "language_model.model.",
}


def install(folder: Path) -> Path:
    """Write a package `vllm` into a folder that is to stand on PYTHONPATH, and return the folder."""
    for name, names in MODULES.items():
        path = folder.joinpath(*name.split("."))
        for package in [folder.joinpath(*name.split(".")[:n]) for n in range(1, name.count(".") + 2)]:
            package.mkdir(parents=True, exist_ok=True)
            (package / "__init__.py").touch()
        (path / "__init__.py").write_text(f"from tests.support.vllm_package import {names}\n")
    record = folder / f"vllm-{VERSION}.dist-info"
    record.mkdir()
    (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}\n")
    (record / "top_level.txt").write_text("vllm\n")
    return folder


class Weights:
    """A model's weights under vLLM's names, and which of them a round has brought."""

    def __init__(self, model: Any) -> None:
        parts = {"language_model.model.": model.model.language_model, "visual.": model.model.visual}
        self.known = {f"{prefix}{name}": w for prefix, part in parts.items() for name, w in part.named_parameters()}
        if model.lm_head.weight is not model.get_input_embeddings().weight:
            self.known["language_model.lm_head.weight"] = model.lm_head.weight
        assert len(self.known) == sum(1 for _ in model.parameters())
        self.brought: set[str] = set()
        self.whole = True

    def begin(self) -> None:
        self.brought, self.whole = set(), False

    def load(self, pairs: Iterable[tuple[str, Tensor]]) -> None:
        """Take weights. Raise ValueError for one that the model has not, has in another shape, or was brought before."""
        for name, weight in pairs:
            beginning = next((b for b in BEGINNINGS if name.startswith(b)), "")
            place = BEGINNINGS.get(beginning, "") + name.removeprefix(beginning)
            if place not in self.known:
                raise ValueError(f"there is no weight {name}")
            if self.known[place].shape != weight.shape:
                raise ValueError(f"{name}: {tuple(weight.shape)} instead of {tuple(self.known[place].shape)}")
            if place in self.brought:
                raise ValueError(f"{name}: brought twice")
            self.brought.add(place)
            self.known[place].data.copy_(weight)

    def finish(self) -> None:
        """Raise ValueError where a weight was not brought."""
        if missing := sorted(self.known.keys() - self.brought):
            raise ValueError(f"not brought: {missing[:3]} and {max(0, len(missing) - 3)} more")
        self.whole = True

    def discard(self) -> None:
        for weight in self.known.values():
            weight.data.fill_(math.nan)
        self.whole = False


@dataclass
class StructuredOutputsParams:
    regex: str | None = None


@dataclass
class SamplingParams:
    """Those of vLLM that are understood here; another is an error."""

    n: int = 1
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    max_tokens: int = 16
    logprobs: int | None = None
    logit_bias: dict[int, float] = field(default_factory=dict)
    structured_outputs: StructuredOutputsParams | None = None
    output_kind: int = 2

    def __post_init__(self) -> None:
        neutral = (self.repetition_penalty, self.top_k, self.min_p, self.structured_outputs, self.logprobs)
        assert neutral == (1.0, 0, 0.0, None, 0)
        self.logit_bias = {int(token): bias for token, bias in self.logit_bias.items()}
        assert set(self.logit_bias.values()) <= {FORBIDDEN}


RequestOutput = SimpleNamespace


class Decoder:
    """A model that completes tokens beside what a processor makes of their images."""

    def __init__(self, folder: str, seed: int) -> None:
        torch.set_num_threads(1)
        self.model, self.processor = load_model(folder, device="cpu")
        self.weights, self.generator = Weights(self.model), torch.Generator().manual_seed(seed)

    def features(self, images: Sequence[Image.Image]) -> dict[str, Tensor]:
        return dict(self.processor.image_processor(images=list(images), return_tensors="pt"))

    def complete(
        self, prompts: Sequence[list[int]], features: Sequence[dict[str, Tensor] | None], params: SamplingParams
    ) -> list[list[tuple[list[int], list[float]]]]:
        """Return tokens and log-probs of ``n`` completions of each prompt; its tokens have room for its images already."""
        assert self.weights.whole, "weights are missing"
        pad, image = self.processor.tokenizer.pad_token_id, image_token_id(self.model.config)
        merged = self.processor.image_processor.merge_size**2
        for prompt, pixels in zip(prompts, features, strict=True):
            room = sum(int(grid.prod()) // merged for grid in pixels["image_grid_thw"]) if pixels else 0
            assert prompt.count(image) == room, f"{prompt.count(image)} tokens for an image of {room}"
        rows = [torch.tensor(prompt) for prompt in prompts]
        inputs = {
            "input_ids": left_pad(rows, pad),
            "attention_mask": left_pad([torch.ones_like(row) for row in rows], 0),
            "mm_token_type_ids": left_pad([(row == image).long() for row in rows], 0),
        }
        if some := [pixels for pixels in features if pixels]:
            inputs |= {name: torch.cat([pixels[name] for pixels in some]) for name in ("pixel_values", "image_grid_thw")}
        drawn = draw(
            self.model.eval(),
            inputs,
            num_draws=params.n,
            max_tokens=params.max_tokens,
            temperature=params.temperature,
            top_p=params.top_p,
            ends=end_token_ids(self.model),
            suppress=sorted(params.logit_bias),
            generator=self.generator,
        )
        rows_of = list(zip(drawn.tokens, drawn.logprobs, strict=True))
        return [rows_of[start : start + params.n] for start in range(0, len(rows_of), params.n)]


class LLM:
    """vLLM within a process, as TRL colocates it."""

    def __init__(self, *, model: str, seed: int, enable_sleep_mode: bool, logprobs_mode: str, **options: Any) -> None:
        assert enable_sleep_mode
        assert logprobs_mode == "processed_logprobs"
        assert options["distributed_executor_backend"] == "external_launcher"
        self._decoder = Decoder(model, seed)
        runner = SimpleNamespace(model=SimpleNamespace(load_weights=self._decoder.weights.load))
        executor = SimpleNamespace(driver_worker=SimpleNamespace(model_runner=runner))
        self.llm_engine = SimpleNamespace(model_executor=executor)
        self.awake = {"weights", "kv_cache"}

    def sleep(self, level: int) -> None:
        assert level == 2  # which discards the weights
        self._decoder.weights.discard()
        self.awake = set()

    @torch.no_grad()
    def wake_up(self, tags: list[str]) -> None:
        self.awake |= set(tags)
        if "weights" in tags:
            self._decoder.weights.begin()

    def reset_prefix_cache(self) -> None:
        """What TRL calls when it has sent all weights."""
        self._decoder.weights.finish()

    @torch.no_grad()
    def generate(self, prompts: Sequence[dict[str, Any]], sampling_params: SamplingParams, use_tqdm: bool) -> list[Any]:
        assert self.awake == {"weights", "kv_cache"}
        images = [prompt.get("multi_modal_data", {}).get("image") for prompt in prompts]
        lists = [each if isinstance(each, list) else [each] if each is not None else [] for each in images]
        ids = [list(prompt["prompt_token_ids"]) for prompt in prompts]
        features = [self._decoder.features(some) if some else None for some in lists]
        drawn = self._decoder.complete(ids, features, sampling_params)
        return [
            RequestOutput(prompt_token_ids=prompt, outputs=[_output(*row) for row in rows])
            for prompt, rows in zip(ids, drawn, strict=True)
        ]


def _output(tokens: list[int], logprobs: list[float]) -> Any:
    pairs = zip(tokens, logprobs, strict=True)
    return SimpleNamespace(token_ids=tokens, logprobs=[{t: SimpleNamespace(logprob=p, rank=1)} for t, p in pairs])


# The trainer's side of weights that go to a server.


def get_ip() -> str:
    return "127.0.0.1"


def trainer_init(init_info: dict[str, Any]) -> Any:
    """Join the group of trainer and server. Its ``group`` holds what TRL lets go of at the end."""
    assert init_info["packed"] is True
    assert (init_info["rank_offset"], init_info["world_size"]) == (1, 2)
    for _ in range(600):  # the server opens it while the trainer comes
        try:
            connection = Client((init_info["master_address"], init_info["master_port"]))
            return SimpleNamespace(group=SimpleNamespace(store=None, socket=connection))
        except ConnectionRefusedError:
            threading.Event().wait(0.1)
    raise ConnectionError("the server did not open the group")


def packed_nccl_broadcast_producer(
    iterator: Iterator[tuple[str, Tensor]], group: Any, src: int, post_iter_func: Callable[[tuple[str, Tensor]], Tensor]
) -> None:
    assert src == 0
    for item in iterator:
        group.group.socket.send_bytes(post_iter_func(item).detach().contiguous().view(torch.uint8).numpy().tobytes())
    group.group.socket.send_bytes(b"end")


def allow_cpu() -> None:
    """Let TRL's client send weights from a CPU; by itself it stops before NCCL would."""
    from trl.generation import vllm_client

    class Torch:
        def __getattr__(self, name: str) -> Any:
            return getattr(torch, name)

        @staticmethod
        def device(device: Any) -> Any:
            return SimpleNamespace(type="cuda", index=None)

    vllm_client.torch = Torch()


# The server's side.


class Server:
    """The routes of ``vllm serve`` that TRL asks; what a request gets wrong is a status of 400, with a sentence."""

    def __init__(self, folder: str) -> None:
        self.folder, self.decoder, self.lock = folder, Decoder(folder, 0), threading.Lock()
        self.connection: Connection | None = None
        self.features: dict[str, dict[str, Tensor]] = {}

    def init_weight_transfer_engine(self, body: dict[str, Any]) -> dict[str, Any]:
        info = body["init_info"]
        with Listener((info["master_address"], info["master_port"])) as listener:
            self.connection = listener.accept()
        return {}

    def start_weight_update(self, body: dict[str, Any]) -> dict[str, Any]:
        self.decoder.weights.begin()
        return {}

    @torch.no_grad()
    def update_weights(self, body: dict[str, Any]) -> dict[str, Any]:
        info, connection = body["update_info"], self.connection
        assert connection is not None
        fields = (info["names"], info["dtype_names"], info["shapes"])
        received = []
        while (data := connection.recv_bytes()) != b"end":  # all of them, whatever is wrong with one
            received.append(data)
        assert len(received) == len(info["names"])
        for name, dtype, shape, data in zip(*fields, received, strict=True):
            weight = torch.frombuffer(bytearray(data), dtype=getattr(torch, dtype)).reshape(shape)
            self.decoder.weights.load([(name, weight)])
        return {}

    def finish_weight_update(self, body: dict[str, Any]) -> dict[str, Any]:
        self.decoder.weights.finish()
        return {}

    def render(self, body: dict[str, Any]) -> dict[str, Any]:
        """What the server's processor makes of the images of a throwaway chat; the client hands it back beside tokens."""
        parts = [part["image_url"]["url"] for message in body["messages"] for part in message["content"]]
        images = [Image.open(io.BytesIO(base64.b64decode(part.partition(",")[2]))).convert("RGB") for part in parts]
        name = uuid.uuid4().hex  # requests come side by side
        self.features[name] = self.decoder.features(images)
        places = [{"offset": 0, "length": 1} for _ in images]
        return {"features": {"mm_hashes": {"image": [name]}, "mm_placeholders": {"image": places}}}

    @torch.no_grad()
    def generate(self, body: dict[str, Any]) -> dict[str, Any]:
        """From tokens, and from images that were rendered before."""
        features = body.get("features")
        pixels = self.features[features["mm_hashes"]["image"][0]] if features else None
        params = SamplingParams(**body["sampling_params"])
        with self.lock:
            (rows,) = self.decoder.complete([body["token_ids"]], [pixels], params)
        return {"choices": [_choice(*row) for row in rows]}

    @torch.no_grad()
    def completions(self, body: dict[str, Any]) -> dict[str, Any]:
        names = ("model", "prompt", "return_token_ids", "return_tokens_as_token_ids")
        prompts = body["prompt"]
        params = SamplingParams(**{name: value for name, value in body.items() if name not in names})
        with self.lock:
            drawn = self.decoder.complete(prompts, [None] * len(prompts), params)
        choices = [_choice(*row) | {"prompt_token_ids": ids} for ids, rows in zip(prompts, drawn, strict=True) for row in rows]
        return {"choices": choices}


def _choice(tokens: list[int], logprobs: list[float]) -> dict[str, Any]:
    pairs = zip(tokens, logprobs, strict=True)
    content = [{"token": f"token_id:{token}", "logprob": value, "top_logprobs": []} for token, value in pairs]
    return {"token_ids": tokens, "logprobs": {"content": content}}


def application(folder: str) -> Any:
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    server = Server(folder)

    def post(function: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[Request], Any]:
        async def answer(request: Request) -> Response:
            body = await request.json() if await request.body() else {}
            try:
                return JSONResponse(await run_in_threadpool(function, body))
            except (AssertionError, ValueError, KeyError, TypeError) as error:
                return JSONResponse({"message": str(error)}, 400)

        return answer

    def get(value: Any) -> Callable[[Request], Any]:
        async def answer(request: Request) -> Response:
            return JSONResponse(value)

        return answer

    facts: dict[str, Any] = {
        "/health": {},
        "/v1/models": {"data": [{"id": folder}]},
        "/server_info": {"vllm_config": {"weight_transfer_config": {"backend": "nccl"}}},
        "/get_world_size": {"world_size": 1},
    }
    calls: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
        "/init_weight_transfer_engine": server.init_weight_transfer_engine,
        "/start_weight_update": server.start_weight_update,
        "/update_weights": server.update_weights,
        "/finish_weight_update": server.finish_weight_update,
        "/reset_prefix_cache": lambda body: {"success": True},
        "/v1/chat/completions/render": server.render,
        "/inference/v1/generate": server.generate,
        "/v1/completions": server.completions,
    }
    routes = [Route(path, get(value)) for path, value in facts.items()]
    return Starlette(routes=[*routes, *(Route(path, post(function), methods=["POST"]) for path, function in calls.items())])


def main() -> None:
    """``serve FOLDER --port N`` is the server; ``train CHECKPOINT OUT CHANGES`` a run of RL that samples by one of the two."""
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["serve", "train"])
    parser.add_argument("words", nargs="+")
    parser.add_argument("--port", type=int)
    options = parser.parse_args()
    if options.command == "serve":
        import uvicorn

        uvicorn.run(application(options.words[0]), host="127.0.0.1", port=options.port, log_level="warning")
        return
    import json

    from tests.support import scaled_runs

    allow_cpu()
    checkpoint, out, changes = options.words
    scaled_runs.run("rl", Path(checkpoint), Path(out), **json.loads(changes))
    sys.stdout.flush()
    os._exit(0)  # TRL's sockets would be closed after what they need


if __name__ == "__main__":
    main()
