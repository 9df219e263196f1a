"""Candidates as documents: vLLM's ``/score``, Jina's and Cohere's ``/rerank``, SGLang's bare list.

The query is the question, the documents are responses to it, and a score is how often one beats the others, in 0..1. A single
document has nothing to be compared with: it needs ``anchor``, a document to beat, which these APIs do not know and ignore.
"""

from __future__ import annotations

import time
import uuid

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from rewardlab.errors import DataError
from rewardlab.serving.conversations import Sample, read_content
from rewardlab.serving.middleware import StrictJSONRoute
from rewardlab.serving.schemas import MAX_CHARS, JsonObject
from rewardlab.serving.service import JudgeService

Document = str | JsonObject


class RerankRequest(BaseModel):
    """``documents`` are texts or ``{"content": [parts]}``; images count where they stand in the query."""

    model_config = ConfigDict(
        extra="ignore",
        json_schema_extra={"example": {"query": "What color is it?", "documents": ["It is red.", "It is blue."], "top_n": 1}},
    )
    query: Document
    documents: list[Document] = Field(min_length=1)
    top_n: int | None = Field(None, ge=1)
    return_documents: bool = True
    model: str = ""
    anchor: str | None = Field(None, max_length=MAX_CHARS)


class ScoreRequest(BaseModel):
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


class DocumentScore(BaseModel):
    index: int
    object: str = "score"
    score: float


class ScoreResponse(BaseModel):
    id: str
    object: str = "list"
    created: int
    model: str
    data: list[DocumentScore]
    usage: dict[str, int] = Field(default={"prompt_tokens": 0, "total_tokens": 0, "completion_tokens": 0})


class RerankResult(BaseModel):
    index: int
    document: dict[str, str] | None = None
    relevance_score: float


class RerankResponse(BaseModel):
    id: str
    model: str
    usage: dict[str, int] = Field(default={"total_tokens": 0, "prompt_tokens": 0})
    results: list[RerankResult]
    meta: dict[str, dict[str, str]] = Field(default={"api_version": {"version": "2"}})


class SGLangResult(BaseModel):
    score: float
    document: str
    index: int
    meta_info: dict[str, str] = Field(default={})


def _read(document: Document) -> tuple[str, tuple[str, ...]]:
    if isinstance(document, str):
        return document, ()
    text, image = document.get("text"), document.get("image")
    if set(document) <= {"text", "image"} and isinstance(text, str) and isinstance(image, str | None):
        return text, (image,) if image else ()
    if "content" not in document:
        raise DataError(f'a document has {sorted(document)[:5]}; expected a text, {{"text"}}, or {{"content": [parts]}}')
    return read_content(document["content"])


def _samples(queries: list[Document], documents: list[Document], anchor: str | None) -> list[Sample]:
    """Return a sample for each document. Raises DataError if there is neither one query nor one for each."""
    if len(queries) not in (1, len(documents)):
        raise DataError(f"{len(queries)} queries for {len(documents)} documents; expected one, or one for each")
    queries = queries * len(documents) if len(queries) == 1 else queries
    samples = []
    for query, document in zip(queries, documents, strict=True):
        (question, images), (response, response_images) = _read(query), _read(document)
        if not question.strip():
            raise DataError("a query has no text; a judge must know what was asked")
        if response_images:
            raise DataError("a document has an image; images are understood in the query alone")
        samples.append(Sample(question, response, images, anchor))
    return samples


def _as_list(value: Document | list[Document] | None) -> list[Document]:
    return [] if value is None else value if isinstance(value, list) else [value]


def scoring_routes(service: JudgeService) -> APIRouter:
    router = APIRouter(tags=["vLLM, Jina, Cohere, SGLang"], route_class=StrictJSONRoute)

    async def scores(samples: list[Sample]) -> list[float]:
        return [(reward + 1) / 2 for reward in await service.sample_rewards(samples)]

    @router.post("/score")
    @router.post("/v1/score")
    async def score(request: ScoreRequest) -> ScoreResponse:
        """Return a score for each document, in their order."""
        queries = _as_list(next((v for v in (request.text_1, request.queries, request.data_1) if v is not None), None))
        candidates = (request.text_2, request.documents, request.data_2, request.items)
        documents = _as_list(next((v for v in candidates if v is not None), None))
        if not queries or not documents:
            raise DataError("expected text_1 (or queries, data_1) and text_2 (or documents, data_2)")
        service.limits.check_items(max(len(queries), len(documents)), "queries or documents")
        values = await scores(_samples(queries, documents, request.anchor))
        data = [DocumentScore(index=n, score=value) for n, value in enumerate(values)]
        model = request.model or service.judge.name
        return ScoreResponse(id=f"score-{uuid.uuid4().hex}", created=int(time.time()), model=model, data=data)

    async def rank(request: RerankRequest) -> list[tuple[int, float]]:
        if len(request.documents) == 1 and request.anchor is None:
            raise DataError("one document cannot be ranked among others; give two or more, or an anchor to compare it with")
        service.limits.check_items(len(request.documents), "documents")
        values = await scores(_samples([request.query], request.documents, request.anchor))
        order = sorted(range(len(values)), key=lambda n: -values[n])
        return [(n, values[n]) for n in order][: request.top_n]

    @router.post("/rerank", response_model_exclude_none=True)
    @router.post("/v1/rerank", response_model_exclude_none=True)
    @router.post("/v2/rerank", response_model_exclude_none=True)
    async def rerank(request: RerankRequest) -> RerankResponse:
        """Return the documents by falling score."""
        results = []
        for n, value in await rank(request):
            document = {"text": _read(request.documents[n])[0]} if request.return_documents else None
            results.append(RerankResult(index=n, document=document, relevance_score=value))
        model = request.model or service.judge.name
        return RerankResponse(id=f"rerank-{uuid.uuid4().hex}", model=model, results=results)

    @router.post("/sglang/v1/rerank", response_class=JSONResponse)
    async def sglang_rerank(request: RerankRequest) -> list[SGLangResult]:
        """Return the documents by falling score, as SGLang's bare list."""
        return [SGLangResult(score=value, document=_read(request.documents[n])[0], index=n) for n, value in await rank(request)]

    return router
