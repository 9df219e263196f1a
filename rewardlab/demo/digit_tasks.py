"""Questions about cards of two handwritten digits."""

from __future__ import annotations

import random

from rewardlab.demo import digits
from rewardlab.demo.contrast_pairs import NUMBERS, ContrastPair
from rewardlab.demo.digits import Card


def _other_digit(rng: random.Random, card: Card, held_out: bool) -> Card:
    """Return the card with one of its two digits (and the scan of it) replaced."""
    place = rng.randrange(2)
    new = list(card.digits)
    new[place] = rng.choice([d for d in range(10) if d != card.digits[place]])
    fresh = digits.card(rng, (new[0], new[1]), held_out=held_out)
    scans = (fresh.scans[0], card.scans[1]) if place == 0 else (card.scans[0], fresh.scans[1])
    return Card(fresh.digits, scans, card.row)


def in_words(card: Card) -> str:
    """Return the number on a card, read digit by digit."""
    return " ".join(NUMBERS[digit] for digit in card.digits)


def word_by_word(claim: str, truth: str) -> str:
    """Return each word of a claimed number and whether it is the true one: "five yes, six no"."""
    return ", ".join(f"{a} {'yes' if a == b else 'no'}" for a, b in zip(claim.split(), truth.split(), strict=True))


def read_number(rng: random.Random, card: Card, held_out: bool) -> ContrastPair | None:
    variant = _other_digit(rng, card, held_out)
    keys = (in_words(card), in_words(variant))
    return ContrastPair(
        "Which number is written?",
        (f"It is {keys[0]}.", f"It is {keys[1]}."),
        (card, variant),
        (f"number: {keys[0]}.", f"number: {keys[1]}."),
        (
            (word_by_word(keys[0], keys[0]), word_by_word(keys[1], keys[0])),
            (word_by_word(keys[0], keys[1]), word_by_word(keys[1], keys[1])),
        ),
    )


def _both(card: Card) -> str:
    return f"left: {NUMBERS[card.digits[0]]}. right: {NUMBERS[card.digits[1]]}."


def add(rng: random.Random, card: Card, held_out: bool) -> ContrastPair | None:
    variant = _other_digit(rng, card, held_out)
    keys = (NUMBERS[card.total], NUMBERS[variant.total])
    return ContrastPair(
        "What is the sum of the digits?",
        (f"It is {keys[0]}.", f"It is {keys[1]}."),
        (card, variant),
        (f"{_both(card)} sum: {keys[0]}.", f"{_both(variant)} sum: {keys[1]}."),
        (keys, keys),
    )


def larger(rng: random.Random, card: Card, held_out: bool) -> ContrastPair | None:
    if card.digits[0] == card.digits[1]:
        return None
    variant = card.swapped()
    keys = ("left", "right") if card.digits[0] > card.digits[1] else ("right", "left")
    return ContrastPair(
        "Which digit is larger?",
        (f"The {keys[0]} one.", f"The {keys[1]} one."),
        (card, variant),
        (f"{_both(card)} larger: {keys[0]}.", f"{_both(variant)} larger: {keys[1]}."),
        (keys, keys),
    )
