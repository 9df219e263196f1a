"""Votes that are missing: of a judge whose draws depend on the whole call, of a call that ended early, of equal pairs."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from rewardlab.benchmarks.base import Row
from rewardlab.benchmarks.pass_log import PassLog
from rewardlab.benchmarks.passes import CHUNK, Pass
from rewardlab.data.votes import VoteLog
from rewardlab.errors import EndpointError
from rewardlab.judging.asking import PairRequest, ask_missing, vote_places
from rewardlab.judging.best_of_n import MATCHES, run_ranking
from rewardlab.judging.judge import GenerativeJudge, ModelJudge, VoteRequest, votes_by_chunk
from rewardlab.judging.panel import PanelJudge, SharedRequests
from rewardlab.judging.served import ServedJudge
from rewardlab.samplers.base import RequestGate, SamplingParams
from rewardlab.samplers.scripted import ScriptedSampler
from rewardlab.types import BOTH_ORDERS, Candidates, Choice, Completion, FinishReason, Message, PreferencePair, Vote
from rewardlab.verdicts.parse import format_verdict
from tests.support.judge_servers import ANSWERS, PLAIN, judge_servers
from tests.support.scripted_judge import QUESTION

PAIRS = [PreferencePair(f"p{n}", QUESTION, (f"I say {n}.", f"I say {n + 1}."), 1) for n in range(CHUNK + 6)]


class BatchSampler(ScriptedSampler):
    """Computes here: a draw depends on the seed, and on the place and the number of prompts in the call."""

    def __init__(self) -> None:
        super().__init__(ANSWERS["greater"], "here")
        self.calls: list[int] = []

    @property
    def is_batch_invariant(self) -> bool:
        return False

    def sample(self, prompts: Sequence[tuple[Message, ...]], params: SamplingParams) -> list[list[Completion]]:
        self.calls.append(len(prompts))
        return [
            [self._at(f"{params.seed} {place} of {len(prompts)}, {draw}") for draw in range(params.num_samples)]
            for place in range(len(prompts))
        ]

    def _at(self, place: str) -> Completion:
        luck = hashlib.sha256(place.encode()).digest()[0]
        return Completion(format_verdict(Choice.FIRST if luck < 200 else Choice.SECOND, place), FinishReason.STOP, 1)


class StreamedSampler(ScriptedSampler):
    """Hands over each vote when it is there; ``refusing`` is waited for, and then it refuses."""

    is_streaming = True

    def __init__(self, refusing: threading.Event | None = None) -> None:
        super().__init__(ANSWERS["greater"], "there")
        self._refusing = refusing

    def sample_each(
        self, requests: Iterable[tuple[tuple[Message, ...], int]], params: SamplingParams, gate: RequestGate | None = None
    ) -> Iterator[list[tuple[int, Completion]]]:
        for number, (messages, _) in enumerate(requests):
            if self._refusing is not None:
                assert self._refusing.wait(10)
                raise EndpointError("the key has expired")
            yield [(number, self.sample([messages], params)[0][0])]


class BrokenLog(PassLog):
    """Is killed when it should write once more than ``left`` times."""

    def __init__(self, folder: Path, left: int) -> None:
        super().__init__(folder, {"judge": "x"})
        self.left = left

    def _count(self) -> None:
        if self.left == 0:
            raise KeyboardInterrupt
        self.left -= 1

    def write_row(self, *arguments: Any) -> None:
        self._count()
        super().write_row(*arguments)

    def write_vote(self, *arguments: Any) -> None:
        self._count()
        super().write_vote(*arguments)


def here() -> GenerativeJudge:
    return GenerativeJudge(BatchSampler(), PLAIN)


def panel() -> PanelJudge:
    return PanelJudge([here(), GenerativeJudge(StreamedSampler(), PLAIN)])


def votes_of(judge: ModelJudge, log: PassLog, num_votes: int, stop_error: float | None) -> list[tuple[Vote, ...]]:
    rows = [Row(n, pair, "g", "c", {}) for n, pair in enumerate(PAIRS)]
    judged = Pass("votes", rows, [BOTH_ORDERS] * len(rows), log, stop_error).run(judge, num_votes, 0)
    return [judgment.votes for judgment in judged]


@pytest.mark.parametrize(
    ("make", "num_votes", "stop_error", "kills"),
    [(here, 2, None, (1, 40, 66)), (here, 8, 0.1, (100, 200, 400, 600)), (panel, 2, None, (70, 300, 400, 520))],
)
def test_a_resumed_pass_draws_what_the_whole_one_does(
    make: Any, num_votes: int, stop_error: float | None, kills: tuple[int, ...], tmp_path: Path
) -> None:
    with BrokenLog(tmp_path / "whole", -1) as log:
        whole = votes_of(make(), log, num_votes, stop_error)
    for kill in kills:
        with BrokenLog(tmp_path / str(kill), kill) as log, pytest.raises(KeyboardInterrupt):
            votes_of(make(), log, num_votes, stop_error)
        with BrokenLog(tmp_path / str(kill), -1) as log:
            assert votes_of(make(), log, num_votes, stop_error) == whole, kill
    if stop_error is not None:
        assert len({len(votes) for votes in whole}) > 2


def test_only_chunks_that_lack_a_vote_are_asked_again(tmp_path: Path) -> None:
    """And of a chunk that another pair lacks, no row is written twice."""
    with BrokenLog(tmp_path, CHUNK + 2) as log, pytest.raises(KeyboardInterrupt):
        votes_of(here(), log, 1, None)
    sampler = BatchSampler()
    with BrokenLog(tmp_path, -1) as log:
        votes_of(GenerativeJudge(sampler, PLAIN), log, 1, None)
    assert sampler.calls == [2 * 6]
    with PassLog(tmp_path, {"judge": "x"}) as log:
        assert [entry.key[1] for entry in log.entries("votes")] == list(range(len(PAIRS)))


def test_a_resumed_round_of_a_ranking_draws_what_the_whole_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = [Candidates(f"c{n}", f"Q{n}", ("a", "b", "c"), ()) for n in range(3)]
    how: dict[str, Any] = {"plan": "round_robin", "budget": None, "num_votes": 2, "seed": 0}
    run_ranking(here(), prompts, tmp_path / "whole", **how)
    write_all, written = VoteLog.write_all, []

    def broken(*arguments: Any) -> None:
        if len(written) == 4:
            raise KeyboardInterrupt
        written.append(arguments)
        write_all(*arguments)

    monkeypatch.setattr(VoteLog, "write_all", broken)
    with pytest.raises(KeyboardInterrupt):
        run_ranking(here(), prompts, tmp_path / "parts", **how)
    monkeypatch.undo()
    run_ranking(here(), prompts, tmp_path / "parts", **how)
    parts, whole = ((tmp_path / name / MATCHES).read_text().splitlines()[1:] for name in ("parts", "whole"))
    assert list(map(json.loads, parts)) == list(map(json.loads, whole))


class CutJudge(GenerativeJudge):
    """Gets no more than ``cut`` requests."""

    cut = 0

    def vote_each(self, requests: Iterable[VoteRequest], gate: RequestGate | None = None) -> Iterator[list[tuple[int, Vote]]]:
        return votes_by_chunk(self.voices, islice(enumerate(requests), self.cut))


def test_what_is_drawn_again_took_its_time() -> None:
    """One vote of a chunk of 12 is missing, whose draws depend on each other: all are drawn, and it took a twelfth."""
    pairs = [PairRequest(pair, BOTH_ORDERS, 0) for pair in PAIRS[:3]]
    judge, answered = GenerativeJudge(BatchSampler(), PLAIN), [set(range(4)), {0, 1, 3}, set(range(4))]
    [batch] = ask_missing(judge, pairs, answered, 2)
    assert ([(n, place) for n, place, _ in batch.votes], batch.num_drawn) == ([(1, 2)], 12)


def test_a_call_that_is_cut_off_is_not_made() -> None:
    """Wherever it is cut: of three chunks of two pairs, each of four votes, those that came whole."""
    pairs = [PairRequest(pair, BOTH_ORDERS, n // 2) for n, pair in enumerate(PAIRS[:6])]
    for cut in range(25):
        judge = CutJudge(BatchSampler(), PLAIN)
        judge.cut = cut
        came = [(n, place) for batch in ask_missing(judge, pairs, [set()] * 6, 2) for n, place, _ in batch.votes]
        assert came == [(n, place) for n in range(cut // 8 * 2) for place in range(4)]


def test_a_member_that_computes_here_makes_no_part_of_a_call_when_another_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in its first chunk when the other refuses; nothing of the second is asked."""
    begun, ended, end = threading.Event(), threading.Event(), SharedRequests.end

    class WaitingSampler(BatchSampler):
        def sample(self, prompts: Sequence[tuple[Message, ...]], params: SamplingParams) -> list[list[Completion]]:
            begun.set()
            assert ended.wait(10)
            return super().sample(prompts, params)

    def noted(shared: SharedRequests) -> None:
        end(shared)
        ended.set()

    monkeypatch.setattr(SharedRequests, "end", noted)
    sampler = WaitingSampler()
    judge = PanelJudge([GenerativeJudge(sampler, PLAIN), GenerativeJudge(StreamedSampler(begun), PLAIN)])
    pairs, came = [PairRequest(pair, BOTH_ORDERS, n // 4) for n, pair in enumerate(PAIRS[:12])], list[tuple[int, int]]()
    batches = ask_missing(judge, pairs, [set()] * 12, 3)
    with pytest.raises(EndpointError, match="the key has expired"):
        came.extend((n, place) for batch in batches for n, place, _ in batch.votes)
    assert came == [(n, place) for n in range(4) for place in range(6)]
    assert sampler.calls == [8]


@pytest.mark.parametrize("where", ["here", "served"])
def test_one_pair_twice_is_judged_twice(where: str) -> None:
    """Two rows that follow each other may share one object."""
    with judge_servers("greater") as [url]:
        judge = here() if where == "here" else ServedJudge(url)
        pairs = [PairRequest(PAIRS[0], BOTH_ORDERS, 7)] * 2
        came = {(n, place): vote for batch, _ in ask_missing(judge, pairs, [set(), set()], 2) for n, place, vote in batch}
    orders = [order for _, order, _ in vote_places(judge, BOTH_ORDERS, 2)]
    assert {key: vote.order for key, vote in came.items()} == {(n, p): orders[p] for n in range(2) for p in range(4)}
