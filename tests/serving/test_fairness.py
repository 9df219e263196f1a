"""Keys share the engine and the queue; deadlines hold under overload. By a clock of the tests' own."""

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
from rewardlab.serving.queue import JudgeQueue, QueueOptions
from rewardlab.serving.request_record import REQUEST, RequestRecord
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
            await queue.stop(0)

        run_virtually(main())
        return engine

    return run


def now() -> float:
    return asyncio.get_running_loop().time()


def ask(queue: JudgeQueue, tenant: str, question: str, *, timeout_s: float = 600.0, **options: Any) -> asyncio.Task[float]:
    """Submit a job as a tenant; the task returns how long it took."""

    async def submit() -> float:
        REQUEST.set(RequestRecord(tenant=tenant))
        start = now()
        await queue.submit(job(question), deadline=start + timeout_s, **options)
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


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_deadlines_hold_under_overload(run: Callable[..., TimedEngine], noise: float) -> None:
    """Twice what the engine can do, five seconds each: nine tenths of its rate are answered, all of it in time, and what is
    refused is mostly refused at once."""
    rng, answers, refused_after = random.Random(0), list[float](), list[float]()
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


def test_what_cannot_be_done_in_time_is_not_begun(run: Callable[..., TimedEngine]) -> None:
    """Once it is known how long a pair takes: refused at once, and the engine is not asked."""

    async def body(queue: JudgeQueue) -> None:
        await ask(queue, "", "first")
        start = now()
        with pytest.raises(DeadlineExceededError, match="would need"):
            await ask(queue, "", "hopeless", timeout_s=0.1)
        assert now() == start
        await ask(queue, "", "last", timeout_s=5)

    assert run(body).calls == [["first"], ["last"]]


def test_an_answer_that_comes_late_is_none(run: Callable[..., TimedEngine]) -> None:
    """The deadline is that of the answer, not of the wait in the queue."""

    async def body(queue: JudgeQueue) -> None:
        start = now()
        with pytest.raises(DeadlineExceededError, match="came to an end"):
            await ask(queue, "", "slow", timeout_s=5)
        assert now() == pytest.approx(start + 5)

    run(body, takes=lambda num: 60.0)


def test_an_engine_that_was_slow_once_is_tried_again(run: Callable[..., TimedEngine]) -> None:
    """A call that took a minute would have every later one refused for ever."""
    times = iter([60.0, *[0.2] * 100])

    async def body(queue: JudgeQueue) -> None:
        await ask(queue, "", "warm-up")
        with pytest.raises(DeadlineExceededError):
            await ask(queue, "", "too soon", timeout_s=5)
        await asyncio.sleep(11)
        for n in range(3):
            await ask(queue, "", f"q{n}", timeout_s=20)
            await asyncio.sleep(11)
        await ask(queue, "", "at last", timeout_s=5)

    run(body, takes=lambda num: next(times))


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
