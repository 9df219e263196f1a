"""Whether an answer of a policy is right, where that is known without a judge: to be set beside what the judge pays."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rewardlab.data.texts import words_of
from rewardlab.rewards.verifiable.extraction import Contract
from rewardlab.rewards.verifiable.rules import Compare, Domain, Problem, verify
from rewardlab.rewards.verified import truth_in
from rewardlab.types import PreferencePair

Rightness = Callable[[PreferencePair, str], bool | None]
"""(question, answer) -> whether it is right; None where that is not known."""


def exactly(pair: PreferencePair, answer: str) -> bool | None:
    """Return whether an answer has the words of the preferred response, which is taken to be the only right one; None for a
    pair without a label."""
    return None if pair.preferred is None else words_of(answer) == words_of(pair.responses[pair.preferred])


def by_rules(verifiers: Mapping[str, Compare], contract: Contract) -> Rightness:
    """Return what knows the pairs of a category that has a rule (math, number, choice, ...), the final answer of the preferred
    response being the truth. An answer that the rule cannot read is not right."""

    def rightness(pair: PreferencePair, answer: str) -> bool | None:
        if pair.preferred is None or pair.category not in verifiers:
            return None
        truth = truth_in(pair.responses[pair.preferred], contract)
        return verify(Problem(Domain(pair.category), pair.question, truth, contract), answer, verifiers).score == 1

    return rightness
