"""Rewards by rule for answers that a rule can check, by a judge for the others (arXiv 2503.22230, 2505.07062); and whether an
answer is right, for the metrics of policies, if that is known without a judge.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from rewardlab.data.pair_table import light_pairs
from rewardlab.errors import DataError
from rewardlab.metrics.running import Metric, Metrics
from rewardlab.rewards.pairwise import Anchors, PolicyReward
from rewardlab.rewards.verifiable.extraction import AnswerStatus, Contract, extract, place
from rewardlab.rewards.verifiable.hybrid import Prompt, Route, hybrid_reward, route_of
from rewardlab.rewards.verifiable.rules import Compare, Domain, Problem, verify
from rewardlab.types import Completion, FinishReason, PreferencePair


def truth_in(response: str, contract: Contract) -> str:
    """Return the final answer of a preferred response: the content of the place that ``contract`` names, else all of it."""
    solution = response.rpartition("</think>")[2].strip()
    answer = extract(solution, contract)
    return answer.text if answer.status is AnswerStatus.OK else solution


def truth_of(pair: PreferencePair, contract: Contract) -> str | None:
    """Return what a rule compares with: the pair's own ``truth``, else its preferred response's final answer; None without."""
    if pair.truth.strip() or pair.preferred is None:
        return pair.truth or None
    return truth_in(pair.responses[pair.preferred], contract)


class VerifiedReward:
    """Rewards pairs whose category has a verifier (math, number, choice, code, ...) by it, with :func:`truth_of` as the truth,
    and the others by ``judge`` against their anchor; both 0..1. ``contract`` names the place of a checkable
    answer, ``thinking`` whether responses must open with ``<think>...</think>``. An unreadable answer earns 0 and is counted by
    its status.
    """

    least: float | None = 0.0
    parity: float | None = 0.5

    def __init__(
        self, verifiers: Mapping[str, Compare], judge: PolicyReward | None, *, contract: Contract, thinking: bool
    ) -> None:
        self._verifiers, self.judge, self._contract, self._thinking = verifiers, judge, contract, thinking

    def _prompt(self, pair: PreferencePair) -> Prompt:
        truth = None if pair.preferred is None else pair.responses[pair.preferred]
        if pair.category in self._verifiers:
            truth = truth_of(pair, self._contract)
        best = None if truth is not None else "the anchor"  # each comparison gives the judge its anchor
        return Prompt(pair.pair_id, pair.category, pair.question, truth, best, pair.images, self._contract, self._thinking)

    def ruled(self, pairs: Sequence[PreferencePair]) -> frozenset[str]:
        """Return the ``pair_id`` of the pairs that a rule pays."""
        prompts = (self._prompt(pair) for _, pair in light_pairs(pairs))
        return frozenset(prompt.prompt_id for prompt in prompts if route_of(prompt, self._verifiers) is Route.VERIFIER)

    def check(self, pairs: Sequence[PreferencePair]) -> dict[str, int]:
        """Return how many pairs take which route. Raise DataError if some need a judge and there is none, or if a rule cannot
        read a truth."""
        prompts = [self._prompt(pair) for _, pair in light_pairs(pairs)]
        routes = [route_of(prompt, self._verifiers) for prompt in prompts]
        judged = sum(route is not Route.VERIFIER for route in routes)
        if judged and self.judge is None:
            raise DataError(
                f"{judged:,} of {len(pairs):,} pairs are of no category that a rule can check; expected a category among "
                f"{', '.join(sorted(self._verifiers))}, or a judge for them"
            )
        for pair, prompt, route in zip((pair for _, pair in light_pairs(pairs)), prompts, routes, strict=True):
            if route is Route.VERIFIER:
                self._check_truth(pair, prompt)
        return {route.value: routes.count(route) for route in Route}

    def _check_truth(self, pair: PreferencePair, prompt: Prompt) -> None:
        """Raise DataError if the rule cannot read the truth, or does not accept the preferred response."""
        truth = prompt.truth or ""
        problem = Problem(Domain(prompt.domain), prompt.question, truth, self._contract)
        where = f"pair {prompt.prompt_id!r} ({prompt.domain})"
        if not pair.truth.strip():
            result = verify(problem, place(truth, self._contract), self._verifiers)
            fault, cure = (
                f"its preferred response ends in {truth[:80]!r}",
                f"mark the final answer as {place('...', self._contract)}",
            )
        else:
            try:
                self._verifiers[prompt.domain](problem, "0")
            except ValueError as error:
                raise DataError(f"{where}: its truth {truth[:80]!r} cannot be read: {error}") from error
            if pair.preferred is None:
                return
            result = verify(problem, pair.responses[pair.preferred].rpartition("</think>")[2].strip(), self._verifiers)
            fault, cure = "its preferred response", f"correct the truth {truth[:80]!r}, or leave `preferred` out"
        if result.score != 1:
            raise DataError(
                f"{where}: {fault}, which the rule of its own category does not accept ({result.status.value}); {cure}, or "
                "give the pair another category"
            )

    def __call__(
        self, questions: Sequence[PreferencePair], responses: Sequence[str], anchors: Anchors, step: int
    ) -> tuple[list[float | None], Metrics]:
        rewards: list[float | None] = [None] * len(questions)
        counts: Counter[AnswerStatus] = Counter()
        prompts = [self._prompt(pair) for pair in questions]
        ruled = [n for n, prompt in enumerate(prompts) if route_of(prompt, self._verifiers) is Route.VERIFIER]
        for n in ruled:
            completion = Completion(responses[n], FinishReason.STOP)
            result = hybrid_reward(prompts[n], completion, verifiers=self._verifiers, judge=None)
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
    """Return a function that knows the pairs of a category with a rule; the preferred response's final answer is the truth.
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
