"""Best of N: a judge of pairs plays tournaments among the responses of a prompt, those of many prompts together."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rewardlab.data.append_log import AppendLog, undamaged
from rewardlab.data.candidates import candidates_hash
from rewardlab.data.files import write_atomic
from rewardlab.data.votes import num_failed, vote_of, vote_row
from rewardlab.errors import ConfigError
from rewardlab.judging.judge import Judge, ModelJudge
from rewardlab.judging.panel import PanelJudge
from rewardlab.judging.ranking import PLANS, Match, Plan, Ranking
from rewardlab.metrics.intervals import mean_interval
from rewardlab.models.checkpoints import commit
from rewardlab.reporting.progress import bar
from rewardlab.samplers.failures import MAX_FAILED, FailureStreak, failure_sentence
from rewardlab.types import BOTH_ORDERS, Candidates, Judgment, Outcome, Vote
from rewardlab.verdicts.other_formats import other_format, unread_texts
from rewardlab.verdicts.votes import both_orders_or_none

CHUNK = 64  # prompts between two writes of the log


@dataclass(frozen=True)
class Game:
    """What a plan came to, and the judgment of each match; ``first`` and ``second`` are responses 0 and 1 of its pair."""

    ranking: Ranking
    judgments: tuple[tuple[Match, Judgment], ...]


# (prompt, match, how often it was played before): its recorded judgment, None if there is none
Lookup = Callable[[int, Match, int], Judgment | None]
Record = Callable[[int, Match, int, Judgment], None]


def play_many(
    judge: Judge,
    prompts: Sequence[Candidates],
    *,
    plan: str,
    budget: int | None,
    num_votes: int,
    seed: int,
    lookup: Lookup = lambda n, match, nth: None,
    record: Record = lambda n, match, nth, judgment: None,
) -> list[Game]:
    """Play out a plan on the responses of each prompt. Every match is judged in both orders by ``num_votes`` votes each; one
    without a majority, or without a valid vote in an order, names no winner. Matches that can be judged at the same time are.

    ``lookup`` may give a match's judgment without the judge, ``record`` is called with each new one. A greedy judge is asked
    about no match twice. Raise ConfigError for a plan or a budget that cannot be.
    """
    repeats = getattr(judge, "temperature", 1.0) > 0
    plans = [_start(plan, len(prompt.responses), budget, repeats) for prompt in prompts]
    waiting: dict[int, list[Match]] = {n: matches for n, (_, matches) in enumerate(plans)}
    played: list[list[tuple[Match, Judgment]]] = [[] for _ in prompts]
    rankings: dict[int, Ranking] = {}
    turn = 0

    def nth(n: int, match: Match) -> int:
        return sum(before == match for before, _ in played[n])

    while waiting:
        results = {(n, match): lookup(n, match, nth(n, match)) for n, matches in waiting.items() for match in matches}
        missing = [key for key, judgment in results.items() if judgment is None]
        if missing:
            pairs = [prompts[n].pair(*match) for n, match in missing]
            judgments = judge.compare_many(pairs, orders=[BOTH_ORDERS] * len(pairs), num_votes=num_votes, seed=seed + turn)
            for (n, match), judgment in zip(missing, judgments, strict=True):
                results[n, match] = judgment
                record(n, match, nth(n, match), judgment)
        rounds, waiting, turn = waiting, {}, turn + 1
        for n, matches in rounds.items():
            decided = [(match, both_orders_or_none(result)) for match in matches if (result := results[n, match]) is not None]
            assert len(decided) == len(matches)
            played[n] += decided
            winners = [(match, judgment.outcome.winner) for match, judgment in decided]
            try:
                waiting[n] = plans[n][0].send([None if place is None else match[place] for match, place in winners])
            except StopIteration as end:
                rankings[n] = end.value
    return [Game(rankings[n], tuple(played[n])) for n in range(len(prompts))]


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

    Every match is kept with its votes in ``out/matches.jsonl`` when its round is judged: the same command continues a killed
    run, and asks again where the judge failed to answer. ``unjudged_rate`` of the report is the share of matches of which an
    order has no valid vote. Where best responses are known the report has the share of prompts whose single first place is one
    of them; first places that are shared are not right. ``failure`` of the report is not empty where more than the share
    ``max_failed`` (0..1) of the votes failed: its figures then say nothing of the judge. Raise ConfigError, and EndpointError
    where nothing answers.
    """
    for prompt in prompts:
        _start(plan, len(prompt.responses), budget, True)
    identity = {
        **judge.identity,
        "data": candidates_hash(prompts),
        "plan": plan,
        "budget": budget,
        "votes": num_votes,
        "seed": seed,
    }
    games: list[Game] = []
    with AppendLog(out / "matches.jsonl", identity) as log, bar(f"rank: {plan}", len(prompts)) as advance:
        recorded = {}
        for line, row in enumerate(log.rows, start=2):
            with undamaged(log.path, line):
                recorded[_key(row)] = [vote_of(vote) for vote in row["votes"]]
        recorded = {key: votes for key, votes in recorded.items() if not num_failed(votes)}
        if not recorded:
            judge.check()
        failures = FailureStreak(judge.name, answered=bool(recorded))
        for start in range(0, len(prompts), CHUNK):
            chunk_seed = int(hashlib.sha256(f"{seed} {start}".encode()).hexdigest()[:8], 16)

            def lookup(n: int, match: Match, nth: int, start: int = start) -> Judgment | None:
                votes = recorded.get((start + n, match, nth))
                return None if votes is None else judge.reduce("", votes)

            def record(n: int, match: Match, nth: int, judgment: Judgment, start: int = start) -> None:
                votes = [vote_row(vote) for vote in judgment.votes]
                log.append({"row": start + n, "first": match[0], "second": match[1], "nth": nth, "votes": votes})
                for vote in judgment.votes:
                    failures.take(vote.completion)

            chunk = prompts[start : start + CHUNK]
            games += play_many(
                judge,
                chunk,
                plan=plan,
                budget=budget,
                num_votes=num_votes,
                seed=chunk_seed,
                lookup=lookup,
                record=record,
            )
            advance(len(chunk))
    rankings = [game.ranking for game in games]
    rows = [_row(n, prompt, ranking) for n, (prompt, ranking) in enumerate(zip(prompts, rankings, strict=True))]
    write_atomic(out / "rankings.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    judgments = [judgment for game in games for _, judgment in game.judgments]
    votes = [vote for judgment in judgments for vote in judgment.votes]
    report: dict[str, Any] = {"plan": plan, "budget": budget, "votes": num_votes, "judge": judge.spec, "command": command}
    report |= {
        "statuses": dict(Counter(vote.verdict.status.value for vote in votes)),
        "failure": failure_sentence([vote.completion for vote in votes], max_failed),
        "unjudged_rate": sum(judged.outcome is Outcome.NO_VALID_VOTE for judged in judgments) / len(judgments),
        "commit": commit(),
        "other_format": _other_format(judge, votes),
        **_score(prompts, rankings),
    }
    write_atomic(out / "report.json", json.dumps(report, indent=1) + "\n")
    return report


def _other_format(judge: ModelJudge, votes: Sequence[Vote]) -> str | None:
    """Return what to do about answers without a verdict that another format reads, None where there are few."""
    other = None if isinstance(judge, PanelJudge) else other_format(unread_texts(votes))
    return other.sentence(f"--template {other.name} asks for that form and reads it (with another --out)") if other else None


def _key(row: Mapping[str, Any]) -> tuple[int, Match, int]:
    return row["row"], (row["first"], row["second"]), row["nth"]


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
        "num_prompts": len(rankings),
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
