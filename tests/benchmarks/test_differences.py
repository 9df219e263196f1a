"""Paired differences of the figures beside accuracy: by hand, against the reports, and where there are none."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from rewardlab.benchmarks.comparison import figure_differences, figures_against, read_run
from rewardlab.benchmarks.leaderboard import leaderboard_csv, leaderboard_html, leaderboard_markdown, leaderboard_text
from rewardlab.benchmarks.report_model import RowScore
from rewardlab.benchmarks.runner import run_bench
from rewardlab.benchmarks.settings import bench_settings
from rewardlab.cli import app
from rewardlab.data.pairs import write_parquet


def rows(scores: list[float], alike: list[bool | None]) -> list[RowScore]:
    """Two rows a prompt; the first half of the prompts is of group a, the rest of b."""
    half = len(scores) // 2
    return [
        RowScore(n, "ab"[n >= half + 2], f"prompt {n // 2}", score, 0.0, (), "", 0, same, None)
        for n, (score, same) in enumerate(zip(scores, alike, strict=True))
    ]


def test_by_hand() -> None:
    """Twelve rows of six prompts, eight of group a and four of b: each figure counted on paper, whatever the order of rows."""
    before = rows([1, 1, 1, 0.5, 0, 0, 0, 0, 1, 1, 0, 0], [True] * 6 + [False] * 6)
    after = rows([1, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 0], [True] * 9 + [False] * 3)
    found = figure_differences(before, after[::-1], whole_prompts=True)
    assert found.macro.difference == pytest.approx((1.5 / 8 + -1 / 4) / 2)
    assert found.swap_consistency is not None
    assert found.swap_consistency.difference == pytest.approx(3 / 12)
    assert found.all_right is not None
    assert found.all_right.difference == pytest.approx((1 - 1) / 6)  # one prompt won, one lost
    for figure in (found.macro, found.swap_consistency, found.all_right):
        assert -1 <= figure.interval[0] < figure.difference < figure.interval[1] <= 1


def test_a_figure_that_is_not_there() -> None:
    """Rows in one order have no consistency; other benchmarks count no prompts."""
    once = rows([1, 0, 1, 0, 1, 0, 1, 0], [None] * 8)
    found = figure_differences(once, rows([1] * 8, [True] * 8), whole_prompts=False)
    assert (found.swap_consistency, found.all_right) == (None, None)
    assert found.macro.difference == pytest.approx(0.5)


def test_intervals_are_those_of_resampled_prompts() -> None:
    """Two related judges on three pairs of each of 300 prompts: the prompts drawn anew 2,000 times."""
    dice, num = np.random.default_rng(0), 300
    easy = dice.random((num, 1)) < 0.6
    old, new = (easy ^ (dice.random((num, 3)) < wrong) for wrong in (0.3, 0.2))
    same_old, same_new = (dice.random((num, 3)) < share for share in (0.6, 0.7))
    group = np.arange(num) % 3 == 0  # whole prompts

    def scored(right: np.ndarray, alike: np.ndarray) -> list[RowScore]:
        return [
            RowScore(3 * n + k, str(group[n]), str(n), float(right[n, k]), 0.0, (), "", 0, bool(alike[n, k]), None)
            for n in range(num)
            for k in range(3)
        ]

    found = figure_differences(scored(old, same_old), scored(new, same_new), whole_prompts=True)
    places = dice.integers(0, num, (2000, num))
    gaps, picked = (new.mean(1) - old.mean(1))[places], group[places]
    macro = ((gaps * picked).sum(1) / picked.sum(1) + (gaps * ~picked).sum(1) / (~picked).sum(1)) / 2
    swap = (same_new.mean(1) - same_old.mean(1))[places].mean(1)
    whole = (new.all(1).astype(float) - old.all(1))[places].mean(1)
    for figure, drawn in ((found.macro, macro), (found.swap_consistency, swap), (found.all_right, whole)):
        assert figure is not None
        assert figure.difference == pytest.approx(drawn.mean(), abs=0.005)
        assert figure.interval == pytest.approx(np.quantile(drawn, (0.025, 0.975)), abs=0.01)


@pytest.fixture(scope="module")
def runs(demo_pairs: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    write_parquet(demo_pairs[0][:40], folder / "pairs.parquet")
    for rule in ("first", "longest", "random"):
        run_bench(bench_settings("pairs", folder / "pairs.parquet", f"baseline:{rule}"), folder / rule)
    return folder


@pytest.mark.slow
def test_they_are_the_differences_of_the_reports(runs: Path) -> None:
    """Of two runs: the reports' macro average and swap consistency; in JSON, CSV, Markdown, on a page and in a terminal."""
    first, longest = read_run(runs / "first"), read_run(runs / "longest")
    found, old, new = figures_against(first, longest), first.report.scores, longest.report.scores
    assert found.swap_consistency is not None
    assert old.swap_consistency is not None
    assert new.swap_consistency is not None
    assert found.macro.difference == pytest.approx(new.accuracy.macro - old.accuracy.macro)
    assert found.swap_consistency.difference == pytest.approx(new.swap_consistency - old.swap_consistency)
    assert found.swap_consistency.difference > 0.5  # the rule of the first turns with the order
    done = CliRunner().invoke(app, ["bench", "compare", str(runs / "first"), str(runs / "longest"), "--json"])
    figures = json.loads(done.stdout)["runs"][1]["against_first"]["figures"]
    assert figures["swap_consistency"]["difference"] == found.swap_consistency.difference
    assert figures["all_right"] is None
    line = list(csv.DictReader(leaderboard_csv([first, longest]).splitlines()))[1]
    assert float(line["macro_difference_low"]) == found.macro.interval[0]
    assert line["all_right_difference"] == ""
    cell = f"{100 * found.swap_consistency.difference:+.1f} ["
    assert f"| longest | {100 * found.macro.difference:+.1f} [" in leaderboard_markdown([first, longest])
    for text in (leaderboard_markdown([first, longest]), leaderboard_text([first, longest], 80)):
        assert cell in text.split("Paired differences of the other metrics")[1]
    assert cell in leaderboard_html([first, longest])
    failed = replace(longest, report=replace(longest.report, failure="no answers"))
    assert "other metrics" not in leaderboard_markdown([first, failed])
