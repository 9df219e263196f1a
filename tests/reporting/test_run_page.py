"""Curves of a training run's page: places worked by hand, spikes that stay, and the page in a real browser."""

from __future__ import annotations

import json
import math
import random
import shutil
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from rewardlab.data.images import encode_png, thumbnail, to_data_url
from rewardlab.reporting.axes import step_axis
from rewardlab.reporting.curves import MOST_POINTS, Curve, Limit, curve, thin, unit_of
from rewardlab.reporting.evaluation_figure import evaluation_figure
from rewardlab.reporting.rollouts import PairsOfRun, ShownPair
from rewardlab.reporting.run_page import TrainingRun, breakable, run_page
from rewardlab.rewards.policy_signs import bounds_of_signs, early_sentence

CHROMIUM = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)


def page_of(metrics: Sequence[dict[str, Any]]) -> str:
    return run_page(TrainingRun("rl", {"model": "m"}, "c" * 40, {}, False, metrics, [], []))


def curve_of(values: Sequence[tuple[int, Any]], name: str = "loss", last: int = 20) -> Curve:
    line = curve(name, values, step_axis(0, last))
    assert line is not None
    return line


def test_a_line_by_hand() -> None:
    """1 and 3 lie on the ends of an axis of 1..3, steps 0 and 20 at the ends of the run; a step without a number is marked."""
    line = curve_of([(0, 1.0), (10, math.nan), (20, 3.0)])
    assert line.linear.points == "0,100 100,0"
    assert [tick.label for tick in line.linear.y_ticks] == ["1.0", "1.5", "2.0", "2.5", "3.0"]
    assert line.texts == ("1, step 0", "3, step 20")
    assert line.breaks is not None
    assert (line.breaks.words, line.breaks.places) == ("step 10", (50.0,))
    assert not line.linear.band
    assert curve("loss", [(1, "nan"), (2, None)], step_axis(0, 2)) is None


def test_a_limit_by_hand() -> None:
    """The axis reaches to it: 1 and a limit of 3 lie on the ends of 1..3. It stands from its first step to its last."""
    line = curve("loss", [(0, 1.0), (20, 2.0)], step_axis(0, 20), limits=[Limit(5, 20, 3.0)])
    assert line is not None
    assert line.linear.points == "0,100 100,50"
    assert line.linear.limits == ("25,0 100,0",)


def test_limits_of_signs_are_drawn() -> None:
    """Of a policy's run, whose signs have limits: the mean of the first five lines, and the limit more or less. A metric with
    fewer lines has none yet."""
    rows = [{"step": n, "answers/novelty": 0.1, "judge/order_agreement": 0.9} for n in range(1, 7)]
    rows = [*rows[:-1], rows[-1] | {"judge/canaries": 1.0}]
    limits = {"max_novelty": 0.03, "max_disagreement": 0.25, "max_canary_fall": None, "a_limit_that_is_no_more": 0.1}
    bounds = bounds_of_signs(rows, limits)
    assert bounds == pytest.approx({"answers/novelty": 0.13, "judge/order_agreement": 0.65})
    assert bounds_of_signs(rows, limits | {"max_novelty": None}).keys() == {"judge/order_agreement"}
    assert bounds_of_signs([rows[0] | {"answers/novelty": "nan"}, *rows[1:]], limits).keys() == {"judge/order_agreement"}
    page = run_page(TrainingRun("policy", {"model": "m"}, "c" * 40, {}, False, rows, [], [], bounds=bounds))
    assert page.count('<polyline class="limit" points="0,') == 3  # and the key
    assert "the watchdog sees a sign where the mean of three batches of rollouts is beyond it" in page
    assert '<polyline class="limit"' not in page_of(rows)


def test_a_run_that_is_too_short_for_signs() -> None:
    """The mean of the last three batches is compared with that of the first five, so that eight are the fewest."""
    rows = [{"step": n, "answers/novelty": 0.1} for n in range(8)]
    sentence = early_sentence([*rows[:7], {"step": 9, "loss": 1.0}])
    assert sentence == "Signs of a policy can be seen from rollout batch 8 on; this run has 7."
    assert early_sentence([]).endswith("this run has 0.")
    assert not early_sentence(rows)
    page = run_page(TrainingRun("policy", {"model": "m"}, "c" * 40, {}, False, rows[:7], [], [], too_early=sentence))
    assert f"The watchdog saw no sign. {sentence}" in page


def test_a_step_that_is_logged_again_counts_once() -> None:
    """As of a run that was resumed, or taken back: the later value stands, in the order of steps."""
    assert curve_of([(0, 1.0), (20, 9.0), (10, 2.0), (20, 3.0)]).texts == ("1, step 0", "2, step 10", "3, step 20")


def test_a_single_point_is_a_dot() -> None:
    """A line from it to itself would not be drawn. Also where a metric was no number at every other step."""
    line = curve_of([(5, 2.0), (8, "nan")])
    assert line.linear.dots == ((25.0, 50.0),)
    page = page_of([{"step": 1, "loss": 0.5}])
    assert '<i class="dot" style="left: 50.0%; top: 50.0%"></i>' in page
    assert "<polyline" not in page.partition("<body>")[2].partition("<script>")[0]
    assert 'class="dot"' not in page_of([{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.5}])


def test_thinned_points_keep_every_extreme() -> None:
    """Of 100,000 steps at most 300 points, which stand for all of them: no spike is lost, and the mean is that of all."""
    dice = random.Random(0)
    values = [(step, dice.gauss(0, 1)) for step in range(100_000)]
    values[70_001] = (70_001, 1e3)
    points = thin(values)
    assert len(points) == MOST_POINTS
    assert (points[0].first, points[-1].last) == (0, 99_999)
    assert all(one.last + 1 == other.first for one, other in pairwise(points))
    sizes = [point.last - point.first + 1 for point in points]
    assert max(sizes) - min(sizes) <= 1
    mean = sum(size * point.mean for size, point in zip(sizes, points, strict=True)) / 100_000
    assert mean == pytest.approx(sum(value for _, value in values) / 100_000)
    [spike] = [point for point in points if point.high == 1e3]
    assert spike.first <= 70_001 <= spike.last
    line = curve_of(values, last=99_999)
    assert line.is_thinned
    assert len(line.linear.band.split()) == 2 * MOST_POINTS
    assert any(f"to 1,000), steps {spike.first:,} to {spike.last:,}" in text for text in line.texts)


@pytest.mark.parametrize(
    ("values", "has_log", "is_log"),
    [
        ((0.5, 2.0), False, False),
        ((0.5, 50.0), True, False),
        ((1.0, 0.7, 0.5, 1e-6), True, False),  # a learning rate
        ((0.5, 0.4, 500.0, 0.6), True, True),  # one spike, or a fall by orders: else a flat line
        ((1e3, 1e1, 1e0, 1e-1, 1e-2), True, True),
        ((0.0, 0.1, 500.0), False, False),
    ],
)
def test_a_logarithmic_axis_where_a_metric_spans_orders(values: Sequence[float], has_log: bool, is_log: bool) -> None:
    """From a factor of 100 it is offered; it is shown at first where a linear one would hide half of the values. 0 has none."""
    line = curve_of(list(enumerate(values)), "grad_norm")
    assert (line.logarithmic is not None, line.is_log) == (has_log, is_log)


def test_units() -> None:
    shares = ("reward/invalid_frac", "advantage/outlier_frac_negative", "reward/accuracy", "eval/blank_accuracy", "verdict/ok")
    assert {unit_of(name) for name in shares} == {"%"}
    assert [unit_of(name) for name in ("data/seconds", "loss", "entropy", "mean_token_accuracy", "fraction")] == [
        "s",
        "",
        "",
        "%",
        "",
    ]
    assert curve_of([(0, 0.96094)], "reward/accuracy").texts == ("96.09 %, step 0",)


def test_a_page_does_not_grow_with_the_steps() -> None:
    """Twenty metrics of 20,000 steps, many of them no number: about as large as of 2,000."""
    dice = random.Random(0)

    def size(steps: int) -> int:
        rows = [
            {"step": step, **{f"m/{n}": dice.gauss(1, 1) if dice.random() < 0.9 else "nan" for n in range(20)}}
            for step in range(steps)
        ]
        return len(page_of(rows))

    assert size(20_000) < 1.2 * size(2_000) < 1_500_000


def test_a_run_without_a_metric_and_hostile_names() -> None:
    """No curve, no error; a name is text wherever it stands."""
    assert "<figure" not in page_of([])
    assert "<figure" not in page_of([{"step": 1, "loss": "nan"}])
    page = page_of([{"step": 1, "'><script>alert(1)</script>/\"x": 0.5, "loss": 1e308}, {"step": 2, "loss": 3}])
    assert "<script>alert" not in page
    assert "no number: step 1" in page


def test_the_interval_of_a_single_evaluation_has_a_width() -> None:
    figure = evaluation_figure([{"step": 0, "eval/accuracy": 0.5, "eval/accuracy_low": 0.4, "eval/accuracy_high": 0.6}])
    assert figure is not None
    assert figure.lines[0].band == "49.4,100 50.6,100 50.6,0 49.4,0"


def test_names_break_between_words() -> None:
    """After a slash or an underscore; what else a name holds is text."""
    assert breakable("completions/mean_length") == "completions/<wbr>mean_<wbr>length"
    assert breakable("<b>") == "&lt;b&gt;"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("needs Chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


def open_page(browser: Any, text: str, folder: Path, **view: Any) -> Any:
    (folder / "run.html").write_text(text)
    page = browser.new_page(viewport={"width": 1280, "height": 900}, **view)
    page.goto(f"file://{folder}/run.html")
    return page


METRICS = [{"step": step, "loss": 10.0 / 4**step, "reward": step / 10} for step in range(11)] + [
    {"step": step, "eval/accuracy": 0.5 + step / 50, "eval/accuracy_low": 0.4, "eval/accuracy_high": 0.8, "eval/pairs": 9}
    for step in (0, 10)
]
READ = "[...document.querySelectorAll('[data-steps] output')].map(output => output.textContent)"


def point_at(page: Any, area: Any, share: float) -> None:
    area.scroll_into_view_if_needed()
    box = area.bounding_box()
    page.mouse.move(box["x"] + share * box["width"], box["y"] + box["height"] / 2)


def test_what_is_pointed_at_is_read_in_all_curves(browser: Any, tmp_path: Path) -> None:
    """By mouse and by keys: step and value of every curve, or of its step nearest to that one; else the last."""
    page = open_page(browser, page_of(METRICS), tmp_path)
    last = ["step 10", "70.0 [40.0, 80.0]", "9.537e-6, step 10", "1, step 10"]
    assert page.evaluate(READ) == last
    areas = page.locator(".area:visible")
    point_at(page, areas.nth(2), 0.3)
    at_three = ["step 0", "50.0 [40.0, 80.0]", "0.1562, step 3", "0.3, step 3"]
    assert page.evaluate(READ) == at_three
    assert page.locator(".cursor:visible").count() == 3
    page.mouse.move(5, 5)
    assert page.evaluate(READ) == last
    assert page.locator(".cursor:visible").count() == 0
    areas.nth(2).focus()
    for key, step in (("ArrowLeft", 9), ("Home", 0), ("ArrowRight", 1), ("PageDown", 0), ("End", 10)):
        page.keyboard.press(key)
        assert page.evaluate(READ)[3] == f"{step / 10:g}, step {step}", key
        assert areas.nth(2).get_attribute("aria-valuetext") == f"{step / 10:g}, step {step}"
    page.keyboard.press("Escape")
    assert page.evaluate(READ) == last
    page.close()


def test_a_finger_reads_too(browser: Any, tmp_path: Path) -> None:
    page = open_page(browser, page_of(METRICS), tmp_path, has_touch=True)
    area = page.locator(".area:visible").nth(2)
    area.scroll_into_view_if_needed()
    box = area.bounding_box()
    page.touchscreen.tap(box["x"] + 0.6 * box["width"], box["y"] + 20)
    assert page.evaluate(READ)[3] == "0.6, step 6"
    page.close()


def test_the_axis_and_the_smoothing_are_chosen(browser: Any, tmp_path: Path) -> None:
    """A line that falls by the same factor each step is straight on the logarithmic axis, which is shown at first. Smoothing is
    TensorBoard's: 0.5 of three values 0, 1, 0 without a bias to the first."""
    values = {0: 0.0, 1: 1.0, 2: 0.0}
    rows = METRICS + [{"step": step, "entropy": value} for step, value in values.items()]
    page = open_page(browser, page_of(rows), tmp_path)
    loss, entropy = (page.locator("figure", has_text=name) for name in ("loss", "entropy"))

    def heights(figure: Any, rule: str = "polyline") -> list[float]:
        points = figure.locator(f".plot:visible {rule}").get_attribute("points")
        return [100 - float(point.partition(",")[2]) for point in points.split()]

    falls = [one - other for one, other in pairwise(heights(loss))]
    assert falls == pytest.approx([falls[0]] * 10, abs=0.1)
    loss.get_by_role("button").click()
    assert loss.get_by_role("button").get_attribute("aria-pressed") == "false"
    assert heights(loss)[5] < 1
    assert heights(entropy) == [0.0, 100.0, 0.0]
    page.locator("#smoothing").evaluate("one => { one.value = 0.5; one.dispatchEvent(new Event('input')); }")
    assert heights(entropy, ".smooth") == pytest.approx([0.0, 100 * 2 / 3, 100 * 2 / 7], abs=0.1)
    assert heights(entropy, ".pale") == [0.0, 100.0, 0.0]
    page.close()


def test_a_picture_opens_large(browser: Any, tmp_path: Path) -> None:
    """By click and by key, and closes; it is on the page once for all rollouts that are about it."""
    url = to_data_url(thumbnail(encode_png(Image.new("RGB", (900, 600), "red")), 320))
    pairs = PairsOfRun({"p": ShownPair("What?", ("a", "b"), 0, (0,), ((), ()), 0)}, (url,))
    samples = [{"step": step, "pair_id": "p", "text": "t", "reward": 1.0} for step in (1, 2)]
    text = run_page(TrainingRun("rl", {"model": "m"}, "c" * 40, {}, False, METRICS, [], samples, None, pairs))
    assert text.count(url) == 1
    page = open_page(browser, text, tmp_path)
    button, dialog = page.locator(".picture:visible"), page.locator("dialog.large")
    assert button.bounding_box()["height"] < 160
    assert not dialog.is_visible()
    button.click()
    assert dialog.locator("img").bounding_box()["width"] > 600
    page.keyboard.press("Escape")
    assert not dialog.is_visible()
    button.focus()
    page.keyboard.press("Enter")
    dialog.get_by_role("button").click()
    assert not dialog.is_visible()
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_labels_fit_and_do_not_touch(scheme: str, browser: Any, tmp_path: Path) -> None:
    """On a desk and on a phone: every label within its figure, labels of an axis apart, nothing wider than the page."""
    rows = [{"step": step, "loss": 1e-6 * step, "kl/loss": -1234.5 * step, "grad_norm": 10.0**step} for step in range(1, 20)]
    rows += [{"step": 100_000, "loss": 1.0}]
    page = open_page(browser, page_of([*rows, *METRICS]), tmp_path, color_scheme=scheme)
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), width
        touching = page.evaluate(
            """[...document.querySelectorAll('.plot')].filter(plot => plot.checkVisibility()).flatMap(plot => {
              const frame = (plot.closest('figure') ?? document.body).getBoundingClientRect();
              return ['x', 'y'].flatMap(name => {
                const boxes = [...plot.querySelectorAll(`.labels.${name} span`)].map(one => one.getBoundingClientRect());
                const cut = boxes.filter(box => box.left < frame.left || box.right > frame.right || box.bottom > frame.bottom);
                const near = boxes.filter((box, n) => boxes.slice(n + 1).some(other => name === 'x'
                  ? box.left < other.right && other.left < box.right : box.top < other.bottom && other.top < box.bottom));
                return [...cut, ...near].map(box => [name, JSON.stringify(box)]);
              });
            })"""
        )
        assert touching == [], json.dumps(touching)
    page.close()
