"""Fixtures of the tests of training."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rewardlab.demo.judgments import grounded_judgment
from rewardlab.rewards.steps import judgment_steps, step_labels
from rewardlab.types import Order, PreferencePair


@pytest.fixture(scope="session")
def labelled(demo_pairs: Any) -> list[dict[str, Any]]:
    """16 judgments as `rewardlab steps` writes them, half of them misread from their first step on."""
    rows = []
    for n, (pair, truth) in enumerate(zip(*(part[:16] for part in demo_pairs), strict=True)):
        order = Order.SWAPPED if n % 4 > 1 else Order.GIVEN
        text, _ = grounded_judgment(truth, pair.shown(order), misread=bool(n % 2))
        ends = judgment_steps(text)
        labels = step_labels(len(ends), 1 if n % 2 else None)
        rows.append({"pair_id": pair.pair_id, "order": order.value, "text": text, "ends": ends, "labels": labels})
    return rows


@pytest.fixture(scope="module")
def tagged(demo_pairs: Any) -> list[PreferencePair]:
    """40 pairs, ten of each tag, in alternating orders."""
    tags = ("1", "2", "3", "unsolved")
    return [
        replace(pair, attempts=tags[n % 4], order=Order.SWAPPED if n % 8 > 3 else Order.GIVEN)
        for n, pair in enumerate(demo_pairs[0][:40])
    ]


@pytest.fixture
def hard(demo_pairs: Any) -> list[PreferencePair]:
    """16 pairs whose tag is 2."""
    return [replace(pair, attempts="2") for pair in demo_pairs[0][:16]]
