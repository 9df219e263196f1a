"""The package litellm, called directly and as a proxy."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # nothing is fetched
import litellm
from calls import ANSWERS, CHATML, KEY, QUESTION, SEEN_QUESTION, URL, call, parts

COMMON: dict[str, Any] = {"api_key": KEY, "num_retries": 0}
CHAT = [{"role": "user", "content": QUESTION}]
TEXTS = [CHATML.format(question=QUESTION) + answer for answer in ANSWERS]


def complete(model: str, base: str, **options: Any) -> str:
    response: Any = litellm.completion(**{"model": model, "api_base": base, "messages": CHAT, **COMMON, **options})
    return str(response.choices[0].message.content)


def ranked(model: str, base: str, **options: Any) -> list[int]:
    response: Any = litellm.rerank(model=model, api_base=base, query=QUESTION, documents=ANSWERS, api_key=KEY, **options)
    return [result["index"] for result in response.results]


def embedded() -> list[list[float]]:
    response: Any = litellm.embedding(model="openai/judge", input=TEXTS, api_base=f"{URL}/v1", api_key=KEY)
    return [one["embedding"] for one in response.data]


def responded() -> str:
    response: Any = litellm.responses(model="openai/judge", input=QUESTION, temperature=0, api_base=f"{URL}/v1", api_key=KEY)
    return str(response.output[0].content[0].text)


call("completion openai/", lambda: bool(complete("openai/judge", f"{URL}/v1")), True)
call("completion hosted_vllm/", lambda: bool(complete("hosted_vllm/judge", f"{URL}/v1")), True)
image = [{"role": "user", "content": parts(SEEN_QUESTION)}]
call("completion with an image", lambda: bool(complete("openai/judge", f"{URL}/v1", messages=image)), True)
call("completion, stop", lambda: complete("openai/judge", f"{URL}/v1", stop=["x"]), refused="'stop' is not supported")
json_object = {"type": "json_object"}
call("completion, response_format", lambda: complete("openai/judge", f"{URL}/v1", response_format=json_object), '{"better": 2}')
call("responses", responded, "draw greedy")
call("embedding", embedded, [[-1], [1]])
call("rerank hosted_vllm/", lambda: ranked("hosted_vllm/judge", URL), [1, 0])
call("rerank cohere/", lambda: ranked("cohere/judge", f"{URL}/v2/rerank"), [1, 0])
call("rerank jina_ai/", lambda: ranked("jina_ai/judge", f"{URL}/v1/rerank"), [1, 0])
call("rerank infinity/", lambda: ranked("infinity/judge", f"{URL}/infinity"), [1, 0])
call("rerank huggingface/ (TEI)", lambda: ranked("huggingface/judge", URL, return_documents=True), [1, 0])

PROXY_KEY = "sk-0123456789abcdef0123456789abcdef"  # the proxy's own; it starts with none that is easy to guess
CONFIG = """model_list:
  - model_name: judge
    litellm_params: {model: openai/judge, api_base: "URL/v1", api_key: "KEY"}
  - model_name: ranker
    litellm_params: {model: hosted_vllm/judge, api_base: "URL", api_key: "KEY"}
"""


def through_proxy() -> None:
    import openai

    with socket.socket() as probe, tempfile.TemporaryDirectory() as folder:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        config = Path(folder) / "config.yaml"
        config.write_text(CONFIG.replace("URL", URL).replace("KEY", KEY))
        program = Path(sys.executable).parent / "litellm"
        command = [str(program), "--config", str(config), "--port", str(port), "--host", "127.0.0.1"]
        environment = {**os.environ, "LITELLM_MASTER_KEY": PROXY_KEY}
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            base = f"http://127.0.0.1:{port}"
            _await(f"{base}/health/liveliness", process)
            api = openai.OpenAI(base_url=base, api_key=PROXY_KEY, max_retries=0, timeout=60)

            def chat(**options: Any) -> str:
                response: Any = api.chat.completions.create(model="judge", messages=CHAT, **options)  # type: ignore[arg-type]
                return str(response.choices[0].message.content)

            call("proxy: chat", lambda: bool(chat()), True)
            call("proxy: chat, stop", lambda: chat(stop=["x"]), refused="'stop' is not supported")
            vectors = api.embeddings.create(model="judge", input=TEXTS).data
            call("proxy: embeddings", lambda: [one.embedding for one in vectors], [[-1], [1]])
            body = {"model": "ranker", "query": QUESTION, "documents": ANSWERS}
            ranks: Any = api.post("/rerank", body=body, cast_to=object)
            call("proxy: rerank", lambda: [one["index"] for one in ranks["results"]], [1, 0])
        finally:
            process.kill()
            process.wait()


def _await(url: str, process: subprocess.Popen[bytes], seconds: float = 240) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.5)
    raise RuntimeError(f"{url} does not answer")


try:
    through_proxy()
except Exception as error:
    failure = error

    def failed() -> None:
        raise failure

    call("proxy", failed)
