"""A judge that looks again: ``python -m eval.long_demo.walls``

A wall is a picture of 448x448 px with 4x4 sheets, each with a sign and eight handwritten digits. Judges see at most 112x112 px,
so that a sheet is one visual token: its sign can be read, its digits cannot. A part of a quarter of the wall's width and height
has a digit in each visual token. Half of the questions are about a sign, where a look is not needed.

The teacher looks at every other sign, and guesses every fourth digit without a look. Compared, from one base model: a judge
without looks, one with looks, and both after RL; the one with looks also with a cost of each.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from eval.long_demo.sheets import LABELS, SIDE, TABS, Line, Sheet, draw_sign, render_sheet
from eval.studies.method_evaluation import Evaluator
from eval.studies.study import make_once
from eval.studies.tables import cell, mean_of
from rewardlab.config import RLConfig, SFTConfig, load_config
from rewardlab.data.files import write_atomic
from rewardlab.data.images import encode_png
from rewardlab.demo.tasks import NUMBERS, choose_other
from rewardlab.errors import ConfigError
from rewardlab.models.checkpoints import commit, template_for
from rewardlab.models.loading import load_model
from rewardlab.training.rl import train_rl
from rewardlab.training.run.folder import FINAL, is_finished
from rewardlab.training.sft import train_sft
from rewardlab.types import Choice, Order, PreferencePair, Vote, choice_of
from rewardlab.verdicts.turns import Look, num_looks

COMMAND = "python -m eval.long_demo.walls"
FOLDER = Path(__file__).parent
TEMPLATES = {"plain": "plain", "look": f"look:{FOLDER / 'look.txt'}"}  # a long prompt would be most of the tiny model's work
SHEET_PX = 112
SIGNS = ("add", "take", "odd")
CELLS = tuple(n for n in range(SIDE * SIDE) if n % SIDE >= SIDE // 2)  # of a sheet, with a digit; the sign has the others
DETAIL, PLAIN = "detail", "plain"  # kinds of questions
PERCENT = 100 // SIDE


@dataclass(frozen=True)
class WallConfig:
    """Sizes of the world and lengths of its trainings. ``cost``: of a look, in the arm that has one."""

    num_train: int = 4000
    num_test: int = 300
    sft_steps: int = 500
    steps: int = 60
    cost: float = 0.1
    num_votes: int = 4
    seed: int = 0


@dataclass(frozen=True)
class Wall:
    """A sign and eight digits of each sheet, with the scans of these."""

    signs: tuple[str, ...]
    sheets: tuple[Sheet, ...]

    def word(self, place: int, line: int | None) -> str:
        """Return the sign of a sheet, or one of its digits."""
        return self.signs[place] if line is None else NUMBERS[self.sheets[place].lines[line].digit]


def random_wall(rng: random.Random, held_out: bool) -> Wall:
    def sheet() -> Sheet:
        lines = [Line(n, "", 0).with_digit(rng.randrange(10), held_out=held_out, rng=rng) for n in CELLS]
        return Sheet("sum", tuple(lines))

    return Wall(tuple(rng.choice(SIGNS) for _ in LABELS), tuple(sheet() for _ in LABELS))


def render_wall(wall: Wall, rng: random.Random) -> Image.Image:
    image = Image.new("RGB", (SIDE * SHEET_PX, SIDE * SHEET_PX))
    for place, (sign, sheet) in enumerate(zip(wall.signs, wall.sheets, strict=True)):
        part = render_sheet(sheet, rng)
        draw = ImageDraw.Draw(part)
        draw.rectangle([0, 0, 4 * SIDE - 1, SHEET_PX - 1], fill=TABS[place])
        draw_sign(draw, sign, 32 + rng.uniform(-2, 2), 56 + rng.uniform(-8, 8), scale=SIDE)
        image.paste(part, (SHEET_PX * (place % SIDE), SHEET_PX * (place // SIDE)))
    return image


def look_at(place: int) -> Look:
    left, top = PERCENT * (place % SIDE), PERCENT * (place // SIDE)
    return Look(0, (left, top, left + PERCENT, top + PERCENT))


def wall_pair(rng: random.Random, number: int, *, held_out: bool, looks: bool) -> PreferencePair:
    """Return a pair with its teacher's judgment. Both answers name a sign or a digit; one is that of the picture."""
    wall, place, is_detail = random_wall(rng, held_out), rng.randrange(len(LABELS)), rng.random() < 0.5
    line = rng.randrange(len(CELLS)) if is_detail else None
    seen = wall.word(place, line)
    other = choose_other(rng, list(NUMBERS[:10] if is_detail else SIGNS), seen)
    name = f"{LABELS[place]} {LABELS[CELLS[line]]}" if line is not None else LABELS[place]
    preferred, order = rng.randrange(2), rng.choice(list(Order))
    responses = (f"{seen}.", f"{other}.") if preferred == 0 else (f"{other}.", f"{seen}.")
    pair = PreferencePair(
        f"wall-{number:05d}", f"{name}?", responses, preferred, images=(encode_png(render_wall(wall, rng)),),
        category=DETAIL if is_detail else PLAIN, order=order, attempts="2",
    )  # fmt: skip
    right = choice_of(preferred, order)
    if is_detail and (not looks or rng.random() < 0.25):  # guessed
        thought, choice = name, rng.choice(list(Choice))
    else:
        look = str(look_at(place)) if looks and (is_detail or rng.random() < 0.5) else ""
        claims = [text.removesuffix(".") for text in pair.shown(order)]  # repeated, as the base model learnt to compare
        first, second = (f"{claim} {'yes' if claim == seen else 'no'}" for claim in claims)
        thought, choice = f"{LABELS[place]}{look} {name} {seen}; first {first}; second {second}", right
    return replace(pair, judgment=f"<think>{thought}.</think><answer>{1 if choice is Choice.FIRST else 2}</answer>")


def wall_pairs(num: int, config: WallConfig, *, held_out: bool, looks: bool) -> list[PreferencePair]:
    rng = random.Random(f"walls {config.seed} {held_out}")
    return [wall_pair(random.Random(rng.random()), number, held_out=held_out, looks=looks) for number in range(num)]


def measure(checkpoint: Path, test: Sequence[PreferencePair], config: WallConfig) -> dict[str, Any]:
    """Return sampled and greedy accuracy on either kind of question, the looks of a judgment, and its tokens."""
    model, processor = load_model(str(checkpoint), device="cpu")
    evaluator = Evaluator(processor, template_for(checkpoint, None), max_tokens=96, num_votes=config.num_votes, seed=1000)
    scores: dict[str, Any] = {}
    for name, temperature, number in (("sampled", 1.0, config.num_votes), ("greedy", 0.0, 1)):
        judged = evaluator.judgments(model, test, number, temperature=temperature)
        for kind in (DETAIL, PLAIN):
            votes: list[tuple[Vote, int]] = [
                (vote, int(pair.preferred or 0))
                for pair, of in zip(test, judged, strict=True)
                if pair.category == kind
                for vote in of.votes
            ]
            scores[f"{name}_{kind}"] = float(np.mean([vote.winner == preferred for vote, preferred in votes]))
            if name == "sampled":
                scores[f"looks_{kind}"] = float(np.mean([num_looks(vote.completion.text) for vote, _ in votes]))
                scores[f"invalid_{kind}"] = float(np.mean([vote.winner is None for vote, _ in votes]))
                scores[f"tokens_{kind}"] = float(np.mean([vote.completion.num_tokens for vote, _ in votes]))
    return scores


def run(long_run: Path, out: Path, config: WallConfig) -> dict[str, Any]:
    """Train and measure all judges of a seed, each once."""
    kept = make_once(out / "config.json", lambda: asdict(config))
    if kept != asdict(config):
        raise ConfigError(f"{out}: holds judges of another config ({kept}); use another --out")
    rows: dict[str, Any] = {}
    for start, looks in (("plain", False), ("look", True)):
        train, test = (
            wall_pairs(num, config, held_out=held_out, looks=looks)
            for num, held_out in ((config.num_train, False), (config.num_test, True))
        )
        if not is_finished(out / start):
            keys = {"model": str(long_run / "demo" / "base"), "template": TEMPLATES[start], "seed": config.seed}
            train_sft(train, load_config(SFTConfig, FOLDER / "sft.yaml", **keys, max_steps=config.sft_steps), out / start)
        arms = {f"{start}_rl": 0.0} | ({"look_rl_cost": config.cost} if looks else {})
        for name, folder in {start: out / start, **{arm: out / arm for arm in arms}}.items():
            if name in arms and not is_finished(folder):
                keys = {
                    "model": str(out / start / FINAL),
                    "template": TEMPLATES[start],
                    "seed": config.seed,
                    "max_steps": config.steps,
                }
                more = {"look_cost": arms[name], "max_completion_length": 96, "learning_rate": 1e-4}
                train_rl(train, load_config(RLConfig, FOLDER / "rl.yaml", **keys, **more), folder)
            rows[name] = make_once(out / f"{name}.json", lambda folder=folder, test=test: measure(folder / FINAL, test, config))  # type: ignore[misc]
    return {"seed": config.seed, **rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--long", type=Path, default=Path("runs/long"), help="folder of `eval.long_demo.quickstart` runs")
    parser.add_argument("--out", type=Path, default=Path("runs/walls"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    rows = [run(options.long / str(seed), options.out / str(seed), WallConfig(seed=seed)) for seed in options.seeds]
    write_atomic(
        options.out / "result.json", json.dumps({"command": COMMAND, "commit": commit(), "seeds": rows}, indent=1) + "\n"
    )
    for arm in (name for name in rows[0] if name != "seed"):
        figures = {name: mean_of([row[arm][name] for row in rows]) for name in rows[0][arm]}
        print(arm, *(f"{name} {cell(value, 1 if 'tokens' in name else 100)}" for name, value in figures.items()), sep="; ")


if __name__ == "__main__":
    main()
