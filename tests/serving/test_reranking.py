"""Lists of documents as rerankers of several kinds take and return them."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from rewardlab.serving.app import create_app
from tests.support.scripted_judge import ANSWERS, PROMPT, QUESTION, handler
from tests.support.serving import in_process, judge_of


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    judge = judge_of(handler)
    with in_process(create_app(judge)) as opened:
        yield opened


def reranked(client: httpx.Client, documents: list[Any], **options: Any) -> list[dict[str, Any]]:
    response = client.post("/v2/rerank", json={"query": QUESTION, "documents": documents, **options})
    assert response.status_code == 200, response.text
    return response.json()["results"]


def test_a_long_list(client: httpx.Client) -> None:
    """Of 200 the best is first, by some comparisons for each document and not by 19,900; scores stay in 0..1."""
    documents = [f"I say {n}." for n in random.Random(0).sample(range(200), 200)]
    before = client.get("/v1/status").json()["counts"]["asked"]
    results = reranked(client, documents)
    assert client.get("/v1/status").json()["counts"]["asked"] - before <= 400
    assert sorted(result["index"] for result in results) == list(range(200))
    assert results[0]["document"] == {"text": "I say 199."}
    scores = [result["relevance_score"] for result in results]
    assert scores == sorted(scores, reverse=True)
    assert (scores[0], scores[-1]) == (1, 0)
    scored = client.post("/v1/score", json={"text_1": QUESTION, "text_2": documents}).json()["data"]
    assert max(scored, key=lambda one: one["score"])["index"] == results[0]["index"]
    refused = client.post("/v2/rerank", json={"query": QUESTION, "documents": ["a"] * 1025})
    assert (refused.status_code, "documents has 1,025 entries" in refused.json()["error"]) == (413, True)


def test_one_document_is_first(client: httpx.Client) -> None:
    """By half, the score of what neither wins nor loses; compared only with an anchor."""
    assert reranked(client, ["I say 1."]) == [{"index": 0, "relevance_score": 0.5, "document": {"text": "I say 1."}}]
    assert reranked(client, ["I say 1."], anchor="I say 2.")[0]["relevance_score"] == 0


def test_documents_that_are_objects(client: httpx.Client) -> None:
    """Cohere's: the text is read, or the fields that are named, and the objects come back whole."""
    documents = [{"text": answer, "year": 2000 + n} for n, answer in enumerate(ANSWERS)]
    assert [result["document"] for result in reranked(client, documents)] == [documents[n] for n in (1, 2, 0)]
    fields = [{"title": answer, "body": answer} for answer in ANSWERS]
    results = reranked(client, fields, rank_fields=["title", "body"], top_n=1, return_documents=False)
    assert results == [{"index": 1, "relevance_score": 1}]
    mixed = [{"title": answer, "content": {"x": 1}} for answer in ANSWERS]
    assert reranked(client, mixed, rank_fields=["title"])[0]["document"] == mixed[1]
    bad = client.post("/v1/rerank", json={"query": QUESTION, "documents": fields, "rank_fields": ["year"]})
    assert "expected texts in ['year']" in bad.json()["error"]


def test_texts_of_text_embeddings_inference(client: httpx.Client) -> None:
    """A bare list; the scores raw or in 0..1."""
    body = {"query": QUESTION, "texts": ANSWERS, "truncate": False, "truncation_direction": "Right"}
    assert client.post("/rerank", json=body).json() == [
        {"index": 1, "score": 1},
        {"index": 2, "score": 0.5},
        {"index": 0, "score": 0},
    ]
    raw = client.post("/rerank", json={**body, "raw_scores": True, "return_text": True}).json()
    assert [(one["score"], one["text"]) for one in raw] == [(1, "I say 3."), (0, "I say 2."), (-1, "I say 1.")]


def test_infinity(client: httpx.Client) -> None:
    """Its documents come back as texts."""
    body = {"query": QUESTION, "documents": ANSWERS, "model": "m"}
    results = client.post("/infinity/rerank", json=body).json()["results"]
    assert [result["document"] for result in results] == ["I say 3.", "I say 2.", "I say 1."]
    bare = client.post("/infinity/rerank", json={**body, "return_documents": False}).json()["results"]
    assert bare[0] == {"index": 1, "relevance_score": 1}


def test_parameters_that_would_change_the_scores(client: httpx.Client) -> None:
    """Refused by name."""
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("/rerank", {"query": "q", "documents": ANSWERS}),
        ("/rerank", {"query": "q", "texts": ANSWERS}),
        ("/score", {"text_1": "q", "text_2": ANSWERS}),
        ("/classify", {"input": [PROMPT + answer for answer in ANSWERS]}),
        ("/pooling", {"input": [PROMPT + answer for answer in ANSWERS]}),
    ]
    for path, body in bodies:
        accepted = client.post(path, json={**body, "use_activation": False, "truncate_prompt_tokens": None})
        assert accepted.status_code == 200
        refused = client.post(path, json={**body, "use_activation": True})
        assert refused.status_code == 400
        assert "'use_activation' is not supported here: leave it out, or send False" in refused.json()["error"]


def test_many_documents_of_a_query_with_a_large_image(client: httpx.Client) -> None:
    """The query is read once, not for each document: the server's other requests would wait for minutes."""
    url = "data:image/png;base64," + "A" * 8_000_000
    query = {"content": [{"type": "text", "text": "Which?"}, {"type": "image_url", "image_url": {"url": url}}]}
    begun = time.process_time()
    refused = client.post("/rerank", json={"query": query, "documents": [f"{n}" for n in range(400)]})
    assert (refused.status_code, "image 0" in refused.text) == (422, True)
    assert time.process_time() - begun < 3
