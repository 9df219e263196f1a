"""What those need who run the server: ids, logs, metrics and spans of requests, keys that change, browsers kept out."""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from rewardlab.judging.judge import GenerativeJudge
from rewardlab.samplers.scripted import ScriptedSampler
from rewardlab.serving.app import create_app
from rewardlab.serving.auth import Key
from rewardlab.serving.browser import LOOPBACK
from rewardlab.serving.keys_file import KeysFile
from rewardlab.serving.request_log import JsonFormatter
from tests.support.images import png
from tests.support.judge_servers import PLAIN
from tests.support.scripted_judge import handler
from tests.support.servers import running

JUDGE = GenerativeJudge(ScriptedSampler(handler, "hf:/srv/secret/judge"), PLAIN)
BODY: dict[str, Any] = {"question": "Which?", "responses": ["I say 1.", "I say 2."]}
HTTP = httpx.Client(timeout=30, limits=httpx.Limits(max_keepalive_connections=0))
ANNA = {"Authorization": "Bearer anna-key"}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server with a key, that answers to the names of this machine."""
    with running(create_app(JUDGE, keys=[Key.of("anna-key", name="anna")], allowed_hosts=LOOPBACK)) as url:
        yield url


def sample(url: str, name: str, **labels: str) -> float:
    """The value of a metric, 0 where it has none yet."""
    text = HTTP.get(f"{url}/metrics", headers=ANNA).text
    wanted = ",".join(f'{label}="{value}"' for label, value in sorted(labels.items()))
    found = re.search(rf"^{name}{re.escape('{' + wanted + '}') if wanted else ''} (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else 0.0


# --- requests


@pytest.mark.parametrize(
    ("given", "is_taken"), [("run-7.step:3", True), ("", False), ("a b", False), ("x" * 200, False), ('"}\\n', False)]
)
def test_request_ids(url: str, given: str, is_taken: bool) -> None:
    """A plain word is the request's id; anything else gets one of ours. Errors name it too."""
    response = HTTP.get(f"{url}/v1/status", headers={"X-Request-ID": given})
    assert response.status_code == 401
    assert response.headers["X-Request-ID"] == response.json()["request_id"]
    assert (response.headers["X-Request-ID"] == given) == is_taken
    assert re.fullmatch(r"[\w.:-]{1,128}", response.headers["X-Request-ID"])


def test_a_line_of_json_for_each_request(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """Who asked what, how it ended, what it took; no key, always one line, and probes are not in the way."""
    with caplog.at_level(logging.INFO, "rewardlab.requests"):
        HTTP.post(f"{url}/v1/judge", json={**BODY, "question": "Logged?"}, headers={**ANNA, "X-Request-ID": "one"})
        HTTP.get(f"{url}/a%0Ab", headers=ANNA)
        HTTP.get(f"{url}/health")
        HTTP.get(f"{url}/v1/status", headers={"Authorization": "Bearer wrong-key"})
        HTTP.get(f"{url}/health")  # whose answer comes after the last line was written
    lines = [JsonFormatter().format(record) for record in caplog.records if record.name == "rewardlab.requests"]
    judged, unknown, refused = map(json.loads, lines)
    assert (judged["id"], judged["key"], judged["path"], judged["status"]) == ("one", "anna", "/v1/judge", 200)
    assert judged["tokens"] > 0
    assert 0 <= judged["queue_ms"] <= judged["ms"]
    assert (unknown["path"], unknown["status"]) == ("/a%0Ab", 404)
    assert (refused["key"], refused["status"]) == ("", 401)
    assert not re.search(r"anna-key|wrong-key|\n", "".join(lines))


def eventually(holds: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Return whether something holds within the time."""
    end = time.monotonic() + seconds
    while not (held := holds()) and time.monotonic() < end:
        time.sleep(0.05)
    return held


def test_histograms_and_metrics_by_key() -> None:
    """Latency by path, time in the queue, sizes of batches, tokens; requests and tokens by the name of a key."""
    with running(create_app(JUDGE, keys=[Key.of("anna-key", name="anna")], allowed_hosts=LOOPBACK)) as url:
        HTTP.post(f"{url}/v1/judge", json={**BODY, "question": "Measured?"}, headers=ANNA)
        HTTP.get(f"{url}/of-their-own", headers=ANNA)
        labels = {"path": "/v1/judge", "status": "200", "key": "anna"}
        # A request is counted when its answer is on its way already.
        assert eventually(lambda: sample(url, "rewardlab_requests_total", **labels) == 1)
        assert eventually(lambda: sample(url, "rewardlab_request_seconds_count", path="/v1/judge") == 1)
        names = ("queue_seconds", "batch_size", "engine_seconds", "job_tokens")
        assert eventually(lambda: all(sample(url, f"rewardlab_{name}_count") == 1 for name in names))
        assert sample(url, "rewardlab_batch_size_sum") == 2
        tokens = sample(url, "rewardlab_job_tokens_sum")
        assert tokens > 0
        assert eventually(lambda: sample(url, "rewardlab_key_tokens_total", key="anna") == tokens)
        text = HTTP.get(f"{url}/metrics", headers=ANNA).text
    assert "of-their-own" not in text
    assert "anna-key" not in text


def test_spans_within_the_trace_of_who_asks(url: str) -> None:
    """The request's span continues the client's trace; the wait and the engine's call are below it."""
    trace = pytest.importorskip("opentelemetry.trace")
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    export = pytest.importorskip("opentelemetry.sdk.trace.export")
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter").InMemorySpanExporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(memory))
    trace.set_tracer_provider(provider)
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    HTTP.post(f"{url}/v1/judge", json={**BODY, "question": "Traced?"}, headers={**ANNA, "traceparent": parent})
    names = {"POST /v1/judge", "engine", "queue"}  # the request's ends when its answer is on its way already
    assert eventually(lambda: names <= {span.name for span in memory.get_finished_spans()})
    memory_spans = {span.name: span for span in memory.get_finished_spans()}
    request, engine = memory_spans["POST /v1/judge"], memory_spans["engine"]
    assert f"{request.context.trace_id:032x}" == parent.split("-")[1]
    assert request.attributes["rewardlab.key"] == "anna"
    assert request.attributes["http.response.status_code"] == 200
    assert engine.parent.span_id == request.context.span_id == memory_spans["queue"].parent.span_id


# --- keys


def test_health_without_a_key_names_no_judge(url: str) -> None:
    """Whoever monitors learns that it lives; which judge, and where it lies, is for those with a key."""
    assert HTTP.get(f"{url}/health").json() == {"status": "ok"}
    assert HTTP.get(f"{url}/health", headers=ANNA).json()["judge"] == "hf:/srv/secret/judge"


def test_health_and_ready_by_head(url: str) -> None:
    """Some balancers probe so."""
    for path in ("/health", "/ready"):
        response = HTTP.head(url + path)
        assert (response.status_code, response.content) == (200, b"")


def test_the_file_of_keys_is_read_again(tmp_path: Path) -> None:
    """A key is added, one taken back, a broken file changes nothing."""
    path = tmp_path / "keys"
    path.write_text("first name=old\n")
    with running(create_app(JUDGE, keys_file=KeysFile(path, recheck_s=0))) as url:

        def status(key: str) -> int:
            return HTTP.get(f"{url}/v1/status", headers={"Authorization": f"Bearer {key}"}).status_code

        def write(text: str) -> None:
            (tmp_path / "new").write_text(text)
            os.replace(tmp_path / "new", path)

        assert (status("first"), status("second")) == (200, 401)
        write("second name=new per_minute=600\n")
        assert (status("first"), status("second")) == (401, 200)
        write("third per_minute=often\n")
        assert (status("second"), status("third")) == (200, 401)
        path.unlink()
        assert status("second") == 200


def test_who_guesses_keys_is_told_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """After wrong ones even a right one is not looked at, unless it was used from there before; public paths tell no more."""
    monkeypatch.setattr("rewardlab.serving.auth.FAILURES_PER_MINUTE", 0.6)
    with running(create_app(JUDGE, keys=[Key.of("right"), Key.of("other")])) as url:

        def ask(key: str, path: str = "/v1/status") -> httpx.Response:
            return HTTP.get(url + path, headers={"Authorization": f"Bearer {key}"})

        assert ask("right").status_code == 200
        assert [ask(f"guess-{n}").status_code for n in range(2)] == [401, 429]
        assert int(ask("other").headers["Retry-After"]) >= 1
        assert "judge" not in ask("other", "/health").json()
        assert ask("right").status_code == 200
        assert HTTP.get(f"{url}/v1/status").status_code == 429


# --- browsers


@pytest.mark.parametrize(
    ("host", "code"),
    [("localhost:8000", 200), ("[::1]:8000", 200), ("LocalHost", 200), ("evil.example", 421), ("a@localhost", 421), ("[", 421)],
)
def test_names_the_server_answers_to(url: str, host: str, code: int) -> None:
    """A foreign name that leads here is refused, or any web page could read a judge's answers; probes ask by address."""
    assert HTTP.get(f"{url}/v1/status", headers={**ANNA, "Host": host}).status_code == code
    assert HTTP.get(f"{url}/health", headers={"Host": host}).status_code == 200


@pytest.mark.slow
@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, 200),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://localhost:8000", "Host": "localhost:8000"}, 200),
        ({"Origin": "https://localhost:8000", "Host": "localhost:8000"}, 200),
    ],
)
def test_pages_of_other_sites_send_nothing(headers: dict[str, str], code: int) -> None:
    """An upload needs no preflight: the browser would send it, and fill the store."""
    with running(create_app(JUDGE)) as url:
        assert HTTP.post(f"{url}/v1/uploads", content=png(), headers=headers).status_code == code


def test_pages_cannot_be_framed(url: str) -> None:
    """Pages, answers and errors alike."""
    for path in ("/ui", "/docs", "/health", "/v1/status", "/nothing"):
        headers = HTTP.get(url + path).headers
        assert headers["X-Frame-Options"] == "DENY"
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "Access-Control-Allow-Origin" not in headers


def test_docs_need_no_other_machine(url: str) -> None:
    """All that the page of the routes is made of comes from the server, also for those who have no key yet."""
    page = HTTP.get(f"{url}/docs").text
    parts = re.findall(r'(?:src|href)="([^"]+)"', page) + re.findall(r"url: '([^']+)'", page)
    assert len(parts) == 4
    for part in parts:
        assert part.startswith("/")
        assert HTTP.get(url + part).status_code == 200
    schema = HTTP.get(f"{url}/openapi.json").json()
    assert schema["components"]["securitySchemes"] == {"key": {"type": "http", "scheme": "bearer"}}


@pytest.mark.slow
def test_docs_under_a_prefix() -> None:
    """Behind a proxy that serves it below a path, the page finds its parts there."""
    app = create_app(JUDGE)
    app.root_path = "/judge"
    with running(app) as url:
        page = HTTP.get(f"{url}/docs").text
    assert 'src="/judge/docs/swagger-ui-bundle.js"' in page
    assert "url: '/judge/openapi.json'" in page
