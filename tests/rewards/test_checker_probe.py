"""Who is asked about consistency is asked once before a run, and is left after many answers in a row that say nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from rewardlab.config import ConsistencyConfig
from rewardlab.errors import ConfigError, EndpointError
from rewardlab.metrics.running import Metric, MetricAccumulator
from rewardlab.rewards.consistency import GIVE_UP_AFTER, EndpointConsistencyJudge
from rewardlab.rewards.rollout import Rollout, Trajectory
from rewardlab.rewards.scorer import JudgmentReward, JudgmentScorer
from rewardlab.types import Choice
from rewardlab.verdicts.parse import format_verdict
from tests.support.judge_servers import judge_servers
from tests.support.openai_server import ChatServer, chat_server
from tests.support.rewards import reward_terms

END = 7


def answering(text_of: Callable[[int], str | None]) -> AbstractContextManager[str]:
    """Serve what answers its n-th question by ``text_of(n)``, None: by status 404; yields its address."""

    def refuse(body: dict[str, Any], number: int) -> tuple[int, str] | None:
        return (404, "no model 'm'") if text_of(number - 1) is None else None

    return chat_server(ChatServer(refuse, text=lambda number: text_of(number - 1) or ""))


def judge_at(url: str) -> EndpointConsistencyJudge:
    return EndpointConsistencyJudge(ConsistencyConfig(base_url=url, model="m"))


def check(judge: Any) -> None:
    async def run() -> None:
        try:
            await judge.check()
        finally:
            await judge.aclose()

    asyncio.run(run())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("Response 1 is better", "m answered 'Response 1 is better' instead of 0 or 1"),
        (None, "m failed .*404.* 0 or 1"),
    ],
)
def test_an_answer_that_cannot_be_read_is_found_before_the_run(answer: str | None, message: str) -> None:
    with answering(lambda n: answer) as url, pytest.raises(EndpointError, match=message):
        check(judge_at(url))
    with answering(lambda n: "0" if n % 2 else "hm") as url:  # one of two is enough
        check(judge_at(url))


@pytest.mark.slow
def test_a_judge_of_pairs_is_no_judge_of_consistency() -> None:
    """`rewardlab serve` answers to any name of a model, at the default address of the consistency judge."""
    with judge_servers("first") as (url,), pytest.raises(ConfigError, match="is a `rewardlab serve`, a judge of pairs"):
        check(judge_at(f"{url}/v1"))


def test_the_demonstration_passes(demo_server: Callable[..., str]) -> None:
    check(EndpointConsistencyJudge(ConsistencyConfig(base_url=demo_server(), model="demo-checker")))


def rollouts(number: int, first: int = 0) -> list[Rollout]:
    row = {"question": "Which color?", "order": "given", "preferred": 0, "pair_id": "p"}
    texts = [format_verdict(Choice.FIRST, f"Reason {first + n}.") for n in range(number)]
    return [Rollout(row, [], Trajectory([1, END]), text) for text in texts]


def test_questions_of_several_batches_are_added_up(tmp_path: Path) -> None:
    """A line of metrics may be of several: the mean would hide failures."""
    with answering(lambda n: "yes") as url:
        judge = EndpointConsistencyJudge(ConsistencyConfig(base_url=url, model="m", concurrency=1))
        scorer, samples = JudgmentScorer("think_answer", judge), tmp_path / "samples.jsonl"
        reward = JudgmentReward(scorer, judge, reward_terms(), ends=frozenset({END}), samples=samples)
        metrics = MetricAccumulator()
        for step in range(3):
            for name, metric in reward(rollouts(2, first=2 * step), step).metrics.items():
                metrics.add(name, metric if isinstance(metric, Metric) else Metric(metric))
        assert metrics.flush(lambda shards: shards)["consistency/asked"] == 6
        reward.close()


@pytest.mark.slow
def test_many_unreadable_answers_in_a_row_end_the_run(tmp_path: Path) -> None:
    """Each pays 0 as before, until there were too many; an answer in between, and the count begins anew."""
    judge_of = lambda url: EndpointConsistencyJudge(ConsistencyConfig(base_url=url, model="m", concurrency=1))  # noqa: E731

    def reward_of(url: str) -> JudgmentReward:
        judge = judge_of(url)
        scorer = JudgmentScorer("think_answer", judge)
        return JudgmentReward(scorer, judge, reward_terms(), ends=frozenset({END}), samples=tmp_path / "samples.jsonl")

    with answering(lambda n: "perhaps") as url:
        reward = reward_of(url)
        scored = reward(rollouts(GIVE_UP_AFTER - 1), 0)
        assert scored.metrics["consistency/unclear"].value == GIVE_UP_AFTER - 1
        with pytest.raises(
            EndpointError, match=r"none of the last 20 consistency requests.*m answered 'perhaps'.*consistency.weight=0"
        ):
            reward(rollouts(1, first=100), 1)
        reward.close()
    with answering(lambda n: None) as url:
        reward = reward_of(url)
        with pytest.raises(EndpointError, match=r"m failed .*404"):
            reward(rollouts(GIVE_UP_AFTER), 0)
        reward.close()
    with answering(lambda n: "perhaps" if n % 10 else "1") as url:
        reward = reward_of(url)
        reward(rollouts(3 * GIVE_UP_AFTER), 0)
        reward.close()
    assert json.loads((tmp_path / "samples.jsonl").read_text().splitlines()[0])["status"] == "ok"
