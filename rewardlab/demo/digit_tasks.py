"""Questions about cards of two handwritten digits."""

from __future__ import annotations

import random

from rewardlab.demo import digits
from rewardlab.demo.contrast_pairs import NUMBERS, Twins
from rewardlab.demo.digits import Card


def _other_digit(rng: random.Random, shown: Card, held_out: bool) -> Card:
    """The card with one of its two digits (and the scan of it) replaced."""
    place = rng.randrange(2)
    new = list(shown.digits)
    new[place] = rng.choice([d for d in range(10) if d != shown.digits[place]])
    fresh = digits.card(rng, (new[0], new[1]), held_out=held_out)
    scans = (fresh.scans[0], shown.scans[1]) if place == 0 else (shown.scans[0], fresh.scans[1])
    return Card(fresh.digits, scans, shown.row)


def in_words(shown: Card) -> str:
    """The number on a card, read digit by digit."""
    return " ".join(NUMBERS[digit] for digit in shown.digits)


def word_by_word(said: str, true: str) -> str:
    """Each word of a number beside whether it is the true one: "five yes, six no"."""
    return ", ".join(f"{a} {'yes' if a == b else 'no'}" for a, b in zip(said.split(), true.split(), strict=True))


def read_number(rng: random.Random, shown: Card, held_out: bool) -> Twins | None:
    twin = _other_digit(rng, shown, held_out)
    keys = (in_words(shown), in_words(twin))
    return Twins(
        "Which number is written?",
        (f"It is {keys[0]}.", f"It is {keys[1]}."),
        (shown, twin),
        (f"number: {keys[0]}.", f"number: {keys[1]}."),
        (
            (word_by_word(keys[0], keys[0]), word_by_word(keys[1], keys[0])),
            (word_by_word(keys[0], keys[1]), word_by_word(keys[1], keys[1])),
        ),
    )


def _both(card: Card) -> str:
    return f"left: {NUMBERS[card.digits[0]]}. right: {NUMBERS[card.digits[1]]}."


def add(rng: random.Random, shown: Card, held_out: bool) -> Twins | None:
    twin = _other_digit(rng, shown, held_out)
    keys = (NUMBERS[shown.total], NUMBERS[twin.total])
    return Twins(
        "What is the sum of the digits?",
        (f"It is {keys[0]}.", f"It is {keys[1]}."),
        (shown, twin),
        (f"{_both(shown)} sum: {keys[0]}.", f"{_both(twin)} sum: {keys[1]}."),
        (keys, keys),
    )


def larger(rng: random.Random, shown: Card, held_out: bool) -> Twins | None:
    if shown.digits[0] == shown.digits[1]:
        return None
    twin = shown.swapped()
    keys = ("left", "right") if shown.digits[0] > shown.digits[1] else ("right", "left")
    return Twins(
        "Which digit is larger?",
        (f"The {keys[0]} one.", f"The {keys[1]} one."),
        (shown, twin),
        (f"{_both(shown)} larger: {keys[0]}.", f"{_both(twin)} larger: {keys[1]}."),
        (keys, keys),
    )
