"""The reward of a judge's rollout, composed in one place: R = w_f F + correct (1 + w_c C) + w_s swap + overlong.

F, correct and C are R1-Reward's (arXiv 2505.02835, section 4.2): format, verdict and whether the reasoning agrees with it. To
them come the agreement with the other order's rollouts (:mod:`rewardlab.rewards.swap`) and DAPO's length penalty (arXiv
2503.14476, eq. 13). The trainer, the verl plug-in and the audit all pay by :func:`compose`.

Adding a term: a :class:`RewardTerm` in a Python file of one's own, named in ``reward_terms`` of the config; or, inside the
package, a field of :class:`RewardWeights`, its line in :func:`compose`, its key in ``config/rl.py`` and its weight in
``training/rl.py`` (``judgment_reward_of``) and in the verl plug-in.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch

from rewardlab.errors import ConfigError
from rewardlab.extensions import extension_names, load_extension
from rewardlab.rl.selection import overlong_penalty
from rewardlab.types import Completion, Order

# Metrics of rewards that the watchdog and the pages read.
RESERVED = {"format", "accuracy", "consistency_of_correct", "invalid_frac", "swap_agreement", "overlong", "unscored_frac"}
TERMS = "rewardlab.reward_terms"  # entry points: name = "package.module:REWARD_TERM"


@dataclass(frozen=True)
class JudgedCompletion:
    """One completion to score: the question it answers, the order it was shown in, and which response is better."""

    completion: Completion
    question: str
    order: Order
    preferred: int


@dataclass(frozen=True)
class RewardTerm:
    """A term from outside: ``weight`` times ``score`` is added to the reward.

    ``score`` takes the completion and how its verdict was read. It returns a finite number; whatever else it returns or raises
    earns 0 and is counted as ``reward/<name>_failed_frac``.
    """

    name: str
    weight: float
    score: Callable[[JudgedCompletion, RewardParts], float]


@dataclass(frozen=True)
class RewardWeights:
    """``format`` and ``consistency`` as in R1-Reward, ``swap`` for naming the winner that the other order names, ``overlong``
    as (longest, margin) in tokens: up to -1 within ``margin`` of ``longest``; None: no penalty. ``terms`` are one's own."""

    format: float = 0.5
    consistency: float = 0.5
    swap: float = 0.0
    overlong: tuple[int, int] | None = None
    terms: tuple[RewardTerm, ...] = ()

    @staticmethod
    def complete(**weights: Any) -> RewardWeights:
        """Return the weights of a run. Raise ConfigError if one is not named: its term would pay 0."""
        if missing := [term.name for term in fields(RewardWeights) if term.name not in weights]:
            raise ConfigError(
                f"RewardWeights.{missing[0]}: nothing of the config is given to it, so its term would pay 0; name it where "
                "the weights of a run are made (training/rl.py, integrations/verl_judge_reward.py)"
            )
        return RewardWeights(**weights)


@dataclass(frozen=True)
class RewardParts:
    """What one rollout earned and why. ``consistency`` is -1 (reasoning contradicts the verdict), 0 (unknown) or +1 (agrees);
    ``status`` says how the verdict was read, see rewardlab.types.VerdictStatus; ``total`` is 0 until it is composed."""

    format: bool
    correct: bool
    consistency: int
    status: str
    total: float = 0.0
    swap_agreement: float = 0.0
    overlong: float = 0.0
    terms: dict[str, float | None] = field(default_factory=dict)  # of RewardTerms, unweighted; None: it failed


def judgment_reward(
    *, format_ok: bool, correct: bool, consistency: int, format_weight: float = 0.5, consistency_weight: float = 0.5
) -> float:
    """Return the reward of a judgment seen alone, in 0..2 with the default weights.

    ``correct``: the verdict names the preferred response. ``consistency`` is -1, 0 or +1; it multiplies the result, so it is
    worth nothing where the verdict is wrong. Correct and consistent 2.0 (1.5 in bad format); correct and unknown 1.5; correct
    and inconsistent 1.0; wrong 0.5 or 0. Raise ValueError for another consistency.
    """
    if consistency not in (-1, 0, 1):
        raise ValueError(f"consistency is -1, 0 or +1, got {consistency!r}")
    return format_weight * format_ok + correct * (1 + consistency_weight * consistency)


def compose(
    parts: Sequence[RewardParts],
    completions: Sequence[JudgedCompletion],
    weights: RewardWeights,
    *,
    agreements: Sequence[float] | None = None,
) -> list[RewardParts]:
    """Return the parts with their totals.

    ``agreements`` in 0..1 are needed where ``weights.swap`` is not 0; ValueError without. A rollout whose scoring failed
    (status ``error``) earns nothing but its agreement and its length penalty.
    """
    if weights.swap and agreements is None:
        raise ValueError("a swap weight needs the agreement of each rollout with the other order's")
    composed = []
    for n, (part, judged) in enumerate(zip(parts, completions, strict=True)):
        failed = part.status == "error"
        total = 0.0
        if not failed:
            total = judgment_reward(
                format_ok=part.format,
                correct=part.correct,
                consistency=part.consistency,
                format_weight=weights.format,
                consistency_weight=weights.consistency,
            )
        agreement = agreements[n] if agreements is not None and weights.swap else 0.0
        if weights.swap:
            total += weights.swap * agreement
        cost = 0.0
        if weights.overlong:
            longest, margin = weights.overlong
            lengths = torch.tensor([judged.completion.num_tokens])
            cost = float(overlong_penalty(lengths, longest=longest, margin=margin))
            total += cost
        terms = {term.name: None if failed else _score(term, judged, part) for term in weights.terms}
        total += sum(term.weight * (terms[term.name] or 0.0) for term in weights.terms)
        composed.append(replace(part, total=total, swap_agreement=agreement, overlong=cost, terms=terms))
    return composed


def _score(term: RewardTerm, judged: JudgedCompletion, part: RewardParts) -> float | None:
    try:
        value = float(term.score(judged, part))
    except (Exception, SystemExit):  # the boundary: another's code may fail in any way, and then pays nothing
        return None
    return value if math.isfinite(value) else None


def load_terms(names: Sequence[str]) -> tuple[RewardTerm, ...]:
    """Return the terms of Python files with a ``REWARD_TERM``, or of entry points of ``rewardlab.reward_terms``.

    Raise ConfigError for one that is not there, has the name of another metric of rewards, or a weight that is no number.
    """
    terms: list[RewardTerm] = []
    for name in names:
        try:
            term = load_extension(name, RewardTerm, attribute="REWARD_TERM", group=TERMS)
        except ConfigError as error:
            raise ConfigError(f"reward_terms: {error}") from error
        if term is None:
            installed = ", ".join(extension_names(TERMS)) or "none is installed"
            raise ConfigError(
                f"reward_terms: unknown {name!r}; expected a Python file with a REWARD_TERM, or one of: {installed}"
            )
        if term.name in {*RESERVED, *(other.name for other in terms)}:
            raise ConfigError(f"reward_terms: {name}: the name {term.name!r} is taken; each term needs one of its own")
        if not isinstance(term.name, str) or not re.fullmatch(r"[A-Za-z]\w*", term.name):
            raise ConfigError(f"reward_terms: {name}: its name is {term.name!r}; expected letters, digits and underscores")
        if isinstance(term.weight, bool) or not isinstance(term.weight, int | float) or not math.isfinite(term.weight):
            raise ConfigError(f"reward_terms: {name}: its weight is {term.weight!r}; expected a finite number")
        if not callable(term.score):
            raise ConfigError(
                f"reward_terms: {name}: its score is {term.score!r}; expected a function of a completion and its parts"
            )
        terms.append(term)
    return tuple(terms)


def winner_of(parts: RewardParts, preferred: int) -> int | None:
    """Return the response a rollout named, 0 or 1; None where no verdict was read."""
    if parts.correct:
        return preferred
    return 1 - preferred if parts.status == "ok" else None
