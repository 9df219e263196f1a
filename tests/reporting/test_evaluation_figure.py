"""The figure of a run's evaluations: places worked by hand, and what a page says of best and last."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from rewardlab.health.run_page import write_run_page
from rewardlab.reporting.axes import Tick
from rewardlab.reporting.evaluation_figure import evaluation_figure, share_text
from rewardlab.reporting.run_page import TrainingRun, run_page


def row(step: int, accuracy: float, **more: float) -> dict[str, Any]:
    around = {"eval/accuracy_low": accuracy - 0.1, "eval/accuracy_high": accuracy + 0.1}
    return {"step": step, "eval/accuracy": accuracy, "eval/pairs": 10.0, **around, **{f"eval/{k}": v for k, v in more.items()}}


def test_places_by_hand() -> None:
    """From 40 % (the lowest end) to 90 %: 80 % is a fifth from the top; step 50 of 0..200 is a quarter from the left."""
    figure = evaluation_figure([row(0, 0.5), {"step": 20, "loss": 1.0}, row(50, 0.8), row(200, 0.7)])
    assert figure is not None
    [line] = figure.lines
    assert line.dots == ((0.0, 80.0), (25.0, 20.0), (100.0, 40.0))
    assert line.points == "0,80 25,20 100,40"
    assert line.band == "0,100 25,40 100,60 100,20 25,0 0,60"
    assert figure.chance == 80.0
    assert [tick.label for tick in figure.y_ticks] == ["40 %", "chance", "60 %", "70 %", "80 %", "90 %"]
    assert figure.x_axis.x_ticks == tuple(Tick(str(step), step / 2) for step in (0, 50, 100, 150, 200))
    assert figure.best == (50, "80.0 [70.0, 90.0]")
    assert figure.best_dot == ("accuracy", 25.0, 20.0)
    assert line.texts[-1] == "70.0 [60.0, 80.0]"


def test_one_evaluation_and_none() -> None:
    """A run that has just begun, whose judge is at chance to a hair, has a figure all the same; another run has none."""
    figure = evaluation_figure([{"step": 0, "eval/accuracy": 0.5, "eval/accuracy_low": 0.5, "eval/accuracy_high": 0.5}])
    assert figure is not None
    assert figure.lines[0].dots[0][0] == 50.0
    assert evaluation_figure([{"step": 1, "loss": 1.0}]) is None
    assert share_text({}, "blank_accuracy") == "–"


def test_the_metric_that_decides_is_marked() -> None:
    rows = [row(0, 0.9, consistent_accuracy=0.2), row(1, 0.6, consistent_accuracy=0.5)]
    figure = evaluation_figure(rows, "consistent_accuracy")
    assert figure is not None
    assert figure.best == (1, "50.0")
    assert figure.best_dot[0] == "consistent_accuracy"
    assert [line.band == "" for line in figure.lines] == [True, False]


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
    text = " ".join(re.sub(r"<[^>]+>", "", write_run_page(tmp_path).read_text()).split())
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
    assert words in " ".join(re.sub(r"<[^>]+>", "", run_page(run)).split())


def test_of_very_many_evaluations_the_best_is_there() -> None:
    """At most 240 rows and the best one; how many there were is known."""
    figure = evaluation_figure([row(step, 0.9 if step == 4_001 else 0.6) for step in range(5_000)])
    assert figure is not None
    assert len(figure.rows) <= 241
    assert (figure.steps[0], figure.steps[-1], figure.count) == (0, 4_999, 5_000)
    assert 4_001 in figure.steps
    assert figure.best_dot[0] == "accuracy"


def test_a_run_without_evaluations_has_no_such_part() -> None:
    page = run_page(TrainingRun("rl", {"model": "m"}, "c" * 40, {}, True, [{"step": 1, "loss": 1.0}], [], []))
    assert "Held-out pairs" not in page
