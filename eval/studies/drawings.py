"""Can a judge compare answers that are drawings and clips? `python -m eval.studies drawings`.

A request ("Draw a red star top left and a blue circle bottom right.") has two answers: a drawing that fits and one with an
attribute wrong, a thing missing or two things swapped. Or it asks for a clip of a thing that moves left or right, and the other
clip moves the other way. The tiny base model learns from judgments that read both answers; in some of its pairs everything in
the worse drawing is wrong. Held-out scenes are judged in both orders, with blank answers, with the frames of clips shuffled,
and best of 8 by a served judge's rewards. No scene of the training pairs, asked for or drawn, is in a test pair.
"""

from __future__ import annotations

import base64
import io
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import av
import httpx
import numpy as np
from PIL import Image, ImageDraw

from rewardlab.data.files import write_atomic
from rewardlab.data.images import encode_png
from rewardlab.data.pairs import write_parquet
from rewardlab.data.rows import with_blank_images, with_frames
from rewardlab.demo.build import DemoConfig, build_base
from rewardlab.demo.pictures import (
    CELL_PX,
    COLORS,
    SHAPES,
    Scene,
    Thing,
    canvas,
    draw_shape,
    is_held_out,
    random_scene,
    render_scene,
)
from rewardlab.demo.quickstart import free_port
from rewardlab.demo.tasks import choose_other
from rewardlab.judging.api import open_judge
from rewardlab.metrics.intervals import wilson_interval
from rewardlab.models.checkpoints import commit
from rewardlab.models.model_config import video_policy_of
from rewardlab.training.sft import train_sft
from rewardlab.types import BOTH_ORDERS, IMAGE_MARK, VIDEO_MARK, Order, PreferencePair, choice_of
from rewardlab.verdicts.parse import format_verdict

FLAWS = ("color", "shape", "missing", "swapped")
ALL_WRONG = "all wrong"
NUM_FRAMES = 4
MAX_TOKENS = 192
SHARE_CLIPS = 0.25
SHARE_ALL_WRONG = 0.6  # of the drawings to learn from: claims that the drawing contradicts are rare beside a single flaw


@dataclass(frozen=True)
class Settings:
    """Sizes of one seed."""

    num_train: int = 6000
    num_test: int = 400
    num_groups: int = 100
    steps: int = 700


def request_of(scene: Scene) -> str:
    return "Draw " + " and ".join(f"a {thing.name} {thing.place}" for thing in scene.things) + "."


def flawed(rng: random.Random, scene: Scene, flaw: str) -> Scene:
    """Return the scene with one flaw."""
    if flaw == ALL_WRONG:
        return Scene.of([redrawn(rng, thing, rng.choice(("color", "shape", "shape", "both"))) for thing in scene.things])
    thing, other = rng.sample(scene.things, 2)
    if flaw == "missing":
        return Scene.of([one for one in scene.things if one != thing])
    if flaw == "swapped":
        moved = [Thing(other.cell, thing.color, thing.shape), Thing(thing.cell, other.color, other.shape)]
        return Scene.of([*(one for one in scene.things if one not in (thing, other)), *moved])
    return scene.replace(thing, redrawn(rng, thing, flaw))


def redrawn(rng: random.Random, thing: Thing, flaw: str) -> Thing:
    """Return the thing with another color, another shape or both."""
    color = thing.color if flaw == "shape" else choose_other(rng, list(COLORS), thing.color)
    shape = thing.shape if flaw == "color" else choose_other(rng, SHAPES, thing.shape)
    return Thing(thing.cell, color, shape)


def reading(asked: Scene, drawn: Scene) -> str:
    """What a careful judge writes of a drawing: what is at each place that the request names, and whether it fits."""
    at = {thing.cell: thing.name for thing in drawn.things}
    checks = [(thing, at.get(thing.cell, "none")) for thing in asked.things]
    return " ".join(
        f"{thing.place}: {name}. claim {thing.name}: {thing.name}, {'correct' if name == thing.name else 'wrong'}."
        for thing, name in checks
    )


def drawings_of_split(rng: random.Random, held_out: bool, num_wrong: int) -> tuple[Scene, list[tuple[str, Scene]]]:
    """Return a scene, and (flaw, scene) of drawings that do not fit it, all of one split."""
    while True:
        scene = random_scene(rng, rng.choice((2, 3)))
        if is_held_out(scene) != held_out:
            continue
        all_wrong = 0.0 if held_out else SHARE_ALL_WRONG
        flaws = [ALL_WRONG if rng.random() < all_wrong else rng.choice(FLAWS) for _ in range(20 * num_wrong)]
        drawn = ((flaw, flawed(rng, scene, flaw)) for flaw in flaws)
        wrong = list(islice(((flaw, one) for flaw, one in drawn if is_held_out(one) == held_out), num_wrong))
        if len(wrong) == num_wrong:
            return scene, wrong


def clip(rng: random.Random, thing: tuple[str, str], to_left: bool, row: int) -> bytes:
    """Return an MP4 of a thing that moves from one side to the other."""
    base = np.array(canvas(rng))
    places = np.linspace(12, 2 * CELL_PX - 12, NUM_FRAMES)
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=4)
        stream.width = stream.height = 2 * CELL_PX
        stream.pix_fmt, stream.bit_rate = "yuv420p", 800_000
        for x in places[::-1] if to_left else places:
            image = Image.fromarray(base)
            draw_shape(ImageDraw.Draw(image), thing[1], float(x), (row + 0.5) * CELL_PX, 9, COLORS[thing[0]])
            container.mux(stream.encode(av.VideoFrame.from_image(image)))
        container.mux(stream.encode())
    return buffer.getvalue()


def make_pair(rng: random.Random, number: int, held_out: bool) -> PreferencePair:
    """Return a pair with the judgment of one that looks, in a random order."""
    order, preferred = rng.choice(BOTH_ORDERS), rng.randrange(2)
    if rng.random() < SHARE_CLIPS:
        color, shape, row, left = rng.choice(list(COLORS)), rng.choice(SHAPES), rng.randrange(2), rng.random() < 0.5
        name, side = f"{color} {shape}", ("right", "left")
        question = f"Show a {name} that moves {side[left]}."
        clips = [clip(rng, (color, shape), to_left, row) for to_left in (left, not left)]
        height = ("top", "bottom")[row]
        readings = [
            f"first: {height} {side[not way]}. last: {height} {side[way]}. claim {side[left]}: {side[left]}, "
            + ("correct." if way == left else "wrong.")
            for way in (left, not left)
        ]
        category, mark, media = "clip", VIDEO_MARK, clips
    else:
        scene, [(flaw, wrong)] = drawings_of_split(rng, held_out, 1)
        drawn = (scene, wrong)
        question, category, mark = request_of(scene), flaw, IMAGE_MARK
        readings = [reading(scene, one) for one in drawn]
        media = [encode_png(render_scene(one, rng)) for one in drawn]
    by_place = [0, 1] if preferred == 0 else [1, 0]  # which of (right, wrong) is response 0
    shown = by_place if order is Order.GIVEN else by_place[::-1]
    reasoning = " ".join(f"Response {n}: {readings[one]}" for n, one in enumerate(shown, start=1))
    of_responses = ((media[by_place[0]],), (media[by_place[1]],))
    return PreferencePair(
        f"{'test' if held_out else 'train'}-{number:05d}",
        question,
        (mark, mark),
        preferred,
        category=category,
        order=order,
        judgment=format_verdict(choice_of(preferred, order), reasoning),
        response_images=of_responses if mark == IMAGE_MARK else ((), ()),
        response_videos=of_responses if mark == VIDEO_MARK else ((), ()),
    )


def shuffled(rng: random.Random, pair: PreferencePair) -> PreferencePair:
    """Return a clip pair whose frames come in another order."""
    frames = [list(images) for images in pair.response_images]
    for some in frames:
        rng.shuffle(some)
    return replace(pair, response_images=(tuple(frames[0]), tuple(frames[1])))


def right_votes(judge: Any, pairs: Sequence[PreferencePair]) -> list[tuple[str, bool]]:
    """Return (category, right) of each greedy vote, one per pair and order."""
    results = judge.compare_many([replace(pair, preferred=None) for pair in pairs], frames=NUM_FRAMES)
    return [
        (pair.category, vote.winner == pair.preferred)
        for pair, result in zip(pairs, results, strict=True)
        for vote in result.votes
    ]


def fraction(hits: Sequence[bool]) -> dict[str, Any]:
    return {"n": len(hits), "fraction": sum(hits) / len(hits), "interval": wilson_interval(sum(hits), len(hits))}


def best_of_8(url: str, rng: random.Random, num_groups: int) -> dict[str, Any]:
    """Return how often the drawing with the highest reward of ``/v1/rewards`` fits, and how often a random one does."""
    hits, of_random = [], []
    for _ in range(num_groups):
        num_right = rng.randint(1, 4)
        scene, wrong = drawings_of_split(rng, True, 8 - num_right)
        drawn = [scene] * num_right + [one for _, one in wrong]
        rng.shuffle(drawn)
        pictures = [base64.b64encode(encode_png(render_scene(one, rng))).decode() for one in drawn]
        parts = [[{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{text}"}}] for text in pictures]
        answer = httpx.post(f"{url}/v1/rewards", json={"question": request_of(scene), "responses": parts}, timeout=300)
        rewards = answer.raise_for_status().json()["rewards"]
        best = max(range(8), key=lambda n: -2.0 if rewards[n] is None else rewards[n])
        hits.append(drawn[best] == scene)
        of_random.append(num_right / 8)
    return {**fraction(hits), "random": sum(of_random) / len(of_random)}


def run_seed(out: Path, seed: int, settings: Settings) -> dict[str, Any]:
    """Train and measure one seed."""
    rng, commit_of_code = random.Random(f"drawings {seed}"), commit()
    base = build_base(out, DemoConfig(num_train=0, num_test=0, base_steps=1000))
    train = [make_pair(rng, n, held_out=False) for n in range(settings.num_train)]
    test = [make_pair(rng, n, held_out=True) for n in range(settings.num_test)]
    write_parquet(train, out / "train.parquet")
    options = {"model": str(base), "max_steps": settings.steps, "frames": NUM_FRAMES, "seed": seed}
    final = train_sft(out / "train.parquet", "tiny/sft", out / "sft", **options)
    figures: dict[str, Any] = {"seed": seed, "commit": commit_of_code, "settings": asdict(settings)}
    for name, checkpoint in (("base", base), ("judge", final)):
        with_template = open_judge(f"hf:{checkpoint}", template="plain", temperature=0.0, max_tokens=MAX_TOKENS)
        votes = right_votes(with_template, test)
        kinds = sorted({kind for kind, _ in votes})
        figures[name] = {kind: fraction([hit for one, hit in votes if one == kind]) for kind in kinds}
        figures[name]["drawings"] = fraction([hit for kind, hit in votes if kind != "clip"])
    drawings = [pair for pair in test if pair.category != "clip"]
    clips = [pair for pair in test if pair.category == "clip"]
    figures["blank answers"] = fraction([hit for _, hit in right_votes(with_template, with_blank_images(drawings))])
    policy = partial(video_policy_of, str(final))
    mixed = [shuffled(rng, with_frames(pair, NUM_FRAMES, policy=policy)) for pair in clips]
    figures["shuffled frames"] = fraction([hit for _, hit in right_votes(with_template, mixed)])
    with served(final, out / "serve.log") as url:
        figures["best of 8"] = best_of_8(url, rng, settings.num_groups)
    return figures


@contextmanager
def served(checkpoint: Path, log: Path) -> Iterator[str]:
    """Serve a checkpoint by `rewardlab serve`, greedy, until the block ends. Raise TimeoutError if it is not ready in time."""
    port = free_port()
    options = ["template=plain", "temperature=0", f"max_tokens={MAX_TOKENS}"]
    command = [sys.executable, "-m", "rewardlab.cli", "serve", "--judge", f"hf:{checkpoint}", "--port", str(port), *options]
    url, end = f"http://127.0.0.1:{port}", time.monotonic() + 120
    with log.open("w") as file, subprocess.Popen(command, stdout=file, stderr=file) as server:
        try:
            while True:
                with suppress(httpx.HTTPError):
                    if httpx.get(f"{url}/ready").status_code == 200:
                        break
                if time.monotonic() > end or server.poll() is not None:
                    raise TimeoutError(f"the server was not ready; see {log}")
                time.sleep(0.5)
            yield url
        finally:
            server.terminate()


CONTROLS = {"drawings, blank": "blank answers", "clips, shuffled frames": "shuffled frames", "best of 8 drawings": "best of 8"}


def markdown(seeds: Sequence[dict[str, Any]]) -> str:
    """Return the table of all seeds."""

    def row(name: str, values: Sequence[dict[str, Any]]) -> str:
        cells = [
            f"{100 * value['fraction']:.1f} [{100 * value['interval'][0]:.1f}, {100 * value['interval'][1]:.1f}]"
            for value in values
        ]
        return f"| {name} | {' | '.join(cells)} |"

    commits = ", ".join(sorted({figures["commit"] for figures in seeds}))
    lines = [
        "# Answers that are drawings and clips",
        "",
        f"`python -m eval.studies drawings`, commit {commits}. Brackets: 95 % intervals (Wilson) over votes, or groups of 8.",
        "",
        "| right, % | " + " | ".join(f"seed {figures['seed']}" for figures in seeds) + " |",
        "|---|" + "---|" * len(seeds),
    ]
    kinds = {"drawings": "drawings", **{f"&emsp;{flaw}": flaw for flaw in FLAWS}, "clips": "clip"}
    lines += [row(title, [figures["judge"][kind] for figures in seeds]) for title, kind in kinds.items()]
    lines += [
        row(f"{title}, base model", [figures["base"][kinds[title]] for figures in seeds]) for title in ("drawings", "clips")
    ]
    lines += [row(title, [figures[key] for figures in seeds]) for title, key in CONTROLS.items()]
    of_random = " | ".join(f"{100 * figures['best of 8']['random']:.1f}" for figures in seeds)
    return "\n".join([*lines, f"| a random one of 8 | {of_random} |"]) + "\n"


def run_drawings(out: Path, num_seeds: int, settings: Settings) -> Path:
    """Run all seeds that ``out`` does not have, and write the report. Return its file."""
    for seed in range(num_seeds):
        file = out / f"seed{seed}" / "figures.json"
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(file, json.dumps(run_seed(file.parent, seed, settings), indent=1) + "\n")
    seeds = [json.loads((out / f"seed{seed}" / "figures.json").read_text()) for seed in range(num_seeds)]
    write_atomic(out / "drawings.md", markdown(seeds))
    write_atomic(out / "drawings.json", json.dumps(seeds, indent=1) + "\n")
    return out / "drawings.md"
