"""Ties as labels: when a judge says tie, by hand; and the laws of its scores."""

from __future__ import annotations

import random

import pytest

from rewardlab.metrics.accuracy import Labeled
from rewardlab.metrics.intervals import mean_interval
from rewardlab.metrics.ties import three_way_outcome, tie_scores
from rewardlab.types import Choice, Completion, FinishReason, Judgment, Order, Outcome, Verdict, VerdictStatus, Vote, choice_of
from rewardlab.verdicts.votes import judgment

ONE, TWO, TIE, NONE = Outcome.RESPONSE_0, Outcome.RESPONSE_1, Outcome.TIE, Outcome.NO_VALID_VOTE


def vote(order: Order, says: str) -> Vote:
    """For response 0 or 1, for a tie (=), or without a verdict (?)."""
    if says in "01":
        return Vote(order, Verdict(choice_of(int(says), order), VerdictStatus.OK), Completion("", FinishReason.STOP))
    status = VerdictStatus.TIE if says == "=" else VerdictStatus.NO_VERDICT
    return Vote(order, Verdict(None, status), Completion("", FinishReason.STOP))


def votes(given: str, swapped: str = "") -> list[Vote]:
    return [vote(Order.GIVEN, says) for says in given] + [vote(Order.SWAPPED, says) for says in swapped]


@pytest.mark.parametrize(
    ("given", "swapped", "outcome"),
    [
        ("0", "0", ONE),
        ("1", "1", TWO),
        ("0", "1", TIE),
        ("001", "110", TIE),
        ("001", "100", ONE),
        ("01", "01", TIE),
        ("01", "00", TIE),
        ("=", "=", TIE),
        ("=", "0", TIE),
        ("00?", "0", ONE),
        ("0??", "0", NONE),
        ("?", "0", NONE),
        ("?", "?", NONE),
        ("", "", NONE),
        ("1", "", TWO),
        ("01", "", TIE),
        ("", "?", NONE),
    ],
)
def test_when_a_judge_says_tie(given: str, swapped: str, outcome: Outcome) -> None:
    """Orders that differ or have no majority; never for want of answers."""
    assert three_way_outcome(votes(given, swapped)) is outcome


def judged(given: str, swapped: str) -> Judgment:
    return judgment("p", votes(given, swapped))


def test_scores_by_hand() -> None:
    """One of four pairs is called a tie, one has no answer; two of four ties are called so; of three named twice one flips."""
    labelled = [Labeled(judged(*of), 0, "g") for of in (("0", "0"), ("1", "1"), ("0", "1"), ("?", "0"))]
    ties = [judged(*of) for of in (("0", "1"), ("=", "="), ("0", "0"), ("1", "1"))]
    scores = tie_scores(labelled, list("abcd"), ties, list("efgh"), 1)
    assert (scores.num_pairs, scores.num_ties, scores.num_both_bad, scores.num_unanswered) == (8, 4, 1, 1)
    assert scores.three_way.accuracy == 3 / 8
    assert scores.disagreement is not None
    assert (scores.disagreement.n, scores.disagreement.share) == (3, 1 / 3)


def test_intervals_are_over_prompts() -> None:
    """A prompt has as much weight as its pairs, labelled ones and ties alike: twelve ties of three prompts say nothing."""
    labelled = [Labeled(judged("0", "0"), 0, "g")] * 8
    ties = [judged("0", "1"), judged("0", "0"), judged("1", "1")] * 4
    clusters, tied_clusters = list("abcdefgh"), ["i", "j", "k"] * 4
    scores = tie_scores(labelled, clusters, ties, tied_clusters, 0)
    right = [1.0] * 8 + [1.0, 0.0, 0.0] * 4
    assert scores.three_way.interval == mean_interval(right, [*clusters, *tied_clusters])
    assert scores.disagreement is not None
    assert (scores.disagreement.share, scores.disagreement.interval) == (1 / 3, (0.0, 1.0))


def test_without_two_orders_nothing_disagrees() -> None:
    scores = tie_scores([Labeled(judged("0", ""), 0, "g")], ["a"], [judged("1", "")], ["b"], 0)
    assert scores.disagreement is None
    assert scores.three_way.accuracy == 0.5


@pytest.mark.parametrize("seed", range(5))
def test_exchanging_the_responses_changes_nothing(seed: int) -> None:
    """And intervals hold their means."""
    dice = random.Random(seed)

    def some() -> Judgment:
        return judged("".join(dice.choices("01=?", k=3)), "".join(dice.choices("01=?", k=3)))

    labelled = [Labeled(some(), dice.randrange(2), "g") for _ in range(30)]
    ties, clusters = [some() for _ in range(20)], [str(n) for n in range(30)]
    scores = tie_scores(labelled, clusters, ties, clusters[:20], 0)
    swapped = [Labeled(item.judgment.swap(), 1 - item.preferred, "g") for item in labelled]
    assert tie_scores(swapped, clusters, [one.swap() for one in ties], clusters[:20], 0) == scores
    low, high = scores.three_way.interval
    assert low < scores.three_way.accuracy < high


def test_a_choice_is_shown_where_it_stands() -> None:
    """The helper above places votes as a judge sees the responses."""
    assert vote(Order.SWAPPED, "0").verdict.choice is Choice.SECOND
