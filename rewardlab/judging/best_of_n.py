"""Best of N: a judge of pairs plays tournaments among the responses of a prompt, those of many prompts together."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rewardlab.data.candidates import candidates_hash
from rewardlab.data.files import write_atomic
from rewardlab.data.votes import VoteLog
from rewardlab.errors import ConfigError
from rewardlab.judging.asking import PairRequest, ask_missing, vote_places
from rewardlab.judging.group_rewards import JudgedMatch, judged_list
from rewardlab.judging.judge import Judge, ModelJudge
from rewardlab.judging.lists import require_lists
from rewardlab.judging.ranking import PLANS, WHOLE, Match, Plan, Ranking, ranking_of
from rewardlab.metrics.intervals import mean_interval
from rewardlab.models.checkpoints import commit
from rewardlab.reporting.progress import bar
from rewardlab.samplers.failures import MAX_FAILED, FailureStreak, failure_sentence
from rewardlab.types import BOTH_ORDERS, Candidates, Judgment, Vote
from rewardlab.verdicts.other_formats import other_format, unread_texts
from rewardlab.verdicts.votes import both_orders_or_none

MATCHES, PARTIAL_MATCHES = "matches.jsonl", "matches.partial.jsonl"
KEY = {"row": int, "first": int, "second": int, "nth": int}  # what tells lines apart


class LoggedMatches:
    """Judges matches by ``num_votes`` votes in each order; a vote that ``log`` has, and that did not fail, is not asked for."""

    def __init__(self, judge: ModelJudge, log: VoteLog, num_votes: int, *, whole: bool = False) -> None:
        """``whole``: a match is the judgment of a whole list."""
        self._judge, self._log, self._num_votes, self._whole = judge, log, num_votes, whole
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
            chosen = [(prompts[matches[n][0]], matches[n][1]) for n in numbers]
            pairs = [prompt.listed() if self._whole else prompt.pair(*match) for prompt, match in chosen]
            requests = [PairRequest(pair, BOTH_ORDERS, drawn_by) for pair in pairs]
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


CHUNK = 64  # prompts between two writes of the log


@dataclass(frozen=True)
class Game:
    """What a plan came to, and the judgment of each match; ``first`` and ``second`` are responses 0 and 1 of its pair."""

    ranking: Ranking
    judgments: tuple[tuple[Match, Judgment], ...]


# (round, [(prompt, match, how often it was played before)]): the judgment of each
AskRound = Callable[[int, Sequence[tuple[int, Match, int]]], Sequence[Judgment]]


def play_many(
    judge: Judge,
    prompts: Sequence[Candidates],
    *,
    plan: str,
    budget: int | None,
    num_votes: int,
    seed: int,
    ask: AskRound | None = None,
) -> list[Game]:
    """Play out a plan on the responses of each prompt. Every match is judged in both orders by ``num_votes`` votes each; one
    without a majority of the votes asked, or with an order that names no response, has no winner. Matches that can be judged at
    the same time are.

    ``ask`` judges the matches of a round, by default in one call of the judge. A greedy judge is asked about no match twice.
    Raise ConfigError for a plan or a budget that cannot be.
    """
    repeats = getattr(judge, "temperature", 1.0) > 0
    plans = [_start(plan, len(prompt.responses), budget, repeats) for prompt in prompts]
    waiting: dict[int, list[Match]] = {n: matches for n, (_, matches) in enumerate(plans)}
    played: list[list[tuple[Match, Judgment]]] = [[] for _ in prompts]
    rankings: dict[int, Ranking] = {}
    turn = 0

    def nth(n: int, match: Match) -> int:
        return sum(before == match for before, _ in played[n])

    def compare(turn: int, keys: Sequence[tuple[int, Match, int]]) -> Sequence[Judgment]:
        pairs = [prompts[n].listed() if plan == WHOLE else prompts[n].pair(*match) for n, match, _ in keys]
        return judge.compare_many(pairs, orders=[BOTH_ORDERS] * len(pairs), num_votes=num_votes, seed=seed + turn * num_votes)

    if plan == WHOLE:
        for prompt in prompts:
            require_lists(judge.verdict_format, len(prompt.responses))
        judged = (ask or compare)(0, [(n, (0, 1), 0) for n in waiting])
        lists = [judged_list(prompt, each, judge.verdict_format) for prompt, each in zip(prompts, judged, strict=True)]
        return [_whole_game(rounds, matches) for (rounds, _), matches in zip(plans, lists, strict=True)]
    while waiting:
        keys = list(dict.fromkeys((n, match, nth(n, match)) for n, matches in waiting.items() for match in matches))
        results = {key[:2]: judgment for key, judgment in zip(keys, (ask or compare)(turn, keys), strict=True)}
        rounds, waiting, turn = waiting, {}, turn + 1
        for n, matches in rounds.items():
            decided = [(match, both_orders_or_none(results[n, match])) for match in matches]
            played[n] += decided
            winners = [(match, judgment.outcome.winner) for match, judgment in decided]
            try:
                waiting[n] = plans[n][0].send([None if place is None else match[place] for match, place in winners])
            except StopIteration as end:
                rankings[n] = end.value
    return [Game(rankings[n], tuple(played[n])) for n in range(len(prompts))]


def _whole_game(rounds: Plan, matches: Sequence[JudgedMatch]) -> Game:
    """Return the game of a plan whose matches one judgment of a list holds."""
    judged = tuple(((match.first, match.second), match.judgment) for match in matches if match.judgment is not None)
    return Game(ranking_of(rounds, [match.winner for match in matches]), judged)


def rank_many(
    judge: Judge, prompts: Sequence[Candidates], *, plan: str, budget: int | None, num_votes: int, seed: int
) -> list[Ranking]:
    """Return the rankings of :func:`play_many`."""
    games = play_many(judge, prompts, plan=plan, budget=budget, num_votes=num_votes, seed=seed)
    return [game.ranking for game in games]


def _start(plan: str, num: int, budget: int | None, repeats: bool) -> tuple[Plan, list[Match]]:
    if plan not in PLANS:
        raise ConfigError(f"unknown plan {plan!r}; expected one of {', '.join(PLANS)}")
    try:
        rounds = PLANS[plan](num, budget, **({"repeats": repeats} if plan == "adaptive" else {}))
        return rounds, next(rounds)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def run_ranking(
    judge: ModelJudge,
    prompts: Sequence[Candidates],
    out: Path,
    *,
    plan: str,
    budget: int | None,
    num_votes: int,
    seed: int,
    max_failed: float = MAX_FAILED,
    command: str = "",
) -> dict[str, Any]:
    """Rank all prompts to ``out/rankings.jsonl`` and ``out/report.json``; return the report.

    Every vote is kept when it comes, in ``out/matches.jsonl`` where its match has all: the same command continues a killed run,
    and asks again for the votes that failed. ``unjudged_rate`` of the report is the share of matches of which no vote of an
    order names a response, or fewer than half are valid. Where best responses are known the report has the share of prompts
    whose single first place is one of them; first places that are shared are not right. ``failure`` of the report is not empty
    where more than the share ``max_failed`` (0..1) of the votes failed: it then has no figures, only counts of prompts and
    votes. Raise ConfigError, and EndpointError where nothing answers.
    """
    for prompt in prompts:
        _start(plan, len(prompt.responses), budget, True)
        if plan == WHOLE:
            require_lists(judge.verdict_format, len(prompt.responses))
    identity = {
        **judge.identity,
        "data": candidates_hash(prompts),
        "plan": plan,
        "budget": budget,
        "votes": num_votes,
        "seed": seed,
    }
    games: list[Game] = []
    with VoteLog(out / MATCHES, out / PARTIAL_MATCHES, identity, KEY) as log, bar(f"rank: {plan}", len(prompts)) as advance:
        matches = LoggedMatches(judge, log, num_votes, whole=plan == WHOLE)
        if not log.has_answers:
            judge.check()
        for start in range(0, len(prompts), CHUNK):
            chunk = prompts[start : start + CHUNK]
            chunk_seed = int(hashlib.sha256(f"{seed} {start}".encode()).hexdigest()[:8], 16)
            ask = partial(matches.judge_round, chunk, start, chunk_seed)
            games += play_many(judge, chunk, plan=plan, budget=budget, num_votes=num_votes, seed=chunk_seed, ask=ask)
            advance(len(chunk))
        log.finish()
    rankings = [game.ranking for game in games]
    rows = [_row(n, prompt, ranking) for n, (prompt, ranking) in enumerate(zip(prompts, rankings, strict=True))]
    write_atomic(out / "rankings.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    judgments = [judgment for game in games for _, judgment in game.judgments]
    sampled = [game.judgments[0][1] for game in games] if plan == WHOLE else judgments  # a list's matches share its votes
    votes = [vote for judgment in sampled for vote in judgment.votes]
    failure = failure_sentence([vote.completion for vote in votes], max_failed)
    report: dict[str, Any] = {"plan": plan, "budget": budget, "votes": num_votes, "judge": judge.spec, "command": command}
    report |= {
        "statuses": dict(Counter(vote.verdict.status.value for vote in votes)),
        "cached_votes": sum(vote.completion.from_cache for vote in votes),
        "failure": failure,
        "num_prompts": len(prompts),
        "commit": commit(),
        "other_format": _other_format(judge, votes),
    }
    if not failure:
        report["unjudged_rate"] = sum(judged.share_0 is None for judged in judgments) / len(judgments)
        report |= _score(prompts, rankings)
    write_atomic(out / "report.json", json.dumps(report, indent=1) + "\n")
    return report


def _other_format(judge: ModelJudge, votes: Sequence[Vote]) -> str | None:
    """Return what to do about answers without a verdict that another format reads, None where there are few."""
    other = None if judge.members else other_format(unread_texts(votes))
    return other.sentence(f"template={other.name} asks for that form and reads it (with another --out)") if other else None


def _row(number: int, prompt: Candidates, ranking: Ranking) -> dict[str, object]:
    counts = {"num_matches": ranking.num_matches, "undecided": ranking.undecided}
    return {
        "row": number,
        "id": prompt.prompt_id,
        "best": ranking.best,
        "tiers": [list(tier) for tier in ranking.tiers],
        **counts,
    }


def _score(prompts: Sequence[Candidates], rankings: Sequence[Ranking]) -> dict[str, object]:
    matches = sum(ranking.num_matches for ranking in rankings)
    metrics: dict[str, object] = {
        "matches_per_prompt": matches / len(rankings),
        "undecided_rate": sum(ranking.undecided for ranking in rankings) / matches,
        "without_one_best": sum(ranking.best is None for ranking in rankings),
    }
    groups: dict[str, list[float]] = defaultdict(list)
    for prompt, ranking in zip(prompts, rankings, strict=True):
        if prompt.best:
            groups[prompt.group].append(float(ranking.best in prompt.best))
    if groups:
        metrics["best_found"] = _accuracy_cell([score for scores in groups.values() for score in scores])
        metrics["groups"] = {name: _accuracy_cell(scores) for name, scores in sorted(groups.items())}
    return metrics


def _accuracy_cell(scores: Sequence[float]) -> dict[str, object]:
    return {"n": len(scores), "accuracy": sum(scores) / len(scores), "interval": list(mean_interval(scores))}
