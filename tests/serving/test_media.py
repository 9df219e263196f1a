"""What a server fetches and opens for a request, and all that it does not; keys with limits, hashed and in a URL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from rewardlab.data.urls import MAX_IMAGE_BYTES
from rewardlab.errors import ConfigError, MediaError
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.prompts import load_template
from rewardlab.samplers.scripted import ScriptedSampler
from rewardlab.serving.app import create_app
from rewardlab.serving.auth import Key
from rewardlab.serving.media import Media
from tests.support.images import png
from tests.support.servers import running

BODY: dict[str, Any] = {"question": "Which?", "responses": ["a", "b"]}


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


def test_keys_have_limits() -> None:
    """413 beyond a key's size, another key's is its own; a key may stand in the URL; the page asks for one itself."""
    judge = GenerativeJudge(ScriptedSampler(lambda prompt, draw: "<answer>1</answer>"), load_template("plain"))
    keys = [Key.of("small", max_bytes=200), Key.of("large")]
    body = BODY | {"question": "Which? " + "x" * 300}
    with running(create_app(judge, keys=keys)) as url:

        def ask(**how: Any) -> int:
            return httpx.post(f"{url}/v1/judge", json=body, **how).status_code

        assert ask(headers={"Authorization": "Bearer small"}) == 413
        assert ask(headers={"Authorization": "Bearer large"}) == 200
        assert ask(auth=("anybody", "large")) == 200
        assert ask(auth=("large", "anybody")) == 401
        assert ask(headers={"Authorization": "Basic !"}) == 401
        assert ask() == 401
        assert httpx.get(f"{url}/ui").status_code == 200
        assert httpx.get(f"{url}/v1/status").status_code == 401
