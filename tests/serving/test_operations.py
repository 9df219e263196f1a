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
from fastapi import FastAPI

from rewardlab.errors import ConfigError
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.samplers.scripted import ScriptedSampler
from rewardlab.serving.app import create_app
from rewardlab.serving.auth import Key, KeysFile
from rewardlab.serving.middleware import LOG, LOOPBACK, accepted_hosts
from rewardlab.serving.server import JsonFormatter
from rewardlab.serving.service import ServerOptions
from rewardlab.types import Completion, FinishReason, Message
from tests.support.images import png
from tests.support.judge_servers import PLAIN
from tests.support.scripted_judge import handler
from tests.support.serving import in_process, judge_of

JUDGE = GenerativeJudge(ScriptedSampler(handler, "hf:/srv/secret/judge"), PLAIN)
BODY: dict[str, Any] = {"question": "Which?", "responses": ["I say 1.", "I say 2."]}
ANNA = {"Authorization": "Bearer anna-key"}


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    """A client of a server with a key that answers to the names of this machine."""
    with in_process(locked_app()) as client:
        yield client


def locked_app() -> FastAPI:
    return create_app(JUDGE, ServerOptions(keys=[Key.of("anna-key", name="anna")], allowed_hosts=LOOPBACK))


def sample(http: httpx.Client, name: str, **labels: str) -> float:
    """The value of a metric, 0 where it has none yet."""
    text = http.get("/metrics", headers=ANNA).text
    wanted = ",".join(f'{label}="{value}"' for label, value in sorted(labels.items()))
    found = re.search(rf"^{name}{re.escape('{' + wanted + '}') if wanted else ''} (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else 0.0


# --- requests


@pytest.mark.parametrize(
    ("given", "is_taken"), [("run-7.step:3", True), ("", False), ("a b", False), ("x" * 200, False), ('"}\\n', False)]
)
def test_request_ids(http: httpx.Client, given: str, is_taken: bool) -> None:
    """A plain word is the request's id; anything else gets one of ours. Errors name it too."""
    response = http.get("/v1/status", headers={"X-Request-ID": given})
    assert response.status_code == 401
    assert response.headers["X-Request-ID"] == response.json()["request_id"]
    assert (response.headers["X-Request-ID"] == given) == is_taken
    assert re.fullmatch(r"[\w.:-]{1,128}", response.headers["X-Request-ID"])


def test_a_line_of_json_for_each_request(http: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    """Who asked what, how it ended, what it took; no key, always one line, and probes are not in the way."""
    with caplog.at_level(logging.INFO, "rewardlab.requests"):
        http.post("/v1/judge", json={**BODY, "question": "Logged?"}, headers={**ANNA, "X-Request-ID": "one"})
        http.get("/a%0Ab", headers=ANNA)
        http.get("/health")
        http.get("/v1/status", headers={"Authorization": "Bearer wrong-key"})
        http.get("/health")  # whose answer comes after the last line was written
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


def test_a_limited_key_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """In the log and in the metrics, also of a request that is refused for its limit."""
    caplog.set_level(logging.INFO, LOG.name)
    keys = [Key.of("anna-key", name="anna", per_minute=1.0), Key.of("ben-key", name="ben")]
    with in_process(create_app(JUDGE, ServerOptions(keys=keys))) as http:
        assert [http.get("/v1/status", headers=ANNA).status_code for _ in range(2)] == [200, 429]
        lines = [record.fields for record in caplog.records if record.name == LOG.name]  # type: ignore[attr-defined]
        assert [(line["key"], line["status"]) for line in lines] == [("anna", 200), ("anna", 429)]
        counted = http.get("/metrics", headers={"Authorization": "Bearer ben-key"}).text
        assert 'rewardlab_requests_total{key="anna",path="/v1/status",status="429"} 1.0' in counted


def test_histograms_and_metrics_by_key() -> None:
    """Latency by path, time in the queue, sizes of batches, tokens; requests and tokens by the name of a key."""
    with in_process(locked_app()) as http:
        http.post("/v1/judge", json={**BODY, "question": "Measured?"}, headers=ANNA)
        http.get("/of-their-own", headers=ANNA)
        labels = {"path": "/v1/judge", "status": "200", "key": "anna"}
        # A request is counted when its answer is on its way already.
        assert eventually(lambda: sample(http, "rewardlab_requests_total", **labels) == 1)
        assert eventually(lambda: sample(http, "rewardlab_request_seconds_count", path="/v1/judge") == 1)
        names = ("queue_seconds", "batch_size", "engine_seconds", "job_tokens")
        assert eventually(lambda: all(sample(http, f"rewardlab_{name}_count") == 1 for name in names))
        assert sample(http, "rewardlab_batch_size_sum") == 2
        tokens = sample(http, "rewardlab_job_tokens_sum")
        assert tokens > 0
        assert eventually(lambda: sample(http, "rewardlab_key_tokens_total", key="anna") == tokens)
        text = http.get("/metrics", headers=ANNA).text
    assert "of-their-own" not in text
    assert "anna-key" not in text


def test_spans_within_the_trace_of_who_asks(http: httpx.Client) -> None:
    """The request's span continues the client's trace; the wait and the engine's call are below it."""
    trace = pytest.importorskip("opentelemetry.trace")
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    export = pytest.importorskip("opentelemetry.sdk.trace.export")
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter").InMemorySpanExporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(memory))
    trace.set_tracer_provider(provider)
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    http.post("/v1/judge", json={**BODY, "question": "Traced?"}, headers={**ANNA, "traceparent": parent})
    names = {"POST /v1/judge", "engine", "queue"}  # the request's ends when its answer is on its way already
    assert eventually(lambda: names <= {span.name for span in memory.get_finished_spans()})
    memory_spans = {span.name: span for span in memory.get_finished_spans()}
    request, engine = memory_spans["POST /v1/judge"], memory_spans["engine"]
    assert f"{request.context.trace_id:032x}" == parent.split("-")[1]
    assert request.attributes["rewardlab.key"] == "anna"
    assert request.attributes["http.response.status_code"] == 200
    assert engine.parent.span_id == request.context.span_id == memory_spans["queue"].parent.span_id


# --- keys


def test_health_without_a_key_names_no_judge(http: httpx.Client) -> None:
    """Whoever monitors learns that it lives; which judge, and where it lies, is for those with a key."""
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        assert http.get("/health", headers=headers).json() == {"status": "ok"}
    assert http.get("/health", headers=ANNA).json()["judge"] == "hf:/srv/secret/judge"


def test_no_credential_of_the_judge_is_published() -> None:
    """Neither of its address, nor of its engine or of its requests, nor where its machine keeps what; to any client."""

    def answer(prompt: tuple[Message, ...], draw: int) -> Completion:
        return Completion("", FinishReason.ERROR, error="https://ann:pw-7@host/v1: HTTP 500")

    judge = judge_of(
        answer,
        judge="openai:m@https://ann:pw-1@host/v1,https://pw-2@b:1",
        engine_args="--hf-token pw-3 --max-model-len 9",
        body={"vendor": [{"api_key": "pw-4", "region": "eu"}]},
        cache="/srv/pw-5",
        api_key_env="PW_6",
    )
    with in_process(create_app(judge)) as http:
        health = http.get("/health").json()
        others = [http.get(path).text for path in ("/v1/models", "/v1/status")]
        failures = [http.post("/v1/judge", json=BODY), http.post("/v1/judge/batch", json=[BODY])]
    assert health["judge"] == "openai:m@https://***@host/v1,https://***@b:1"
    assert health["judge_config"] == {
        "judge": health["judge"],
        "engine_args": "--hf-token *** --max-model-len 9",
        "body": {"vendor": [{"api_key": "***", "region": "eu"}]},
    }
    assert health["judge_config_hash"] == judge.config.hash
    assert all("https://***@host/v1: HTTP 500" in failure.text for failure in failures)
    assert "pw-" not in "".join([str(health), *others, *(failure.text for failure in failures)]).lower()


def test_health_and_ready_by_head(http: httpx.Client) -> None:
    """Some balancers probe so."""
    for path in ("/health", "/ready"):
        response = http.head(path)
        assert (response.status_code, response.content) == (200, b"")


def test_the_file_of_keys_is_read_again(tmp_path: Path) -> None:
    """A key is added, one taken back, a broken file changes nothing."""
    path = tmp_path / "keys"
    path.write_text("first name=old\n")
    with in_process(create_app(JUDGE, ServerOptions(keys_file=KeysFile(path, recheck_s=0)))) as http:

        def status(key: str) -> int:
            return http.get("/v1/status", headers={"Authorization": f"Bearer {key}"}).status_code

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


# --- browsers


@pytest.mark.parametrize(
    ("host", "code"),
    [("localhost:8000", 200), ("[::1]:8000", 200), ("LocalHost", 200), ("evil.example", 421), ("a@localhost", 421), ("[", 421)],
)
def test_names_the_server_answers_to(http: httpx.Client, host: str, code: int) -> None:
    """A foreign name that leads here is refused, or any web page could read a judge's answers; probes ask by address."""
    assert http.get("/v1/status", headers={**ANNA, "Host": host}).status_code == code
    assert http.get("/health", headers={"Host": host}).status_code == 200


def test_the_name_to_allow_is_said_as_the_option_takes_it(http: httpx.Client) -> None:
    answer = http.get("/v1/status", headers={**ANNA, "Host": "evil.example:8443"})
    assert "to the name 'evil.example'; --allowed-host adds one" in answer.json()["error"]
    for name in ("https://judge.example.org", "judge.example.org:443", "judge.example.org/"):
        with pytest.raises(ConfigError, match="expected a name without scheme and port"):
            accepted_hosts("127.0.0.1", [name])
    assert accepted_hosts("127.0.0.1", ["::1", "[::1]", "judge"]) == ("::1", "[::1]", "judge", *LOOPBACK)


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
    with in_process(create_app(JUDGE)) as http:
        assert http.post("/v1/uploads", content=png(), headers=headers).status_code == code


def test_pages_cannot_be_framed(http: httpx.Client) -> None:
    """Pages, answers and errors alike."""
    for path in ("/ui", "/docs", "/health", "/v1/status", "/nothing"):
        headers = http.get(path).headers
        assert headers["X-Frame-Options"] == "DENY"
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "Access-Control-Allow-Origin" not in headers


@pytest.mark.slow
def test_docs_need_no_other_machine(http: httpx.Client) -> None:
    """All that the page of the routes is made of comes from the server, also for those who have no key yet."""
    page = http.get("/docs").text
    parts = re.findall(r'(?:src|href)="([^"]+)"', page) + re.findall(r"url: '([^']+)'", page)
    assert len(parts) == 4
    for part in parts:
        assert part.startswith("/")
        assert http.get(part).status_code == 200
    schema = http.get("/openapi.json").json()
    assert schema["components"]["securitySchemes"] == {"key": {"type": "http", "scheme": "bearer"}}


@pytest.mark.slow
def test_docs_under_a_prefix() -> None:
    """Behind a proxy that serves it below a path, the page finds its parts there."""
    app = create_app(JUDGE)
    app.root_path = "/judge"
    with in_process(app) as http:
        page = http.get("/docs").text
    assert 'src="/judge/docs/swagger-ui-bundle.js"' in page
    assert "url: '/judge/openapi.json'" in page
