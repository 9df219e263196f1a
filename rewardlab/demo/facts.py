"""Short facts about a picture, in the words that grounded judgments use: what the base model learns to see and to check.

A fact is a (prompt, continuation) pair such as ("star:", " cyan."). Some come in groups that build on each other, some are
followed by a claim to check ("claim blue:", " blue, wrong."), some stand between two claims and the check of both, and one in
eight is a phrase to repeat. A hub checkpoint can name what it sees, repeat what it reads and tell whether two phrases agree;
the base model learns that much from these, and learns nothing of questions, responses or verdicts.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from rewardlab.demo.pictures import COLORS, PLACES, SHAPES, Card, Scene, plural
from rewardlab.demo.tasks import NUMBERS, Picture, choose_other, in_words, looked_up, relations, word_by_word

Fact = tuple[str, str]
SHARE_CHECKED = 0.25
SHARE_COMPARED = 0.35
SHARE_REPEATED = 0.125


def facts_of(
    rng: random.Random, picture: Picture, num: int, draw: Callable[[random.Random, Picture], list[Fact]]
) -> list[Fact]:
    """Return at least ``num`` facts about a picture; ``draw`` returns those of one kind."""
    facts: list[Fact] = []
    while len(facts) < num:
        if rng.random() < SHARE_REPEATED:
            facts.append(_repeated(rng))
        facts += draw(rng, picture)
    return facts


def standard_facts(rng: random.Random, picture: Picture) -> list[Fact]:
    """Return facts of one kind about a scene or a card of the standard demonstration; none if the draw came to nothing."""
    assert isinstance(picture, (Scene, Card))
    return _card_facts(rng, picture) if isinstance(picture, Card) else _scene_facts(rng, picture)


def _repeated(rng: random.Random) -> Fact:
    """Two phrases that differ in one word or in both, and one of them again; neither is about the picture."""
    words = rng.choice(((tuple(COLORS), SHAPES), (NUMBERS[:10], NUMBERS[:10])))
    first = [rng.choice(options) for options in words]
    second = [rng.choice(options) if rng.random() < 0.6 else word for options, word in zip(words, first, strict=True)]
    again, phrase = rng.choice((("first", first), ("second", second)))
    return f"first: {' '.join(first)}. second: {' '.join(second)}. {again}:", f" {' '.join(phrase)}."


def fact_with_checks(
    rng: random.Random,
    subject: str,
    key: str,
    options: list[str] | tuple[str, ...],
    check: Callable[[str, str], str] = lambda claim, key: claim,
) -> list[Fact]:
    """A fact, alone or with a claim to check behind it, or between two claims and the check of both, written by ``check``."""
    fact, claim = (f"{subject}:", f" {key}."), key if rng.random() < 0.5 else choose_other(rng, options, key)
    roll = rng.random()
    if roll < SHARE_CHECKED:
        return [fact, (f"claim {claim}:", f" {check(claim, key)}, {'correct' if claim == key else 'wrong'}.")]
    if roll < SHARE_CHECKED + SHARE_COMPARED:
        rival = key if claim != key else choose_other(rng, options, key)
        checks = [f" {check(c, key)}, {'correct' if c == key else 'wrong'}." for c in (claim, rival)]
        return [(f"first: {claim}. second: {rival}. {fact[0]}", fact[1]), ("first:", checks[0]), ("second:", checks[1])]
    return [fact]


def _card_facts(rng: random.Random, card: Card) -> list[Fact]:
    left, right = (NUMBERS[digit] for digit in card.digits)
    kind = rng.choice(("number", "number", "number", "sum", "sum", "larger"))
    if kind == "number":
        misreadings = [f"{left} {digit}" for digit in NUMBERS[:10]] + [f"{digit} {right}" for digit in NUMBERS[:10]]
        return fact_with_checks(rng, "number", in_words(card), misreadings, word_by_word)
    both = [("left:", f" {left}."), ("right:", f" {right}.")]
    if kind == "sum":
        return both + fact_with_checks(rng, "sum", NUMBERS[card.total], NUMBERS)
    if left == right:
        return both
    return both + fact_with_checks(rng, "larger", "left" if card.digits[0] > card.digits[1] else "right", ("left", "right"))


def _scene_facts(rng: random.Random, scene: Scene) -> list[Fact]:
    kind = rng.choice(("color", "shape", "where", "exists", "exists", "count", "count", "at", "at", "relation", "more"))
    thing = rng.choice(scene.things)
    if kind == "color":
        single = scene.num_shape(thing.shape) == 1
        return fact_with_checks(rng, thing.shape, thing.color, list(COLORS)) if single else []
    if kind == "shape":
        return fact_with_checks(rng, thing.color, thing.shape, SHAPES) if scene.num_color(thing.color) == 1 else []
    if kind == "where":
        return fact_with_checks(rng, thing.name, thing.place, PLACES)
    if kind == "at":
        return [(f"{thing.place}:", f" {thing.name}.")]
    if kind == "count":
        shape = thing.shape if rng.random() < 0.8 else rng.choice(SHAPES)
        return fact_with_checks(rng, plural(shape), NUMBERS[scene.num_shape(shape)], NUMBERS[:5])
    if kind == "exists":
        return _existence(rng, scene)
    if len(scene.things) < 2:
        return []
    return _relation(rng, scene) if kind == "relation" else _more(rng, scene)


def _existence(rng: random.Random, scene: Scene) -> list[Fact]:
    """The shapes of one colour, and whether one named shape is among them."""
    thing = rng.choice(scene.things)
    color, shape = thing.color, thing.shape
    if rng.random() < 0.5:
        color, shape = rng.choice(((color, choose_other(rng, SHAPES, shape)), (choose_other(rng, list(COLORS), color), shape)))
    shapes, answer = looked_up(scene, color, shape)
    facts = [(f"{color}:", f" {shapes},"), (shape, f" {answer}.")]
    if rng.random() < SHARE_CHECKED:
        claim = rng.choice(("yes", "no"))
        facts.append((f"{claim},", f" {'correct' if claim == answer else 'wrong'}."))
    return facts


def _relation(rng: random.Random, scene: Scene) -> list[Fact]:
    a, b = rng.sample(scene.things, 2)
    keys = rng.choice(relations(a, b))
    axis = "side" if keys[0].endswith("of") else "height"
    return [(f"{a.name}:", f" {a.place}."), (f"{b.name}:", f" {b.place}."), *fact_with_checks(rng, axis, keys[0], keys)]


def _more(rng: random.Random, scene: Scene) -> list[Fact]:
    a = rng.choice(scene.things).shape
    b = choose_other(rng, SHAPES, a)
    counts = {s: scene.num_shape(s) for s in (a, b)}
    tally = [(f"{plural(s)}:", f" {NUMBERS[n]}.") for s, n in counts.items()]
    if counts[a] == counts[b]:
        return tally
    most = max(counts, key=counts.__getitem__)
    return tally + fact_with_checks(rng, "more", plural(most), (plural(a), plural(b)))
