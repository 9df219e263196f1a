"""NeMo-Gym's own SimpleAgent: its run() and aggregate_metrics(), against this server in place of a resources server.

Its HTTP between servers is replaced by a small one: a policy that answers as the rollout says, and the server at its address.
"""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import aiohttp
from calls import ANSWERS, IMAGE, KEY, QUESTION, SEEN_QUESTION, URL, call
from nemo_gym.config_types import AggregateMetricsRequest
from responses_api_agents.simple_agent import app

HEADERS = {"Authorization": f"Bearer {KEY}"}
RESULTS: list[Any] = []


def response_of(output: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": "resp", "created_at": time.time(), "model": "policy", "object": "response", "output": output,
        "parallel_tool_calls": False, "tool_choice": "auto", "tools": [],
    }  # fmt: skip


def message(text: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"id": "m", "type": "message", "role": "assistant", "status": "completed", "content": content}


FUNCTION_CALL = {"type": "function_call", "call_id": "c", "name": "measure", "arguments": "{}", "id": "f"}


class Client:
    """Sends what is for the resources server to this project's; the policy's answer is given."""

    def __init__(self, session: aiohttp.ClientSession, output: list[dict[str, Any]]) -> None:
        self._session, self._output = session, output

    async def post(self, server_name: str, url_path: str, json: Any = None, cookies: Any = None, **options: Any) -> Any:
        body = json.model_dump() if hasattr(json, "model_dump") else json
        if server_name == "resources":
            return await self._session.post(URL + url_path, json=body, headers=HEADERS)
        return Answer(response_of(self._output))


class Answer:
    """An answer that need not come over the network."""

    ok, status = True, 200

    def __init__(self, body: dict[str, Any]) -> None:
        import orjson

        self.cookies: dict[str, str] = {}
        self._body = orjson.dumps(body)
        self.content = self

    async def read(self) -> bytes:
        return self._body

    def raise_for_status(self) -> None:
        """Do nothing: it is good."""


def agent(session: aiohttp.ClientSession, output: list[dict[str, Any]]) -> Any:
    made: Any = app.SimpleAgent.model_construct()
    made.config = SimpleNamespace(
        name="agent", skip_verification=False, resources_server=SimpleNamespace(name="resources"), max_steps=1
    )
    made.server_client = Client(session, output)
    object.__setattr__(made, "url_path_for_run", lambda path, body: path)
    object.__setattr__(made, "rollout_id_from_run", lambda body: None)
    return made


def rollouts(question: Any, outputs: list[list[dict[str, Any]]], tasks: list[int]) -> list[float]:
    async def run() -> list[float]:
        async with aiohttp.ClientSession() as session:

            async def one(task: int, output: list[dict[str, Any]]) -> float:
                params = {"input": [{"role": "user", "content": question}]}
                body = {"responses_create_params": params, "_ng_task_index": task, "_ng_rollout_index": len(RESULTS)}
                request: Any = SimpleNamespace(cookies={})
                result = await agent(session, output).run(request, app.SimpleAgentRunRequest.model_validate(body))
                RESULTS.append(result.model_dump() | {"_ng_rollout_index": len(RESULTS)})
                return float(result.reward)

            return await asyncio.gather(*(one(task, output) for task, output in zip(tasks, outputs, strict=True)))

    return asyncio.run(run())


def metrics() -> float:
    async def run() -> float:
        async with aiohttp.ClientSession() as session:
            body = AggregateMetricsRequest(verify_responses=[{k: v for k, v in r.items() if k != "response"} for r in RESULTS])
            return float((await agent(session, []).aggregate_metrics(body)).key_metrics["mean/reward"])

    return asyncio.run(run())


texts = [[message(answer)] for answer in ANSWERS]
seen = [{"type": "input_text", "text": SEEN_QUESTION}, {"type": "input_image", "image_url": IMAGE, "detail": "auto"}]
call("run(): a session, a rollout, its reward", lambda: rollouts(QUESTION, texts, [0, 0]), [-1, 1])
call("run(), an image in the prompt", lambda: rollouts(seen, texts, [1, 1]), [-1, 1])
four = [[message(f"I say {n}.")] for n in (1, 7, 8, 2)]
call("run(), two tasks of one text", lambda: rollouts("Which one?", four, [2, 3, 3, 2]), [-1, -1, 1, 1])
call("run(), a rollout that ends in a function call", lambda: rollouts("Why?", [[FUNCTION_CALL], texts[1]], [4, 4]), [-1, 1])
call("aggregate_metrics()", metrics, 0)
