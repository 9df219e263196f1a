"""The server's page in a real browser: votes arrive live, hostile text is text, the queue is shown, on a desk and a phone."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import expect

from rewardlab.data.images import encode_png
from rewardlab.serving.auth import Key
from rewardlab.types import Message
from tests.support.browser import CHROMIUM, DESK, PHONE, REFUSED, chromium_browser, opened, served

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
HOSTILE = '<img src=x onerror="document.title=1"><script>document.title=2</script>'
SIZES = pytest.mark.parametrize("size", [DESK, PHONE], ids=["desktop", "phone"])


def leans(prompt: tuple[Message, ...], draw: int) -> str:
    """Always the first, with a reasoning that would be markup elsewhere."""
    return f"<think>{len(prompt[0].images)} image. {HOSTILE}</think><answer>1</answer>"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with chromium_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served(leans) as address:
        yield address


def fill(page: Any, question: str = "Which?", votes: int = 2) -> None:
    page.get_by_label("Question").fill(question)
    page.get_by_label("Response A").fill("It is red.")
    page.get_by_label("Response B").fill(HOSTILE)
    page.get_by_label("Votes per order").fill(str(votes))


def test_no_script_but_its_own(chromium: Any, url: str) -> None:
    """The policy of the page stops scripts that are written into it, and markup made of a text."""
    with opened(chromium, url, ignored="requires 'Trusted") as page:
        attempts = """() => {
            const caught = [];
            try { document.createElement("script").text = "document.title = 'inline'"; } catch { caught.push("script"); }
            try { document.body.innerHTML = "<p>markup</p>"; } catch { caught.push("markup"); }
            return caught;
        }"""
        assert page.evaluate(attempts) == ["script", "markup"]
        policy = httpx.get(f"{url}/ui").headers["Content-Security-Policy"]
        assert "script-src 'self';" in policy
        assert "unsafe" not in policy


@SIZES
def test_a_judgment(chromium: Any, url: str, size: tuple[int, int], tmp_path: Path) -> None:
    """An image and two answers: every pair of votes of a judge that leans is a flip, and hostile texts are shown as such."""
    from PIL import Image

    (tmp_path / "a.png").write_bytes(encode_png(Image.new("RGB", (56, 56), (200, 0, 0))))
    with opened(chromium, url, size) as page:
        page.set_input_files("#files", tmp_path / "a.png")
        fill(page)
        page.keyboard.press("Control+Enter")
        expect(page.locator("#headline")).to_have_text("A tie")
        assert page.locator(".vote").count() == 4
        assert page.locator(".vote p").first.inner_text() == f"1 image. {HOSTILE}"
        assert "0 of 2 consistent, 2 position flips: it chose the one shown first" in page.inner_text("#facts")
        assert "50 %" in page.inner_text("#summary")
        assert page.title() not in ("1", "2")
        assert page.locator("#votes img, #votes script").count() == 0


def test_votes_arrive_live_and_can_be_stopped(chromium: Any) -> None:
    """The first round stands while the second one is asked; stopping leaves what is there."""
    gate, asked = threading.Event(), {"n": 0}

    def slow(prompt: tuple[Message, ...], draw: int) -> str:
        asked["n"] += 1
        if asked["n"] > 2:
            gate.wait(5)
        return leans(prompt, draw)

    with served(slow) as url, opened(chromium, url) as page:
        fill(page, votes=4)
        page.get_by_role("button", name="Judge", exact=True).click()
        expect(page.locator(".vote")).to_have_count(2)
        assert "2 of 8 votes" in page.inner_text("#headline")
        page.get_by_role("button", name="Stop").click()
        expect(page.locator("#headline")).to_have_text(re.compile("Stopped after 2"))
        gate.set()


def test_history(chromium: Any, url: str) -> None:
    """Kept over a reload of the tab, shown again by a click, and cleared."""
    with opened(chromium, url) as page:
        for question in ("First?", "Second?"):
            fill(page, question, votes=1)
            page.keyboard.press("Control+Enter")
            expect(page.locator("#history li").first).to_contain_text(question)
        page.reload()
        page.locator("#history li button").nth(1).click()
        assert page.get_by_label("Question").input_value() == "First?"
        assert page.locator(".vote").count() == 2
        page.get_by_role("button", name="Clear").click()
        assert page.locator("#history li").count() == 0


@SIZES
def test_the_queue(chromium: Any, size: tuple[int, int]) -> None:
    """What the server counts, and a line once something was judged."""
    with served(leans) as url, opened(chromium, url, size) as page:
        fill(page, votes=3)
        page.keyboard.press("Control+Enter")
        expect(page.locator("#headline")).to_have_text("A tie")
        page.get_by_role("link", name="Queue").click()
        expect(page.locator("#counts")).to_contain_text("judged3")
        assert re.search(r"0 / 1024", page.inner_text("#gauges"))
        assert page.get_attribute("#latency path", "d")


def test_a_key_is_asked_for(chromium: Any) -> None:
    """A wrong one is refused, the right one lets the page go on."""
    with served(leans, keys=[Key.of("right")]) as url, opened(chromium, url, ignored=REFUSED) as page:
        for key in ("wrong", "right"):
            page.wait_for_selector("#key:not([hidden])")
            page.fill("#key-field", key)
            page.get_by_role("button", name="Use this key").click()
        page.wait_for_selector("#key", state="hidden")
        expect(page.locator("#badge")).to_have_text("ready")


def test_errors_are_sentences(chromium: Any, url: str) -> None:
    """What is missing, and what the server refuses, stands beside the button."""
    with opened(chromium, url, ignored=REFUSED) as page:
        page.get_by_role("button", name="Judge", exact=True).click()
        assert page.inner_text("#error") == "The question is empty."
        fill(page)
        page.get_by_label("Response A").fill("x" * 100_001)
        page.get_by_role("button", name="Judge", exact=True).click()
        expect(page.locator("#error")).to_contain_text("100000")
