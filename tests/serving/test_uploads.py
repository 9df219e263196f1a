"""Uploads and the other sources of media: what is accepted, fetched and kept."""

from __future__ import annotations

import contextlib
import io
import resource
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from rewardlab.data.images import to_data_url
from rewardlab.data.urls import MAX_IMAGE_BYTES
from rewardlab.errors import ConfigError, MediaError
from rewardlab.serving import media as module
from rewardlab.serving.app import create_app
from rewardlab.serving.limits import Limits
from rewardlab.serving.media import MAX_URL_CHARS, Media, MediaStore
from tests.support.images import png
from tests.support.scripted_judge import ANSWERS, handler
from tests.support.servers import running
from tests.support.serving import app_of, in_process, judge_of
from tests.support.videos import film


@pytest.fixture(scope="module")
def host() -> Iterator[str]:
    """An image under /open/, a secret beside it, a redirect between them, a body too large, and none at all."""

    async def answer(request: Request) -> Response:
        match request.url.path:
            case "/open/a.png" | "/secret/a.png":
                return Response(png())
            case "/open/elsewhere":
                return RedirectResponse("/secret/a.png")
            case "/open/large":
                return Response(b"x" * (MAX_IMAGE_BYTES + 1))
            case "/open/text":
                return Response(b"hello")
        return Response(status_code=404)

    with running(Starlette(routes=[Route("/{path:path}", answer)])) as url:
        yield url


def test_an_allowed_url(host: str) -> None:
    assert Media(allowed_urls=[f"{host}/open/"]).image(f"{host}/open/a.png") == png()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("{host}/secret/a.png", "not fetched"),
        ("{host}/open/../secret/a.png", "not fetched"),
        ("{host}/open/%2e%2e/secret/a.png", "not fetched"),
        ("{host}/open/%252e%252e/secret/a.png", "not fetched"),
        ("{host}/open/..\\secret\\a.png", "not fetched"),
        ("{host}/open", "not fetched"),
        ("http://user@127.0.0.1/open/a.png", "not fetched"),
        ("http://127.0.0.1.evil.example/open/a.png", "not fetched"),
        ("http://127.0.0.1:1/open/a.png", "not fetched"),
        ("http://127.0.0.1:99999999/open/a.png", "not fetched"),
        ("https{rest}/open/a.png", "not fetched"),
        ("file:///etc/passwd", "not fetched"),
        ("ftp://127.0.0.1/open/a.png", "not fetched"),
        ("/etc/passwd", "not fetched"),
        ("media:a.png", "not fetched"),
        ("{host}/open/elsewhere", "HTTP 307; redirects are not followed"),
        ("{host}/open/missing", "HTTP 404"),
        ("{host}/open/large", "more than 20,000,000 bytes"),
        ("{host}/open/text", "not a readable image"),
    ],
)
def test_what_is_not_fetched(host: str, url: str, said: str) -> None:
    """Beside the allowed beginning, by any spelling; redirects; what is no image or too large."""
    media = Media(allowed_urls=[f"{host}/open/"])
    with pytest.raises(MediaError, match=said):
        media.image(url.format(host=host, rest=host.removeprefix("http")))


def test_an_allowed_folder(tmp_path: Path) -> None:
    """A file in it, by name; nothing outside, by any path or link."""
    folder = tmp_path / "open"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "a.png").write_bytes(png())
    (tmp_path / "secret.png").write_bytes(png())
    (folder / "link.png").symlink_to(tmp_path / "secret.png")
    media = Media(folder=folder)
    assert media.image("media:sub/a.png") == png()
    for name in ("../secret.png", f"{tmp_path}/secret.png", "link.png", "sub", "none.png", "a\0b", "x" * 5000):
        with pytest.raises(MediaError):
            media.image(f"media:{name}")


def test_bad_sources(tmp_path: Path) -> None:
    for url in ("https://host/dir", "host/", "ftp://host/", "https:///x/"):
        with pytest.raises(ConfigError, match="ends with /"):
            Media(allowed_urls=[url])
    with pytest.raises(ConfigError, match="no such folder"):
        Media(folder=tmp_path / "none")


def test_a_store_drops_what_was_used_longest_ago() -> None:
    """Up to its size in bytes; what is larger than the whole store is there alone."""
    store = MediaStore(10)
    for name, size in (("a", 4), ("b", 3), ("c", 3)):
        store.add(name, b"x" * size)
    store.add("a", b"x" * 4)  # again: it counts once, and is the newest
    assert store.get("b") == b"xxx"
    store.add("d", b"xx")
    assert [store.get(name) is not None for name in "abcd"] == [True, True, False, True]
    store.add("e", b"x" * 99)
    assert [store.get(name) is not None for name in "abde"] == [False, False, False, True]
    store.add("f", b"x")
    assert [store.get(name) is not None for name in "ef"] == [False, True]


def refusal(act: Callable[[], object]) -> str:
    with pytest.raises(MediaError) as caught:
        act()
    return str(caught.value)


def test_where_references_lead(tmp_path: Path) -> None:
    """Every refusal names the place, what came and what was expected."""
    media, folder = Media(allowed_urls=["https://127.0.0.1:1/", "http://127.0.0.1:1/"]), Media(folder=tmp_path)
    long = "n" * 90
    other = "; other URLs and paths are not fetched, unless --allow-url or --media of the server allows them"
    (tmp_path / long).write_bytes(b"no image")
    assert refusal(lambda: media.image("ftp://a")) == f"image 0: expected a data URL or upload:ID, got 'ftp://a'{other}"
    assert refusal(lambda: folder.image(f"http://{long}", 3)) == (
        f"image 3: expected a data URL or upload:ID, or media:NAME, got 'http://{long[:33]}'{other}"
    )
    assert refusal(lambda: media.image("upload:x")) == (
        "upload 'x' does not exist (never sent, or displaced by newer uploads); send it again"
    )
    assert refusal(lambda: media.uploaded(long)).startswith(f"upload '{long[:40]}' does not exist")
    assert refusal(lambda: media.image("data:,x")) == "image 0: expected an image as a data URL: data:image/png;base64,..."
    assert refusal(lambda: folder.image(f"media:{long}")) == refusal(lambda: folder.plain(b"no image", "image 0"))
    assert refusal(lambda: folder.image(f"media:{long}x")) == (
        f"image 0: media:{long[:80]} is not a file of at most 20,000,000 bytes in the media folder"
    )
    assert refusal(lambda: folder.image(f"media:\0{long}")) == f"image 0: media:{chr(0) + long[:79]!r} cannot be read"
    assert refusal(lambda: media.image("https://127.0.0.1:1/a")).startswith("image 0: cannot be fetched (")
    longest = "http://127.0.0.1:1/".ljust(MAX_URL_CHARS, "a")
    assert refusal(lambda: media.read(longest, "here")).startswith("here: cannot be fetched (")
    assert refusal(lambda: media.read(f"{longest}a", "here")).startswith("here: expected a data URL")


def test_bytes_of_images_and_videos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A video may be larger than an image, each up to its bound, which is allowed."""
    monkeypatch.setattr(module, "MAX_IMAGE_BYTES", 9)
    monkeypatch.setattr(module, "MAX_VIDEO_BYTES", 12)
    media = Media(folder=tmp_path)
    (tmp_path / "a").write_bytes(b"x" * 9)
    (tmp_path / "b").write_bytes(b"x" * 12)
    assert len(media.read("media:a", "here")) == 9
    assert len(media.read("media:b", "here", video=True)) == 12
    assert refusal(lambda: media.read("media:b", "here")).endswith("of at most 9 bytes in the media folder")
    assert (
        refusal(lambda: media.read(f"data:image/png;base64,{'A' * 20}", "here")) == "here: more than 9 bytes; resize it first"
    )
    assert refusal(lambda: media.plain(b"x" * 10, "here")) == "here: 10 bytes, more than 9; resize it first"
    assert refusal(lambda: media.plain(b"x" * 9, "here")).startswith("here: not a readable image")


def test_uploads_are_checked(tmp_path: Path) -> None:
    """An image or a video that cannot be read is refused at once, and so is one beyond the limits."""
    video, media = film(tmp_path / "a.mp4", 4).read_bytes(), Media()
    assert media.read(f"upload:{media.upload(video, video=True)}", "") == video
    assert len(media.frames(video, 3, "here")) == 3
    assert refusal(lambda: media.upload(b"no video", video=True)).startswith("upload: ")
    assert refusal(lambda: media.upload(b"no image")).startswith("upload: not a readable image")
    assert refusal(lambda: media.frames(b"no video", 3, "here")).startswith("here: ")
    small = Media(limits=Limits(frame_pixels=100, pixels=100))
    assert refusal(lambda: small.upload(video, video=True)).startswith("upload: ")
    assert refusal(lambda: small.frames(video, 1, "here")).startswith("here: ")
    assert "more than 100" in refusal(lambda: small.upload(png((20, 20))))
    gone = ": cancelled, because no client is waiting for it"
    assert refusal(lambda: media.upload(video, video=True, is_stopped=lambda: True)) == f"upload{gone}"
    assert refusal(lambda: media.frames(video, 1, "here", is_stopped=lambda: True)) == f"here{gone}"


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    judge = judge_of(handler)
    with in_process(create_app(judge)) as opened:
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


def test_an_upload_is_sent_in_pieces() -> None:
    """Clients that request theirs and do not read it hold none of it in the server's memory."""
    noise = np.random.default_rng(0).integers(0, 256, (2000, 2400, 3), dtype=np.uint8)
    data = io.BytesIO()
    Image.fromarray(noise).save(data, format="PNG", compress_level=0)
    with running(app_of()) as url, httpx.Client(base_url=url, timeout=30) as http, contextlib.ExitStack() as stack:
        name = http.post("/v1/uploads", content=data.getvalue()).json()["id"]
        assert http.get(f"/v1/uploads/{name}").content == data.getvalue()
        before = _resident_bytes()
        for _ in range(30):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", http.base_url.port or 80)))
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
