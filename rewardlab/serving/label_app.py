"""The page on which people rate pairs: which pair each rater sees next, and the routes of its server.

A rater's link ends in ``#key=TOKEN``, which browsers do not send; the page sends the token as an API key. Raters see no ids,
labels or sources, and the two responses in an order drawn for each rater and pair.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from itertools import count
from typing import Any, Literal, NamedTuple, TypeVar

import uvicorn
from fastapi import APIRouter, FastAPI, Response
from pydantic import BaseModel, ConfigDict, Field

from rewardlab.data.images import kind_of
from rewardlab.data.label_store import LabelStore
from rewardlab.data.pair_table import PairTable
from rewardlab.errors import DataError, InputError
from rewardlab.serving.admission import Admission
from rewardlab.serving.auth import Key, Keys
from rewardlab.serving.errors import ERROR_HANDLERS
from rewardlab.serving.limits import Limits
from rewardlab.serving.middleware import ApiKeyMiddleware, BodyLimit, BrowserGuard, RequestLog
from rewardlab.serving.pages import ui_routes
from rewardlab.serving.request_record import ServingHistograms, tenant_of_request
from rewardlab.serving.server import connection_options, run_until_stopped
from rewardlab.serving.strict_json import StrictJSONRoute
from rewardlab.types import IMAGE_MARK, VIDEO_MARK, Choice, Order, PreferencePair, Rating, Tie, response_at

T = TypeVar("T")
LOG = logging.getLogger(__name__)
HOLD_S = 900.0  # for which a pair that a rater sees counts as rated by that rater
CACHED_PAIRS = 8  # with their media
LIMITS = replace(Limits(), body_bytes=20_000, json_bytes=20_000)


@dataclass(frozen=True)
class LabelRules:
    """How pairs are given out: each to at most ``raters_per_pair``, one item in ``repeat_every`` a repetition (0: none), the
    first ``limit`` pairs of an order drawn with ``seed``. The page shows ``instruction``, and ``reasons`` to choose from."""

    raters_per_pair: int = 3
    repeat_every: int = 20
    limit: int | None = None
    seed: int = 0
    instruction: str = "Which answer is better?"
    reasons: tuple[str, ...] = ("More accurate", "Follows the request", "More complete", "Looks better", "Clearer")


class Item(NamedTuple):
    """The pair at ``place`` of the drawn order; ``visit`` is 1 for a repetition."""

    place: int
    visit: int


def media_type(data: bytes) -> str:
    kind = kind_of(data)
    return {"mp4": "video/mp4", "mkv": "video/webm", "avi": "video/x-msvideo"}.get(kind, f"image/{kind}")


def text_parts(text: str, images: Sequence[bytes], videos: Sequence[bytes]) -> list[str | bytes]:
    """Return a text with its media in their places; media without placeholders come first."""
    media = {IMAGE_MARK: images, VIDEO_MARK: videos}
    text = "".join(mark * len(of_mark) for mark, of_mark in media.items() if mark not in text) + text
    left = {mark: iter(of_mark) for mark, of_mark in media.items()}
    pieces = [piece for piece in re.split(f"([{IMAGE_MARK}{VIDEO_MARK}])", text) if piece.strip()]
    parts = (next(left[piece], "") if piece in left else piece.strip("\n") for piece in pieces)
    return [part for part in parts if part]


class LabelQueue:
    """The pairs that each rater has still to rate. One thread uses it. Raise DataError if two pairs have the same id."""

    def __init__(self, pairs: PairTable, store: LabelStore, rules: LabelRules) -> None:
        self._ids = [facts.pair_id for facts in pairs.facts]
        if repeated := [pair_id for pair_id, number in Counter(self._ids).items() if number > 1]:
            raise DataError(f"{pairs.path}: pair_id {repeated[0]!r:.80} appears twice; every pair needs its own")
        rows = list(range(len(self._ids)))
        random.Random(rules.seed).shuffle(rows)  # each beginning is a random sample of the set
        self._ids = [self._ids[row] for row in rows[: rules.limit]]
        self._pair = lru_cache(CACHED_PAIRS)(lambda place: pairs[rows[place]])
        self._store, self._rules = store, rules
        self._history: dict[str, dict[Item, None]] = defaultdict(dict)  # by rater, the last one last
        self._raters: dict[int, set[str]] = defaultdict(set)  # by place
        self._places: dict[str, set[int]] = defaultdict(set)  # by rater
        self._full = set[int]()  # the places that enough raters have rated
        self._open: dict[str, tuple[Item, float]] = {}  # the item that a rater sees, and since when
        self._unreadable = set[int]()
        places = {pair_id: place for place, pair_id in enumerate(self._ids)}
        for pair_id, visit, rater in store.visits():
            if pair_id in places:
                self._record(rater, Item(places[pair_id], visit))

    def _record(self, rater: str, item: Item) -> None:
        self._history[rater].setdefault(item)
        self._raters[item.place].add(rater)
        self._places[rater].add(item.place)
        if len(self._raters[item.place]) >= self._rules.raters_per_pair:
            self._full.add(item.place)

    def _draw(self, *parts: object) -> int:
        return int.from_bytes(hashlib.sha256(repr((self._rules.seed, *parts)).encode()).digest()[:8])

    def order_of(self, rater: str, item: Item) -> Order:
        """Return the order in which a rater sees a pair: a drawn one, and the other one at the second visit."""
        is_swapped = (self._draw("order", rater, self._ids[item.place]) + item.visit) % 2
        return Order.SWAPPED if is_swapped else Order.GIVEN

    def _taken(self, rater: str) -> set[int]:
        """Return the places of pairs that the rater has rated, or enough others have rated or see now, or nobody can read."""
        since, seen = time.monotonic() - HOLD_S, defaultdict[int, set[str]](set)
        for name, (item, at) in self._open.items():
            if at > since and name != rater:
                seen[item.place].add(name)
        most = self._rules.raters_per_pair
        taken = {place for place, names in seen.items() if len(names | self._raters[place] - {rater}) >= most}
        return self._full | self._unreadable | self._places[rater] | taken

    def _phase(self, rater: str) -> int:
        """Return which of each ``repeat_every`` items of a rater is a repetition, from 0: a drawn one of the second half."""
        every = self._rules.repeat_every
        return every // 2 + self._draw("phase", rater) % (every - every // 2) if every else -1

    def _repetition(self, rater: str) -> Item | None:
        """Return a pair of the older half of the rater's pairs if the next item is a repetition."""
        history = self._history[rater]
        if len(history) % (self._rules.repeat_every or 1) != self._phase(rater):
            return None
        places = [item.place for item in history if not item.visit]
        others = {item.place for item in history if item.visit} | self._unreadable
        older = [place for place in places[: (len(places) + 1) // 2] if place not in others]
        return Item(older[self._draw("repetition", rater, len(history)) % len(older)], 1) if older else None

    def _num_items(self, rater: str) -> int:
        """Return how many items the rater will have rated in the end. Repetitions are counted in advance, so that the total
        does not tell which items they are."""
        every = self._rules.repeat_every
        num_pairs = len(self._places[rater]) + len(self._ids) - len(self._taken(rater))
        return num_pairs + (max(0, (num_pairs - self._phase(rater) + every - 2) // (every - 1)) if every else 0)

    def _next(self, rater: str) -> Item | None:
        """Return the item that the rater sees, or a new one. None if no pair is left."""
        item, _ = self._open.get(rater, (None, 0.0))
        if item is None or item in self._history[rater] or item.place in self._unreadable:
            taken = self._taken(rater)
            place = next((place for place in range(len(self._ids)) if place not in taken), None)
            item = None if place is None else self._repetition(rater) or Item(place, 0)
        return item

    def show(self, rater: str) -> dict[str, Any]:
        """Return what the page shows: the next item, or in the end a summary. Pairs with unreadable media are logged and left
        out."""
        while (item := self._next(rater)) is not None:
            self._open[rater] = item, time.monotonic()
            try:
                sides = self._sides(rater, item)
                break
            except InputError as error:
                self._unreadable.add(item.place)
                LOG.warning("left out: %s", error)
        view: dict[str, Any] = {"num_rated": len(self._history[rater]), "num_items": self._num_items(rater)}
        if item is None:
            return view | {"summary": self._store.summary(rater)}
        media = count()
        parts = [
            [{"text": part} if isinstance(part, str) else {media_type(part).split("/")[0]: next(media)} for part in side]
            for side in sides
        ]
        return view | {"item": item, "instruction": self._rules.instruction, "reasons": self._rules.reasons, "sides": parts}

    def _sides(self, rater: str, item: Item) -> list[list[str | bytes]]:
        """Return the question and the responses as shown. Raise DataError for an item that the rater cannot have seen."""
        if not 0 <= item.place < len(self._ids) or (item.visit and Item(item.place, 0) not in self._history[rater]):
            raise DataError("this pair is not yours to rate; load the page again")
        pair: PreferencePair = self._pair(item.place)
        pair = pair.swap() if self.order_of(rater, item) is Order.SWAPPED else pair
        responses = zip(pair.responses, pair.response_images, pair.response_videos, strict=True)
        return [text_parts(pair.question, pair.images, pair.videos), *(text_parts(*response) for response in responses)]

    def rate(self, rater: str, request: LabelRequest) -> dict[str, Any]:
        """Commit a rating; return what the page shows next."""
        item = Item(*request.item)
        self._sides(rater, item)
        order = self.order_of(rater, item)
        ties: dict[str, Tie | None] = {"tie": Tie.TIE, "skip": None}
        choice = ties[request.choice] if request.choice in ties else response_at(Choice(request.choice), order)
        at = datetime.now(UTC).isoformat(timespec="seconds")
        rating = Rating(rater, choice, order, at, " ".join(request.reason.split()))
        self._store.add(self._ids[item.place], item.visit, rating)
        self._record(rater, item)
        return self.show(rater)

    def undo(self, rater: str) -> dict[str, Any]:
        """Remove the rater's last rating; return its pair, to be shown again."""
        if self._history[rater]:
            item = next(reversed(self._history[rater]))
            self._store.remove(self._ids[item.place], item.visit, rater)
            del self._history[rater][item]
            if not item.visit:
                self._raters[item.place].remove(rater)
                self._places[rater].remove(item.place)
                if len(self._raters[item.place]) < self._rules.raters_per_pair:
                    self._full.discard(item.place)
            self._open[rater] = item, time.monotonic()
        return self.show(rater)

    def medium(self, rater: str, item: Item, number: int) -> bytes:
        """Return one of the images and videos of an item, numbered as they are shown. Raise DataError."""
        media = [part for side in self._sides(rater, item) for part in side if isinstance(part, bytes)]
        if not 0 <= number < len(media):
            raise DataError("this pair has no such medium; load the page again")
        return media[number]


class LabelRequest(BaseModel):
    """A rating: the item, the choice as shown, and why."""

    model_config = ConfigDict(extra="forbid")

    item: tuple[int, Literal[0, 1]]
    choice: Literal["first", "second", "tie", "skip"]
    reason: str = Field("", max_length=2000)


def label_routes(queue: LabelQueue) -> APIRouter:
    """Return the routes of the page. One thread does what the queue does, so that raters do not get in each other's way."""
    router, worker = APIRouter(route_class=StrictJSONRoute), ThreadPoolExecutor(1, "labels")

    async def call(function: Callable[..., T], *values: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(worker, function, tenant_of_request(), *values)

    @router.get("/v1/labels/next")
    async def next_item() -> dict[str, Any]:
        return await call(queue.show)

    @router.post("/v1/labels")
    async def rate(request: LabelRequest) -> dict[str, Any]:
        return await call(queue.rate, request)

    @router.post("/v1/labels/undo")
    async def undo() -> dict[str, Any]:
        return await call(queue.undo)

    @router.get("/v1/labels/media/{place}/{visit}/{number}")
    async def medium(place: int, visit: int, number: int) -> Response:
        data = await call(queue.medium, Item(place, visit), number)
        return Response(data, media_type=media_type(data))

    return router


def create_label_app(queue: LabelQueue, tokens: Mapping[str, str], allowed_hosts: Collection[str] = ()) -> FastAPI:
    """Return the application for raters with these tokens; ``allowed_hosts`` as :class:`BrowserGuard` takes them."""
    app = FastAPI(title="rewardlab label", openapi_url=None)
    app.state.limits = LIMITS
    app.add_middleware(BodyLimit, admission=Admission(LIMITS))
    app.add_middleware(ApiKeyMiddleware, keys=Keys(Key.of(token, name=rater) for rater, token in tokens.items()))
    app.add_middleware(BrowserGuard, allowed_hosts=allowed_hosts)
    app.add_middleware(RequestLog, histograms=ServingHistograms())
    for kind, handler in ERROR_HANDLERS.items():
        app.add_exception_handler(kind, handler)
    app.include_router(label_routes(queue))
    app.include_router(ui_routes("label.html"))
    return app


def run_label_server(app: FastAPI, host: str, port: int) -> None:
    """Serve the page until SIGTERM or Ctrl-C."""
    options = connection_options(LIMITS)
    config = uvicorn.Config(app, host=host, port=port, log_config=None, timeout_graceful_shutdown=5, **options)
    run_until_stopped(uvicorn.Server(config))
