"""The native API: pairs, groups, batches of them, uploads, and what watches over a server."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse

from rewardlab.errors import MediaError
from rewardlab.serving.errors import KNOWN, told
from rewardlab.serving.media import MAX_IMAGE_BYTES, MAX_VIDEO_BYTES
from rewardlab.serving.metrics import metrics_text
from rewardlab.serving.middleware import SoundRoute
from rewardlab.serving.responses import status_of
from rewardlab.serving.schemas import (
    Health,
    JudgeRequest,
    JudgeResponse,
    RewardsRequest,
    RewardsResponse,
    Status,
    Upload,
    WireVote,
)
from rewardlab.serving.service import JudgeService

PAGE = Path(__file__).parent / "page.html"


async def each(asked: Sequence[Awaitable[Any]]) -> list[dict[str, Any]]:
    """The answers, or what went wrong, one by one."""
    done = await asyncio.gather(*asked, return_exceptions=True)
    if unknown := next((one for one in done if isinstance(one, BaseException) and not isinstance(one, KNOWN)), None):
        raise unknown
    return [told(one) if isinstance(one, BaseException) else one.model_dump() for one in done]


async def _lines(live: AsyncIterator[WireVote | JudgeResponse]) -> AsyncIterator[str]:
    """JSON lines: ``{"vote"}`` as each comes, ``{"judgment"}`` at last, or ``{"error", "status"}`` where it breaks off."""
    try:
        async for one in live:
            yield json.dumps({"vote" if isinstance(one, WireVote) else "judgment": one.model_dump()}) + "\n"
    except KNOWN as error:
        yield json.dumps(told(error)) + "\n"


def routes(service: JudgeService) -> APIRouter:
    router, judge = APIRouter(tags=["native"], route_class=SoundRoute), service.judge

    @router.get("/health")
    async def health() -> Health:
        """Whether the server answers, and which judge it holds."""
        return Health(status="ok", judge=judge.name, template=judge.template.name, template_hash=judge.template.hash)

    @router.get("/ready")
    async def ready() -> JSONResponse:
        """200 where a request is likely to be judged; 503 where the engine fails, the queue is full, or it shuts down."""
        good = service.batcher.ready
        state = {"ready": good, "waiting": service.batcher.num_waiting, "failing": service.batcher.failing}
        return JSONResponse(state, status_code=200 if good else 503)

    @router.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """For Prometheus."""
        return Response(metrics_text(service), media_type="text/plain; version=0.0.4; charset=utf-8")

    @router.get("/", include_in_schema=False)
    async def front() -> RedirectResponse:
        return RedirectResponse("ui")

    @router.get("/ui", response_class=HTMLResponse)
    async def page() -> HTMLResponse:
        """A page to judge by hand and to watch the queue."""
        return HTMLResponse(PAGE.read_text(encoding="utf-8"))

    @router.get("/v1/status")
    async def status() -> Status:
        """The queue, the engine and the last answers."""
        return status_of(service.batcher, service.asker, judge)

    @router.get("/v1/models")
    async def models() -> dict[str, Any]:
        """The judge, as OpenAI's API lists models."""
        one = {"id": judge.name, "object": "model", "created": int(time.time()), "owned_by": "rewardlab"}
        return {"object": "list", "data": [one]}

    @router.post("/v1/uploads")
    async def upload(request: Request) -> Upload:
        """Keep an image, or with a Content-Type of video/... a video, to be named in later requests: the body is the file."""
        is_video = request.headers.get("content-type", "").startswith("video/")
        body, most = bytearray(), MAX_VIDEO_BYTES if is_video else MAX_IMAGE_BYTES
        async for chunk in request.stream():
            body += chunk
            if len(body) > most:
                raise MediaError(f"upload: more than {most:,} bytes; resize it first")
        return Upload(id=await run_in_threadpool(service.media.upload, bytes(body), video=is_video))

    @router.post("/v1/judge")
    async def judge_pair(request: JudgeRequest) -> JudgeResponse:
        """Which of two responses is better, by ``votes`` samples in each order."""
        return await service.judge_pair(request)

    @router.post("/v1/judge/live")
    async def judge_live(request: JudgeRequest) -> StreamingResponse:
        """As /v1/judge, a JSON line for each vote as it is cast, the whole judgment in the last; asked a vote at a time."""
        return StreamingResponse(_lines(service.judge_live(request)), media_type="application/x-ndjson")

    @router.post("/v1/rewards")
    async def rewards(request: RewardsRequest) -> RewardsResponse:
        """A reward for each of several responses to one question, by comparing two at a time in both orders."""
        return await service.rewards(request)

    @router.post("/v1/judge/batch")
    async def judge_batch(requests: list[JudgeRequest]) -> list[dict[str, Any]]:
        """As many answers as requests, in their order; one that fails is ``{"error", "status"}``, the others stand."""
        return await each([service.judge_pair(one) for one in requests])

    @router.post("/v1/rewards/batch")
    async def rewards_batch(requests: list[RewardsRequest]) -> list[dict[str, Any]]:
        """As many answers as requests, in their order; one that fails is ``{"error", "status"}``, the others stand."""
        return await each([service.rewards(one) for one in requests])

    return router
