"""Engines in processes of their own: killed, hung or broken, they say so and come back; several endpoints share the work."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest

from rewardlab.config.judge import RequestConfig
from rewardlab.demo.server import Faults
from rewardlab.errors import EndpointError, MediaError
from rewardlab.judging.spec import DEMO_JUDGE
from rewardlab.prompts import build_messages, load_template
from rewardlab.samplers.base import SamplingParams
from rewardlab.samplers.child_process import ProcessSampler
from rewardlab.samplers.hf import HFSampler
from rewardlab.samplers.openai_api import OpenAISampler
from rewardlab.samplers.vllm import margin_of
from rewardlab.types import FinishReason, Message, Order, Part
from tests.support.obedient import obedient, unwilling
from tests.support.openai_server import ChatServer, chat_server

PLAIN = load_template("plain")
GREEDY = SamplingParams(temperature=0, max_tokens=8)


def said(text: str) -> tuple[Message, ...]:
    return (Message("user", (Part(text=text),)),)


@pytest.fixture
def child() -> Iterator[ProcessSampler]:
    sampler = ProcessSampler(obedient, timeout_s=1.0)
    yield sampler
    sampler.close()


def until(good: Callable[[], Any], seconds: float = 30) -> None:
    """Wait until it no longer raises."""
    end = time.monotonic() + seconds
    while True:
        try:
            good()
            return
        except EndpointError:
            assert time.monotonic() < end
            time.sleep(0.05)


def test_a_child_answers_as_itself(child: ProcessSampler) -> None:
    """From another process; what a request got wrong arrives as it is, what broke as a failure of the engine."""
    assert child.name == "obedient"
    text = child.sample([said("hello")], SamplingParams())[0][0].text
    assert text == f"hello, by {child.pid}"
    assert child.pid != os.getpid()
    with pytest.raises(MediaError, match="not a readable image"):
        child.sample([said("refuse")], SamplingParams())
    with pytest.raises(EndpointError, match="RuntimeError: out of memory"):
        child.sample([said("break")], SamplingParams())
    assert child.sample([said("hello")], SamplingParams())[0][0].text == text
    with pytest.raises(MediaError, match="no such model"):
        ProcessSampler(unwilling)


@pytest.mark.parametrize(("order", "told"), [("die", "ended"), ("hang", "no answer within 1 s")])
def test_a_child_that_dies_or_hangs_is_started_again(child: ProcessSampler, order: str, told: str) -> None:
    """The call fails with a sentence, so do those until the next child is ready, and then it answers."""
    before = child.pid
    with pytest.raises(EndpointError, match=told):
        child.sample([said(order)], SamplingParams())
    with pytest.raises(EndpointError, match="restart"):
        child.check()
    until(child.check)
    assert child.pid != before
    assert child.num_starts == 2
    assert child.sample([said("hello")], SamplingParams())[0][0].text == f"hello, by {child.pid}"


def test_a_child_that_takes_nothing(child: ProcessSampler) -> None:
    """Stopped, it does not even read what it is handed: the call ends in time, and so does the next one."""
    assert child.pid is not None
    os.kill(child.pid, signal.SIGSTOP)
    with pytest.raises(EndpointError, match="no answer within 1 s"):
        child.sample([said("x" * 5_000_000)], SamplingParams())
    until(child.check)
    assert child.num_starts == 2


def test_a_model_in_a_child_says_the_same(demo_pairs: Any) -> None:
    """Texts, tokens and log-probs of a real model, images included, and its verdict margins."""
    prompts = [build_messages(pair, order=Order.GIVEN, template=PLAIN) for pair in demo_pairs[0][:4]]
    here = HFSampler.load(DEMO_JUDGE)
    there = ProcessSampler(partial(HFSampler.load, DEMO_JUDGE))
    try:
        for ours, theirs in zip(here.sample(prompts, GREEDY), there.sample(prompts, GREEDY), strict=True):
            assert ours[0].token_ids == theirs[0].token_ids
            assert ours[0].logprobs == pytest.approx(theirs[0].logprobs, abs=1e-4)
        beginnings = ["<think>x</think><answer>"] * 4
        for mine, other in zip(
            here.verdict_margins(prompts, beginnings), there.verdict_margins(prompts, beginnings), strict=True
        ):
            assert mine.tolist() == pytest.approx(other.tolist(), abs=1e-4)
    finally:
        there.close()


def test_several_endpoints(demo_pairs: Any, demo_server: Callable[..., str]) -> None:
    """Work is spread; what one endpoint fails at another one answers; all down is a failure that says so."""
    prompts = [build_messages(pair, order=Order.GIVEN, template=PLAIN) for pair in demo_pairs[0][:12]]
    good, broken, dead = demo_server(), demo_server(Faults(broken=1.0)), "http://127.0.0.1:9/v1"
    whole = OpenAISampler([broken, dead, good], "demo-teacher", request=RequestConfig.model_validate({"deadline_s": 20}))
    whole.check()
    rows = whole.sample(prompts, SamplingParams())
    assert all(row[0].finish is FinishReason.STOP for row in rows)
    assert rows == OpenAISampler(good, "demo-teacher").sample(prompts, SamplingParams())
    lost = OpenAISampler([dead, broken], "demo-teacher", request=RequestConfig.model_validate({"deadline_s": 20}))
    assert all(row[0].finish is FinishReason.ERROR and row[0].error for row in lost.sample(prompts[:2], SamplingParams()))
    with pytest.raises(EndpointError, match="response from an OpenAI-compatible endpoint"):
        OpenAISampler([dead, dead], "m").check()


def test_endpoints_share_the_work(demo_pairs: Any) -> None:
    """The one with fewer requests in flight is asked: of two alike each gets about half."""
    servers = [ChatServer(delay_s=0.05) for _ in range(2)]
    with ExitStack() as stack:
        urls = [stack.enter_context(chat_server(server)) for server in servers]
        OpenAISampler(urls, "m").sample([said(str(n)) for n in range(40)], SamplingParams())
    assert [len(server.bodies) for server in servers] == [20, 20]


def test_margin_of_the_likeliest_tokens() -> None:
    """P(1) = .6, P(2) = .2 + .1 with the blank; a verdict that is not told of is as likely as the least that is."""
    from math import log

    margin, coverage = margin_of({"1": log(0.6), "2": log(0.2), " 2": log(0.1), "x": log(0.1)})
    assert margin == pytest.approx(log(0.6 / 0.3))
    assert coverage == pytest.approx(0.9)
    margin, coverage = margin_of({"1": log(0.9), "x": log(0.05)})
    assert (margin, coverage) == (pytest.approx(log(0.9 / 0.05)), pytest.approx(0.9))
