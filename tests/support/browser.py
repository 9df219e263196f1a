"""Chromium, and the page of a real server in it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.servers import running
from tests.support.serving import Answer, app_of

CHROMIUM = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
REFUSED = "Failed to load resource"  # what the console says of a request that is refused
DESK, PHONE = (1280, 900), (390, 844)
# The contrast (WCAG 2) of every text with what lies behind it; answers those below 4.5.
PALE = """() => {
  const parse = color => { const [r, g, b, a = 1] = color.match(/[0-9.]+/g).map(Number); return [r, g, b, a]; };
  const shine = rgb => { const [r, g, b] = rgb.map(v => (v /= 255) <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b; };
  const behind = node => { for (; node; node = node.parentElement) { const c = parse(getComputedStyle(node).backgroundColor);
    if (c[3] === 1) return c.slice(0, 3); }
    return matchMedia("(prefers-color-scheme: dark)").matches ? [0, 0, 0] : [255, 255, 255]; };
  const pale = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const node = walk.currentNode.parentElement;
    if (!walk.currentNode.data.trim() || !node.checkVisibility() || ["SCRIPT", "STYLE"].includes(node.tagName)) continue;
    const [a, b] = [shine(parse(getComputedStyle(node).color).slice(0, 3)), shine(behind(node))].sort((x, y) => y - x);
    const ratio = (a + .05) / (b + .05);
    if (ratio < 4.5) pale.push([node.className || node.tagName, walk.currentNode.data.trim().slice(0, 40), ratio]);
  }
  return pale;
}"""

# The visible words of up to 12 characters that stand in several lines, for want of width.
BROKEN_WORDS = """() => {
  const broken = [], range = document.createRange();
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const node = walk.currentNode;
    if (!node.parentElement.checkVisibility()) continue;
    for (const word of node.data.matchAll(/(?<!\\S)\\S{2,12}(?!\\S)/g)) {
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      if (new Set([...range.getClientRects()].map(one => Math.round(one.top))).size > 1) broken.push(word[0]);
    }
  }
  return broken;
}"""


@contextmanager
def chromium_browser() -> Iterator[Any]:
    """A browser without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def served(answer: Answer, **options: Any) -> Iterator[str]:
    """Serve a judge that says what ``answer`` returns; yields its address."""
    with running(app_of(answer, **options)) as url:
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
