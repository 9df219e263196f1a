"""Stopping early: the probability of regretting it against brute force, and what a pool of votes comes to when stopped."""

from __future__ import annotations

import math
import random
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import betabinom

from rewardlab.types import Choice, Completion, FinishReason, Order, Outcome, Verdict, VerdictStatus, Vote, choice_of
from rewardlab.verdicts.early_stopping import (
    EarlyStop,
    alternate_orders,
    is_settled,
    overturn_probability,
    stop_early,
    stopping_error,
    votes_settled,
)
from rewardlab.verdicts.votes import majority


def by_enumeration(lead: int, trail: int, left: int) -> float:
    """Every sequence of the votes to come, each next one for the leader with probability (its votes + 1) / (all + 2)."""
    total = Fraction(0)
    for coming in product((0, 1), repeat=left):
        probability, a, b = Fraction(1), lead, trail
        for vote in coming:
            chance = Fraction(a + 1, a + b + 2)
            probability *= chance if vote else 1 - chance
            a, b = a + vote, b + 1 - vote
        total += probability * (a <= b)
    return float(total)


@pytest.mark.parametrize("lead", range(5))
@pytest.mark.parametrize("left", range(7))
def test_a_lead_is_lost_as_often_as_by_enumeration(lead: int, left: int) -> None:
    for trail in range(lead + 1):
        assert overturn_probability(lead, trail, left) == pytest.approx(by_enumeration(lead, trail, left))


@pytest.mark.parametrize(("lead", "trail", "left"), [(20, 10, 34), (30, 2, 30), (17, 15, 32)])
def test_up_to_sixty_four_votes_are_exact(lead: int, trail: int, left: int) -> None:
    """To the last digit: the probabilities of what the votes to come may be, added as fractions."""
    ways = [math.comb(lead + j, j) * math.comb(trail + left - j, left - j) for j in range(left + 1)]
    taken_away = sum(way for j, way in enumerate(ways) if lead + j <= trail + left - j)
    assert overturn_probability(lead, trail, left) == float(Fraction(taken_away, sum(ways)))


def test_the_last_of_few_terms_counts() -> None:
    """40 to 0 with 42 to come: only one or none of them for the leader takes the lead away."""
    ways = [math.comb(40 + j, j) for j in range(43)]
    assert overturn_probability(40, 0, 42) == pytest.approx(float(Fraction(ways[0] + ways[1], sum(ways))), rel=1e-9, abs=0)


def test_votes_are_counted_by_whom_they_name() -> None:
    """Two to none, with two to come: taken away with probability 0.1, whoever leads. An even stand is open to the end, and so
    is one without more than half of the votes so far."""
    assert votes_settled(pool(0, 0), 2, 0.11)
    assert not votes_settled(pool(0, 0), 2, 0.09)
    assert not votes_settled(pool(0, 0, None, None), 2, 1.0)
    assert votes_settled(pool(1, 1), 2, 0.11)
    assert not votes_settled(pool(1, 1), 2, 0.09)
    assert not votes_settled(pool(0, 1), 2, 1.0)
    assert votes_settled(pool(0, 1), 0, 0.0)


def test_worked_by_hand() -> None:
    """2 to 0 with 2 left: only two votes against it make it even, with probability 1/4 * 2/5 = 0.1. More than half is safe."""
    assert overturn_probability(2, 0, 2) == pytest.approx(0.1)
    assert overturn_probability(9, 0, 7) == 0.0
    assert overturn_probability(1, 1, 0) == 1.0
    with pytest.raises(ValueError, match="lead >= trail"):
        overturn_probability(0, 1, 1)


def vote(winner: int | None, order: Order) -> Vote:
    if winner is None:
        return Vote(order, Verdict(None, VerdictStatus.NO_VERDICT), Completion("", FinishReason.STOP, 5))
    return Vote(order, Verdict(choice_of(winner, order), VerdictStatus.OK), Completion("", FinishReason.STOP, 5))


def pool(*winners: int | None) -> list[Vote]:
    """Recorded as benches record them: one order first, then the other; ``winners`` take turns."""
    given, swapped = winners[::2], winners[1::2]
    return [*(vote(w, Order.GIVEN) for w in given), *(vote(w, Order.SWAPPED) for w in swapped)]


def test_stopping() -> None:
    """Eight of sixteen alike settle it at once for a large error; an even stand, or votes that say nothing, go on."""
    easy = stop_early(pool(*[0] * 16), error=0.2)
    assert (easy.outcome, easy.num_votes, easy.num_tokens) == (Outcome.RESPONSE_0, 2, 10)
    assert stop_early(pool(*[0] * 16), error=0.0).num_votes == 10  # nine of sixteen cannot be overturned; stops are even
    assert stop_early(pool(*[0, 1] * 8), error=0.2).num_votes == 16
    late = stop_early(pool(None, None, *[1] * 14), error=0.2)  # 4 of 6: at most 8 of 16 with the probability .218
    assert (late.outcome, late.num_votes) == (Outcome.RESPONSE_1, 8)
    assert betabinom.cdf(4, 10, 5, 3) > 0.2 > betabinom.cdf(2, 8, 7, 3)
    hopeless = stop_early(pool(*[None] * 8, *[1] * 8), error=0.0)  # eight of sixteen are not more than half
    assert (hopeless.outcome, hopeless.num_votes) == (Outcome.NO_VALID_VOTE, 8)
    assert [v.order for v in alternate_orders(pool(0, 1, 0))] == [Order.GIVEN, Order.SWAPPED]
    assert not is_settled(0, 0, 0, 4, 0.9)


winners = st.lists(st.sampled_from([0, 1, None]), min_size=16, max_size=16)


@given(winners)
def test_without_error_it_is_the_majority_of_all(cast: list[int | None]) -> None:
    """Error 0 stops only when nothing can change who wins, or that nobody does."""
    stopped = stop_early(pool(*cast), 0.0)
    whole = majority(alternate_orders(pool(*cast)))
    assert stopped.outcome.winner == whole.winner
    assert stopped.num_votes <= 16


@given(winners, st.floats(0, 0.5))
def test_exchanging_the_responses_exchanges_the_outcome(cast: list[int | None], error: float) -> None:
    """And stops at the same place; a larger error never takes more votes."""
    mirrored = [None if winner is None else 1 - winner for winner in cast]
    one, other = stop_early(pool(*cast), error), stop_early(pool(*mirrored), error)
    assert (one.outcome.swap(), one.num_votes) == (other.outcome, other.num_votes)
    assert stop_early(pool(*cast), min(1.0, error * 2)).num_votes <= one.num_votes


@pytest.mark.slow
def test_the_error_is_what_was_asked_for() -> None:
    """Where shares are uniform, the model's own assumption, at most the error stops on the side that 16 votes reject."""
    dice, wrong, taken = random.Random(0), 0, 0
    for _ in range(4000):
        share = dice.random()
        votes = pool(*[int(dice.random() < share) for _ in range(16)])
        stopped = stop_early(votes, 0.05)
        wrong += stopped.outcome is not majority(alternate_orders(votes)) and stopped.num_votes < 16
        taken += stopped.num_votes
    assert wrong / 4000 < 0.05
    assert taken / 4000 < 10


def test_a_first_choice_judge_never_settles() -> None:
    """The judge votes for both responses in turn: all of the budget is spent, and the pair is even."""
    votes = [Vote(order, Verdict(Choice.FIRST, VerdictStatus.OK), Completion("", FinishReason.STOP)) for order in Order] * 8
    assert (stop_early(votes, 0.1).num_votes, stop_early(votes, 0.1).outcome) == (16, Outcome.TIE)


@pytest.mark.parametrize("share", [0.5, 0.8])
def test_the_error_of_a_pair_by_enumeration(share: float) -> None:
    """Every sequence of eight votes: where it stops, and whether all eight would have ended otherwise."""
    wrong = 0.0
    for votes in product((0, 1), repeat=8):
        ends = [n for n in range(2, 9, 2) if is_settled(votes[:n].count(0), votes[:n].count(1), 0, 8 - n, 0.1)]
        leads = [2 * votes[:n].count(0) - n for n in (ends[0], 8)]
        chance = share ** votes.count(0) * (1 - share) ** votes.count(1)
        wrong += chance * ((leads[0] > 0) - (leads[0] < 0) != (leads[1] > 0) - (leads[1] < 0))
    assert stopping_error(8, 0.1, share) == pytest.approx(wrong, abs=1e-12)
    assert wrong > 0


@pytest.mark.parametrize("num_votes", [8, 16, 32, 64])
def test_the_error_is_an_average_over_pairs(num_votes: int) -> None:
    """At 5 %, over all shares of votes alike, less than 5 %; of an even pair more."""
    shares = [(n + 0.5) / 100 for n in range(100)]
    assert sum(stopping_error(num_votes, 0.05, share) for share in shares) / 100 <= 0.05
    assert stopping_error(num_votes, 0.0) == 0.0
    assert stopping_error(16, 0.05) == pytest.approx(0.077, abs=0.001)


def test_the_last_vote_may_make_it_even() -> None:
    """1 to 0 with one to come: even with probability 1/3."""
    assert overturn_probability(1, 0, 1) == pytest.approx(1 / 3)
    assert not is_settled(1, 0, 0, 1, 0.3)
    assert is_settled(0, 1, 0, 1, 0.34)
    assert is_settled(1, 1, 0, 0, 0.0)


def test_a_pool_that_is_never_settled_is_used_whole() -> None:
    """An even stand to the end, and a pool without any vote."""
    stop = stop_early(pool(0, 1, 0, 1), 0.05)
    assert (stop.outcome, stop.num_votes, stop.num_tokens) == (Outcome.TIE, 4, 20)
    assert stop_early([], 0.05) == EarlyStop(Outcome.NO_VALID_VOTE, ())
    assert alternate_orders(pool(0, 1, 0)) == pool(0, 1)


@pytest.mark.parametrize(
    ("num_votes", "share", "simulated", "exact"),
    [
        *((8, 0.5, 0.010, 0.0078), (16, 0.5, 0.077, 0.0768), (32, 0.5, 0.085, 0.0813), (64, 0.5, 0.117, 0.1226)),
        *((8, 0.55, 0.008, 0.0075), (16, 0.55, 0.073, 0.0715), (32, 0.55, 0.066, 0.0719), (64, 0.55, 0.090, 0.1000)),
        *((8, 0.6, 0.007, 0.0066), (16, 0.6, 0.059, 0.0577), (32, 0.6, 0.048, 0.0498), (64, 0.6, 0.058, 0.0569)),
    ],
)
def test_what_a_simulation_by_others_gave(num_votes: int, share: float, simulated: float, exact: float) -> None:
    """Figures that were simulated without this code (some 1,000 pairs each, beta-binomial by scipy) lie within two of their
    standard errors of the exact ones; so does a simulation of ours, by scipy too, of more pairs."""
    assert stopping_error(num_votes, 0.05, share) == pytest.approx(exact, abs=6e-5)
    assert abs(simulated - exact) < 2 * math.sqrt(exact * (1 - exact) / 1000)
    votes = np.random.default_rng(num_votes).random((10_000, num_votes)) < share
    leads = 2 * votes.cumsum(1) - np.arange(1, num_votes + 1)
    end = np.full(len(votes), num_votes)
    for taken in range(num_votes - 2, 0, -2):  # backwards: the first stop is what stays
        leading, left = np.abs(leads[:, taken - 1]), num_votes - taken
        ahead = np.arange(taken + 1)
        lead, trail = (taken + ahead) // 2, (taken - ahead) // 2
        lost = betabinom.cdf((trail + left - lead) // 2, left, lead + 1, trail + 1)
        end = np.where(((ahead > 0) & (lost <= 0.05))[leading], taken, end)
    stopped = np.sign(leads[np.arange(len(votes)), end - 1])
    wrong = float(np.mean(stopped != np.sign(leads[:, -1])))
    assert abs(wrong - exact) < 4 * math.sqrt(exact * (1 - exact) / len(votes))
