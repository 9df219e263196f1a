"""What the page shows of the server: its queue with scales, its engine when it fails, figures of the key that asks."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import expect

from rewardlab.judging.judge import GenerativeJudge
from rewardlab.prompts import load_template
from rewardlab.samplers.child_process import ProcessSampler
from rewardlab.serving.app import create_app
from rewardlab.serving.auth import Key
from rewardlab.serving.responses import template_labels
from rewardlab.serving.service import GroupRules
from tests.support.browser import CHROMIUM, DESK, PHONE, REFUSED, chromium_browser, opened, served
from tests.support.held_judge import held_sampler
from tests.support.images import png
from tests.support.scripted_judge import ANSWERS, PROMPT, handler
from tests.support.servers import running

in_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with chromium_browser() as browser:
        yield browser


def judge(page: Any, votes: int, question: str = "Which?") -> None:
    page.get_by_label("Question").fill(question)
    page.get_by_label("Response A").fill(ANSWERS[0])
    page.get_by_label("Response B").fill(ANSWERS[1])
    page.get_by_label("Votes per order").fill(str(votes))
    page.get_by_role("button", name="Judge", exact=True).click()


@in_chromium
def test_an_engine_that_dies_is_waited_for(chromium: Any, tmp_path: Path) -> None:
    """The badge and the headline say what happens, in words for a person; when the engine is back, the judgment is made."""
    sampler, starts = ProcessSampler(partial(held_sampler, tmp_path), timeout_s=5.0), tmp_path / "starts"
    app = create_app(GenerativeJudge(sampler, load_template("plain")), recheck_s=0.2)
    with running(app) as url, opened(chromium, url, ignored=REFUSED) as page:
        expect(page.locator("#badge")).to_have_text("ready")
        starts.touch()
        assert sampler.pid
        os.kill(sampler.pid, signal.SIGKILL)
        judge(page, votes=1)
        expect(page.locator("#headline")).to_have_text("Judging is paused: the engine is being restarted")
        expect(page.locator("#note")).to_have_text(re.compile(r"It is asked again in \d s\."))
        expect(page.locator("#badge")).to_have_text("judging is paused: the engine is being restarted")
        assert "EndpointError" not in page.inner_text("body")
        assert not page.locator("#votes").is_visible()
        assert not page.locator("#facts").is_visible()
        starts.unlink()
        expect(page.locator("#headline")).to_have_text("Response B is better", timeout=20_000)
        expect(page.locator("#badge")).to_have_text("ready")
    sampler.close()


@in_chromium
def test_a_key_that_has_used_its_minute_waits(chromium: Any) -> None:
    """It is told so, and its request is made when it may be."""
    with served(handler, keys=[Key.of("k", per_minute=40)]) as url, opened(chromium, url, ignored=REFUSED) as page:
        page.fill("#key-field", "k")
        page.get_by_role("button", name="Use this key").click()
        expect(page.locator("#key")).to_be_hidden()
        while httpx.get(f"{url}/v1/models", headers={"Authorization": "Bearer k"}).status_code == 200:
            pass
        judge(page, votes=1)
        expect(page.locator("#headline")).to_contain_text("This key has used what it may use now")
        expect(page.locator("#headline")).to_have_text("Response B is better")


@in_chromium
@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desktop", "phone"])
def test_the_queue(chromium: Any, size: tuple[int, int]) -> None:
    """What the server counts, and charts with a scale of seconds and one of times."""
    with served(handler) as url, opened(chromium, url, size) as page:
        for number in range(2):
            judge(page, votes=3, question=f"Which of {number}?")
            expect(page.locator("#history li")).to_have_count(number + 1)
        page.get_by_role("link", name="Queue").click()
        expect(page.locator("#counts")).to_contain_text("judged6")
        assert "0 of 1024" in page.inner_text("#gauges")
        scale = page.locator("#latency text").all_text_contents()
        assert scale[0] == "0 s"
        assert [text for text in scale[1:] if text.endswith(" s")]
        assert page.locator("#latency circle").count() == 6
        assert page.locator("#waiting text").all_text_contents()[:2] == ["0", "1"]


@in_chromium
def test_trouble_in_words(chromium: Any) -> None:
    """An endpoint elsewhere is not started again by this server; what the server says of itself stands."""
    script = """async address => {
        const { setJudge, trouble } = await import(address);
        const engine = { status: "enginefailed", message: "EndpointError: it ended; the engine is started again." };
        const own = trouble(engine);
        setJudge("openai:a@http://b/v1");
        return [own, trouble(engine), trouble({ status: "enginefailed", message: "The server is shutting down; ask again." }),
                trouble({ status: "overloaded", message: "The judge is busy; try again in 2 s." })];
    }"""
    with served(handler) as url, opened(chromium, url) as page:
        folder = page.locator("script").get_attribute("src").rpartition("/")[0]
        assert page.evaluate(script, f"{url}/{folder}/health.js") == [
            "Judging is paused: the engine is being restarted",
            "Judging is paused: the engine does not answer",
            "The server is shutting down",
            "The judge is busy",
        ]


@in_chromium
def test_scales(chromium: Any) -> None:
    """Round steps that hold the largest value; times at whole minutes or seconds, however long the span."""
    script = """async address => {
        const { ticks, timeTicks } = await import(address);
        return [ticks(6.6), ticks(0.03), ticks(3, 1), ticks(0, 1), timeTicks(1000, 1047, 4).length, timeTicks(0, 7200, 5)];
    }"""
    with served(handler) as url, opened(chromium, url, timezone_id="UTC") as page:
        folder = page.locator("script").get_attribute("src").rpartition("/")[0]
        plain, small, whole, none, short, long = page.evaluate(script, f"{url}/{folder}/chart.js")
    assert (plain, whole, none) == ([0, 2, 4, 6, 8], [0, 1, 2, 3], [0, 1])
    assert small == pytest.approx([0, 0.01, 0.02, 0.03])
    assert short in (3, 4)
    assert long == [0, 1800, 3600, 5400, 7200]


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
