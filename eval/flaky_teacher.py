"""A teacher's API as they are on a bad day, to measure clients by: ``python eval/flaky_teacher.py PORT``.

Answers a chat after 50 ms; 2 % are refused (429), 1 % broken (500), 1 % hang, 2 % are no JSON. What is answered is counted:
``GET /count`` tells requests, answers, billed tokens, and chats that were answered more than once. A chat is known by its
question.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import sys
import time
from collections import Counter

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

DELAY_S = 0.05
REASONING = "The picture was looked at with care, one response after the other, and compared with what each of them says. " * 3


def build_app(seed: int = 0) -> Starlette:
    dice, counts, answered = random.Random(seed), Counter[str](), Counter[str]()

    async def chat(request: Request) -> Response:
        try:
            body = await request.body()
        except ClientDisconnect:
            return Response(status_code=499)
        counts["requests"] += 1
        start_time, roll = time.perf_counter(), dice.random()
        if roll < 0.02:
            counts["429"] += 1
            return Response(b'{"error": {"message": "slow down"}}', 429, {"Retry-After": "0.2"}, "application/json")
        if roll < 0.03:
            counts["500"] += 1
            return Response(b'{"error": {"message": "broken"}}', 500, media_type="application/json")
        if roll < 0.04:
            counts["hung"] += 1
            await asyncio.sleep(3600)
        if roll < 0.06:
            counts["garbage"] += 1
            return Response(b"<html>gateway", media_type="application/json")
        fields = json.loads(body)
        prompt = "".join(part["text"] for part in fields["messages"][0]["content"] if part["type"] == "text")
        name, first = (
            re.search(r"QUESTION (\S+)", prompt),
            prompt.find("Response 1") < prompt.find("TRUE") < prompt.find("Response 2"),
        )
        assert name is not None
        coin = random.Random(f"{name[1]} {fields['seed']}")
        choice = 1 if first == (coin.random() < 0.85) else 2
        text = f"<think>{REASONING}</think><answer>{choice}</answer>"
        usage = {"prompt_tokens": len(prompt) // 4 + 16, "completion_tokens": len(text) // 4}
        usage["total_tokens"] = sum(usage.values())
        message = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
        answer = {"id": "x", "object": "chat.completion", "created": 0, "model": "flaky", "choices": [message], "usage": usage}
        await asyncio.sleep(max(0.0, DELAY_S - (time.perf_counter() - start_time)))
        counts["answers"] += 1
        counts.update({key: usage[key] for key in ("prompt_tokens", "completion_tokens")})
        answered[f"{name[1]} {fields['seed']}"] += 1
        return Response(json.dumps(answer).encode(), media_type="application/json")

    async def count(request: Request) -> Response:
        twice = sum(number - 1 for number in answered.values())
        return Response(json.dumps({**counts, "answered_again": twice}).encode(), media_type="application/json")

    async def reset(request: Request) -> Response:
        counts.clear()
        answered.clear()
        return Response(b"{}")

    return Starlette(
        routes=[
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/count", count),
            Route("/reset", reset, methods=["POST"]),
        ]
    )


if __name__ == "__main__":
    uvicorn.run(build_app(), port=int(sys.argv[1]), log_level="error", loop="uvloop", backlog=4096)
