"""When the queue judges what, and what it refuses for want of time. By a clock of the tests' own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from rewardlab.serving.errors import DeadlineExceededError
from rewardlab.serving.queue import JudgeQueue, QueueOptions
from rewardlab.serving.request_record import REQUEST, RequestRecord
from tests.support.virtual_time import TimedEngine, job, run_virtually


def run(
    monkeypatch: pytest.MonkeyPatch, engine: TimedEngine, body: Callable[[JudgeQueue], Awaitable[None]], **options: int
) -> JudgeQueue:
    monkeypatch.setattr("rewardlab.serving.queue.EngineThread", engine.thread)

    async def main() -> JudgeQueue:
        queue = JudgeQueue(engine, QueueOptions(**options))  # type: ignore[arg-type]
        queue.start()
        await body(queue)
        await queue.stop(1)
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


def test_the_average_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven tenths of what it was, and three of the last: by a clock of the test's own, calls of half a second."""
    averages = [1.0]

    async def body(queue: JudgeQueue) -> None:
        for question in "ab":
            await queue.submit(job(question))
            averages.append(queue.batch_seconds)
        assert [latency[1] for latency in queue.tenants[""].recent] == [500, 500]  # milliseconds

    run(monkeypatch, TimedEngine(lambda num: 0.5), body)
    assert averages == pytest.approx([1.0, 0.85, 0.745])


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

    queue, more = run(monkeypatch, engine, body), "give it more time, or come later"
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
    """Two calls of two seconds at a time: behind four that run and wait, a job is done in six, not in five."""
    told: list[str] = []

    async def body(queue: JudgeQueue) -> None:
        await tell(queue, "first", 60)
        tasks = [asyncio.create_task(tell(queue, f"q{n}", 5)) for n in range(4)]
        await asyncio.sleep(0.5)
        told.append(await tell(queue, "short", 5.4))
        told.append(await tell(queue, "long", 5.6))
        await asyncio.gather(*tasks)

    run(monkeypatch, TimedEngine(lambda num: 2.0), body, num_threads=2, max_sequences=8)
    assert told == ["the judge would need 5.5 s and has 5.4 s: give it more time, or come later", "at 8.00"]


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

    run(monkeypatch, TimedEngine(lambda num: 0.2), body)
    assert told == ["at 0.42", "at 0.20"]
