"""The teacher stage at 200,000 pairs, against a flaky server: its rate beside a bare loop's, its memory, five kills, its bill.

``python eval/distill_scale.py``. A pair has a picture of 112 px. Turns of 6,000 requests each: a loop over the ``openai``
package that does nothing but ask (its own retries, the same time-out and concurrency; as it comes and over aiohttp), and the
stage, which also reads pairs, builds prompts, journals and checks verdicts; start and end of the process are not counted for
either. Then the whole stage, killed five times, and runs that a budget ends. Writes ``eval/results/distill_scale.json``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import os
import random
import shlex
import shutil
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
from PIL import Image, ImageDraw
from serving_rate import free_port

from rewardlab.config import DistillConfig
from rewardlab.data.pairs import PairSet, write_shards
from rewardlab.models.checkpoints import commit
from rewardlab.prompts import build_messages, load_template
from rewardlab.samplers.openai_answers import api_content
from rewardlab.types import Order, PreferencePair

TRY_S, KILLS, TURN = 2.0, 5, 6000
PRICES = {"prompt": 2.5, "completion": 10.0}


def made(number: int) -> Iterator[PreferencePair]:
    """Pairs whose better response says so; pictures are drawn, each its own."""
    for n in range(number):
        dice = random.Random(n)
        picture = Image.new("RGB", (112, 112), tuple(dice.randrange(256) for _ in range(3)))
        draw = ImageDraw.Draw(picture)
        for _ in range(6):
            x, y = dice.randrange(90), dice.randrange(90)
            draw.rectangle(
                (x, y, x + dice.randrange(8, 40), y + dice.randrange(8, 40)), fill=tuple(dice.randrange(256) for _ in range(3))
            )
        buffer = io.BytesIO()
        picture.save(buffer, "JPEG", quality=85)
        texts = [
            f"TRUE: {dice.random()} " + "words of an answer " * 12,
            f"Other: {dice.random()} " + "words of an answer " * 12,
        ]
        dice.shuffle(texts)
        better = int(texts[1].startswith("TRUE"))
        yield PreferencePair(
            f"p{n:07d}", f"QUESTION p{n:07d} what is drawn?", (texts[0], texts[1]), better, (buffer.getvalue(),)
        )


@contextmanager
def server() -> Iterator[str]:
    port = free_port()
    process = subprocess.Popen([sys.executable, str(Path(__file__).with_name("flaky_teacher.py")), str(port)])
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(100):
            try:
                httpx.get(f"{url}/count")
                break
            except httpx.HTTPError:
                time.sleep(0.1)
        yield url
    finally:
        process.kill()
        process.wait()


async def bare(url: str, prompts: list[Any], concurrency: int, http: Any = None) -> float:
    """Requests a second of the plain loop; what fails after its retries is left."""
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", timeout=TRY_S, max_retries=4, http_client=http and http())
    slots = asyncio.Semaphore(concurrency)

    async def ask(n: int, messages: Any) -> None:
        async with slots:
            with contextlib.suppress(openai.OpenAIError, ValueError):
                await client.chat.completions.create(model="flaky", messages=messages, temperature=1, max_tokens=512, seed=n)

    start_time = time.perf_counter()
    await asyncio.gather(*(ask(n, messages) for n, messages in enumerate(prompts)))
    took = time.perf_counter() - start_time
    await client.close()
    return len(prompts) / took


RUN = """
import json, sys, time
from pathlib import Path
from rewardlab.config import DistillConfig
from rewardlab.data.pairs import PairSet
from rewardlab.distill import pipeline
config = DistillConfig(**json.loads(sys.argv[1]))
pairs = PairSet(Path(sys.argv[2]), limit=int(sys.argv[4]) or None)
ask_all = pipeline._ask_all
async def timed(*args):
    start_time = time.perf_counter()
    try:
        return await ask_all(*args)
    finally:
        print(json.dumps({"asking_s": time.perf_counter() - start_time}), flush=True)
pipeline._ask_all = timed
start_time = time.perf_counter()
statistics = pipeline.distill(pairs, config, Path(sys.argv[3]))
print(json.dumps({"whole_s": time.perf_counter() - start_time, "statistics": statistics}))
"""


def command(config: dict[str, Any], data: Path, out: Path, limit: int = 0) -> list[str]:
    return [sys.executable, "-c", RUN, json.dumps(config), str(data), str(out), str(limit)]


def rates(url: str, data: Path, work: Path, concurrency: int, repeats: int) -> dict[str, Any]:
    """Turn by turn: the loop, the stage; the stage with one attempt, so that both ask as often."""
    template = load_template("plain")
    prompts = []
    for pair in PairSet(data, limit=TURN):
        (message,) = build_messages(pair, order=Order.GIVEN, template=template)
        prompts.append([{"role": "user", "content": api_content(message)}])
    per_second: dict[str, list[float]] = {"bare": [], "bare over aiohttp": [], "distill": []}
    for turn in range(repeats):
        per_second["bare"].append(asyncio.run(bare(url, prompts, concurrency)))
        per_second["bare over aiohttp"].append(asyncio.run(bare(url, prompts, concurrency, openai.DefaultAioHttpClient)))
        config = settings(url, concurrency) | {"max_attempts": 1, "seed": turn}
        done = subprocess.run(command(config, data, work / f"turn{turn}", TURN), check=True, capture_output=True, text=True)
        asking_s = json.loads(done.stdout.splitlines()[0])["asking_s"]
        per_second["distill"].append(TURN / asking_s)
        print({name: round(values[-1], 1) for name, values in per_second.items()}, flush=True)
    ratios = {
        name: [a / b for a, b in zip(per_second["distill"], per_second[name], strict=True)]
        for name in ("bare", "bare over aiohttp")
    }
    medians = {name: statistics.median(values) for name, values in ratios.items()}
    return {"requests_per_second": per_second, "distill_over": medians, "turns": ratios, "requests": TURN}


def settings(url: str, concurrency: int) -> dict[str, Any]:
    return {
        "model": "flaky",
        "base_url": f"{url}/v1",
        "template": "plain",
        "concurrency": concurrency,
        "try_s": TRY_S,
        "deadline_s": 60,
        "retries": 8,
        "max_tokens": 512,
        "prices": PRICES,
    }


def killed(url: str, data: Path, out: Path, number: int, concurrency: int) -> dict[str, Any]:
    """The whole stage, with kills at random moments; then what the journal, the set and the server say."""
    httpx.post(f"{url}/reset")
    run = command(settings(url, concurrency), data, out)
    dice, memory, start_time = random.Random(0), list[tuple[float, float]](), time.monotonic()
    moments = sorted(dice.uniform(0.05, 0.9) for _ in range(KILLS))
    log = out.with_suffix(".log").open("w")
    process = subprocess.Popen(run, stdout=log, stderr=subprocess.DEVNULL)
    started, kills, first_minute, peak = time.monotonic(), 0, 0.0, 0.0
    while process.poll() is None:
        time.sleep(0.5)
        try:
            rss = psutil.Process(process.pid).memory_info().rss / 2**20
        except psutil.NoSuchProcess:
            continue
        memory.append((time.monotonic() - start_time, rss))
        if time.monotonic() - started < 60:
            first_minute = max(first_minute, rss)
        peak = max(peak, rss)
        if kills < KILLS and answered(out) > moments[kills] * number:
            process.kill()
            process.wait()
            kills += 1
            print(f"killed at {answered(out):,} answers, {rss:.0f} MiB", flush=True)
            process, started = subprocess.Popen(run, stdout=log, stderr=subprocess.DEVNULL), time.monotonic()
    log.close()
    totals = json.loads(out.with_suffix(".log").read_text().splitlines()[-1])["statistics"]
    count = httpx.get(f"{url}/count").json()
    rows = list(PairSet(out / "distilled.parquet"))
    names = [pair.pair_id for pair in rows]
    usd = (count["prompt_tokens"] * PRICES["prompt"] + count["completion_tokens"] * PRICES["completion"]) / 1e6
    return {
        "pairs": number,
        "seconds": round(time.monotonic() - start_time, 1),
        "kills": kills,
        "pairs_in_the_set": len(names),
        "distinct_pairs": len(set(names)),
        "failed_pairs": totals["num_failed_pairs"],
        "memory_mib": {"first_minute": round(first_minute), "peak": round(peak)},
        "server": count,
        "answers_in_the_journal": answered(out),
        "cost_usd": {"journal": totals["cost_usd"], "server": round(usd, 6)},
        "answers_lost_to_kills": count["answers"] - answered(out),
        "in_flight_at_most": KILLS * concurrency,
        "statistics": {name: totals[name] for name in ("attempts", "num_requests", "num_asked_again", "num_failed_requests")},
    }


def answered(out: Path) -> int:
    try:
        with closing(sqlite3.connect(f"file:{out / 'journal.sqlite'}?mode=ro", uri=True)) as db:
            return int(db.execute("SELECT COUNT(*) FROM calls WHERE finish IS NOT NULL").fetchone()[0])
    except sqlite3.OperationalError:
        return 0


def budgets(url: str, data: Path, work: Path, concurrency: int) -> list[dict[str, float]]:
    """Measure what is left of a budget when a run stops at it."""
    rows = []
    for n, usd in enumerate((2.0, 5.0)):
        config = settings(url, concurrency) | {"budget": {"usd": usd}}
        done = subprocess.run(command(config, data, work / f"budget{n}"), check=True, capture_output=True, text=True)
        totals = json.loads(done.stdout.splitlines()[-1])["statistics"]
        assert totals["stopped_by_budget"]
        rows.append({"usd": usd, "spent": totals["cost_usd"], "left_percent": 100 * (1 - totals["cost_usd"] / usd)})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=200_000)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--work", type=Path, default=Path("runs/distill_scale"))
    parser.add_argument("--out", type=Path, default=Path("eval/results/distill_scale.json"))
    options = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    shutil.rmtree(options.work, ignore_errors=True)
    data = options.work / "data"
    start_time = time.monotonic()
    list(write_shards(made(options.pairs), data))
    print(f"made in {time.monotonic() - start_time:.0f} s", flush=True)
    DistillConfig(**settings("http://x", options.concurrency))
    with server() as url:
        result: dict[str, Any] = {"command": shlex.join(["python", *sys.argv]), "commit": commit()}
        result["rates"] = rates(url, data, options.work, options.concurrency, options.repeats)
        result["budgets"] = budgets(url, data, options.work, options.concurrency)
        result["whole"] = killed(url, data, options.work / "whole", options.pairs, options.concurrency)
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
