"""Responses as documents: vLLM's ``/score``; ``/rerank`` of Jina, Cohere, Text Embeddings Inference, SGLang and Infinity.

The query is the question, the documents are the responses, and a score is how often a document beats the others, in 0..1.
``anchor``, which these APIs do not have, is a document to compare with. A single document without anchor is ranked first with
0.5, without comparison; its ``/score`` waits for others of the same query.
"""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from rewardlab.data.conversations import Content, media_beside, place_media, place_own, read_content
from rewardlab.errors import DataError
from rewardlab.serving.conversations import Sample
from rewardlab.serving.dialects.openai import CUTTING, answer_head, refuse_unsupported
from rewardlab.serving.schemas import MAX_CHARS, Items, JsonObject, example_config
from rewardlab.serving.service import JudgeService
from rewardlab.serving.strict_json import StrictJSONRoute
from rewardlab.types import IMAGE_MARK, VIDEO_MARK

Document = str | JsonObject
MATCHES_PER_DOCUMENT = 2  # at most, in a knockout
MOST_COMPARED = 32  # documents, of which every two are compared


def read_document(document: Document, fields: Sequence[str] = ("text",)) -> Content:
    """Return the content of a text, ``{"text"}``, ``{"content": [parts]}``, or an object with ``fields``, a line each, and an
    ``image``, which comes first. Raise DataError for another document, and for media that are not read."""
    if isinstance(document, str):
        return Content(document)
    has_parts = "content" in document and "text" not in document and list(fields) == ["text"]
    if media := [name for name in media_beside(document) if name not in fields and (has_parts or name != "image")]:
        raise DataError(f"a document has {media[0]!r}, which is not supported; send images as parts of its content")
    if has_parts:
        return read_content(document["content"])
    if isinstance(document.get("content"), list):
        raise DataError("a document has other parts than text; send text only")
    image = document.get("image")
    texts = [document.get(name, "" if image else None) for name in fields]
    if not all(isinstance(text, str) for text in texts) or not isinstance(image, str | None):
        expected = 'a text, {"text"}, or {"content": [parts]}' if list(fields) == ["text"] else f"texts in {list(fields)}"
        raise DataError(f"a document has {sorted(document)[:5]}; expected {expected}")
    content = Content("\n".join(map(str, texts)))
    return place_own(content, [image], [], "a document") if image else content


def document_samples(
    queries: Sequence[Document], documents: Sequence[Document], anchor: str | None, fields: Sequence[str] = ("text",)
) -> list[Sample]:
    """Return a sample for each document. Raise DataError unless there is one query, or one for each."""
    if len(queries) not in (1, len(documents)):
        raise DataError(f"{len(queries)} queries for {len(documents)} documents; expected one, or one for each")
    read_queries = [read_document(query) for query in queries]
    if not all(query.text.strip(IMAGE_MARK + VIDEO_MARK).strip() for query in read_queries):
        raise DataError("a query has no text; the judge needs the question")
    placed = [place_media([query], where="the query")[0] for query in read_queries]
    return [
        Sample.of(query, read_document(document, fields), anchor)
        for query, document in zip(placed * len(documents) if len(queries) == 1 else placed, documents, strict=True)
    ]


async def document_scores(service: JudgeService, samples: Sequence[Sample]) -> list[float]:
    """Return how often each document beats others, in 0..1. More than :data:`MOST_COMPARED` documents of one query play a
    knockout. Raise as :meth:`JudgeService.sample_rewards` does."""
    first = samples[0]
    if len(samples) <= MOST_COMPARED or first.anchor is not None or any(sample.prompt != first.prompt for sample in samples):
        return [(reward + 1) / 2 for reward in await service.sample_rewards(samples, is_whole=True)]
    budget = MATCHES_PER_DOCUMENT * len(samples)
    service.admit(budget, 2 * service.voting.votes * budget)
    result = await service.compare_samples(samples, strategy="knockout", budget=budget)
    return [(reward + 1) / 2 for reward in service.all_rewards(result)]


class RerankRequest(BaseModel):
    """``documents`` are texts, ``{"content": [parts]}``, or objects with a ``text`` or the ``rank_fields``. Only the query may
    have images."""

    model_config = example_config(
        {"query": "What color is it?", "documents": ["It is red.", "It is blue."], "top_n": 1}, extra="allow"
    )
    query: Document
    documents: Items[Document] = Field(min_length=1)
    top_n: int | None = Field(None, ge=1)
    return_documents: bool = True
    rank_fields: list[str] = Field(default=["text"], min_length=1, max_length=16)
    model: str = ""
    anchor: str | None = Field(None, max_length=MAX_CHARS)


class TextsRequest(BaseModel):
    """Text Embeddings Inference's, with ``texts`` instead of documents."""

    model_config = ConfigDict(extra="allow")
    model: str = ""
    query: str
    texts: Items[str] = Field(min_length=1)
    top_n: int | None = Field(None, ge=1)
    return_text: bool = False
    raw_scores: bool = Field(False, description="rewards in -1..1 in place of scores in 0..1")


class ScoreRequest(BaseModel):
    """vLLM's names, old and new; one query for all documents, or one for each."""

    model_config = example_config({"text_1": "What color is it?", "text_2": ["It is red.", "It is blue."]}, extra="allow")
    text_1: Document | Items[Document] | None = None
    text_2: Document | Items[Document] | None = None
    queries: Document | Items[Document] | None = None
    documents: Document | Items[Document] | None = None
    data_1: Document | Items[Document] | None = None
    data_2: Document | Items[Document] | None = None
    items: Document | Items[Document] | None = None
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
    document: JsonObject | None = None
    relevance_score: float


class RerankResponse(BaseModel):
    id: str
    model: str
    usage: dict[str, int] = Field(default={"total_tokens": 0, "prompt_tokens": 0})
    results: list[RerankResult]
    meta: dict[str, dict[str, str]] = Field(default={"api_version": {"version": "2"}})


class InfinityResult(BaseModel):
    index: int
    document: str | None = None
    relevance_score: float


class InfinityResponse(BaseModel):
    id: str
    object: str = "rerank"
    created: int
    model: str
    usage: dict[str, int] = Field(default={"total_tokens": 0, "prompt_tokens": 0})
    results: list[InfinityResult]


class TextsResult(BaseModel):
    index: int
    score: float
    text: str | None = None


class SGLangResult(BaseModel):
    score: float
    document: str
    index: int
    meta_info: dict[str, str] = Field(default={})


def _first_of(*values: Document | list[Document] | None) -> list[Document]:
    """Return the first value that is given, as a list."""
    value = next((value for value in values if value is not None), [])
    return value if isinstance(value, list) else [value]


def scoring_routes(service: JudgeService) -> APIRouter:
    router = APIRouter(tags=["vLLM, Jina, Cohere, SGLang"], route_class=StrictJSONRoute)

    @router.post("/score")
    @router.post("/v1/score")
    async def score(request: ScoreRequest) -> ScoreResponse:
        """Return a score for each document, in order."""
        refuse_unsupported(request.model_extra, without_effect=CUTTING)
        queries = _first_of(request.text_1, request.queries, request.data_1)
        documents = _first_of(request.text_2, request.documents, request.data_2, request.items)
        if not queries or not documents:
            raise DataError("expected text_1 (or queries, data_1) and text_2 (or documents, data_2)")
        values = await document_scores(service, document_samples(queries, documents, request.anchor))
        data = [DocumentScore(index=n, score=value) for n, value in enumerate(values)]
        return ScoreResponse(**answer_head(service, "score", request.model), data=data)

    async def rank(request: RerankRequest) -> list[tuple[int, float]]:
        refuse_unsupported(request.model_extra, without_effect=CUTTING)
        samples = document_samples([request.query], request.documents, request.anchor, request.rank_fields)
        is_alone = len(samples) == 1 and request.anchor is None
        values = [0.5] if is_alone else await document_scores(service, samples)
        order = sorted(range(len(values)), key=lambda n: -values[n])
        return [(n, values[n]) for n in order][: request.top_n]

    async def rank_texts(request: TextsRequest) -> list[TextsResult]:
        refuse_unsupported(request.model_extra, without_effect=CUTTING)
        ranks = await rank(RerankRequest(query=request.query, documents=[*request.texts], top_n=request.top_n, anchor=None))
        return [
            TextsResult(
                index=n,
                score=2 * value - 1 if request.raw_scores else value,
                text=request.texts[n] if request.return_text else None,
            )
            for n, value in ranks
        ]

    @router.post("/rerank", response_model_exclude_none=True)
    @router.post("/v1/rerank", response_model_exclude_none=True)
    @router.post("/v2/rerank", response_model_exclude_none=True)
    async def rerank(request: RerankRequest | TextsRequest) -> RerankResponse | list[TextsResult]:
        """Return the documents by falling score; for ``texts`` a bare list, as Text Embeddings Inference does."""
        if isinstance(request, TextsRequest):
            return await rank_texts(request)
        results = []
        for n, value in await rank(request):
            given = request.documents[n]
            is_chat = isinstance(given, dict) and "content" in given and request.rank_fields == ["text"]
            document = {"text": read_document(given).text} if isinstance(given, str) or is_chat else given
            results.append(
                RerankResult(index=n, document=document if request.return_documents else None, relevance_score=value)
            )
        return RerankResponse(**answer_head(service, "rerank", request.model), results=results)

    def text_of(request: RerankRequest, n: int) -> str:
        return read_document(request.documents[n], request.rank_fields).text

    @router.post("/infinity/rerank", response_model_exclude_none=True)
    async def infinity_rerank(request: RerankRequest) -> InfinityResponse:
        """Return the documents, as texts, by falling score, as Infinity does."""
        ranks, returned = await rank(request), request.return_documents
        results = [
            InfinityResult(index=n, document=text_of(request, n) if returned else None, relevance_score=value)
            for n, value in ranks
        ]
        return InfinityResponse(**answer_head(service, "infinity", request.model), results=results)

    @router.post("/sglang/v1/rerank", response_class=JSONResponse)
    async def sglang_rerank(request: RerankRequest) -> list[SGLangResult]:
        """Return the documents by falling score, as SGLang's bare list."""
        return [SGLangResult(score=value, document=text_of(request, n), index=n) for n, value in await rank(request)]

    return router
