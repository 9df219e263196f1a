"""Curves of a training run's page: places worked by hand."""

from __future__ import annotations

import math

from rewardlab.reporting.evaluation_figure import evaluation_figure
from rewardlab.reporting.run_page import HEIGHT, PAD, WIDTH, TrainingRun, breakable, curve, run_page


def page_of(metrics: list[dict[str, float]]) -> str:
    return run_page(TrainingRun("rl", {"model": "m"}, "c" * 40, {}, False, metrics, [], []))


def test_a_line_by_hand() -> None:
    """From the lower left corner to the upper right one."""
    line = curve("loss", [(0, 1.0), (10, math.nan), (20, 3.0)])
    assert line is not None
    assert line.points == f"{PAD}.0,{HEIGHT - PAD}.0 {WIDTH - PAD}.0,{PAD}.0"
    assert line.dot is None


def test_a_single_point_is_a_dot() -> None:
    """In the middle: a line from it to itself would not be drawn. Also where a metric was no number at every other step."""
    line = curve("loss", [(7, 0.25), (8, "nan")])
    assert line is not None
    assert line.dot == (WIDTH / 2, HEIGHT / 2)
    page = page_of([{"step": 1, "loss": 0.5}])
    assert f'<circle cx="{WIDTH / 2:.1f}" cy="{HEIGHT / 2:.1f}"' in page
    assert '<polyline points=""' not in page
    assert "<circle" not in page_of([{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.5}])


def test_the_interval_of_a_single_evaluation_has_a_width() -> None:
    figure = evaluation_figure([{"step": 0, "eval/accuracy": 0.5, "eval/accuracy_low": 0.4, "eval/accuracy_high": 0.6}])
    assert figure is not None
    assert figure.lines[0].band == "49.4,100 50.6,100 50.6,0 49.4,0"


def test_names_break_between_words() -> None:
    """After a slash or an underscore; what else a name holds is text."""
    assert breakable("completions/mean_length") == "completions/<wbr>mean_<wbr>length"
    assert breakable("<b>") == "&lt;b&gt;"
