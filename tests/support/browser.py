"""Chromium, and the page of a real server in it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rewardlab.judging.judge import GenerativeJudge
from rewardlab.prompts import load_template
from rewardlab.samplers.scripted import ScriptedSampler
from rewardlab.serving.app import create_app
from rewardlab.types import Completion, Message
from tests.support.servers import running

CHROMIUM = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
REFUSED = "Failed to load resource"  # what the console says of a request that is refused
DESK, PHONE = (1280, 900), (390, 844)


@contextmanager
def chromium_browser() -> Iterator[Any]:
    """A browser without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def served(answer: Callable[[tuple[Message, ...], int], str | Completion], **options: Any) -> Iterator[str]:
    """Serve a judge that says what ``answer`` returns; yields its address."""
    with running(create_app(GenerativeJudge(ScriptedSampler(answer), load_template("plain")), **options)) as url:
        yield url


@contextmanager
def opened(
    browser: Any, url: str, size: tuple[int, int] = DESK, *, path: str = "/ui", ignored: str = "", **options: Any
) -> Iterator[Any]:
    """The page of a server, under its own policy. It must not scroll sideways, ask another address for anything, or write an
    error to the console but those that hold ``ignored``."""
    wrong: list[str] = []
    context = browser.new_context(viewport={"width": size[0], "height": size[1]}, **options)
    page = context.new_page()
    page.set_default_timeout(10_000)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda line: wrong.append(line.text) if line.type == "error" else None)
    page.on(
        "request", lambda request: wrong.append(request.url) if not request.url.startswith((url, "blob:", "data:")) else None
    )
    page.goto(f"{url}{path}")
    yield page
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the page scrolls sideways"
    context.close()
    assert not [line for line in wrong if not (ignored and ignored in line)]
