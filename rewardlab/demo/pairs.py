"""Build the demonstration's data: train and held-out pairs that share no scene and no scan, and the truth the teacher knows."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable
from pathlib import Path

from rewardlab.data.files import read_lines, write_atomic
from rewardlab.data.images import encode_png
from rewardlab.demo import digits, scenes
from rewardlab.demo.contrast_pairs import ContrastPair
from rewardlab.demo.digits import Card
from rewardlab.demo.judgments import Truth
from rewardlab.demo.tasks import DIGIT_TASKS, SCENE_TASKS, draw_digit_contrast, draw_scene_contrast
from rewardlab.types import PreferencePair

SHARE_DIGITS = 0.25


def _draw(rng: random.Random, held_out: bool) -> tuple[ContrastPair, str, str, str, int]:
    """Return a contrast pair with its source, task, category and level."""
    if rng.random() < SHARE_DIGITS:
        task = rng.choice(list(DIGIT_TASKS))
        category, level, _ = DIGIT_TASKS[task]
        return draw_digit_contrast(rng, task, held_out=held_out), "digits", task, category, level
    task = rng.choice(list(SCENE_TASKS))
    category, levels, _ = SCENE_TASKS[task]
    level = rng.choice(levels)
    return draw_scene_contrast(rng, task, level, held_out=held_out), "scenes", task, category, level


def make_lengths_differ(rng: random.Random, answers: tuple[str, str]) -> tuple[str, str]:
    """Return the answers, one of them (by a coin) without its full stop if they are equally long.

    A judge by length therefore always has an opinion, and thanks to the coin it is worth 50 %.
    """
    if len(answers[0]) != len(answers[1]):
        return answers
    if rng.random() < 0.5:
        return answers[0].removesuffix("."), answers[1]
    return answers[0], answers[1].removesuffix(".")


def make_pair(rng: random.Random, number: int, *, held_out: bool) -> tuple[PreferencePair, Truth]:
    """Return one pair and its truth. Two coins decide which picture is shown and which answer is response 0."""
    contrast, source, task, category, level = _draw(rng, held_out)
    index = rng.randrange(2)
    picture = contrast.pictures[index]
    image = encode_png(digits.render_card(picture, rng) if isinstance(picture, Card) else scenes.render_scene(picture, rng))
    answers = make_lengths_differ(rng, contrast.answers)
    responses = answers if rng.random() < 0.5 else answers[::-1]
    right, wrong = answers[index], answers[1 - index]
    pair = PreferencePair(
        pair_id=f"{'test' if held_out else 'train'}-{number:05d}-{task}",
        question=contrast.question,
        responses=(responses[0], responses[1]),
        preferred=responses.index(right),
        images=(image,),
        category=category,
        source=source,
        level=level,
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
        task=task,
        level=level,
    )
    return pair, truth


def make_pairs(num: int, *, seed: int, held_out: bool) -> tuple[list[PreferencePair], list[Truth]]:
    """Return ``num`` pairs of one split with their truths: the same for the same seed, no image twice."""
    rng = random.Random(f"world {seed} {held_out}")  # another string here means other pairs for every seed
    pairs: list[PreferencePair] = []
    truths: list[Truth] = []
    seen: set[str] = set()
    while len(pairs) < num:
        pair, truth = make_pair(rng, len(pairs), held_out=held_out)
        if truth.image_sha256 not in seen:
            seen.add(truth.image_sha256)
            pairs.append(pair)
            truths.append(truth)
    return pairs, truths


def write_truths(truths: Iterable[Truth], path: Path) -> None:
    write_atomic(path, "".join(json.dumps(truth.to_json()) + "\n" for truth in truths))


def read_truths(path: Path) -> list[Truth]:
    return [Truth.from_json(json.loads(line)) for line in read_lines(path)]
