"""Several servers behind a balancer: samples of one prompt that reach different servers meet at one of them.

All servers agree on the home of a group by rendezvous hashing of its key; removing a server moves only its own groups. A
sample that arrives elsewhere is passed on to its home, with the Authorization of its sender, and waits there in its group. If
the home does not answer, the sender gets an error and sends the sample again. If it has another judge, as while the judges of
all servers are replaced one after the other, the sample waits here until both have the same.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any
from urllib.parse import urlsplit

import httpx
from pydantic import BaseModel, ConfigDict, Field

from rewardlab.data.urls import system_certificates
from rewardlab.errors import ConfigError, DataError
from rewardlab.serving.conversations import Sample
from rewardlab.serving.errors import (
    DeadlineExceededError,
    EngineFailedError,
    GroupTimeoutError,
    NoVerdictError,
    OtherJudgeError,
    OverloadedError,
    PeerError,
)
from rewardlab.serving.request_record import current_request
from rewardlab.types import Criterion

JOIN_PATH = "/v1/peers/join"
CONNECT_S, OTHER_JUDGE_S = 5.0, 0.5  # seconds for a connection; between two tries while a home has another judge
_AGAIN = re.compile(r"; try again in \d{1,9} s$")  # repeated by the error that is raised here


class JoinRequest(BaseModel):
    """A sample for its ``home``, one of ``servers``, that was sent to a judge of the hash ``judge``."""

    model_config = ConfigDict(extra="forbid")
    question: str
    response: str
    images: Annotated[tuple[str, ...], Field(fail_fast=True)]
    anchor: str | None
    scope: str
    response_images: Annotated[tuple[str, ...], Field(fail_fast=True)] = ()
    videos: Annotated[tuple[str, ...], Field(fail_fast=True)] = ()
    response_videos: Annotated[tuple[str, ...], Field(fail_fast=True)] = ()
    criteria: Annotated[tuple[Criterion, ...], Field(fail_fast=True)] = ()
    rollout: str = ""
    home: str
    judge: str
    servers: Annotated[tuple[str, ...], Field(fail_fast=True)]


class JoinResponse(BaseModel):
    reward: float
    weights: str = ""
    components: dict[str, float] = {}


@dataclass(frozen=True)
class MemberReward:
    """The reward of a sample within its group, the weights that judged the group, and the rewards by the criteria of their
    checks, of those that all samples of the group have."""

    value: float
    weights: str = ""
    components: Mapping[str, float] = field(default_factory=dict)


class Peers:
    """The servers that share groups: this one, which the others reach at ``address``, and ``others``. A home must answer within
    ``wait_s``. Raise ConfigError for an address that is no http(s) URL of a server, and without another server."""

    def __init__(self, address: str, others: Sequence[str], *, wait_s: float) -> None:
        self.address, self._wait_s = _server_url("--address", address), wait_s
        self.servers = tuple(sorted({self.address, *(_server_url("--peers", url) for url in others)}))
        if len(self.servers) < 2:
            raise ConfigError(f"--peers: names no other server than --address {address}; expected the URLs of the others")

    def home_of(self, key: str) -> str:
        return max(self.servers, key=lambda url: hashlib.sha256(f"{url} {key}".encode("utf-8", "surrogatepass")).digest())

    async def join(self, home: str, sample: Sample, judge_hash: Callable[[], str]) -> MemberReward:
        """Return the reward of a sample from its home, once that has the judge of this server, whose hash is ``judge_hash``.
        Raise the error that the home answers, PeerError without an answer."""
        record, ends = current_request(), time.monotonic() + self._wait_s
        passed_on = {b"Authorization": record.authorization, b"X-Request-ID": record.id}
        headers = {name: value.encode("latin-1") for name, value in passed_on.items() if value}  # as they came
        body = {**asdict(sample), "home": home, "servers": self.servers}
        where = f"{home}, where responses to this prompt meet,"
        async with httpx.AsyncClient(verify=system_certificates()) as client:
            while True:
                timeout = httpx.Timeout(max(CONNECT_S, ends - time.monotonic()), connect=CONNECT_S)
                try:
                    response = await client.post(
                        home + JOIN_PATH, json={**body, "judge": judge_hash()}, headers=headers, timeout=timeout
                    )
                except httpx.TransportError as error:
                    raise PeerError(f"{where} cannot be reached ({type(error).__name__}); send the response again") from error
                answer = _json_object(response)
                if response.status_code == 200 and isinstance(answer.get("reward"), int | float):
                    return MemberReward(float(answer["reward"]), str(answer.get("weights", "")), answer.get("components", {}))
                if answer.get("status") != "otherjudge" or time.monotonic() + OTHER_JUDGE_S > ends:
                    raise _error_of(where, response, answer)
                await asyncio.sleep(OTHER_JUDGE_S)

    def check(self, home: str, servers: Sequence[str], judge: str, own_judge: str) -> None:
        """Raise PeerError unless a sample is meant for this server, and its sender knows the same servers and has the same
        judge."""
        if home != self.address:
            raise PeerError(
                f"a peer reaches this server as {home}, but its own --address is {self.address}; "
                "give each server the address at which the others reach it"
            )
        if tuple(servers) != self.servers:
            raise PeerError(
                f"the --peers of another server are {', '.join(servers)}, here {', '.join(self.servers)}; "
                "give all of them the same --peers and --address"
            )
        if judge != own_judge:
            raise OtherJudgeError(
                f"a peer has the judge {judge}, {self.address} has {own_judge} (judge_hash of /health): rewards of two judges "
                "are not mixed; give all servers the same judge"
            )


def _json_object(response: httpx.Response) -> dict[str, Any]:
    try:
        answer = response.json()
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def _error_of(where: str, response: httpx.Response, fields: Mapping[str, Any]) -> Exception:
    """Return the error that the home answered, as if it had been raised here."""
    status, sentence = fields.get("status"), _AGAIN.sub("", str(fields.get("error", "no sentence")))
    retry_after = response.headers.get("Retry-After", "")
    retry_s = int(retry_after) if retry_after.isdecimal() else 5
    match status:
        case "overloaded" | "rate":
            return OverloadedError(retry_s, sentence)
        case "enginefailed":
            return EngineFailedError(sentence, retry_s)
        case "alone":
            return GroupTimeoutError(sentence)
        case "unjudged":
            return NoVerdictError(sentence)
        case "toolate":
            return DeadlineExceededError(sentence)
        case "otherjudge":
            return OtherJudgeError(sentence)
    if response.status_code in (400, 413, 422):  # a retry would be refused, too
        return DataError(sentence)
    return PeerError(f"{where} answered HTTP {response.status_code}: {sentence}")


def _server_url(option: str, url: str) -> str:
    parts = urlsplit(url.strip())
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.query or parts.fragment:
        raise ConfigError(f"{option} {url!r}: expected the address of a server, such as http://judge-1:8000")
    return url.strip().rstrip("/")
