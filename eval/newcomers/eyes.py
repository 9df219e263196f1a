"""Reads a drawn scene of the demonstration off its pixels, without the demonstration's own truth."""

from __future__ import annotations

import hashlib
import io
import random
import re
from collections.abc import Mapping
from functools import cache

import numpy as np
from PIL import Image, UnidentifiedImageError

from rewardlab.demo.pictures import CELL_PX, COLORS, PLACES, SHAPES, Scene, Thing, plural, render_scene
from rewardlab.demo.tasks import NUMBERS

LEAST_PIXELS = 60  # of a thing; the smallest that is drawn has some 80
SIDE = 16  # of a shape's mask, its bounding box made square


def pixels_of(data: bytes) -> Image.Image | None:
    """Return a picture decoded, None of bytes that are none."""
    try:
        return Image.open(io.BytesIO(data)).convert("RGB")
    except (UnidentifiedImageError, OSError):
        return None


def name_of(picture: Image.Image) -> str:
    """Return a name of what a picture shows, whatever file it came in: a hash of its pixels."""
    return hashlib.sha256(f"{picture.size}".encode() + picture.tobytes()).hexdigest()[:16]


def scene_of(picture: Image.Image) -> Scene:
    """Return the things of a picture, none of one that is blank or of another size."""
    if picture.size != (2 * CELL_PX, 2 * CELL_PX):
        return Scene(())
    pixels = np.asarray(picture).astype(int)
    cells = {cell: pixels[_part(cell // 2), _part(cell % 2)] for cell in range(4)}
    return Scene(tuple(thing for cell, part in cells.items() if (thing := _thing(cell, part)) is not None))


def _part(place: int) -> slice:
    return slice(place * CELL_PX, (place + 1) * CELL_PX)


def _thing(cell: int, part: np.ndarray) -> Thing | None:
    mask = part.max(axis=2) - part.min(axis=2) > 60  # the ground and the frame are grey
    if mask.sum() < LEAST_PIXELS:
        return None
    colour = part[mask].mean(axis=0)
    color = min(COLORS, key=lambda name: float(np.abs(colour - np.array(COLORS[name])).sum()))
    shape = min(SHAPES, key=lambda name: float(np.abs(_square(mask) - _examples()[name]).sum()))
    return Thing(cell, color, shape)


def _square(mask: np.ndarray) -> np.ndarray:
    """Return a mask cut to its bounding box, as SIDE x SIDE shares."""
    rows, columns = (np.flatnonzero(mask.any(axis=axis)) for axis in (1, 0))
    box = mask[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    return np.asarray(Image.fromarray(255 * box.astype(np.uint8)).resize((SIDE, SIDE), Image.Resampling.BOX)) / 255


@cache
def _examples() -> Mapping[str, np.ndarray]:
    """The mean mask of each shape over 30 drawings."""
    rng, examples = random.Random(0), {}
    for shape in SHAPES:
        drawn = [np.asarray(render_scene(Scene((Thing(0, "blue", shape),)), rng)).astype(int) for _ in range(30)]
        parts = [pixels[:CELL_PX, :CELL_PX] for pixels in drawn]
        examples[shape] = np.mean([_square(part.max(axis=2) - part.min(axis=2) > 60) for part in parts], axis=0)
    return examples


def true_words(question: str, scene: Scene) -> str | None:
    """Return the words that a right answer has, None where the scene does not answer the question."""
    things = {thing.name: thing for thing in scene.things}
    if match := re.fullmatch(r"What color is the (\w+)\?", question):
        return next((thing.color for thing in scene.things if thing.shape == match[1]), None)
    if match := re.fullmatch(r"What shape is (\w+)\?", question):
        return next((thing.shape for thing in scene.things if thing.color == match[1]), None)
    if match := re.fullmatch(r"Where is the (\w+ \w+)\?", question):
        return PLACES[things[match[1]].cell] if match[1] in things else None
    if match := re.fullmatch(r"How many (\w+) are there\?", question):
        shape = next((shape for shape in SHAPES if plural(shape) == match[1]), "")
        return NUMBERS[scene.num_shape(shape)]
    if match := re.fullmatch(r"Is there a (\w+ \w+)\?", question):
        return "Yes" if match[1] in things else "No"
    return None


def right_place(question: str, responses: tuple[str, str], scene: Scene) -> int | None:
    """Return which of two responses, 0 or 1, is true of a scene; None where neither or both are."""
    words = true_words(question, scene) if scene.things else None
    fits = [words is not None and re.search(rf"\b{words}\b", response) is not None for response in responses]
    return fits.index(True) if sum(fits) == 1 else None
