"""Which reward a prompt gets: a rule where the truth can be checked, else a generative judge against a reference.

In the order of how hard they are to exploit (arXiv 2503.22230): a verifier of its domain (RTV), a judge that
compares with the ground truth, a judge that compares with the best of N samples. All of them pay 0..1, so that one critic
serves the mixture, and a response that breaks the format earns 0 whatever it says (Seed1.5-VL, 2505.07062).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from rewardlab.errors import DataError
from rewardlab.rewards.verifiable.code import CodeVerifier
from rewardlab.rewards.verifiable.extraction import AnswerStatus, Contract, place, solution_of
from rewardlab.rewards.verifiable.mathematics import MathVerifier
from rewardlab.rewards.verifiable.rules import PLACES, RULES, Compare, Domain, Problem, verify
from rewardlab.types import Completion, FinishReason


class Route(StrEnum):
    """Who decides the reward of a prompt's responses."""

    VERIFIER = "verifier"
    JUDGE_TRUTH = "judge_truth"
    JUDGE_BEST = "judge_best"


@dataclass(frozen=True)
class Prompt:
    """A question of some domain. ``truth`` is its known answer, ``best`` the best of N earlier samples; None: unknown.
    ``images`` are encoded files. ``contract`` is the place of a verifiable answer; ``thinking`` whether responses open with
    ``<think>...</think>``.
    """

    prompt_id: str
    domain: str
    question: str
    truth: str | None = None
    best: str | None = None
    images: tuple[bytes, ...] = ()
    contract: Contract = Contract.BOXED
    thinking: bool = True


@dataclass(frozen=True)
class JudgeScore:
    """A judge's probability (0..1, over both orders) that the response beats the reference; its status where it has none."""

    probability: float
    status: AnswerStatus = AnswerStatus.OK


@cache
def all_verifiers() -> dict[str, Compare]:
    """Return a rule for every domain, the same ones for all of a process: those for mathematics and programs have processes,
    which start when they are needed."""
    return {**RULES, Domain.MATH: MathVerifier().compare, Domain.CODE: CodeVerifier().compare}


def check_truth(problem: Problem, verifiers: Mapping[str, Compare], where: str, cure: str = "correct it") -> None:
    """Raise DataError, with a ``cure``, if the rule of a problem cannot read its truth, or cannot run here."""
    rule, has_place = verifiers[problem.domain], problem.domain not in PLACES
    status = verify(problem, place(problem.truth, problem.contract), verifiers) if has_place else None
    if status is not None and status.score == 1:
        return
    reason = f"it is no answer of its own ({status.status.value})" if status else ""
    try:
        rule(problem, problem.truth.strip() if has_place else "0")
    except Exception as error:  # the boundary: whatever a rule does with somebody's text
        reason = str(error) or type(error).__name__
    if reason:
        raise DataError(
            f"{where} ({problem.domain}): its rule cannot read the truth {problem.truth[:80]!r}: {reason}; {cure}, or "
            "change its category"
        )


PairJudge = Callable[[Prompt, str, str], JudgeScore]
"""(prompt, the response's solution, reference) -> score; 0.5 is parity with the reference."""


@dataclass(frozen=True)
class HybridReward:
    """``score`` in 0..1, above 0 only where ``status`` is OK; ``extracted`` is the answer a verifier read."""

    score: float
    status: AnswerStatus
    route: Route
    extracted: str = ""


def route_of(prompt: Prompt, verifiable: Collection[str]) -> Route:
    """Return the first reward that the prompt qualifies for; ``verifiable`` are the domains with a verifier. Raise DataError
    for a prompt with neither verifier nor reference."""
    if prompt.truth is not None and prompt.truth.strip():
        return Route.VERIFIER if prompt.domain in verifiable else Route.JUDGE_TRUTH
    if prompt.best is not None and prompt.best.strip():
        return Route.JUDGE_BEST
    raise DataError(
        f"prompt {prompt.prompt_id!r} ({prompt.domain}) has neither a truth nor a best-of-N reference, so nothing can reward "
        "its responses; add one of them or drop the prompt"
    )


def hybrid_reward(
    prompt: Prompt, completion: Completion, *, verifiers: Mapping[str, Compare], judge: PairJudge | None
) -> HybridReward:
    """Return the reward of one completion, 0..1, decided by what follows the thinking. ``judge`` may be None if every prompt is
    verifiable. A failed or cut-off completion, bad format, and a judge that fails, raises or answers outside 0..1 earn 0 with
    their status. Raise DataError as :func:`route_of` does, and for a prompt that needs the missing judge.
    """
    route = route_of(prompt, verifiers)
    if route is not Route.VERIFIER and judge is None:
        raise DataError(f"prompt {prompt.prompt_id!r} ({prompt.domain}) has no verifier and needs a judge, but none is given")
    status = _UNFINISHED.get(completion.finish, AnswerStatus.OK)
    solution = solution_of(completion.text, thinking=prompt.thinking, opened=False)
    status = solution.status if status is AnswerStatus.OK else status
    if status is not AnswerStatus.OK:
        return HybridReward(0.0, status, route)
    if route is Route.VERIFIER:
        assert prompt.truth is not None
        problem = Problem(Domain(prompt.domain), prompt.question, prompt.truth, prompt.contract)
        verification = verify(problem, solution.text, verifiers)
        return HybridReward(verification.score, verification.status, route, verification.extracted)
    reference = prompt.truth if route is Route.JUDGE_TRUTH else prompt.best
    assert judge is not None
    assert reference is not None
    return HybridReward(*_judge_against(judge, prompt, solution.text, reference), route)


_UNFINISHED = {
    FinishReason.LENGTH: AnswerStatus.TRUNCATED,
    FinishReason.ERROR: AnswerStatus.ERROR,
    FinishReason.TIMEOUT: AnswerStatus.TIMEOUT,
}


def _judge_against(judge: PairJudge, prompt: Prompt, solution: str, reference: str) -> tuple[float, AnswerStatus]:
    if not solution:
        return 0.0, AnswerStatus.EMPTY
    try:
        score = judge(prompt, solution, reference)
    except Exception:  # the boundary: a broken judge must not pay, nor end a training run
        return 0.0, AnswerStatus.ERROR
    if score.status is not AnswerStatus.OK:
        return 0.0, score.status
    return (score.probability, AnswerStatus.OK) if 0 <= score.probability <= 1 else (0.0, AnswerStatus.ERROR)
