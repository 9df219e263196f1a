"""The matches of a ranking, judged with every vote on disk when it comes."""

from __future__ import annotations

from collections.abc import Sequence

from rewardlab.data.votes import VoteLog
from rewardlab.judging.asking import PairRequest, ask_missing, vote_places
from rewardlab.judging.judge import ModelJudge
from rewardlab.judging.ranking import Match
from rewardlab.samplers.failures import FailureStreak
from rewardlab.types import BOTH_ORDERS, Candidates, Judgment, Vote

MATCHES, PARTIAL_MATCHES = "matches.jsonl", "matches.partial.jsonl"
KEY = {"row": int, "first": int, "second": int, "nth": int}  # what tells lines apart


class LoggedMatches:
    """Judges matches by ``num_votes`` votes in each order; a vote that ``log`` has, and that did not fail, is not asked for."""

    def __init__(self, judge: ModelJudge, log: VoteLog, num_votes: int) -> None:
        self._judge, self._log, self._num_votes = judge, log, num_votes
        self._places = vote_places(judge, BOTH_ORDERS, num_votes)
        self._failures = [FailureStreak(voice.name, answered=log.has_answers) for voice in judge.voices]

    def judge_round(
        self, prompts: Sequence[Candidates], start: int, seed: int, turn: int, matches: Sequence[tuple[int, Match, int]]
    ) -> list[Judgment]:
        """Return the judgment of each (number of a prompt, match, how often it was played before); the first prompt is row
        ``start``. They are drawn by ``seed`` and the ``turn``, no two draws of a match by the same. Raise EndpointError where
        requests fail one after another."""
        keys = [(start + n, *match, nth) for n, match, nth in matches]
        votes: list[dict[int, Vote]] = [
            {place: vote for place, (vote, _) in self._log.answered(key).items() if place < len(self._places)} for key in keys
        ]
        for key, known in zip(keys, votes, strict=True):  # killed between the last vote and the line
            if len(known) == len(self._places) and not self._log.is_whole(key):
                self._log.write_all(key, self._in_order(known))
        missing = [n for n, known in enumerate(votes) if len(known) < len(self._places)]
        if missing:
            # the draws of a judge that is not batch invariant depend on all matches of the round
            numbers = missing if self._judge.is_batch_invariant else list(range(len(matches)))
            drawn_by = seed + turn * self._num_votes
            requests = [PairRequest(prompts[matches[n][0]].pair(*matches[n][1]), BOTH_ORDERS, drawn_by) for n in numbers]
            answered = [set(votes[n]) for n in numbers]
            for batch, _ in ask_missing(self._judge, requests, answered, self._num_votes):
                for number, place, vote in batch:
                    n = numbers[number]
                    votes[n][place] = vote
                    if self._judge.is_streaming and not vote.completion.failed:
                        self._log.write_vote(keys[n], place, vote)
                    if len(votes[n]) == len(self._places):
                        self._log.write_all(keys[n], self._in_order(votes[n]))
                for _, place, vote in (item for item in batch if not item[2].completion.from_cache):
                    self._failures[self._places[place][0]].take(vote.completion)
        return [self._judge.reduce("", self._in_order(known)) for known in votes]

    def _in_order(self, known: dict[int, Vote]) -> list[Vote]:
        return [known[place] for place in range(len(self._places))]
