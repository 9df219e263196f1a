"""Many requests with changed bytes, and poisonous requests beside clean ones."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from typing import Any

import httpx

from eval.attacks.server import CHATML, JSON, PAIR, USER

JUNK = (b"\xed\xa0\x80", b"\\ud800", b"\\uDFFF", b"\x00", b"[" * 70, b"{" * 9, b"1e999", b"NaN", b"\xff\xfe", b'"', b"9" * 400,
        b"null", b"true", b"-", b"\xc0\xaf", b"\\u", b"\xf4\x90\x80\x80", b" " * 50)  # fmt: skip
UNJUDGED = "503 unjudged"
SEEDS = {
    "/v1/judge": PAIR,
    "/v1/rewards": {**PAIR, "votes": 1},
    "/v1/judge/batch": [PAIR],
    "/rerank": {"query": "q", "documents": ["a", "b"]},
    "/score": {"text_1": "q", "text_2": ["a", "b"]},
    "/v1/chat/completions": {"messages": [USER], "max_tokens": 2},
    "/classify": {"input": [CHATML + "a", CHATML + "b"]},
    "/v1/embeddings": {"input": CHATML + "a", "encoding_format": "float"},
    "/get_reward": {"query": [CHATML + "a"], "labels": ['{"anchor": "b"}']},
    "/slime": {"prompt": "q", "response": "a", "label": {"anchor": "b"}},
    "/verify": {"responses_create_params": {"input": "q"}, "response": {"output": []}},
    "/compare": {"conversation_history": [USER], "response_objs": [{"output": []}]},
}


def _mutant(rng: random.Random) -> tuple[str, bytes]:
    path = rng.choice(list(SEEDS))
    text = json.dumps(SEEDS[rng.choice(list(SEEDS))] if rng.random() < 0.1 else SEEDS[path])
    body = bytearray(text.encode(rng.choice(["utf-8"] * 6 + ["utf-16", "utf-16-le", "utf-32", "utf-8-sig"])))
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(len(body))
        body[place : place + rng.choice((0, 0, 1, 5, 30))] = rng.choice(JUNK)
        body = body or bytearray(b" ")
    return path, bytes(body) * rng.choice((1, 1, 1, 1, 2))


def fuzz(url: str, number: int, seed: int = 0) -> dict[str, int]:
    """Send so many bodies with changed bytes; return how often which status came."""
    rng, statuses = random.Random(seed), Counter[str]()

    async def main() -> None:
        slots = asyncio.Semaphore(32)
        async with httpx.AsyncClient(base_url=url, timeout=120, limits=httpx.Limits(max_connections=32)) as client:

            async def send(path: str, body: bytes) -> None:
                try:
                    answer = await client.post(path, content=body, headers=JSON)
                    # a verdict that could not be read is an answer: it has its status beside the code
                    unjudged = answer.status_code == 503 and '"unjudged"' in answer.text
                    statuses[UNJUDGED if unjudged else str(answer.status_code)] += 1
                except httpx.HTTPError as error:
                    statuses[type(error).__name__] += 1
                slots.release()

            async with asyncio.TaskGroup() as group:
                for _ in range(number):
                    await slots.acquire()
                    group.create_task(send(*_mutant(rng)))

    asyncio.run(main())
    return dict(statuses)


def poison(number: int) -> tuple[str, Any]:
    """Return a request that no model can read, of one kind after the other."""
    words = "a b " * 20_000
    kinds: list[tuple[str, Any]] = [
        ("/v1/judge", b'{"question":"\xed\xa0\x80","responses":["a","b"]}'),
        ("/v1/judge", {**PAIR, "question": f"{number} {words}"}),
        ("/v1/judge", {**PAIR, "question": f"{number} " + "a " * 8172}),  # its texts fit, and the template makes it too long
        ("/v1/chat/completions", {"messages": [USER], "top_p": 1e-300, "seed": number}),
    ]
    return kinds[number % len(kinds)]


def rate(url: str, seconds: float, poisons_per_s: float, name: str) -> tuple[float, dict[str, int]]:
    """Return the pairs a second of 64 clients, beside so many poisonous requests a second, and their statuses."""
    done, statuses = 0, Counter[str]()

    async def main() -> None:
        nonlocal done
        end = time.monotonic() + seconds
        async with httpx.AsyncClient(base_url=url, timeout=120, limits=httpx.Limits(max_connections=None)) as client:

            async def ask(number: int) -> None:
                nonlocal done
                turn = 0
                while time.monotonic() < end:
                    body = {**PAIR, "question": f"{name} {number} {turn}: which?", "timeout_s": 3600}
                    answer = await client.post("/v1/judge", json=body)
                    if answer.status_code != 200:
                        statuses[f"clean: {answer.status_code}"] += 1
                    elif time.monotonic() < end:
                        done += 1
                    turn += 1

            async def spoil() -> None:
                number = random.Random(name).randrange(10**6)
                while poisons_per_s and time.monotonic() < end:
                    path, body = poison(number)
                    data = body if isinstance(body, bytes) else json.dumps(body).encode()
                    statuses[str((await client.post(path, content=data, headers=JSON)).status_code)] += 1
                    number += 1
                    await asyncio.sleep(1 / poisons_per_s)

            await asyncio.gather(spoil(), *(ask(number) for number in range(64)))

    asyncio.run(main())
    return done / seconds, dict(statuses)
