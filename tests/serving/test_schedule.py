"""Turns between tenants, deadlines and call times of the queue, on a virtual clock."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from rewardlab.serving.auth import Key, Keys
from rewardlab.serving.errors import DeadlineExceededError, OverloadedError
from rewardlab.serving.queue import JudgeQueue
from rewardlab.serving.request_record import REQUEST, RequestRecord
from rewardlab.serving.schedule import QueueOptions
from tests.support.virtual_time import TimedEngine, job, run_virtually

FLOOD, LONE = (Key.of(name).tenant for name in ("flood", "lone"))


def seconds(num: int) -> float:
    """A small judge on a CPU: 0.2 s for a pair of eight votes, 1.6 s for thirty-two of them."""
    return 0.17 + 0.0056 * num


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., TimedEngine]:
    def run(
        body: Callable[[JudgeQueue], Awaitable[None]],
        *,
        keys: Keys | None = None,
        takes: Callable[[int], float] = seconds,
        **options: Any,
    ) -> TimedEngine:
        engine = TimedEngine(takes)
        monkeypatch.setattr("rewardlab.serving.queue.EngineThread", engine.thread)

        async def main() -> None:
            batching = QueueOptions(mix_seeds=True, cache_size=0, **options)
            queue = JudgeQueue(engine, batching, keys=keys)  # type: ignore[arg-type]
            queue.start()
            await body(queue)
            queue.stop()

        run_virtually(main())
        return engine

    return run


def now() -> float:
    return asyncio.get_running_loop().time()


def ask(
    queue: JudgeQueue, tenant: str, question: str, *, timeout_s: float = 600.0, votes: int = 4, **options: Any
) -> asyncio.Task[float]:
    """Submit a job as a tenant; the task returns how long it took."""

    async def submit() -> float:
        REQUEST.set(RequestRecord(tenant=tenant))
        start = now()
        await queue.submit(job(question, votes), deadline=start + timeout_s, **options)
        return now() - start

    return asyncio.get_running_loop().create_task(submit())


def two_keys(**weights: float) -> Keys:
    return Keys([Key.of(name, weight=weights.get(name, 1.0)) for name in ("flood", "lone")])


@pytest.mark.parametrize("priority", [0, -9])
def test_a_lone_client_beside_a_flood(run: Callable[..., TimedEngine], priority: int) -> None:
    """It waits at most twice as long as alone, whatever priority the flood gives itself: it is in every batch, and batches
    are short while it asks."""

    async def body(queue: JudgeQueue) -> None:
        flood = [ask(queue, FLOOD, f"flood {n}", priority=priority) for n in range(400)]
        took = [await ask(queue, LONE, f"lone {n}") for n in range(12)]
        assert max(took[3:]) <= 2 * seconds(8)
        assert not all(task.done() for task in flood)
        await asyncio.gather(*flood)

    run(body, keys=two_keys())


@pytest.mark.parametrize(("clients", "sizes"), [(11, {4}), (24, {4, 16})])
def test_calls_are_whole_batches_of_the_engine(run: Callable[..., TimedEngine], clients: int, sizes: set[int]) -> None:
    """Of four jobs each, four of them at most: after a first call of the one job that has come, none stays ragged."""

    async def body(queue: JudgeQueue) -> None:
        async def client(name: int) -> None:
            await asyncio.sleep(0.01 * name)
            for turn in range(12):
                await ask(queue, "", f"{name} {turn}")

        await asyncio.gather(*map(client, range(clients)))

    calls = list(map(len, run(body, max_sequences=128, engine_batch=32).calls))
    assert calls[0] == 1
    assert set(calls[1:-8]) == sizes, calls


def test_calls_of_two_kinds_are_whole_batches(run: Callable[..., TimedEngine]) -> None:
    """What waits of another kind does not make a call ragged."""

    async def body(queue: JudgeQueue) -> None:
        jobs = [ask(queue, "", f"four {n}") for n in range(5)] + [ask(queue, "", f"one {n}", votes=1) for n in range(40)]
        await asyncio.gather(*jobs)

    calls = run(body, max_sequences=128, engine_batch=32).calls
    assert [len(call) for call in calls if "four 0" in call] == [4], calls


def test_shares_go_by_weight(run: Callable[..., TimedEngine]) -> None:
    """Three to one while both wait; what one leaves is the other's."""

    async def body(queue: JudgeQueue) -> None:
        tasks = [ask(queue, tenant, f"{tenant} {n}") for tenant in (LONE, FLOOD) for n in range(400)]
        await asyncio.sleep(10)
        done = Counter(tenant for tenant, task in zip([LONE] * 400 + [FLOOD] * 400, tasks, strict=True) if task.done())
        assert 2.5 <= done[FLOOD] / done[LONE] <= 3.5
        await asyncio.gather(*tasks)

    run(body, keys=two_keys(flood=3.0), max_waiting=10_000)


def test_one_key_does_not_fill_the_queue(run: Callable[..., TimedEngine]) -> None:
    """Half is left for others; a key without others has all of it."""

    async def body(queue: JudgeQueue) -> None:
        flood = [ask(queue, FLOOD, f"flood {n}") for n in range(300)]
        await asyncio.sleep(0)
        lone = ask(queue, LONE, "lone")
        refused = [
            error for error in await asyncio.gather(*flood, return_exceptions=True) if isinstance(error, OverloadedError)
        ]
        assert len(refused) == 300 - places
        await lone

    places = 50
    run(body, keys=two_keys(), max_waiting=100)
    places = 100
    run(body, keys=Keys([Key.of("flood")]), max_waiting=100)


def test_more_than_the_queue_holds_waits(run: Callable[..., TimedEngine]) -> None:
    """The parts of a request that was let in, however many, until their deadline; both keys' get on."""

    async def body(queue: JudgeQueue) -> None:
        tasks = [ask(queue, t, f"{t} {n}", waits_for_room=True) for t in (FLOOD, LONE) for n in range(300)]
        await asyncio.gather(*tasks)
        late = [ask(queue, FLOOD, f"late {n}", waits_for_room=True, timeout_s=4) for n in range(300)]
        failed = [error for error in await asyncio.gather(*late, return_exceptions=True) if isinstance(error, Exception)]
        assert 0 < len(failed) < 300
        assert queue.counts["refused"] == sum(isinstance(error, OverloadedError) for error in failed)

    run(body, keys=two_keys(), max_waiting=20)


def test_deadlines_hold_under_overload(run: Callable[..., TimedEngine]) -> None:
    """Twice what the engine can do, five seconds each: nine tenths of its rate are answered, all of it in time, and what is
    refused is mostly refused at once."""
    rng, answers, refused_after = random.Random(0), list[float](), list[float]()
    noise = 0.3
    capacity = 32 / (seconds(256) * math.exp(noise**2 / 2))  # pairs a second; the mean of the noise is above its median

    async def body(queue: JudgeQueue) -> None:
        async def one(n: int) -> None:
            start = now()
            try:
                answers.append(await ask(queue, "", f"q{n}", timeout_s=5))
            except (DeadlineExceededError, OverloadedError):
                refused_after.append(now() - start)

        tasks = []
        for n in range(4800):
            tasks.append(asyncio.create_task(one(n)))
            await asyncio.sleep(rng.expovariate(2 * capacity))
        await asyncio.gather(*tasks)
        lasted = now()
        assert len(answers) / lasted >= 0.9 * capacity

    run(body, takes=lambda num: seconds(num) * rng.lognormvariate(0, noise))
    assert max(answers) <= 5
    assert sum(after == 0 for after in refused_after) >= 0.6 * len(refused_after)


def test_batches_under_deadlines_are_small(run: Callable[..., TimedEngine]) -> None:
    """Not longer than half of the shortest deadline: who comes while one runs is in time with the next."""

    async def body(queue: JudgeQueue) -> None:
        await asyncio.gather(*(ask(queue, "", f"warm {n}") for n in range(40)))
        await ask(queue, "", "alone")
        many = [ask(queue, "", f"q{n}", timeout_s=2.0) for n in range(12)] + [ask(queue, "", f"far {n}") for n in range(60)]
        await asyncio.sleep(0.5)
        took = await ask(queue, "", "in the midst", timeout_s=2.0)
        assert took <= 2.0
        await asyncio.gather(*many)

    near = [call for call in run(body).calls if any(question.startswith("q") for question in call)]
    assert max(map(len, near)) < 32


def run_timed(
    monkeypatch: pytest.MonkeyPatch, engine: TimedEngine, body: Callable[[JudgeQueue], Awaitable[None]], **options: int
) -> JudgeQueue:
    monkeypatch.setattr("rewardlab.serving.queue.EngineThread", engine.thread)

    async def main() -> JudgeQueue:
        queue = JudgeQueue(engine, QueueOptions(**options))  # type: ignore[arg-type]
        queue.start()
        await body(queue)
        queue.stop()
        return queue

    return run_virtually(main())


async def tell(queue: JudgeQueue, question: str, seconds: float, tenant: str = "anna") -> str:
    """Return when a job was judged, or why not."""
    REQUEST.set(RequestRecord(tenant=tenant))
    loop = asyncio.get_running_loop()
    try:
        await queue.submit(job(question), deadline=loop.time() + seconds)
    except DeadlineExceededError as error:
        return str(error)
    return f"at {loop.time():.2f}"


def test_what_cannot_be_done_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of two seconds: refused at once, also where the engine is busy until then; not refused where nothing was tried for
    long, but for a call that still runs; told so where the engine became free too late."""
    engine, told = TimedEngine(lambda num: 2.0), {}

    async def body(queue: JudgeQueue) -> None:
        async def ask(question: str, seconds: float) -> None:
            told[question] = await tell(queue, question, seconds)

        await ask("first", 60)
        await ask("short", 1.0)
        busy = asyncio.create_task(ask("busy", 60))
        await asyncio.sleep(0.5)
        await ask("waits", 3.0)
        await ask("past", -1.0)
        await busy
        await asyncio.sleep(9)
        await ask("soon", 1.9)
        await asyncio.sleep(2)
        await ask("trial", 1.9)
        await asyncio.sleep(3)
        engine.seconds = lambda num: 15.0
        busy = asyncio.create_task(ask("slow", 60))
        await asyncio.sleep(0.1)
        late = asyncio.create_task(ask("late", 15.5))
        await asyncio.sleep(11)
        await ask("behind", 1.9)
        await busy
        await late

    queue, more = run_timed(monkeypatch, engine, body), "allow more time, or retry later"
    assert told == {
        "first": "at 2.00",
        "short": f"the judge would need 2.0 s and has 1.0 s: {more}",
        "busy": "at 4.00",
        "waits": f"the judge would need 3.5 s and has 3.0 s: {more}",  # the rest of the call that runs, and its own
        "past": f"the judge would need 3.5 s and has 0.0 s: {more}",
        "soon": f"the judge would need 2.0 s and has 1.9 s: {more}",
        "trial": "the deadline passed before the request came to an end",
        "slow": "at 34.90",
        "late": "the engine became free too late to judge the request before its deadline",
        "behind": f"the judge would need 3.5 s and has 1.9 s: {more}",  # with what waits: twice as many samples
    }
    assert engine.calls == [["first"], ["busy"], ["trial"], ["slow"]]
    assert queue.tenants["anna"].counts["late"] == 7


def test_threads_share_the_calls_before_and_not_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two calls of two seconds at a time: behind four that run_timed and wait, a job is done in six, not in five."""
    told: list[str] = []

    async def body(queue: JudgeQueue) -> None:
        await tell(queue, "first", 60)
        tasks = [asyncio.create_task(tell(queue, f"q{n}", 5)) for n in range(4)]
        await asyncio.sleep(0.5)
        told.append(await tell(queue, "short", 5.4))
        told.append(await tell(queue, "long", 5.6))
        await asyncio.gather(*tasks)

    run_timed(monkeypatch, TimedEngine(lambda num: 2.0), body, num_threads=2, max_sequences=8)
    assert told == ["the judge would need 5.5 s and has 5.4 s: allow more time, or retry later", "at 8.00"]


def test_a_tenant_has_a_moment_for_its_next_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the call's time: anna, who asks one after the other, is not put behind all of ben's. Without a next one the
    others go on, and nothing has failed."""
    told: list[str] = []

    async def body(queue: JudgeQueue) -> None:
        anna = asyncio.create_task(tell(queue, "a", 60))
        await asyncio.sleep(0.05)
        told.append(await tell(queue, "b", 60, "ben"))
        told.append(await anna)
        assert not queue.failing
        assert queue.counts["failed"] == 0

    run_timed(monkeypatch, TimedEngine(lambda num: 0.2), body)
    assert told == ["at 0.42", "at 0.20"]
