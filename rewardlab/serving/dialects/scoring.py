"""Candidates as documents: vLLM's ``/score``, Jina's and Cohere's ``/rerank``, SGLang's bare list.

The query is the question, the documents are responses to it, and a score is how often one beats the others, in 0..1. A single
document has nothing to be compared with: it needs ``anchor``, a document to beat, which these APIs do not know and ignore.
"""

from __future__ import annotations

import time
import uuid
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from rewardlab.errors import DataError
from rewardlab.serving.middleware import SoundRoute
from rewardlab.serving.schemas import MAX_CHARS, MAX_RESPONSES
from rewardlab.serving.service import JudgeService
from rewardlab.serving.text import Sample, content_of

Document = str | dict[str, Any]


class Rerank(BaseModel):
    """``documents`` are texts or ``{"content": [parts]}``; images count where they stand in the query."""

    model_config = ConfigDict(
        extra="ignore",
        json_schema_extra={"example": {"query": "What color is it?", "documents": ["It is red.", "It is blue."], "top_n": 1}},
    )
    query: Document
    documents: list[Document] = Field(min_length=1, max_length=MAX_RESPONSES)
    top_n: int | None = Field(None, ge=1)
    return_documents: bool = True
    model: str = ""
    anchor: str | None = Field(None, max_length=MAX_CHARS)


class Score(BaseModel):
    """vLLM's names, old and new; one query for all documents, or one for each."""

    model_config = ConfigDict(
        extra="ignore", json_schema_extra={"example": {"text_1": "What color is it?", "text_2": ["It is red.", "It is blue."]}}
    )
    text_1: Document | list[Document] | None = None
    text_2: Document | list[Document] | None = None
    queries: Document | list[Document] | None = None
    documents: Document | list[Document] | None = None
    data_1: Document | list[Document] | None = None
    data_2: Document | list[Document] | None = None
    items: Document | list[Document] | None = None
    model: str = ""
    anchor: str | None = Field(None, max_length=MAX_CHARS)


def _read(document: Document) -> tuple[str, tuple[str, ...]]:
    if isinstance(document, str):
        return document, ()
    text, image = document.get("text"), document.get("image")
    if set(document) <= {"text", "image"} and isinstance(text, str) and isinstance(image, str | None):
        return text, (image,) if image else ()
    if "content" not in document:
        raise DataError(f'a document has {sorted(document)[:5]}; expected a text, {{"text"}}, or {{"content": [parts]}}')
    return content_of(document["content"])


def samples_of(queries: list[Document], documents: list[Document], anchor: str | None) -> list[Sample]:
    """One sample per document. Raises DataError where neither one query nor one for each is given."""
    if len(queries) not in (1, len(documents)):
        raise DataError(f"{len(queries)} queries for {len(documents)} documents; expected one, or one for each")
    every = queries * len(documents) if len(queries) == 1 else queries
    made = []
    for query, document in zip(every, documents, strict=True):
        (question, shown), (response, within) = _read(query), _read(document)
        if not question.strip():
            raise DataError("a query has no text; a judge must know what was asked")
        if within:
            raise DataError("a document has an image; images are understood in the query alone")
        made.append(Sample(question, response, shown, anchor))
    return made


def _listed(value: Document | list[Document] | None) -> list[Document]:
    return [] if value is None else value if isinstance(value, list) else [value]


def routes(service: JudgeService) -> APIRouter:
    router = APIRouter(tags=["vLLM, Jina, Cohere, SGLang"], route_class=SoundRoute)

    async def scores(samples: list[Sample]) -> list[float]:
        return [(reward + 1) / 2 for reward in await service.sample_rewards(samples)]

    @router.post("/score")
    @router.post("/v1/score")
    async def score(request: Score) -> dict[str, Any]:
        """A score for each document, in their order."""
        queries = _listed(next((v for v in (request.text_1, request.queries, request.data_1) if v is not None), None))
        given = (request.text_2, request.documents, request.data_2, request.items)
        documents = _listed(next((v for v in given if v is not None), None))
        if not queries or not documents:
            raise DataError("expected text_1 (or queries, data_1) and text_2 (or documents, data_2)")
        if len(documents) > MAX_RESPONSES:
            raise DataError(f"{len(documents)} documents; at most {MAX_RESPONSES} are compared at a time")
        found = await scores(samples_of(queries, documents, request.anchor))
        data = [{"index": n, "object": "score", "score": value} for n, value in enumerate(found)]
        usage = {"prompt_tokens": 0, "total_tokens": 0, "completion_tokens": 0}
        head = {"id": f"score-{uuid.uuid4().hex}", "object": "list", "created": int(time.time())}
        return head | {"model": request.model or service.judge.name, "data": data, "usage": usage}

    async def ranked(request: Rerank) -> list[tuple[int, float]]:
        if len(request.documents) == 1 and request.anchor is None:
            raise DataError("one document cannot be ranked among others; give two or more, or an anchor to compare it with")
        found = await scores(samples_of([request.query], request.documents, request.anchor))
        order = sorted(range(len(found)), key=lambda n: -found[n])
        return [(n, found[n]) for n in order][: request.top_n]

    @router.post("/rerank")
    @router.post("/v1/rerank")
    @router.post("/v2/rerank")
    async def rerank(request: Rerank) -> dict[str, Any]:
        """Documents by falling score."""
        results: list[dict[str, Any]] = []
        for n, value in await ranked(request):
            text = {"document": {"text": _read(request.documents[n])[0]}} if request.return_documents else {}
            results.append({"index": n, **text, "relevance_score": value})
        usage = {"total_tokens": 0, "prompt_tokens": 0}
        head = {"id": f"rerank-{uuid.uuid4().hex}", "model": request.model or service.judge.name, "usage": usage}
        return head | {"results": results, "meta": {"api_version": {"version": "2"}}}

    @router.post("/sglang/v1/rerank", response_class=JSONResponse)
    async def bare(request: Rerank) -> list[dict[str, Any]]:
        """SGLang's answer: the list alone."""
        return [
            {"score": value, "document": _read(request.documents[n])[0], "index": n, "meta_info": {}}
            for n, value in await ranked(request)
        ]

    return router
