"""How does an endpoint behave under more load than its engine can carry? ``python -m eval.serving_load``

Each measurement starts its own ``rewardlab serve``:

- rates: pairs a second with four votes, and CPU milliseconds a pair of server and engine, offline and over HTTP with 1, 8, 64
  and 256 concurrent requests, in turns;
- overload: requests of eight votes with a deadline at twice the measured capacity;
- fairness: a client with one request at a time, alone and beside a key with 64 concurrent requests;
- sigterm: 300 requests in flight when the server is stopped;
- memory: resident memory before and after many requests of one vote;
- front_end: CPU milliseconds of one and of two front ends whose engine, behind ``openai:``, answers at once.

The engine computes on one thread, here and offline: with two, the threads would wait for each other whenever the server or the
client needs a core. Writes ``eval/results/serving_load.json``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import shlex
import statistics
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

import aiohttp
import psutil

from eval.endpoints import GREEDY, JUDGING, PLAIN, body_of, endpoint, free_port, over_http, rss_mb, served
from eval.serving_clients import engine
from rewardlab.demo.pairs import make_pairs
from rewardlab.judging.engines import open_generative_judge
from rewardlab.judging.spec import DEMO
from rewardlab.models.checkpoints import commit
from rewardlab.types import BOTH_ORDERS, PreferencePair

VOTES, TIMEOUT_S = 8, 5.0
GROUP = 8  # responses, which are 28 pairs
RATE_VOTES, CONCURRENCIES, TURNS = 4, (1, 8, 64, 256), 4
Ask = Callable[[], Awaitable[tuple[int, float]]]


def session(url: str, key: str = "") -> aiohttp.ClientSession:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return aiohttp.ClientSession(url, headers=headers, connector=aiohttp.TCPConnector(limit=0))


def asker(client: aiohttp.ClientSession, bodies: Iterator[dict[str, Any]], **options: Any) -> Ask:
    """Return a call that sends the next body and returns (HTTP status, seconds); status 0 is a broken connection."""

    async def ask() -> tuple[int, float]:
        start = time.perf_counter()
        try:
            async with client.post("/v1/judge", json={**next(bodies), "votes": VOTES, **options}) as response:
                await response.read()
                return response.status, time.perf_counter() - start
        except aiohttp.ClientError:
            return 0, time.perf_counter() - start

    return ask


def bodies_of(pairs: Sequence[PreferencePair]) -> Iterator[dict[str, Any]]:
    """Yield requests without end, each with its own seed, so that the cache answers none."""
    ready = [body_of(pair, 0) for pair in pairs]
    return (ready[n % len(ready)] | {"seed": n} for n in itertools.count())


async def flood(ask: Ask, num: int, seconds: float) -> list[tuple[int, float]]:
    """Keep ``num`` requests in flight for ``seconds``; return their answers."""
    end, answers = time.perf_counter() + seconds, list[tuple[int, float]]()

    async def again() -> None:
        while time.perf_counter() < end:
            answers.append(await ask())

    await asyncio.gather(*(again() for _ in range(num)))
    return answers


def quantiles(seconds: Sequence[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {f"p{p}_s": ordered[min(len(ordered) - 1, int(p / 100 * len(ordered)))] for p in (50, 95, 99)}


def rates(url: str, process: psutil.Process, judge: str, pairs: Sequence[PreferencePair], turns: int) -> dict[str, Any]:
    """Return pairs per second by turn, without the first, and CPU milliseconds a pair. Ratios are within a turn, since the
    machine's speed changes. With up to eight requests at once a part of the pairs is judged."""
    here = open_generative_judge(judge, template="plain", max_tokens=64, batch_size=256)
    me = psutil.Process()
    [engine] = [child for child in process.children(recursive=True) if "resource_tracker" not in " ".join(child.cmdline())]
    measured, cpu_ms = dict[str, list[float]](), dict[str, dict[str, list[float]]]()
    for turn in range(turns + 1):
        for number in (0, *CONCURRENCIES):
            some = pairs[: {1: 32, 8: 256}.get(number, len(pairs))]
            name = f"HTTP, {number} at once" if number else "offline"
            processes = {"server": process, "engine": engine} if number else {"engine": me}
            before, start = {who: cpu_s(one) for who, one in processes.items()}, time.perf_counter()
            if number:
                work = over_http(url, some, num_votes=RATE_VOTES, concurrency=number, seed=1000 * turn + number)
                seconds = asyncio.run(work)
            else:
                here.compare_many(pairs, orders=[BOTH_ORDERS] * len(pairs), num_votes=RATE_VOTES, seed=0)
                seconds = time.perf_counter() - start
            if turn:
                measured.setdefault(name, []).append(len(some) / seconds)
                for who, one in processes.items():
                    spent = 1000 * (cpu_s(one) - before[who]) / len(some)
                    cpu_ms.setdefault(name, {}).setdefault(who, []).append(round(spent, 2))
    offline = measured["offline"]
    ratios = {name: statistics.median(a / b for a, b in zip(values, offline, strict=True)) for name, values in measured.items()}
    return {"pairs": len(pairs), "pairs_per_second": measured, "of_offline": ratios, "cpu_ms_per_pair": cpu_ms}


def cpu_s(process: psutil.Process) -> float:
    return float(sum(process.cpu_times()[:2]))


async def overload(url: str, pairs: Sequence[PreferencePair], seconds: float) -> dict[str, Any]:
    bodies = bodies_of(pairs)
    async with session(url) as client:
        await flood(asker(client, bodies), 128, seconds / 4)
        start = time.perf_counter()
        measured = await flood(asker(client, bodies), 128, seconds / 2)
        capacity = len(measured) / (time.perf_counter() - start)  # until the last of them is answered
        ask, tasks, start = (
            asker(client, bodies, timeout_s=TIMEOUT_S),
            list[asyncio.Task[tuple[int, float]]](),
            time.perf_counter(),
        )
        while (now := time.perf_counter() - start) < seconds:
            tasks += [asyncio.create_task(ask()) for _ in range(int(2 * capacity * now) - len(tasks))]
            await asyncio.sleep(0.01)
        answers = await asyncio.gather(*tasks)
        lasted = time.perf_counter() - start
    good = [took for status, took in answers if status == 200]
    refused = sorted(took for status, took in answers if status == 504)
    return {
        "capacity_per_s": capacity,
        "timeout_s": TIMEOUT_S,
        "statuses": dict(Counter(str(status) for status, _ in answers)),
        "good_per_s": len(good) / lasted,
        "goodput": len(good) / lasted / capacity,
        "good": quantiles(good),
        "refused_median_s": statistics.median(refused) if refused else None,
    }


async def fairness(url: str, pairs: Sequence[PreferencePair], seconds: float) -> dict[str, Any]:
    bodies = bodies_of(pairs)
    async with session(url, "lone") as lone, session(url, "flood") as other:
        await flood(asker(lone, bodies), 4, seconds / 4)
        alone = await flood(asker(lone, bodies), 1, seconds / 2)
        start = time.perf_counter()
        beside, crowd = await asyncio.gather(flood(asker(lone, bodies), 1, seconds), flood(asker(other, bodies), 64, seconds))
        lasted = time.perf_counter() - start
    result = {
        "alone": quantiles([took for _, took in alone]),
        "beside": quantiles([took for _, took in beside]),
        "statuses": dict(Counter(str(status) for status, _ in beside)),
        "flood_per_s": len(crowd) / lasted,
    }
    return result | {"p50_ratio": result["beside"]["p50_s"] / result["alone"]["p50_s"]}


async def sigterm(url: str, pairs: Sequence[PreferencePair], process: Any) -> dict[str, Any]:
    async with session(url) as client:
        ask = asker(client, bodies_of(pairs))
        await ask()
        tasks = [asyncio.create_task(ask()) for _ in range(300)]
        while True:
            async with client.get("/v1/status") as response:
                if (await response.json())["counts"]["asked"] >= 301:
                    break
        start = time.perf_counter()
        process.terminate()
        answers = await asyncio.gather(*tasks)
    status = await asyncio.to_thread(process.wait)
    counted = Counter(str(code) for code, _ in answers)
    return {"statuses": dict(counted), "exit_status": status, "seconds": time.perf_counter() - start}


async def memory(url: str, pairs: Sequence[PreferencePair], process: Any, num: int) -> dict[str, Any]:
    bodies = bodies_of(pairs)
    async with session(url) as client:
        ask = asker(client, bodies, votes=1)
        left = iter(range(num + 1000))

        async def again(until: int) -> None:
            for n in left:
                await ask()
                if n >= until:
                    return

        await asyncio.gather(*(again(1000) for _ in range(64)))
        before, start = rss_mb(process), time.perf_counter()
        await asyncio.gather(*(again(num + 1000) for _ in range(64)))
    return {"requests": num, "seconds": time.perf_counter() - start, "rss_mb": [before, rss_mb(process)]}


async def cpu_ms(ask: Ask, num: int, seconds: float, processes: Sequence[psutil.Process]) -> list[float]:
    """Return the CPU milliseconds of each process for an answer, with ``num`` requests in flight."""
    before = [cpu_s(process) for process in processes]
    answers = await flood(ask, num, seconds)
    assert {status for status, _ in answers} == {200}
    after = [cpu_s(process) for process in processes]
    return [1000 * (end - start) / len(answers) for start, end in zip(before, after, strict=True)]


async def pair_ms(url: str, bodies: Iterator[dict[str, Any]], seconds: float, process: psutil.Process) -> float:
    """Return milliseconds for a pair with an image and a vote in each order."""
    async with session(url) as client:
        ask = asker(client, bodies, votes=1)
        await asyncio.gather(*(ask() for _ in range(256)))
        return (await cpu_ms(ask, 64, seconds, [process]))[0]


async def group_ms(urls: Sequence[str], seconds: float, processes: Sequence[psutil.Process]) -> list[float]:
    """Return each front end's milliseconds for a group whose responses are sent one by one, to each front end in turn."""
    numbers, names = itertools.count(), uuid.uuid4().hex
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(session(url)) for url in urls]

        async def send(group: int, n: int) -> int:
            body = {"prompt": f"Which of {names} {group}?", "response": f"It is {n}."}
            async with clients[n % len(clients)].post("/slime", json=body) as response:
                return response.status

        async def ask() -> tuple[int, float]:
            group = next(numbers)
            return max(await asyncio.gather(*(send(group, n) for n in range(GROUP)))), 0.0

        return await cpu_ms(ask, 8, seconds, processes)


def front_end(pairs: Sequence[PreferencePair], seconds: float) -> dict[str, Any]:
    """Return CPU milliseconds of ``rewardlab serve``, medians of three turns."""
    turns = list[dict[str, Any]]()
    ports = [free_port(), free_port()]
    addresses = [f"http://127.0.0.1:{port}" for port in ports]
    with served(engine()) as url, contextlib.ExitStack() as stack:
        judge = f"openai:judge@{url}/v1"
        alone, process = stack.enter_context(endpoint(judge, *PLAIN))
        peers = [
            stack.enter_context(endpoint(judge, *PLAIN, "--address", one, "--peers", ",".join(addresses), port=port))[1]
            for one, port in zip(addresses, ports, strict=True)
        ]
        bodies = {"new pair": bodies_of(pairs), "kept pair": itertools.cycle([body_of(pair, 0) for pair in pairs])}
        for _ in range(3):
            turns.append({name: asyncio.run(pair_ms(alone, each, seconds, process)) for name, each in bodies.items()})
            turns[-1]["group, one front end"] = asyncio.run(group_ms([alone], seconds, [process]))[0]
            of_each = asyncio.run(group_ms(addresses, seconds, peers))
            turns[-1] |= {f"group, front end {n + 1} of two": ms for n, ms in enumerate(of_each)}
    return {"cpu_ms": {name: statistics.median(turn[name] for turn in turns) for name in turns[0]}, "turns": turns}


def drill(judge: str, work: Callable[[str, Any], Coroutine[Any, Any, dict[str, Any]]], *arguments: str) -> dict[str, Any]:
    with contextlib.suppress(ProcessLookupError), endpoint(judge, *GREEDY, *arguments) as (url, process):
        measured = asyncio.run(work(url, process))
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--judge", default=DEMO, help="hf:CHECKPOINT, by default the bundled judge")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--runs", type=int, default=3, help="of overload and fairness, each with a server of its own")
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--only", choices=("rates", "front_end", "overload", "fairness", "sigterm", "memory"))
    parser.add_argument("--out", type=Path, default=Path("eval/results/serving_load.json"))
    options = parser.parse_args()

    def served_rates() -> dict[str, Any]:
        with endpoint(judge, *JUDGING) as (url, process):
            return rates(url, process, judge, make_pairs(1024, seed=11, held_out=True)[0], TURNS)

    def runs(work: Callable[[str, Any], Coroutine[Any, Any, dict[str, Any]]], *arguments: str) -> dict[str, Any]:
        return {"runs": [drill(judge, work, *arguments) for _ in range(options.runs)]}

    pairs, judge = make_pairs(256, seed=11, held_out=True)[0], options.judge
    result = json.loads(options.out.read_text()) if options.only and options.out.exists() else {}
    with tempfile.NamedTemporaryFile("w", suffix=".keys") as keys:
        keys.write("lone\nflood\n")
        keys.flush()
        measurements: dict[str, Callable[[], dict[str, Any]]] = {
            "rates": served_rates,
            "front_end": lambda: front_end(pairs, options.seconds / 6),
            "overload": lambda: runs(lambda url, process: overload(url, pairs, options.seconds)),
            "fairness": lambda: runs(lambda url, process: fairness(url, pairs, options.seconds), "--keys", keys.name),
            "sigterm": lambda: drill(judge, lambda url, process: sigterm(url, pairs, process)),
            "memory": lambda: drill(judge, lambda url, process: memory(url, pairs, process, options.requests)),
        }
        for name, measure in measurements.items():
            if options.only in (None, name):
                result[name] = {"command": shlex.join(["python", *sys.argv]), "commit": commit(), **measure()}
                print(name, json.dumps(result[name]), flush=True)
                options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
