"""A run's judge against people: their agreement with each other, the judge's with them, and whether it may replace one of them.

Ratings are in the benchmark's file (:attr:`rewardlab.types.PreferencePair.ratings`) or in a file of labels
(:mod:`rewardlab.data.ratings`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from rewardlab.benchmarks.base import Row
from rewardlab.data.ratings import UNNAMED, first_ratings, peoples_label
from rewardlab.errors import DataError
from rewardlab.metrics.agreement import (
    LEAST_ITEMS,
    RaterAgreement,
    alternative_annotator_test,
    cohens_kappa,
    krippendorffs_alpha,
)
from rewardlab.metrics.intervals import (
    AccuracyEstimate,
    DifferenceEstimate,
    difference_interval,
    mean_estimate,
    ratio_interval,
)
from rewardlab.metrics.ties import order_outcomes
from rewardlab.reporting.tables import percent, signed, with_interval
from rewardlab.types import Choice, Order, Outcome, Rating, Tie, Vote
from rewardlab.verdicts.votes import reduce_votes, winner_share

EPSILON = 0.1  # of the alternative annotator test: by how much a judge may fall behind a person
FEWEST_RATINGS = 2  # of a pair, to compare people with each other


@dataclass(frozen=True)
class RatedPair:
    """A judged pair with people's ratings; ``longer`` is the index of the longer response (None: equal or not known)."""

    row: int
    group: str
    cluster: str
    votes: Sequence[Vote]
    ratings: Sequence[Rating]
    longer: int | None = None

    @cached_property
    def judge_choices(self) -> tuple[Hashable | None, ...]:
        """Return what each order says: 0, 1, a tie (its votes are even), or None without an answer."""
        return tuple(
            outcome.winner if outcome.winner is not None else Tie.TIE if outcome is Outcome.TIE else None
            for outcome in order_outcomes(self.votes)
        )

    @cached_property
    def confidence(self) -> float:
        """Return the judge's confidence over all votes (0..1); 0 where it names no response."""
        return winner_share(reduce_votes("", self.votes)) or 0.0

    @cached_property
    def choices(self) -> dict[str, Hashable]:
        """Return each rater's choice, first ratings only, skipped ones left out; both kinds of tie are one."""
        rated = ((rating.rater, rating.choice) for rating in first_ratings(self.ratings))
        return {rater: Tie.TIE if isinstance(choice, Tie) else choice for rater, choice in rated if choice is not None}

    @cached_property
    def label(self) -> Hashable:
        """Return what the ratings come to; both kinds of tie are one."""
        choice = peoples_label(self.ratings).choice
        return Tie.TIE if isinstance(choice, Tie) else choice


@dataclass(frozen=True)
class GroupAgreement:
    """Of ``n`` pairs: how often one ``person`` and the ``judge`` agree with the label of the ratings; a person's figure is
    None where the selection of the pairs fixes it."""

    n: int
    person: AccuracyEstimate | None
    judge: AccuracyEstimate


@dataclass(frozen=True)
class AgreementScores:
    """A judge against people on ``num_pairs`` rated pairs (``num_ratings``, of ``num_raters`` named people). Fractions in 0..1.

    ``person``: ratings that equal the label of the pair's ratings, the rating itself among them: a judge as good stays below;
    of pairs rated by two people or more, since one rating is its own label. ``judge``: the same of the judge, of all pairs.
    ``others``: two people's ratings of one pair that are equal, and ``judge_with_one``: judge and one person. ``alpha`` is
    Krippendorff's among people, ``kappa`` Cohen's of judge and label. ``groups`` are the benchmark's groups; of pairs rated by
    two people or more, ``unanimous`` and ``divided`` ones too; and the thirds of the judge's confidence. ``winning_rate`` and
    ``advantage`` are those of the alternative annotator test at ``epsilon``, with its ``raters``. ``length_bias``: how much
    more often the judge names the longer response than people do on the same pairs; ``place_bias``: the same of the response
    shown first, where the order of the ratings is known. None: nothing to compare.
    """

    num_pairs: int
    num_ratings: int
    num_raters: int
    person: AccuracyEstimate | None
    judge: AccuracyEstimate
    others: AccuracyEstimate | None
    judge_with_one: AccuracyEstimate
    alpha: float | None
    kappa: float | None
    epsilon: float
    winning_rate: float | None
    advantage: float | None
    raters: tuple[RaterAgreement, ...]
    groups: Mapping[str, GroupAgreement]
    length_bias: DifferenceEstimate | None
    place_bias: DifferenceEstimate | None


def agreement_scores(pairs: Sequence[RatedPair], *, epsilon: float = EPSILON) -> AgreementScores | None:
    """Return the scores on the pairs with a rating; None if there are none."""
    rated = [pair for pair in pairs if pair.choices]
    if not rated:
        return None
    choices = [pair.choices for pair in rated]
    clusters = [pair.cluster for pair in rated]
    ratings: dict[str, dict[str, Hashable]] = {}
    for pair, of_pair in zip(rated, choices, strict=True):
        for rater, choice in of_pair.items():
            if not rater.startswith(UNNAMED):
                ratings.setdefault(rater, {})[str(pair.row)] = choice
    judge = {str(pair.row): pair.judge_choices for pair in rated}
    names = {str(pair.row): pair.cluster for pair in rated}
    test = alternative_annotator_test(ratings, judge, epsilon=epsilon, clusters=names)
    labels = [pair.label for pair in rated]
    with_label = [
        (choice, label, 1 / len(pair.judge_choices))
        for pair, label in zip(rated, labels, strict=True)
        for choice in pair.judge_choices
    ]
    names_of_groups = sorted({pair.group for pair in rated})
    groups = {name: _group([pair for pair in rated if pair.group == name]) for name in names_of_groups}
    several = [pair for pair in rated if len(pair.choices) >= FEWEST_RATINGS]
    for name, is_unanimous in (("unanimous", True), ("divided", False)):
        if picked := [pair for pair in several if (len(set(pair.choices.values())) == 1) is is_unanimous]:
            groups[name] = replace(_group(picked), person=None)
    groups |= {f"confidence, {third} third": _group(picked) for third, picked in _thirds(rated)}
    return AgreementScores(
        num_pairs=len(rated),
        num_ratings=sum(map(len, choices)),
        num_raters=len(ratings),
        person=_person(rated),
        judge=mean_estimate([_share(pair.judge_choices, label) for pair, label in zip(rated, labels, strict=True)], clusters),
        others=_of_ratings(several, _with_others) if several else None,
        judge_with_one=_of_ratings(rated, lambda pair, choice: _share(pair.judge_choices, choice)),
        alpha=krippendorffs_alpha([list(of_pair.values()) for of_pair in choices]),
        kappa=cohens_kappa(*map(list, zip(*with_label, strict=True))),
        epsilon=epsilon,
        winning_rate=test.winning_rate,
        advantage=test.advantage,
        raters=test.raters,
        groups=groups,
        length_bias=_difference([_length_bias(pair) for pair in rated], clusters),
        place_bias=_difference([_place_bias(pair) for pair in rated], clusters),
    )


def _thirds(pairs: Sequence[RatedPair]) -> list[tuple[str, list[RatedPair]]]:
    """Return the pairs of the lowest, middle and highest third of the judge's confidence, equal ones in one third; nothing of
    fewer than :data:`LEAST_ITEMS` pairs, or where all are equal."""
    ranked = sorted(pair.confidence for pair in pairs)
    cuts = [ranked[len(ranked) // 3 - 1], ranked[2 * len(ranked) // 3 - 1]] if len(pairs) >= LEAST_ITEMS else []
    thirds = [[pair for pair in pairs if bisect_left(cuts, pair.confidence) == number] for number in range(3)]
    named = [(name, third) for name, third in zip(("lowest", "middle", "highest"), thirds, strict=True) if third]
    return named if len(named) > 1 else []


def _share(choices: Sequence[Hashable | None], of: Hashable) -> float:
    return choices.count(of) / len(choices) if choices else 0.0


def _with_others(pair: RatedPair, choice: Hashable) -> float:
    """Return the fraction of the other ratings of a pair that equal this one."""
    every = list(pair.choices.values())
    return (every.count(choice) - 1) / (len(every) - 1)


def _of_ratings(pairs: Sequence[RatedPair], score: Callable[[RatedPair, Hashable], float]) -> AccuracyEstimate:
    """Return the mean of a score (0..1) of a pair and a rating over all ratings of the pairs; intervals over prompts."""
    counts = [len(pair.choices) for pair in pairs]
    sums = [sum(score(pair, choice) for choice in pair.choices.values()) for pair in pairs]
    return AccuracyEstimate(sum(sums) / sum(counts), ratio_interval(sums, counts, [pair.cluster for pair in pairs]))


def _person(pairs: Sequence[RatedPair]) -> AccuracyEstimate | None:
    """Return how often a rating equals the label of several; None if no pair has several."""
    several = [pair for pair in pairs if len(pair.choices) >= FEWEST_RATINGS]
    return _of_ratings(several, lambda pair, choice: float(choice == pair.label)) if several else None


def _group(pairs: Sequence[RatedPair]) -> GroupAgreement:
    judge = [_share(pair.judge_choices, pair.label) for pair in pairs]
    return GroupAgreement(len(pairs), _person(pairs), mean_estimate(judge, [pair.cluster for pair in pairs]))


def _length_bias(pair: RatedPair) -> float | None:
    judged = [choice for choice in pair.judge_choices if choice in (0, 1)]
    people = [choice for choice in pair.choices.values() if choice in (0, 1)]
    if pair.longer is None or not judged or not people:
        return None
    return judged.count(pair.longer) / len(judged) - people.count(pair.longer) / len(people)


def _place_bias(pair: RatedPair) -> float | None:
    judged = [vote.verdict.choice is Choice.FIRST for vote in pair.votes if vote.verdict.choice is not None]
    people = [
        (rating.choice == 0) == (rating.order is Order.GIVEN)
        for rating in first_ratings(pair.ratings)
        if rating.order is not None and rating.choice in (0, 1)
    ]
    return sum(judged) / len(judged) - sum(people) / len(people) if judged and people else None


def _difference(values: Sequence[float | None], clusters: Sequence[str]) -> DifferenceEstimate | None:
    known = [(value, cluster) for value, cluster in zip(values, clusters, strict=True) if value is not None]
    if not known:
        return None
    differences, names = map(list, zip(*known, strict=True))
    return DifferenceEstimate(sum(differences) / len(differences), difference_interval(differences, names))


def check_labels(labels: Mapping[str, Sequence[Rating]], pair_ids: Sequence[str], where: str) -> list[str]:
    """Return a sentence on labels of pairs that were not judged. Raise DataError if no label is of a judged one, or one is of
    several."""
    known = Counter(pair_ids)
    if twice := next((pair_id for pair_id in labels if known[pair_id] > 1), None):
        raise DataError(
            f"{where}: labels pair {twice!r:.60}, and {known[twice]} judged pairs have that id; expected ids that differ"
        )
    strangers = [pair_id for pair_id in labels if pair_id not in known]
    if len(strangers) == len(labels):
        raise DataError(
            f"{where}: none of its {len(labels):,} pairs is among the {len(known):,} judged ones; the first is "
            f"{strangers[0]!r:.60}, and the judged ones have ids such as {min(known)!r:.60}"
        )
    return [f"{where}: ratings of {len(strangers):,} pairs that were not judged are left out"] if strangers else []


def with_labels(rows: Sequence[Row], labels: Mapping[str, Sequence[Rating]], where: str) -> tuple[list[Row], list[str]]:
    """Return the rows with further ratings, by the id of their pair, and what :func:`check_labels` returns."""
    notes = check_labels(labels, [row.pair.pair_id for row in rows], where)
    rated = [
        replace(row, pair=replace(row.pair, ratings=(*row.pair.ratings, *labels.get(row.pair.pair_id, ())))) for row in rows
    ]
    return rated, notes


AGREEMENT = ("agreement with people", "one person", "the judge")
RATERS = ("rater", "pairs", "with the other raters", "the judge in their place", "the judge's advantage", "replaceable")


def _by(num_raters: int) -> str:
    return f"by {num_raters:,} people " if num_raters else ""


def agreement_sentence(scores: AgreementScores) -> str:
    """Return how far people agree, and whether the judge may replace one of them."""
    judge = percent(scores.judge.accuracy)
    text = f"{scores.num_ratings:,} ratings {_by(scores.num_raters)}of {scores.num_pairs:,} pairs. "
    if scores.person is None:
        text += f"The judge agrees with them in {judge} %; no pair has two, so that people cannot be compared with each other."
    else:
        person = percent(scores.person.accuracy)
        text += f"One person agrees with the label that all ratings of a pair come to in {person} %, the judge in {judge} %."
    if scores.alpha is not None:
        text += f" Krippendorff's alpha among people is {scores.alpha:.2f}."
    if scores.winning_rate is None:
        return f"{text} The alternative annotator test needs two raters or more with 30 pairs in common with others."
    verdict = "passes" if scores.winning_rate >= 0.5 else "fails"
    return (
        f"{text} The judge {verdict} the alternative annotator test (epsilon {scores.epsilon:g}): it may replace "
        f"{percent(scores.winning_rate, 0)} % of the raters (50 % pass). Its advantage is {scores.advantage or 0:.2f}: on this "
        "fraction of the pairs it agrees with the others at least as often as the rater it replaces."
    )


def estimate_text(estimate: AccuracyEstimate | None) -> str:
    """Return an estimate in percent with its interval, a dash for none."""
    return "–" if estimate is None else with_interval(estimate.accuracy, estimate.interval)


def agreement_rows(scores: AgreementScores) -> list[tuple[str, ...]]:
    """Return (metric, of one person, of the judge) in percent with intervals."""
    rows: list[tuple[str, ...]] = [("with the label of all ratings", estimate_text(scores.person), estimate_text(scores.judge))]
    rows += [("with one (other) person", estimate_text(scores.others), estimate_text(scores.judge_with_one))]
    rows += [
        (f"{name} ({group.n:,} pairs)", estimate_text(group.person), estimate_text(group.judge))
        for name, group in scores.groups.items()
    ]
    for name, bias in (("longer response", scores.length_bias), ("response shown first", scores.place_bias)):
        if bias is not None:
            low, high = bias.interval
            rows.append(
                (f"{name}: named more often, points", "0", f"{signed(bias.difference)} [{signed(low)}, {signed(high)}]")
            )
    return rows


def rater_rows(scores: AgreementScores) -> list[tuple[str, ...]]:
    """Return a row for each rater who shares pairs with another."""
    return [
        (
            rater.rater,
            f"{rater.num_items:,}",
            with_interval(rater.rater_accuracy.accuracy, rater.rater_accuracy.interval),
            with_interval(rater.judge_accuracy.accuracy, rater.judge_accuracy.interval),
            f"{rater.advantage:.2f}",
            "–" if rater.p_value is None else "yes" if rater.replaceable else "no",
        )
        for rater in scores.raters
    ]
