"""A training run's page: what its figures draw, what it says of evaluations, and its pictures in a real browser."""

from __future__ import annotations

import base64
import json
import math
import random
import re
import shutil
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rewardlab.data.images import encode_png, thumbnail, to_data_url
from rewardlab.health.run_page import (
    MOST_POINTS,
    MetricFigure,
    PairsOfRun,
    RolloutPair,
    TrainingRun,
    breakable,
    evaluation_figure,
    interval_text,
    is_fraction,
    metric_figure,
    needs_log,
    run_page,
    thin,
    write_run_page,
)
from rewardlab.reporting.plots import Limit, MetricPoints, plot_fractions, plot_metric
from rewardlab.rewards.policy_signs import bounds_of_signs, early_sentence

CHROMIUM = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)


def page_of(metrics: Sequence[dict[str, Any]], **more: Any) -> str:
    return run_page(TrainingRun("rl", {"model": "m"}, "c" * 40, {}, False, metrics, [], [], **more))


def test_preference_optimisation_has_its_metrics_on_top() -> None:
    """And not among all others, below."""
    text = text_of(page_of([{"step": 1, "loss": 0.69, "accuracy": 0.5, "margin": 0.1, "logps/chosen": -0.1}]))
    assert text.index("comparisons won") < text.index("margin of the right one") < text.index("logps/chosen")


def text_of(page: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", "", page).split())


def metric_of(values: Sequence[tuple[int, Any]], name: str = "loss", last: int = 20) -> MetricFigure:
    metric = metric_figure(name, values, (0, last))
    assert metric is not None
    return metric


def svg_of(uri: str) -> str:
    return base64.b64decode(uri.partition(",")[2]).decode()


# Metrics.


def test_a_metric_by_hand() -> None:
    """Its last value is named, a step without a number is counted, and of a step that was logged twice the later value."""
    metric = metric_of([(0, 1.0), (10, math.nan), (20, 9.0), (5, "nan"), (20, 3.0)])
    assert (metric.last, metric.breaks) == ("3, step 20", "2 steps, first 5, last 10")
    assert metric_of([(0, 1.0), (7, None)]).breaks == "step 7"
    assert metric_figure("loss", [(1, "nan"), (2, None)], (0, 2)) is None
    assert metric_of([(0, 0.96094)], "reward/accuracy").last == "96.09 %, step 0"
    assert metric_of([(3, 1.5)], "data/seconds").last == "1.5 s, step 3"
    assert metric_of([(3, 1_234_567)], "num_tokens").last == "1,234,567, step 3"
    assert ">0.0003<" in svg_of(metric_of([(0, 0.0), (9, 0.001)]).image)


def test_what_is_drawn() -> None:
    """Line, band, limit, and marks at steps without a number, at their places."""
    points = MetricPoints([0, 10, 20], [1, 2, 3], [0, 2, 3], [1, 2, 5], [15])
    [axes] = plot_metric(points, (0, 20), limits=[Limit(5, 20, 4.0)]).axes
    lines = [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines]
    assert lines[:2] == [([0, 10, 20], [1, 2, 3]), ([5, 20], [4.0, 4.0])]
    assert lines[2][0][:2] == [15, 15]
    [band] = axes.collections
    assert band.get_paths()[0].get_extents().extents.tolist() == [0, 0, 20, 5]
    assert axes.get_ylim()[1] >= 5
    [single] = plot_metric(MetricPoints([5], [2], [2], [2]), (0, 20)).axes
    assert single.lines[0].get_marker() == "o"


@pytest.mark.parametrize(
    ("values", "is_log"),
    [
        ((0.5, 50.0), False),
        ((1.0, 0.7, 0.5, 1e-6), False),  # a learning rate
        ((0.5, 0.4, 500.0, 0.6), True),  # one spike, or a fall by orders: else a flat line
        ((1e3, 1e1, 1e0, 1e-1, 1e-2), True),
        ((0.0, 0.1, 500.0), False),
    ],
)
def test_a_logarithmic_axis(values: Sequence[float], is_log: bool) -> None:
    """If a linear one would hide half of the values; never with a 0."""
    points = thin(list(enumerate(values)))
    assert needs_log(points) is is_log
    assert plot_metric(points, (0, 9), is_log=is_log).axes[0].get_yscale() == ("log" if is_log else "linear")


def test_thinned_points_keep_every_extreme() -> None:
    """Of 100,000 steps at most 300 points: no spike is lost, and the mean is that of all."""
    dice = random.Random(0)
    values = [(step, dice.gauss(0, 1)) for step in range(100_000)]
    values[70_001] = (70_001, 1e3)
    points = thin(values)
    assert len(points.steps) == MOST_POINTS
    assert max(points.high) == 1e3
    assert min(points.low) == min(value for _, value in values)
    assert abs(points.steps[int(np.argmax(points.high))] - 70_001) <= 100_000 / MOST_POINTS
    assert {round(other - one) for one, other in pairwise(points.steps)} <= {333, 334}
    assert np.mean(points.mean) == pytest.approx(np.mean([value for _, value in values]), abs=1e-3)
    assert metric_of(values, last=99_999).is_thinned


def test_fractions_by_name() -> None:
    names = ("reward/invalid_frac", "advantage/outlier_frac_negative", "reward/accuracy", "mean_token_accuracy", "verdict/ok")
    assert all(map(is_fraction, names))
    assert not any(map(is_fraction, ("data/seconds", "loss", "entropy", "fraction")))


def test_limits_of_signs_are_drawn() -> None:
    """The mean of the first five rows, and the limit above or below it; none for a metric with fewer rows."""
    rows = [{"step": n, "answers/novelty": 0.1, "judge/order_agreement": 0.9} for n in range(1, 7)]
    rows = [*rows[:-1], rows[-1] | {"judge/canaries": 1.0}]
    limits = {"max_novelty": 0.03, "max_disagreement": 0.25, "max_canary_fall": None}
    bounds = bounds_of_signs(rows, limits)
    assert bounds == pytest.approx({"answers/novelty": 0.13, "judge/order_agreement": 0.65})
    assert bounds_of_signs(rows, limits | {"max_novelty": None}).keys() == {"judge/order_agreement"}
    assert bounds_of_signs([rows[0] | {"answers/novelty": "nan"}, *rows[1:]], limits).keys() == {"judge/order_agreement"}
    page = page_of(rows, bounds=bounds)
    assert "if the mean of three batches of rollouts is beyond this limit" in page
    dashed = [svg_of(uri).count("stroke-dasharray: ") for uri in re.findall(r'src="(data:image/svg[^"]+)"', page)]
    assert sorted(map(bool, dashed)) == [False, True, True]
    assert "beyond this limit" not in page_of(rows)


def test_a_run_that_is_too_short_for_signs() -> None:
    """The mean of the last three batches is compared with that of the first five, so that eight are the fewest."""
    rows = [{"step": n, "answers/novelty": 0.1} for n in range(8)]
    sentence = early_sentence([*rows[:7], {"step": 9, "loss": 1.0}])
    assert sentence == "Signs of a policy can be seen from rollout batch 8 on; this run has 7."
    assert early_sentence([]).endswith("this run has 0.")
    assert not early_sentence(rows)
    assert f"The watchdog reported no sign. {sentence}" in page_of(rows[:7], too_early=sentence)


@pytest.mark.nightly
def test_a_page_does_not_grow_with_the_steps() -> None:
    """Twenty metrics of 20,000 steps, many of them no number: about as large as of 2,000."""
    dice = random.Random(0)

    def size(steps: int) -> int:
        rows = [
            {"step": step, **{f"m/{n}": dice.gauss(1, 1) if dice.random() < 0.9 else "nan" for n in range(20)}}
            for step in range(steps)
        ]
        return len(page_of(rows))

    assert size(20_000) < 1.3 * size(2_000) < 2_000_000


def test_a_run_without_a_metric_and_hostile_names() -> None:
    """No figure, no error; a name is text wherever it appears."""
    assert "<figure" not in page_of([])
    assert "<figure" not in page_of([{"step": 1, "loss": "nan"}])
    page = page_of([{"step": 1, "'><script>alert(1)</script>/\"x": 0.5, "loss": 1e308}, {"step": 2, "loss": 1e99}])
    assert "<script>alert" not in page
    assert "no number: step 1" in page
    assert breakable("completions/mean_length") == "completions/<wbr>mean_<wbr>length"
    assert breakable("<b>") == "&lt;b&gt;"


# Evaluations.


def row(step: int, accuracy: float, **more: float) -> dict[str, Any]:
    around = {"eval/accuracy_low": accuracy - 0.1, "eval/accuracy_high": accuracy + 0.1}
    return {"step": step, "eval/accuracy": accuracy, "eval/pairs": 10.0, **around, **{f"eval/{k}": v for k, v in more.items()}}


def test_evaluations_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines with their intervals, chance, and a ring at the best by the metric that decides."""
    drawn = []
    monkeypatch.setattr(
        "rewardlab.health.run_page.plot_fractions", lambda *a, **k: drawn.append(plot_fractions(*a, **k)) or drawn[-1]
    )
    rows = [row(0, 0.9, consistent_accuracy=0.2), {"step": 1, "loss": 1.0}, row(2, 0.6, consistent_accuracy=0.5)]
    evaluated = evaluation_figure(rows, "consistent_accuracy")
    assert evaluated is not None
    assert evaluated.best == (2, "50.0")
    [axes] = drawn[0].axes
    places = [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines]
    assert places == [([0, 2], [90, 60]), ([0, 2], [20, 50]), ([2], [50]), ([0, 1], [50, 50])]
    [band] = axes.collections
    assert band.get_paths()[0].get_extents().extents.tolist() == pytest.approx([0, 50, 2, 100])
    best = evaluation_figure([row(0, 0.5), row(50, 0.8), row(200, 0.7)])
    assert best is not None
    assert best.best == (50, "80.0 [70.0, 90.0]")


def test_one_evaluation_and_none() -> None:
    """A run that has just begun has a figure with the interval's line."""
    assert evaluation_figure([row(0, 0.5)]) is not None
    assert evaluation_figure([{"step": 1, "loss": 1.0}]) is None
    assert interval_text({}, "blank_accuracy") == "–"
    assert "Held-out pairs" not in page_of([{"step": 1, "loss": 1.0}])


def test_the_best_of_very_many_evaluations_stays() -> None:
    """At most 240 rows and the best one; the page states how many there are."""
    evaluated = evaluation_figure([row(step, 0.9 if step == 4_001 else 0.6) for step in range(5_000)])
    assert evaluated is not None
    steps = [one["step"] for one in evaluated.rows]
    assert len(steps) <= 241
    assert (steps[0], steps[-1], evaluated.count) == (0, 4_999, 5_000)
    assert 4_001 in steps


SUMMARY = {
    "metric": "accuracy",
    "best_step": 50,
    "last_step": 200,
    "gain": 0.1,
    "gain_interval": [-0.02, 0.22],
    "best_kept": True,
    "stopped_early": True,
    "time_frac": 0.0123,
}


@pytest.mark.parametrize("summary", [None, SUMMARY, SUMMARY | {"stopped_early": False}])
def test_a_page_says_which_was_best(summary: dict[str, Any] | None, tmp_path: Path) -> None:
    """While it runs the best so far; at its end by how much, with the caveat; why it ended early. Metrics stand there once."""
    config = {"model": "m", "evaluation": {"metric": "accuracy"}, "signs": {"max_of_another_version": 0.1}}
    record = {"config": config, "commit": "c" * 40, "versions": {}, **({"evaluation": summary} if summary else {})}
    (tmp_path / "run.json").write_text(json.dumps(record))
    lines = [row(0, 0.5), row(50, 0.8, invalid_frac=0.25), row(200, 0.7, invalid_frac=0.0)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = text_of(write_run_page(tmp_path).read_text())
    assert ("Best so far: step 50, 80.0 [70.0, 90.0] %" in text) == (summary is None)
    assert ("10.0 points [-2.0, 22.0] above the last, step 200. Its weights are in best." in text) == (summary is not None)
    assert ("expect less on others. Evaluating took 1.2 % of the time" in text) == (summary is not None)
    assert ("The run ended early, at step 200" in text) == bool(summary and summary["stopped_early"])
    assert text.count("judgments without a verdict") == 1
    assert "eval/accuracy_low" not in text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"best_step": 0, "best_kept": False}, "above the last, step 200. Its weights are those of m: there is no best."),
        ({"best_step": 200}, "The last evaluation is the best: 80.0 [70.0, 90.0] %. Its weights are in best."),
        ({"best_kept": False}, "above the last, step 200. Its weights were not kept."),
    ],
)
def test_a_page_says_where_the_best_weights_are(changes: dict[str, Any], words: str) -> None:
    run = TrainingRun("rl", {"model": "m"}, "c" * 40, {}, True, [row(50, 0.8)], [], [], SUMMARY | changes)
    assert words in text_of(run_page(run))


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_a_picture_opens_large(tmp_path: Path) -> None:
    """By click and by key, and closes; it is on the page once for all rollouts that are about it."""
    url = to_data_url(thumbnail(encode_png(Image.new("RGB", (900, 600), "red")), 320))
    pairs = PairsOfRun({"p": RolloutPair("What?", ("a", "b"), 0, (0,), ((), ()), 0)}, (url,))
    samples = [{"step": step, "pair_id": "p", "text": "t", "reward": 1.0} for step in (1, 2)]
    text = run_page(TrainingRun("rl", {"model": "m"}, "c" * 40, {}, False, [], [], samples, None, pairs))
    assert text.count(url) == 1
    from playwright.sync_api import sync_playwright

    (tmp_path / "run.html").write_text(text)
    with sync_playwright() as driver, driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"]) as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(f"file://{tmp_path}/run.html")
        open_and_close(page)


def open_and_close(page: Any) -> None:
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
