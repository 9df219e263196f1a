"""The demonstration's pairs: train and test pairs that share no scene and no scan, and the truth that its teacher knows."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from rewardlab.data.files import read_lines, write_atomic
from rewardlab.data.images import encode_png
from rewardlab.demo.facts import Fact, standard_facts
from rewardlab.demo.judgments import Truth, sample_judgments
from rewardlab.demo.pictures import (
    SHAPES,
    Card,
    Scene,
    is_held_out,
    random_card,
    random_scene,
    render_card,
    render_scene,
    with_shapes,
)
from rewardlab.demo.tasks import DIGIT_TASKS, SCENE_TASKS, ContrastPair, Picture, draw_digit_contrast, draw_scene_contrast
from rewardlab.types import PreferencePair

TRAIN_SPLIT, TEST_SPLIT = "train", "test"
SHARE_DIGITS = 0.25
SHARE_OF_TWO_SHAPES = 0.4  # of all scenes: among six shapes there is seldom anything to count


@dataclass(frozen=True)
class Drawing:
    """A contrast pair and where it comes from; ``level`` is 1, 2 or 3."""

    contrast: ContrastPair
    source: str
    task: str
    category: str
    level: int


@dataclass(frozen=True)
class DemoDifficulty:
    """``draw`` a contrast pair of a split, ``render`` a picture of it; ``view`` a training picture, for ``facts`` about it.

    ``view`` takes the fraction of pictures that show scanned digits. ``facts`` may return none. ``stream`` names the random
    numbers of a seed and a split: another string means other pairs. ``judgments`` are samples of the teacher's, for the
    tokenizer; ``words`` are what each visual token of a picture shows, for a base model that first learns to name it.
    """

    draw: Callable[[random.Random, str], Drawing]
    render: Callable[[Picture, random.Random], Image.Image]
    view: Callable[[random.Random, float], Picture]
    facts: Callable[[random.Random, Picture], list[Fact]]
    stream: Callable[[int, str], str]
    judgments: Callable[[random.Random, Truth, tuple[str, str]], list[str]] = sample_judgments
    words: Callable[[Picture], list[list[str]]] | None = None


def _draw(rng: random.Random, split: str) -> Drawing:
    held_out = split == TEST_SPLIT
    if rng.random() < SHARE_DIGITS:
        task = rng.choice(list(DIGIT_TASKS))
        category, level, _ = DIGIT_TASKS[task]
        return Drawing(draw_digit_contrast(rng, task, held_out=held_out), "digits", task, category, level)
    task = rng.choice(list(SCENE_TASKS))
    category, levels, _ = SCENE_TASKS[task]
    level = rng.choice(levels)
    return Drawing(draw_scene_contrast(rng, task, level, held_out=held_out), "scenes", task, category, level)


def _render(picture: Picture, rng: random.Random) -> Image.Image:
    assert isinstance(picture, (Scene, Card))
    return render_card(picture, rng) if isinstance(picture, Card) else render_scene(picture, rng)


def _view(rng: random.Random, share_digits: float) -> Picture:
    if rng.random() < share_digits:
        return random_card(rng, held_out=False)
    while True:
        scene: Scene | None = random_scene(rng, rng.randint(1, 4))
        if scene is not None and rng.random() < SHARE_OF_TWO_SHAPES:
            scene = with_shapes(rng, scene, rng.sample(SHAPES, 2))
        if scene is not None and not is_held_out(scene):
            return scene


# "world" keeps the pairs of a seed: the word is part of what the random numbers are drawn by.
STANDARD = DemoDifficulty(_draw, _render, _view, standard_facts, lambda seed, split: f"world {seed} {split == TEST_SPLIT}")


def make_lengths_differ(rng: random.Random, answers: tuple[str, str]) -> tuple[str, str]:
    """Return the answers, one of them (by a coin) without its full stop if they are equally long.

    A judge by length therefore always has an opinion, and thanks to the coin it is worth 50 %.
    """
    if len(answers[0]) != len(answers[1]):
        return answers
    if rng.random() < 0.5:
        return answers[0].removesuffix("."), answers[1]
    return answers[0], answers[1].removesuffix(".")


def make_pair(rng: random.Random, number: int, difficulty: DemoDifficulty, split: str) -> tuple[PreferencePair, Truth]:
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


def make_pairs(num: int, *, seed: int, held_out: bool) -> tuple[list[PreferencePair], list[Truth]]:
    """Return ``num`` train or test pairs with their truths: the same for the same seed, no image twice."""
    return pairs_of_split(num, TEST_SPLIT if held_out else TRAIN_SPLIT, seed=seed)


def pairs_of_split(
    num: int, split: str, *, seed: int, difficulty: DemoDifficulty = STANDARD
) -> tuple[list[PreferencePair], list[Truth]]:
    """Return ``num`` pairs of a split of a difficulty, as :func:`make_pairs` does."""
    rng = random.Random(difficulty.stream(seed, split))
    pairs: list[PreferencePair] = []
    truths: list[Truth] = []
    seen: set[str] = set()
    while len(pairs) < num:
        pair, truth = make_pair(rng, len(pairs), difficulty, split)
        if truth.image_sha256 not in seen:
            seen.add(truth.image_sha256)
            pairs.append(pair)
            truths.append(truth)
    return pairs, truths


def write_truths(truths: Iterable[Truth], path: Path) -> None:
    write_atomic(path, "".join(json.dumps(truth.to_json()) + "\n" for truth in truths))


def read_truths(path: Path) -> list[Truth]:
    return [Truth.from_json(json.loads(line)) for line in read_lines(path)]
