"""What can go wrong with a request that was understood, and what is told of it: a status and a sentence, never a number."""

from __future__ import annotations

from rewardlab.errors import InputError


class OverloadedError(Exception):
    """The queue is full; ``retry_after_s`` is when there may be room."""

    def __init__(self, retry_after_s: int) -> None:
        super().__init__(f"the judge is busy; try again in {retry_after_s} s")
        self.retry_after_s = retry_after_s


class TooLateError(Exception):
    """The deadline passed before the engine was free."""


class AloneError(Exception):
    """The others of a cohort did not come in time: there was nothing to compare a response with."""


class EngineFailedError(Exception):
    """The engine raised, or did not come back in time."""


class UnjudgedError(Exception):
    """No comparison of a response could be judged: there is no reward to give, and none is made up."""


# Of a request or of the engine; anything else is a fault of ours.
KNOWN = (InputError, OverloadedError, TooLateError, AloneError, EngineFailedError, UnjudgedError)


def told(error: BaseException) -> dict[str, str]:
    """The body that says so."""
    return {"error": str(error), "status": type(error).__name__.removesuffix("Error").lower()}


def status_of(error: Exception) -> tuple[int, dict[str, str]]:
    """HTTP status and headers."""
    if isinstance(error, InputError):
        return 422, {}
    if isinstance(error, OverloadedError):
        return 429, {"Retry-After": str(error.retry_after_s)}
    if isinstance(error, AloneError):
        return 408, {}
    return (504 if isinstance(error, TooLateError) else 503), {}
