"""Votes weighed in blocks of K, and the difference of two runs over prompts with several pairs, worked by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import stdev
from typing import Any

import pytest

from rewardlab.benchmarks.base import Row
from rewardlab.benchmarks.comparison import Run, against, read_run
from rewardlab.benchmarks.runner import run_bench
from rewardlab.benchmarks.scores import all_right, weighted_score
from rewardlab.benchmarks.settings import bench_settings
from rewardlab.data.pairs import write_parquet
from rewardlab.metrics.accuracy import Labeled
from rewardlab.metrics.intervals import difference_interval
from rewardlab.types import Completion, FinishReason, Order, PreferencePair, Verdict, VerdictStatus, Vote
from rewardlab.verdicts.votes import judgment_by_probability


def weighed(margins_for_0: list[float]) -> Labeled:
    """Votes for response 0 by these log-odds in both orders; response 0 is the better one."""
    tie, done = Verdict(None, VerdictStatus.TIE), Completion("", FinishReason.STOP)
    votes = [Vote(order, tie, done, m if order is Order.GIVEN else -m) for order in Order for m in margins_for_0]
    return Labeled(judgment_by_probability("p", votes), 0, "all")


@pytest.mark.parametrize(("k", "score"), [(1, 0.6), (2, 0.5), (3, 1.0), (4, 1.0), (5, 1.0)])
def test_blocks_are_whole(k: int, score: float) -> None:
    """Five votes in each order, three for the better response: blocks of three are one, and the two left over are in none."""
    assert weighted_score(weighed([1.0, 1.0, 1.0, -1.0, -1.0]), k) == score
    assert weighted_score(weighed([1.0, 1.0, 1.0, -9.0, -9.0]), 3) == 1.0


@pytest.fixture
def runs(demo_pairs: Any, tmp_path: Path) -> tuple[Run, Run]:
    """Two judges of sixty pairs: the one is never right, the other in every second ten."""
    write_parquet(demo_pairs[0][:60], tmp_path / "pairs.parquet")
    run_bench(bench_settings("pairs", tmp_path / "pairs.parquet", "baseline:first"), tmp_path / "out")
    run = read_run(tmp_path / "out")
    none = [replace(row, score=0.0) for row in run.rows]
    some = [replace(row, score=float(n // 10 % 2)) for n, row in enumerate(run.rows)]
    return replace(run, rows=none), replace(run, rows=some)


def of_prompts(run: Run, size: int) -> Run:
    return replace(run, rows=[replace(row, cluster=str(n // size)) for n, row in enumerate(run.rows)])


def test_a_difference_of_single_pairs(runs: tuple[Run, Run]) -> None:
    """The normal interval of the mean, nearly."""
    base, other = (of_prompts(run, 1) for run in runs)
    gaps = [row.score for row in other.rows]
    found = against(base, other)
    half = 1.96 * stdev(gaps) / 60**0.5
    assert (found.difference, found.better, found.worse) == (0.5, 30, 0)
    assert found.interval == pytest.approx((0.5 - half, 0.5 + half), abs=0.03)


def test_pairs_of_one_prompt_stand_together(runs: tuple[Run, Run]) -> None:
    """Six prompts of ten pairs that all go one way say less than sixty: a much wider interval, a larger p-value."""
    base, other = (of_prompts(run, 10) for run in runs)
    gaps, clusters = [row.score for row in other.rows], [row.cluster for row in other.rows]
    found, single = against(base, other), against(*(of_prompts(run, 1) for run in runs))
    assert found.interval == difference_interval(gaps, clusters)
    assert found.interval[1] - found.interval[0] > 2 * (single.interval[1] - single.interval[0])
    assert (found.p_value, found.difference) == (0.25, 0.5)  # three prompts differ: 2 of 8 patterns of signs


def test_a_prompt_is_right_where_every_pair_is_in_both_orders() -> None:
    """Acc+ of four prompts: one right throughout, one with a pair that is right in one order only, one with a wrong pair, one
    whose one pair is right: 2 of 4."""
    scores = {"all": (1.0, 1.0), "one order": (1.0, 0.5), "wrong": (0.0, 1.0), "alone": (1.0,)}
    prompts = [(prompt, score) for prompt, of_prompt in scores.items() for score in of_prompt]
    rows = [Row(n, PreferencePair(f"p{n}", "Q", ("a", "b"), 0), "all", prompt, {}) for n, (prompt, _) in enumerate(prompts)]
    found = all_right(rows, [score for _, score in prompts])
    assert found is not None
    assert (found.accuracy, found.n) == (2 / 4, 4)
