"""The files of ``/ui``: what is served, as what, to whom; nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import httpx
import pytest

import rewardlab.serving
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.prompts import load_template
from rewardlab.samplers.scripted import ScriptedSampler
from rewardlab.serving.app import create_app
from rewardlab.serving.auth import Key
from tests.support.servers import running

JUDGE = GenerativeJudge(ScriptedSampler(lambda prompt, draw: ""), load_template("plain"))
FOLDER = Path(rewardlab.serving.__path__[0]) / "page"
FILES = sorted(path.name for path in FOLDER.iterdir())
MEDIA_TYPES = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml; charset=utf-8",
}


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    """Of a server that wants a key; this client has none."""
    with running(create_app(JUDGE, keys=[Key.of("k")])) as url, httpx.Client(base_url=url) as client:
        yield client


@pytest.fixture(scope="module")
def folder(client: httpx.Client) -> str:
    """Where the page says that its files are."""
    match = re.search(r'src="ui/([0-9a-f]{16})/main\.js"', client.get("/ui").text)
    assert match
    return f"/ui/{match[1]}"


@pytest.mark.parametrize("name", [name for name in FILES if name != "index.html"])
def test_each_is_served_as_what_it_is(client: httpx.Client, folder: str, name: str) -> None:
    """To everybody, for good: what is under this address never changes."""
    answer = client.get(f"{folder}/{name}")
    assert (answer.status_code, answer.content) == (200, (FOLDER / name).read_bytes())
    assert answer.headers["Content-Type"] == MEDIA_TYPES[Path(name).suffix]
    assert "immutable" in answer.headers["Cache-Control"]


def test_the_page_itself_is_asked_for_each_time(client: httpx.Client) -> None:
    assert client.get("/ui").headers["Cache-Control"] == "no-cache"
    assert "VERSION" not in client.get("/ui").text


@pytest.mark.parametrize(
    "path",
    [
        "{0}/index.html",
        "{0}/../../v1/status",
        "{0}/..%2findex.html",
        "{0}/%2e%2e%2fui.py",
        "/ui/0123456789abcdef/main.js",
        "/ui/main.js",
    ],
)
def test_nothing_else_is(client: httpx.Client, folder: str, path: str) -> None:
    """No other file, no other version, and no route that wants a key behind the public folder."""
    connection = HTTPConnection(client.base_url.host, client.base_url.port)  # sends a path as it is
    connection.request("GET", path.format(folder))
    assert connection.getresponse().status == 404
    connection.close()


def test_under_a_prefix() -> None:
    """Behind a proxy that serves it below a path, everybody gets the page and its files there."""
    app = create_app(JUDGE, keys=[Key.of("k")])
    app.root_path = "/judge"
    with running(app) as url, httpx.Client(base_url=url) as client:
        page = client.get("/judge/ui")
        address = page.url.join(re.findall(r'src="([^"]+)"', page.text)[0])
        assert address.path.startswith("/judge/ui/")
        assert client.get(address).status_code == 200
        assert client.get("/judge/v1/status").status_code == 401


@pytest.mark.parametrize("name", FILES)
def test_files_are_small_and_apart(name: str) -> None:
    """At most 400 lines of at most 128 characters; no script or style within the page or another file's text."""
    lines = (FOLDER / name).read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 400
    assert max(map(len, lines)) <= 128
    if name == "index.html":
        assert not re.search(r"<style|<script(?![^>]*src=)|\son\w+=|\sstyle=", "\n".join(lines))
