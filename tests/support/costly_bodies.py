"""The most expensive bodies that each route refuses, sent to an application within this process.

Prints how fast the machine is, then what each body costs: seconds of the thread that serves all, and memory."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from rewardlab.judging.judge import GenerativeJudge
from rewardlab.prompts import load_template
from rewardlab.samplers.scripted import ScriptedSampler
from rewardlab.serving.app import create_app
from rewardlab.serving.limits import Limits
from rewardlab.serving.peers import Peers
from rewardlab.serving.service import GroupRules, ServerOptions

VALUES = Limits().json_values - 2_000
ENTRIES = Limits().items


def bodies(schema: dict[str, Any], schemas: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield (name, body) for a route that reads ``schema``: as many values as a body may have, where each costs most."""
    if schema.get("type") == "array":
        yield "batch of unknown keys", [{f"k{n}": 0 for n in range(VALUES // ENTRIES - 2)}] * ENTRIES
        yield "batch of numbers", [0] * ENTRIES
        return
    variants = [schemas[one["$ref"].rpartition("/")[2]] for one in schema.get("anyOf", [schema]) if "$ref" in one]
    fields = {name: field for variant in variants for name, field in variant.get("properties", {}).items()}
    lists = [name for name, field in fields.items() if '"array"' in json.dumps(field)] or ["more"]
    each = VALUES // len(lists)
    wrong_texts = {name: 0 for name in fields if name not in lists}
    yield "unknown keys", {f"k{n}": 0 for n in range(VALUES)}
    yield "unknown keys within the bound", {f"k{n}": 0 for n in range(ENTRIES - 1)}
    yield "numbers", wrong_texts | {name: [0] * each for name in lists}
    yield "as many numbers as entries", wrong_texts | {name: [0] * ENTRIES for name in lists}
    yield "objects", wrong_texts | {name: [{}] * (each // 2) for name in lists}
    yield "as many lists as entries", wrong_texts | {name: [[0]] * ENTRIES for name in lists}
    deep = json.loads("[" * 60 + "]" * 60)
    yield "lists within lists", wrong_texts | {name: [deep] * min(ENTRIES, each // 61) for name in lists}
    keys = {f"k{n}": 0 for n in range(each // ENTRIES - 2)}
    yield "objects of many keys", wrong_texts | {name: [keys] * ENTRIES for name in lists}
    part = {"type": "text", "text": "a"}
    chat = [{"role": "user", "content": [part] * (each // 3 // 200)}] * 200
    yield "parts", wrong_texts | {name: [*chat, {"role": "assistant", "content": [0]}] for name in lists}
    texts = ["é\n" * 190_000] * (40 // len(lists))
    yield "texts", wrong_texts | {name: [*texts, 0] for name in lists}


def peak_mb() -> float:
    """The most memory that this process has had, in MB."""
    [kilobytes] = re.findall(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    return int(kilobytes) / 1000


def counting_seconds() -> float:
    """Return how long this machine takes to count to five million."""
    begun = time.thread_time()
    sum(1 for _ in range(5_000_000))
    return time.thread_time() - begun


async def main() -> None:
    print(json.dumps({"counting_seconds": min(counting_seconds() for _ in range(3))}))
    app = create_app(
        GenerativeJudge(ScriptedSampler(lambda prompt, draw: "<answer>1</answer>"), load_template("plain"), max_tokens=64),
        ServerOptions(
            rules=GroupRules(group_size=2),
            limits=Limits(group_timeout=0.02),
            peers=Peers("http://localhost:1", ["http://localhost:2"], wait_s=1.0),
        ),
    )
    for route in app.routes:
        route.include_in_schema = True  # type: ignore[attr-defined]
    api = app.openapi()
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=httpx.ASGITransport(app)) as client:
        seen = set()
        for path, methods in api["paths"].items():
            content = methods.get("post", {}).get("requestBody", {}).get("content", {})
            if not content or (what := json.dumps([methods["post"]["summary"], content])) in seen:
                continue  # another path of the same function
            seen.add(what)
            for name, body in bodies(content["application/json"]["schema"], api["components"]["schemas"]):
                data = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
                before, seconds = peak_mb(), float("inf")
                for _ in range(5):  # the least: what else the machine does is no cost of the body
                    begun = time.thread_time()
                    answer = await client.post(f"http://x{path}", content=data, headers={"Content-Type": "application/json"})
                    seconds = min(seconds, time.thread_time() - begun)
                    if seconds < 0.2:
                        break
                cost = {"path": path, "body": name, "bytes": len(data), "status": answer.status_code, "seconds": seconds}
                print(json.dumps(cost | {"mb": peak_mb() - before, "error": answer.text[:200]}), flush=True)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
