"""An engine in several replicas on a Ray cluster, as one sampler: Ray Serve starts them, hands each call to one that has room,
and starts those again that end or hang.

Replicas draw and nothing else. Groups, uploads, keys and cached answers are those of whoever holds this sampler, one process in
front of all replicas, so that nothing that belongs together is split between them.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from rewardlab.errors import EndpointError, RewardlabError
from rewardlab.samplers.base import Replicas, Sampler, SamplingParams
from rewardlab.types import Completion, Message

LOG = logging.getLogger(__name__)
TRIES = 3  # of a call whose replica ends: one that ends them all is given up before it has ended many
PATIENCE = 1.5  # time-outs of the engine that a call may take in all: one that hung, and another try


@dataclass(frozen=True)
class _Info:
    """What a replica tells of its engine."""

    name: str
    is_batch_invariant: bool


class EngineReplica:
    """One engine in a process of Ray Serve. A call that takes more than ``timeout_s`` makes it unhealthy: it is ended and
    started again."""

    def __init__(self, opener: Callable[[], Sampler], timeout_s: float) -> None:
        self._sampler, self._timeout_s = opener(), timeout_s
        self._begun: dict[object, float] = {}

    async def info(self) -> _Info:
        return _Info(self._sampler.name, self._sampler.is_batch_invariant)

    async def call(self, method: str, *args: Any) -> tuple[Any, BaseException | None]:
        """Return what a method of the engine returns, or the error of this project with which it refuses."""
        token = object()
        self._begun[token] = time.monotonic()
        try:
            return await asyncio.to_thread(getattr(self._sampler, method), *args), None
        except RewardlabError as error:
            return None, error
        except Exception as error:  # the boundary: not every exception can be pickled
            return None, EndpointError(f"{type(error).__name__}: {error}")
        finally:
            del self._begun[token]

    async def check_health(self) -> None:
        """Raise if a call hangs; Ray Serve asks."""
        if any(time.monotonic() - start > self._timeout_s for start in self._begun.values()):
            raise RuntimeError(f"no answer within {self._timeout_s:g} s")


class RaySampler:
    """The sampler that ``opener`` (to be pickled) gives, in each of several replicas.

    The cluster is the one that ``RAY_ADDRESS`` names, else one of this machine is started. A call whose replica ends is handed
    to another one. Raise EndpointError if the replicas cannot be started.
    """

    def __init__(
        self, opener: Callable[[], Sampler], replicas: Replicas, *, calls_at_a_time: int, timeout_s: float = 600.0
    ) -> None:
        self._timeout_s = timeout_s
        self._app = f"rewardlab-{uuid.uuid4().hex[:8]}"  # of this process: two servers may share a cluster
        if not ray.is_initialized():
            ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.WARNING)
        serve.start(proxy_location="Disabled", logging_config={"log_level": "WARNING"})
        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        atexit.register(self.close)
        num_gpus = replicas.num_gpus
        if num_gpus is None:
            num_gpus = float("GPU" in ray.cluster_resources())  # type: ignore[no-untyped-call]
        deployment: Any = serve.deployment(
            EngineReplica,
            name="judge",
            num_replicas=replicas.num,
            max_ongoing_requests=calls_at_a_time,
            max_constructor_retry_count=3,
            health_check_period_s=1.0,
            ray_actor_options={"num_gpus": num_gpus},
        )
        try:
            self._handle = serve.run(deployment.bind(opener, timeout_s), name=self._app, route_prefix=None)
            self._info: _Info = self._handle.info.remote().result(timeout_s=timeout_s)
        except (RayError, RayServeException, RuntimeError, TimeoutError) as error:
            raise EndpointError(f"{replicas.num} replicas cannot be started on Ray: {error}") from error

    @property
    def name(self) -> str:
        return self._info.name

    @property
    def is_batch_invariant(self) -> bool:
        return self._info.is_batch_invariant

    def check(self) -> None:
        """Raise EndpointError unless a replica answers that its engine would."""
        self._ask("check")

    def sample(self, prompts: Sequence[tuple[Message, ...]], params: SamplingParams) -> list[list[Completion]]:
        return list(self._ask("sample", tuple(prompts), params))

    def verdict_margins(self, prompts: Sequence[tuple[Message, ...]], beginnings: Sequence[str]) -> Any:
        """Return a replica's margins."""
        return self._ask("verdict_margins", tuple(prompts), tuple(beginnings))

    def close(self) -> None:
        """End the replicas; every later call raises EndpointError."""
        atexit.unregister(self.close)
        if ray.is_initialized():
            serve.delete(self._app)

    def _ask(self, method: str, *args: Any) -> Any:
        end, last = time.monotonic() + PATIENCE * self._timeout_s, ""
        for _ in range(TRIES):
            try:
                answer = self._handle.call.remote(method, *args)
                result, error = answer.result(timeout_s=max(0.0, end - time.monotonic()))
            except TimeoutError as late:
                raise EndpointError(f"{self.name}: no answer within {PATIENCE * self._timeout_s:g} s") from late
            except (RayError, RayServeException) as ended:
                last = str(ended).strip().partition("\n")[0]
                LOG.warning("%s: a replica ended in a call (%s); another one takes over", self.name, last)
                continue
            if error is not None:
                raise error
            return result
        raise EndpointError(f"{self.name}: {TRIES} replicas ended in this call, the last one: {last}")
