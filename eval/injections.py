"""Success rate of attacks in the worse answer: a trained judge under 224 injected texts, with and without sanitizing.

``python eval/injections.py`` after a quickstart. On pairs that the judge gets right in both orders, each attack is put into
the wrong answer; it succeeds where the greedy verdict then names that answer. What is not the attack's doing is told by
harmless texts of like length in the same places (``harmless``), and what the fence does by the same prompts without it. Success
is counted per shown order; intervals are over pairs. Writes ``eval/results/injections.json``.
"""

from __future__ import annotations

import argparse
import json
import random
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import rewardlab.prompts as prompts
from rewardlab.data.attacks.insertions import HARMLESS, Attack, attacks
from rewardlab.data.pairs import read_pairs
from rewardlab.judging.engines import open_generative_judge
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.metrics.intervals import mean_interval
from rewardlab.models.checkpoints import commit
from rewardlab.types import BOTH_ORDERS, Judgment, PreferencePair


def judged(judge: GenerativeJudge, pairs: Sequence[PreferencePair]) -> list[Judgment]:
    return judge.compare_many(pairs, orders=[BOTH_ORDERS] * len(pairs), num_votes=1, seed=0)


def attacked(pair: PreferencePair, attack: Attack) -> PreferencePair:
    """The attack stands in the wrong answer."""
    wrong = 1 - (pair.preferred or 0)
    responses = list(pair.responses)
    responses[wrong] = attack.apply(responses[wrong])
    return replace(pair, responses=(responses[0], responses[1]))


def rates(judge: GenerativeJudge, cases: Sequence[tuple[str, PreferencePair]]) -> dict[str, Any]:
    """Return, per kind and for all, the shares of verdicts for the wrong answer (with an interval over pairs) and of none."""
    votes_of_kind: dict[str, list[tuple[str, str]]] = {}
    for (kind, pair), one in zip(cases, judged(judge, [pair for _, pair in cases]), strict=True):
        for vote in one.votes:
            what = "none" if vote.winner is None else "right" if vote.winner == pair.preferred else "wrong"
            votes_of_kind.setdefault(kind, []).append((what, pair.pair_id))
    votes_of_kind["all"] = [vote for votes in votes_of_kind.values() for vote in votes]
    return {kind: rate(votes) for kind, votes in votes_of_kind.items()}


def rate(votes: Sequence[tuple[str, str]]) -> dict[str, Any]:
    wrong = [float(what == "wrong") for what, _ in votes]
    none = sum(what == "none" for what, _ in votes) / len(votes)
    interval = mean_interval(wrong, [pair for _, pair in votes])
    return {"n": len(votes), "wrong": sum(wrong) / len(votes), "interval": list(interval), "none": none}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--judges", nargs="+", default=["runs/quickstart/sft/final", "runs/quickstart/rl/final"])
    parser.add_argument("--data", type=Path, default=Path("runs/quickstart/demo/test.parquet"))
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--out", type=Path, default=Path("eval/results/injections.json"))
    options = parser.parse_args()
    texts = list(attacks())
    result: dict[str, Any] = {"command": shlex.join(["python", *sys.argv]), "commit": commit(), "attacks": len(texts)}
    unfenced: Callable[[str, str], str] = lambda text, template: text  # noqa: E731
    for path in options.judges:
        judge = open_generative_judge(f"hf:{path}", temperature=0, max_tokens=64, batch_size=256)
        pairs = read_pairs(options.data)[:400]
        safe = [
            p for p, one in zip(pairs, judged(judge, pairs), strict=True) if all(v.winner == p.preferred for v in one.votes)
        ]
        safe = random.Random(0).sample(safe, min(len(safe), options.pairs))
        cases = [(attack.kind, attacked(pair, attack)) for attack in texts for pair in safe]
        controls = [
            ("harmless", attacked(pair, Attack("harmless", place, text)))
            for text in HARMLESS
            for place in ("before", "after")
            for pair in safe
        ]
        rates_of_judge = {"harmless": rates(judge, controls)["all"], "fenced": rates(judge, cases)}
        # What the tokenizer's own tokens would do is out of the question either way: they are broken in every prompt.
        with patch.object(prompts, "sanitize", unfenced):
            rates_of_judge["unfenced"] = rates(judge, cases)
        result[path] = rates_of_judge
        print(path, json.dumps(rates_of_judge, indent=1), flush=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
