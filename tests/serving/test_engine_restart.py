"""An engine in a process of its own dies or hangs: every door says when to come back, and clients do."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from rewardlab.integrations import openrlhf, slime, verl
from rewardlab.integrations.client import RewardClient
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.prompts import load_template
from rewardlab.samplers.child_process import ProcessSampler
from rewardlab.samplers.scripted import ScriptedSampler
from rewardlab.serving.app import create_app
from rewardlab.serving.service import GroupRules
from rewardlab.types import Message
from tests.support.held_judge import held_sampler
from tests.support.scripted_judge import ANSWERS, PROMPT, QUESTION, handler
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
    app = create_app(GenerativeJudge(engine, PLAIN), rules=GroupRules(group_size=3), recheck_s=0.2)
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
        assert verls == {"score": 1.0, "policy_signs": 0.0}


def test_a_group_is_judged_whole_or_not() -> None:
    """Where one of three matches fails for want of an engine there is no reward for any."""

    def answer(prompt: tuple[Message, ...], draw: int) -> str:
        if "I say 1." in prompt[0].text and "I say 2." in prompt[0].text:
            raise RuntimeError("out of memory")
        said = handler(prompt, draw)
        assert isinstance(said, str)
        return said

    with running(create_app(GenerativeJudge(ScriptedSampler(answer), PLAIN))) as url:
        told = httpx.post(f"{url}/v1/rewards", json={"question": QUESTION, "responses": ANSWERS}, timeout=30)
        assert (told.status_code, told.json()["status"], told.headers["Retry-After"]) == (503, "enginefailed", "5")


def test_what_has_no_verdict_is_asked_again() -> None:
    """A retry is a new draw, where the judge draws by chance; what has a verdict is kept."""
    asked: list[int] = []

    def answer(prompt: tuple[Message, ...], draw: int) -> str:
        asked.append(draw)
        return "hm" if len(asked) <= 2 else "<answer>1</answer>"

    body = {"question": QUESTION, "responses": ANSWERS[:2]}
    with running(create_app(GenerativeJudge(ScriptedSampler(answer), PLAIN))) as url:
        told = [httpx.post(f"{url}/v1/judge", json=body).json()["outcome"] for _ in range(3)]
    assert told == ["no_valid_vote", "tie", "tie"]
    assert len(asked) == 4
