"""Votes that are missing: of a call that ended early, and of equal pairs."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import pytest

from rewardlab.benchmarks.passes import CHUNK
from rewardlab.errors import EndpointError
from rewardlab.judging.asking import PairRequest, VoteRequest, ask_missing, vote_places, votes_by_chunk
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.judging.merging import SharedRequests
from rewardlab.judging.panel import PanelJudge
from rewardlab.judging.served import ServedJudge
from rewardlab.samplers.base import RequestGate, SamplingParams
from rewardlab.samplers.scripted import ScriptedSampler
from rewardlab.types import BOTH_ORDERS, Choice, Completion, FinishReason, Message, PreferencePair, Vote
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


def here() -> GenerativeJudge:
    return GenerativeJudge(BatchSampler(), PLAIN)


class CutJudge(GenerativeJudge):
    """Gets no more than ``cut`` requests."""

    cut = 0

    def vote_each(self, requests: Iterable[VoteRequest], gate: RequestGate | None = None) -> Iterator[list[tuple[int, Vote]]]:
        return votes_by_chunk(self.voices, islice(enumerate(requests), self.cut))


def test_a_call_that_is_cut_off_is_not_made() -> None:
    """Wherever it is cut: of three chunks of two pairs, each of four votes, those that came whole."""
    pairs = [PairRequest(pair, BOTH_ORDERS, n // 2) for n, pair in enumerate(PAIRS[:6])]
    for cut in range(25):
        judge = CutJudge(BatchSampler(), PLAIN)
        judge.cut = cut
        came = [(n, place) for batch in ask_missing(judge, pairs, [set()] * 6, 2) for n, place, _ in batch]
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
        came.extend((n, place) for batch in batches for n, place, _ in batch)
    assert came == [(n, place) for n in range(4) for place in range(6)]
    assert sampler.calls == [8]


@pytest.mark.parametrize("where", ["here", "served"])
def test_one_pair_twice_is_judged_twice(where: str) -> None:
    """Two rows that follow each other may share one object."""
    with judge_servers("greater") as [url]:
        judge = here() if where == "here" else ServedJudge(url)
        pairs = [PairRequest(PAIRS[0], BOTH_ORDERS, 7)] * 2
        came = {(n, place): vote for batch in ask_missing(judge, pairs, [set(), set()], 2) for n, place, vote in batch}
    orders = [order for _, order, _ in vote_places(judge, BOTH_ORDERS, 2)]
    assert {key: vote.order for key, vote in came.items()} == {(n, p): orders[p] for n in range(2) for p in range(4)}
