"""The scores of a judge on held-out pairs: the columns of the method table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rewardlab.benchmarks.scores import verified_vote
from rewardlab.demo.server import check_consistency, favored_response
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.metrics.accuracy import Labeled, invalid_rate, micro, position_bias, swap_consistency
from rewardlab.prompts import Template
from rewardlab.rewards.consistency import consistency_prompt, read_consistency
from rewardlab.samplers.base import Sampler, SelfVerifying
from rewardlab.samplers.hf import HFSampler
from rewardlab.types import BOTH_ORDERS, Choice, Judgment, PreferencePair, Vote
from rewardlab.verdicts.places import reasoning_of

VOTES = 15  # of a majority


@dataclass(frozen=True)
class Evaluator:
    """Judges pairs in both orders, with ``num_votes`` sampled judgments and a greedy one in each.

    An answer without a verdict is wrong. All judges share the seed of the samples. ``more`` is what a study also
    measures of sampled judgments.
    """

    processor: Any
    template: Template
    max_tokens: int
    num_votes: int
    seed: int
    more: Callable[[Sequence[Judgment], Sequence[PreferencePair]], dict[str, Any]] = lambda judgments, pairs: {}

    def judge(self, model: Any, *, verify: bool, temperature: float = 1.0) -> GenerativeJudge:
        """Return the judge of a model, which is put into evaluation mode. ``verify``: each judgment is verified and, if found
        wrong, revised (PAG)."""
        sampler: Sampler = HFSampler(model.eval(), self.processor, batch_size=512)
        return GenerativeJudge(
            SelfVerifying(sampler) if verify else sampler, self.template, max_tokens=self.max_tokens, temperature=temperature
        )

    def judgments(
        self, model: Any, pairs: Sequence[PreferencePair], num_votes: int, *, verify: bool = False, temperature: float = 1.0
    ) -> list[Judgment]:
        judge = self.judge(model, verify=verify, temperature=temperature)
        return judge.compare_many(pairs, orders=[BOTH_ORDERS] * len(pairs), num_votes=num_votes, seed=self.seed)

    def scores(
        self, model: Any, pairs: Sequence[PreferencePair], *, verify: bool = False, num_vote_pairs: int = 0
    ) -> dict[str, Any]:
        """Return a row of the table. With ``verify`` it scores the last judgments; ``revision`` has the first.

        ``vote_15``: accuracy of the majority of 15 judgments in one order, on the first ``num_vote_pairs`` pairs.
        """
        sampled = self.judgments(model, pairs, self.num_votes, verify=verify)
        greedy = self.judgments(model, pairs, 1, verify=verify, temperature=0.0)
        row = scores_of(sampled, greedy, pairs) | self.more(sampled, pairs)
        if verify:
            row["revision"] = revision_of(sampled, pairs, self.template.verdict_format)
        if num_vote_pairs:
            voted = pairs[:num_vote_pairs]
            judged = sampled if self.num_votes == VOTES else self.judgments(model, voted, VOTES, verify=verify)
            row["vote_15"] = micro(labeled(judged[:num_vote_pairs], voted))
        return row

    def greedy_accuracy(self, model: Any, pairs: Sequence[PreferencePair], *, verify: bool = False) -> float:
        """Return the fraction of pairs and orders whose greedy judgment is right."""
        return _accuracy(self.judgments(model, pairs, 1, verify=verify, temperature=0.0), pairs)


def labeled(judgments: Sequence[Judgment], pairs: Sequence[PreferencePair]) -> list[Labeled]:
    """Return judgments beside the labels of their pairs."""
    return [Labeled(judgment, int(pair.preferred or 0), "") for judgment, pair in zip(judgments, pairs, strict=True)]


def _votes(judgments: Sequence[Judgment], pairs: Sequence[PreferencePair]) -> list[tuple[Vote, int]]:
    return [(vote, item.preferred) for item in labeled(judgments, pairs) for vote in item.judgment.votes]


def _accuracy(judgments: Sequence[Judgment], pairs: Sequence[PreferencePair]) -> float:
    return float(np.mean([vote.winner == preferred for vote, preferred in _votes(judgments, pairs)]))


def scores_of(sampled: Sequence[Judgment], greedy: Sequence[Judgment], pairs: Sequence[PreferencePair]) -> dict[str, Any]:
    """Return a row of the table from a judge's votes. Greedy votes, one in each order, decide whether an order flips the
    winner: sampled ones also flip by chance. Raise ValueError without a pair."""
    if not pairs:
        raise ValueError("there is no pair to judge")
    items, firm, votes = labeled(sampled, pairs), labeled(greedy, pairs), _votes(sampled, pairs)
    right = [vote for vote, preferred in votes if vote.winner == preferred]
    sides = [favored_response(reasoning_of(vote.completion.text)) for vote in right]
    choices = [1 if vote.verdict.choice is Choice.FIRST else 2 for vote in right]
    winners_of = [[vote.winner for vote in item.judgment.votes] for item in firm]
    flipped = [len(set(winners)) == 2 for winners in winners_of if None not in winners]
    return {
        "num_votes": len(votes),
        "accuracy": len(right) / len(votes),
        "greedy_accuracy": _accuracy(greedy, pairs),
        "swap_consistency": swap_consistency(firm),
        "flipped": sum(flipped) / max(1, len(flipped)),
        "position_bias": position_bias(items),
        "consistent": sum(a == b for a, b in zip(sides, choices, strict=True)) / max(1, len(right)),
        "invalid": invalid_rate(items),
        "length": float(np.mean([vote.completion.num_tokens for vote, _ in votes])),
        "answers": [vote.completion.text for vote, _ in votes[:2]],
    }


def revision_of(judgments: Sequence[Judgment], pairs: Sequence[PreferencePair], verdict_format: str) -> dict[str, float]:
    """Return the effect of verification as fractions of all sampled judgments: right at first, right at last, right ones lost,
    wrong ones corrected (``mended``), and revised ones."""
    votes = [verified_vote(vote, preferred, verdict_format) for vote, preferred in _votes(judgments, pairs)]
    return {
        "first": float(np.mean([vote.first_right for vote in votes])),
        "last": float(np.mean([vote.last_right for vote in votes])),
        "lost": float(np.mean([vote.first_right and not vote.last_right for vote in votes])),
        "mended": float(np.mean([vote.last_right and not vote.first_right for vote in votes])),
        "revised": float(np.mean([vote.revised for vote in votes])),
    }


class LocalChecker:
    """The demonstration's consistency checker in this process, a :class:`rewardlab.rewards.scorer.ConsistencyJudge`."""

    rounds = 1

    async def score(self, question: str, reasoning: str, verdict: Choice) -> int:
        """Return 1 if the reasoning supports the verdict, -1 if it contradicts it, 0 if it takes no side."""
        return read_consistency(check_consistency(consistency_prompt(question, reasoning, verdict)))
