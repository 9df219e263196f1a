"""The HTTP application: rewardlab's own API, the dialects of other frameworks, and the middleware in front of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace

from fastapi import FastAPI, Security
from fastapi.security import HTTPBearer

from rewardlab.judging.judge import GenerativeJudge
from rewardlab.judging.margins import probability_judge_of
from rewardlab.serving.admission import Admission, BodyLimit
from rewardlab.serving.auth import ApiKeyMiddleware, Keys
from rewardlab.serving.dialects.chat import chat_routes
from rewardlab.serving.dialects.nemo_gym import nemo_gym_routes
from rewardlab.serving.dialects.openrlhf import openrlhf_routes
from rewardlab.serving.dialects.scalar_models import scalar_model_routes
from rewardlab.serving.dialects.scoring import scoring_routes
from rewardlab.serving.errors import ERROR_HANDLERS
from rewardlab.serving.judge_versions import BindVersion
from rewardlab.serving.middleware import BrowserGuard, CancelOnDisconnect
from rewardlab.serving.pages import page_routes
from rewardlab.serving.queue import JudgeQueue
from rewardlab.serving.request_record import RequestLog, ServingHistograms
from rewardlab.serving.routes import judging_routes, peer_routes, state_routes, upload_routes
from rewardlab.serving.service import JudgeService, ServerOptions

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
        await queue.stop(0)  # every connection is closed: nobody waits

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
