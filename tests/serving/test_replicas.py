"""One server in front of two replicas on Ray: groups are whole, rewards are those of one replica, and none is lost with one."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import psutil
import pytest

from rewardlab.judging.engines import open_generative_judge
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.samplers.base import Replicas
from rewardlab.serving.app import create_app
from rewardlab.serving.service import GroupRules
from tests.support.openai_server import ChatServer, chat_server
from tests.support.scripted_judge import ANSWERS, CHATML
from tests.support.servers import running

pytestmark = pytest.mark.nightly

Ask = Callable[[httpx.Client, str, str], Any]


def chat(prompt: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]


def sequence(prompt: str, answer: str) -> str:
    return CHATML.format(q=prompt) + answer


# How each kind of framework asks for the reward of one sample.
ONE_AT_A_TIME: dict[str, Ask] = {
    "OpenRLHF": lambda http, prompt, answer: http.post("/get_reward", json={"query": [sequence(prompt, answer)]}),
    "slime, verl": lambda http, prompt, answer: http.post("/slime", json={"prompt": prompt, "response": answer}),
    "vLLM": lambda http, prompt, answer: http.post("/classify", json={"input": sequence(prompt, answer)}),
    "SGLang": lambda http, prompt, answer: http.post("/v1/embeddings", json={"input": sequence(prompt, answer)}),
    "pooling": lambda http, prompt, answer: http.post("/pooling", json={"messages": chat(prompt, answer)}),
    "NIM": lambda http, prompt, answer: http.post("/v1/chat/completions", json={"messages": chat(prompt, answer)}),
}


def rewards_of(judge: GenerativeJudge, prompts: list[str], ways: dict[str, Ask]) -> dict[str, Any]:
    """The rewards of a server for a group to each prompt, its members sent one by one, at once; by way, prompt, answer."""
    # A pair a call, many at a time: both replicas are always busy.
    rules = GroupRules(group_size=len(ANSWERS), group_timeout_s=60.0)
    names = ("reward", "rewards", "probs", "embedding", "data", "content")
    app = create_app(judge, rules=rules, max_sequences=2, num_threads=16)
    with running(app) as url, httpx.Client(base_url=url, timeout=120) as http:

        def ask(call: tuple[str, str, str]) -> tuple[int, Any]:
            way, prompt, answer = call
            response = ways[way](http, f"{prompt} ({way})", answer)
            return response.status_code, _number(response.json(), names)

        calls = [(way, prompt, answer) for way in ways for prompt in prompts for answer in ANSWERS]
        with ThreadPoolExecutor(len(calls)) as pool:
            return {" | ".join(call): result for call, result in zip(calls, pool.map(ask, calls), strict=True)}


def _number(body: Any, names: tuple[str, ...]) -> float | None:
    """The one reward in an answer, whatever its shape."""
    if isinstance(body, int | float):
        return float(body)
    if isinstance(body, list):
        return _number(body[0], names)
    if isinstance(body, str):
        return float(body.rpartition(":")[2])
    for name in (*names, "choices", "message"):
        if name in body:
            return _number(body[name], names)
    return None


@pytest.mark.slow
def test_two_replicas() -> None:
    """What every framework is told is what one replica would have told it, before a replica is killed and while it is."""
    pytest.importorskip("ray.serve", reason="Ray is an extra: pip install 'rewardlab[ray]'")
    engine, killed = ChatServer(by_seed=True), threading.Event()
    with chat_server(engine) as url:
        spec = f"openai:judge@{url}"
        alone = open_generative_judge(spec)
        several = open_generative_judge(spec, restart_after_s=60, replicas=Replicas(2))
        try:
            expected = rewards_of(alone, ["Which?"], ONE_AT_A_TIME)
            assert {code for code, _ in expected.values()} == {200}
            assert len({reward for _, reward in expected.values()}) > 1
            assert rewards_of(several, ["Which?"], ONE_AT_A_TIME) == expected

            prompts = [f"Which of {n}?" for n in range(12)]
            slime = {"slime, verl": ONE_AT_A_TIME["slime, verl"]}
            expected = rewards_of(alone, prompts, slime)
            children = psutil.Process().children(recursive=True)
            replicas = [child.pid for child in children if "ServeReplica" in " ".join(child.cmdline())]
            assert len(replicas) == 2

            def kill_one(body: dict[str, Any], number: int) -> None:
                """When the engine has been asked often, so that both replicas have calls in flight."""
                if engine.inside >= 8 and not killed.is_set():
                    killed.set()
                    os.kill(replicas[0], signal.SIGKILL)

            engine.refuse, engine.delay_s = kill_one, 0.2
            assert rewards_of(several, prompts, slime) == expected
            assert killed.is_set()
        finally:
            several.sampler.close()  # type: ignore[attr-defined]
