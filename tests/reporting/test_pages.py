"""Every page in a real browser, light and dark, on a desk and on a phone: nothing glares, nothing is too pale to read, nothing
sticks out."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rewardlab.benchmarks.comparison import Run, read_run
from rewardlab.benchmarks.leaderboard import leaderboard_html
from rewardlab.benchmarks.report import report_html
from rewardlab.benchmarks.report_model import CountedEstimate, JudgeScores
from rewardlab.benchmarks.runner import run_bench
from rewardlab.benchmarks.settings import bench_settings
from rewardlab.cli import main
from rewardlab.curation.overview import Overview
from rewardlab.data.pairs import write_parquet
from rewardlab.health.run_page import PairsOfRun, RolloutPair, TrainingRun, run_page
from rewardlab.metrics.calibration import Bin, RiskPoint
from rewardlab.metrics.intervals import AccuracyEstimate
from rewardlab.reporting.plots import (
    DARK,
    GRID,
    INK,
    WARM,
    MetricPoints,
    Series,
    figure_uri,
    plot_accuracies,
    plot_fractions,
    plot_length,
    plot_metric,
    plot_position,
    plot_reliability,
    plot_risk,
    plot_series,
)
from tests.support.browser import CHROMIUM, PALE, chromium_browser
from tests.support.shell import run_main

in_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
PAGES = ("report", "leaderboard", "run", "stats", "audit")
LONG = "a-judge-of-a-very-long-name-that-no-margin-holds/checkpoint-12000"


def _with_every_column(run: Run) -> Run:
    """A run that has a figure in every column of a leaderboard, and findings."""
    scores = run.report.scores
    blank = JudgeScores(scores.accuracy, scores.interval, {}, 0.0, None, None)
    scores = replace(scores, all_right=CountedEstimate(12, 0.45, (0.31, 0.6)), tokens_per_vote=1312.0)
    faults = ("Does not look at the image: 50.0", "Leans to the response shown first: 70.0", "Invalid answers: 9.0 %")
    judge = "openai:a-model-of-72b@http://a.host.example:8000/v1"
    report = replace(run.report, judge=judge, findings=faults, controls={"blank": blank}, scores=scores)
    return replace(run, report=report)


@pytest.fixture(scope="module")
def pages(demo_pairs: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with each of :data:`PAGES`, of things as they come: long names, bad and good, an image per pair."""
    folder = tmp_path_factory.mktemp("pages")
    pairs = demo_pairs[0][:24]
    write_parquet(pairs, folder / "pairs.parquet")
    lines = []
    for row, pair in enumerate(pairs):
        for order in ("given", "swapped"):
            right = 1 + ((pair.preferred == 1) != (order == "swapped"))
            said = {0: [right] * 3, 1: [1, 1, 2], 2: ["?", right, right], 3: [right, 3 - right, right]}[row % 4]
            lines += [{"row": row, "order": order, "text": f"<think>row {row}</think><answer>{one}</answer>"} for one in said]
    votes = folder / "votes.jsonl"
    votes.write_text("\n".join(map(json.dumps, lines)))
    others = {"b": "longest", "c": "shortest", "d": "first", "e": "random"}
    for name, judge in {LONG: f"replay:{votes}", **{name: f"baseline:{rule}" for name, rule in others.items()}}.items():
        _, rows = run_bench(bench_settings("pairs", folder / "pairs.parquet", judge), folder / name)
    runs = [read_run(folder / name) for name in (LONG, *others)]
    (folder / "report.html").write_text(report_html(runs[0].report, rows, folder / LONG))
    (folder / "leaderboard.html").write_text(leaderboard_html([_with_every_column(run) for run in runs[:3]]))
    metrics = [
        {"step": n, "loss": 1 / n, "reward/accuracy": n / 9, "completions/mean_terminated_length": n} for n in range(1, 9)
    ]
    metrics.append({"step": 9, "advantage/outlier_frac_of_the_rollouts_that_are_in_it": -1.234e-05})  # a single point
    metrics += [
        {"step": n, "eval/pairs": 9.0, "eval/swap_consistency": 0.5, "eval/invalid_frac": 0.1}
        | {
            f"eval/{name}{end}": n / 20 + gap
            for name in ("accuracy", "blank_accuracy")
            for end, gap in (("", 0.2), ("_low", 0.1), ("_high", 0.3))
        }
        for n in range(0, 9, 2)
    ]
    sample = {"step": 3, "pair_id": "p", "text": "x" * 300, "status": "ok", "correct": True, "reward": 1.5, "num_tokens": 3}
    picture = "data:image/png;base64," + base64.b64encode(pairs[0].images[0]).decode()
    shown = PairsOfRun({"p": RolloutPair("What?", ("a", "b"), 1, (0, 0), ((), (0,)), 2)}, (picture,), "A pair is missing.")
    event = {"step": 3, "message": "no verdicts", "done": "warn"}
    run = TrainingRun("rl", {"model": LONG}, "c" * 40, {"torch": "2"}, True, metrics, [event], [sample, sample], None, shown)
    (folder / "run.html").write_text(run_page(run))
    overview = Overview()
    for pair in pairs:
        overview.add(pair)
    overview.write(folder, title="24 pairs")
    row = {"domain": "choice", "question": "Which?", "truth": "Paris", "response": "<think>a</think>\\boxed{B}"}
    (folder / "audit.jsonl").write_text(json.dumps(row))
    assert run_main(main, "audit", "--data", folder / "audit.jsonl", "--out", folder / "audited").returncode == 1
    (folder / "audited" / "report.html").rename(folder / "audit.html")
    return folder


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with chromium_browser() as browser:
        yield browser


def brightness(page: Any) -> np.ndarray:
    """Of the pixels of what is on the screen, 0..255."""
    return np.asarray(Image.open(io.BytesIO(page.screenshot())).convert("L"), dtype=float)


@in_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_a_page(name: str, scheme: str, chromium: Any, pages: Path) -> None:
    """Every text has contrast, the background is that of the reader's setting from the first moment, all fits the width."""
    for width in (1280, 390):
        page = chromium.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page.goto(f"file://{pages}/{name}.html")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), width
        wide = page.evaluate(
            "[...document.querySelectorAll('.scroll')].filter(one => one.scrollWidth > one.clientWidth).length"
        )
        assert wide == 0 or name not in ("report", "leaderboard"), width
        assert page.evaluate(PALE) == []
        page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
        assert page.evaluate(PALE) == []
        page.add_style_tag(content=".shown, .picture { visibility: hidden }")  # pictures are as bright as they are
        page.evaluate("scrollTo(0, document.documentElement.scrollHeight / 3)")
        glare = np.mean(brightness(page) > 200)
        assert glare > 0.6 if scheme == "light" else glare < 0.1, (width, glare)
        page.close()
    text = (pages / f"{name}.html").read_text()
    assert text.index('name="color-scheme" content="light dark"') < text.index("<style>")


BROKEN = """[...document.querySelectorAll('figcaption')].flatMap(span => {
  const walk = document.createTreeWalker(span, NodeFilter.SHOW_TEXT), broken = [];
  while (walk.nextNode()) for (const word of walk.currentNode.data.matchAll(/[^ ]+/g)) {
    const range = document.createRange();
    range.setStart(walk.currentNode, word.index);
    range.setEnd(walk.currentNode, word.index + word[0].length);
    if (range.getClientRects().length > 1) broken.push(word[0]);
  }
  return broken;
})"""


@in_chromium
@pytest.mark.parametrize("width", [1280, 390])
def test_figures_of_a_run(width: int, chromium: Any, pages: Path) -> None:
    """No name is broken within a word, and every figure is as wide as its box allows."""
    page = chromium.new_page(viewport={"width": width, "height": 900})
    page.goto(f"file://{pages}/run.html")
    assert page.evaluate(BROKEN) == []
    widths = page.evaluate("[...document.querySelectorAll('.metrics img')].map(one => one.complete && one.width)")
    assert len(widths) > 4
    assert min(widths) > 200
    page.close()


def estimate(accuracy: float) -> AccuracyEstimate:
    return AccuracyEstimate(accuracy, (max(0.0, accuracy - 0.1), min(1.0, accuracy + 0.1)))


GROUPS = {"general $x$ <b>": estimate(1.0), LONG: estimate(0.3), "c": estimate(0.0)}
FIGURES = {
    "accuracies": plot_accuracies(GROUPS, ("longest", 0.58)),
    "baseline at the edge": plot_accuracies({"a": estimate(0.99)}, ("shortest", 0.97)),
    "curve": plot_fractions(
        [
            Series.of("one order,\nmajority of K", (1, 2, 3), [estimate(share) for share in (0.5, 0.6, 0.61)], INK),
            Series("until settled", (1.5, 2.5), (0.6, 0.61), WARM, is_dashed=True),
        ],
        xlabel="samples per pair",
    ),
    "series": plot_series([Series(name, (1, 2), (0.5, 0.5), WARM) for name in ("reward", "right\nverdicts")], xlabel="step"),
    "position": plot_position({"general": (0.5, (0.4, 0.5)), "none": (None, None), LONG: (-0.5, None)}),
    "length": plot_length([(-2000, estimate(1.0)), (10, estimate(0.2))]),
    "reliability": plot_reliability({"share\nof votes": [Bin(3, 0.6, 1.0), Bin(9, 0.9, 0.8)], "none": []}),
    "metric": plot_metric(MetricPoints([0, 900_000], [-1e-12, 1.23456e9], [-1e-12, 0], [0, 2e9], [5]), (0, 900_000)),
    "fraction": plot_metric(MetricPoints([0, 1], [1e-5, 1e-5], [0, 0], [1, 1]), (0, 1), is_fraction=True),
    "logarithm": plot_metric(MetricPoints([0, 1, 2], *[[1e-9, 1.0, 1e9]] * 3), (0, 2), is_log=True),
    "evaluations": plot_fractions(
        [Series(name, (0, 5), (0.5, 0.9), INK, [(0.4, 0.6), (0.8, 1.0)]) for name in ("accuracy", "right in both\norders")],
        xlabel="step",
        best=(5, 0.9),
    ),
    "risk": plot_risk({"share\nof votes": [RiskPoint(0.5, 0.6, 0.0), RiskPoint(0.1, 1.0, 0.4)], "none": []}),
}


def svg_of(name: str) -> str:
    return base64.b64decode(figure_uri(FIGURES[name]).partition(",")[2]).decode()


@pytest.mark.parametrize("name", FIGURES)
def test_every_colour_follows_the_reader(name: str) -> None:
    """Outside of the rule that sets them for light and for dark, no colour is fixed, and none is left black by default."""
    svg = svg_of(name)
    rule, body = re.search(r"<style>:root.*?</style>", svg, re.DOTALL), re.sub(r"<style>:root.*?</style>", "", svg)
    assert rule is not None
    assert "prefers-color-scheme:dark" in rule[0]
    assert not re.findall(r"#[0-9a-fA-F]{6}\b", body)
    assert all("fill: var(--c" in text for text in re.findall(r"<text[^>]*>", body))


def shine(color: str) -> float:
    channels = (int(color[n : n + 2], 16) / 255 for n in (1, 3, 5))
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_contrast_of_figures() -> None:
    """WCAG's 4.5 for every colour that letters are drawn in, on the paper of the pages."""
    style = (Path(__file__).parents[2] / "rewardlab" / "reporting" / "style.html").read_text()
    light_paper, dark_paper = re.findall(r"--paper: (#[0-9a-f]{3,6});", style)
    for light, dark in DARK.items():
        if light != GRID:
            for color, paper in ((light, light_paper.replace("#fff", "#ffffff")), (dark, dark_paper)):
                high, low = sorted((shine(color), shine(paper)), reverse=True)
                assert (high + 0.05) / (low + 0.05) >= 4.5, color


@in_chromium
def test_no_letter_is_cut_off(chromium: Any) -> None:
    """Every text of every figure lies within it, and no two labels at the ends of lines overlap."""
    page = chromium.new_page()
    for name in FIGURES:
        page.set_content(svg_of(name).partition("?>")[2])
        boxes = page.evaluate(
            """[...document.querySelectorAll('svg text')].map(text => {
              const [box, all] = [text.getBoundingClientRect(), document.querySelector('svg').getBoundingClientRect()];
              return [text.textContent, box.left - all.left, box.top - all.top, all.right - box.right, all.bottom - box.bottom];
            })"""
        )
        assert len(boxes) > 5
        assert [box for box in boxes if min(box[1:]) < -0.5] == [], name
    page.close()
