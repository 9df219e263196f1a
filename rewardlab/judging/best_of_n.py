"""The best of several responses: a judge of pairs plays out tournaments, those of many prompts together."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rewardlab.checkpoints import commit
from rewardlab.data.append_log import AppendLog
from rewardlab.data.files import write_atomic
from rewardlab.data.votes import num_failed, vote_of, vote_row
from rewardlab.errors import ConfigError
from rewardlab.judging.judge import GenerativeJudge, Judge
from rewardlab.judging.ranking import PLANS, Match, Plan, Ranking
from rewardlab.metrics.intervals import mean_interval
from rewardlab.progress import bar
from rewardlab.types import BOTH_ORDERS, Candidates, Judgment
from rewardlab.verdicts.votes import reduce_votes

CHUNK = 64  # prompts between two writes of the log


@dataclass(frozen=True)
class Game:
    """What a plan came to, and the judgment of each match; ``first`` and ``second`` are responses 0 and 1 of its pair."""

    ranking: Ranking
    judged: tuple[tuple[Match, Judgment], ...]


Found = Callable[[int, Match, int], Judgment | None]  # (prompt, match, how often it was played before): what is known of it
Heard = Callable[[int, Match, int, Judgment], None]


def play_many(
    judge: Judge,
    prompts: Sequence[Candidates],
    *,
    plan: str,
    budget: int | None,
    num_votes: int,
    seed: int,
    found: Found = lambda n, match, nth: None,
    heard: Heard = lambda n, match, nth, judged: None,
) -> list[Game]:
    """Play out a plan on the responses of each prompt. Every match is judged in both orders by ``num_votes`` votes each; one
    without a majority names no winner. Matches that can be judged at the same time are.

    ``found`` is asked before the judge is, ``heard`` told of what the judge said. A greedy judge is asked about no match
    twice. Raises ConfigError for a plan or a budget that cannot be.
    """
    repeats = getattr(judge, "temperature", 1.0) > 0
    plans = [_begun(plan, len(one.responses), budget, repeats) for one in prompts]
    waiting: dict[int, list[Match]] = {n: matches for n, (_, matches) in enumerate(plans)}
    played: list[list[tuple[Match, Judgment]]] = [[] for _ in prompts]
    done: dict[int, Ranking] = {}
    turn = 0

    def nth(n: int, match: Match) -> int:
        return sum(before == match for before, _ in played[n])

    while waiting:
        known = {(n, match): found(n, match, nth(n, match)) for n, matches in waiting.items() for match in matches}
        asked = [key for key, judged in known.items() if judged is None]
        if asked:
            pairs = [prompts[n].pair(*match) for n, match in asked]
            judged = judge.compare_many(pairs, orders=[BOTH_ORDERS] * len(pairs), num_votes=num_votes, seed=seed + turn)
            for (n, match), one in zip(asked, judged, strict=True):
                known[n, match] = one
                heard(n, match, nth(n, match), one)
        rounds, waiting, turn = waiting, {}, turn + 1
        for n, matches in rounds.items():
            results = [(match, known[n, match]) for match in matches]
            assert all(one is not None for _, one in results)
            played[n] += [(match, one) for match, one in results if one is not None]
            won = [(match, one.outcome.winner) for match, one in results if one is not None]
            try:
                waiting[n] = plans[n][0].send([None if place is None else match[place] for match, place in won])
            except StopIteration as end:
                done[n] = end.value
    return [Game(done[n], tuple(played[n])) for n in range(len(prompts))]


def rank_many(
    judge: Judge, prompts: Sequence[Candidates], *, plan: str, budget: int | None, num_votes: int, seed: int
) -> list[Ranking]:
    """The rankings of :func:`play_many`."""
    games = play_many(judge, prompts, plan=plan, budget=budget, num_votes=num_votes, seed=seed)
    return [game.ranking for game in games]


def _begun(plan: str, num: int, budget: int | None, repeats: bool) -> tuple[Plan, list[Match]]:
    if plan not in PLANS:
        raise ConfigError(f"unknown plan {plan!r}; expected one of {', '.join(PLANS)}")
    try:
        made = PLANS[plan](num, budget, **({"repeats": repeats} if plan == "adaptive" else {}))
        return made, next(made)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def run_ranking(
    judge: GenerativeJudge,
    prompts: Sequence[Candidates],
    out: Path,
    *,
    plan: str,
    budget: int | None,
    num_votes: int,
    seed: int,
    command: str = "",
) -> dict[str, Any]:
    """Rank all prompts to ``out/rankings.jsonl`` and ``out/report.json``; returns the report.

    Every match is kept with its votes in ``out/matches.jsonl`` when its round is judged: the same command continues a killed
    run, and asks again where the judge failed to answer. Where best responses are known the report has the share of prompts
    whose single first place is one of them; first places that are shared are not right. Raises ConfigError, and
    EndpointError where nothing answers.
    """
    for one in prompts:
        _begun(plan, len(one.responses), budget, True)
    identity = {**judge.identity, "data": _digest(prompts), "plan": plan, "budget": budget, "votes": num_votes, "seed": seed}
    games: list[Game] = []
    with AppendLog(out / "matches.jsonl", identity) as log, bar(f"rank: {plan}", len(prompts)) as advance:
        known = {_key(row): [vote_of(vote) for vote in row["votes"]] for row in log.rows}
        known = {key: votes for key, votes in known.items() if not num_failed(votes)}
        if not known:
            judge.check()
        for start in range(0, len(prompts), CHUNK):
            own_seed = int(hashlib.sha256(f"{seed} {start}".encode()).hexdigest()[:8], 16)

            def found(n: int, match: Match, nth: int, start: int = start) -> Judgment | None:
                votes = known.get((start + n, match, nth))
                return None if votes is None else reduce_votes("", votes)

            def heard(n: int, match: Match, nth: int, judged: Judgment, start: int = start) -> None:
                votes = [vote_row(vote) for vote in judged.votes]
                log.append({"row": start + n, "first": match[0], "second": match[1], "nth": nth, "votes": votes})

            of, rules = prompts[start : start + CHUNK], {"plan": plan, "budget": budget, "num_votes": num_votes}
            games += play_many(judge, of, seed=own_seed, found=found, heard=heard, **rules)  # type: ignore[arg-type]
            advance(len(of))
    rows = [_row(n, prompt, game.ranking) for n, (prompt, game) in enumerate(zip(prompts, games, strict=True))]
    write_atomic(out / "rankings.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    votes = [vote for game in games for _, judged in game.judged for vote in judged.votes]
    report = {"plan": plan, "budget": budget, "votes": num_votes, "judge": judge.spec, "command": command}
    report |= {
        "statuses": dict(Counter(vote.verdict.status.value for vote in votes)),
        "commit": commit(),
        **_score(prompts, rows),
    }
    write_atomic(out / "report.json", json.dumps(report, indent=1) + "\n")
    return report


def _key(row: Mapping[str, Any]) -> tuple[int, Match, int]:
    return row["row"], (row["first"], row["second"]), row["nth"]


def _digest(prompts: Sequence[Candidates]) -> str:
    digest = hashlib.sha256()
    for one in prompts:
        images = [hashlib.sha256(image).hexdigest() for image in one.images]
        digest.update(json.dumps([one.question, *one.responses, images]).encode())
    return digest.hexdigest()[:16]


def _row(number: int, prompt: Candidates, ranking: Ranking) -> dict[str, Any]:
    counts = {"num_matches": ranking.num_matches, "undecided": ranking.undecided}
    return {
        "row": number,
        "id": prompt.prompt_id,
        "best": ranking.best,
        "tiers": [list(tier) for tier in ranking.tiers],
        **counts,
    }


def _score(prompts: Sequence[Candidates], rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    matches = sum(row["num_matches"] for row in rows)
    told: dict[str, Any] = {
        "num_prompts": len(rows),
        "matches_per_prompt": matches / len(rows),
        "undecided_rate": sum(row["undecided"] for row in rows) / matches,
        "without_one_best": sum(row["best"] is None for row in rows),
    }
    groups: dict[str, list[float]] = defaultdict(list)
    for prompt, row in zip(prompts, rows, strict=True):
        if prompt.best:
            groups[prompt.group].append(float(row["best"] in prompt.best))
    if groups:
        told["best_found"] = _found_cell([score for own in groups.values() for score in own])
        told["groups"] = {name: _found_cell(own) for name, own in sorted(groups.items())}
    return told


def _found_cell(scores: Sequence[float]) -> dict[str, Any]:
    return {"n": len(scores), "accuracy": sum(scores) / len(scores), "interval": list(mean_interval(scores))}
