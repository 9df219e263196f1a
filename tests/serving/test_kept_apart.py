"""What must not be taken for the same: answers by other options, keys by their beginning, groups by their question alone."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from rewardlab.data.urls import AllowedUrls
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.prompts import load_template
from rewardlab.samplers.base import SamplingParams
from rewardlab.samplers.scripted import ScriptedSampler
from rewardlab.serving import auth
from rewardlab.serving.app import create_app
from rewardlab.serving.auth import Bucket, Key, Keys
from rewardlab.serving.conversations import Sample
from rewardlab.serving.jobs import ChatJob, JudgeJob
from rewardlab.serving.service import GroupRules
from rewardlab.types import BOTH_ORDERS, Completion, FinishReason, Message, Order, Part, PreferencePair
from tests.support.images import png
from tests.support.scripted_judge import ANSWERS, handler
from tests.support.servers import running
from tests.support.videos import film

PAIR = PreferencePair("p", "q", ("a", "b"), None, (b"image",))
JUDGE = JudgeJob(PAIR, BOTH_ORDERS, 2, 0)
CHAT = ChatJob((Message("user", (Part(text="hello"),)),), SamplingParams(1, 1.0, 1.0, 64, 0))


@pytest.mark.parametrize(
    ("job", "other"),
    [
        (JUDGE, replace(JUDGE, by_probability=True)),
        (JUDGE, replace(JUDGE, orders=(Order.GIVEN,))),
        (JUDGE, replace(JUDGE, num_votes=3)),
        (JUDGE, replace(JUDGE, seed=1)),
        *((JUDGE, replace(JUDGE, pair=replace(PAIR, **{name: value}))) for name, value in {
            "question": "r", "responses": ("b", "a"), "images": (b"another",)}.items()),
        *((CHAT, replace(CHAT, params=replace(CHAT.params, **{name: value}))) for name, value in {
            "temperature": 0.5, "top_p": 0.5, "max_tokens": 32, "num_samples": 2, "seed": 1}.items()),
        (CHAT, replace(CHAT, prompt=(Message("system", CHAT.prompt[0].parts),))),
        (CHAT, replace(CHAT, prompt=(Message("user", (Part(text="hel"), Part(text="lo"))),))),
    ],
)  # fmt: skip
def test_other_content_has_another_key(job: Any, other: Any) -> None:
    assert job.key() == replace(job).key()
    assert job.key() != other.key()


def served(answer: Callable[[tuple[Message, ...], int], str | Completion], **options: Any) -> Any:
    return running(create_app(GenerativeJudge(ScriptedSampler(answer), load_template("plain")), **options))


def test_a_pair_of_which_some_votes_failed_is_judged_again() -> None:
    """The votes that were drawn are answered, and stand for nobody else's request."""
    drawn: list[int] = []

    def answer(prompt: tuple[Message, ...], draw: int) -> str | Completion:
        drawn.append(draw)
        if len(drawn) == 1:
            return Completion("", FinishReason.ERROR, error="HTTP 503")
        return "<think>r</think><answer>1</answer>"

    body = {"question": "q", "responses": ["a", "b"], "votes": 2}
    with served(answer) as url, httpx.Client(base_url=url) as client:
        first, second, third = (client.post("/v1/judge", json=body).json() for _ in range(3))
    assert [sum(vote["status"] == "error" for vote in one["votes"]) for one in (first, second, third)] == [1, 0, 0]
    assert len(drawn) == 8


def test_the_answer_that_was_used_last_stays_longest() -> None:
    drawn: list[str] = []

    def answer(prompt: tuple[Message, ...], draw: int) -> str:
        drawn.append(next(name for name in ("first", "second", "third") if name in prompt[0].text))
        return "<think>r</think><answer>1</answer>"

    with served(answer, cache_size=2) as url, httpx.Client(base_url=url) as client:
        for name in ("first", "second", "first", "third", "first"):
            client.post("/v1/judge", json={"question": name, "responses": ["a", "b"], "orders": "given"}).raise_for_status()
    assert drawn == ["first", "second", "third"]


def test_a_bucket_fills_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """600 a minute: sixty at once, then ten a second, and never more than sixty."""
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    bucket = Bucket(600)
    bucket.take(60)
    assert bucket.wait_s() == pytest.approx(0.1)
    now += 0.5
    bucket.take(5)
    assert bucket.wait_s() == pytest.approx(0.1)
    now += 1e6
    bucket.wait_s()
    bucket.take(60)
    assert bucket.wait_s() == pytest.approx(0.1)


@pytest.mark.parametrize("place", range(32))
def test_every_byte_of_a_keys_hash_counts(place: int) -> None:
    key = Key.of("alpha")
    near = bytearray(key.digest)
    near[place] ^= 1
    assert Keys([replace(key, digest=bytes(near))]).find("Bearer alpha") is None
    assert Keys([key]).find("Bearer alpha") == key


def test_doors_that_need_no_key_are_few() -> None:
    """What is not listed needs one, uploads and status among them."""
    with served(handler, keys=[Key.of("alpha")]) as url, httpx.Client(base_url=url) as client:
        schema = client.get("/openapi.json").json()
        calls = [(method, path) for path, methods in schema["paths"].items() for method in methods]
        statuses = {path: client.request(method, path.replace("{model}", "m")).status_code for method, path in calls}
        assert client.post("/v1/uploads", content=png()).status_code == 401
    assert {path for path, status in statuses.items() if status != 401} <= set(auth.PUBLIC_PATHS)
    assert {"/v1/uploads", "/v1/status", "/metrics", "/v1/judge", "/get_reward"} <= set(statuses)


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("https://images.host/set/a.png", True),
        ("HTTPS://Images.Host:443/set/a.png", True),
        ("https://images.host:444/set/a.png", False),
        ("http://images.host/set/a.png", False),
        ("https://images.host/sets/a.png", False),
        ("https://images.host.evil/set/a.png", False),
        ("https://u@images.host/set/a.png", False),
    ],
)
def test_urls_are_compared_by_their_parts(url: str, allowed: bool) -> None:
    assert AllowedUrls(["https://images.host/set/"]).allows(url) is allowed


def test_samples_about_other_images_are_of_other_groups() -> None:
    sample = Sample("q", "r", ("upload:a",))
    assert sample.key == replace(sample, response="s").key
    others = [
        replace(sample, **{name: value}) for name, value in {"question": "p", "images": ("upload:b",), "anchor": "x"}.items()
    ]
    assert sample.key not in {other.key for other in others}


def data_url(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def test_images_of_messages_arrive_through_slimes_door() -> None:
    """The scripted judge can read a question with "see" only where an image came with it."""
    image = {"type": "image_url", "image_url": {"url": data_url("image/png", png())}}
    prompt = [{"role": "user", "content": [image, {"type": "text", "text": "What do you see?"}]}]

    with served(handler, rules=GroupRules(group_size=3)) as url, ThreadPoolExecutor(3) as pool:

        def reward(answer: str) -> Any:
            return httpx.post(f"{url}/slime", json={"prompt": prompt, "response": answer, "label": None}, timeout=30).json()

        assert list(pool.map(reward, ANSWERS)) == [-1, 1, 0]


def test_each_video_gives_its_own_frames(tmp_path: Path) -> None:
    films = [film(tmp_path / f"{n}.mp4", n).read_bytes() for n in (1, 3)]  # black alone; black, grey, white
    seen: list[int] = []

    def answer(prompt: tuple[Message, ...], draw: int) -> str:
        seen.append(len({part.image for message in prompt for part in message.parts if part.image is not None}))
        return "<think>r</think><answer>1</answer>"

    body = {"question": "q", "responses": ["a", "b"], "videos": [data_url("video/mp4", one) for one in films], "frames": 3}
    with served(answer) as url:
        httpx.post(f"{url}/v1/judge", json=body | {"orders": "given"}, timeout=30).raise_for_status()
    assert seen[0] >= 3, json.dumps(seen)
