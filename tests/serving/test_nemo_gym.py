"""NeMo-Gym's agent loop against the server: a session is begun, rollouts are verified in their groups, a run is summed up."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from rewardlab.errors import DataError
from rewardlab.serving.dialects.trainers import aggregate_metrics
from rewardlab.serving.limits import Limits
from rewardlab.serving.service import GroupRules
from rewardlab.types import Message
from tests.support.scripted_judge import QUESTION, handler
from tests.support.serving import app_of, in_process

PROMPTS: list[str] = []


def recording(prompt: tuple[Message, ...], draw: int) -> Any:
    PROMPTS.append(prompt[0].text)
    return "I cannot say" if "mute" in prompt[0].text else handler(prompt, draw)


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    app = app_of(recording, rules=GroupRules(group_size=2), limits=Limits(group_timeout=5))
    with in_process(app) as opened:
        yield opened


def message(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


REASONING = {"type": "reasoning", "summary": []}
CALL = {"type": "function_call", "call_id": "1", "name": "measure", "arguments": '{"n": 3}'}
RESULT = {"type": "function_call_output", "call_id": "1", "output": "3 cm"}


def rollout(client: httpx.Client, number: int, **fields: Any) -> dict[str, Any]:
    """Do what the agent does: begin a session, have the policy's answer, verify it."""
    run = {"responses_create_params": {"input": [{"role": "developer", "content": "Be brief."}, *asked(QUESTION)]}, **fields}
    client.post("/seed_session", json=run).raise_for_status()
    response = {"id": "r", "output": [REASONING, message(f"I say {number}.")]}
    verified = client.post("/verify", json=run | {"response": response})
    verified.raise_for_status()
    return verified.json()


def asked(question: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}]


def test_tasks_of_one_text_are_groups_of_their_own(client: httpx.Client) -> None:
    """Rollouts are compared within their ``_ng_task_index``; the request comes back with its fields and a reward, and with the
    same if it is sent again."""
    numbers = [(0, 1), (1, 7), (1, 8), (0, 2)]  # in one group by text, 7 would win over 1
    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(rollout, client, number, _ng_task_index=task, _ng_rollout_index=0) for task, number in numbers]
        results = [call.result() for call in calls]
    assert [result["reward"] for result in results] == [-1, -1, 1, 1]
    assert rollout(client, 7, _ng_task_index=1, _ng_rollout_index=0) == results[1]
    assert results[1]["_ng_task_index"] == 1
    assert set(results[0]) == {"responses_create_params", "response", "reward", "_ng_task_index", "_ng_rollout_index"}
    metrics = client.post("/aggregate_metrics", json={"verify_responses": results}).json()
    assert metrics["key_metrics"] == {"mean/reward": 0}
    assert metrics["agent_metrics"]["max/reward"] == 1
    assert [(group["_ng_task_index"], group["std/reward"]) for group in metrics["group_level_metrics"]] == [
        (0, pytest.approx(2**0.5)),
        (1, pytest.approx(2**0.5)),
    ]


def test_numbers_of_usage_are_summed_up_too(client: httpx.Client) -> None:
    """As NeMo-Gym's own servers do; a task of one rollout has no spread, and no rollouts have no metrics."""
    results = [
        {"_ng_task_index": 3, "reward": 1.0, "passed": True, "response": {"usage": {"output_tokens": 5}}},
        {"reward": 0.0, "note": "text", "seed": 10**400},
    ]
    metrics = client.post("/aggregate_metrics", json={"verify_responses": results}).json()
    assert metrics["key_metrics"] == {"mean/reward": 0.5, "mean/passed": 1, "mean/output_tokens": 5}
    assert [group["_ng_task_index"] for group in metrics["group_level_metrics"]] == [0, 3]
    texts = aggregate_metrics([{"_ng_task_index": index, "reward": 1.0} for index in ("10", "b", "9", 2)])
    assert [group["_ng_task_index"] for group in texts["group_level_metrics"]] == [2, "9", "10", "b"]
    assert metrics["group_level_metrics"][1]["std/reward"] == 0
    empty = client.post("/aggregate_metrics", json={"verify_responses": []}).json()
    assert empty == {"group_level_metrics": [], "agent_metrics": {}, "key_metrics": {}}
    assert client.get("/reverify_mode").json() == "unsupported"


def test_metrics_of_many_names_take_time_in_proportion() -> None:
    """A name that one rollout has is not looked for in all the others; more names than a server can list are refused."""
    rollouts = [{"_ng_task_index": n, f"a{n % 900}": n, "reward": n % 2} for n in range(9000)]
    start = time.process_time()
    metrics = aggregate_metrics(rollouts)
    assert time.process_time() - start < 3  # 900 names by 9,000 rollouts would be many times that
    values = [n for n in range(9000) if n % 900 == 7]
    assert metrics["agent_metrics"]["mean/a7"] == statistics.fmean(values)
    assert metrics["agent_metrics"]["std/a7"] == pytest.approx(statistics.stdev(values))
    assert metrics["agent_metrics"]["median/a7"] == statistics.median(values)
    with pytest.raises(DataError, match="1,001 distinct numeric fields; expected at most 1,000"):
        aggregate_metrics([{f"a{n}": n} for n in range(1001)])


def test_what_the_judge_is_shown_of_a_rollout(client: httpx.Client) -> None:
    """Calls of tools and what came back, also where the rollout ends in one; nothing of one that never got beyond reasoning."""
    outputs = [[REASONING, message("I say 3."), CALL, RESULT], [CALL], [REASONING]]
    body = {"conversation_history": asked("How long?"), "response_objs": [{"output": output} for output in outputs]}
    PROMPTS.clear()
    rewards = client.post("/compare", json=body).json()["rewards"]
    assert rewards[0] == 1
    assert any('I say 3.\nTool call: measure({"n": 3})\nTool result: 3 cm' in prompt for prompt in PROMPTS)
    assert all(isinstance(reward, float) for reward in rewards)


def test_a_reward_is_a_number_or_there_is_none(client: httpx.Client) -> None:
    """Its models say float: no null, but an error where nothing could be judged."""
    history, objects = asked(QUESTION), [{"output": [message("I say 1.")]}, {"output": [message("I am mute")]}]
    unjudged = client.post("/compare", json={"conversation_history": history, "response_objs": objects})
    assert (unjudged.status_code, unjudged.json()["status"]) == (503, "unjudged")
    alone = client.post("/compare", json={"conversation_history": history, "response_objs": objects[:1]})
    assert alone.status_code == 422
    assert "a single response cannot be compared; send two or more" in alone.json()["error"]
    empty = client.post("/compare", json={"conversation_history": history, "response_objs": [{"output": []}] * 2})
    assert "no output" in empty.json()["error"]
