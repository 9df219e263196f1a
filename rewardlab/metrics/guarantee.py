"""A threshold on a judge's confidence, above which at most a given fraction of its verdicts is wrong. Pure; numpy only.

Selective evaluation by fixed-sequence testing (Jung, Brahman and Choi, Trust or Escalate, arXiv 2407.18370, Algorithm 1), with
Clopper and Pearson's exact bound of the error. (SCOPE, of February 2026, bounds the mean error over label sets instead.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from rewardlab.metrics.intervals import cluster_numbers

LEAST_CONFIDENCE = 0.5  # every verdict has more
LEAST_COVERAGE, MOST_COVERAGE = 0.25, 0.5  # fractions of the labels that the first test uses


@dataclass(frozen=True)
class CertifiedThreshold:
    """A verdict is given if its confidence (0.5..1) exceeds ``threshold``; None: no threshold is certified, none is given.

    With probability ``confidence`` over label sets, at most a fraction ``error`` of the verdicts given on new prompts are
    wrong. ``num_labels`` labels were used, one a prompt; ``num_given`` of their verdicts exceed the threshold and ``num_wrong``
    of these are wrong; ``upper_bound`` is the exact one-sided bound of their error (0..1), 1 without a threshold. The first
    test that did not show the error had ``next_wrong`` wrong ones of ``next_given`` (0: all showed it, or there was none).
    """

    error: float
    confidence: float
    threshold: float | None
    num_labels: int
    num_given: int
    num_wrong: int
    upper_bound: float
    next_given: int = 0
    next_wrong: int = 0

    def gives(self, confidence: float | None) -> bool:
        """Return whether a verdict of this confidence is given; one of None, which names nobody, never is."""
        return self.threshold is not None and confidence is not None and confidence > self.threshold


def check_levels(error: float, confidence: float) -> None:
    """Raise ValueError unless ``error`` is above 0 and below one half, and ``confidence`` between 0 and 1."""
    if not 0 < error < 0.5 or not 0 < confidence < 1:
        raise ValueError(f"expected an error within 0..0.5 and a confidence within 0..1, got {error:g} and {confidence:g}")


def at_most(hits: int, number: int, probability: float) -> float:
    """Return the probability that a binomial count of ``number`` trials is at most ``hits``."""
    if hits >= number or probability <= 0:
        return 1.0
    if hits < 0 or probability >= 1:
        return 0.0
    k = np.arange(hits + 1)
    steps = np.log((number - k[1:] + 1) / k[1:]) + math.log(probability) - math.log1p(-probability)
    return float(min(1.0, np.exp(number * math.log1p(-probability) + np.concatenate([[0.0], steps.cumsum()])).sum()))


def exact_upper_bound(hits: int, number: int, confidence: float) -> float:
    """Return Clopper and Pearson's one-sided upper bound of a probability (0..1); 1 of no trials."""
    low, high = 0.0, 1.0
    for _ in range(60 if hits < number else 0):
        middle = (low + high) / 2
        low, high = (low, middle) if at_most(hits, number, middle) <= 1 - confidence else (middle, high)
    return high


def fewest_labels(error: float, confidence: float) -> int:
    """Return how many labels it takes to show ``error`` if no verdict is wrong."""
    return math.ceil(math.log1p(-confidence) / math.log1p(-error))


@cache
def label_counts(number: int, error: float, confidence: float) -> tuple[int, ...]:
    """Return how many of the surest of ``number`` labels each test of the sequence uses, in its order.

    For each number of errors the least count that shows ``error`` in spite of them, and ``number`` itself. The first is at
    least :data:`LEAST_COVERAGE` of the labels, and allows one error unless that takes more than :data:`MOST_COVERAGE`: a single
    wrong label should not end the sequence. The steps depend on nothing but the arguments. Empty where even no error among all
    would show it.
    """
    counts, hits, size = [], 0, 1
    while size <= number:
        while size <= number and at_most(hits, size, error) > 1 - confidence:
            size += 1
        counts.append(size)
        hits += 1
    if not counts or counts[0] > number:
        return ()
    later = counts[1:] if len(counts) > 1 and counts[1] <= MOST_COVERAGE * number else counts
    return (*(count for count in later if LEAST_COVERAGE * number <= count < number), number)


def certified_threshold(
    confidences: Sequence[float | None],
    right: Sequence[bool],
    clusters: Sequence[str] | None = None,
    *,
    error: float = 0.05,
    confidence: float = 0.9,
    seed: int = 0,
) -> CertifiedThreshold:
    """Return the lowest threshold that labels certify. ``confidences`` are those of each labelled pair's verdict (0.5..1; None:
    no verdict), ``right`` whether people name the same response; a tie of people is named by no verdict. The labelled pairs are
    a random sample of those that verdicts will be given on. Raise ValueError unless 0 < error < 0.5 and 0 < confidence < 1.

    Pairs of one of ``clusters``, a prompt, are one draw: one of them, by ``seed``, counts, and the others' labels are not used.
    So the guarantee is about prompts: of those whose drawn pair gets a verdict, a fraction ``error`` at most gets a wrong one.

    The surest labels are tested in the steps of :func:`label_counts`, equal confidences together, until a step does not show
    the error; the last that did gives the threshold. No step is tested twice and the steps do not depend on labels, so the
    level needs no correction: it is exact for confidences without ties whose error, above a threshold, once it exceeds
    ``error``, does so at all lower thresholds. Each further rise through ``error`` can add at most 1 - ``confidence``.
    """
    check_levels(error, confidence)
    numbers = cluster_numbers(clusters, len(confidences))
    drawn = np.random.default_rng(seed).permutation(len(confidences))
    drawn = drawn[np.unique(numbers[drawn], return_index=True)[1]]
    sure = np.array([-math.inf if confidences[n] is None else confidences[n] for n in drawn], dtype=float)
    order = np.argsort(-sure, kind="stable")
    sure, wrong = sure[order], np.cumsum([not right[n] for n in drawn[order]])
    decided = int((sure > LEAST_CONFIDENCE).sum())
    threshold, given, failed = None, 0, (0, 0)
    for count in label_counts(decided, error, confidence):
        size = int((sure[:decided] >= sure[count - 1]).sum())
        if at_most(int(wrong[size - 1]), size, error) > 1 - confidence:
            failed = size, int(wrong[size - 1])
            break
        threshold, given = float(sure[size]) if size < decided else math.nextafter(float(sure[-1 + decided]), 0.0), size
    hits = int(wrong[given - 1]) if given else 0
    bound = exact_upper_bound(hits, given, confidence)
    return CertifiedThreshold(error, confidence, threshold, len(drawn), given, hits, bound, *failed)
