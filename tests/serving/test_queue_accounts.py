"""What the queue counts for whom, what it charges to keys, what it answers while it stops, and when it says to come again."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest

from rewardlab.errors import DataError
from rewardlab.serving import auth
from rewardlab.serving.auth import Key, Keys
from rewardlab.serving.errors import DeadlineExceededError, EngineFailedError, OverloadedError
from rewardlab.serving.jobs import family_of
from rewardlab.serving.queue import JudgeQueue
from rewardlab.serving.request_record import REQUEST, RequestRecord
from rewardlab.types import Judgment
from tests.support.queue_engine import Engine, after, judge_job, run, settle


def ask(queue: JudgeQueue, question: str, tenant: str = "anna", votes: int = 1, **how: float) -> asyncio.Task[Judgment]:
    async def submit() -> Judgment:
        REQUEST.set(RequestRecord(tenant=tenant))
        return await queue.submit(judge_job(question, votes), **how)  # type: ignore[arg-type, no-any-return]

    return asyncio.create_task(submit())


def refused(call: BaseException | Judgment, kind: type[Exception], sentence: str) -> None:
    assert type(call) is kind
    assert str(call) == sentence


@pytest.mark.slow
def test_every_tenant_has_its_counts() -> None:
    """Asked, cached, judged, failed, late, gone and refused are of who asked; totals are of all."""

    async def body(queue: JudgeQueue, engine: Engine) -> None:
        await ask(queue, "q")
        await ask(queue, "q")  # from the cache
        await ask(queue, "q", "ben", votes=2)
        engine.bad = {"bad"}
        await asyncio.gather(ask(queue, "bad", "ben"), return_exceptions=True)
        await settle()
        engine.gate.clear()
        busy = ask(queue, "busy")
        await settle()
        late, gone = ask(queue, "late", "ben", deadline=after(1.0)), ask(queue, "gone", "ben")
        await settle()
        with pytest.raises(OverloadedError):
            await ask(queue, "over", "ben")
        gone.cancel()
        outcomes = await asyncio.gather(late, gone, return_exceptions=True)
        assert [type(one) for one in outcomes] == [DeadlineExceededError, asyncio.CancelledError]
        engine.gate.set()
        await busy
        anna, ben = (dict(queue.tenants[name].counts) for name in ("anna", "ben"))
        assert anna == {"asked": 3, "cached": 1, "judged": 2, "batches": 2, "sequences": 4}
        assert ben == {
            "asked": 5, "judged": 1, "failed": 1, "late": 1, "gone": 1, "refused": 1, "batches": 2, "sequences": 6
        }  # fmt: skip
        assert dict(queue.counts) == {name: anna.get(name, 0) + ben.get(name, 0) for name in ben | anna}
        assert dict(queue.statuses) == {"ok": 8}

    run(body, max_waiting=2)


def test_keys_are_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples when they are begun, tokens when they are read and written: one of each vote here. The clock of the limits
    stands still."""
    monkeypatch.setattr(auth, "time", SimpleNamespace(monotonic=lambda: 1000.0))
    anna, ben = Key.of("a", samples_per_minute=60.0, name="anna"), Key.of("b", tokens_per_minute=60.0, name="ben")
    keys = Keys([anna, ben])

    async def body(queue: JudgeQueue, engine: Engine) -> None:
        engine.gate.clear()
        task = ask(queue, "q", votes=8)  # 16 of the 6 that it may have at once
        await settle()
        assert keys.wait_s(anna) == 11
        other = ask(queue, "q", "ben", votes=8)
        assert keys.wait_s(ben) == 0
        engine.gate.set()
        await asyncio.gather(task, other)
        assert keys.wait_s(ben) == 11
        engine.down = True
        await asyncio.gather(ask(queue, "failed", "ben", votes=8), return_exceptions=True)
        assert keys.wait_s(ben) == 11

    run(body, keys=keys)


def test_failures_in_words() -> None:
    """What the engine raised, that it gave nothing, or the wrong number; who asks is told when it is looked at again."""

    async def body(queue: JudgeQueue, engine: Engine) -> None:
        engine.down = True
        outcome = (await asyncio.gather(ask(queue, "q"), return_exceptions=True))[0]
        refused(outcome, EngineFailedError, "RuntimeError: out of memory")
        assert isinstance(outcome, EngineFailedError)
        assert (outcome.retry_after_s, queue.failing) == (3, True)
        engine.down = False
        outcome = (await asyncio.gather(ask(queue, "lost"), return_exceptions=True))[0]
        refused(outcome, EngineFailedError, "the engine failed: HTTP 503")
        assert queue.failing
        outcome = (await asyncio.gather(ask(queue, "silent"), return_exceptions=True))[0]
        refused(outcome, EngineFailedError, "the engine failed: no answer")
        assert not queue._times._lines  # how long a failure takes says nothing of what a judgment takes
        await ask(queue, "good")
        assert list(queue._times._lines) == [family_of(judge_job("good"))]
        await settle()
        assert not queue.failing
        outcome = (await asyncio.gather(ask(queue, "too long"), return_exceptions=True))[0]
        sentence = "the engine refuses the request: HTTP 400: this model's maximum context length is 2048 tokens"
        refused(outcome, DataError, sentence)
        await settle()
        assert not queue.failing  # the request was at fault
        engine.refuses = DataError("no places for images")
        outcome = (await asyncio.gather(ask(queue, "bad"), return_exceptions=True))[0]
        refused(outcome, DataError, "no places for images")
        await settle()
        assert not queue.failing

    run(body, recheck_s=2.1)


def test_deadlines_in_words() -> None:
    """In the queue, in the engine's hands, and before either where it is known to take too long."""

    async def body(queue: JudgeQueue, engine: Engine) -> None:
        engine.gate.clear()
        begun = ask(queue, "begun", deadline=after(1.0))
        await settle()
        waiting = ask(queue, "waiting", deadline=after(0.9))
        outcomes = await asyncio.gather(begun, waiting, return_exceptions=True)
        refused(outcomes[0], DeadlineExceededError, "the deadline passed before the request came to an end")
        refused(outcomes[1], DeadlineExceededError, "the deadline passed before the request was judged")
        assert queue.counts["late"] == 2
        engine.gate.set()
        await settle()
        await ask(queue, "begun")  # finished all the same, and kept

    run(body)


def test_when_to_come_again() -> None:
    """The average batch's seconds, for each batch that waits and the one that runs; at least one."""

    async def body(queue: JudgeQueue, engine: Engine) -> None:
        assert queue.retry_after_s() == 1
        engine.gate.clear()
        tasks = [ask(queue, "busy")]
        await settle()
        tasks += [ask(queue, f"q{n}") for n in range(4)]  # eight samples, four at a time
        await settle()
        queue.batch_seconds = 7.0
        assert queue.retry_after_s() == 21
        queue.batch_seconds = 0.2
        assert queue.retry_after_s() == 1
        queue.batch_seconds = 10.0
        engine.gate.set()
        await asyncio.gather(*tasks)
        assert 3.4 < queue.batch_seconds < 3.6  # 0.7 ** 3 of it, after three calls of no time

    run(body, max_sequences=4)


def test_probabilities_are_the_other_judges() -> None:
    """Jobs by probability are run by the judge that is given for them."""
    other = Engine()

    async def body(queue: JudgeQueue, engine: Engine) -> None:
        await queue.submit(replace(judge_job("p"), by_probability=True))
        await queue.submit(judge_job("q"))

    assert (run(body, probability_judge=other).calls, other.calls) == ([["q"]], [["p"]])
    assert run(body).calls == [["p"], ["q"]]


def test_readiness() -> None:
    """Not where a stop is announced, the queue is full, the engine fails or the server stops."""

    async def body(queue: JudgeQueue, engine: Engine) -> None:
        assert queue.ready
        engine.gate.clear()
        tasks = [ask(queue, "busy")]
        await settle()
        tasks.append(ask(queue, "first"))
        await settle()
        assert queue.ready
        tasks.append(ask(queue, "second"))
        await settle()
        assert not queue.ready
        engine.gate.set()
        await asyncio.gather(*tasks)
        assert queue.ready
        queue.announce_stop()
        assert not queue.ready
        assert (await ask(queue, "late")).outcome.winner == 0  # what still comes is judged
        queue.stop()
        with pytest.raises(EngineFailedError) as caught:
            queue.check_room()
        refused(caught.value, EngineFailedError, "the server is shutting down; send the request again later or elsewhere")

    run(body, max_waiting=2)


def test_the_cache_has_a_size() -> None:
    """Those that were used longest ago go first; a tenant has its own answers."""

    async def body(queue: JudgeQueue, engine: Engine) -> None:
        for question in ("a", "b", "a", "c", "a", "b"):
            await ask(queue, question)
        await ask(queue, "a", "ben")
        assert queue.counts["cached"] == 2

    assert run(body, cache_size=2).calls == [["a"], ["b"], ["c"], ["b"], ["a"]]


def test_an_engine_is_checked_where_nobody_asks() -> None:
    async def body(queue: JudgeQueue, engine: Engine) -> None:
        engine.down = True
        await asyncio.gather(ask(queue, "q"), return_exceptions=True)
        await asyncio.sleep(0.12)
        assert queue.failing  # the check raises too
        engine.down = False
        async with asyncio.timeout(10):
            while not queue.ready:
                await asyncio.sleep(0.01)

    run(body, recheck_s=0.05)
