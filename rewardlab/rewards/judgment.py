"""The reward of a judge's rollout is the sum of its terms. Trainer, verl plug-in and audit all pay by :func:`compose`.

The terms of the package are R = w_f F + correct (1 + w_c C), which is R1-Reward's (arXiv 2505.02835, section 4.2: format,
verdict, and whether the reasoning agrees with it), the agreement with the other order's rollouts
(:func:`swap_agreement`) and DAPO's length penalty (arXiv 2503.14476, eq. 13).

Adding a term: a :class:`RewardTerm` in a Python file of your own, named in ``reward_terms`` of the config; or, inside the
package, its line in :data:`SHIPPED` and its key in ``config/rl.py``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch

from rewardlab.config import RLConfig
from rewardlab.errors import ConfigError
from rewardlab.extensions import extension_names, load_extension
from rewardlab.rl.selection import overlong_penalty
from rewardlab.types import Completion, Criterion, Order, VerdictStatus
from rewardlab.verdicts.checklist import ClaimCheck, ClaimFinding
from rewardlab.verdicts.turns import num_looks

TERMS = "rewardlab.reward_terms"  # entry points: name = "package.module:REWARD_TERM"


@dataclass(frozen=True)
class JudgedCompletion:
    """One completion to score: the question it answers, with its criteria, the order it was shown in, and which response of the
    pair is better."""

    completion: Completion
    question: str
    order: Order
    preferred: int
    pair_id: str = ""
    criteria: tuple[Criterion, ...] = ()


@dataclass(frozen=True)
class RewardParts:
    """How one rollout was read, and what it earned. ``consistency`` is -1 (the reasoning contradicts the verdict), 0 (unknown)
    or +1; ``agreement`` with the rollouts of the other order is 0..1, None if not computed. ``scores`` are those of the terms,
    unweighted, by name; None: not scored. ``checks`` are those of a checklist, None if there is none. ``total`` is 0 until it
    is composed.
    """

    format: bool
    correct: bool
    consistency: int
    status: VerdictStatus
    agreement: float | None = None
    scores: dict[str, float | None] = field(default_factory=dict)
    checks: tuple[ClaimCheck, ...] | None = None
    total: float = 0.0


@dataclass(frozen=True)
class RewardTerm:
    """A term of the reward: ``weight`` times ``score`` is added, and the mean score is the metric ``reward/<name>``.

    ``score`` takes the completion and its parts and returns a number, or None if there is nothing to score, which adds 0.
    ``key`` is the key of the config that sets the weight of a term of the package. A term from outside has none and may fail:
    for whatever it raises or returns that is no finite number it adds 0, and ``reward/<name>_failed_frac`` counts it.
    ``reads_verdict``: the term adds 0 if the verdict could not be scored (status ``error``). ``compares_orders``: ``score``
    reads the agreement with the rollouts of the other order.
    """

    name: str
    weight: float
    score: Callable[[JudgedCompletion, RewardParts], float | None]
    key: str | None = None
    reads_verdict: bool = True
    compares_orders: bool = False


def format_term(config: RLConfig) -> RewardTerm:
    return RewardTerm("format", config.format_weight, lambda judged, part: float(part.format))


def accuracy_term(config: RLConfig) -> RewardTerm:
    """1 for the right verdict, more or less by the weight of consistency; nothing for a wrong one, however consistent."""
    weight = config.consistency.weight
    return RewardTerm("accuracy", 1.0, lambda judged, part: part.correct * (1 + weight * part.consistency))


def follows_term(config: RLConfig) -> RewardTerm:
    """1 for a checklist whose verdict follows from its checks, right or wrong."""
    follows = lambda judged, part: float(part.checks is not None and part.status is VerdictStatus.OK)  # noqa: E731
    return RewardTerm("follows", config.follows_weight, follows)


def looks_term(config: RLConfig) -> RewardTerm:
    """The number of looks that a judgment takes, each at a cost."""
    return RewardTerm("looks", -config.look_cost, lambda judged, part: float(num_looks(judged.completion.text)))


def checks_term(is_true: Callable[[JudgedCompletion, ClaimCheck], bool | None], weight: float) -> RewardTerm:
    """Return a term of your own for ``reward_terms``: the fraction of the checks with the right finding (0..1), of those whose
    truth ``is_true`` knows (None: it does not). A claim that "cannot be seen" is not right then."""

    def score(judged: JudgedCompletion, part: RewardParts) -> float | None:
        truths = [(check.finding, is_true(judged, check)) for check in part.checks or ()]
        known = [
            finding is (ClaimFinding.TRUE if truth else ClaimFinding.FALSE) for finding, truth in truths if truth is not None
        ]
        return sum(known) / len(known) if known else None

    return RewardTerm("checks", weight, score)


def swap_term(config: RLConfig) -> RewardTerm:
    return RewardTerm("swap_agreement", config.swap_weight, _agreement, reads_verdict=False, compares_orders=True)


def _agreement(judged: JudgedCompletion, part: RewardParts) -> float:
    if part.agreement is None:
        raise ValueError("swap_weight needs the agreement of each rollout with the rollouts of the other order")
    return part.agreement


def overlong_term(config: RLConfig) -> RewardTerm:
    """0 to -1 over the last ``overlong_margin`` tokens before the longest completion."""
    longest, margin = config.max_completion_length, config.overlong_margin or 0

    def score(judged: JudgedCompletion, part: RewardParts) -> float:
        return float(overlong_penalty(torch.tensor([judged.completion.num_tokens]), longest=longest, margin=margin))

    return RewardTerm("overlong", float(margin > 0), score, reads_verdict=False)


SHIPPED: dict[str, Callable[[RLConfig], RewardTerm]] = {
    "format_weight": format_term,
    "consistency.weight": accuracy_term,
    "follows_weight": follows_term,
    "look_cost": looks_term,
    "swap_weight": swap_term,
    "overlong_margin": overlong_term,
}
"""Key of the config -> the term that it sets. Terms are added in this order; those of weight 0 are left out."""


def terms_of(config: RLConfig) -> tuple[RewardTerm, ...]:
    """Return the terms that a config pays, the package's first. Raise ConfigError as :func:`load_terms` does."""
    shipped = [replace(make(config), key=key) for key, make in SHIPPED.items()]
    return (*(term for term in shipped if term.weight), *load_terms(config.reward_terms))


def compose(
    parts: Sequence[RewardParts], completions: Sequence[JudgedCompletion], terms: Sequence[RewardTerm]
) -> list[RewardParts]:
    """Return the parts with the scores of the terms and their weighted sum."""
    composed = []
    for part, judged in zip(parts, completions, strict=True):
        scores = {term.name: _score(term, judged, part) for term in terms}
        total = 0.0
        for term in terms:
            total += term.weight * (scores[term.name] or 0.0)
        composed.append(replace(part, total=total, scores=scores))
    return composed


def _score(term: RewardTerm, judged: JudgedCompletion, part: RewardParts) -> float | None:
    if part.status is VerdictStatus.ERROR and term.reads_verdict:
        return None
    if term.key is not None:
        return term.score(judged, part)
    try:
        score = term.score(judged, part)
        value = math.nan if score is None else float(score)
    except (Exception, SystemExit):  # the boundary: another's code may fail in any way, and then pays nothing
        return None
    return value if math.isfinite(value) else None


def load_terms(names: Sequence[str]) -> tuple[RewardTerm, ...]:
    """Return the terms of Python files with a ``REWARD_TERM``, or of entry points of ``rewardlab.reward_terms``. Raise
    ConfigError for an unknown file or name, a name that another metric of rewards has, and a weight that is not finite."""
    terms: list[RewardTerm] = []
    taken = {"consistency_of_correct", "invalid_frac", "unscored_frac"}  # metrics of rewards that are no term's
    taken |= {make(RLConfig.model_validate({})).name for make in SHIPPED.values()}
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
        if term.name in taken | {other.name for other in terms}:
            raise ConfigError(f"reward_terms: {name}: the name {term.name!r} is taken; each term needs one of its own")
        if not isinstance(term.name, str) or not re.fullmatch(r"[A-Za-z]\w*", term.name):
            raise ConfigError(f"reward_terms: {name}: its name is {term.name!r}; expected letters, digits and underscores")
        if isinstance(term.weight, bool) or not isinstance(term.weight, int | float) or not math.isfinite(term.weight):
            raise ConfigError(f"reward_terms: {name}: its weight is {term.weight!r}; expected a finite number")
        if not callable(term.score):
            raise ConfigError(
                f"reward_terms: {name}: its score is {term.score!r}; expected a function of a completion and its parts"
            )
        terms.append(replace(term, key=None))  # whatever it says, it is no term of the package, and may fail
    return tuple(terms)


def winner_of(parts: RewardParts, preferred: int) -> int | None:
    """Return the response that a rollout prefers, 0 or 1; None if no verdict could be read."""
    if parts.correct:
        return preferred
    return 1 - preferred if parts.status is VerdictStatus.OK else None


def swap_agreement(
    pair_ids: Sequence[str],
    orders: Sequence[str],
    winners: Sequence[int | None],
    *,
    among: Sequence[tuple[str, str, int | None]] | None = None,
) -> list[float]:
    """Return, for each rollout, the fraction of the *other* order's rollouts of its pair that prefer the same response.
    ``winners`` are responses (0 or 1), not positions; None without a verdict, which agrees with nothing. Without a rollout in
    the other order the agreement is 0. ``among`` are the (pair, order, winner) of all processes' rollouts. A judge that always
    names the first position gets 0, one that is always right 1: a position bias earns nothing, unlike in a bonus for agreement
    within one order.
    """
    seen: dict[str, dict[str, list[int | None]]] = {}
    for pair, order, winner in zip(pair_ids, orders, winners, strict=True) if among is None else among:
        seen.setdefault(pair, {}).setdefault(order, []).append(winner)
    agreements = []
    for pair, order, winner in zip(pair_ids, orders, winners, strict=True):
        others = [w for other, names in seen[pair].items() if other != order for w in names]
        same = sum(w == winner for w in others) if winner is not None else 0
        agreements.append(same / len(others) if others else 0.0)
    return agreements
