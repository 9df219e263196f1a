"""Files as clients of many kinds send them: as the body, in a form, by PUT."""

from __future__ import annotations

import contextlib
import io
import resource
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

from rewardlab.data.images import to_data_url
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.samplers.scripted import ScriptedSampler
from rewardlab.serving.app import create_app
from tests.support.images import png
from tests.support.judge_servers import PLAIN
from tests.support.scripted_judge import ANSWERS, handler
from tests.support.servers import running


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    judge = GenerativeJudge(ScriptedSampler(handler), PLAIN)
    with running(create_app(judge)) as url, httpx.Client(base_url=url, timeout=30) as opened:
        yield opened


def test_one_id_however_it_is_sent(client: httpx.Client) -> None:
    """A form of whatever field names, with fields beside the file; PUT to the path or below it, as curl -T does."""
    bare = client.post("/v1/uploads", content=png()).json()["id"]
    form = client.post("/v1/uploads", files={"picture": ("star.png", png(), "image/png")}, data={"comment": "a star"})
    untyped = client.post("/v1/uploads", files={"file": png()})
    put = client.put("/v1/uploads", content=png())
    named = client.put("/v1/uploads/star.png", content=png())
    assert [answer.json() for answer in (form, untyped, put, named)] == [{"id": bare}] * 4
    body = {"question": "Do you see it?", "responses": ANSWERS[:2]}
    upload, inline = (client.post("/v1/judge", json=body | {"images": [one]}) for one in (f"upload:{bare}", to_data_url(png())))
    assert upload.json()["outcome"] == inline.json()["outcome"] == "response_1"


def test_an_upload_is_sent_in_pieces(client: httpx.Client) -> None:
    """Those who ask for theirs and do not read it hold none of it in the server's memory."""
    noise = np.random.default_rng(0).integers(0, 256, (2000, 2400, 3), dtype=np.uint8)
    data = io.BytesIO()
    Image.fromarray(noise).save(data, format="PNG", compress_level=0)
    name = client.post("/v1/uploads", content=data.getvalue()).json()["id"]
    assert client.get(f"/v1/uploads/{name}").content == data.getvalue()
    before = _resident_bytes()
    with contextlib.ExitStack() as stack:
        for _ in range(30):
            connection = stack.enter_context(socket.create_connection((client.base_url.host, client.base_url.port or 80)))
            connection.sendall(f"GET /v1/uploads/{name} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            assert connection.recv(9) == b"HTTP/1.1 "
        time.sleep(0.3)
        assert _resident_bytes() - before < 10 * len(data.getvalue())


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_a_video_in_a_form_is_known_by_its_name(client: httpx.Client) -> None:
    """curl -F calls it application/octet-stream; taken for an image it would be refused as none."""
    for answer in (
        client.post("/v1/uploads", files={"file": ("clip.mp4", b"no film", "application/octet-stream")}),
        client.post("/v1/uploads", files={"file": ("clip", b"no film", "video/mp4")}),
        client.put("/v1/uploads/clip.mp4", content=b"no film"),
    ):
        assert answer.status_code == 422
        assert "video" in answer.json()["error"]


def test_forms_that_are_refused(client: httpx.Client) -> None:
    """None, several, more than an image may be, a form that is cut off: a sentence each."""
    several = client.post("/v1/uploads", files=[("file", ("a.png", png(), "image/png"))] * 2)
    none = client.post("/v1/uploads", files={"comment": (None, "a star")})
    large = client.post("/v1/uploads", files={"file": ("a.png", b"x" * 20_000_001, "image/png")})
    cut = client.post("/v1/uploads", content=b"--x\r\nCont", headers={"Content-Type": "multipart/form-data; boundary=x"})
    unbounded = client.post("/v1/uploads", content=b"x", headers={"Content-Type": "multipart/form-data"})
    sentences = [answer.json()["error"] for answer in (several, none, large, cut, unbounded)]
    assert "a form with 2 files; expected one" in sentences[0]
    assert "a form with 0 files; expected one" in sentences[1]
    assert "20,000,001 bytes, more than 20,000,000" in sentences[2]
    assert "a form with 0 files" in sentences[3]
    assert "boundary" in sentences[4]
    assert [answer.status_code for answer in (several, none, large, cut, unbounded)] == [422, 422, 422, 422, 400]
