"""rewardlab's own API: pairs, groups, batches of them, uploads, and the state of a server."""

from __future__ import annotations

import asyncio
import json
import re
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import TypeVar

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import FileResponse, Response, StreamingResponse

from rewardlab.data.urls import without_credentials
from rewardlab.errors import MediaError
from rewardlab.serving.conversations import Sample
from rewardlab.serving.errors import REQUEST_ERRORS, error_body
from rewardlab.serving.metrics import metrics_text
from rewardlab.serving.peers import JOIN_PATH, JoinRequest, JoinResponse
from rewardlab.serving.queue import COUNTS
from rewardlab.serving.request_record import current_request, tenant_of_request
from rewardlab.serving.schemas import (
    ErrorResponse,
    HealthResponse,
    Items,
    JudgeRequest,
    JudgeResponse,
    LatencySample,
    ModelCard,
    ModelList,
    ReadyResponse,
    RewardsRequest,
    RewardsResponse,
    StatusResponse,
    UploadResponse,
    VoteResult,
)
from rewardlab.serving.service import JudgeService, published_config
from rewardlab.serving.strict_json import StrictJSONRoute
from rewardlab.serving.uploads import read_upload

T = TypeVar("T")
_LABEL = re.compile(r"(\w+ [12AB])\W*\{(first|second)\}")


async def _responses(calls: Sequence[Awaitable[T]]) -> list[T | ErrorResponse]:
    results = await asyncio.gather(*calls, return_exceptions=True)
    responses: list[T | ErrorResponse] = []
    for result in results:
        if isinstance(result, REQUEST_ERRORS):
            responses.append(ErrorResponse(**error_body(result)))
        elif isinstance(result, BaseException):
            raise result
        else:
            responses.append(result)
    return responses


async def _json_lines(live: AsyncIterator[VoteResult | JudgeResponse]) -> AsyncIterator[str]:
    """Yield JSON lines: ``{"vote"}`` for each vote, and last ``{"judgment"}``, or ``{"error", "status"}`` on failure."""
    try:
        async for item in live:
            yield json.dumps({"vote" if isinstance(item, VoteResult) else "judgment": item.model_dump()}) + "\n"
    except REQUEST_ERRORS as error:
        yield json.dumps(error_body(error)) + "\n"


def template_labels(text: str) -> tuple[str, str]:
    """Return the names of the two responses in a template's text, such as ``("Answer 1", "Answer 2")``, by default "Response 1"
    and "Response 2"."""
    names = {slot: name for name, slot in _LABEL.findall(text)}
    return names.get("first", "Response 1"), names.get("second", "Response 2")


def status_response(service: JudgeService) -> StatusResponse:
    """Return the state of the engine, and of the current key's part of the queue and the open groups."""
    tenant, judge, queue, signs = tenant_of_request(), service.judge, service.queue, service.answer_signs
    record, newest = queue.tenants[tenant], queue.versions.newest
    latencies = sorted(ms for _, ms, _ in record.recent)
    return StatusResponse(
        ready=queue.ready,
        failing=queue.failing,
        version=newest.number,
        weights=newest.weights or None,
        num_draining=queue.versions.num_draining,
        loading=queue.versions.loading,
        load_error=queue.versions.load_error,
        waiting=queue.num_waiting_of(tenant),
        max_waiting=queue.options.max_waiting,
        group_members_waiting=service.group_buffer.num_waiting_of(tenant),
        judge=service.judge_name,
        template=judge.template.name,
        weighs=service.collector.has_probabilities,
        policy="weighted" if judge.decides == "by probability" else "majority",
        labels=template_labels(judge.template.text),
        batch_seconds=round(queue.batch_seconds, 4),
        signs=signs.present(tenant),
        answers=signs.measures(tenant),
        counts={name: record.counts[name] for name in COUNTS},
        median_ms=statistics.median(latencies) if latencies else None,
        p95_ms=latencies[int(0.95 * len(latencies))] if latencies else None,
        recent=[LatencySample(at=at, ms=ms, waiting=waiting) for at, ms, waiting in record.recent],
    )


def _router() -> APIRouter:
    return APIRouter(tags=["native"], route_class=StrictJSONRoute)


def state_routes(service: JudgeService) -> APIRouter:
    """Return ``/health``, ``/ready``, ``/metrics``, ``/v1/status`` and ``/v1/models``."""
    router = _router()

    @router.get("/health", response_model_exclude_none=True)
    @router.head("/health", include_in_schema=False)
    async def health(request: Request) -> HealthResponse:
        """Return that the server answers, and to clients with a key, or of a server without keys, its judge."""
        if not request.scope["has_key"]:
            return HealthResponse(status="ok")
        version, judge = service.queue.versions.newest, service.judge
        return HealthResponse(
            status="ok",
            judge=without_credentials(judge.name),
            weights=version.weights or None,
            version=version.number,
            template=judge.template.name,
            template_hash=judge.template.hash,
            judge_hash=version.hash,
            judge_config=published_config(judge.config),
            judge_config_hash=judge.config.hash,
            verdict_temperature=judge.verdict_temperature if service.collector.has_probabilities else None,
        )

    @router.get("/ready", responses={503: {"model": ReadyResponse}})
    @router.head("/ready", include_in_schema=False)
    async def ready(response: Response) -> ReadyResponse:
        """Return 200 if a request is likely to be judged; 503 if the engine fails, the queue is full, or it shuts down."""
        queue = service.queue
        response.status_code = 200 if queue.ready else 503
        return ReadyResponse(ready=queue.ready, waiting=queue.num_waiting, failing=queue.failing)

    @router.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """Return counters and gauges for Prometheus."""
        return Response(metrics_text(service), media_type="text/plain; version=0.0.4; charset=utf-8")

    @router.get("/v1/status")
    async def status() -> StatusResponse:
        """Return the state of the queue and the engine, and the last latencies."""
        return status_response(service)

    @router.get("/v1/models")
    async def models() -> ModelList:
        """List the judge, as OpenAI's API lists models."""
        return ModelList(data=[ModelCard(id=service.judge_name, created=int(time.time()))])

    @router.get("/v1/models/{name:path}")
    async def model(name: str) -> ModelCard:
        """Return the judge by its name in /v1/models; 404 for another name."""
        if name != service.judge_name:
            raise HTTPException(404, f"there is no model {name[:80]!r} here; /v1/models lists the one that is")
        return ModelCard(id=name, created=int(time.time()))

    return router


def upload_routes(service: JudgeService) -> APIRouter:
    router = _router()

    @router.post("/v1/uploads")
    @router.put("/v1/uploads", include_in_schema=False)
    @router.put("/v1/uploads/{name}", include_in_schema=False)
    async def upload(request: Request, name: str = "") -> UploadResponse:
        """Store an image or a video for later requests, which name it ``upload:ID``.

        The body is the file, or a form (multipart/form-data) with one file. A video has the Content-Type video/..., or, in a
        form or a PUT, the name of a video."""
        data, is_video = await read_upload(request, name)
        return UploadResponse(id=await service.media.upload(data, video=is_video))

    @router.get("/v1/uploads/{name}", response_class=Response, responses={200: {"content": {"application/octet-stream": {}}}})
    async def uploaded(name: str) -> Response:
        """Return an upload of this key by its id; 404 if there is none."""
        try:
            path = await service.media.uploaded(name)
        except MediaError as error:
            raise HTTPException(404, str(error)) from error
        # Sent in pieces, so that a client that does not read holds no more than one.
        return FileResponse(path, media_type="application/octet-stream", headers={"Content-Disposition": "attachment"})

    return router


def peer_routes(service: JudgeService) -> APIRouter:
    """Return the route by which peers pass on samples; none without peers."""
    router, peers = _router(), service.peers
    if peers is None:
        return router

    @router.post(JOIN_PATH, include_in_schema=False)
    async def join(request: JoinRequest) -> JoinResponse:
        """Return the reward of a sample that a peer passed on, within its group here."""
        peers.check(request.home, request.servers)
        sample = Sample(**request.model_dump(exclude={"home", "servers"}))
        reward = await service.group_buffer.join(sample.key, sample)
        return JoinResponse(reward=reward.value, weights=reward.weights, signs=reward.signs)

    return router


def judging_routes(service: JudgeService) -> APIRouter:
    router = _router()

    @router.post("/v1/judge")
    async def judge_pair(request: JudgeRequest) -> JudgeResponse:
        """Judge which of two responses is better, by ``votes`` samples in each order."""
        service.admit_requests([request])
        return await service.judge_pair(request)

    @router.post("/v1/judge/live")
    async def judge_live(request: JudgeRequest) -> StreamingResponse:
        """Judge like /v1/judge, a vote at a time: a JSON line for each vote, the judgment in the last line."""
        service.admit_requests([request])
        current_request().weights.add(service.queue.versions.current.weights)  # the header is sent before the first vote
        return StreamingResponse(_json_lines(service.judge_live(request)), media_type="application/x-ndjson")

    @router.post("/v1/rewards")
    async def rewards(request: RewardsRequest) -> RewardsResponse:
        """Reward each of several responses to one question, by comparing two at a time in both orders."""
        service.admit_requests([request])
        return await service.rewards(request)

    @router.post("/v1/judge/batch")
    async def judge_batch(requests: Items[JudgeRequest]) -> list[JudgeResponse | ErrorResponse]:
        """Return a response for each request, in their order; one that fails is ``{"error", "status"}``, the others stand."""
        service.admit_requests(requests)
        service.queue.check_room()
        return await _responses([service.judge_pair(request, waits_for_room=True) for request in requests])

    @router.post("/v1/rewards/batch")
    async def rewards_batch(requests: Items[RewardsRequest]) -> list[RewardsResponse | ErrorResponse]:
        """Return a response for each request, in their order; one that fails is ``{"error", "status"}``, the others stand."""
        service.admit_requests(requests)
        service.queue.check_room()
        return await _responses([service.rewards(request, waits_for_room=True) for request in requests])

    return router
