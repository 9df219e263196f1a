"""Keys see nothing of each other: groups, uploads, cached answers, status; and each pays for its own work."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest

from rewardlab.errors import OutputError
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.prompts import load_template
from rewardlab.samplers.scripted import ScriptedSampler
from rewardlab.serving.app import create_app
from rewardlab.serving.auth import Key
from rewardlab.serving.errors import StorageError
from rewardlab.serving.request_record import REQUEST, RequestRecord
from rewardlab.serving.routes import template_labels
from rewardlab.serving.service import GroupRules, ServerOptions
from rewardlab.serving.uploads import UploadStore
from rewardlab.types import Message
from tests.support.browser import served
from tests.support.images import png
from tests.support.scripted_judge import ANSWERS, PROMPT, QUESTION, handler
from tests.support.servers import running

T = TypeVar("T")
PAIR: dict[str, Any] = {"question": QUESTION, "responses": ANSWERS[:2]}


class Server:
    """A scripted judge with keys; ``asked`` counts what it drew."""

    def __init__(self, *keys: Key, **options: Any) -> None:
        self.asked = 0
        self.app = create_app(
            GenerativeJudge(ScriptedSampler(self.answer), load_template("plain")), ServerOptions(keys=keys, **options)
        )

    def answer(self, prompt: tuple[Message, ...], draw: int) -> Any:
        self.asked += 1
        return handler(prompt, draw)


@pytest.fixture
def two() -> Iterator[tuple[Server, httpx.Client, httpx.Client]]:
    """A server, and a client of each of its keys."""
    server = Server(Key.of("alpha"), Key.of("beta"), rules=GroupRules(group_size=3, group_timeout_s=1.0))
    with running(server.app) as url, client(url, "alpha") as alpha, client(url, "beta") as beta:
        yield server, alpha, beta


def client(url: str, key: str) -> httpx.Client:
    return httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=30)


def test_groups_are_of_one_key(two: tuple[Server, httpx.Client, httpx.Client]) -> None:
    """Three of one key are a group, whatever another key sends for the same prompt meanwhile."""
    _, alpha, beta = two

    def sample(asker: httpx.Client, text: str) -> httpx.Response:
        return asker.post("/get_reward", json={"query": [PROMPT + text], "prompts": [PROMPT]})

    with ThreadPoolExecutor(4) as pool:
        other = pool.submit(sample, beta, "I say 9.")
        own = [pool.submit(sample, alpha, text) for text in ANSWERS]
        assert [answer.result().json()["rewards"] for answer in own] == [[-1], [1], [0]]
        assert other.result().status_code == 408


def test_uploads_are_of_one_key(two: tuple[Server, httpx.Client, httpx.Client]) -> None:
    """The id of another key is unknown, as one that never was."""
    _, alpha, beta = two
    upload = alpha.post("/v1/uploads", content=png()).json()["id"]
    body = PAIR | {"images": [f"upload:{upload}"]}
    assert alpha.post("/v1/judge", json=body).status_code == 200
    unknown = beta.post("/v1/judge", json=body)
    assert (unknown.status_code, unknown.json()["status"]) == (422, "media")
    never = beta.post("/v1/judge", json=PAIR | {"images": ["upload:" + "0" * 32]})
    assert unknown.json()["error"].replace(upload, "") == never.json()["error"].replace("0" * 32, "")
    assert beta.post("/v1/uploads", content=png()).json()["id"] == upload
    assert beta.post("/v1/judge", json=body).status_code == 200


def test_answers_and_status_are_of_one_key(two: tuple[Server, httpx.Client, httpx.Client]) -> None:
    """What one key asked is asked anew for the other, who sees its own counts and latencies alone."""
    server, alpha, beta = two
    for asker, asked in ((alpha, 2), (alpha, 2), (beta, 4)):
        assert asker.post("/v1/judge", json=PAIR).status_code == 200
        assert server.asked == asked
    first, second = (asker.get("/v1/status").json() for asker in two[1:])
    keys = ("asked", "cached", "judged", "batches", "sequences")
    assert [first["counts"][name] for name in keys] == [2, 1, 1, 1, 2]
    assert [second["counts"][name] for name in keys] == [1, 0, 1, 1, 2]
    assert len(first["recent"]) == len(second["recent"]) == 1


@pytest.mark.parametrize("limit", ["samples_per_minute", "tokens_per_minute"])
def test_work_is_limited(limit: str) -> None:
    """A key that has had its samples or tokens waits until its debt is paid; what is answered from the cache costs nothing."""
    server = Server(Key.of("alpha", **{limit: 6.0}), Key.of("beta"))
    with running(server.app) as url, client(url, "alpha") as alpha, client(url, "beta") as beta:
        assert beta.post("/v1/judge", json=PAIR | {"votes": 8}).status_code == 200
        assert alpha.post("/v1/judge", json=PAIR | {"votes": 8}).status_code == 200
        refused = alpha.post("/v1/judge", json=PAIR)
        assert (refused.status_code, refused.json()["status"]) == (429, "rate")
        assert int(refused.headers["Retry-After"]) >= 60
        assert beta.post("/v1/judge", json=PAIR).status_code == 200


def as_tenant(tenant: str, act: Callable[[], T]) -> T:
    """Return what ``act`` does for a tenant; whoever asks afterwards is none."""

    def run() -> T:
        REQUEST.set(RequestRecord(tenant=tenant))
        return act()

    return copy_context().run(run)


def stored(store: UploadStore, tenant: str, data: bytes) -> str:
    return as_tenant(tenant, lambda: store.add(data))


def fetched(store: UploadStore, tenant: str, name: str) -> bytes | None:
    return as_tenant(tenant, lambda: store.get(name))


def test_uploads_outlive_their_server(tmp_path: Path) -> None:
    """With their order of use; each tenant within its bytes; what a crash left half written is no upload."""
    store = UploadStore(tmp_path, max_bytes=30)
    names = [stored(store, "a", bytes([n]) * 10) for n in range(3)]
    fetched(store, "a", names[0])
    half = tmp_path / "a" / "x.partial"
    half.write_bytes(b"half")
    os.utime(half, (0, 0))
    again = UploadStore(tmp_path, max_bytes=30)
    assert stored(again, "b", b"b" * 25)
    assert [fetched(again, "a", name) is not None for name in names] == [True] * 3
    again = UploadStore(tmp_path, max_bytes=30)
    stored(again, "a", b"another")
    assert [fetched(again, "a", name) is not None for name in names] == [False, True, True]
    assert fetched(again, "b", names[1]) is None
    assert fetched(again, "a", "../b/" + names[1]) is None
    assert not half.exists()


def test_where_uploads_cannot_be_kept(tmp_path: Path) -> None:
    """Said at the start; later a full disk is said to who uploads."""
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="choose another --uploads"):
        UploadStore(tmp_path / "file" / "uploads")
    store = UploadStore(tmp_path / "uploads")
    stored(store, "a", b"1")
    (tmp_path / "uploads" / "a").rename(tmp_path / "gone")
    with pytest.raises(StorageError, match="cannot keep an upload"):
        stored(store, "a", b"2")


def test_status_is_of_the_key_that_asks() -> None:
    """A response that waits for its group is shown to the key that sent it, and to no other."""
    headers = {key: {"Authorization": f"Bearer {key}"} for key in "ab"}
    rules = GroupRules(group_size=2)
    with (
        served(handler, keys=[Key.of("a"), Key.of("b")], rules=rules) as url,
        httpx.Client(base_url=url) as client,
        ThreadPoolExecutor(2) as pool,
    ):

        def waiting(key: str) -> int:
            return int(client.get("/v1/status", headers=headers[key]).json()["group_members_waiting"])

        def send(answer: str) -> Any:
            body = {"query": [PROMPT + answer], "prompts": [PROMPT]}
            return httpx.post(f"{url}/get_reward", json=body, headers=headers["a"], timeout=30).json()["rewards"]

        first = pool.submit(send, ANSWERS[0])
        while not waiting("a"):
            pass
        assert (waiting("a"), waiting("b")) == (1, 0)
        assert (send(ANSWERS[1]), first.result()) == ([1], [-1])
        assert (waiting("a"), waiting("b")) == (0, 0)


def test_status_names_the_policy_and_the_responses() -> None:
    with served(handler) as url:
        status = httpx.get(f"{url}/v1/status").json()
    assert (status["policy"], status["labels"]) == ("majority", ["Response 1", "Response 2"])
    assert template_labels(load_template("answer_sentence").text) == ("Answer 1", "Answer 2")
    assert template_labels(load_template("double_brackets").text) == ("Response A", "Response B")
    assert template_labels("{question} {first} {second}") == ("Response 1", "Response 2")


def test_an_upload_is_given_back_to_its_key() -> None:
    """As bytes that no browser opens as a page; another key, and another id, is a 404."""
    headers = {key: {"Authorization": f"Bearer {key}"} for key in "ab"}
    with served(handler, keys=[Key.of("a"), Key.of("b")]) as url, httpx.Client(base_url=url) as client:
        name = client.post("/v1/uploads", content=png(), headers=headers["a"]).json()["id"]
        answer = client.get(f"/v1/uploads/{name}", headers=headers["a"])
        assert (answer.status_code, answer.content) == (200, png())
        assert answer.headers["Content-Type"] == "application/octet-stream"
        assert answer.headers["Content-Disposition"] == "attachment"
        assert client.get(f"/v1/uploads/{name}", headers=headers["b"]).status_code == 404
        assert "send it again" in client.get("/v1/uploads/nothing", headers=headers["a"]).json()["error"]
        assert client.get(f"/v1/uploads/{name}").status_code == 401
