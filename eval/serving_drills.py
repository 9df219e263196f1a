"""What does an endpoint answer while clients misbehave and engines die, hang or answer garbage?

``python -m eval.serving_drills`` after a quickstart. The judge is greedy, so that every answer can be compared with its offline
answer. Writes ``eval/results/serving_drills.json``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shlex
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import psutil
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from eval.endpoints import GREEDY, body_of, endpoint, rss_mb, served
from rewardlab.data.pairs import read_pairs
from rewardlab.judging.engines import open_generative_judge
from rewardlab.models.checkpoints import commit
from rewardlab.types import BOTH_ORDERS, PreferencePair

MAX_BYTES = 1_000_000
Answer = tuple[float | None, list[str]]


def offline(judge: str, pairs: Sequence[PreferencePair]) -> list[Answer]:
    """Return the right answer to each pair: the fraction of votes for response 0 (None: an order has no verdict), and texts."""
    opened = open_generative_judge(judge, template="plain", temperature=0, max_tokens=64, batch_size=256)
    judgments = opened.compare_many(pairs, orders=[BOTH_ORDERS] * len(pairs), num_votes=1, seed=0)
    return [
        (one.share_0 if all(vote.winner is not None for vote in one.votes) else None, [v.completion.text for v in one.votes])
        for one in judgments
    ]


def malformed(body: dict[str, Any], rng: random.Random) -> bytes:
    """Return a malformed request body, of one kind at random."""
    whole = json.dumps(body)
    return rng.choice(
        [
            lambda: whole[: len(whole) // 2].encode(),
            lambda: b"\xff\xfe" + whole.encode(),
            lambda: json.dumps({**body, "responses": ["one alone"]}).encode(),
            lambda: json.dumps({**body, "images": ["data:image/png;base64,AAAA"]}).encode(),
            lambda: json.dumps({**body, "images": ["file:///etc/passwd"]}).encode(),
            lambda: json.dumps({**body, "votes": "many"}).encode(),
            lambda: json.dumps([body]).encode(),
        ]
    )()


def oversized(body: dict[str, Any], rng: random.Random) -> bytes:
    """Return a body above the key's limit, or with a text above the limit of texts."""
    longer = MAX_BYTES if rng.random() < 0.5 else 150_000
    return json.dumps({**body, "responses": ["x" * longer, "y"]}).encode()


async def crowd(
    url: str, key: str, pairs: Sequence[PreferencePair], right: Sequence[Answer], num: int, seed: int
) -> Counter[str]:
    """Send ``num`` requests, 256 at a time: 5 % malformed, 5 % oversized, 5 % abandoned; return the outcomes by kind."""
    rng, seen = random.Random(seed), Counter[str]()
    kinds = [(rng.choices(["good", "malformed", "oversized", "cancelled"], [85, 5, 5, 5])[0], n) for n in range(num)]
    slots = asyncio.Semaphore(256)
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    async with aiohttp.ClientSession(url, headers=headers, connector=aiohttp.TCPConnector(limit=256)) as client:

        async def ask(kind: str, n: int) -> None:
            body = body_of(pairs[n % len(pairs)], seed * num + n)
            data = {"malformed": malformed, "oversized": oversized}.get(kind, lambda b, r: json.dumps(b).encode())(body, rng)
            async with slots:
                try:
                    patience = rng.uniform(0, 0.2) if kind == "cancelled" else 600
                    async with asyncio.timeout(patience), client.post("/v1/judge", data=data) as response:
                        body = await response.json()
                except TimeoutError:
                    seen[f"{kind}: hung up"] += 1
                    return
                except aiohttp.ClientError as error:
                    seen[f"{kind}: {type(error).__name__}"] += 1
                    return
            if response.status != 200:
                seen[f"{kind}: {response.status}"] += 1
                assert "p_first_better" not in body
                return
            share, texts = right[n % len(pairs)]
            same = body["p_first_better"] == share
            words = [vote["text"] for vote in body["votes"]] == texts
            seen[f"{kind}: 200, {'right' if same else 'WRONG'}{'' if words else ', in other words'}"] += 1

        await asyncio.gather(*(ask(kind, n) for kind, n in kinds))
    return seen


def drill_crowd(judge: str, pairs: Sequence[PreferencePair], right: Sequence[Answer], num: int) -> dict[str, Any]:
    with tempfile.NamedTemporaryFile("w", suffix=".keys") as keys:
        keys.write(f"a-key max_bytes={MAX_BYTES}\n")
        keys.flush()
        with endpoint(judge, *GREEDY, "--keys", keys.name) as (url, process):
            asyncio.run(crowd(url, "a-key", pairs, right, num, seed=1))  # warm-up: caches fill, allocators settle
            before = rss_mb(process)
            start_time = time.perf_counter()
            seen = asyncio.run(crowd(url, "a-key", pairs, right, num, seed=2))
            seconds, after = time.perf_counter() - start_time, rss_mb(process)
    growth = {name: after[name] / before[name] - 1 for name in after}
    return {"requests": num, "seconds": seconds, "seen": dict(seen), "rss_mb": [before, after], "rss_growth": growth}


async def load(
    url: str,
    pairs: Sequence[PreferencePair],
    right: Sequence[Answer],
    acts: Sequence[tuple[float, Callable[[], Any]]],
    seconds: float,
) -> dict[str, Any]:
    """Run sixteen clients without pause while ``acts`` happen at their seconds; return all answers, and those of /ready."""
    start_time, done = time.perf_counter(), False
    answers: list[tuple[float, str]] = []
    ready: list[tuple[float, bool]] = []
    async with aiohttp.ClientSession(url) as client:

        async def ask(n: int) -> None:
            while not done:
                at = n % len(pairs)
                try:
                    async with client.post("/v1/judge", json=body_of(pairs[at], n)) as response:
                        body = await response.json()
                    same = response.status == 200 and body["p_first_better"] == right[at][0]  # both may say that there is none
                    if same or (response.status == 200 and body["p_first_better"] is not None):
                        what = "right" if same else "WRONG"
                    elif response.status == 200:
                        what = "no verdict: " + ", ".join(sorted({vote["status"] for vote in body["votes"]}))
                    else:
                        what = f"{response.status} {body['status']}"
                except aiohttp.ClientError as error:
                    what = type(error).__name__
                answers.append((time.perf_counter() - start_time, what))
                n += 16
                await asyncio.sleep(0 if what == "right" else 0.2)

        async def watch() -> None:
            while not done:
                async with client.get("/ready") as response:
                    ready.append((time.perf_counter() - start_time, response.status == 200))
                await asyncio.sleep(0.25)

        tasks = [asyncio.create_task(ask(n)) for n in range(16)] + [asyncio.create_task(watch())]
        for at, act in acts:
            await asyncio.sleep(max(0, at - (time.perf_counter() - start_time)))
            act()
        await asyncio.sleep(max(0, seconds - (time.perf_counter() - start_time)))
        done = True
        await asyncio.gather(*tasks)
    hit = acts[0][0]
    failed = [at for at, what in answers if what != "right" and at > hit]
    again = [at for at, what in answers if what == "right" and failed and at > failed[-1]]
    down = [at for at, good in ready if not good]
    return {
        "answers": dict(Counter(what for _, what in answers)),
        "first_failure_s": failed[0] - hit if failed else None,
        "last_failure_s": failed[-1] - hit if failed else None,
        "right_answers_after": len(again),
        "right_again_s": again[0] - hit if again else None,
        "unready_s": [down[0] - hit, down[-1] - hit] if down else None,
        "ready_at_the_end": ready[-1][1],
    }


def engine_of(process: psutil.Process) -> psutil.Process:
    """Return the child with the model: the largest."""
    return max(process.children(recursive=True), key=lambda child: child.memory_info().rss)


def drill_engine(
    judge: str, pairs: Sequence[PreferencePair], right: Sequence[Answer], sign: signal.Signals, seconds: float, *options: str
) -> dict[str, Any]:
    hit: list[float] = []
    with endpoint(judge, *GREEDY, *options) as (url, process):

        def act() -> None:
            os.kill(engine_of(process).pid, sign)
            with psutil.Popen(["sleep", "1"]) as now:  # by the clock of processes, which may not be the wall's
                hit.append(now.create_time())
                now.kill()

        result = asyncio.run(load(url, pairs, right, [(4.0, act)], seconds))
        return result | {"new_engine_s": engine_of(process).create_time() - hit[0]}  # until its start-up begins


def drill_garbage(pairs: Sequence[PreferencePair], kind: str) -> dict[str, Any]:
    """Drill an OpenAI-compatible model that always answers 1, and for five seconds something else or nothing."""
    state = {"good": True}

    async def chat(request: Request) -> Response:
        if not state["good"] and kind == "hangs":
            await asyncio.sleep(60)
        if not state["good"] and kind == "garbled":
            return Response(b"<html>502</html>", media_type="application/json")
        text = (
            "lorem <answer>3</answer> ipsum" if not state["good"] and kind == "babble" else "<think>x</think><answer>1</answer>"
        )
        choices = [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}]
        return JSONResponse({"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": choices})

    async def models(request: Request) -> Response:
        return JSONResponse({"object": "list", "data": []})

    app = Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"]), Route("/v1/models", models)])
    greedy = [setting for setting in GREEDY if not setting.startswith("batch_size")]  # the engine batches by itself
    with served(app) as url, endpoint(f"openai:m@{url}/v1", *greedy, "--limit", "engine_timeout=3") as (address, _):
        acts = [(3.0, lambda: state.update(good=False)), (8.0, lambda: state.update(good=True))]
        return asyncio.run(load(address, pairs, [(0.5, [])] * len(pairs), acts, 18.0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--judge", default="runs/quickstart/rl/final")
    parser.add_argument("--data", type=Path, default=Path("runs/quickstart/demo/test.parquet"))
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--vllm-args", help="drill `vllm serve` too; its program is REWARDLAB_VLLM or on the path")
    parser.add_argument("--only", help="one drill, by its name in the results, which it replaces there")
    parser.add_argument("--out", type=Path, default=Path("eval/results/serving_drills.json"))
    options = parser.parse_args()
    pairs = read_pairs(options.data)[:1000]
    hf, vllm = f"hf:{options.judge}", f"vllm:{options.judge}"
    right = offline(hf, pairs)
    args = (f"engine_args={options.vllm_args or ''}",)
    drills: dict[str, Callable[[], dict[str, Any]]] = {
        **{f"openai engine {kind}": partial(drill_garbage, pairs[:64], kind) for kind in ("garbled", "babble", "hangs")},
        "hf engine killed": lambda: drill_engine(hf, pairs, right, signal.SIGKILL, 40.0),
        "hf engine hung": lambda: drill_engine(hf, pairs, right, signal.SIGSTOP, 60.0, "--limit", "engine_timeout=10"),
        "vllm engine killed": lambda: drill_engine(vllm, pairs, right, signal.SIGKILL, 90.0, *args),
        "vllm engine hung": lambda: drill_engine(
            vllm, pairs, right, signal.SIGSTOP, 150.0, "--limit", "engine_timeout=20", *args
        ),
        "crowd": lambda: drill_crowd(hf, pairs, right, options.requests),
    }
    result = json.loads(options.out.read_text()) if options.only and options.out.exists() else {}
    for name, drill in drills.items():
        if (options.only and name != options.only) or (name.startswith("vllm") and options.vllm_args is None):
            continue
        result[name] = {"command": shlex.join(["python", *sys.argv]), "commit": commit(), **drill()}
        print(name, json.dumps(result[name]), flush=True)
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
