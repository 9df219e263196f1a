"""Whether an answer of a policy is right, where that is known without a judge: to be set beside what the judge pays."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rewardlab.rewards.verifiable.extraction import AnswerStatus, Contract
from rewardlab.rewards.verifiable.rules import Compare, Domain, Problem, verify
from rewardlab.rewards.verified import truth_in
from rewardlab.types import PreferencePair

Rightness = Callable[[PreferencePair, str], bool | None]
"""(question, answer) -> whether it is right; None where that is not known."""


def exactly(pair: PreferencePair, answer: str) -> bool | None:
    """Return whether an answer is the preferred response, which is taken to be the only right one, but for case, blanks and a
    full stop at the end; None for a pair without a label."""
    return None if pair.preferred is None else plain(answer) == plain(pair.responses[pair.preferred])


def plain(text: str) -> str:
    """Return a text in lower case, with single blanks and without a full stop at its end."""
    return " ".join(text.casefold().split()).removesuffix(".")


def by_rules(verifiers: Mapping[str, Compare], contract: Contract) -> Rightness:
    """Return what knows the pairs of a category that has a rule (math, number, choice, ...), the final answer of the preferred
    response being the truth. Of an answer that the rule cannot read, and of one that it pays in part, nothing is known."""

    def rightness(pair: PreferencePair, answer: str) -> bool | None:
        if pair.preferred is None or pair.category not in verifiers:
            return None
        truth = truth_in(pair.responses[pair.preferred], contract)
        verified = verify(Problem(Domain(pair.category), pair.question, truth, contract), answer, verifiers)
        if verified.status is not AnswerStatus.OK or 0 < verified.score < 1:
            return None
        return verified.score == 1

    return rightness
