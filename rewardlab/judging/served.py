"""A judge that `rewardlab serve` runs elsewhere: pairs are judged through its ``POST /v1/judge``, both orders there."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import groupby
from typing import Any, Self

import httpx

from rewardlab.config.judge import JudgeConfig
from rewardlab.data.conversations import Content, content_parts
from rewardlab.data.images import to_data_url
from rewardlab.data.urls import parse_address
from rewardlab.errors import EndpointError
from rewardlab.judging.judge import ModelJudge, VoteRequest, VoteSampling
from rewardlab.judging.spec import judge_config
from rewardlab.samplers.base import RequestGate
from rewardlab.samplers.concurrency import in_window, retry_after_s
from rewardlab.samplers.event_loop import EventLoopThread
from rewardlab.types import (
    BOTH_ORDERS,
    Completion,
    FinishReason,
    Judgment,
    Order,
    PreferencePair,
    Verdict,
    VerdictStatus,
    Vote,
    choice_of,
)
from rewardlab.verdicts.votes import in_order

RETRIES = 4
_REFUSALS = (401, 403, 404, 405)  # of the key or the address: no pair would ever be judged
_PASSING = (408, 500, 502, 503, 504)
_FINISH = {
    VerdictStatus.ERROR: FinishReason.ERROR,
    VerdictStatus.TIMEOUT: FinishReason.TIMEOUT,
    VerdictStatus.TRUNCATED: FinishReason.LENGTH,
}


class ServedJudge(ModelJudge):
    """The judge behind one address. A pair that cannot be judged has votes that failed, with the server's sentence.

    Template, temperature and the lengths of judgments are the server's own. A full queue (429) and an engine that starts again
    (503 with Retry-After) are waited for within ``deadline_s``; another 5xx and a broken connection are tried again ``RETRIES``
    times. Raise ConfigError for what is no address, and EndpointError where the server refuses the key, is none, or replaces
    its judge meanwhile.
    """

    has_own_sampling, sampling = True, VoteSampling()
    accepts_empty_responses = False
    decides = "by a rule of its own"

    def __init__(
        self,
        url: str,
        *,
        api_key: str = "",
        concurrency: int = 64,
        deadline_s: float = 900.0,
        config: JudgeConfig | None = None,
    ) -> None:
        self.url = str(parse_address(url)).rstrip("/").removesuffix("/v1").rstrip("/")
        self.config = judge_config(config or JudgeConfig.of(url), judge=self.url)  # one name, however it is written
        self.deadline_s = deadline_s
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._concurrency = concurrency
        self._seen: tuple[str, str] | None = None  # hash and name of the judge that the first answer was of
        self._background = EventLoopThread(partial(_opened, self.url, headers, concurrency))

    @property
    def identity(self) -> dict[str, str | float]:
        health = self._background.run(self._health)
        self._seen = self._seen or _judge_of(health)
        return {
            "judge": self.spec,
            "weights": str(health["judge_hash"]),
            "template": str(health["template_hash"]),
        }

    @property
    def is_batch_invariant(self) -> bool:
        return True

    def greedy(self) -> Self:
        return self

    def check(self) -> None:
        self._background.run(self._health)

    async def _health(self, connection: _Connection) -> Mapping[str, Any]:
        """Return what the server says of its judge. Raise EndpointError where nothing answers, or refuses the key."""
        try:
            health = (await connection.client.get("/health", timeout=15)).json()
            status = (await connection.client.get("/v1/status", timeout=15)).status_code
            if status not in _REFUSALS and not {"judge", "judge_hash", "template_hash"} <= set(health):
                raise ValueError("not the health status of a judge")
        except (httpx.HTTPError, ValueError, TypeError) as error:
            raise EndpointError(
                f"{self.url}: no response from a `rewardlab serve` "
                f"({type(error).__name__}); is it running? A judge behind another "
                "server is openai:MODEL@URL"
            ) from error
        if status in _REFUSALS:
            raise EndpointError(
                f"{self.url}: HTTP {status}: the key was refused; set REWARDLAB_API_KEY to one of the server's keys"
            )
        return dict(health)

    def compare_many(
        self, pairs: Sequence[PreferencePair], *, orders: Sequence[tuple[Order, ...]], num_votes: int, seed: int
    ) -> list[Judgment]:

        async def judge_all(connection: _Connection) -> list[list[Vote]]:
            try:
                async with asyncio.TaskGroup() as group:
                    tasks = [
                        group.create_task(self._votes(connection, pair, pair_orders, num_votes, seed))
                        for pair, pair_orders in zip(pairs, orders, strict=True)
                    ]
            except BaseExceptionGroup as errors:
                raise errors.exceptions[0] from None
            return [task.result() for task in tasks]

        votes = self._background.run(judge_all)
        return [self.reduce(pair.pair_id, pair_votes) for pair, pair_votes in zip(pairs, votes, strict=True)]

    @property
    def is_streaming(self) -> bool:
        return True

    def vote_each(self, requests: Iterable[VoteRequest], gate: RequestGate | None = None) -> Iterator[list[tuple[int, Vote]]]:
        if gate is not None:
            return super().vote_each(requests, gate)
        return self._background.iterate(lambda connection: self._each(connection, _calls(enumerate(requests))))

    async def _each(self, connection: _Connection, calls: Iterator[_Call]) -> AsyncGenerator[list[tuple[int, Vote]]]:
        async def ask(call: _Call) -> list[tuple[int, Vote]]:
            votes = await self._votes(connection, call.pair, call.orders, call.num_votes, call.seed)
            return list(zip(call.numbers, [vote for order in call.orders for vote in in_order(votes, order)], strict=True))

        async with aclosing(in_window(calls, ask, self._concurrency)) as batches:
            async for batch in batches:
                yield [vote for votes in batch for vote in votes]

    async def _votes(
        self, connection: _Connection, pair: PreferencePair, orders: tuple[Order, ...], num_votes: int, seed: int
    ) -> list[Vote]:
        answer = await self._ask(connection, partial(_request, pair, orders, num_votes, seed))
        if not isinstance(answer, Completion):
            try:
                votes = [_vote(row) for row in answer["votes"]]
                self._refuse_another_judge(answer)
                if all([vote.order for vote in votes].count(order) == num_votes for order in orders):
                    return votes
                answer = _failure(f"garbled answer: {len(votes)} votes in place of {num_votes} in each of {len(orders)} orders")
            except (KeyError, TypeError, ValueError) as error:
                answer = _failure(f"garbled answer: {error!r}")
        status = VerdictStatus.TIMEOUT if answer.finish is FinishReason.TIMEOUT else VerdictStatus.ERROR
        return [Vote(order, Verdict(None, status), answer) for order in orders for _ in range(num_votes)]

    def _refuse_another_judge(self, answer: Mapping[str, Any]) -> None:
        """Raise EndpointError where the server has replaced its judge since it was first asked: the votes would be of two. The
        same judge of another folder, as behind a balancer, is the same."""
        judge = _judge_of(answer)
        self._seen = self._seen or judge
        if judge[0] != self._seen[0]:
            before, now = (" ".join(reversed(names)) for names in (self._seen, judge))
            raise EndpointError(
                f"{self.url}: has replaced its judge ({before} before, {now} now); all judgments of a run must come "
                "from one judge: start again in another --out"
            )

    async def _ask(self, connection: _Connection, request: Callable[[], Mapping[str, Any]]) -> Any:
        """Return the server's answer, or a failed Completion that tells why there is none. Its time runs from its first try."""
        ends, tried, before = math.inf, 0, None
        while True:
            async with connection.slots:
                ends = min(ends, time.monotonic() + self.deadline_s)
                answer = await self._try(connection.client, request(), ends - time.monotonic())
            if not isinstance(answer, _Again):
                late = before and isinstance(answer, Completion) and answer.finish is FinishReason.TIMEOUT
                return before if late else answer  # why it failed before says more
            before = answer.failure
            tried += not answer.is_waited_for
            wait_s = max(answer.wait_s, min(8.0, 0.25 * 2**tried) * random.uniform(0.75, 1.25))
            if tried > RETRIES or time.monotonic() + wait_s >= ends:
                return answer.failure
            await asyncio.sleep(wait_s)

    async def _try(self, client: httpx.AsyncClient, body: Mapping[str, Any], seconds: float) -> Any:
        """Return the server's answer, a failed Completion, or an _Again. Raise EndpointError where it refuses us altogether."""
        try:
            async with asyncio.timeout(seconds):
                response = await client.post("/v1/judge", json=body)
        except TimeoutError:
            return _failure(f"no answer within {self.deadline_s:g} s", FinishReason.TIMEOUT)
        except httpx.HTTPError as error:
            return _Again(_failure(f"no connection: {error or type(error).__name__}"))
        if response.status_code == 200:
            return _json_of(response)
        failure = _failure(f"HTTP {response.status_code}: {_sentence(response)}")
        if response.status_code in _REFUSALS:
            raise EndpointError(f"{self.url}: {failure.error}; the key sent is REWARDLAB_API_KEY")
        if response.status_code not in (429, *_PASSING):
            return failure
        retry_after = response.headers.get("Retry-After")
        starts_again = response.status_code == 503 and retry_after is not None
        return _Again(failure, retry_after_s(retry_after), is_waited_for=response.status_code == 429 or starts_again)


@dataclass(frozen=True)
class _Again:
    """A try that may go better later: what it came to, how long to wait, whether the queue was full or the engine started."""

    failure: Completion
    wait_s: float = 0.0
    is_waited_for: bool = False


@dataclass(frozen=True)
class _Connection:
    """The client, and the turns of those who use it."""

    client: httpx.AsyncClient
    slots: asyncio.Semaphore


@asynccontextmanager
async def _opened(url: str, headers: Mapping[str, str], concurrency: int) -> AsyncIterator[_Connection]:
    limits = httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=None, limits=limits) as client:
        yield _Connection(client, asyncio.Semaphore(concurrency))


@dataclass(frozen=True)
class _Call:
    """A request for ``num_votes`` votes on a pair in each of ``orders``, and the numbers of the votes, in that order."""

    pair: PreferencePair
    orders: tuple[Order, ...]
    num_votes: int
    seed: int
    numbers: tuple[int, ...]


def _calls(requests: Iterable[tuple[int, VoteRequest]]) -> Iterator[_Call]:
    """Yield the requests to a server that all votes on a pair take: one, where no single vote is missing of it."""
    for _, items in groupby(requests, key=lambda item: item[1].row):
        row = list(items)
        by_order = {order: [item for item in row if item[1].order is order] for order in dict.fromkeys(r.order for _, r in row)}
        draws = {tuple(request.draw for _, request in of_order) for of_order in by_order.values()}
        parts = [row] if len(draws) == 1 else list(by_order.values())
        for part in parts:
            runs: dict[int, list[tuple[int, VoteRequest]]] = {}
            places = {draw: n for n, draw in enumerate(sorted({request.draw for _, request in part}))}
            for number, request in part:  # draws that follow each other are one call; draw n has the seed plus n
                runs.setdefault(request.draw - places[request.draw], []).append((number, request))
            for run in runs.values():
                first, orders = run[0][1], tuple(dict.fromkeys(request.order for _, request in run))
                yield _Call(first.pair, orders, len(run) // len(orders), first.seed + first.draw, tuple(n for n, _ in run))


def _judge_of(answer: Mapping[str, Any]) -> tuple[str, str]:
    """Return the hash of the judge that an answer is of, which tells it from others, and its name."""
    return str(answer["judge_hash"]), str(answer["judge"])


def _request(pair: PreferencePair, orders: tuple[Order, ...], num_votes: int, seed: int) -> dict[str, Any]:
    return {
        "question": pair.question,
        "responses": [
            content_parts(Content(text, tuple(map(to_data_url, images))))
            for text, images in zip(pair.responses, pair.response_images, strict=True)
        ],
        "images": [to_data_url(image) for image in pair.images],
        "votes": num_votes,
        "orders": "both" if set(orders) == set(BOTH_ORDERS) else orders[0].value,
        "seed": seed,
        "timeout_s": 900,
        **({"criteria": [asdict(criterion) for criterion in pair.criteria]} if pair.criteria else {}),
    }


def _vote(row: Mapping[str, Any]) -> Vote:
    """Read one vote of an answer. Raise KeyError, TypeError or ValueError for what is none."""
    order, status, winner = Order(row["order"]), VerdictStatus(row["status"]), row["winner"]
    if (winner is not None) != (status is VerdictStatus.OK) or winner not in (0, 1, None):
        raise ValueError(f"a vote of status {status} for {winner!r}")
    probability = row.get("p_first_shown")
    margin = None if probability is None else _log_odds(float(probability))
    choice, rule = None if winner is None else choice_of(winner, order), "served" if margin is None else "probability"
    finish = _FINISH.get(status, FinishReason.STOP)
    completion = Completion(str(row["text"]), finish, int(row["num_tokens"]), error=str(row.get("error") or ""))
    return Vote(order, Verdict(choice, status, rule), completion, margin)


def _log_odds(probability: float) -> float:
    """Return log p / (1 - p). Raise ValueError beyond 0..1; a rounded 0 or 1 counts as the least that is told from it."""
    if not 0 <= probability <= 1:
        raise ValueError(f"a probability of {probability!r}")
    p = min(max(probability, 2**-53), 1 - 2**-53)
    return math.log(p / (1 - p))


def _json_of(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError as error:
        return _failure(f"garbled answer: {error}")


def _sentence(response: httpx.Response) -> str:
    """Return why a request failed, in the server's words."""
    try:
        return str(response.json()["error"])
    except (ValueError, KeyError, TypeError):
        return response.text[:200]


def _failure(error: str, finish: FinishReason = FinishReason.ERROR) -> Completion:
    return Completion("", finish, error=error[:500])
