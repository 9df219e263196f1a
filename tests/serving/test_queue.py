"""The queue: batches, order, deadlines, back-pressure, who hangs up, engines that break or hang; nothing is ever made up."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

import pytest

from rewardlab.serving.errors import DeadlineExceededError, EngineFailedError, OverloadedError
from rewardlab.serving.jobs import JudgeJob
from rewardlab.serving.judge_versions import JudgeVersion
from rewardlab.serving.queue import JudgeQueue
from rewardlab.serving.voting import gather_bounded
from rewardlab.types import (
    BOTH_ORDERS,
)
from tests.support.queue_engine import Engine, after, judge_job, run, settle

VERSION = JudgeVersion(Engine())  # type: ignore[arg-type]


def test_what_waits_is_judged_together() -> None:
    """One call for what came while the engine was busy; other numbers of votes are another call; each gets its own answer."""

    async def body(queue: JudgeQueue, engine: Engine) -> None:
        engine.gate.clear()
        asked = [asyncio.create_task(queue.submit(judge_job("first")))]
        await settle()
        asked += [asyncio.create_task(queue.submit(judge_job(f"q{n}"))) for n in range(5)]
        asked.append(asyncio.create_task(queue.submit(judge_job("many", votes=3))))
        await settle()
        engine.gate.set()
        done = await asyncio.gather(*asked)
        assert [len(one.votes) for one in done] == [2] * 6 + [6]
        assert all(one.outcome.winner == 0 for one in done)

    assert run(body).calls == [["first"], [f"q{n}" for n in range(5)], ["many"]]


def test_a_batch_has_a_size() -> None:
    """Five questions of two samples each, four samples at a time."""

    async def body(queue: JudgeQueue, engine: Engine) -> None:
        engine.gate.clear()
        asked = [asyncio.create_task(queue.submit(judge_job(f"q{n}"))) for n in range(5)]
        await settle()
        engine.gate.set()
        await asyncio.gather(*asked)

    assert [len(call) for call in run(body, max_sequences=4).calls] == [2, 2, 1]


def test_a_long_prompt_keeps_nobody_waiting() -> None:
    """It is judged by itself: in a batch every prompt is as long as the longest, and takes as long."""

    async def body(queue: JudgeQueue, engine: Engine) -> None:
        engine.gate.clear()
        asked = [asyncio.create_task(queue.submit(judge_job("busy")))]
        await settle()
        names = ["a", "long " * 4000, "b", "also long " * 2000, "c", "longer " * 4000, "longer still " * 2100]
        asked += [asyncio.create_task(queue.submit(judge_job(name))) for name in names]
        await settle()
        engine.gate.set()
        await asyncio.gather(*asked)

    calls = [[name[:12] for name in call] for call in run(body, max_sequences=32).calls]
    assert calls == [["busy"], ["a", "b", "c"], ["long long lo", "also long al"], ["longer longe", "longer still"]]


def test_priorities_and_deadlines() -> None:
    """The lower number goes first; what waited too long is not asked at all."""

    async def body(queue: JudgeQueue, engine: Engine) -> None:
        engine.gate.clear()
        busy = asyncio.create_task(queue.submit(judge_job("busy")))
        await settle()
        late = asyncio.create_task(queue.submit(judge_job("late"), deadline=after(0.01)))
        last = asyncio.create_task(queue.submit(judge_job("last"), priority=1))
        first = asyncio.create_task(queue.submit(judge_job("first"), priority=-1))
        await settle()
        engine.gate.set()
        await asyncio.gather(busy, last, first)
        with pytest.raises(DeadlineExceededError, match="deadline"):
            await late
        assert queue.counts["late"] == 1

    assert run(body, max_sequences=2).calls == [["busy"], ["first"], ["last"]]


def test_answers_are_kept_by_content() -> None:
    """The same question is asked once; another seed or image is another question; a failure of the endpoint is not kept."""

    async def body(queue: JudgeQueue, engine: Engine) -> None:
        first, second = await queue.submit(judge_job("q")), await queue.submit(judge_job("q"))
        assert first is second
        await queue.submit(JudgeJob(judge_job("q").pair, BOTH_ORDERS, 1, seed=1))
        await queue.submit(JudgeJob(replace(judge_job("q").pair, images=(b"another",)), BOTH_ORDERS, 1, seed=0))
        for _ in range(2):
            with pytest.raises(EngineFailedError, match="HTTP 503"):
                await queue.submit(judge_job("lost"))
        assert queue.counts["cached"] == 1

    assert run(body).calls == [["q"], ["q"], ["q"], ["lost"], ["lost"]]


def test_a_bad_request_fails_alone() -> None:
    """A batch that breaks is asked in halves, not one by one: its neighbours are answered."""

    async def body(queue: JudgeQueue, engine: Engine) -> None:
        engine.bad = {"bad"}
        engine.gate.clear()
        names = ("busy", *(f"good {n}" for n in range(30)), "bad", "fine")
        asked = [asyncio.create_task(queue.submit(judge_job(name))) for name in names]
        await settle()
        engine.gate.set()
        done = await asyncio.gather(*asked, return_exceptions=True)
        assert [name for name, one in zip(names, done, strict=True) if isinstance(one, EngineFailedError)] == ["bad"]
        assert "out of memory" in str(done[-2])
        assert queue.ready

    assert len(run(body).calls) <= 1 + 2 * 6  # halves of 33, six times


def test_nothing_is_tried_without_an_engine() -> None:
    """A batch that fails because the engine is down is not asked again piece by piece."""

    async def body(queue: JudgeQueue, engine: Engine) -> None:
        engine.gate.clear()
        asked = [asyncio.create_task(queue.submit(judge_job(f"q{n}"))) for n in range(5)]
        await settle()
        engine.down = True
        engine.gate.set()
        done = await asyncio.gather(*asked, return_exceptions=True)
        assert all(isinstance(one, EngineFailedError) for one in done)

    assert len(run(body).calls) == 1


def test_a_failing_call_cancels_the_others() -> None:
    """When one fails the rest leaves the queue: nothing is judged for nobody."""

    async def body(queue: JudgeQueue, engine: Engine) -> None:
        engine.gate.clear()
        busy = asyncio.create_task(queue.submit(judge_job("busy")))
        await settle()
        with pytest.raises(OverloadedError):
            await gather_bounded(partial(queue.submit, judge_job(f"q{n}")) for n in range(4))
        await settle()
        engine.gate.set()
        await busy
        assert queue.counts["gone"] == 3

    assert run(body, max_waiting=3).calls == [["busy"]]


def test_an_engine_that_hangs_is_left_behind() -> None:
    """Those that waited for it hear of it; others are asked of a new thread."""

    async def body(queue: JudgeQueue, engine: Engine) -> None:
        engine.gate.clear()
        with pytest.raises(EngineFailedError, match=r"no answer within 0.2 s"):
            await queue.submit(judge_job("hangs"))
        engine.gate.set()
        assert (await queue.submit(judge_job("next"))).outcome.winner == 0

    run(body, engine_timeout_s=0.2)


@pytest.mark.slow
def test_a_judge_that_hangs_leaves_its_successor_free() -> None:
    """However much waits for the old one: more than a tenant's jobs are looked at for one batch."""

    async def body(queue: JudgeQueue, engine: Engine) -> None:
        engine.gate.clear()
        old = [asyncio.create_task(queue.submit(judge_job(f"q{n}"))) for n in range(100)]
        await settle()
        successor = Engine()
        queue.replace_version(JudgeVersion(successor))  # type: ignore[arg-type]
        await asyncio.wait_for(queue.submit(judge_job("new")), 5)
        assert successor.calls == [["new"]]
        assert not any(task.done() for task in old)
        engine.gate.set()
        await asyncio.gather(*old)

    run(body, max_sequences=4)


def test_who_is_gone_holds_no_place() -> None:
    """Nothing is left of a full queue whose callers hung up; deadlines are kept behind an engine that is busy."""

    async def body(queue: JudgeQueue, engine: Engine) -> None:
        engine.gate.clear()
        busy = asyncio.create_task(queue.submit(judge_job("busy")))
        await settle()
        gone = [asyncio.create_task(queue.submit(judge_job(name))) for name in ("a", "b")]
        await settle()
        assert not queue.ready
        for one in gone:
            one.cancel()
        await settle()
        assert queue.ready
        assert queue.num_waiting == 0
        with pytest.raises(DeadlineExceededError, match="deadline"):
            await asyncio.wait_for(queue.submit(judge_job("late"), deadline=after(0.05)), 2)
        engine.gate.set()
        await busy

    assert run(body, max_waiting=2).calls == [["busy"]]


def test_a_large_request_does_not_fill_the_queue() -> None:
    """A hundred at once where eight may wait: a few at a time."""

    async def body(queue: JudgeQueue, engine: Engine) -> None:
        answers = await gather_bounded((partial(queue.submit, judge_job(f"q{n}")) for n in range(100)), limit=8)
        assert len(answers) == 100
        assert queue.counts["refused"] == 0

    run(body, max_waiting=8)


def test_an_answer_that_is_none_ends_no_thread() -> None:
    """An engine that answers too few is a failure of those who asked, and is asked again."""

    async def body(queue: JudgeQueue, engine: Engine) -> None:
        whole = engine.compare_many
        engine.compare_many = lambda *args, **options: []  # type: ignore[method-assign]
        with pytest.raises(EngineFailedError, match="cannot be read"):
            await asyncio.wait_for(queue.submit(judge_job("q")), 2)
        engine.compare_many = whole  # type: ignore[method-assign]
        assert (await asyncio.wait_for(queue.submit(judge_job("q")), 2)).outcome.winner is not None

    run(body)
