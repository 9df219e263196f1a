"""Build the demonstration's data: train and held-out pairs that share no scene and no scan, and the truth the teacher knows."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable
from pathlib import Path

from rewardlab.data.files import read_lines, write_atomic
from rewardlab.data.images import encode_png
from rewardlab.demo.difficulties import DIFFICULTIES, STANDARD
from rewardlab.demo.difficulty import DemoDifficulty
from rewardlab.demo.judgments import Truth
from rewardlab.demo.splits import Split
from rewardlab.types import PreferencePair


def make_lengths_differ(rng: random.Random, answers: tuple[str, str]) -> tuple[str, str]:
    """Return the answers, one of them (by a coin) without its full stop if they are equally long.

    A judge by length therefore always has an opinion, and thanks to the coin it is worth 50 %.
    """
    if len(answers[0]) != len(answers[1]):
        return answers
    if rng.random() < 0.5:
        return answers[0].removesuffix("."), answers[1]
    return answers[0], answers[1].removesuffix(".")


def make_pair(rng: random.Random, number: int, difficulty: DemoDifficulty, split: Split) -> tuple[PreferencePair, Truth]:
    """Return one pair and its truth. Two coins decide which picture is shown and which answer is response 0."""
    drawing = difficulty.draw(rng, split)
    contrast = drawing.contrast
    index = rng.randrange(2)
    image = encode_png(difficulty.render(contrast.pictures[index], rng))
    answers = make_lengths_differ(rng, contrast.answers)
    responses = answers if rng.random() < 0.5 else answers[::-1]
    right, wrong = answers[index], answers[1 - index]
    pair = PreferencePair(
        pair_id=f"{split}-{number:05d}-{drawing.task}",
        question=contrast.question,
        responses=(responses[0], responses[1]),
        preferred=responses.index(right),
        images=(image,),
        category=drawing.category,
        source=drawing.source,
        level=drawing.level,
    )
    truth = Truth(
        image_sha256=hashlib.sha256(image).hexdigest(),
        question=contrast.question,
        right=right,
        wrong=wrong,
        fact=contrast.facts[index],
        checks=(contrast.checks[index][index], contrast.checks[index][1 - index]),
        other_fact=contrast.facts[1 - index],
        other_checks=(contrast.checks[1 - index][index], contrast.checks[1 - index][1 - index]),
        task=drawing.task,
        level=drawing.level,
    )
    return pair, truth


def make_pairs(num: int, *, seed: int, held_out: bool, difficulty: str = STANDARD) -> tuple[list[PreferencePair], list[Truth]]:
    """Return ``num`` train or test pairs with their truths: the same for the same seed, no image twice."""
    return pairs_of_split(num, Split.TEST if held_out else Split.TRAIN, seed=seed, difficulty=difficulty)


def pairs_of_split(num: int, split: Split, *, seed: int, difficulty: str) -> tuple[list[PreferencePair], list[Truth]]:
    """Return ``num`` pairs of a split of a difficulty, as :func:`make_pairs` does."""
    kind = DIFFICULTIES[difficulty]
    rng = random.Random(kind.stream(seed, split))
    pairs: list[PreferencePair] = []
    truths: list[Truth] = []
    seen: set[str] = set()
    while len(pairs) < num:
        pair, truth = make_pair(rng, len(pairs), kind, split)
        if truth.image_sha256 not in seen:
            seen.add(truth.image_sha256)
            pairs.append(pair)
            truths.append(truth)
    return pairs, truths


def write_truths(truths: Iterable[Truth], path: Path) -> None:
    write_atomic(path, "".join(json.dumps(truth.to_json()) + "\n" for truth in truths))


def read_truths(path: Path) -> list[Truth]:
    return [Truth.from_json(json.loads(line)) for line in read_lines(path)]
