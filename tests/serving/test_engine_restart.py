"""An engine that dies or hangs: every route says when to come back, and clients do."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from rewardlab.integrations import openrlhf, slime, verl
from rewardlab.integrations.client import RewardClient
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.prompts import load_template
from rewardlab.samplers.child_process import ProcessSampler
from rewardlab.samplers.openai_api import OpenAISampler
from rewardlab.serving.app import create_app
from rewardlab.serving.queue import ResultCache
from rewardlab.serving.schedule import QueueOptions
from rewardlab.serving.service import GroupRules, ServerOptions
from rewardlab.types import BOTH_ORDERS, Completion, FinishReason, Verdict, VerdictStatus, Vote
from rewardlab.verdicts.votes import judgment
from tests.support.held_judge import held_sampler
from tests.support.openai_server import VERDICT, ChatServer, chat_server
from tests.support.queue_engine import judge_job
from tests.support.scripted_judge import ANSWERS, PROMPT, QUESTION
from tests.support.servers import running

PLAIN = load_template("plain")
SAMPLE = {"query": [PROMPT + answer for answer in ANSWERS], "prompts": [PROMPT] * 3}


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[ProcessSampler]:
    sampler = ProcessSampler(partial(held_sampler, tmp_path), timeout_s=1.0)
    yield sampler
    sampler.close()


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP])
def test_every_door_says_when_to_come_back(
    engine: ProcessSampler, tmp_path: Path, sign: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """503 with Retry-After while the engine starts, no rewards of null; the client and the adapters wait, and are answered."""
    starts = tmp_path / "starts"
    app = create_app(
        GenerativeJudge(engine, PLAIN), ServerOptions(rules=GroupRules(group_size=3), queue=QueueOptions(recheck_s=0.2))
    )
    with running(app) as url, ThreadPoolExecutor(8) as pool:
        starts.touch()
        assert engine.pid
        os.kill(engine.pid, sign)
        for path, body in {
            "/v1/rewards": {"question": QUESTION, "responses": ANSWERS},
            "/v1/judge": {"question": QUESTION, "responses": ANSWERS[:2]},
            "/get_reward": SAMPLE,
            "/rerank": {"query": QUESTION, "documents": ANSWERS},
            "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
        }.items():
            answer = httpx.post(f"{url}{path}", json=body, timeout=30)
            assert (path, answer.status_code, answer.headers.get("Retry-After")) == (path, 503, "1")
        monkeypatch.setenv("REWARDLAB_URL", url)
        monkeypatch.setenv("REWARDLAB_DEADLINE_S", "60")
        samples = [SimpleNamespace(metadata=None, prompt=PROMPT, response=answer) for answer in ANSWERS]
        info = {"question": "Alone?", "anchor": "I say 2."}
        waiting = [
            pool.submit(asyncio.run, RewardClient(url).rewards(QUESTION, ANSWERS)),
            pool.submit(openrlhf.reward_func, SAMPLE["query"], SAMPLE["prompts"], [None] * 3),
            pool.submit(asyncio.run, slime.judge_group(None, samples)),
            pool.submit(asyncio.run, verl.compute_score("demo", "I say 3.", "", info)),
        ]
        starts.unlink()
        rewards, openrlhfs, slimes, verls = (future.result() for future in waiting)
        assert rewards == slimes == openrlhfs["rewards"].tolist() == [-1, 1, 0]
        assert verls == {"score": 1.0}


@dataclass
class Doubtful(ChatServer):
    """An engine that draws by the seed of a request, as engines do, and says nothing that can be read by half of the seeds."""

    def verdict(self, body: dict[str, Any]) -> str:
        seed = body["seed"] if body["temperature"] else 0
        return "hm" if hashlib.sha256(f"{seed} {body['messages']}".encode()).digest()[0] < 128 else VERDICT


@contextmanager
def doubtful(**options: Any) -> Iterator[tuple[str, Doubtful]]:
    engine = Doubtful()
    with (
        chat_server(engine) as address,
        running(create_app(GenerativeJudge(OpenAISampler(address, "m"), PLAIN, **options))) as url,
    ):
        yield url, engine


def test_what_has_no_verdict_is_drawn_by_another_seed() -> None:
    """The same request draws other samples until both orders have a verdict; what has one is kept, and its seed too."""
    body = {"question": QUESTION, "responses": ANSWERS[:2]}
    with doubtful() as (url, engine):
        told = [httpx.post(f"{url}/v1/judge", json=body).json() for _ in range(60)]
        judged = [n for n, answer in enumerate(told) if answer["num_valid"] == 2]
        seeds = [request["seed"] for request in engine.bodies]
        assert judged == list(range(judged[0], 60))
        assert judged[0] > 0
        assert len(seeds) == len(set(seeds)) == 2 * (judged[0] + 1)  # a seed for each order, another at each try
        assert httpx.post(f"{url}/v1/judge", json=body | {"seed": 1}).json()["num_valid"] < 2  # a request of its own


def test_a_reward_is_drawn_until_it_is_there() -> None:
    """At every door: the rewards of a group come at some try, and what was judged before is not asked again."""
    with doubtful() as (url, engine):
        codes = []
        while len(codes) < 60 and codes[-1:] != [200]:
            codes.append(httpx.post(f"{url}/get_reward", json=SAMPLE, timeout=30).status_code)
        assert codes[-1] == 200
        assert 1 < len(codes) < 60
        assert len(engine.bodies) < 6 * len(codes)
        assert (
            httpx.post(f"{url}/v1/rewards", json={"question": QUESTION, "responses": ANSWERS}).json()["rewards"].count(None)
            == 0
        )


def test_a_greedy_judge_says_so() -> None:
    """A retry changes nothing there, and the sentence does not promise it."""
    with doubtful(temperature=0.0) as (url, _):
        codes = [httpx.post(f"{url}/get_reward", json=SAMPLE, timeout=30) for _ in range(2)]
    assert [answer.status_code for answer in codes] == [503, 503]
    assert "greedy" in codes[1].json()["error"]


def test_tries_are_not_remembered_without_bound() -> None:
    results = ResultCache(3)
    unread = Completion("hm", FinishReason.STOP)
    votes = [Vote(order, Verdict(None, VerdictStatus.NO_VERDICT), unread) for order in BOTH_ORDERS]
    job, judged = judge_job("q"), judgment("p", votes)
    for n in range(10):
        results.add(f"job {n}", job, judged)
    assert [n for n in range(10) if results.num_tries(f"job {n}")] == [7, 8, 9]
