"""The report page in a real browser: it opens, filters, finds words, and shows one judgment, on a desk and on a phone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rewardlab.benchmarks.browser import read_kinds
from rewardlab.benchmarks.report import write_reports
from rewardlab.benchmarks.runner import run_bench
from rewardlab.benchmarks.settings import BenchSettings
from rewardlab.data.pairs import write_parquet

CHROMIUM = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")


@pytest.fixture(scope="module")
def run(demo_pairs: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """Two votes per order on 60 pairs: right, always the first place, unreadable, and torn, in turns."""
    folder = tmp_path_factory.mktemp("page")
    pairs = demo_pairs[0][:60]
    write_parquet(pairs, folder / "pairs.parquet")
    lines = []
    for row, pair in enumerate(pairs):
        for order in ("given", "swapped"):
            right = 1 + ((pair.preferred == 1) != (order == "swapped"))
            said = {0: [right, right], 1: [1, 1], 2: ["?", "?"], 3: [right, 3 - right]}[row % 4]
            lines += [{"row": row, "order": order, "text": f"<think>row {row}</think><answer>{one}</answer>"} for one in said]
    (folder / "votes.jsonl").write_text("\n".join(map(json.dumps, lines)))
    settings = BenchSettings("pairs", folder / "pairs.parquet", f"replay:{folder / 'votes.jsonl'}")
    report, rows = run_bench(settings, folder / "out")
    write_reports(report, rows, folder / "out")
    return folder / "out", rows


def test_kinds(run: tuple[Path, list[Any]]) -> None:
    """Each of the four sorts of pair is told apart."""
    found = read_kinds(run[0] / "scores.jsonl")
    assert [found[n] for n in range(4)] == [["right"], ["wrong", "flipped"], ["wrong", "invalid"], ["wrong", "split"]]


@pytest.fixture(params=[(1280, 900), (390, 844)], ids=["desktop", "phone"])
def page(request: pytest.FixtureRequest, run: tuple[Path, list[Any]]) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        width, height = request.param
        page = browser.new_page(viewport={"width": width, "height": height})
        page.on("pageerror", lambda error: pytest.fail(f"the page's script failed: {error}"))
        page.goto(f"file://{run[0]}/report.html")
        yield page
        browser.close()


def test_browsing(page: Any) -> None:
    """Nothing wider than the screen; each filter shows its own and no other; words narrow it; one judgment opens."""
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    cards = "details.judgment:not([hidden])"
    assert page.locator(cards).count() == 60
    for kind, number in {"wrong": 45, "flipped": 15, "invalid": 15, "split": 15, "right": 15}.items():
        page.click(f".filters button[data-kind={kind}]")
        assert page.locator(cards).count() == number, kind
        assert page.locator(f"{cards}[data-kinds~={kind}]").count() == number
        assert page.inner_text(".filters output") == f"{number} shown"
    page.click(".filters button[data-kind='']")
    page.fill(".filters input", "no such words")
    assert page.locator(cards).count() == 0
    page.fill(".filters input", "<think>row 17</think>")
    assert page.locator(cards).count() == 1
    assert not page.locator(f"{cards} .body").is_visible()
    page.click(f"{cards} summary")
    assert page.locator(f"{cards} .vote").count() == 4
    assert page.locator(f"{cards} .body").is_visible()
    page.fill(".filters input", "")
    group = page.locator(".filters option").nth(1).inner_text()
    page.select_option(".filters select", group)
    shown = page.locator(cards)
    assert 0 < shown.count() < 60
    assert all(shown.nth(n).get_attribute("data-group") == group for n in range(shown.count()))
    sizes = page.evaluate("[...document.querySelectorAll('.plots img')].map(one => one.naturalWidth)")
    assert len(sizes) >= 5
    assert all(sizes)
