"""The package cohere."""

from __future__ import annotations

from typing import Any

import cohere
from calls import ANSWERS, KEY, QUESTION, URL, call

v1: Any = cohere.Client(api_key=KEY, base_url=URL)
v2: Any = cohere.ClientV2(api_key=KEY, base_url=URL)
numbers = [f"I say {n}." for n in range(100)]
objects = [{"text": answer, "year": "2001"} for answer in ANSWERS]


def order(client: Any, documents: list[Any], **options: Any) -> list[int]:
    return [one.index for one in client.rerank(model="judge", query=QUESTION, documents=documents, **options).results]


call("v1 rerank", lambda: order(v1, ANSWERS), [1, 0])
call("v1 rerank of objects", lambda: order(v1, objects), [1, 0])
call("v1 rerank, rank_fields", lambda: order(v1, objects, rank_fields=["text", "year"]))
call("v1 rerank, top_n and return_documents", lambda: order(v1, ANSWERS, top_n=1, return_documents=True), [1])
call("v2 rerank", lambda: order(v2, ANSWERS), [1, 0])
call("v2 rerank of one document", lambda: order(v2, ANSWERS[:1]), [0])
call("v2 rerank of 100 documents", lambda: order(v2, numbers, top_n=1), [99])
call("v2 rerank of 2,000 documents", lambda: order(v2, ["a"] * 2000), refused="documents has 2,000 entries")
call("v2 chat", lambda: v2.chat(model="judge", messages=[{"role": "user", "content": "q"}]), refused="no such path")
