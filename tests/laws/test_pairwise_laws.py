"""Laws of a pairwise probability, for any logits: exchanging the responses, adding a bias, changing the anchor."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rewardlab.rewards.pairwise import rewards_of
from rewardlab.rl.groups import centered
from rewardlab.types import Choice, Completion, FinishReason, Order, Verdict, VerdictStatus, Vote
from rewardlab.verdicts.margins import (
    COMBINATIONS,
    Temperature,
    both_orders,
    fit_temperature,
    over_rationale_pairs,
    over_rationales,
    verdict_margins,
)
from rewardlab.verdicts.votes import probability_of_0

margins = st.floats(-30, 30)
combinations = st.sampled_from(sorted(COMBINATIONS))
seeds = st.integers(0, 10_000)


def one(value: float) -> torch.Tensor:
    return torch.tensor([value], dtype=torch.float64)


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 3


@given(margins, margins, combinations)
def test_exchanging_the_responses_turns_the_probability_over(given_: float, swapped: float, combination: str) -> None:
    """p(a, b) + p(b, a) = 1, within 0..1: the margin changes its sign exactly."""
    here, there = both_orders(one(given_), one(swapped), combination), both_orders(one(swapped), one(given_), combination)
    assert here.item() == -there.item()
    assert 0 <= here.sigmoid().item() <= 1
    assert here.sigmoid().item() + there.sigmoid().item() == pytest.approx(1, abs=1e-12)


@given(margins, combinations)
def test_a_response_against_itself_is_even(margin: float, combination: str) -> None:
    """Exactly one half: the judge is asked the same question twice."""
    assert both_orders(one(margin), one(margin), combination).sigmoid().item() == 0.5


@given(margins, margins)
def test_mean_is_the_mean_of_probabilities(given_: float, swapped: float) -> None:
    """1/2 [p(given) + 1 - p(swapped)], by its definition."""
    expected = (one(given_).sigmoid() + one(-swapped).sigmoid()) / 2
    assert both_orders(one(given_), one(swapped), "mean").sigmoid().item() == pytest.approx(expected.item(), abs=1e-12)


@given(seeds, st.floats(-50, 50))
def test_a_constant_on_all_logits_changes_nothing(seed: int, shift: float) -> None:
    """Neither margin nor coverage; and the margin ignores the tokens that are no verdict."""
    logits = normal(seed, 4, 9)
    here, there = verdict_margins(logits, [1, 2], [5]), verdict_margins(logits + shift, [1, 2], [5])
    torch.testing.assert_close(here, there, atol=1e-9, rtol=0)
    logits[:, 7] += 3
    other = verdict_margins(logits, [1, 2], [5])
    torch.testing.assert_close(here[0], other[0])
    assert (other[1] < here[1]).all()


@given(seeds, st.floats(-5, 5))
def test_a_bias_for_the_first_slot_cancels(seed: int, bias: float) -> None:
    """Added to the first verdict's tokens in both orders: log-odds are as without it; the mean is shrunk towards one half."""
    given_, swapped = normal(seed, 4, 9), normal(seed + 1, 4, 9)
    biased = [torch.cat([x[:, :1], x[:, 1:3] + bias, x[:, 3:]], 1) for x in (given_, swapped)]
    plain, moved = ([verdict_margins(x, [1, 2], [5])[0] for x in pair] for pair in ((given_, swapped), biased))
    torch.testing.assert_close(both_orders(*plain), both_orders(*moved), atol=1e-9, rtol=0)


@given(margins, st.floats(0.1, 10))
def test_the_mean_shrinks_a_biased_margin(true_margin: float, bias: float) -> None:
    """Holds for an otherwise consistent judge: never the wrong way round, never further from even than the truth."""
    mean = both_orders(one(true_margin + bias), one(-true_margin + bias), "mean").item()
    assert mean * true_margin >= 0
    assert abs(mean) <= abs(true_margin) + 1e-9


@given(seeds, st.floats(0.05, 20), combinations)
def test_temperature_changes_no_verdict(seed: int, tau: float, combination: str) -> None:
    """Same signs, still antisymmetric; and a fitted one is never worse than 1."""
    first, second = normal(seed, 20), normal(seed + 1, 20)
    total = both_orders(first, second, combination)
    scaled = Temperature(tau, fit_temperature(total, torch.zeros(20)).fit, 0.0)(total)
    assert torch.equal(scaled.sign(), total.sign())
    assert torch.equal(scaled, -Temperature(tau, fit_temperature(total, torch.zeros(20)).fit, 0.0)(-total))
    labels = (torch.arange(20) + seed) % 2
    fitted = fit_temperature(total, labels)
    assert fitted.nll <= torch.nn.functional.softplus(-total * (1 - 2 * labels)).mean().item() + 1e-9


@given(st.floats(-4, 4), st.floats(-4, 4), st.floats(-4, 4), st.floats(-3, 3))
def test_any_anchor_ranks_a_consistent_judge_alike(r1: float, r2: float, anchor: float, bias: float) -> None:
    """Where the judge is Bradley-Terry underneath: margin(1, anchor) - margin(2, anchor) = r1 - r2, whatever the slot bias."""
    beats = [both_orders(one(r - anchor + bias), one(anchor - r + bias)).item() for r in (r1, r2)]
    assert beats[0] - beats[1] == pytest.approx(r1 - r2, abs=1e-9)


@given(seeds)
def test_centring_the_reward_changes_no_advantage(seed: int) -> None:
    """prob and centered differ by one half everywhere: a group baseline takes it out."""
    against_anchor, groups = normal(seed, 8), torch.arange(8) // 4
    prob, mid = (centered(rewards_of(against_anchor, phi)[0], groups) for phi in ("probability", "centered"))
    torch.testing.assert_close(prob, mid, atol=1e-6, rtol=0)


def vote(order: Order, margin: float) -> Vote:
    return Vote(order, Verdict(Choice.FIRST, VerdictStatus.OK), Completion("", FinishReason.STOP), margin)


@given(seeds, st.integers(1, 4), st.integers(1, 4), st.floats(-5, 5))
def test_pairs_of_rationales_cancel_a_bias(seed: int, num: int, other: int, bias: float) -> None:
    """Whatever the number of rationales; exchanging the responses turns it over; of one each it is both_orders."""
    given_, swapped = normal(seed, 3, num), normal(seed + 1, 3, other)
    read = torch.ones(3, num, dtype=torch.bool), torch.ones(3, other, dtype=torch.bool)
    plain = over_rationale_pairs(given_, swapped, *read)
    torch.testing.assert_close(over_rationale_pairs(given_ + bias, swapped + bias, *read), plain, atol=1e-9, rtol=0)
    torch.testing.assert_close(over_rationale_pairs(swapped, given_, *read[::-1]), -plain, atol=1e-9, rtol=0)
    expected = sum(both_orders(given_[:, k], swapped[:, n]).sigmoid() for k in range(num) for n in range(other)) / num / other
    torch.testing.assert_close(plain.sigmoid(), expected)
    for row in range(3):  # the reducer of votes, in plain Python
        votes = [vote(Order.GIVEN, m) for m in given_[row].tolist()] + [vote(Order.SWAPPED, m) for m in swapped[row].tolist()]
        assert probability_of_0(votes) == pytest.approx(plain[row].sigmoid().item())
        assert probability_of_0([one.swap() for one in votes]) == pytest.approx(1 - plain[row].sigmoid().item())
    read[0][0] = False
    assert over_rationale_pairs(given_, swapped, *read).isnan().tolist() == [True, False, False]


@given(seeds)
def test_rationales_commute(seed: int) -> None:
    """Their order changes nothing, and one alone is itself."""
    drawn, kept = normal(seed, 1, 5), torch.ones(1, 5, dtype=torch.bool)
    torch.testing.assert_close(over_rationales(drawn, kept), over_rationales(drawn.flip(1), kept))
    torch.testing.assert_close(over_rationales(drawn[:, :1], kept[:, :1]), drawn[:, 0])
