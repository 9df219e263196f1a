"""The HTTP application: rewardlab's own API, the dialects of other frameworks, and the middleware in front of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import statistics
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from functools import partial
from typing import Any

from fastapi import APIRouter, FastAPI, HTTPException, Request, Security
from fastapi.responses import FileResponse, Response, StreamingResponse
from fastapi.security import HTTPBearer
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from pydantic import BaseModel

from rewardlab.data.urls import without_credentials
from rewardlab.errors import MediaError
from rewardlab.judging.drift import KINDS
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.judging.margins import probability_judge_of
from rewardlab.rewards.reward_log import OUTCOMES
from rewardlab.serving.admission import Admission
from rewardlab.serving.auth import Keys
from rewardlab.serving.conversations import Sample
from rewardlab.serving.dialects.openai import chat_routes, scalar_model_routes
from rewardlab.serving.dialects.scoring import scoring_routes
from rewardlab.serving.dialects.trainers import nemo_gym_routes, openrlhf_routes
from rewardlab.serving.errors import ERROR_HANDLERS, REQUEST_ERRORS, error_body
from rewardlab.serving.middleware import (
    ApiKeyMiddleware,
    BindVersion,
    BodyLimit,
    BrowserGuard,
    CancelOnDisconnect,
    RequestLog,
)
from rewardlab.serving.pages import page_routes
from rewardlab.serving.peers import JOIN_PATH, JoinRequest, JoinResponse
from rewardlab.serving.queue import COUNTS, JudgeQueue
from rewardlab.serving.request_record import ServingHistograms, current_request, tenant_of_request
from rewardlab.serving.schemas import (
    ErrorResponse,
    HealthResponse,
    Items,
    JudgeRequest,
    JudgeResponse,
    ModelCard,
    ModelList,
    ReadyResponse,
    RewardsRequest,
    RewardsResponse,
    StatusResponse,
    UploadResponse,
    VoteResult,
)
from rewardlab.serving.service import JudgeService, ServerOptions, published_config
from rewardlab.serving.strict_json import StrictJSONRoute
from rewardlab.serving.uploads import read_upload
from rewardlab.serving.voting import gather_bounded
from rewardlab.types import VerdictStatus

_LABEL = re.compile(r"(\w+ [12AB])\W*\{(first|second)\}")


async def _responses(calls: Iterable[Callable[[], Coroutine[Any, Any, BaseModel]]]) -> Response:
    """Return the list of responses, each written by its own call: a whole batch written at once would hold the event loop."""

    async def response(call: Callable[[], Coroutine[Any, Any, BaseModel]]) -> str:
        try:
            return (await call()).model_dump_json()
        except REQUEST_ERRORS as error:
            return ErrorResponse(**error_body(error)).model_dump_json()

    parts = await gather_bounded(partial(response, call) for call in calls)
    return Response(f"[{','.join(parts)}]", media_type="application/json")


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
    tenant, judge, queue = tenant_of_request(), service.judge, service.queue
    record, newest = queue.tenants[tenant], queue.versions.newest
    latencies = sorted(record.latencies_ms)
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
        counts={name: record.counts[name] for name in COUNTS},
        median_ms=statistics.median(latencies) if latencies else None,
        p95_ms=latencies[int(0.95 * len(latencies))] if latencies else None,
        certified_error=service.guarantee.certified.error if service.guarantee else None,
        certificate=service.certificate["id"] if service.certificate else None,
        drift=service.drift[tenant].left if tenant in service.drift else {},
    )


def _router() -> APIRouter:
    return APIRouter(tags=["native"], route_class=StrictJSONRoute)


def state_routes(service: JudgeService) -> APIRouter:
    """Return ``/health``, ``/ready``, ``/metrics``, ``/v1/status``, ``/v1/certificate`` and ``/v1/models``."""
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

    @router.get("/v1/certificate")
    async def certificate() -> dict[str, Any]:
        """Return the certificate of the judge that serves now; 404 without one, or once another judge serves."""
        if service.certificate is None:
            raise HTTPException(404, "no certificate fits the judge that serves; start the server with --certificate FILE")
        return dict(service.certificate)

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
        peers.check(request.home, request.servers, request.judge, service.queue.versions.current.hash)
        sample = Sample(**{field.name: getattr(request, field.name) for field in fields(Sample)})
        reward = await service.group_buffer.join(sample.key, sample, sample.rollout)
        return JoinResponse(reward=reward.value, weights=reward.weights, components=dict(reward.components))

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

    @router.post("/v1/judge/batch", response_model=list[JudgeResponse | ErrorResponse])
    async def judge_batch(requests: Items[JudgeRequest]) -> Response:
        """Return a response for each request, in their order; one that fails is ``{"error", "status"}``, the others stand."""
        service.admit_requests(requests)
        service.queue.check_room()
        return await _responses(partial(service.judge_pair, request, waits_for_room=True) for request in requests)

    @router.post("/v1/rewards/batch", response_model=list[RewardsResponse | ErrorResponse])
    async def rewards_batch(requests: Items[RewardsRequest]) -> Response:
        """Return a response for each request, in their order; one that fails is ``{"error", "status"}``, the others stand."""
        service.admit_requests(requests)
        service.queue.check_room()
        return await _responses(partial(service.rewards, request, waits_for_room=True) for request in requests)

    return router


class ServiceCollector:
    """Reads the counters of a service."""

    def __init__(self, service: JudgeService) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        queue, groups = self._service.queue, self._service.group_buffer
        for name, description in COUNTS.items():
            yield CounterMetricFamily(f"rewardlab_{name}", description, value=queue.counts[name])
        votes = {status.value: queue.statuses[status.value] for status in VerdictStatus}
        yield _by_label("votes", "samples by verdict status", "status", votes)
        yield CounterMetricFamily("rewardlab_groups_dissolved", "groups that did not fill in time", value=groups.num_dissolved)
        for name, description, value in (
            ("waiting", "pairs in the queue", queue.num_waiting),
            ("group_members_waiting", "responses that wait for their group", groups.num_waiting),
            ("batch_seconds", "moving average of one call of the engine", queue.batch_seconds),
            ("judge_version", "number of the judge since the start", queue.versions.newest.number),
            ("judges_draining", "replaced judges with unanswered requests", queue.versions.num_draining),
            ("ready", "whether a request is likely to be answered", float(queue.ready)),
        ):
            yield GaugeMetricFamily(f"rewardlab_{name}", description, value=value)
        drift = GaugeMetricFamily("rewardlab_drift", "1 if requests of a key left what was certified", labels=["key", "what"])
        for tenant, monitor in self._service.drift.items():
            for kind in KINDS:
                drift.add_metric([tenant, kind], float(kind in monitor.left))
        yield drift
        log = self._service.reward_log
        logged = log.counts if log else dict.fromkeys(OUTCOMES, 0)
        yield _by_label("reward_log_groups", "rewarded groups for --reward-log", "outcome", logged)


def _by_label(name: str, description: str, label: str, values: Mapping[str, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(f"rewardlab_{name}", description, labels=[label])
    for value, number in values.items():
        family.add_metric([value], number)
    return family


def metrics_text(service: JudgeService) -> bytes:
    registry = CollectorRegistry()
    registry.register(ServiceCollector(service))
    return generate_latest(registry) + generate_latest(service.histograms.registry)


ROUTES = (
    state_routes,
    upload_routes,
    peer_routes,
    judging_routes,
    page_routes,
    openrlhf_routes,
    nemo_gym_routes,
    scoring_routes,
    scalar_model_routes,
    chat_routes,
)


def create_app(judge: GenerativeJudge, options: ServerOptions | None = None) -> FastAPI:
    """Return the application around one judge."""
    options = options or ServerOptions()
    keys, histograms = options.keys_file.keys if options.keys_file else Keys(options.keys), ServingHistograms()
    queue = JudgeQueue(
        judge,
        replace(options.queue, mix_seeds=options.queue.mix_seeds or not judge.sampler.is_batch_invariant),
        probability_judge=probability_judge_of(judge),
        keys=keys,
        histograms=histograms,
    )
    service = JudgeService(queue, options, histograms)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        queue.start()
        following = asyncio.create_task(options.judge_file.follow(queue)) if options.judge_file else None
        yield
        if following:
            following.cancel()
        queue.stop()  # every connection is closed: nobody waits
        if options.reward_log is not None:
            await options.reward_log.close()

    app = FastAPI(
        title="rewardlab",
        description="A generative judge of pairs of answers about images.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        dependencies=[Security(HTTPBearer(scheme_name="key", auto_error=False))] if len(keys) else [],
    )
    app.state.service, app.state.limits = service, options.limits
    app.add_middleware(BindVersion, versions=queue.versions)
    app.add_middleware(BodyLimit, admission=Admission(options.limits, are_keys=lambda: len(keys) > 1))
    app.add_middleware(CancelOnDisconnect)
    app.add_middleware(ApiKeyMiddleware, keys=keys, update=options.keys_file.update if options.keys_file else None)
    app.add_middleware(BrowserGuard, allowed_hosts=options.allowed_hosts)
    app.add_middleware(RequestLog, histograms=histograms)

    for kind, handler in ERROR_HANDLERS.items():
        app.add_exception_handler(kind, handler)
    for routes in ROUTES:
        app.include_router(routes(service))
    return app
