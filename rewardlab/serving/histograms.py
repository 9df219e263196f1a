"""Histograms and counters for Prometheus that are filled as the server works: latencies, queue times, batches, tokens, and what
each key asks. A key is known by its name, never by itself."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
TOKENS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


class ServingHistograms:
    """What is measured of one server, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._latency = self._histogram("request_seconds", "from a request to the end of its answer", SECONDS, ["path"])
        self._wait = self._histogram("queue_seconds", "how long a job waited for the engine", SECONDS)
        self._batch = self._histogram("batch_size", "samples in a call of the engine", SEQUENCES)
        self._engine = self._histogram("engine_seconds", "one call of the engine", SECONDS)
        self._tokens = self._histogram("job_tokens", "tokens read and written by the engine for a job", TOKENS)
        self._requests = self._counter("requests", "answers by path, HTTP status and key", ["path", "status", "key"])
        self._key_tokens = self._counter("key_tokens", "tokens read and written by the engine, by key", ["key"])

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], labels: Sequence[str] = ()) -> Histogram:
        return Histogram(f"rewardlab_{name}", text, labels, buckets=buckets, registry=self.registry)

    def _counter(self, name: str, text: str, labels: Sequence[str]) -> Counter:
        return Counter(f"rewardlab_{name}", text, labels, registry=self.registry)

    def add_request(self, path: str, status: int, key: str, seconds: float, num_tokens: int) -> None:
        """Add an answered request. ``path`` is one of the server's own, so that no client makes up labels; ``key`` a name."""
        self._latency.labels(path).observe(seconds)
        self._requests.labels(path, str(status), key).inc()
        self._key_tokens.labels(key).inc(num_tokens)

    def add_batch(self, num_sequences: int, seconds: float) -> None:
        """Add a call of the engine, also one that failed."""
        self._batch.observe(num_sequences)
        self._engine.observe(seconds)

    def add_job(self, wait_s: float, num_tokens: int) -> None:
        """Add a job that the engine has done."""
        self._wait.observe(wait_s)
        self._tokens.observe(num_tokens)
