"""What is wrong with a judge, in sentences for the top of its report: blind, leaning, flipping, guessing, invalid.

Each sentence is "What is wrong: the numbers"; the words before the colon stand in tables of several runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rewardlab.benchmarks.base import Row
from rewardlab.benchmarks.baselines import num_characters
from rewardlab.benchmarks.report_model import Report
from rewardlab.metrics.accuracy import OUTCOME, Labeled, pair_score
from rewardlab.metrics.intervals import Interval, difference_interval, mean_interval
from rewardlab.reporting.tables import percent, with_interval
from rewardlab.types import Choice

LOOKS = 0.05  # a judge that looks gains this much by the image; chance alone gains less on some hundred pairs
LEANS = 0.05  # a share of first of 55 % or more; what the better judges published show is below
FLIPS = 0.25  # of pairs; half of these are wrong in one of both orders, whatever the label
LEAST_FLIPS = 0.10  # which the interval must lie above: a single flip of four pairs is none
LENGTH = 0.10  # labels prefer the longer response by less in the published benchmarks
INVALID = 0.05  # of answers; as much as judges of one benchmark often differ by
MOSTLY_INVALID = 0.5  # of answers; above, no image can gain much, and a small gain says nothing
MISSING = 0.01  # of samples
NO_IMAGE = "No image was shown"
FEW_PROMPTS = 20  # below, an interval over prompts is as wide as the differences of judges
BY_LENGTH = ("longest", "shortest")  # baselines that are rules; the others guess, and are best by luck
REASONS = {
    "truncated": "cut off at the token limit, which max_tokens= raises",
    "no_verdict": "nothing in the form that is read, which template= names",
    "not_a_choice": "a verdict that is neither response",
    "empty": "empty",
    "error": "failed, or not recorded",
    "timeout": "not there in time",
}


@dataclass(frozen=True)
class Estimate:
    """A mean over pairs (a share, or a difference of shares) with its interval."""

    value: float
    interval: Interval

    @property
    def is_sure(self) -> bool:
        """Return whether 0 lies outside of the interval."""
        return not self.interval[0] <= 0 <= self.interval[1]


@dataclass(frozen=True)
class Evidence:
    """What the sentences need beside a report, of its rows and votes.

    ``blank`` is the accuracy with blank images, ``sighted`` that of as many votes with the pair's own, ``gain`` the second less
    the first, pair by pair; None without that control. All three are of the ``num_with_image`` pairs that have an image, and of
    one vote in each order; ``is_alike``: both were asked at one temperature.
    ``position``: share of verdicts for the first less one half, ``length``: as ``length_bias``, ``flipped``: share of pairs
    whose orders name different responses; None where no pair can say. ``chance``: the accuracy of a guess (None: a coin's).
    ``sees``: the judge is shown images. ``other_format`` says how answers without a verdict can be read, "" where no format
    reads them.
    """

    num_prompts: int
    sees: bool
    num_with_image: int
    num_missing: int = 0
    other_format: str = ""
    sighted: float | None = None
    blank: float | None = None
    gain: Estimate | None = None
    is_alike: bool = True
    position: Estimate | None = None
    length: Estimate | None = None
    flipped: Estimate | None = None
    chance: float | None = None


def gather_evidence(
    rows: Sequence[Row],
    items: Sequence[Labeled],
    controls: Mapping[str, Sequence[Labeled]],
    *,
    sees: bool,
    one_vote: Sequence[float],
    greedy: bool,
    num_missing: int = 0,
    other_format: str = "",
    chance: float | None = None,
) -> Evidence:
    """Return the evidence of a run. ``one_vote``: scores of one vote in each order (:func:`scores.one_vote_scores`);
    ``greedy``: they were asked at temperature 0, as controls are. ``chance``: the accuracy of a guess, unless it is one of
    two."""
    clusters = [row.cluster for row in rows]
    seen = [n for n, row in enumerate(rows) if row.pair.images or any(row.pair.response_images)]
    sighted = blank = gain = None
    if "blank" in controls and seen:
        greedy_votes = controls.get("greedy")  # a control has one vote in each order
        with_image = [pair_score(greedy_votes[n]) if greedy_votes else one_vote[n] for n in seen]
        without = [pair_score(controls["blank"][n]) for n in seen]
        sighted, blank = sum(with_image) / len(seen), sum(without) / len(seen)
        gain = _difference([a - b for a, b in zip(with_image, without, strict=True)], [clusters[n] for n in seen])
    return Evidence(
        num_prompts=len(set(clusters)),
        sees=sees,
        num_with_image=len(seen),
        num_missing=num_missing,
        other_format=other_format,
        sighted=sighted,
        blank=blank,
        gain=gain,
        is_alike=greedy or "greedy" in controls,
        position=_over_pairs([_first_share(item) for item in items], clusters),
        length=_length_preference(rows, items, clusters) if chance is None else None,
        flipped=_share_of_pairs([_flipped(item) for item in items], clusters),
        chance=chance,
    )


def _share_of_pairs(values: Sequence[float | None], clusters: Sequence[str]) -> Estimate | None:
    there = [(value, cluster) for value, cluster in zip(values, clusters, strict=True) if value is not None]
    if not there:
        return None
    shares, of_clusters = [value for value, _ in there], [cluster for _, cluster in there]
    return Estimate(sum(shares) / len(shares), mean_interval(shares, of_clusters))


def _over_pairs(values: Sequence[float | None], clusters: Sequence[str]) -> Estimate | None:
    there = [(value, cluster) for value, cluster in zip(values, clusters, strict=True) if value is not None]
    return _difference([value for value, _ in there], [cluster for _, cluster in there]) if there else None


def _difference(values: Sequence[float], clusters: Sequence[str]) -> Estimate:
    return Estimate(sum(values) / len(values), difference_interval(values, clusters))


def _first_share(item: Labeled) -> float | None:
    """Share of valid verdicts for the response shown first, less one half."""
    verdicts = [vote.verdict for vote in item.judgment.votes if vote.verdict.rule != OUTCOME]
    choices = [verdict.choice for verdict in verdicts if verdict.choice is not None]
    return choices.count(Choice.FIRST) / len(choices) - 0.5 if choices else None


def _length_preference(rows: Sequence[Row], items: Sequence[Labeled], clusters: Sequence[str]) -> Estimate | None:
    """How much more often the longer response is named than it is the better; None where it always or never is the better one.

    Pairs whose better response is the longer and pairs whose better one is the shorter weigh alike.

    Of a judge without a preference it is 0, however often it errs and whichever the labels favour.
    """
    named: dict[bool, list[tuple[float, str]]] = {True: [], False: []}
    for row, item, cluster in zip(rows, items, clusters, strict=True):
        lengths = tuple(map(num_characters, row.pair.responses))
        right, wrong = (sum(tally[side] for tally in item.tallies) for side in (0, 1))
        if lengths[0] != lengths[1] and right + wrong:
            longer_is_better = lengths[item.preferred] > lengths[1 - item.preferred]
            named[longer_is_better].append(((right if longer_is_better else wrong) / (right + wrong), cluster))
    if not named[True] or not named[False]:
        return None
    share = {better: len(values) / (len(named[True]) + len(named[False])) for better, values in named.items()}
    # each pair's part in half of (mean where the longer is better + mean where the shorter is), less a half
    parts = [(value / (2 * share[better]) - 0.5, cluster) for better in (True, False) for value, cluster in named[better]]
    return _difference([value for value, _ in parts], [cluster for _, cluster in parts])


def _flipped(item: Labeled) -> float | None:
    """1 where the majorities of both orders name different responses; None of a pair shown in one order."""
    winners = [0 if 2 * right > total else 1 if 2 * wrong > total else None for right, wrong, total in item.tallies]
    return float({0, 1} == set(winners)) if len(winners) == 2 else None


def find_faults(report: Report, evidence: Evidence) -> tuple[str, ...]:
    """Return a sentence for each fault that the report and its evidence show, the gravest first; () for a baseline."""
    if report.judge.startswith("baseline:"):
        return ()
    return (
        *_of_answers(report, evidence),
        *_of_sight(report, evidence),
        *_of_accuracy(report, evidence.chance),
        *_of_habits(report, evidence),
        *_of_size(evidence),
    )


def _of_answers(report: Report, evidence: Evidence) -> list[str]:
    scores, sentences = report.scores, []
    if evidence.num_missing > MISSING * scores.num_votes_total:
        share = percent(evidence.num_missing / scores.num_votes_total)
        sentences.append(
            f"Samples are missing: {evidence.num_missing:,} of {scores.num_votes_total:,} ({share} %) are not in the replay "
            "file, and each counts as wrong"
        )
    if scores.invalid_rate >= INVALID:
        counts = {status: n for status, n in scores.statuses.items() if status in REASONS and n}
        total, ranked = sum(counts.values()), sorted(counts, key=lambda status: -counts[status])
        shares = {status: f"{percent(counts[status] / total, 0)} % " if len(ranked) > 1 else "" for status in ranked}
        reasons = "; ".join(f"{shares[status]}{REASONS[status]}" for status in ranked)
        sentences.append(
            f"Invalid answers: {percent(scores.invalid_rate)} % have no verdict and count as wrong (why: {reasons})"
            + (f"; {evidence.other_format}" if evidence.other_format else "")
        )
    return sentences


def _of_sight(report: Report, evidence: Evidence) -> list[str]:
    if report.benchmark == "pairs" and evidence.sees and not evidence.num_with_image:
        return [f"{NO_IMAGE}: none of the {report.scores.num_pairs:,} pairs has one"]
    if evidence.gain is None or evidence.sighted is None or evidence.blank is None or report.scores.invalid_rate == 1:
        return []
    low, high = evidence.gain.interval
    some = evidence.num_with_image < report.scores.num_pairs
    of_pairs = f", of the {evidence.num_with_image:,} pairs with an image" if some else ""
    gain = _points(evidence.gain.value)
    numbers = (
        f"{percent(evidence.sighted)} % right with it, {percent(evidence.blank)} % with a blank one{of_pairs} "
        f"(by single votes, difference {gain} points [{_points(low)}, {_points(high)}])"
    )
    is_mostly_invalid = report.scores.invalid_rate > MOSTLY_INVALID
    if high < LOOKS and evidence.is_alike and not is_mostly_invalid:
        return [f"Does not look at the image: {numbers}"]
    if low > 0:
        return []
    why = "; most answers have no verdict" if is_mostly_invalid else ""
    if not evidence.is_alike:
        why += "; these votes were sampled and the blank ones greedy, --controls greedy,blank asks alike"
    return [f"Not shown to look at the image: {numbers}{why}"]


def chance_of(votes: int) -> float:
    """Return how often a coin is right by a majority of so many votes (0..0.5): an even vote is not right."""
    return (1 - math.comb(votes, votes // 2) / 2**votes) / 2 if votes % 2 == 0 else 0.5


def _of_accuracy(report: Report, chance: float | None) -> list[str]:
    scores = report.scores
    if scores.invalid_rate == 1:
        return []  # without one verdict there is no accuracy to compare
    number, (low, high) = f"{with_interval(scores.accuracy.micro, scores.interval)} % of trials are right", scores.interval
    is_majority = report.panel is None and "verdict_probability" not in scores.confidence
    coin = (chance_of(report.votes) if is_majority else 0.5) if chance is None else chance
    guess = f"where a {'coin' if chance is None else 'guess'} has {100 * coin:.4g}"
    if high < coin:
        return [f"Worse than guessing: {number}, {guess}"]
    if low <= coin:
        return [f"Cannot be told from guessing: {number}, {guess}"]
    rules = {name: report.baselines[name].micro for name in BY_LENGTH if name in report.baselines}
    best = max(rules, key=lambda name: rules[name], default=None)
    if best is None or low > rules[best]:
        return []
    return [
        f"Not shown to be above a rule that reads nothing: the {best} response is right in {percent(rules[best])} %; {number}"
    ]


def _of_habits(report: Report, evidence: Evidence) -> list[str]:
    sentences = []
    # In given orders the better response may always stand first, and naming it is no habit.
    if report.orders in ("both", "random") and (lean := evidence.position) and abs(lean.value) >= LEANS and lean.is_sure:
        place, side = ("first", 1) if lean.value > 0 else ("second", -1)
        sentences.append(
            f"Leans to the response shown {place}: names it {_size(lean, side)} points more often than half of the time"
        )
    if (flipped := evidence.flipped) and flipped.value >= FLIPS and flipped.interval[0] > LEAST_FLIPS:
        shares = with_interval(flipped.value, flipped.interval)
        sentences.append(f"Flips with the order: in {shares} % of pairs the two orders name different responses")
    if (length := evidence.length) and abs(length.value) >= LENGTH and length.is_sure:
        which, side = ("longer", 1) if length.value > 0 else ("shorter", -1)
        sentences.append(
            f"Prefers the {which} response: names it {_size(length, side)} points more often than it is the better one"
        )
    return sentences


def _of_size(evidence: Evidence) -> list[str]:
    if evidence.num_prompts >= FEW_PROMPTS:
        return []
    return [f"Few prompts: {evidence.num_prompts}; so few do not tell judges apart"]


def _points(value: float) -> str:
    return f"{round(100 * value, 1) + 0.0:+.1f}"  # + 0.0: no "-0.0"


def _size(estimate: Estimate, side: int) -> str:
    low, high = sorted(side * end for end in estimate.interval)
    return with_interval(side * estimate.value, (low, high))


def key_phrase(finding: str) -> str:
    """Return what is wrong without the numbers: "Does not look at the image"."""
    return finding.partition(":")[0]


def numbers_of(finding: str) -> str:
    """Return the rest of a sentence after its :func:`key_phrase`."""
    return finding.removeprefix(key_phrase(finding))
