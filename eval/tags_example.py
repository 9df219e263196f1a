"""Pairs for a judge of tags: which of two titles fits three clips, which of two items fits a query.

``python -m eval.tags_example --out runs/tags`` writes ``train.jsonl`` and ``test.jsonl`` with their pictures. A clip is two
drawings of one scene, as two frames of it. Both titles name a colour that is in the clips; the right one is in all three. An
item is a picture within a response. The judgments name what is seen, so that SFT teaches to look
at each clip before it answers.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rewardlab.data.files import write_atomic
from rewardlab.data.images import encode_png
from rewardlab.demo.pictures import COLORS, SHAPES, Scene, is_held_out, random_scene, render_scene
from rewardlab.demo.tasks import choose_other

NUM_CLIPS, NUM_FRAMES, NUM_THINGS = 3, 2, 2
Row = dict[str, Any]
Save = Callable[[Scene, random.Random], dict[str, str]]
"""Writes a picture of a scene and returns the part of a message that names it."""


def _scene(rng: random.Random, held_out: bool, fits: Callable[[Scene], bool]) -> Scene:
    while True:
        scene = random_scene(rng, NUM_THINGS)
        if is_held_out(scene) == held_out and fits(scene):
            return scene


def _of_color(scene: Scene, color: str) -> str:
    return " ".join(thing.shape for thing in scene.things if thing.color == color) or "none"


def title_row(rng: random.Random, save: Save, *, held_out: bool) -> Row:
    """Return a row whose question shows three clips and whose responses are two titles."""
    right = rng.choice(list(COLORS))
    wrong = choose_other(rng, list(COLORS), right)
    absent = rng.randrange(NUM_CLIPS)  # the clip that the wrong title does not fit
    scenes = [
        _scene(rng, held_out, lambda s, n=n: bool(s.num_color(right)) and (s.num_color(wrong) > 0) == (n != absent))
        for n in range(NUM_CLIPS)
    ]
    parts: list[dict[str, str]] = [{"type": "text", "text": "Which title fits all clips?"}]
    for number, scene in enumerate(scenes, 1):
        parts.append({"type": "text", "text": f" Clip {number}: "})
        parts += [save(scene, rng) for _ in range(NUM_FRAMES)]
    responses = [f"Something {right}.", f"Something {wrong}."]
    seen = [f"{color}: {', '.join(_of_color(scene, color) for scene in scenes)}" for color in (right, wrong)]
    return _row(rng, "title", parts, responses, seen)


def item_row(rng: random.Random, save: Save, *, held_out: bool) -> Row:
    """Return a row whose question is a query and whose responses are two pictures of items."""
    color, shape = rng.choice(list(COLORS)), rng.choice(SHAPES)
    name = f"{color} {shape}"
    right = _scene(rng, held_out, lambda s: name in s.names())
    wrong = _scene(rng, held_out, lambda s: name not in s.names() and bool(s.num_color(color) or s.num_shape(shape)))
    parts = [{"type": "text", "text": f"Which item is a {name}?"}]
    seen = [f"{color}: {_of_color(scene, color)}" for scene in (right, wrong)]
    return _row(rng, "item", parts, [[save(right, rng)], [save(wrong, rng)]], seen)


def _row(rng: random.Random, category: str, question: Any, responses: list[Any], seen: list[str]) -> Row:
    """Return a row with the right response, the first of ``responses``, in a random place."""
    order = [0, 1] if rng.random() < 0.5 else [1, 0]
    marks = [f"Response {n}: {seen[i]}, {'wrong' if i else 'correct'}." for n, i in enumerate(order, 1)]
    judgment = f"<think>{' '.join(marks)}</think><answer>{order.index(0) + 1}</answer>"
    shown = [responses[i] for i in order]
    return {"question": question, "responses": shown, "preferred": order.index(0), "category": category, "judgment": judgment}


def write_rows(out: Path, split: str, number: int, seed: int) -> Path:
    """Write ``number`` rows of a split and their pictures, and return the file."""
    rng, rows = random.Random(f"tags {seed} {split}"), []
    for place in range(number):
        num_saved = 0

        def save(scene: Scene, dice: random.Random, place: int = place) -> dict[str, str]:
            nonlocal num_saved
            path = out / "pictures" / f"{split}-{place}-{num_saved}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encode_png(render_scene(scene, dice)))
            num_saved += 1
            return {"type": "image", "image": str(path.relative_to(out))}

        make = title_row if rng.random() < 0.5 else item_row
        rows.append(make(rng, save, held_out=split == "test"))
    path = out / f"{split}.jsonl"
    write_atomic(path, "".join(json.dumps(row) + "\n" for row in rows))
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/tags"))
    parser.add_argument("--train", type=int, default=2000, help="number of training rows")
    parser.add_argument("--test", type=int, default=200, help="number of test rows")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for split, number in (("train", options.train), ("test", options.test)):
        print(f"written: {write_rows(options.out, split, number, options.seed)}")


if __name__ == "__main__":
    main()
