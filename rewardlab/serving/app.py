"""The HTTP application: the native API, the dialects of other frameworks, and what stands before them."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Sequence
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from rewardlab.errors import OutputError
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.judging.margins import probability_judge_of
from rewardlab.serving import routes as native
from rewardlab.serving.auth import Key, KeyGate, Keys
from rewardlab.serving.dialects import chat, nemo_gym, openrlhf, scalar_models, scoring
from rewardlab.serving.errors import KNOWN, status_of, told
from rewardlab.serving.media import Media
from rewardlab.serving.middleware import BodyLimit, HangUp
from rewardlab.serving.queue import Batcher
from rewardlab.serving.service import GroupRules, JudgeService

MAX_BODY_BYTES = 100_000_000


def build_app(
    judge: GenerativeJudge,
    *,
    rules: GroupRules | None = None,
    media: Media | None = None,
    keys: Sequence[Key] = (),
    **queue: Any,
) -> FastAPI:
    """The application around one judge. ``queue`` are the options of :class:`Batcher`; ``keys`` are let in (none: all)."""
    queue = {"weigher": probability_judge_of(judge), "mixes_seeds": not judge.sampler.is_batch_invariant, **queue}
    service = JudgeService(judge, Batcher(judge, **queue), rules, media)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.batcher.start()
        yield
        await service.batcher.stop()

    app = FastAPI(title="rewardlab", description="A generative judge of pairs of answers about images.", lifespan=lifespan)
    app.add_middleware(BodyLimit, max_bytes=MAX_BODY_BYTES)
    app.add_middleware(HangUp)
    app.add_middleware(KeyGate, keys=Keys(keys))

    @app.exception_handler(RequestValidationError)
    async def not_understood(request: Request, error: RequestValidationError) -> JSONResponse:
        # Without the input: it may be large, and is known to who sent it.
        wrong = [{"loc": list(map(str, one["loc"])), "msg": one["msg"], "type": one["type"]} for one in error.errors()]
        said = "; ".join(f"{'.'.join(one['loc'][1:]) or 'body'}: {one['msg']}" for one in wrong[:3])
        return JSONResponse({"error": said, "status": "input", "detail": wrong}, status_code=422)

    for kind in KNOWN:

        @app.exception_handler(kind)
        async def not_judged(request: Request, error: Exception) -> JSONResponse:
            status, headers = status_of(error)
            return JSONResponse(told(error), status_code=status, headers=headers)

    for dialect in (native, openrlhf, nemo_gym, scoring, scalar_models, chat):
        app.include_router(dialect.routes(service))
    return app


def check_port(host: str, port: int) -> None:
    """Raise OutputError unless the port can be listened on."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise OutputError(f"{host}:{port} cannot be listened on ({error.strerror}); choose another --port") from error


def serve(judge: GenerativeJudge, *, host: str, port: int, **options: Any) -> None:
    """Run until stopped; on SIGTERM nothing new is taken and what waits is finished. ``options`` are those of build_app."""
    uvicorn.run(build_app(judge, **options), host=host, port=port, log_level="info", timeout_graceful_shutdown=90)
