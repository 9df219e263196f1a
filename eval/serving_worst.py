"""What do the most expensive requests of each route cost the endpoint? ``python -m eval.serving_worst``

Every route that takes a body, in the order of the application's own list, gets bodies at the limits of a server: those that its
schema refuses, and the largest that it accepts. The judge answers at once, so that the CPU seconds are the endpoint's: of the
thread that serves all clients, of its longest turn, in which it answers nobody else, and of the whole process. The memory is
the most that the process had while it served, above what it had before and the bytes of the body, which count as held until
the answer.

Writes ``eval/results/serving_worst.md``; with ``--json`` prints a line for each body instead.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import io
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI
from fastapi.routing import APIRoute
from PIL import Image

from rewardlab.data.urls import MAX_IMAGE_BYTES
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.models.checkpoints import commit
from rewardlab.prompts import load_template
from rewardlab.samplers.scripted import ScriptedSampler
from rewardlab.serving.app import create_app
from rewardlab.serving.limits import Limits
from rewardlab.serving.peers import JOIN_PATH, Peers
from rewardlab.serving.schemas import MAX_CHARS, MAX_VOTES
from rewardlab.serving.service import GroupRules, ServerOptions

MAX_REFUSAL_SECONDS, MAX_MB = 0.2, 50.0  # the seconds on a machine that counts to five million in 0.1 s
LIMITS = Limits(group_timeout=0.02)
VALUES, ENTRIES = LIMITS.json_values - 2_000, LIMITS.items
HERE, THERE = "http://localhost:1", "http://localhost:2"
LONG, SHORT = "word " * (MAX_CHARS // 5), 1_000  # characters of a response that is compared with 127 others
GROUPS, GROUP = ENTRIES // LIMITS.responses, LIMITS.responses


def refused_bodies(schema: dict[str, Any], schemas: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield (name, body) for a route that reads ``schema``: as many values as a body may have, where each costs most."""
    if schema.get("type") == "array":
        yield "batch of unknown keys", [{f"k{n}": 0 for n in range(VALUES // ENTRIES - 2)}] * ENTRIES
        yield "batch of numbers", [0] * ENTRIES
        yield "batch of answers of numbers", [{"question": "q", "responses": [[0] * (VALUES // 2)] * 2}]
        return
    variants = [schemas[one["$ref"].rpartition("/")[2]] for one in schema.get("anyOf", [schema]) if "$ref" in one]
    fields = {name: field for variant in variants for name, field in variant.get("properties", {}).items()}
    lists = [name for name, field in fields.items() if '"array"' in json.dumps(field)] or ["more"]
    each = VALUES // len(lists)
    wrong_texts = {name: 0 for name in fields if name not in lists}
    yield "unknown keys", {f"k{n}": 0 for n in range(VALUES)}
    yield "unknown keys within the bound", {f"k{n}": 0 for n in range(ENTRIES - 1)}
    yield "numbers", wrong_texts | {name: [0] * each for name in lists}
    yield "lists of numbers", wrong_texts | {name: [[0] * (each // 2)] * 2 for name in lists}
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
    yield "texts with an emoji", wrong_texts | {name: ["😀" + "a" * 380_000] * (80 // len(lists)) for name in lists}


def texts(number: int, characters: int = MAX_CHARS) -> list[str]:
    """Return texts that differ, of as many characters as fit into one body."""
    return [f"{n} {LONG}"[: min(characters, 28_000_000 // number)] for n in range(number)]


def sequences() -> list[str]:
    """Return as many samples as a request may have, in groups of the most responses to one question."""
    heads = [f"<|im_start|>user\nWhich {n}?<|im_end|>\n<|im_start|>assistant\n" for n in range(GROUPS)]
    return [f"{heads[n // GROUP]}{text}<|im_end|>" for n, text in enumerate(texts(GROUPS * GROUP, SHORT))]


def _output(text: str) -> dict[str, Any]:
    return {"output": [{"type": "message", "content": [{"type": "output_text", "text": text}]}]}


def _pair() -> dict[str, Any]:
    return {"question": LONG, "responses": [LONG, f"b{LONG}"[:MAX_CHARS]], "votes": MAX_VOTES}


def _inputs() -> dict[str, Any]:
    return {"input": sequences()}


def _documents() -> dict[str, Any]:
    return {"query": LONG, "documents": texts(ENTRIES)}


def _rewards(votes: int) -> dict[str, Any]:
    return {"question": "Which?", "responses": texts(GROUP, SHORT), "votes": votes}


def _png() -> bytes:
    file = io.BytesIO()
    Image.new("RGBA", (7000, 7000)).save(file, "PNG")
    return file.getvalue()


ACCEPTED: dict[str, Callable[[], Any]] = {
    "/v1/uploads": _png,
    JOIN_PATH: lambda: {
        "question": LONG,
        "response": LONG,
        "images": [],
        "anchor": LONG,
        "scope": "",
        "home": HERE,
        "servers": [HERE, THERE],
        "judge": "",
        "response_images": [],
    },
    "/v1/judge": _pair,
    "/v1/judge/live": _pair,
    "/v1/rewards": lambda: _rewards(16),
    "/v1/judge/batch": lambda: [
        {"question": "Which?", "responses": [text, "b"], "votes": MAX_VOTES} for text in texts(ENTRIES)
    ],
    "/v1/rewards/batch": lambda: [_rewards(1)] * GROUPS,
    "/get_reward": lambda: {"query": sequences()},
    "/get_reward_mllm": lambda: {"query": sequences()},
    "/slime": lambda: {"prompt": LONG, "response": LONG, "label": {"anchor": LONG, "more": [0] * VALUES}},
    "/seed_session": lambda: {str(n): [0] * (VALUES // ENTRIES - 1) for n in range(ENTRIES)},
    "/aggregate_metrics": lambda: {"verify_responses": [{f"k{n}": n for n in range(990)}] * (VALUES // 992)},
    "/compare": lambda: {
        "conversation_history": [{"role": "user", "content": LONG}],
        "response_objs": list(map(_output, texts(GROUP, SHORT))),
    },
    "/verify": lambda: {
        "responses_create_params": {"input": LONG},
        "response": _output(LONG) | {"ids": [0] * VALUES},
        "principle": LONG,
    },
    "/score": lambda: {"text_1": LONG, "text_2": texts(ENTRIES)},
    "/rerank": _documents,
    "/infinity/rerank": _documents,
    "/sglang/v1/rerank": _documents,
    "/classify": _inputs,
    "/v1/embeddings": _inputs,
    "/pooling": _inputs,
    "/v1/score/evaluation": lambda: {"messages": sequences()},
    "/v1/chat/completions": lambda: {
        "messages": [{"role": "user", "content": text} for text in texts(256)],
        "n": LIMITS.completions,
    },
    "/v1/responses": lambda: {"input": [{"role": "user", "content": text} for text in texts(255)]},
}  # the largest body that each route takes; a route without one fails


def application() -> FastAPI:
    """Return a server of a judge that answers at once, with every route."""
    judge = GenerativeJudge(ScriptedSampler(lambda prompt, draw: "<answer>1</answer>"), load_template("plain"), max_tokens=64)
    peers = Peers(HERE, [THERE], wait_s=1.0)
    return create_app(judge, ServerOptions(rules=GroupRules(group_size=2), limits=LIMITS, peers=peers))


def routes_with_bodies(app: FastAPI) -> dict[str, APIRoute]:
    """Return each function that reads a body, by the one of its paths that :data:`ACCEPTED` has. Raise KeyError if none is
    there."""
    by_function: dict[Any, list[APIRoute]] = {}
    for route in app.routes:
        if isinstance(route, APIRoute) and not route.methods <= {"GET", "HEAD"}:
            by_function.setdefault(route.endpoint, []).append(route)
    routes = {}
    for same in by_function.values():
        known = [route for route in same if route.path in ACCEPTED and "POST" in route.methods]
        if not known:
            raise KeyError(f"ACCEPTED has no body for {sorted(route.path for route in same)}")
        routes[known[0].path] = known[0]
    return routes


def bodies(app: FastAPI, *, refusals_only: bool) -> Iterator[tuple[str, str, Any]]:
    """Yield (path, name, body) of every route: those that it refuses, then the largest that it takes."""
    for route in app.routes:
        if isinstance(route, APIRoute):
            route.include_in_schema = True
    api = app.openapi()
    for path, route in routes_with_bodies(app).items():
        if route.body_field:
            schema = api["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
            for name, body in refused_bodies(schema, api["components"]["schemas"]):
                yield path, name, body
        else:
            yield path, "a byte too many", b"\0" * (MAX_IMAGE_BYTES + 1)
        if refusals_only:
            continue
        largest = ACCEPTED[path]()
        if path == JOIN_PATH:
            largest["judge"] = app.state.service.queue.versions.newest.hash
        yield path, "the largest", largest


@dataclass(frozen=True)
class Cost:
    """What one request cost: seconds of the thread that serves all, of its longest turn and of the process; ``mb`` above the
    body's own bytes."""

    path: str
    body: str
    bytes: int
    status: int
    seconds: float
    turn_seconds: float
    process_seconds: float
    mb: float


def _status_mb(name: str) -> float:
    [kilobytes] = re.findall(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text())
    return int(kilobytes) / 1000


def _reset_peak() -> None:
    """Return free memory to the system, and let the peak of this process begin anew."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


def counting_seconds() -> float:
    """Return how long this machine takes to count to five million."""
    begun = time.thread_time()
    sum(1 for _ in range(5_000_000))
    return time.thread_time() - begun


class Turns:
    """The ``longest`` turn of the event loop, one callback or a step of a task, in CPU seconds of its thread."""

    def __init__(self) -> None:
        self.longest, run = 0.0, asyncio.Handle._run  # type: ignore[attr-defined]

        def timed(handle: asyncio.Handle) -> None:
            begun = time.thread_time()
            run(handle)
            self.longest = max(self.longest, time.thread_time() - begun)

        asyncio.Handle._run = timed  # type: ignore[attr-defined]


TURNS = Turns()


async def cost_of(client: httpx.AsyncClient, path: str, name: str, body: Any) -> Cost:
    """Send a body. A refusal is sent up to five times, and its least seconds count: others of the machine are no cost of it."""
    is_json = not isinstance(body, bytes)
    data = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode() if is_json else body
    body, seconds, process_seconds, mb = None, float("inf"), float("inf"), 0.0
    for _ in range(5):
        _reset_peak()
        await asyncio.sleep(0)  # what was done before is another turn
        TURNS.longest = 0.0
        before, begun, begun_process = _status_mb("VmRSS"), time.thread_time(), time.process_time()
        kind = "application/json" if is_json else "image/png"
        answer = await client.post(f"http://localhost{path}", content=data, headers={"Content-Type": kind})
        seconds = min(seconds, time.thread_time() - begun)
        turn = TURNS.longest
        process_seconds = min(process_seconds, time.process_time() - begun_process)
        mb = max(mb, _status_mb("VmHWM") - before - len(data) / 1e6)
        if answer.status_code < 400 or seconds < MAX_REFUSAL_SECONDS / 2:
            break
    spent = (round(number, 4) for number in (seconds, turn, process_seconds))
    return Cost(path, name, len(data), answer.status_code, *spent, round(mb, 1))


async def costs(paths: Sequence[str], *, refusals_only: bool, report: Callable[[Cost], None]) -> list[Cost]:
    """Return what each body costs, of all routes or some."""
    app, found = application(), []
    gc.set_threshold(*gc.get_threshold()[:2], 1_000_000)  # as a server does
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=httpx.ASGITransport(app), timeout=None) as client:
        for path, name, body in bodies(app, refusals_only=refusals_only):
            if not paths or path in paths:
                found.append(await cost_of(client, path, name, body))
                report(found[-1])
    return found


TITLE = """# What the most expensive requests cost the endpoint

`python -m eval.serving_worst`, commit {commit}; counting to five million takes {machine:.2f} s on this machine.

Each route gets the bodies at a server's limits that its schema refuses, and the largest that it accepts. A refusal may take
0.2 CPU seconds. Memory is the peak above the body's own bytes. The judge answers at once: the CPU seconds of accepted bodies
are the endpoint's, and those of building prompts. Groups have the most responses to one question, of 1,000 characters each.
"""


def table(found: Sequence[Cost]) -> str:
    """Return a row for each route: the refusals that cost most, and the largest body that it takes."""
    rows = [
        "| route | most costly refusal | bytes | CPU s | most memory of a refusal | bytes | MB | largest accepted: bytes | "
        "status | CPU s, serving thread | longest turn, s | CPU s, process | MB |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for path in dict.fromkeys(cost.path for cost in found):
        refusals = [cost for cost in found if cost.path == path and cost.status >= 400 and cost.body != "the largest"]
        [largest] = [cost for cost in found if cost.path == path and cost.body == "the largest"]
        slow, big = max(refusals, key=lambda cost: cost.seconds), max(refusals, key=lambda cost: cost.mb)
        cells = [f"`{path}`", slow.body, f"{slow.bytes:,}", f"{slow.seconds:.2f}", big.body, f"{big.bytes:,}", f"{big.mb:.0f}"]
        cells += [f"{largest.bytes:,}", str(largest.status), f"{largest.seconds:.2f}", f"{largest.turn_seconds:.3f}"]
        rows.append(f"| {' | '.join([*cells, f'{largest.process_seconds:.2f}', f'{largest.mb:.0f}'])} |")
    return "\n".join(rows)


def _print(cost: Cost) -> None:
    print(json.dumps(asdict(cost)), flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print a line for each body and write nothing")
    parser.add_argument("--path", action="append", default=[], help="a route; default: all")
    parser.add_argument("--refusals", action="store_true", help="leave out the largest bodies that routes accept")
    options = parser.parse_args(arguments)
    machine = min(counting_seconds() for _ in range(3))
    if options.json:
        print(json.dumps({"counting_seconds": machine}), flush=True)
    found = asyncio.run(costs(options.path, refusals_only=options.refusals, report=_print))
    if not options.json:
        title = TITLE.format(commit=commit()[:12], machine=machine)
        Path("eval/results/serving_worst.md").write_text(f"{title}\n{table(found)}\n")


if __name__ == "__main__":
    main()
