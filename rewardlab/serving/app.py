"""The HTTP application: POST /v1/judge, POST /v1/uploads, GET /health."""

from __future__ import annotations

import socket
import threading
import time

import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rewardlab.data.pairs import validate
from rewardlab.errors import InputError, MediaError, OutputError
from rewardlab.judge import GenerativeJudge
from rewardlab.serving.media import MAX_IMAGE_BYTES, UploadStore, resolve
from rewardlab.serving.wire import Health, JudgeRequest, JudgeResponse, Upload, WireVote
from rewardlab.types import BOTH_ORDERS, Judgment, Order, PreferencePair

MAX_BODY_BYTES = 100_000_000
ORDERS = {"both": BOTH_ORDERS, "given": (Order.GIVEN,), "swapped": (Order.SWAPPED,)}


class BodyLimit:
    """ASGI middleware: a request whose body grows beyond ``max_bytes`` is answered with 413 and read no further."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app, self._max_bytes = app, max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        size = 0

        async def counted() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self._max_bytes:
                text = f"the request is larger than {self._max_bytes:,} bytes; upload its images first, or resize them"
                raise HTTPException(413, text)
            return message

        await self._app(scope, counted, send)


def pair_of(request: JudgeRequest, store: UploadStore) -> PreferencePair:
    """The pair a request describes. Raises DataError (equal or empty responses) or MediaError."""
    images = tuple(resolve(reference, store, n) for n, reference in enumerate(request.images))
    pair = PreferencePair("request", request.question, request.responses, None, images)
    return validate(pair, where="request")


def answer_of(judged: Judgment, judge: GenerativeJudge, seconds: float) -> JudgeResponse:
    votes = [
        WireVote(
            order=vote.order.value,
            status=vote.verdict.status.value,
            winner=0 if vote.winner == 0 else 1 if vote.winner == 1 else None,
            text=vote.completion.text,
            num_tokens=vote.completion.num_tokens,
        )
        for vote in judged.votes
    ]
    return JudgeResponse(
        p_first_better=judged.share_0,
        outcome=judged.outcome.value,
        num_valid=sum(vote.winner is not None for vote in votes),
        votes=votes,
        judge=judge.name,
        template_hash=judge.template.hash,
        seconds=round(seconds, 4),
    )


def build_app(judge: GenerativeJudge) -> FastAPI:
    """The application around one judge. The judge is asked by one request at a time; others wait their turn."""
    app = FastAPI(title="rewardlab", description="A generative judge of pairs of answers about images.")
    app.add_middleware(BodyLimit, max_bytes=MAX_BODY_BYTES)
    store, turn = UploadStore(), threading.Lock()

    @app.exception_handler(InputError)
    async def bad_input(request: Request, error: InputError) -> JSONResponse:
        return JSONResponse({"error": str(error)}, status_code=422)

    @app.get("/health")
    async def health() -> Health:
        """Whether the server answers, and which judge it holds."""
        return Health(status="ok", judge=judge.name, template=judge.template.name, template_hash=judge.template.hash)

    @app.post("/v1/uploads")
    async def upload(request: Request) -> Upload:
        """Keep an image (the raw bytes of a file as the body) to be named in later requests."""
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_IMAGE_BYTES:
                raise MediaError(f"upload: more than {MAX_IMAGE_BYTES:,} bytes; resize the image first")
        return Upload(id=await run_in_threadpool(store.add, bytes(body)))

    @app.post("/v1/judge")
    def judge_pair(request: JudgeRequest) -> JudgeResponse:
        """Which of two responses is better, by ``votes`` samples in each order."""
        pair = pair_of(request, store)
        with turn:
            start = time.perf_counter()
            orders = [ORDERS[request.orders]]
            judged = judge.compare_many([pair], orders=orders, num_votes=request.votes, seed=request.seed)[0]
            return answer_of(judged, judge, time.perf_counter() - start)

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


def serve(judge: GenerativeJudge, *, host: str, port: int) -> None:
    """Run until stopped."""
    uvicorn.run(build_app(judge), host=host, port=port, log_level="info")
