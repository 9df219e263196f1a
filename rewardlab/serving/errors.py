"""Failures of a request, and the HTTP answer to each: a status and a sentence, never a number.

It is ``{"error": sentence, "status": status}``, and below the paths of OpenAI's API ``{"error": {"message", "type", "code",
"param"}}``, as its clients expect.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from rewardlab.data.urls import without_credentials
from rewardlab.errors import InputError
from rewardlab.serving.request_record import current_request
from rewardlab.serving.schemas import JudgeRequest, RewardsRequest


class OverloadedError(Exception):
    """The server has no room, for the ``reason``; it may have in ``retry_after_s``."""

    def __init__(self, retry_after_s: int, reason: str = "the judge is busy") -> None:
        super().__init__(f"{reason}; try again in {retry_after_s} s")
        self.retry_after_s = retry_after_s


class RequestTooLargeError(Exception):
    """A request, or a part of one, holds more than the whole server may: a retry cannot succeed."""


class DeadlineExceededError(Exception):
    """The deadline passed before the request was judged, or would pass."""


class ContextLengthError(InputError):
    """A prompt is longer than the judge's model reads."""


class GroupTimeoutError(Exception):
    """The other responses of a group did not come in time."""


class EngineFailedError(Exception):
    """The engine raised, timed out, or is being stopped or started; retry in ``retry_after_s``."""

    def __init__(self, message: str, retry_after_s: int = 5) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class PeerError(Exception):
    """The server that collects a group does not answer, or does not share it; retry in ``retry_after_s``."""

    retry_after_s = 5


class OtherJudgeError(PeerError):
    """The server that collects a group has another judge than the one that a response was sent to."""


class StorageError(Exception):
    """An upload cannot be written."""


class UnsupportedParameterError(Exception):
    """A request sets a parameter, ``param``, that would change the answer and is not supported."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.param = param


class NoVerdictError(Exception):
    """No comparison of a response could be judged, so that it has no reward."""


# Exception -> ``status`` in the body, HTTP status.
_STATUSES: dict[type[Exception], tuple[str, int]] = {
    OverloadedError: ("overloaded", 429),
    RequestTooLargeError: ("toolarge", 413),
    DeadlineExceededError: ("toolate", 504),
    GroupTimeoutError: ("alone", 408),
    ContextLengthError: ("context_length_exceeded", 400),
    EngineFailedError: ("enginefailed", 503),
    NoVerdictError: ("unjudged", 503),
    PeerError: ("peer", 503),
    OtherJudgeError: ("otherjudge", 503),
    StorageError: ("storage", 507),
    UnsupportedParameterError: ("unsupported", 400),
}
# Faults of a request or of the engine; any other exception is a bug.
REQUEST_ERRORS: tuple[type[Exception], ...] = (InputError, *_STATUSES)


MAX_DETAILS = 10  # errors of one body that are listed
# Status in the body by HTTP status, if only that is known.
_STATUSES_BY_CODE = {400: "malformed", 401: "key", 404: "path", 405: "method", 413: "toolarge", 422: "input", 429: "overloaded"}
_OPENAI_PATH = re.compile(r"/v1/(?:chat|completions|responses|embeddings|models|moderations|files|batches)(?:/|$)")
_OPENAI_TYPES = {401: "authentication_error", 429: "rate_limit_error"}


def _status_of(error: Exception) -> tuple[str, int]:
    """Return the ``status`` in the body and the HTTP status; an InputError is named by its class."""
    return _STATUSES.get(type(error), (type(error).__name__.removesuffix("Error").lower(), 422))


def error_body(error: Exception) -> dict[str, Any]:
    """Return an error as an item of a batch or a stream: a sentence, a status, and ``retry_after_s`` if known."""
    retry = {"retry_after_s": seconds} if (seconds := getattr(error, "retry_after_s", None)) is not None else {}
    return {"error": without_credentials(str(error)), "status": _status_of(error)[0]} | retry


def error_response(
    path: str,
    code: int,
    sentence: str,
    *,
    status: str = "",
    param: str | None = None,
    headers: Mapping[str, str] | None = None,
    detail: Any = None,
) -> JSONResponse:
    """Return an error in the shape for clients of ``path``. ``status`` is a word for the failure (default: by the HTTP status
    ``code``), ``param`` the wrong field of the request."""
    status = status or _STATUSES_BY_CODE.get(code, "failed")
    identity = {"request_id": name} if (name := current_request().id) else {}
    if _OPENAI_PATH.search(path):
        kind = _OPENAI_TYPES.get(code, "server_error" if code >= 500 else "invalid_request_error")
        body: dict[str, Any] = {"error": {"message": sentence, "type": kind, "code": status, "param": param}} | identity
    else:
        body = {"error": sentence, "status": status} | identity | ({} if detail is None else {"detail": detail})
    return JSONResponse(body, status_code=code, headers=dict(headers or {}))


async def failed_request(request: Request, error: Exception) -> JSONResponse:
    body, code, param = error_body(error), _status_of(error)[1], getattr(error, "param", None)
    headers = {"Retry-After": str(body["retry_after_s"])} if "retry_after_s" in body else {}
    return error_response(request.url.path, code, body["error"], status=body["status"], param=param, headers=headers)


def _in_words(name: str, item: Mapping[str, Any]) -> str:
    """Return a sentence about a wrong field, clearer than the schema's own if that does not help."""
    if item["type"] == "json_invalid":
        return f"the body is not valid JSON (at character {name}: {item.get('ctx', {}).get('error', 'unreadable')})"
    if item["type"] == "extra_forbidden":
        near = get_close_matches(str(item["loc"][-1]), {**JudgeRequest.model_fields, **RewardsRequest.model_fields}, n=1)
        return f"{name}: there is no such field" + (f"; did you mean {near[0]!r}?" if near else "")
    message = str(item["msg"]).removeprefix("Value error, ")
    return f"{name}: {message}" if name else message if item["type"] == "value_error" else f"body: {message}"


async def invalid_request(request: Request, error: Exception) -> JSONResponse:
    """Answer a body that does not fit its schema with the first :data:`MAX_DETAILS` errors, without the input."""
    assert isinstance(error, RequestValidationError)
    errors = error.errors()
    num_errors, items = len(errors), errors[:MAX_DETAILS]
    detail = [{"loc": list(map(str, item["loc"])), "msg": item["msg"], "type": item["type"]} for item in items]
    names = [str(item.get("ctx", {}).get("param") or ".".join(map(str, item["loc"][1:]))) for item in items]
    sentence = "; ".join(_in_words(name, item) for name, item in zip(names[:3], items, strict=False))
    sentence += f"; and {num_errors - 3:,} more" if num_errors > 3 else ""
    if items[0]["loc"] == ("body",) and not request.headers.get("content-type", "").startswith("application/json"):
        sentence = "the body is not declared as JSON; send the header Content-Type: application/json"
    return error_response(request.url.path, 422, sentence, status="input", param=names[0] or None, detail=detail)


async def refused_request(request: Request, error: Exception) -> JSONResponse:
    """Answer a refusal of the routing or of the body: an unknown path, another method, too many bytes."""
    assert isinstance(error, HTTPException)
    path, sentence = request.url.path, str(error.detail)
    if error.status_code == 404 and sentence == "Not Found":
        sentence = f"{path}: no such path; /docs lists them all"
    elif error.status_code == 405:
        sentence = f"{path} takes {(error.headers or {}).get('Allow', 'another method')}, not {request.method}"
    return error_response(path, error.status_code, sentence, headers=error.headers)


async def internal_error(request: Request, error: Exception) -> JSONResponse:
    return error_response(request.url.path, 500, f"the server failed ({type(error).__name__}); its log says more")


ERROR_HANDLERS = {
    **dict.fromkeys(REQUEST_ERRORS, failed_request),
    RequestValidationError: invalid_request,
    HTTPException: refused_request,
    Exception: internal_error,
}
