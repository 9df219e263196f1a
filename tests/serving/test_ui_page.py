"""The server's page in a real browser: votes arrive live, hostile text is text, the queue is told, on a desk and a phone."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rewardlab.data.images import encode_png
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.prompts import load_template
from rewardlab.samplers.scripted import ScriptedSampler
from rewardlab.serving.app import create_app
from rewardlab.serving.auth import Key
from rewardlab.types import Message
from tests.support.servers import running

CHROMIUM = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
HOSTILE = '<img src=x onerror="document.title=1"><script>document.title=2</script>'
DESK, PHONE = (1280, 900), (390, 844)


def leans(prompt: tuple[Message, ...], draw: int) -> str:
    """Always the first, with a reasoning that would be markup elsewhere."""
    return f"<think>{len(prompt[0].images)} image. {HOSTILE}</think><answer>1</answer>"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def opened(
    chromium: Any, handler: Callable[..., str], size: tuple[int, int], path: str = "/ui", **options: Any
) -> Iterator[Any]:
    """The page of a real server; nothing may be wrong in its console but refused requests."""
    wrong: list[str] = []
    with running(create_app(GenerativeJudge(ScriptedSampler(handler), load_template("plain")), **options)) as url:
        # The page's own policy forbids eval, by which the driver waits.
        context = chromium.new_context(viewport={"width": size[0], "height": size[1]}, bypass_csp=True)
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda line: wrong.append(line.text) if line.type == "error" else None)
        page.goto(url + path)
        yield page
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the page scrolls sideways"
        context.close()
    assert not [line for line in wrong if "status of 4" not in line]


def fill(page: Any, question: str = "Which?", votes: int = 2) -> None:
    page.get_by_label("Question").fill(question)
    page.get_by_label("Response A").fill("It is red.")
    page.get_by_label("Response B").fill(HOSTILE)
    page.get_by_label("Votes per order").fill(str(votes))


@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desktop", "phone"])
def test_a_judgment(chromium: Any, size: tuple[int, int], tmp_path: Path) -> None:
    """An image and two answers: every pair of votes of a judge that leans is a flip, and hostile texts are shown as such."""
    from PIL import Image

    (tmp_path / "a.png").write_bytes(encode_png(Image.new("RGB", (56, 56), (200, 0, 0))))
    with opened(chromium, leans, size) as page:
        page.set_input_files("#files", tmp_path / "a.png")
        fill(page)
        page.keyboard.press("Control+Enter")
        page.wait_for_function("document.getElementById('headline').textContent === 'A tie'")
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

    with opened(chromium, slow, DESK) as page:
        fill(page, votes=4)
        page.get_by_role("button", name="Judge", exact=True).click()
        page.wait_for_function("document.querySelectorAll('.vote').length === 2")
        assert "2 of 8 votes" in page.inner_text("#headline")
        page.get_by_role("button", name="Stop").click()
        page.wait_for_function("document.getElementById('headline').textContent.startsWith('Stopped after 2')")
        gate.set()


def test_history(chromium: Any) -> None:
    """Kept over a reload of the tab, shown again by a click, and cleared."""
    with opened(chromium, leans, DESK) as page:
        for question in ("First?", "Second?"):
            fill(page, question, votes=1)
            page.keyboard.press("Control+Enter")
            page.wait_for_function("name => document.querySelector('#history li')?.textContent.includes(name)", arg=question)
        page.reload()
        page.locator("#history li button").nth(1).click()
        assert page.get_by_label("Question").input_value() == "First?"
        assert page.locator(".vote").count() == 2
        page.get_by_role("button", name="Clear").click()
        assert page.locator("#history li").count() == 0


@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desktop", "phone"])
def test_the_queue(chromium: Any, size: tuple[int, int]) -> None:
    """What the server counts, and a line once something was judged."""
    with opened(chromium, leans, size) as page:
        fill(page, votes=3)
        page.keyboard.press("Control+Enter")
        page.wait_for_function("document.getElementById('headline').textContent === 'A tie'")
        page.get_by_role("link", name="Queue").click()
        page.wait_for_function("document.getElementById('counts').textContent.includes('judged3')")
        assert re.search(r"0 / 1024", page.inner_text("#gauges"))
        assert page.get_attribute("#latency path", "d")


def test_a_key_is_asked_for(chromium: Any) -> None:
    """A wrong one is refused, the right one lets the page go on."""
    with opened(chromium, leans, DESK, keys=[Key.of("right")]) as page:
        page.wait_for_selector("#key:not([hidden])")
        page.fill("#key-field", "wrong")
        page.get_by_role("button", name="Use this key").click()
        page.wait_for_selector("#key:not([hidden])")
        page.fill("#key-field", "right")
        page.get_by_role("button", name="Use this key").click()
        page.wait_for_selector("#key", state="hidden")
        page.wait_for_function("document.getElementById('badge').textContent === 'ready'")


def test_errors_are_sentences(chromium: Any) -> None:
    """What is missing, and what the server refuses, stands beside the button."""
    with opened(chromium, leans, DESK) as page:
        page.get_by_role("button", name="Judge", exact=True).click()
        assert page.inner_text("#error") == "The question is empty."
        fill(page)
        page.get_by_label("Response A").fill("x" * 100_001)
        page.get_by_role("button", name="Judge", exact=True).click()
        page.wait_for_function("document.getElementById('error').textContent.includes('100000')")
