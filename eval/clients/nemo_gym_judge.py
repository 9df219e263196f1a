"""NeMo-Gym's own judge of answers and model server, by its own HTTP: the model behind the model server is this project's."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import uvicorn
from calls import ANSWERS, IMAGE, KEY, QUESTION, SEEN_QUESTION, URL, call
from nemo_gym import openai_utils, server_utils
from nemo_gym.config_types import BaseServerConfig, ModelServerRef
from nemo_gym.judge import call_judge
from omegaconf import OmegaConf
from resources_servers.equivalence_llm_judge import app as equivalence
from responses_api_models.openai_model import app as openai_model

LOOP, SOCKET = asyncio.new_event_loop(), socket.socket()
SOCKET.bind(("127.0.0.1", 0))
ADDRESS = {"host": "127.0.0.1", "port": SOCKET.getsockname()[1]}
SERVERS = OmegaConf.create({"judge": {"responses_api_models": {"openai_model": ADDRESS}}})
TEMPLATE = Path(equivalence.__file__).parent / "prompt_templates" / "equivalence_llm_judge.txt"
client = server_utils.ServerClient(head_server_config=BaseServerConfig(**ADDRESS), global_config_dict=SERVERS)
upstream = {"openai_base_url": f"{URL}/v1", "openai_api_key": KEY, "openai_model": "judge"}
model_config = openai_model.SimpleModelServerConfig(**ADDRESS, **upstream, entrypoint="app.py", name="judge")
model = openai_model.SimpleModelServer(config=model_config, server_client=client)
judge_config = equivalence.LLMJudgeResourcesServerConfig(
    **ADDRESS,
    entrypoint="app.py",
    judge_model_server=ModelServerRef(type="responses_api_models", name="judge"),
    judge_responses_create_params={"input": [], "temperature": 0, "max_output_tokens": 4096},
    judge_prompt_template_fpath=str(TEMPLATE),
)
judge = equivalence.LLMJudgeResourcesServer(config=judge_config, server_client=client)


async def start() -> asyncio.Task[None]:
    """Start the model server; return its task once it answers."""
    server_utils.set_global_aiohttp_client(server_utils.GlobalAIOHTTPAsyncClientConfig())
    server = uvicorn.Server(uvicorn.Config(model.setup_webserver(), log_level="error"))
    task = asyncio.create_task(server.serve(sockets=[SOCKET]))
    while not server.started:
        await asyncio.sleep(0.01)
    return task


def rewarded(answer: str) -> float:
    content = [{"type": "output_text", "text": answer, "annotations": []}]
    message = {"id": "m", "type": "message", "role": "assistant", "status": "completed", "content": content}
    response = {
        "id": "r", "created_at": 0, "model": "policy", "object": "response", "output": [message],
        "parallel_tool_calls": False, "tool_choice": "auto", "tools": [],
    }  # fmt: skip
    params = {"input": [{"role": "user", "content": QUESTION}]}
    body = {"responses_create_params": params, "response": response, "expected_answer": ANSWERS[1]}
    return float(LOOP.run_until_complete(judge.verify(equivalence.LLMJudgeVerifyRequest.model_validate(body))).reward)


def answer_of(path: str, response_model: Any, body: dict[str, Any]) -> Any:
    answer = call_judge(client, server_name="judge", url_path=path, json=body, response_model=response_model)
    return LOOP.run_until_complete(answer)


def responded(content: Any, **options: Any) -> str:
    body = {"input": [{"role": "user", "content": content}], "temperature": 0, **options}
    return str(answer_of("/v1/responses", openai_utils.NeMoGymResponse, body).output_text)


def completed(**options: Any) -> str:
    body = {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0, **options}
    response = answer_of("/v1/chat/completions", openai_utils.NeMoGymChatCompletion, body)
    return str(response.choices[0].message.content)


running = LOOP.run_until_complete(start())
seen = [{"type": "input_text", "text": SEEN_QUESTION}, {"type": "input_image", "image_url": IMAGE, "detail": "auto"}]
tool = {"type": "function", "name": "f", "parameters": {}, "strict": True}
call("equivalence_llm_judge verify()", lambda: [rewarded(answer) for answer in ANSWERS], [0, 1])
call("model server, responses", lambda: responded(QUESTION), "draw greedy")
call("model server, responses with an image", lambda: responded(seen), "draw greedy")
call("model server, chat completions", completed, "draw greedy")
call("model server, responses with tools", lambda: responded(QUESTION, tools=[tool]), refused="ClientResponseError: 500")
