"""Policies over HTTP: how many votes are asked for, what they come to, and that they arrive one after another."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from rewardlab.data.images import to_data_url
from rewardlab.judging.engines import open_generative_judge
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.judging.margins import probability_judge_of
from rewardlab.prompts import load_template
from rewardlab.samplers.base import SamplingParams
from rewardlab.samplers.scripted import ScriptedSampler
from rewardlab.serving.app import create_app
from rewardlab.types import BOTH_ORDERS, Completion, FinishReason, Message
from tests.support.servers import running
from tests.support.serving import app_of, in_process
from tests.support.videos import film

PLAIN = load_template("plain")
BODY: dict[str, Any] = {"question": "Which?", "responses": ["it is red", "it is blue"]}
Handler = Callable[[tuple[Message, ...], int], str | Completion]


def verdict(text: str) -> str:
    return f"<think>x</think><answer>{text}</answer>"


def prefers_red(prompt: tuple[Message, ...], draw: int) -> str:
    text = prompt[0].text
    return verdict("1" if text.find("red") < text.find("blue") else "2")


def ask(handler: Handler, path: str = "/v1/judge", **change: Any) -> tuple[Any, int]:
    """The answer, and how many pairs the engine was asked about."""
    with in_process(app_of(handler)) as client:
        told = client.post(f"{path}", json=BODY | change)
        status = client.get("/v1/status").json()
    return told, status["counts"]["judged"]


def test_sequential_stops_when_it_is_settled() -> None:
    """A judge that never wavers is asked for 3 of 16 rounds at an error of 5 % and for all but the last few at 0."""
    told, rounds = ask(prefers_red, policy="sequential", votes=16, stop_error=0.05)
    assert (told.json()["outcome"], told.json()["num_valid"]) == ("response_0", 2 * rounds)
    assert rounds < 5
    told, rounds = ask(prefers_red, policy="sequential", votes=16, stop_error=0)
    assert told.json()["outcome"] == "response_0"
    assert 8 < rounds < 16


@pytest.mark.parametrize(("num_silent", "rounds"), [(17, 17), (16, 32)])
def test_sequential_stops_once_no_share_can_exist(num_silent: int, rounds: int) -> None:
    """34 invalid votes of the 64 that may be asked leave neither a winner nor a share: the other 30 are not asked. With 32
    of 64 there can be a share still, and the judge is asked to the end."""

    def silent_first(prompt: tuple[Message, ...], draw: int) -> str:
        turn = next(turns) // 2
        return "hm" if turn < num_silent else prefers_red(prompt, draw)

    turns = itertools.count()
    told, asked = ask(silent_first, policy="sequential", votes=32)
    assert asked == rounds
    assert told.json()["p_first_better"] == (1.0 if num_silent == 16 else None)
    assert told.json()["outcome"] == ("no_majority" if num_silent == 16 else "no_valid_vote")


def test_weighted_needs_probabilities() -> None:
    told, _ = ask(prefers_red, policy="weighted")
    assert told.status_code == 422
    assert "no verdict probabilities" in told.json()["error"]


def test_weighted_of_a_real_model(tiny_checkpoint: Path, demo_pairs: Any) -> None:
    """The same probability as offline, asked for by name or not."""
    pair = demo_pairs[0][0]
    body = {"question": pair.question, "responses": pair.responses, "images": [to_data_url(pair.images[0])]}
    judge = open_generative_judge(f"prob:{tiny_checkpoint}", template="verdict", temperature=0, max_tokens=8)
    weigher = probability_judge_of(judge)
    assert weigher is judge
    offline = judge.compare_many([pair], orders=[BOTH_ORDERS], num_votes=1, seed=0)[0]
    with in_process(create_app(judge)) as client:
        for policy in (None, "weighted"):
            told = client.post("/v1/judge", json=body | {"policy": policy}).json()
            assert told["p_first_better"] == pytest.approx(offline.share_0, abs=1e-5)
            assert [vote["status"] for vote in told["votes"]] == [vote.verdict.status.value for vote in offline.votes]
        status = client.get("/v1/status").json()
        assert (status["weighs"], status["policy"]) == (True, "weighted")


def test_an_order_without_a_valid_vote_decides_nothing() -> None:
    """Nor does an order that the engine failed to answer: what is left leans to a place."""

    def only_given(prompt: tuple[Message, ...], draw: int) -> str:
        return verdict("1") if prefers_red(prompt, draw) == verdict("1") else "hm"

    told = ask(only_given, votes=2)[0].json()
    assert (told["p_first_better"], told["outcome"], told["num_valid"]) == (None, "no_valid_vote", 2)

    def lost_when_swapped(prompt: tuple[Message, ...], draw: int) -> str | Completion:
        text = only_given(prompt, draw)
        return Completion("", FinishReason.ERROR, error="HTTP 500") if text == "hm" else text

    told, _ = ask(lost_when_swapped)
    assert (told.status_code, told.json()["error"]) == (503, "the engine failed: HTTP 500")
    rewards = ask(only_given, "/v1/rewards", responses=["it is red", "it is blue"])[0].json()
    assert rewards["rewards"] == [None, None]


def test_votes_arrive_one_round_after_another() -> None:
    """The first two votes are here before the third is asked for; the last line is the whole judgment."""
    gate, lines = threading.Event(), []
    asked = {"n": 0}

    def slow(prompt: tuple[Message, ...], draw: int) -> str:
        asked["n"] += 1
        if asked["n"] > 2:
            assert gate.wait(10)
        return prefers_red(prompt, draw)

    with (
        running(app_of(slow)) as url,
        httpx.stream("POST", f"{url}/v1/judge/live", json=BODY | {"votes": 3}, timeout=30) as answer,
    ):
        assert answer.headers["content-type"].startswith("application/x-ndjson")
        for line in answer.iter_lines():
            lines.append(json.loads(line))
            if len(lines) == 2:
                assert not gate.is_set()
                gate.set()
    assert [line["vote"]["order"] for line in lines[:-1]] == ["given", "swapped"] * 3
    assert (lines[-1]["judgment"]["outcome"], lines[-1]["judgment"]["num_valid"]) == ("response_0", 6)


def test_a_stream_that_breaks_off_says_why() -> None:
    def fails_later(prompt: tuple[Message, ...], draw: int) -> str | Completion:
        fails_later.calls += 1  # type: ignore[attr-defined]
        failed = fails_later.calls > 2  # type: ignore[attr-defined]
        return Completion("", FinishReason.ERROR, error="HTTP 500") if failed else prefers_red(prompt, draw)

    fails_later.calls = 0  # type: ignore[attr-defined]
    told, _ = ask(fails_later, "/v1/judge/live", votes=3)
    lines = [json.loads(line) for line in told.text.splitlines()]
    assert [sorted(line) for line in lines] == [["vote"], ["vote"], ["error", "retry_after_s", "status"]]
    assert lines[-1]["error"] == "the engine failed: HTTP 500"


class Alone(ScriptedSampler):
    """Remembers how many prompts each call had, and with which seed."""

    calls: list[tuple[int, int]]
    mixes = False

    @property
    def is_batch_invariant(self) -> bool:
        return not self.mixes

    def sample(self, prompts: Any, params: SamplingParams) -> list[list[Completion]]:
        self.calls.append((len(prompts), params.seed))
        if len(self.calls) == 1:
            threading.Event().wait(0.4)  # the others gather meanwhile
        return super().sample(prompts, params)


@pytest.mark.parametrize("mixes", [False, True])
def test_seeds_are_kept_apart_where_they_mean_something(mixes: bool) -> None:
    """An engine that draws each pair alone gets each request's seed; one whose draws depend on the batch gets a batch."""
    from concurrent.futures import ThreadPoolExecutor

    sampler = Alone(prefers_red)
    sampler.calls, sampler.mixes = [], mixes
    with in_process(create_app(GenerativeJudge(sampler, PLAIN))) as client, ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda n: client.post("/v1/judge", json=BODY | {"seed": n}), range(6)))
    assert all(answer.json()["outcome"] == "response_0" for answer in answers)
    if mixes:
        assert len(sampler.calls) == 2
    else:
        assert sorted(sampler.calls) == [(2, seed) for seed in range(6)]


def test_videos_are_shown_as_frames(tmp_path: Path) -> None:
    """A data URL or uploaded; the frames come after the images; what is no video is refused, a playlist above all."""
    import base64

    def counts(prompt: tuple[Message, ...], draw: int) -> str:
        return f"<think>{len(prompt[0].images)}</think><answer>1</answer>"

    video = film(tmp_path / "a.mp4", 6).read_bytes()
    inline = "data:video/mp4;base64," + base64.b64encode(video).decode()
    playlist = b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nhttp://127.0.0.1:9/x.ts\n#EXT-X-ENDLIST\n"
    with in_process(app_of(counts)) as client:
        name = client.post("/v1/uploads", content=video, headers={"Content-Type": "video/mp4"}).json()["id"]
        for reference in (inline, f"upload:{name}"):
            told = client.post("/v1/judge", json=BODY | {"videos": [reference], "frames": 3}).json()
            assert "<think>3</think>" in told["votes"][0]["text"]
        session = b"v=0\ns=11AVI \no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 5004 RTP/AVP 96\n"
        for bad in (playlist, session, b"v=0\nftypjp2 \n", b"hello", video[:60]):
            answer = client.post("/v1/uploads", content=bad, headers={"Content-Type": "video/mp4"})
            assert answer.status_code == 422, answer.text
        assert client.post("/v1/judge", json=BODY | {"videos": [inline], "frames": 99}).status_code == 422
