"""Keys see nothing of each other, and nothing different is taken for the same: answers, groups, uploads, status."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
from starlette.testclient import TestClient

from rewardlab.errors import OutputError
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.prompts import load_template
from rewardlab.samplers.base import SamplingParams
from rewardlab.samplers.scripted import ScriptedSampler
from rewardlab.serving import middleware
from rewardlab.serving.app import create_app, template_labels
from rewardlab.serving.auth import Key
from rewardlab.serving.conversations import Sample
from rewardlab.serving.errors import StorageError
from rewardlab.serving.jobs import ChatJob, JudgeJob
from rewardlab.serving.limits import Limits
from rewardlab.serving.request_record import REQUEST, RequestRecord
from rewardlab.serving.service import GroupRules, ServerOptions
from rewardlab.serving.uploads import UploadStore
from rewardlab.types import BOTH_ORDERS, Completion, FinishReason, Message, Order, Part, PreferencePair
from tests.support.browser import served
from tests.support.images import png
from tests.support.scripted_judge import ANSWERS, PROMPT, QUESTION, handler
from tests.support.serving import app_of, in_process
from tests.support.videos import film

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
    server = Server(Key.of("alpha"), Key.of("beta"), rules=GroupRules(group_size=3), limits=Limits(group_timeout=1.0))
    with clients(server) as (alpha, beta):
        yield server, alpha, beta


@contextmanager
def clients(server: Server) -> Iterator[tuple[httpx.Client, httpx.Client]]:
    """A client of each key, of one running server."""
    with in_process(server.app, "alpha") as alpha:
        beta = TestClient(server.app, headers={"Authorization": "Bearer beta"})
        beta.portal = alpha.portal  # the same loop
        yield alpha, beta


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
    within = {"question": QUESTION, "responses": [[{"type": "image", "image": f"upload:{upload}"}], "a"]}
    paths = ("/v1/judge", "/v1/rewards")
    assert [asker.post(path, json=within).status_code for path in paths for asker in (alpha, beta)] == [200, 422] * 2
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
    assert first["median_ms"] > 0


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
    (tmp_path / "uploads" / "a").touch()
    with pytest.raises(StorageError, match="cannot keep an upload"):
        stored(store, "a", b"2")


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


PAIR_KEPT_APART = PreferencePair("p", "q", ("a", "b"), None, (b"image",))
JUDGE = JudgeJob(PAIR_KEPT_APART, BOTH_ORDERS, 2, 0)
SHOWN = (Part(image=b"image"), Part(text="q"))
CHAT = ChatJob((Message("user", (Part(text="hello"),)),), SamplingParams(1, 1.0, 1.0, 64, 0))


@pytest.mark.parametrize(
    ("job", "other"),
    [
        (JUDGE, replace(JUDGE, by_probability=True)),
        (JUDGE, replace(JUDGE, orders=(Order.GIVEN,))),
        (JUDGE, replace(JUDGE, num_votes=3)),
        (JUDGE, replace(JUDGE, seed=1)),
        *((JUDGE, replace(JUDGE, pair=replace(PAIR_KEPT_APART, **{name: value}))) for name, value in {
            "question": "r", "responses": ("b", "a"), "images": (b"another",)}.items()),
        *((CHAT, replace(CHAT, params=replace(CHAT.params, **{name: value}))) for name, value in {
            "temperature": 0.5, "top_p": 0.5, "max_tokens": 32, "num_samples": 2, "seed": 1}.items()),
        (CHAT, replace(CHAT, prompt=(Message("system", CHAT.prompt[0].parts),))),
        (CHAT, replace(CHAT, prompt=(Message("user", (Part(text="hel"), Part(text="lo"))),))),
        (replace(CHAT, prompt=(Message("user", SHOWN),)), replace(CHAT, prompt=(Message("user", SHOWN[::-1]),))),
    ],
)  # fmt: skip
def test_other_content_has_another_key(job: Any, other: Any) -> None:
    assert job.key() == replace(job).key()
    assert job.key() != other.key()


def test_a_pair_of_which_some_votes_failed_is_judged_again() -> None:
    """The votes that were drawn are answered, and stand for nobody else's request."""
    drawn: list[int] = []

    def answer(prompt: tuple[Message, ...], draw: int) -> str | Completion:
        drawn.append(draw)
        if len(drawn) == 1:
            return Completion("", FinishReason.ERROR, error="HTTP 503")
        return "<think>r</think><answer>1</answer>"

    body = {"question": "q", "responses": ["a", "b"], "votes": 2}
    with in_process(app_of(answer)) as client:
        first, second, third = (client.post("/v1/judge", json=body).json() for _ in range(3))
    assert [sum(vote["status"] == "error" for vote in one["votes"]) for one in (first, second, third)] == [1, 0, 0]
    assert len(drawn) == 8


def test_doors_that_need_no_key_are_few() -> None:
    """What is not listed needs one, uploads and status among them."""
    with in_process(app_of(handler, keys=[Key.of("alpha")])) as client:
        schema = client.get("/openapi.json").json()
        calls = [(method, path) for path, methods in schema["paths"].items() for method in methods]
        statuses = {path: client.request(method, path.replace("{model}", "m")).status_code for method, path in calls}
        assert client.post("/v1/uploads", content=png()).status_code == 401
    assert {path for path, status in statuses.items() if status != 401} <= set(middleware.PUBLIC_PATHS)
    assert {"/v1/uploads", "/v1/status", "/metrics", "/v1/judge", "/get_reward"} <= set(statuses)


def test_samples_about_other_images_are_of_other_groups() -> None:
    sample = Sample("q", "r", ("upload:a",))
    assert sample.key == replace(sample, response="s").key
    others = [
        replace(sample, **{name: value}) for name, value in {"question": "p", "images": ("upload:b",), "anchor": "x"}.items()
    ]
    assert sample.key not in {other.key for other in others}
    assert len(replace(sample, images=("data:image/png;base64," + "A" * 1_000_000,)).key) < 100  # thousands of keys are kept


def data_url(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def test_images_of_messages_arrive_through_slimes_door() -> None:
    """The scripted judge can read a question with "see" only where an image came with it."""
    image = {"type": "image_url", "image_url": {"url": data_url("image/png", png())}}
    prompt = [{"role": "user", "content": [image, {"type": "text", "text": "What do you see?"}]}]

    with in_process(app_of(handler, rules=GroupRules(group_size=3))) as client, ThreadPoolExecutor(3) as pool:

        def reward(answer: str) -> Any:
            return client.post("/slime", json={"prompt": prompt, "response": answer, "label": None}).json()

        assert list(pool.map(reward, ANSWERS)) == [-1, 1, 0]


def test_each_video_gives_its_own_frames(tmp_path: Path) -> None:
    films = [film(tmp_path / f"{n}.mp4", n).read_bytes() for n in (1, 3)]  # black alone; black, grey, white
    seen: list[int] = []

    def answer(prompt: tuple[Message, ...], draw: int) -> str:
        seen.append(len({part.image for message in prompt for part in message.parts if part.image is not None}))
        return "<think>r</think><answer>1</answer>"

    body = {"question": "q", "responses": ["a", "b"], "videos": [data_url("video/mp4", one) for one in films], "frames": 3}
    with in_process(app_of(answer)) as client:
        client.post("/v1/judge", json=body | {"orders": "given"}).raise_for_status()
    assert seen[0] >= 3, json.dumps(seen)
