"""The package langchain-openai."""

from __future__ import annotations

from typing import Any

from calls import ANSWERS, CHATML, KEY, QUESTION, SEEN_QUESTION, URL, call, parts
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel


class Verdict(BaseModel):
    better: int


model: Any = ChatOpenAI(model="judge", base_url=f"{URL}/v1", api_key=KEY, max_retries=0)
plain: Any = OpenAIEmbeddings(model="judge", base_url=f"{URL}/v1", api_key=KEY, check_embedding_ctx_length=False)
TEXTS = [CHATML.format(question=QUESTION) + answer for answer in ANSWERS]
pair = [[("human", QUESTION), ("ai", answer)] for answer in ANSWERS]
call("invoke", lambda: bool(model.invoke(QUESTION).content), True)
call("invoke with an image", lambda: bool(model.invoke([("human", parts(SEEN_QUESTION))]).content), True)
call("stream", lambda: bool("".join(str(chunk.content) for chunk in model.stream(QUESTION))), True)
call("batch, reward of two", lambda: [one.content for one in model.batch(pair)], ["reward:-1.0000", "reward:1.0000"])
call("usage_metadata", lambda: model.invoke(QUESTION).usage_metadata["total_tokens"] > 0, True)
call("embed_documents", lambda: plain.embed_documents(TEXTS), [[-1], [1]])
call("bind(stop)", lambda: model.bind(stop=["x"]).invoke(QUESTION), refused="'stop' is not supported")
call("with_structured_output", lambda: model.with_structured_output(Verdict).invoke(QUESTION), Verdict(better=2))
call("use_responses_api", lambda: bool(model.model_copy(update={"use_responses_api": True}).invoke(QUESTION).text), True)
