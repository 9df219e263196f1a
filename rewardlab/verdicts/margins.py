"""Margins: the log-odds that one response beats another, read from a judge and freed of the order they were shown in.

Pairwise-RL (arXiv 2504.04950) has a generative judge compare two responses and takes the probability of its verdict, asked in
both orders, for the reward. Its full text was not at hand: that both orders are asked is confirmed by Seed1.5-VL (arXiv
2505.07062, section 4.2), which uses it; *how* the two are combined is not. ``mean`` below is the obvious reading; ``logit``,
the restricted softmax, coverage and the temperature are this project's own derivations. What a margin is worth as a reward is
in ``rewards/pairwise.py``.

Everything is said in *margins*: the log-odds that a response wins, ``logit p``. A margin of the response shown FIRST comes out
of the judge; :func:`both_orders` makes of two of them one margin for response 0, which changes its sign when the responses are
exchanged. Margins are never clamped.

Shapes: ``N`` judge calls, ``V`` vocabulary, ``B`` pairs, ``K`` rationales, ``G`` responses of a group.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

LEAST_COVERAGE = 0.5  # below it the model was about to write something other than a verdict
TAU_BOUNDS = (0.01, 100.0)


def verdict_margins(logits_NV: Tensor, first: Sequence[int], second: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return ([N] margin of the response shown first, [N] coverage 0..1) at the verdict position.

    ``first`` and ``second`` are the ids of all tokens that spell each verdict (a leading space makes another token). The margin
    is z_first - z_second with z the logsumexp over the tokens of a verdict, so that sigmoid(margin) is the softmax restricted
    to verdicts; coverage is the probability all verdict tokens have together. A row of little coverage has no verdict: see
    :func:`readable`. Raise ValueError for an empty or shared set of tokens.
    """
    if not first or not second or set(first) & set(second):
        raise ValueError(f"each verdict needs tokens of its own, got {list(first)} and {list(second)}")
    logits_NV = logits_NV.double()
    z_first_N, z_second_N = logits_NV[:, list(first)].logsumexp(1), logits_NV[:, list(second)].logsumexp(1)
    coverage_N = (torch.logaddexp(z_first_N, z_second_N) - logits_NV.logsumexp(1)).exp().clamp(max=1)
    return z_first_N - z_second_N, coverage_N


def readable(coverage_N: Tensor, least: float = LEAST_COVERAGE) -> Tensor:
    """Return [N] whether the model was about to give a verdict at all. What is not readable is counted and never a
    probability."""
    return coverage_N >= least


def over_rationales(margins_BK: Tensor, readable_BK: Tensor) -> Tensor:
    """Return [B] margin of the mean probability over the readable rationales of each prompt; nan where none is.

    The mean is taken of probabilities, p = mean_k sigmoid(m_k): each rationale is one draw of the judge's reasoning. nan, not
    0, because 0 would be a coin flip. A bias of the verdict's logit goes through this mean, so that both orders combined by
    log-odds cancel it exactly only where each has a single rationale: with more, see :func:`over_rationale_pairs`.
    """
    keep_BK = torch.where(readable_BK, 0.0, -torch.inf)
    wins_B = (logsigmoid(margins_BK.double()) + keep_BK).logsumexp(1)
    loses_B = (logsigmoid(-margins_BK.double()) + keep_BK).logsumexp(1)
    return wins_B - loses_B  # -inf + inf is nan


def _mean(given_B: Tensor, swapped_B: Tensor) -> Tensor:
    wins_B = torch.logaddexp(logsigmoid(given_B), logsigmoid(-swapped_B))
    return wins_B - torch.logaddexp(logsigmoid(-given_B), logsigmoid(swapped_B))


COMBINATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "logit": lambda given_B, swapped_B: (given_B - swapped_B) / 2,
    "mean": _mean,
}


def both_orders(given_B: Tensor, swapped_B: Tensor, combination: str = "logit") -> Tensor:
    """Return [B] margin of response 0 from the margins of the response shown first, response 0 first (given) and second
    (swapped).

    ``logit``: half the difference. A position bias that adds a constant to the first verdict's logit is gone, exactly.
    ``mean``: log-odds of 1/2 [p(given) + 1 - p(swapped)]. Antisymmetric too, but the bias remains as a shrinkage towards 1/2.
    Identical inputs in both orders give 0, hence p = 1/2. An unreadable order (nan) leaves the pair unreadable.
    """
    return COMBINATIONS[combination](given_B.double(), swapped_B.double())


def over_rationale_pairs(given_BK: Tensor, swapped_BL: Tensor, readable_BK: Tensor, readable_BL: Tensor) -> Tensor:
    """Return [B] margin of response 0 from K rationales of one order and L of the other: the mean probability over all K L
    pairs of them, each pair combined by log-odds. nan where an order has no readable one.

    Unlike :func:`both_orders` of two means it cancels a bias of the verdict's logit exactly, whatever K and L.
    """
    margins_BKL = both_orders(given_BK[:, :, None], swapped_BL[:, None, :])
    return over_rationales(margins_BKL.flatten(1), (readable_BK[:, :, None] & readable_BL[:, None, :]).flatten(1))


class TemperatureFit(StrEnum):
    """What became of fitting a temperature. Only ``FITTED`` is a minimum; the others stand at a bound."""

    FITTED = "fitted"
    NO_SIGNAL = "no_signal"  # the margins lean to the wrong side, or nowhere: the flatter the better
    SEPARABLE = "separable"  # every margin names the right response: the sharper the better


@dataclass(frozen=True)
class Temperature:
    """``tau`` > 0 divides margins; it changes no verdict of a single margin and keeps p(a, b) + p(b, a) = 1. ``nll`` is that of
    the fit, in nats."""

    tau: float
    fit: TemperatureFit
    nll: float

    def __call__(self, margins_N: Tensor) -> Tensor:
        return margins_N / self.tau


def fit_temperature(margins_BK: Tensor, preferred_B: Tensor, bounds: tuple[float, float] = TAU_BOUNDS) -> Temperature:
    """Return the tau within ``bounds`` of least mean -log p(preferred) on held-out pairs, p = mean_k sigmoid(margin_k / tau).

    ``margins_BK`` [B, K] (or [B]) are those of response 0, of K pairs of rationales of the two orders; nan where there are
    fewer. ``preferred_B`` says which response is better (0 or 1). Of one margin each the loss is convex in 1 / tau; of
    several the least of 201 values, a fiftieth of a decade apart, says where the minimum is. There its derivative is bisected.
    There is no intercept: a combined margin is antisymmetric and an intercept would break that. Raise ValueError without pairs,
    for one without any margin (leave those out, and count them), and for an infinite margin.
    """
    margins_BK = margins_BK.double() if margins_BK.ndim == 2 else margins_BK.double()[:, None]
    if not margins_BK.numel() or margins_BK.isinf().any() or margins_BK.isnan().all(1).any():
        raise ValueError("a temperature needs finite margins, at least one")
    right_BK = margins_BK.nan_to_num() * (1 - 2 * preferred_B.double())[:, None]
    keep_BK = torch.where(margins_BK.isnan(), -torch.inf, 0.0)

    def log_shares(beta: float) -> Tensor:
        return logsigmoid(beta * right_BK) + keep_BK

    def loss(beta: float) -> float:
        return -(log_shares(beta).logsumexp(1) - keep_BK.exp().sum(1).log()).mean().item()

    def slope(beta: float) -> float:
        return -(log_shares(beta).softmax(1) * right_BK * (-beta * right_BK).sigmoid()).sum(1).mean().item()

    betas = torch.logspace(-math.log10(bounds[1]), -math.log10(bounds[0]), 201, dtype=torch.float64).tolist()
    least = min(range(len(betas)), key=lambda n: loss(betas[n]))
    low, high = betas[max(0, least - 1)], betas[min(len(betas) - 1, least + 1)]
    if least == 0 and slope(low) >= 0:
        return Temperature(1 / betas[0], TemperatureFit.NO_SIGNAL, loss(betas[0]))
    if slope(high) <= 0:  # to the bound, or as far as a loss above 0 can be told from 0
        return Temperature(1 / betas[-1], TemperatureFit.SEPARABLE, loss(betas[-1]))
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return Temperature(1 / low, TemperatureFit.FITTED, loss(low))
