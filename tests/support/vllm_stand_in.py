"""A program that is started and asked as ``vllm serve`` is, with real weights and a real decoder behind it.

For machines without a vLLM: another process, vLLM's routes, what it does with weights, and with requests while it is paused.
What is left out is vLLM's own speed and arithmetic. It refuses weights whose names or shapes are not those that it began with.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import torch
import uvicorn
from safetensors.torch import load_file
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rewardlab.models.families import end_token_ids, vision_token_ids
from rewardlab.samplers.decode import draw, draw_uniforms
from rewardlab.samplers.hf import HFSampler
from rewardlab.samplers.shared_prefix import group_numbers
from rewardlab.types import Completion, FinishReason, Message, Part

WEIGHTS = "model.safetensors"
GATHER_S = 0.02  # requests that come within are drawn side by side
MOST_PROMPTS = 128


def program(folder: Path) -> Path:
    """Write a program to start in vllm's place, and return its path."""
    path, root = folder / "vllm", Path(__file__).parents[2]
    path.write_text(f'#!/bin/sh\nPYTHONPATH={root} exec {sys.executable} {__file__} "$@"\n')
    path.chmod(0o755)
    return path


def messages_of(chat: Sequence[dict[str, Any]]) -> tuple[Message, ...]:
    def part(value: dict[str, Any]) -> Part:
        if value["type"] == "text":
            return Part(text=value["text"])
        return Part(image=base64.b64decode(value["image_url"]["url"].partition(",")[2]))

    return tuple(
        Message(m["role"], (Part(text=m["content"]),) if isinstance(m["content"], str) else tuple(map(part, m["content"])))
        for m in chat
    )


class Engine:
    """Draws what is asked for, batch by batch; while it is paused nothing is drawn."""

    def __init__(self, folder: str) -> None:
        torch.set_num_threads(1)
        self.sampler = HFSampler.load(folder, device="cpu", batch_size=512)
        self.shapes = {name: tuple(weight.shape) for name, weight in load_file(Path(folder) / WEIGHTS).items()}
        self.waiting: list[tuple[dict[str, Any], asyncio.Future[list[Completion]]]] = []
        self.asked, self.weights_in_use = asyncio.Event(), asyncio.Lock()

    async def ask(self, body: dict[str, Any]) -> list[Completion]:
        future: asyncio.Future[list[Completion]] = asyncio.get_running_loop().create_future()
        self.waiting.append((body, future))
        self.asked.set()
        return await future

    async def work(self) -> None:
        while True:
            await self.asked.wait()
            await asyncio.sleep(GATHER_S)
            async with self.weights_in_use:
                batch, self.waiting = self.waiting, []
                self.asked.clear()
                drawn = await asyncio.to_thread(self.draw, [body for body, _ in batch])
            for (_, future), completions in zip(batch, drawn, strict=True):
                future.set_result(completions)

    def draw(self, bodies: Sequence[dict[str, Any]]) -> list[list[Completion]]:
        """Side by side, each request by a seed of its own."""
        drawn: dict[int, list[Completion]] = {}
        settings = [(body["temperature"], body["top_p"], body["max_tokens"]) for body in bodies]
        for setting in dict.fromkeys(settings):
            alike = [n for n, other in enumerate(settings) if other == setting]
            for start in range(0, len(alike), MOST_PROMPTS):
                numbers = alike[start : start + MOST_PROMPTS]
                drawn |= dict(zip(numbers, self._draw_alike([bodies[n] for n in numbers], *setting), strict=True))
        return [drawn[n] for n in range(len(bodies))]

    def _draw_alike(
        self, bodies: Sequence[dict[str, Any]], temperature: float, top_p: float, max_tokens: int
    ) -> list[list[Completion]]:
        model, processor = self.sampler.model, self.sampler.processor
        prompts = [messages_of(body["messages"]) for body in bodies]
        inputs, numbers = self.sampler.encode(prompts), [body.get("n") or 1 for body in bodies]
        seeds = [body["seed"] % 2**31 for body in bodies]
        uniforms = [draw_uniforms((seed,), range(n), max_tokens) for seed, n in zip(seeds, numbers, strict=True)]
        ends = end_token_ids(model)
        draws = draw(
            model,
            inputs,
            num_draws=numbers,
            max_tokens=max_tokens,
            temperature=temperature,
            top_p=top_p,
            ends=ends,
            suppress=vision_token_ids(model.config),
            uniforms=torch.cat(uniforms),
            groups=group_numbers([tuple(image for message in prompt for image in message.images) for prompt in prompts]),
        )
        rows = zip(draws.tokens, draws.logprobs, strict=True)
        completions: list[list[Completion]] = []
        for number, length in zip(numbers, inputs["attention_mask"].sum(1).tolist(), strict=True):
            completions.append([])
            for _ in range(number):
                tokens, logprobs = next(rows)
                finish = FinishReason.STOP if tokens[-1] in ends else FinishReason.LENGTH
                text = processor.tokenizer.decode(tokens, skip_special_tokens=True)
                completions[-1].append(Completion(text, finish, len(tokens), length, tuple(tokens), tuple(logprobs)))
        return completions

    def reload(self, folder: str) -> None:
        """Raise ValueError for weights that are missing, unknown, or of another shape."""
        weights = load_file(Path(folder) / WEIGHTS)
        shapes = {name: tuple(weight.shape) for name, weight in weights.items()}
        if shapes != self.shapes:
            raise ValueError(f"other weights: {sorted(set(shapes.items()) ^ set(self.shapes.items()))[:4]}")
        self.sampler.model.load_state_dict(HFSampler.load(folder, device="cpu").model.state_dict())


def application(folder: str) -> Starlette:
    engine = Engine(folder)

    async def complete(request: Request) -> Response:
        if request.headers.get("authorization") != f"Bearer {os.environ['VLLM_API_KEY']}":
            return JSONResponse({"message": "no key"}, 401)
        drawn = await engine.ask(await request.json())
        choices = [
            {
                "index": n,
                "message": {"role": "assistant", "content": completion.text},
                "finish_reason": completion.finish.value,
                "token_ids": list(completion.token_ids),
                "logprobs": {"content": [{"token": "", "logprob": value, "top_logprobs": []} for value in completion.logprobs]},
            }
            for n, completion in enumerate(drawn)
        ]
        usage = {"prompt_tokens": drawn[0].num_prompt_tokens, "completion_tokens": sum(c.num_tokens for c in drawn)}
        usage["total_tokens"] = sum(usage.values())
        return JSONResponse(
            {"id": "x", "object": "chat.completion", "created": 0, "model": "judge", "choices": choices, "usage": usage}
        )

    async def health(request: Request) -> Response:
        return Response()

    async def pause(request: Request) -> Response:
        assert request.query_params["mode"] == "wait"
        await engine.weights_in_use.acquire()
        return JSONResponse({})

    async def resume(request: Request) -> Response:
        engine.weights_in_use.release()
        return JSONResponse({})

    async def call(request: Request) -> Response:
        body = await request.json()
        assert body["method"] == "reload_weights"
        assert engine.weights_in_use.locked()
        try:
            engine.reload(body["kwargs"]["weights_path"])
        except ValueError as error:
            return JSONResponse({"message": str(error)}, 500)
        return JSONResponse({"results": [None]})

    @asynccontextmanager
    async def working(app: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(engine.work())
        yield
        task.cancel()

    return Starlette(
        lifespan=working,
        routes=[
            Route("/v1/chat/completions", complete, methods=["POST"]),
            Route("/health", health),
            Route("/pause", pause, methods=["POST"]),
            Route("/resume", resume, methods=["POST"]),
            Route("/reset_mm_cache", health, methods=["POST"]),
            Route("/collective_rpc", call, methods=["POST"]),
        ],
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["serve"])
    parser.add_argument("model")
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    options, _ = parser.parse_known_args()
    assert os.environ["VLLM_SERVER_DEV_MODE"] == "1"
    uvicorn.run(application(options.model), host=options.host, port=options.port, log_level="warning")


if __name__ == "__main__":
    main()
