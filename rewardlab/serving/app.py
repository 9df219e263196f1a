"""The HTTP application: rewardlab's own API, the dialects of other frameworks, and the middleware in front of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

from fastapi import FastAPI, Security
from fastapi.security import HTTPBearer

from rewardlab.judging.judge import GenerativeJudge
from rewardlab.judging.margins import probability_judge_of
from rewardlab.serving.admission import Admission, BodyLimit
from rewardlab.serving.answer_signs import SignRules
from rewardlab.serving.auth import ApiKeyMiddleware, Key, Keys
from rewardlab.serving.browser import BrowserGuard
from rewardlab.serving.dialects.chat import chat_routes
from rewardlab.serving.dialects.nemo_gym import nemo_gym_routes
from rewardlab.serving.dialects.openrlhf import openrlhf_routes
from rewardlab.serving.dialects.scalar_models import scalar_model_routes
from rewardlab.serving.dialects.scoring import scoring_routes
from rewardlab.serving.docs_page import add_docs
from rewardlab.serving.errors import ERROR_HANDLERS
from rewardlab.serving.followed_judge import FollowedJudge
from rewardlab.serving.histograms import ServingHistograms
from rewardlab.serving.judge_versions import BindVersion
from rewardlab.serving.keys_file import KeysFile
from rewardlab.serving.limits import Limits
from rewardlab.serving.media import Media
from rewardlab.serving.middleware import CancelOnDisconnect
from rewardlab.serving.peers import Peers
from rewardlab.serving.queue import JudgeQueue
from rewardlab.serving.request_log import RequestLog
from rewardlab.serving.routes import api_routes
from rewardlab.serving.service import GroupRules, JudgeService

ROUTES = (api_routes, openrlhf_routes, nemo_gym_routes, scoring_routes, scalar_model_routes, chat_routes)


def create_app(
    judge: GenerativeJudge,
    *,
    rules: GroupRules | None = None,
    media: Media | None = None,
    keys: Sequence[Key] = (),
    keys_file: KeysFile | None = None,
    allowed_hosts: Sequence[str] = (),
    limits: Limits | None = None,
    peers: Peers | None = None,
    followed: FollowedJudge | None = None,
    sign_rules: SignRules | None = None,
    **queue_options: Any,
) -> FastAPI:
    """Return the application around one judge. ``queue_options`` are those of :class:`JudgeQueue`; requests need one of
    ``keys``, or of those that ``keys_file`` holds now, where either is given. It answers to the names ``allowed_hosts``, by
    default to any, holds requests to ``limits``, and shares groups with ``peers``. ``followed`` replaces the judge when its
    file names another. ``sign_rules`` say what is watched of the answers that it pays."""
    accepted, histograms = keys_file.keys if keys_file else Keys(keys), ServingHistograms()
    defaults = {"probability_judge": probability_judge_of(judge), "mix_seeds": not judge.sampler.is_batch_invariant}
    queue = JudgeQueue(judge, keys=accepted, histograms=histograms, **(defaults | queue_options))
    limits = limits or Limits()
    service = JudgeService(judge, queue, rules, media, histograms, limits, peers, sign_rules)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.queue.start()
        following = asyncio.create_task(followed.follow(service)) if followed else None
        yield
        if following:
            following.cancel()
        await service.queue.stop(0)  # every connection is closed: nobody waits

    app = FastAPI(
        title="rewardlab",
        description="A generative judge of pairs of answers about images.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        dependencies=[Security(HTTPBearer(scheme_name="key", auto_error=False))] if len(accepted) else [],
    )
    app.state.service, app.state.limits = service, limits
    app.add_middleware(BindVersion, versions=queue.versions)
    app.add_middleware(BodyLimit, admission=Admission(limits, are_keys=lambda: len(accepted) > 1))
    app.add_middleware(CancelOnDisconnect)
    app.add_middleware(ApiKeyMiddleware, keys=accepted, update=keys_file.update if keys_file else None)
    app.add_middleware(BrowserGuard, allowed_hosts=allowed_hosts)
    app.add_middleware(RequestLog, histograms=histograms)

    for kind, handler in ERROR_HANDLERS.items():
        app.add_exception_handler(kind, handler)
    for routes in ROUTES:
        app.include_router(routes(service))
    add_docs(app)
    return app
