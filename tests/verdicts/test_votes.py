"""From votes to a judgment, each number worked by hand."""

from __future__ import annotations

import itertools
import math

import pytest

from rewardlab.data.votes import vote_of, vote_row
from rewardlab.types import Choice, Completion, FinishReason, Judgment, Order, Outcome, Verdict, VerdictStatus, Vote
from rewardlab.verdicts.votes import (
    both_orders_or_none,
    in_order,
    judgment,
    judgment_by_probability,
    majority,
    majority_of_valid,
    probability_of_0,
    reduce_votes,
    share_for_0,
)
from tests.support.labeled import labeled

GIVEN, SWAPPED = Order.GIVEN, Order.SWAPPED


def votes(given: str, swapped: str = "") -> tuple[Vote, ...]:
    """Votes as marks, as shown: 1, 2, = (tie) or - (unreadable)."""
    return labeled(given, swapped).judgment.votes


def weighed(order: Order, margin: float | None) -> Vote:
    """A vote with the log-odds of the response shown first."""
    choice = None if not margin else Choice.FIRST if margin > 0 else Choice.SECOND
    status = VerdictStatus.NO_VERDICT if margin is None else VerdictStatus.OK if margin else VerdictStatus.TIE
    return Vote(order, Verdict(choice, status), Completion("", FinishReason.STOP), margin)


def chance(log_odds: float) -> float:
    return 1 / (1 + math.exp(-log_odds))


@pytest.mark.parametrize(
    ("given", "swapped", "outcome"),
    [
        ("112", "", Outcome.RESPONSE_0),
        ("122", "", Outcome.RESPONSE_1),
        ("112", "112", Outcome.TIE),
        ("1", "2", Outcome.RESPONSE_0),
        ("1", "-", Outcome.NO_MAJORITY),  # one of two is not more than half
        ("222", "1--", Outcome.RESPONSE_1),  # four of six
        ("222", "---", Outcome.NO_MAJORITY),  # three of six
        ("2---", "1===", Outcome.NO_MAJORITY),
        ("1----", "", Outcome.NO_MAJORITY),
        ("1----", "1----", Outcome.NO_MAJORITY),  # one for each of ten asked: even, and most are invalid
        ("11---", "", Outcome.NO_MAJORITY),
        ("111--", "", Outcome.RESPONSE_0),
        ("11===", "", Outcome.NO_MAJORITY),
        ("12----", "", Outcome.NO_MAJORITY),  # failures are no tie
        ("12===", "", Outcome.TIE),
        ("12-", "", Outcome.TIE),
        ("-=", "--", Outcome.NO_VALID_VOTE),
        ("", "", Outcome.NO_VALID_VOTE),
    ],
)
def test_majority(given: str, swapped: str, outcome: Outcome) -> None:
    """More than half of the votes asked, whatever the orders; equal numbers are a tie if half of them or more are valid."""
    assert majority(votes(given, swapped)) is outcome
    assert judgment("p", votes(given, swapped)).outcome is outcome


@pytest.mark.parametrize(
    ("given", "swapped", "outcome"),
    [
        ("1----", "", Outcome.RESPONSE_0),
        ("1", "-", Outcome.RESPONSE_0),
        ("2---", "1===", Outcome.RESPONSE_1),
        ("12---", "", Outcome.TIE),
        ("--", "==", Outcome.NO_VALID_VOTE),
    ],
)
def test_majority_of_valid(given: str, swapped: str, outcome: Outcome) -> None:
    """The rule of papers: votes without a verdict are left out of the count, however many they are."""
    assert majority_of_valid(votes(given, swapped)) is outcome


@pytest.mark.parametrize(
    ("given", "swapped", "share"),
    [
        ("111", "1--", 0.5),  # of all valid votes together it would be 3/4
        ("1112", "2", 0.875),
        ("112", "", 2 / 3),
        ("--", "12", 0.5),
        ("11--", "", 1.0),  # half of them are valid
        ("11---", "", None),  # fewer
        ("11===", "", 1.0),  # a tie that is stated is valid
        ("-=", "--", None),
        ("", "", None),
    ],
)
def test_each_order_weighs_the_same(given: str, swapped: str, share: float | None) -> None:
    """However many of its votes are valid; an order without any leaves the other's share. Of fewer than half there is none."""
    assert share_for_0(votes(given, swapped)) == (None if share is None else pytest.approx(share))
    assert judgment("p", votes(given, swapped)).share_0 == share_for_0(votes(given, swapped))


def test_votes_of_an_order() -> None:
    assert [vote.order for vote in in_order(votes("11", "2"), GIVEN)] == [GIVEN, GIVEN]
    assert [vote.winner for vote in in_order(votes("11", "-2"), SWAPPED)] == [None, 0]


def test_a_winner_has_a_share_above_one_half() -> None:
    """Of all votes of up to four in each order, whatever is invalid: only panels, which count members, can go below."""
    for num in range(1, 5):
        each = ["".join(marks) for marks in itertools.combinations_with_replacement("12=-", num)]
        for given, swapped in itertools.product(each, each):
            judged = judgment("p", votes(given, swapped))
            if judged.outcome.winner is not None and judged.share_0 is not None:
                share = judged.share_0 if judged.outcome.winner == 0 else 1 - judged.share_0
                assert share > 0.5, (given, swapped)


def test_probability_of_both_orders() -> None:
    """Every vote of one order with every vote of the other, by log-odds: what the place adds to both cancels."""
    one = [weighed(GIVEN, 2.0), weighed(SWAPPED, -1.0)]
    assert probability_of_0(one) == pytest.approx(chance(1.5))
    for bias in (-3.0, 5.0):
        assert probability_of_0([weighed(GIVEN, 2.0 + bias), weighed(SWAPPED, -1.0 + bias)]) == pytest.approx(chance(1.5))
    more = [weighed(SWAPPED, 0.0), weighed(GIVEN, 4.0), weighed(GIVEN, -2.0), weighed(SWAPPED, 2.0)]
    expected = sum(map(chance, (2.0, 1.0, -1.0, -2.0))) / 4
    assert probability_of_0(more) == probability_of_0(more[::-1]) == pytest.approx(expected)


def test_probability_of_one_order() -> None:
    """The mean of its votes; those that could not be read are left out, and an order with none of them leaves nothing."""
    assert probability_of_0([weighed(GIVEN, 2.0), weighed(GIVEN, 0.5)]) == pytest.approx((chance(2.0) + chance(0.5)) / 2)
    assert probability_of_0([weighed(SWAPPED, 2.0)]) == pytest.approx(chance(-2.0))
    assert probability_of_0([weighed(GIVEN, 2.0), weighed(GIVEN, None)]) == pytest.approx(chance(2.0))
    assert probability_of_0([weighed(GIVEN, 2.0), weighed(GIVEN, None), weighed(GIVEN, None)]) is None
    assert probability_of_0([weighed(GIVEN, 2.0), weighed(SWAPPED, None)]) is None
    assert probability_of_0([]) is None


@pytest.mark.parametrize(
    ("given", "swapped", "outcome"),
    [
        (1.0, 1.0, Outcome.TIE),
        (1.0, 0.5, Outcome.RESPONSE_0),
        (0.5, 1.0, Outcome.RESPONSE_1),
        (-40.0, 40.0, Outcome.RESPONSE_1),
        (None, 1.0, Outcome.NO_VALID_VOTE),
    ],
)
def test_judgment_by_probability(given: float | None, swapped: float, outcome: Outcome) -> None:
    """Above one half, below, and exactly one half, which is a tie; all votes stay in the judgment."""
    cast = (weighed(GIVEN, given), weighed(SWAPPED, swapped))
    judged = judgment_by_probability("p", cast)
    assert judged == Judgment("p", cast, outcome, probability_of_0(cast))
    assert (judged.share_0 is None) == (outcome is Outcome.NO_VALID_VOTE)
    assert reduce_votes("p", cast) == judged


def test_a_missing_probability_weighs_for_neither() -> None:
    """Four rationales in each order, one of each without a verdict: 6 of 8 votes are there, so that the winner needs
    4 / 6 = .667 of their probability. A missing vote is paid for once, whichever order it is in."""

    def judged(p: float, read: tuple[int, int]) -> Outcome:
        margin = math.log(p / (1 - p))
        given = [weighed(GIVEN, margin)] * read[0] + [weighed(GIVEN, None)] * (4 - read[0])
        swapped = [weighed(SWAPPED, -margin)] * read[1] + [weighed(SWAPPED, None)] * (4 - read[1])
        judged = judgment_by_probability("p", [*given, *swapped])
        assert judged.share_0 == pytest.approx(p)
        return judged.outcome

    for read in ((3, 3), (4, 2), (2, 4)):
        assert [judged(p, read) for p in (0.88, 0.70, 0.68, 0.65, 0.35, 0.32)] == [
            *[Outcome.RESPONSE_0] * 3,
            *[Outcome.NO_MAJORITY] * 2,
            Outcome.RESPONSE_1,
        ]
    assert judged(0.99, (2, 2)) is Outcome.NO_MAJORITY  # half of the votes asked are not more than half


def test_votes_without_probabilities_are_counted() -> None:
    """Where one vote carries a probability, the judge weighs; where none does, the majority decides."""
    counted = votes("112", "2")
    assert reduce_votes("p", counted) == judgment("p", counted) == Judgment("p", counted, Outcome.RESPONSE_0, (2 / 3 + 1) / 2)
    mixed = (*votes("2"), weighed(GIVEN, 3.0), weighed(GIVEN, 3.0))  # two of three terms
    assert reduce_votes("p", mixed) == Judgment("p", mixed, Outcome.RESPONSE_0, pytest.approx(chance(3.0)))


def test_both_orders_or_none() -> None:
    """The votes of one order alone decide nothing, unless no other was wanted; a tie by probability is a valid vote."""
    both, one = judgment("p", votes("1", "2")), judgment("p", votes("11", "-="))
    assert both_orders_or_none(both) == both
    refused = both_orders_or_none(one)
    assert (refused.outcome, refused.share_0, refused.votes) == (Outcome.NO_VALID_VOTE, None, one.votes)
    assert both_orders_or_none(one, [GIVEN]) == one
    assert both_orders_or_none(one, [SWAPPED]).outcome is Outcome.NO_VALID_VOTE
    even = judgment_by_probability("p", [weighed(GIVEN, 0.0), weighed(SWAPPED, 1.0)])
    assert both_orders_or_none(even) == even


@pytest.mark.parametrize("margin", [math.nan, math.inf, -math.inf])
def test_a_stored_margin_that_is_none_is_no_vote(margin: float) -> None:
    """It would name a response: no comparison with what is no number holds."""
    row = vote_row(Vote(Order.GIVEN, Verdict(None, VerdictStatus.NO_VERDICT), Completion("", FinishReason.STOP), 0.5))
    assert vote_of(row).margin == 0.5
    with pytest.raises(ValueError, match="expected a finite number"):
        vote_of({**row, "margin": margin})
