"""Rewards that compare rollouts, dealt out over many processes: threads here, whose lists meet at a barrier."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from rewardlab.metrics.running import Metric, MetricAccumulator
from rewardlab.rewards.pairwise import PairwiseReward
from rewardlab.rewards.policy_function import AnchoredReward
from rewardlab.rewards.rollout import GatherObjects, Rollout, Scored, Trajectory
from rewardlab.rewards.scorer import JudgmentReward, JudgmentScorer
from rewardlab.types import Choice, PreferencePair
from rewardlab.verdicts.parse import format_verdict
from tests.support.preferring_judge import Prefers
from tests.support.rewards import reward_terms

END = 7


def gathers(num: int) -> list[GatherObjects]:
    """Return what each of ``num`` processes gathers with."""
    lists: list[list[Any]] = [[] for _ in range(num)]
    filled, read = Barrier(num), Barrier(num)

    def gather(process: int, values: list[Any]) -> list[Any]:
        lists[process] = values
        filled.wait(20)
        joined = [value for values in lists for value in values]
        read.wait(20)
        return joined

    return [lambda values, process=process: gather(process, values) for process in range(num)]  # type: ignore[misc]


Make = Callable[[GatherObjects], Callable[[list[Rollout], int], Scored]]


def dealt_out(make: Make, rollouts: list[Rollout], num: int) -> tuple[list[Any], list[float], dict[str, float]]:
    """Return rewards, who is correct, and the metrics of all, where ``num`` processes each score their share."""
    share = len(rollouts) // num
    shards = [rollouts[start : start + share] for start in range(0, len(rollouts), share)]
    functions = [make(gather) for gather in (gathers(num) if num > 1 else [list])]
    with ThreadPoolExecutor(num) as pool:
        scored = list(pool.map(lambda function, shard: function(shard, 0), functions, shards))
    accumulators = [MetricAccumulator() for _ in scored]
    for accumulator, result in zip(accumulators, scored, strict=True):
        for name, metric in result.metrics.items():
            accumulator.add(name, metric if isinstance(metric, Metric) else Metric(metric))
    kept: list[Any] = []
    for accumulator in accumulators[1:]:
        accumulator.flush(lambda shard: kept.extend(shard) or shard)  # type: ignore[func-returns-value]
    metrics = accumulators[0].flush(lambda shard: [*shard, *kept])
    return [reward for s in scored for reward in s.rewards], [flag for s in scored for flag in s.correct], metrics


@pytest.mark.parametrize("num", [4, 32])
def test_the_swap_reward_of_256_rollouts(tmp_path: Path, num: int) -> None:
    """Eight samples a prompt: on 32 processes of eight rollouts no process has both orders of a pair, and 4 split none."""
    dice = random.Random(0)
    rollouts = []
    for n in range(256):
        row = {"pair_id": f"p{n // 16}", "question": "q", "order": ("given", "swapped")[n // 8 % 2], "preferred": n // 16 % 2}
        text = dice.choice([format_verdict(Choice.FIRST, "x"), format_verdict(Choice.SECOND, "x"), "no verdict"])
        rollouts.append(Rollout(row, [], Trajectory([1, END]), text))

    def make(gather: GatherObjects) -> JudgmentReward:
        terms, scorer = reward_terms(swap_weight=1.0), JudgmentScorer("think_answer", None)
        ends, samples = frozenset({END}), tmp_path / "samples.jsonl"
        return JudgmentReward(scorer, None, terms, ends=ends, samples=samples, gather=gather)

    alone, many = dealt_out(make, rollouts, 1), dealt_out(make, rollouts, num)
    assert many[:2] == alone[:2]
    assert many[2] == pytest.approx(alone[2])
    assert 0.1 < alone[2]["reward/swap_agreement"] < 0.9


@pytest.fixture
def answers() -> tuple[list[PreferencePair], list[Rollout]]:
    """Sixteen questions with eight answers each; some were cut off, some empty, some equal."""
    dice = random.Random(1)
    pairs = [PreferencePair(f"p{n}", "q", ("good", "bad"), 0) for n in range(16)]
    rollouts = [
        Rollout({"pair_id": f"p{n // 8}"}, [], Trajectory([1, dice.choice([END, END, END, 2])]), "x" * dice.randrange(6))
        for n in range(128)
    ]
    return pairs, rollouts


@pytest.mark.parametrize("num", [2, 32])
def test_a_group_is_compared_with_itself_on_any_number_of_processes(
    answers: tuple[list[PreferencePair], list[Rollout]], tmp_path: Path, num: int
) -> None:
    """Also where a process has a half of a group, or every process one."""
    pairs, rollouts = answers
    judge = Prefers(lambda text: len(text) / 6, unreadable=frozenset({"xxx"}))

    def make(gather: GatherObjects) -> AnchoredReward:
        reward = PairwiseReward(judge)  # type: ignore[arg-type]
        return AnchoredReward(reward, pairs, None, ends=frozenset({END}), samples=tmp_path / "samples.jsonl", gather=gather)

    alone, many = dealt_out(make, rollouts, 1), dealt_out(make, rollouts, num)
    assert many[0] == [pytest.approx(reward) for reward in alone[0]]
    assert many[1] == alone[1]
    assert many[2] == pytest.approx(alone[2])
    assert len(set(alone[0])) > 20


class Lengths:
    """Pays a response its length: as a scalar head, it has neither a least nor a parity."""

    least = parity = None

    def __call__(self, questions: Any, responses: list[str], anchors: Any, step: int) -> tuple[list[float | None], Any]:
        return [float(len(text)) or None for text in responses], {}


@pytest.mark.parametrize("num", [2, 32])
def test_least_and_parity_are_of_all_processes(
    answers: tuple[list[PreferencePair], list[Rollout]], tmp_path: Path, num: int
) -> None:
    """What was cut off earns the least that any process pays, and who is correct beats the mean of all."""
    pairs, rollouts = answers

    def make(gather: GatherObjects) -> AnchoredReward:
        anchors = {pair.pair_id: None for pair in pairs}
        return AnchoredReward(
            Lengths(),  # type: ignore[arg-type]
            pairs,
            anchors,  # type: ignore[arg-type]
            ends=frozenset({END}),
            samples=tmp_path / "samples.jsonl",
            gather=gather,
        )

    alone, many = dealt_out(make, rollouts, 1), dealt_out(make, rollouts, num)
    assert many[:2] == alone[:2]
    assert many[2] == pytest.approx(alone[2])
    assert {reward for reward, r in zip(alone[0], rollouts, strict=True) if r.token_ids[-1] != END} == {1.0}
