"""The hard demonstration: `python -m eval.hard_demo.build --out OUT` makes its pairs and its base model."""

from __future__ import annotations

import argparse
import random
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from PIL import Image

from eval.hard_demo.facts import facts_of_grid, facts_of_row
from eval.hard_demo.grid_tasks import GRID_TASKS, ITEMS_OF_LEVEL, draw_grid_contrast
from eval.hard_demo.grids import Grid, Split, UnlikeGrid, random_grid, render_grid, split_of_key
from eval.hard_demo.row_tasks import ROW_TASKS, draw_row_contrast
from eval.hard_demo.rows import DigitRow, random_row, render_row
from eval.hard_demo.unlike import draw_unlike, render_unlike
from rewardlab.demo.build import DemoConfig, build_base, build_pairs
from rewardlab.demo.facts import Fact
from rewardlab.demo.pairs import SHARE_DIGITS, DemoDifficulty, Drawing
from rewardlab.demo.tasks import Picture

FOLDER = Path(__file__).parent


def _draw(rng: random.Random, split: str) -> Drawing:
    split = Split(split)
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


def _render(picture: Picture, rng: random.Random) -> Image.Image:
    if isinstance(picture, UnlikeGrid):
        return render_unlike(picture, rng)
    assert isinstance(picture, (Grid, DigitRow))
    return render_grid(picture, rng) if isinstance(picture, Grid) else render_row(picture, rng)


def _view(rng: random.Random, share_digits: float) -> Picture:
    if rng.random() < share_digits:
        return random_row(rng, Split.TRAIN)
    while True:
        grid = random_grid(rng, rng.randint(1, max(ITEMS_OF_LEVEL.values())))
        if split_of_key(grid.key) is Split.TRAIN:
            return grid


def _facts(rng: random.Random, picture: Picture) -> list[Fact]:
    return facts_of_grid(rng, picture) if isinstance(picture, Grid) else facts_of_row(rng, picture)


HARD = DemoDifficulty(_draw, _render, _view, _facts, lambda seed, split: f"hard {seed} {split}")


@dataclass(frozen=True)
class HardConfig(DemoConfig):
    """The demonstration's sizes; validation pairs are for choosing settings, pairs unlike all others show how far a judge
    generalises."""

    difficulty: ClassVar[DemoDifficulty] = HARD
    num_validation: int = 0
    num_unlike: int = 0

    @property
    def num_of_split(self) -> dict[str, int]:
        numbers = (self.num_train, self.num_test, self.num_validation, self.num_unlike)
        return dict(zip(map(str, Split), numbers, strict=True))


def build_by_command(kind: type[DemoConfig], folder: Path, description: str | None) -> None:
    """Make the pairs and the base model that the command line asks for, with ``folder``'s config unless it names another."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--config", default=str(folder / "demo.yaml"))
    parser.add_argument("--seed", type=int)
    parser.add_argument("--no-base", action="store_true", help="make the pairs alone")
    parser.add_argument("--from-scratch", action="store_true", help="no effect: this base model is always trained")
    options = parser.parse_args()
    config = kind.load(options.config, seed=options.seed)
    build_pairs(options.out, config)
    if not options.no_base:
        build_base(options.out, config)


if __name__ == "__main__":
    build_by_command(HardConfig, FOLDER, __doc__)
