"""Documents of scoring and reranking APIs, as responses to a query."""

from __future__ import annotations

from collections.abc import Sequence

from rewardlab.errors import DataError
from rewardlab.serving.conversations import Sample, media_beside, read_content, text_alone
from rewardlab.serving.schemas import JsonObject
from rewardlab.serving.service import JudgeService

Document = str | JsonObject
MATCHES_PER_DOCUMENT = 2  # at most, of a knockout
MOST_COMPARED = 32  # documents of which every two are compared


def read_document(document: Document, fields: Sequence[str] = ("text",)) -> tuple[str, tuple[str, ...]]:
    """Return (text, image references) of a text, ``{"text"}``, ``{"content": [parts]}``, or an object of which ``fields`` are
    read, a line each, and its ``image``. Raises DataError for another one, and for media that are not read."""
    if isinstance(document, str):
        return document, ()
    has_parts = "content" in document and "text" not in document and list(fields) == ["text"]
    if media := [name for name in media_beside(document) if name not in fields and (has_parts or name != "image")]:
        raise DataError(f"a document has {media[0]!r}, which is not read; only a query has images, as parts of its content")
    if has_parts:
        return read_content(document["content"])
    if isinstance(document.get("content"), list):
        raise DataError("a document has parts beside its text; send its text as one of them")
    texts, image = [document.get(name) for name in fields], document.get("image")
    if not all(isinstance(text, str) for text in texts) or not isinstance(image, str | None):
        expected = 'a text, {"text"}, or {"content": [parts]}' if list(fields) == ["text"] else f"texts in {list(fields)}"
        raise DataError(f"a document has {sorted(document)[:5]}; expected {expected}")
    return "\n".join(map(str, texts)), (image,) if image else ()


def document_samples(
    queries: Sequence[Document], documents: Sequence[Document], anchor: str | None, fields: Sequence[str] = ("text",)
) -> list[Sample]:
    """Return a sample for each document. Raises DataError if there is neither one query nor one for each."""
    if len(queries) not in (1, len(documents)):
        raise DataError(f"{len(queries)} queries for {len(documents)} documents; expected one, or one for each")
    read_queries = [read_document(query) for query in queries]
    if not all(question.strip() for question, _ in read_queries):
        raise DataError("a query has no text; a judge must know what was asked")
    read_queries = read_queries * len(documents) if len(queries) == 1 else read_queries
    samples = []
    for (question, images), document in zip(read_queries, documents, strict=True):
        samples.append(Sample(question, text_alone(*read_document(document, fields)), images, anchor))
    return samples


async def document_scores(service: JudgeService, samples: Sequence[Sample]) -> list[float]:
    """Return how often each document beats others, in 0..1. Of more than :data:`MOST_COMPARED` to one query not every two are
    compared: they play a knockout. Raises as :meth:`JudgeService.sample_rewards` does."""
    first = samples[0]
    if len(samples) <= MOST_COMPARED or first.anchor is not None or any(sample.key != first.key for sample in samples):
        return [(reward + 1) / 2 for reward in await service.sample_rewards(samples, is_whole=True)]
    budget = MATCHES_PER_DOCUMENT * len(samples)
    service.admit(budget, 2 * service.rules.voting.votes * budget)
    responses = tuple(sample.response for sample in samples)
    result = await service.compare_responses(
        "documents", first.question, responses, first.images, strategy="knockout", budget=budget
    )
    return [(reward + 1) / 2 for reward in service.all_rewards(result)]
