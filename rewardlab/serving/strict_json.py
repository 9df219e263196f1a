"""Untrusted JSON: UTF-8, of bounded size, depth and length, with representable numbers and characters.

Values beyond a limit are refused here, before pydantic would build an error for each of them.
"""

from __future__ import annotations

import gc
import json
import math
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from fastapi import HTTPException, Request, Response
from fastapi.routing import APIRoute

from rewardlab.data.files import has_lone_surrogate
from rewardlab.errors import DataError
from rewardlab.serving.conversations import read_label
from rewardlab.serving.limits import Limits
from rewardlab.serving.media import run_in_turn
from rewardlab.verdicts.formats import without_doubles

# Texts below these may be whole files.
MEDIA_KEYS = frozenset({"images", "videos", "image", "image_url", "video", "video_url", "url", "media"})
LABEL_KEYS = frozenset({"label", "labels"})  # texts below these may be JSON themselves
LONG_KEYS = frozenset({"verify_responses"})  # the rollouts of a whole evaluation, which are not judged
LARGE_BYTES = 200_000  # of a body that is read in a thread, so that others are served meanwhile
_NUMBERS = {int, float, bool, type(None)}


def parse_json(body: bytes, limits: Limits) -> Any:
    """Return the value of a body. Raise HTTPException beyond ``limits``, for a body that is not UTF-8, for numbers that are not
    JSON, and for half of a surrogate pair; JSONDecodeError for malformed JSON."""
    # Counted before anything is built: a value of two bytes takes fifty in memory.
    _check_number(sum(map(body.count, (b",", b"[", b"{"))), limits)
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise HTTPException(400, f"the body is not UTF-8 ({error.reason} at byte {error.start}); send JSON in UTF-8") from error
    with _NO_COLLECTION:
        value = _loads(text, limits)
        _check_values(value, limits, has_surrogates="\\u" in text)
        return value


class _NoCollection:
    """A context without garbage collection, until the last of its threads leaves it: JSON has no cycles, and the search for
    them takes five times as long as parsing."""

    def __init__(self) -> None:
        self._lock, self._num_threads, self._was_enabled = threading.Lock(), 0, True

    def __enter__(self) -> None:
        with self._lock:
            if not self._num_threads:
                self._was_enabled = gc.isenabled()
                gc.disable()
            self._num_threads += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._num_threads -= 1
            if self._was_enabled and not self._num_threads:
                gc.enable()


_NO_COLLECTION = _NoCollection()


def _check_number(number: int, limits: Limits) -> None:
    if number > limits.json_values:
        raise HTTPException(
            413,
            f"the request has {number:,} commas and opening brackets; this server takes at most {limits.json_values:,} "
            "(its --limit json_values): send less at a time",
        )


def _loads(text: str, limits: Limits) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite, object_pairs_hook=partial(_object, limits))
    except RecursionError as error:
        raise _too_deep(limits) from error
    except json.JSONDecodeError:
        raise
    except ValueError as error:  # an integer of thousands of digits
        raise HTTPException(400, "the body holds an integer of more digits than can be read") from error


def _object(limits: Limits, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > limits.items:  # refused before it is built
        _check_length(len(pairs), "an object of the body", limits)
    try:
        return without_doubles(pairs)
    except ValueError as error:
        raise HTTPException(400, f"the body cannot be read: {error}") from error


def _refuse(constant: str) -> None:
    raise HTTPException(400, f"the body holds {constant}, which is no number of JSON")


def _finite(text: str) -> float:
    if math.isinf(number := float(text)):
        raise HTTPException(400, f"the body holds {text[:40]}, which is beyond what a number can be")
    return number


def _too_deep(limits: Limits) -> HTTPException:
    return HTTPException(
        400, f"the body has more than {limits.json_depth} lists and objects inside each other (--limit json_depth)"
    )


def _check_values(value: Any, limits: Limits, *, has_surrogates: bool) -> None:
    """Raise HTTPException for a value that is too deep, a text that is too long, half of a surrogate pair, too many entries of
    a list or object, and too many values in labels."""
    number = 0  # of values in labels, whose escaped commas (\u002c) do not count in the body
    stack = [(value, 1, "")]  # with the key of the innermost object around it
    while stack:
        value, depth, key = stack.pop()
        if isinstance(value, str):
            _check_text(value, limits, is_media=key in MEDIA_KEYS or key in LABEL_KEYS, has_surrogates=has_surrogates)
            if key in LABEL_KEYS and value.lstrip().startswith("{"):
                _check_number(number := number + sum(map(value.count, ",[{")), limits)
                has_surrogates = has_surrogates or "\\" in value  # an escaped backslash hides them in the body
                try:
                    stack.append((read_label(value), depth, "a label"))
                except DataError as error:
                    raise HTTPException(400, str(error)) from error
        elif isinstance(value, list | dict):
            if depth > limits.json_depth:
                raise _too_deep(limits)
            if isinstance(value, list):
                below = [(item, depth + 1, key) for item in value if type(item) not in _NUMBERS]
            else:
                for name in value:
                    _check_text(name, limits, is_media=False, has_surrogates=has_surrogates)
                below = [(item, depth + 1, name) for name, item in value.items() if type(item) not in _NUMBERS]
            # Lists of numbers alone, such as token ids and their logprobs, are as long as a text.
            if len(value) > limits.items and (below or isinstance(value, dict)):
                _check_length(len(value), key, limits)
            stack += below


def _check_length(number: int, key: str, limits: Limits) -> None:
    if key not in LONG_KEYS:
        raise HTTPException(
            413,
            f"{key[:80] or 'the body'} has {number:,} entries; this server takes at most {limits.items:,} in a list or an "
            "object (its --limit items): send fewer at a time",
        )


def _check_text(text: str, limits: Limits, *, is_media: bool, has_surrogates: bool) -> None:
    if len(text) > limits.characters and not is_media:
        raise HTTPException(
            422,
            f"a text has {len(text):,} characters; this server takes at most {limits.characters:,} (its --limit characters)",
        )
    if has_surrogates and has_lone_surrogate(text):
        raise HTTPException(400, "the body holds half of a surrogate pair, which is no character")


class StrictJSONRequest(Request):
    """A request whose body :func:`parse_json` reads, within the limits of the application."""

    async def body(self) -> bytes:
        if not hasattr(self, "_body"):
            limits, body = self.app.state.limits, bytearray()
            async for chunk in self.stream():
                body += chunk
                if len(body) > limits.json_bytes:
                    raise HTTPException(
                        413,
                        f"the request is larger than {limits.json_bytes:,} bytes, the most of this server (its --limit "
                        "json_bytes): upload its images first, or resize them",
                    )
            self._body = bytes(body)
        return self._body

    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            body, limits = await self.body(), self.app.state.limits
            is_large = len(body) > LARGE_BYTES
            self._json = await run_in_turn(parse_json, body, limits) if is_large else parse_json(body, limits)
        return self._json


class StrictJSONRoute(APIRoute):
    """A route that reads :class:`StrictJSONRequest`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handler(request: Request) -> Response:
            return await handle(StrictJSONRequest(request.scope, request.receive))

        return handler
