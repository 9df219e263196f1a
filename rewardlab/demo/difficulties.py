"""The difficulties of the demonstration by name: the standard one and the hard one."""

from __future__ import annotations

import random

from PIL import Image

from rewardlab.demo import digits, scenes, tasks
from rewardlab.demo.contrast_pairs import Picture
from rewardlab.demo.difficulty import DemoDifficulty, Drawing
from rewardlab.demo.digits import Card
from rewardlab.demo.facts import standard_facts
from rewardlab.demo.hard.facts import facts_of_grid, facts_of_row
from rewardlab.demo.hard.grid_tasks import GRID_TASKS, ITEMS_OF_LEVEL, draw_grid_contrast
from rewardlab.demo.hard.grids import Grid, UnlikeGrid, random_grid, render_grid, split_of_key
from rewardlab.demo.hard.row_tasks import ROW_TASKS, draw_row_contrast
from rewardlab.demo.hard.rows import DigitRow, random_row, render_row
from rewardlab.demo.hard.unlike import draw_unlike, render_unlike
from rewardlab.demo.scenes import Scene
from rewardlab.demo.splits import Split

SHARE_DIGITS = 0.25
SHARE_OF_TWO_SHAPES = 0.4  # of all scenes: among six shapes there is seldom anything to count


def _draw_standard(rng: random.Random, split: Split) -> Drawing:
    held_out = split is Split.TEST
    if rng.random() < SHARE_DIGITS:
        task = rng.choice(list(tasks.DIGIT_TASKS))
        category, level, _ = tasks.DIGIT_TASKS[task]
        return Drawing(tasks.draw_digit_contrast(rng, task, held_out=held_out), "digits", task, category, level)
    task = rng.choice(list(tasks.SCENE_TASKS))
    category, levels, _ = tasks.SCENE_TASKS[task]
    level = rng.choice(levels)
    return Drawing(tasks.draw_scene_contrast(rng, task, level, held_out=held_out), "scenes", task, category, level)


def _render_standard(picture: Picture, rng: random.Random) -> Image.Image:
    assert isinstance(picture, (Scene, Card))
    return digits.render_card(picture, rng) if isinstance(picture, Card) else scenes.render_scene(picture, rng)


def _view_standard(rng: random.Random, share_digits: float) -> Picture:
    if rng.random() < share_digits:
        return digits.random_card(rng, held_out=False)
    while True:
        scene: Scene | None = scenes.random_scene(rng, rng.randint(1, 4))
        if scene is not None and rng.random() < SHARE_OF_TWO_SHAPES:
            scene = scenes.with_shapes(rng, scene, rng.sample(scenes.SHAPES, 2))
        if scene is not None and not scenes.is_held_out(scene):
            return scene


def _draw_hard(rng: random.Random, split: Split) -> Drawing:
    if split is Split.UNLIKE:
        return draw_unlike(rng)
    if rng.random() < SHARE_DIGITS:
        task = rng.choice(list(ROW_TASKS))
        category, level, _ = ROW_TASKS[task]
        return Drawing(draw_row_contrast(rng, task, split), "digits", task, category, level)
    task = rng.choice(list(GRID_TASKS))
    category, levels, _ = GRID_TASKS[task]
    level = rng.choice(levels)
    return Drawing(draw_grid_contrast(rng, task, level, split), "scenes", task, category, level)


def _render_hard(picture: Picture, rng: random.Random) -> Image.Image:
    """Draw a grid or a row of digits."""
    if isinstance(picture, UnlikeGrid):
        return render_unlike(picture, rng)
    assert isinstance(picture, (Grid, DigitRow))
    return render_grid(picture, rng) if isinstance(picture, Grid) else render_row(picture, rng)


def _view_hard(rng: random.Random, share_digits: float) -> Picture:
    if rng.random() < share_digits:
        return random_row(rng, Split.TRAIN)
    while True:
        grid = random_grid(rng, rng.randint(1, max(ITEMS_OF_LEVEL.values())))
        if split_of_key(grid.key) is Split.TRAIN:
            return grid


def _facts_hard(rng: random.Random, picture: Picture) -> list[tuple[str, str]]:
    return facts_of_grid(rng, picture) if isinstance(picture, Grid) else facts_of_row(rng, picture)


STANDARD, HARD = "standard", "hard"
DIFFICULTIES = {
    STANDARD: DemoDifficulty(
        "56x56 pictures of one to four drawn shapes and of two scanned digits, and eleven kinds of questions about them",
        _draw_standard,
        _render_standard,
        _view_standard,
        standard_facts,
        lambda seed, split: f"world {seed} {split is Split.TEST}",
        (Split.TRAIN, Split.TEST),
    ),
    HARD: DemoDifficulty(
        "84x84 pictures of four to seven drawn shapes and of three scanned digits, and twelve kinds of questions about them",
        _draw_hard,
        _render_hard,
        _view_hard,
        _facts_hard,
        lambda seed, split: f"hard {seed} {split}",
        tuple(Split),
    ),
}
