"""Matches of a ranking on disk: every vote that was paid for is there, and none stands for another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from rewardlab.data.votes import VoteLog
from rewardlab.judging.best_of_n import KEY, MATCHES, PARTIAL_MATCHES, LoggedMatches, play_many
from rewardlab.samplers.base import SelfVerifying
from rewardlab.types import (
    BOTH_ORDERS,
    Candidates,
    Choice,
    Completion,
    FinishReason,
    Judgment,
    Message,
    Outcome,
    Part,
    Verdict,
    VerdictStatus,
    Vote,
)

PROMPTS = [Candidates("p", "q", ("a", "b"))]


class CountingJudge:
    """Says that the first response is better, and counts how often it is asked."""

    name, is_streaming, is_batch_invariant = "judge", True, True

    def __init__(self) -> None:
        self.num_asked, self.seeds = 0, list[int]()

    @property
    def voices(self) -> tuple[Any, ...]:
        return (self,)

    def num_draws(self, number: int) -> int:
        return number

    def vote_each(self, requests: Any, gate: Any = None) -> Iterator[list[tuple[int, Vote]]]:
        for number, request in enumerate(requests):
            self.num_asked += 1
            verdict = Verdict(Choice.FIRST, VerdictStatus.OK, "test")
            yield [(number, Vote(request.order, verdict, Completion("1", FinishReason.STOP, 1)))]

    def reduce(self, pair_id: str, votes: Sequence[Vote]) -> Judgment:
        return Judgment(pair_id, tuple(votes), Outcome.TIE, None)

    def compare_many(self, pairs: Any, *, orders: Any, num_votes: int, seed: int) -> list[Judgment]:
        self.seeds += [seed + n for n in range(num_votes)]
        return [Judgment("", (), Outcome.TIE, None) for _ in pairs]


def _round(folder: Path, judge: CountingJudge, *, break_off: bool = False) -> None:
    with VoteLog(folder / MATCHES, folder / PARTIAL_MATCHES, {"run": 1}, KEY) as log:
        if break_off:

            def full(*line: Any) -> None:
                raise OSError("the disk is full")

            log.write_all = full  # type: ignore[method-assign]
        LoggedMatches(judge, log, 1).judge_round(PROMPTS, 0, 0, 0, [(0, (0, 1), 0)])  # type: ignore[arg-type]
        log.finish()


def test_votes_that_came_before_their_line_could_be_written_are_kept(tmp_path: Path) -> None:
    judge = CountingJudge()
    with pytest.raises(OSError, match="full"):
        _round(tmp_path, judge, break_off=True)
    assert judge.num_asked == len(BOTH_ORDERS)
    for _ in range(2):
        _round(tmp_path, judge)
        assert judge.num_asked == len(BOTH_ORDERS)
        assert len((tmp_path / MATCHES).read_text().splitlines()) == 2
        assert not (tmp_path / PARTIAL_MATCHES).exists()


def test_no_draw_of_a_repeated_match_is_an_earlier_one() -> None:
    """Played again in the next turn, with several votes each."""
    judge = CountingJudge()
    play_many(judge, PROMPTS, plan="adaptive", budget=6, num_votes=4, seed=0)  # type: ignore[arg-type]
    assert len(judge.seeds) > 4
    assert len(set(judge.seeds)) == len(judge.seeds)


def test_a_verified_answer_is_from_the_cache_where_all_of_it_is() -> None:
    class Sampler:
        name, is_batch_invariant = "sampler", True

        def sample(self, prompts: Any, params: Any) -> list[list[Completion]]:
            is_check = len(prompts[0]) > 1
            text = "The judgment is correct." if is_check else "<answer>1</answer>"
            return [[Completion(text, FinishReason.STOP, 10, from_cache=not is_check)] for _ in prompts]

    from rewardlab.samplers.base import SamplingParams

    [[completion]] = SelfVerifying(Sampler()).sample([(Message("user", (Part("q"),)),)], SamplingParams())  # type: ignore[arg-type]
    assert not completion.from_cache
