"""The Python package openai."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
from calls import ANSWERS, CHATML, IMAGE, KEY, QUESTION, SEEN_QUESTION, URL, VIDEO, call, parts
from pydantic import BaseModel

api = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)
CHAT: Any = [{"role": "user", "content": QUESTION}]
TEXTS = [CHATML.format(question=QUESTION) + answer for answer in ANSWERS]


class Better(BaseModel):
    better: int


def chat(**options: Any) -> str:
    return str(api.chat.completions.create(**{"model": "judge", "messages": CHAT, **options}).choices[0].message.content)


def rewards(content: Any) -> list[str]:
    def one(answer: str) -> str:
        return chat(messages=[{"role": "user", "content": content}, {"role": "assistant", "content": answer}])

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(one, ANSWERS))


def streamed() -> bool:
    events = list(
        api.chat.completions.create(model="judge", messages=CHAT, stream=True, stream_options={"include_usage": True})
    )
    usage = events[-1].usage
    return bool(events[0].choices[0].delta.content) and usage is not None and usage.total_tokens > 0


def response(content: Any, **options: Any) -> Any:
    return api.responses.create(**{"model": "judge", "input": content, **options})


def wrong_key() -> None:
    openai.OpenAI(base_url=f"{URL}/v1", api_key="wrong", max_retries=0).models.list()


call("chat, reward of two", lambda: rewards(QUESTION), ["reward:-1.0000", "reward:1.0000"])
call("chat with an image, reward of two", lambda: rewards(parts(SEEN_QUESTION)), ["reward:-1.0000", "reward:1.0000"])
film: Any = [{"type": "text", "text": SEEN_QUESTION}, {"type": "video_url", "video_url": {"url": VIDEO}}]
call("chat with a video, reward of two", lambda: rewards(film), ["reward:-1.0000", "reward:1.0000"])
call("chat of the same prompt five times, no seed", lambda: len({chat() for _ in range(5)}), 5)
call("chat of the same prompt three times, a seed", lambda: len({chat(seed=5) for _ in range(3)}), 1)
call("chat, role developer", lambda: bool(chat(messages=[{"role": "developer", "content": "Be brief."}, *CHAT])), True)
call("chat, n=3", lambda: len(api.chat.completions.create(model="judge", messages=CHAT, n=3).choices), 3)
call("chat, stream with usage", streamed, True)
call("chat, stop", lambda: chat(stop=["x"]), refused="'stop' is not supported")
call("chat, logprobs", lambda: chat(logprobs=True), refused="'logprobs' is not supported")
call("chat, response_format", lambda: chat(response_format={"type": "json_object"}), '{"better": 2}')
call(
    "chat.completions.parse",
    lambda: api.chat.completions.parse(model="judge", messages=CHAT, response_format=Better).choices[0].message.parsed,
    Better(better=2),
)
call("chat, do_sample false", lambda: chat(extra_body={"do_sample": False}), "draw greedy")
call("chat, do_sample false and a temperature", lambda: chat(extra_body={"do_sample": False}, temperature=1), refused="greedy")
lowered = api.chat.completions.create(model="judge", messages=CHAT, max_tokens=4096)
call("chat, more tokens than the server writes", lambda: (lowered.model_extra or {})["max_tokens"], 1024)
thinks = {"chat_template_kwargs": {"enable_thinking": True}}
call("chat, enable_thinking", lambda: chat(extra_body=thinks), refused="'chat_template_kwargs' is not supported")
tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
call("chat, tools", lambda: chat(tools=[tool]), refused="'tools' is not supported")
call("chat, presence_penalty", lambda: chat(presence_penalty=0.5), refused="'presence_penalty' is not supported")
call("chat, temperature 99", lambda: chat(temperature=99), refused="temperature: Input should be")
call(
    "embeddings, the default format",
    lambda: [one.embedding for one in api.embeddings.create(model="judge", input=TEXTS).data],
    [[-1], [1]],
)
call(
    "embeddings, dimensions",
    lambda: api.embeddings.create(model="judge", input=TEXTS, dimensions=4),
    refused="'dimensions' is not supported",
)
name = api.models.list().data[0].id
call("models.list and retrieve", lambda: api.models.retrieve(name).id, name)
call("models.retrieve of another", lambda: api.models.retrieve("gpt-9"), refused="there is no model 'gpt-9' here")
shown: Any = [{"type": "input_text", "text": SEEN_QUESTION}, {"type": "input_image", "image_url": IMAGE, "detail": "auto"}]
call("responses.create", lambda: response(QUESTION, temperature=0).output_text, "draw greedy")
call("responses.create with an image", lambda: bool(response([{"role": "user", "content": shown}]).output_text), True)
options = {"instructions": "Be brief.", "max_output_tokens": 4096}
call("responses.create, more tokens than the server writes", lambda: response(QUESTION, **options).max_output_tokens, 1024)
call("responses.create, its usage", lambda: response(QUESTION).usage.total_tokens, 14)
call(
    "responses.parse",
    lambda: api.responses.parse(model="judge", input=QUESTION, text_format=Better),
    refused="'text' is not supported",
)
call("responses.create, stream", lambda: list(response(QUESTION, stream=True)), refused="'stream' is not supported")
call("responses.create, store", lambda: response(QUESTION, store=True), refused="'store' is not supported")
call("a wrong key", wrong_key, refused="no valid API key")
