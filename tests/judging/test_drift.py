"""Alarms where live comparisons leave what was certified, and none where they do not."""

from __future__ import annotations

import random
from dataclasses import asdict, replace
from typing import Any

import pytest

from rewardlab.judging.drift import POWERS, DriftMonitor, DriftReference, _factors
from rewardlab.types import Choice, Completion, FinishReason, Judgment, Order, Outcome, Verdict, VerdictStatus, Vote

WORDS = [f"word{n}" for n in range(40)]


def judged(
    dice: random.Random, *, low: float = 0.5, alike: float = 0.9, tokens: int = 40, words: list[str] = WORDS
) -> Judgment:
    """A judgment of response 0 with a confidence of ``low`` to 1, of which the orders agree in ``alike``."""
    text = " ".join(dice.choices(words, k=12))
    completion = Completion(text, FinishReason.STOP, 12, tokens + dice.randrange(20))
    choices = (Choice.FIRST, Choice.SECOND if dice.random() < alike else Choice.FIRST)
    votes = tuple(
        Vote(order, Verdict(choice, VerdictStatus.OK), completion) for order, choice in zip(Order, choices, strict=True)
    )
    return Judgment("", votes, Outcome.RESPONSE_0, dice.uniform(low, 1.0))


@pytest.fixture(scope="module")
def reference() -> DriftReference:
    dice = random.Random(0)
    return DriftReference.of([judged(dice) for _ in range(400)])


def test_factors_are_a_bet_that_is_fair_at_the_bounds() -> None:
    """By bounds of 10, 30 and 60 %: their mean is 1, and the further out the larger. A bound of 1 loses."""
    cells = _factors([0.1, 0.3, 0.6])
    for power in range(len(POWERS)):
        factors = [cell[power] for cell in cells]
        assert sum(width * factor for width, factor in zip((0.1, 0.2, 0.3, 0.4), factors, strict=True)) == pytest.approx(1)
        assert factors == sorted(factors, reverse=True)
    assert _factors([0.1, 1.0])[-1] == list(POWERS)


def test_no_alarm_on_what_was_certified(reference: DriftReference) -> None:
    monitor, dice = DriftMonitor(DriftReference(**asdict(reference))), random.Random(1)
    assert not any(monitor.add(judged(dice)) for _ in range(2000))
    assert not monitor.left


@pytest.mark.parametrize(
    ("shift", "kind", "said"),
    [
        ({"low": 0.9}, "confidence", "the confidence is above 0."),
        ({"alike": 0.3}, "order agreement", "the two orders do not name the same response"),
        ({"tokens": 70}, "questions", "the prompt has more than 5"),
        ({"words": ["other", "words"]}, "questions", "the rationales have unusual words (above "),
    ],
)
def test_what_leaves_is_named_once(reference: DriftReference, shift: dict[str, Any], kind: str, said: str) -> None:
    """After 300 comparisons like the certified ones, within 60 unlike them."""
    monitor, dice = DriftMonitor(reference), random.Random(1)
    assert not any(monitor.add(judged(dice)) for _ in range(300))
    found = [sentence for _ in range(60) for sentence in monitor.add(judged(dice, **shift))]
    assert found == [monitor.left[kind]]
    assert found[0].startswith(f"{kind} left what was certified, after 3")
    assert said in found[0]
    assert "certify again with labels of pairs like these" in found[0]


def test_failed_votes_do_not_count(reference: DriftReference) -> None:
    monitor, one = DriftMonitor(reference), judged(random.Random(0), low=0.9, alike=0.0)
    failed = replace(one.votes[0], verdict=Verdict(None, VerdictStatus.ERROR))
    assert not any(monitor.add(replace(one, votes=(failed, one.votes[1]))) for _ in range(200))


@pytest.mark.parametrize(
    "change", [{"words": "1 2"}, {"cuts": {}}, {"num": 10}, {"hits": {}}, {"cuts": {"low confidence": ["a"]}, "hits": {}}]
)
def test_another_sketch_is_refused(reference: DriftReference, change: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError)):
        replace(reference, **change)
