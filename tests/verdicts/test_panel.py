"""The laws of a panel: symmetric under a swap, indifferent to who sits where, and of one member that member."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardlab.types import BOTH_ORDERS, Outcome, VerdictStatus, Vote
from rewardlab.verdicts.panel import LOG_ODDS_LIMIT, log_odds_of, member_judgments, panel_judgment
from rewardlab.verdicts.votes import both_orders_or_none, reduce_votes
from tests.support.labeled import labeled

MARKS = st.text("12=-", min_size=1, max_size=3)
MEMBERS = st.lists(st.tuples(MARKS, MARKS, st.booleans()), min_size=1, max_size=5)
RULES = pytest.mark.parametrize("by_log_odds", [False, True], ids=["majority", "log-odds"])
Member = tuple[str, str, bool]
OTHER = str.maketrans("12", "21")


def votes_of(members: list[Member]) -> list[Vote]:
    """Votes of members written as marks of either order; a member that tells probabilities is surer of its first votes."""
    votes = []
    for n, (given_marks, swapped_marks, has_margins) in enumerate(members):
        for k, vote in enumerate(labeled(given_marks, swapped_marks).judgment.votes):
            sign = 0 if vote.verdict.choice is None else 1 if vote.verdict.choice == "first" else -1
            is_read = has_margins and vote.verdict.status in (VerdictStatus.OK, VerdictStatus.TIE)
            votes.append(replace(vote, member=f"m{n}", margin=sign / (k + 1) if is_read else None))
    return votes


def mirrored(members: list[Member]) -> list[Member]:
    """Return the members, and for each one that finds the opposite."""
    return [*members, *((a.translate(OTHER), b.translate(OTHER), margins) for a, b, margins in reversed(members))]


@given(members=MEMBERS)
def test_opposites_are_a_tie(members: list[Member]) -> None:
    """Exactly, in whatever order the log-odds are added; and with the responses exchanged."""
    votes = votes_of(mirrored(members))
    for each in (votes, [vote.swap() for vote in votes]):
        judged = panel_judgment("p", each, by_log_odds=True)
        assert judged.outcome.winner is None
        assert judged.share_0 in (0.5, None)
        if all(voice.share_0 is not None for voice in member_judgments(each).values()):
            assert (judged.outcome, judged.share_0) == (Outcome.TIE, 0.5)


@RULES
@given(members=MEMBERS)
def test_swap_symmetry(by_log_odds: bool, members: list[Member]) -> None:
    votes = votes_of(members)
    one = panel_judgment("p", votes, by_log_odds=by_log_odds)
    other = panel_judgment("p", [vote.swap() for vote in votes], by_log_odds=by_log_odds).swap()
    assert one.outcome is other.outcome
    assert one.share_0 == other.share_0 == None or math.isclose(one.share_0, other.share_0, abs_tol=1e-12)  # type: ignore[arg-type]  # noqa: E711


@RULES
@given(members=MEMBERS, data=st.data())
def test_the_order_of_members_says_nothing(by_log_odds: bool, members: list[Member], data: st.DataObject) -> None:
    votes = votes_of(members)
    names = data.draw(st.permutations(sorted({vote.member for vote in votes})))
    moved = [vote for name in names for vote in votes if vote.member == name]
    one, other = (panel_judgment("p", each, by_log_odds=by_log_odds) for each in (votes, moved))
    assert one.outcome is other.outcome
    assert one.share_0 == other.share_0


@given(member=st.tuples(MARKS, MARKS, st.booleans()))
def test_one_member_is_that_member(member: Member) -> None:
    """Votes, outcome and share; without a valid vote in an order it abstains. Pooled, it names the same response."""
    votes = votes_of([member])
    alone = both_orders_or_none(reduce_votes("p", votes))
    assert panel_judgment("p", votes) == alone
    pooled = panel_judgment("p", votes, by_log_odds=True)
    if alone.share_0 is None:
        assert pooled == alone
    else:
        assert pooled.outcome.winner == (None if alone.share_0 == 0.5 else int(alone.share_0 < 0.5))


@RULES
@given(members=MEMBERS)
def test_who_abstains_makes_no_winner(by_log_odds: bool, members: list[Member]) -> None:
    """A member that cannot be read in one order has no voice, however sure the other order is, and stays in the count."""
    votes = votes_of(members)
    silent = [replace(vote, member="silent", margin=None) for vote in labeled("111", "---").judgment.votes]
    one, other = (panel_judgment("p", each, by_log_odds=by_log_odds) for each in (votes, [*votes, *silent]))
    assert other.outcome.winner in (None, one.outcome.winner)
    assert other.share_0 in (None, one.share_0)
    assert member_judgments([*votes, *silent])["silent"].outcome is Outcome.NO_VALID_VOTE


def test_one_voice_each() -> None:
    """Two members that find 0 narrowly outvote one that is sure of 1; pooled by log-odds the sure one weighs more."""
    members = [("112", "221", False), ("112", "221", False), ("222", "111", False)]
    votes = votes_of(members)
    assert panel_judgment("p", votes).outcome is Outcome.RESPONSE_0
    pooled = panel_judgment("p", votes, by_log_odds=True)
    by_hand = (2 * math.log(4.5 / 2.5) + math.log(0.5 / 6.5)) / 3
    assert pooled.share_0 == pytest.approx(1 / (1 + math.exp(-by_hand)))
    assert (pooled.pair_id, pooled.outcome) == ("p", Outcome.RESPONSE_1)
    assert panel_judgment("p", votes_of([("1", "1", False)]), by_log_odds=True).pair_id == "p"
    assert {judged.pair_id for judged in member_judgments(votes).values()} == {""}  # of any pair


def test_a_member_that_was_asked_in_one_order_has_a_voice() -> None:
    """It abstains only where an order that was asked gave nothing."""
    votes = votes_of([("11", "", False)])
    assert (panel_judgment("p", votes).outcome, panel_judgment("p", votes).share_0) == (Outcome.RESPONSE_0, 1.0)


def test_a_winner_needs_more_than_half_of_the_members() -> None:
    """Members that find a tie, and those that abstain, are asked too: one of three, and one of two, are not enough."""
    looks, leans, silent = ("1", "2", False), ("1", "1", False), ("1", "-", False)
    panels = {
        (looks, looks, silent): Outcome.RESPONSE_0,
        (looks, looks, leans): Outcome.RESPONSE_0,
        (looks, leans, leans): Outcome.NO_MAJORITY,
        (looks, silent): Outcome.NO_MAJORITY,
        (looks, ("2", "1", False), leans): Outcome.TIE,
        (silent, silent): Outcome.NO_VALID_VOTE,
    }
    assert {members: panel_judgment("p", votes_of(list(members))).outcome for members in panels} == panels
    assert panel_judgment("p", votes_of([looks, silent])).share_0 == 1.0
    assert panel_judgment("p", votes_of([looks, silent, silent])).share_0 is None  # fewer than half have a voice
    # Pooled, one vote of either order is (2.5 / .5) to 1, .83: of two of three members it comes to .56, of one of two to .42.
    assert panel_judgment("p", votes_of([looks, looks, silent]), by_log_odds=True).outcome is Outcome.RESPONSE_0
    assert panel_judgment("p", votes_of([looks, silent]), by_log_odds=True).outcome is Outcome.NO_MAJORITY
    assert panel_judgment("p", votes_of([("1", "1", False)])).outcome is Outcome.TIE
    assert panel_judgment("p", votes_of([("-", "-", False)])).outcome is Outcome.NO_VALID_VOTE
    assert panel_judgment("p", []).outcome is Outcome.NO_VALID_VOTE


def test_log_odds_stay_finite() -> None:
    votes = [replace(vote, margin=margin) for vote, margin in zip(labeled("1", "2").judgment.votes, (99, -99), strict=True)]
    assert {vote.order for vote in votes} == set(BOTH_ORDERS)
    assert log_odds_of(reduce_votes("p", votes)) == pytest.approx(math.log(0.9999 / 0.0001))
    for share, odds in ((1.0, LOG_ODDS_LIMIT), (0.0, -LOG_ODDS_LIMIT), (0.75, math.log(3))):
        assert log_odds_of(replace(reduce_votes("p", votes), share_0=share)) == pytest.approx(odds)
