"""Whether a judge's live comparisons leave what its guarantee was certified on, seen without labels.

A certified run leaves a sketch of four measures: confidence, agreement of the orders, tokens of the prompt, and how unusual the
words of the rationales are. Live comparisons are tested, one at a time, for more low or high values than the certified run has.

The test is an e-detector (Shin, Ramdas and Rinaldo, arXiv 2203.03532): the sum, over possible times of a change, of the
e-process since then. Its factors are calibrators ``k p**(k - 1)`` (Vovk and Wang, arXiv 1912.06116) of the p-value of a
comparison among the certified ones, averaged between exact upper bounds of the rates in the sketch (as Podkopaev and Ramdas,
arXiv 2110.06177, bound the certified loss). If the bounds hold, comparisons that are drawn like the certified ones give a
false alarm once in :data:`RUN_LENGTH` comparisons on average, or more seldom.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from zlib import crc32

from rewardlab.metrics.guarantee import exact_upper_bound
from rewardlab.metrics.ties import orders_differ
from rewardlab.types import BOTH_ORDERS, Judgment
from rewardlab.verdicts.votes import FAILED, in_order, winner_share

RUN_LENGTH = 20_000  # comparisons to a false alarm, on average, at least
BOUNDS_LEVEL = 0.95  # probability over certified runs with which all upper bounds of their rates hold
QUANTILES, POWERS = (0.1, 0.3, 0.5), (0.3, 0.5, 0.7)  # of a measure, from the end that is tested; k of the calibrators
BUCKETS = 1024  # of words, by hash
RECENT = 50  # comparisons whose rate a sentence has
KINDS = CONFIDENCE, ORDERS, QUESTIONS = "confidence", "order agreement", "questions"
TAILS = {  # name: what leaves, the measure, 1 for low values and -1 for high ones, its weight in the mean of all, and words
    "low confidence": (CONFIDENCE, "confidence", 1, 0.5, "the confidence is below {:.4f}"),
    "high confidence": (CONFIDENCE, "confidence", -1, 0.1, "the confidence is above {:.4f}"),
    "orders": (ORDERS, "agreement", 1, 0.1, "the two orders do not name the same response"),
    "short prompts": (QUESTIONS, "tokens", 1, 0.1, "the prompt has fewer than {:.0f} tokens"),
    "long prompts": (QUESTIONS, "tokens", -1, 0.1, "the prompt has more than {:.0f} tokens"),
    "words": (QUESTIONS, "surprise", -1, 0.1, "the rationales have unusual words (above {:.2f} nats a word)"),
}


@dataclass(frozen=True)
class DriftReference:
    """The sketch of ``num`` certified comparisons, one of each prompt: the ``cuts`` of each of :data:`TAILS`, from its end on,
    how many comparisons are beyond each (``hits``), and the counts of ``words`` in each bucket."""

    num: int
    cuts: Mapping[str, Sequence[float]]
    hits: Mapping[str, Sequence[int]]
    words: str

    def __post_init__(self) -> None:
        """Raise ValueError or TypeError for another sketch than :meth:`of` makes."""
        sizes = [{name: len(values) for name, values in of.items()} for of in (self.cuts, self.hits)]
        is_whole = sizes[0] == sizes[1] and sizes[0].keys() == TAILS.keys() and len([*map(int, self.words.split())]) == BUCKETS
        finite = all(math.isfinite(cut) for cuts in self.cuts.values() for cut in cuts)
        if not is_whole or not finite or not all(0 <= num <= self.num for hits in self.hits.values() for num in hits):
            raise ValueError("its reference is of another form")

    @classmethod
    def of(cls, judgments: Sequence[Judgment]) -> DriftReference:
        """Return the sketch of judgments in both orders, one of each prompt."""
        words = [_words(judged) for judged in judgments]
        known = sum(words, Counter[int]())
        rows = [_measures(judged, known, counts) for judged, counts in zip(judgments, words, strict=True)]
        cuts, hits = {}, {}
        for name, (_, measure, sign, _, _) in TAILS.items():
            values = sorted((row[measure] for row in rows), reverse=sign < 0)
            cuts[name] = list(dict.fromkeys(values[int(quantile * len(values))] for quantile in QUANTILES))
            hits[name] = [sum(sign * value < sign * cut for value in values) for cut in cuts[name]]
        return cls(len(rows), cuts, hits, " ".join(str(known[bucket]) for bucket in range(BUCKETS)))


def _words(judged: Judgment) -> Counter[int]:
    """Return the buckets of the words, in pieces of up to six letters, of the first rationale of each order."""
    first = (vote for order in BOTH_ORDERS for vote in in_order(judged.votes, order)[:1])
    text = " ".join(vote.completion.text.lower() for vote in first)
    return Counter(crc32(word.encode(errors="replace")) % BUCKETS for word in re.findall(r"\w{1,6}", text))


def _measures(judged: Judgment, known: Counter[int], left_out: Counter[int]) -> dict[str, float]:
    """Return the measures of a judgment. ``surprise`` is the mean negative log-probability (nats) of its words by the ``known``
    counts without those ``left_out``, add-one smoothed."""
    words, total = _words(judged), known.total() - left_out.total() + BUCKETS
    surprise = sum(num * math.log(total / (known[bucket] - left_out[bucket] + 1)) for bucket, num in words.items())
    return {
        "confidence": winner_share(judged) or 0.0,
        "agreement": float(orders_differ(judged.votes) is False),
        "tokens": float(max((vote.completion.num_prompt_tokens for vote in judged.votes), default=0)),
        "surprise": surprise / max(1, words.total()),
    }


class DriftMonitor:
    """The tests of live comparisons against ``reference``. ``left`` has a sentence for each of confidence, order agreement and
    questions that has left what was certified, for good. Memory does not grow."""

    def __init__(self, reference: DriftReference) -> None:
        self._reference, self._num = reference, 0
        self._known = Counter(dict(enumerate(map(int, reference.words.split()))))
        level = (1 - BOUNDS_LEVEL) / sum(map(len, reference.hits.values()))
        self._bounds = {
            name: [exact_upper_bound(num, reference.num, 1 - level) for num in hits] for name, hits in reference.hits.items()
        }
        self._cuts = {name: [TAILS[name][2] * cut for cut in cuts] for name, cuts in reference.cuts.items()}
        self._factors = {name: _factors(bounds) for name, bounds in self._bounds.items()}
        self._values = {name: [0.0] * len(POWERS) for name in TAILS}
        self._recent: dict[str, deque[int]] = {name: deque(maxlen=RECENT) for name in TAILS}
        self.left: dict[str, str] = {}

    def add(self, judged: Judgment) -> list[str]:
        """Return the sentences on what leaves with this judgment in both orders. One with failed votes does not count."""
        failed = any(vote.verdict.status in FAILED for vote in judged.votes)
        return [] if failed else self.add_measures(self.measures(judged))

    def measures(self, judged: Judgment) -> dict[str, float]:
        return _measures(judged, self._known, Counter())

    def add_measures(self, row: Mapping[str, float]) -> list[str]:
        """Do as :meth:`add` does, of the :meth:`measures` of a judgment."""
        self._num += 1
        sentences = []
        for name, (kind, measure, sign, weight, _) in TAILS.items():
            cell = bisect_right(self._cuts[name], sign * row[measure])
            self._recent[name].append(cell)
            if kind not in self.left:
                factors = self._factors[name][cell]
                self._values[name] = [(value + 1) * factor for value, factor in zip(self._values[name], factors, strict=True)]
                if weight * math.fsum(self._values[name]) / len(POWERS) >= RUN_LENGTH:  # so the mean of all is
                    self.left[kind] = self._sentence(name)
                    sentences.append(self.left[kind])
        return sentences

    def _sentence(self, name: str) -> str:
        (kind, _, _, _, words), recent, reference = TAILS[name], self._recent[name], self._reference
        rates = [sum(cell <= number for cell in recent) / len(recent) for number in range(len(self._bounds[name]))]
        most = max(range(len(rates)), key=lambda number: rates[number] - self._bounds[name][number])
        return (
            f"{kind} left what was certified, after {self._num:,} comparisons: of the last {len(recent)}, in "
            f"{100 * rates[most]:.0f} % {words.format(reference.cuts[name][most])}, in "
            f"{100 * reference.hits[name][most] / reference.num:.0f} % of the certified ones (at most "
            f"{100 * self._bounds[name][most]:.0f} % of all like them). The error may exceed its bound: certify again with "
            "labels of pairs like these"
        )


def _factors(bounds: Sequence[float]) -> list[list[float]]:
    """Return the factors of a comparison by how many cuts it is not beyond, one of each power: of each calibrator the mean
    between two bounds. They fall from cell to cell, so that their expectation is at most 1 while no rate exceeds its bound."""
    ends = [0.0, *bounds, 1.0]
    return [
        [(high**power - low**power) / (high - low) if high > low else high ** (power - 1) * power for power in POWERS]
        for low, high in pairwise(ends)
    ]
