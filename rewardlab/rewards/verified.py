"""Rewards by rule for answers that a rule can check, by a judge for the others (arXiv 2503.22230, 2505.07062); and whether an
answer is right, for the metrics of policies, if that is known without a judge.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from rewardlab.data.pair_table import light_pairs
from rewardlab.errors import DataError
from rewardlab.metrics.running import Metric, Metrics
from rewardlab.reporting.progress import bar
from rewardlab.rewards.pairwise import Anchors, PolicyReward
from rewardlab.rewards.verifiable.extraction import AnswerStatus, Contract, extract, place
from rewardlab.rewards.verifiable.hybrid import HybridReward, Prompt, check_truth, hybrid_reward
from rewardlab.rewards.verifiable.rules import PLACES, Compare, Domain, Problem, verify
from rewardlab.rewards.verifiable.workers import NUM_WORKERS
from rewardlab.types import Completion, FinishReason, PreferencePair

CHUNK = 256  # pairs whose truths are checked at a time


def truth_in(response: str, contract: Contract) -> str:
    """Return the final answer of a preferred response: the content of the place that ``contract`` names, else all of it."""
    solution = response.rpartition("</think>")[2].strip()
    answer = extract(solution, contract)
    return answer.text if answer.status is AnswerStatus.OK else solution


def truth_of(pair: PreferencePair, contract: Contract) -> str | None:
    """Return what a rule compares responses with: the pair's own ``truth``, else the final answer of its preferred response;
    None without either. No response is the truth of a program or of constraints."""
    if pair.truth.strip():
        return pair.truth
    if pair.preferred is None or pair.category in PLACES:
        return None
    return truth_in(pair.responses[pair.preferred], contract)


def check_pair(pair: PreferencePair, verifiers: Mapping[str, Compare], contract: Contract) -> bool:
    """Return whether a rule pays for responses to a pair. Raise DataError if the rule cannot read the truth or cannot run here,
    if the truth is the pair's own and its preferred response earns nothing, and if the category of such a truth has no rule."""
    if pair.truth.strip() and pair.category not in verifiers:
        raise DataError(
            f"pair {pair.pair_id!r} has a truth, but no rule reads those of category {pair.category!r}; expected one of "
            f"{', '.join(sorted(verifiers))}; change the category, or clear the truth to have a judge pay"
        )
    truth = truth_of(pair, contract) if pair.category in verifiers else None
    if truth is None:
        return False
    problem, where = Problem(Domain(pair.category), pair.question, truth, contract), f"pair {pair.pair_id!r}"
    cure = "correct it" if pair.truth.strip() else f"mark the preferred response's final answer as {place('...', contract)}"
    check_truth(problem, verifiers, where, cure)
    if pair.truth.strip() and pair.preferred is not None:
        response = pair.responses[pair.preferred]
        has_place = pair.category not in PLACES
        answer = place(truth_in(response, contract), contract) if has_place else response.rpartition("</think>")[2].strip()
        result = verify(problem, answer, verifiers)
        if result.score == 0:
            raise DataError(
                f"{where} ({pair.category}): its preferred response earns 0 by its own truth {truth[:80]!r} "
                f"({result.status.value}); correct one of them, leave `preferred` out, or give the pair another category"
            )
    return True


def check_truths(
    pairs: Sequence[PreferencePair], verifiers: Mapping[str, Compare], contract: Contract, *, own_only: bool = False
) -> int:
    """Check all pairs, or those with a rule and a truth of their own, as :func:`check_pair` does; return for how many a rule
    pays."""
    ruled, light = 0, (pair for _, pair in light_pairs(pairs))
    with bar("truths", len(pairs)) as advance, ThreadPoolExecutor(NUM_WORKERS) as pool:
        while chunk := list(itertools.islice(light, CHUNK)):
            checked = [pair for pair in chunk if not own_only or (pair.truth.strip() and pair.category in verifiers)]
            ruled += sum(pool.map(lambda pair: check_pair(pair, verifiers, contract), checked))
            advance(len(chunk))
    return ruled


class VerifiedReward:
    """Rewards pairs whose category has a verifier (math, number, choice, code, ...) by it, with :func:`truth_of` as the truth,
    and the others by ``judge`` against their anchor; both 0..1. ``contract`` names the place of a checkable answer,
    ``thinking`` whether responses must open with ``<think>...</think>``. An unreadable answer earns 0 and is counted by its
    status.
    """

    least: float | None = 0.0
    parity: float | None = 0.5

    def __init__(
        self, verifiers: Mapping[str, Compare], judge: PolicyReward | None, *, contract: Contract, thinking: bool
    ) -> None:
        self._verifiers, self.judge, self._contract, self._thinking = verifiers, judge, contract, thinking

    def _prompt(self, pair: PreferencePair) -> Prompt | None:
        """Return the problem of a pair that a rule pays; None for one that the judge does."""
        truth = truth_of(pair, self._contract) if pair.category in self._verifiers else None
        if truth is None:
            return None
        return Prompt(
            pair.pair_id,
            pair.category,
            pair.question,
            truth,
            images=pair.images,
            contract=self._contract,
            thinking=self._thinking,
        )

    def ruled(self, pairs: Sequence[PreferencePair]) -> frozenset[str]:
        """Return the ``pair_id`` of the pairs that a rule pays."""
        return frozenset(pair.pair_id for _, pair in light_pairs(pairs) if self._prompt(pair) is not None)

    def check(self, pairs: Sequence[PreferencePair]) -> dict[str, int]:
        """Return how many pairs a rule and the judge pay. Raise DataError if some need a judge and there is none, and as
        :func:`check_pair` does."""
        ruled = check_truths(pairs, self._verifiers, self._contract)
        if ruled < len(pairs) and self.judge is None:
            raise DataError(
                f"{len(pairs) - ruled:,} of {len(pairs):,} pairs can be checked by no rule; expected a category among "
                f"{', '.join(sorted(self._verifiers))}, and a `truth` if it is {' or '.join(PLACES)}; or a judge for them"
            )
        return {"rule": ruled, "judge": len(pairs) - ruled}

    def __call__(
        self, questions: Sequence[PreferencePair], responses: Sequence[str], anchors: Anchors, step: int
    ) -> tuple[list[float | None], Metrics]:
        rewards: list[float | None] = [None] * len(questions)
        counts: Counter[AnswerStatus] = Counter()
        ruled = {n: prompt for n, pair in enumerate(questions) if (prompt := self._prompt(pair)) is not None}

        def pay(n: int) -> HybridReward:
            completion = Completion(responses[n], FinishReason.STOP)
            return hybrid_reward(ruled[n], completion, verifiers=self._verifiers, judge=None)

        with ThreadPoolExecutor(NUM_WORKERS) as pool:  # a batch of endless programs takes a program's limit per worker
            for n, result in zip(ruled, pool.map(pay, ruled), strict=True):
                rewards[n] = result.score
                counts[result.status] += 1
        metrics: Metrics = {
            f"verifier/{status.value}": Metric(counts[status] / max(1, len(ruled)), len(ruled)) for status in AnswerStatus
        }
        judged = [n for n in range(len(questions)) if rewards[n] is None]
        if judged and self.judge is not None:
            scores, judge_metrics = self.judge(
                [questions[n] for n in judged], [responses[n] for n in judged], [anchors[n] for n in judged], step
            )
            metrics = {**metrics, **judge_metrics}
            for n, reward in zip(judged, scores, strict=True):
                rewards[n] = reward
        return rewards, {**metrics, "verifier/share": Metric(len(ruled) / max(1, len(questions)), len(questions))}


Rightness = Callable[[PreferencePair, str], bool | None]
"""(question, answer) -> whether it is right; None where that is not known."""


def exactly(pair: PreferencePair, answer: str) -> bool | None:
    """Return whether an answer equals the preferred response, but for case, blanks and a final full stop; None without a
    label."""
    return None if pair.preferred is None else plain(answer) == plain(pair.responses[pair.preferred])


def plain(text: str) -> str:
    """Return a text in lower case, with single blanks and without a full stop at its end."""
    return " ".join(text.casefold().split()).removesuffix(".")


def by_rules(verifiers: Mapping[str, Compare], contract: Contract) -> Rightness:
    """Return a function that knows the pairs of a category with a rule and with :func:`truth_of`.
    Unreadable answers, and those with partial credit, are unknown."""

    def rightness(pair: PreferencePair, answer: str) -> bool | None:
        truth = truth_of(pair, contract)
        if truth is None or pair.category not in verifiers:
            return None
        verified = verify(Problem(Domain(pair.category), pair.question, truth, contract), answer, verifiers)
        if verified.status is not AnswerStatus.OK or 0 < verified.score < 1:
            return None
        return verified.score == 1

    return rightness
