"""Pairs per second of one judge, K votes in both orders: a plain script, the engines, and the endpoint over each of them.

``python eval/serving_rate.py`` after a quickstart; with ``--vllm-args`` (options of ``vllm serve``, may be "") vLLM takes part,
and Python must be one that has it. In turns, medians of ``--repeats``. The script is what a benchmark's own inference does: one
prompt at a time through ``generate``, one draw after the other. An endpoint is ``rewardlab serve`` in a process of its own; its
client runs here and shares the machine with it. Writes ``eval/results/serving_rate.json``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shlex
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import psutil
import torch
import uvicorn

from rewardlab.data.images import to_data_url
from rewardlab.data.pairs import read_pairs
from rewardlab.judging.engines import open_generative_judge
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.models.checkpoints import commit
from rewardlab.prompts import build_messages
from rewardlab.samplers.hf import HFSampler
from rewardlab.samplers.scripted import ScriptedSampler
from rewardlab.serving.app import create_app
from rewardlab.serving.queue import QueueOptions
from rewardlab.serving.service import ServerOptions
from rewardlab.types import BOTH_ORDERS, PreferencePair

VOTES, CONCURRENCY, MAX_TOKENS, BATCH = 4, 64, 64, 256


def script(judge: GenerativeJudge, pairs: Sequence[PreferencePair]) -> None:
    """One prompt, one draw at a time."""
    sampler = judge.sampler
    assert isinstance(sampler, HFSampler)
    for pair in pairs:
        for order in BOTH_ORDERS:
            for _ in range(VOTES):
                inputs = sampler.encode([build_messages(pair, order=order, template=judge.template)])
                with torch.no_grad():
                    out = sampler.model.generate(**inputs, do_sample=True, temperature=1.0, max_new_tokens=MAX_TOKENS)
                sampler.processor.tokenizer.decode(out[0, inputs["input_ids"].shape[1] :])


def offline(judge: GenerativeJudge, pairs: Sequence[PreferencePair]) -> None:
    judge.compare_many(pairs, orders=[BOTH_ORDERS] * len(pairs), num_votes=VOTES, seed=0)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def endpoint(judge: str, *options: str) -> Iterator[str]:
    """``rewardlab serve`` until it is ready; yields its address."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [sys.executable, "-m", "rewardlab.cli", "serve", "--judge", judge, "--port", str(port), *options]
    command += ["--max-tokens", str(MAX_TOKENS), "--batch-size", str(BATCH), "--template", "plain"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        for _ in range(1200):
            assert process.poll() is None, f"{shlex.join(command)} ended"
            try:
                if httpx.get(f"{url}/ready").status_code == 200:
                    break
            except httpx.HTTPError:
                pass
            time.sleep(0.25)
        yield url
    finally:
        process.terminate()
        process.wait(60)


@contextmanager
def served(app: Any) -> Iterator[str]:
    """An app in a thread."""
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(20)


async def over_http(url: str, pairs: Sequence[PreferencePair], concurrency: int, seed: int) -> list[float]:
    """Ask about every pair; the latency of each, in seconds."""
    slots, latencies = asyncio.Semaphore(concurrency), []
    bodies = [
        {
            "question": p.question,
            "responses": p.responses,
            "images": list(map(to_data_url, p.images)),
            "votes": VOTES,
            "seed": seed,
        }
        for p in pairs
    ]
    # aiohttp, as most frameworks' own clients: with httpx, a client of 64 connections costs three times what the server does
    async with aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(limit=concurrency)) as client:

        async def ask(body: dict[str, Any]) -> None:
            async with slots:
                start_time = time.perf_counter()
                async with client.post("/v1/judge", json=body, raise_for_status=True) as response:
                    answer = await response.json()
                latencies.append(time.perf_counter() - start_time)
            assert len(answer["votes"]) == 2 * VOTES

        await asyncio.gather(*map(ask, bodies))
    return latencies


@contextmanager
def stopped(processes: Sequence[psutil.Process]) -> Iterator[None]:
    """Hold these and their children still: an idle vLLM waits by spinning, and would take a core from who is measured."""
    tree = [child for process in processes for child in (process, *process.children(recursive=True))]
    for child in tree:
        child.suspend()
    try:
        yield
    finally:
        for child in tree:
            child.resume()


def rate(work: Callable[[], Any], num: int) -> float:
    start_time = time.perf_counter()
    work()
    return num / (time.perf_counter() - start_time)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--judge", default="runs/quickstart/rl/final")
    parser.add_argument("--data", type=Path, default=Path("runs/quickstart/demo/test.parquet"))
    parser.add_argument("--pairs", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--vllm-args")
    parser.add_argument("--out", type=Path, default=Path("eval/results/serving_rate.json"))
    options = parser.parse_args()
    pairs = read_pairs(options.data)[: options.pairs]
    few, bounds = pairs[:8], {"template": "plain", "max_tokens": MAX_TOKENS}
    rates: dict[str, list[float]] = {}

    def turns(works: dict[str, tuple[int, Callable[[int], Any]]]) -> None:
        for turn in range(options.repeats + 1):
            for name, (num, work) in works.items():
                if (measured := rate(lambda work=work, turn=turn: work(turn), num)) and turn:  # the first turn warms up
                    rates.setdefault(name, []).append(measured)
            print({name: round(values[-1], 1) for name, values in rates.items()}, flush=True)

    def requests_of(url: str) -> tuple[int, Callable[[int], Any]]:
        return len(pairs), lambda turn: asyncio.run(over_http(url, pairs, CONCURRENCY, turn))

    # One engine after the other, each beside its endpoint; of vLLM, which is not idle while it waits, one at a time.
    hf = open_generative_judge(f"hf:{options.judge}", batch_size=BATCH, **bounds)
    with endpoint(f"hf:{options.judge}") as url:
        local = {"script": (len(few), lambda turn: script(hf, few)), "hf": (len(pairs), lambda turn: offline(hf, pairs))}
        turns({**local, "endpoint over hf": requests_of(url)})
    if options.vllm_args is not None:
        os.environ["VLLM_SLEEP_WHEN_IDLE"] = "1"
        vllm = open_generative_judge(f"vllm:{options.judge}", engine_args=options.vllm_args, **bounds)
        engine = psutil.Process().children()
        with endpoint(f"vllm:{options.judge}", "--engine-args", options.vllm_args) as url:
            server = [one for one in psutil.Process().children() if one not in engine]
            num, ask = requests_of(url)

            def engine_alone(turn: int) -> None:
                with stopped(server):
                    offline(vllm, pairs)

            def endpoint_alone(turn: int) -> None:
                with stopped(engine):
                    ask(turn)

            turns({"vllm": (num, engine_alone), "endpoint over vllm": (num, endpoint_alone)})
    instant = GenerativeJudge(ScriptedSampler(lambda p, n: "<answer>1</answer>"), hf.template)
    with served(create_app(instant, ServerOptions(queue=QueueOptions(cache_size=0)))) as url:
        alone = asyncio.run(over_http(url, pairs, 1, 0))
    medians = {name: statistics.median(values) for name, values in rates.items()}
    result: dict[str, Any] = {
        "command": shlex.join(["python", *sys.argv]),
        "commit": commit(),
        "pairs": len(pairs),
        "votes": VOTES,
    }
    result |= {"pairs_per_second": rates, "medians": medians, "hf_over_script": medians["hf"] / medians["script"]}
    for name in ("hf", "vllm"):
        if name in medians:  # turn by turn: the machine's speed changes between turns
            ratios = [a / b for a, b in zip(rates[f"endpoint over {name}"], rates[name], strict=True)]
            result[f"endpoint_over_{name}"] = {"median": statistics.median(ratios), "turns": ratios}
    latencies = sorted(1000 * one for one in alone)
    result["http_latency_ms"] = {"median": statistics.median(latencies), "p95": latencies[int(0.95 * len(latencies))]}
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({name: value for name, value in result.items() if name != "pairs_per_second"}, indent=1))


if __name__ == "__main__":
    main()
