"""Failures of a request that was understood, and the HTTP response to each: a status and a sentence, never a number."""

from __future__ import annotations

from rewardlab.errors import InputError


class OverloadedError(Exception):
    """The queue is full; ``retry_after_s`` is when there may be room."""

    def __init__(self, retry_after_s: int) -> None:
        super().__init__(f"the judge is busy; try again in {retry_after_s} s")
        self.retry_after_s = retry_after_s


class DeadlineExceededError(Exception):
    """The deadline passed before the request was judged, or would have."""


class GroupTimeoutError(Exception):
    """The rest of a group did not come in time: there was nothing to compare a response with."""


class EngineFailedError(Exception):
    """The engine raised, did not come back in time, or is being stopped or started; ``retry_after_s`` is when to try again."""

    def __init__(self, message: str, retry_after_s: int = 5) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class StorageError(Exception):
    """An upload cannot be written."""


class NoVerdictError(Exception):
    """No comparison of a response could be judged: there is no reward to give, and none is made up."""


# Exception -> ``status`` in the body, HTTP status.
_STATUSES: dict[type[BaseException], tuple[str, int]] = {
    OverloadedError: ("overloaded", 429),
    DeadlineExceededError: ("toolate", 504),
    GroupTimeoutError: ("alone", 408),
    EngineFailedError: ("enginefailed", 503),
    NoVerdictError: ("unjudged", 503),
    StorageError: ("storage", 507),
}
# Faults of a request or of the engine; any other exception is a fault of ours.
REQUEST_ERRORS = (
    InputError,
    OverloadedError,
    DeadlineExceededError,
    GroupTimeoutError,
    EngineFailedError,
    NoVerdictError,
    StorageError,
)


def error_body(error: BaseException) -> dict[str, str]:
    """Return the JSON body of an error: a sentence and a status."""
    input_status = type(error).__name__.removesuffix("Error").lower()
    return {"error": str(error), "status": _STATUSES.get(type(error), (input_status, 422))[0]}


def http_status(error: Exception) -> tuple[int, dict[str, str]]:
    """Return HTTP status and headers of one of :data:`REQUEST_ERRORS`."""
    headers = {"Retry-After": str(error.retry_after_s)} if isinstance(error, OverloadedError | EngineFailedError) else {}
    return _STATUSES.get(type(error), ("", 422))[1], headers
