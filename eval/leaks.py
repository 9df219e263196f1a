"""Does decontamination find what leaks, and nothing else? ``python eval/leaks.py``.

Benchmark: 1,000 drawn scenes, and pieces of photographs. Planted into the training side: each of them re-encoded, resized,
cropped, in other tones, turned, and so on. False alarms: 10,000 other scenes, each of which differs from every one of the
benchmark in what is drawn. Texts: 1,000 of 40 drawn words, with words replaced, in part, within others; false alarms: 10,000
others of the same 5,000 words. Also how fast a set is built and read: 200,000 text pairs through a recipe into validated
shards, and back. Writes ``eval/results/leaks.json``.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from PIL import Image, ImageEnhance, ImageOps
from sklearn.datasets import load_sample_images

from rewardlab.curation.decontaminate import MatchLimits, TextIndex
from rewardlab.curation.image_hashes import ImageLimits, PictureIndex, picture_of
from rewardlab.data.images import encode_png
from rewardlab.demo.pairs import make_pairs
from rewardlab.metrics.intervals import wilson_interval
from rewardlab.models.checkpoints import commit

WORDS = [f"w{n}" for n in range(5000)]


def cropped(image: Image.Image, left: float, top: float, right: float, bottom: float) -> Image.Image:
    width, height = image.size
    return image.crop((round(left * width), round(top * height), round((1 - right) * width), round((1 - bottom) * height)))


def with_gamma(image: Image.Image, gamma: float) -> Image.Image:
    return image.point([round(255 * (level / 255) ** gamma) for level in range(256)] * 3)


def beside(image: Image.Image) -> Image.Image:
    both = Image.new("RGB", (2 * image.width, image.height))
    both.paste(image, (0, 0))
    both.paste(image.transpose(Image.Transpose.FLIP_TOP_BOTTOM), (image.width, 0))
    return both


def encoded(image: Image.Image, quality: int = 0) -> bytes:
    if not quality:
        return encode_png(image)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def scaled(image: Image.Image, by: float) -> Image.Image:
    return image.resize((round(by * image.width), round(by * image.height)))


COPIES: dict[str, Callable[[Image.Image], bytes]] = {
    "JPEG, quality 90": lambda image: encoded(image, 90),
    "JPEG, quality 50": lambda image: encoded(image, 50),
    "half the size": lambda image: encoded(scaled(image, 0.5)),
    "1.7 times the size": lambda image: encoded(scaled(image, 1.7)),
    "5 % cut off the left": lambda image: encoded(cropped(image, 0.05, 0, 0, 0)),
    "5 % cut off the bottom": lambda image: encoded(cropped(image, 0, 0, 0, 0.05)),
    "3 % cut off the right": lambda image: encoded(cropped(image, 0, 0, 0.03, 0)),
    "2.5 % cut off all around": lambda image: encoded(cropped(image, 0.025, 0.025, 0.025, 0.025)),
    "5 % cut off all around": lambda image: encoded(cropped(image, 0.05, 0.05, 0.05, 0.05)),
    "5 % cut off two sides, half the size, JPEG 70": lambda image: encoded(scaled(cropped(image, 0.05, 0.05, 0, 0), 0.5), 70),
    "in grey": lambda image: encoded(image.convert("L").convert("RGB")),
    "a white border of 10 %": lambda image: encoded(ImageOps.expand(image, round(0.1 * image.width), "white")),
    "black bars above and below, JPEG 85": lambda image: encoded(ImageOps.expand(image, (0, image.height // 6), "black"), 85),
    "mirrored": lambda image: encoded(image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)),
    "contrast 0.7": lambda image: encoded(ImageEnhance.Contrast(image).enhance(0.7)),
    "contrast 1.4": lambda image: encoded(ImageEnhance.Contrast(image).enhance(1.4)),
    "gamma 0.7": lambda image: encoded(with_gamma(image, 0.7)),
    "gamma 1.5": lambda image: encoded(with_gamma(image, 1.5)),
    "brightness 1.3": lambda image: encoded(ImageEnhance.Brightness(image).enhance(1.3)),
    "rotated by 1 degree": lambda image: encoded(image.rotate(1, resample=Image.Resampling.BICUBIC)),
    "rotated by 3 degrees": lambda image: encoded(image.rotate(3, resample=Image.Resampling.BICUBIC)),
    "turned by 90 degrees": lambda image: encoded(image.rotate(90, expand=True)),
    "15 % cut off all around": lambda image: encoded(cropped(image, 0.15, 0.15, 0.15, 0.15)),
    "side by side with another": lambda image: encoded(beside(image)),
}


def photographs(side: int = 140) -> list[Image.Image]:
    wholes = load_sample_images().images
    return [
        Image.fromarray(one[y : y + side, x : x + side])
        for one in wholes
        for y in range(3, one.shape[0] - side, side)
        for x in range(7, one.shape[1] - side, side)
    ]


def scenes(number: int) -> list[bytes]:
    images: dict[bytes, bytes] = {}
    seed = 0
    while len(images) < number:
        for pair in make_pairs(4000, seed=seed, held_out=False)[0]:
            if len(pair.images) == 1:
                images.setdefault(picture_of(pair.images[0]).pixels, pair.images[0])
        seed += 1
    return list(images.values())[:number]


def share(hits: int, number: int) -> dict[str, Any]:
    low, high = wilson_interval(hits, number)
    return {"found": hits, "of": number, "percent": 100 * hits / number, "interval": [100 * low, 100 * high]}


def planted(images: Sequence[Image.Image], index: PictureIndex[int]) -> dict[str, Any]:
    shares = {}
    for name, copy in COPIES.items():
        hits = [index.find(picture_of(copy(image), views=True)) for image in images]
        right = sum(n in hit for n, hit in enumerate(hits))
        shares[name] = share(right, len(images)) | {
            "taken_for_another": sum(bool(set(hit) - {n}) for n, hit in enumerate(hits))
        }
    return shares


def leaks(limits: ImageLimits, num_scenes: int) -> dict[str, Any]:
    drawn = scenes(num_scenes + 1000)
    random.Random(0).shuffle(drawn)
    known, others = [Image.open(io.BytesIO(one)).convert("RGB") for one in drawn[:1000]], drawn[1000:]
    index: PictureIndex[int] = PictureIndex(limits, crops=True)
    for n, image in enumerate(known):
        index.add(encoded(image), n)
    start_time = time.perf_counter()
    alarms = sum(bool(index.find(picture_of(one, views=True))) for one in others)
    took = time.perf_counter() - start_time
    photos: PictureIndex[int] = PictureIndex(limits, crops=True)
    pieces = photographs()
    for n, image in enumerate(pieces):
        photos.add(encoded(image), n)
    return {
        "false_alarms": share(alarms, len(others)),
        "ms_a_picture": 1000 * took / len(others),
        "scenes": planted(known, index),
        "photographs": planted(pieces, photos),
    }


def replaced(words: Sequence[str], share_of_words: float, dice: random.Random) -> list[str]:
    places = set(dice.sample(range(len(words)), round(share_of_words * len(words))))
    return ["other" if n in places else word for n, word in enumerate(words)]


def shuffled_sentences(words: Sequence[str], dice: random.Random) -> list[str]:
    sentences = [words[start : start + 8] for start in range(0, len(words), 8)]
    dice.shuffle(sentences)
    return [word for sentence in sentences for word in sentence]


TEXTS: dict[str, Callable[[list[str], random.Random], list[str]]] = {
    "another case and punctuation": lambda words, _: [f"{word.upper()}," for word in words],
    "5 % of the words replaced": lambda words, dice: replaced(words, 0.05, dice),
    "10 % of the words replaced": lambda words, dice: replaced(words, 0.1, dice),
    "20 % of the words replaced": lambda words, dice: replaced(words, 0.2, dice),
    "its five sentences in another order": shuffled_sentences,
    "within an instruction of 60 words": lambda words, dice: [*dice.choices(WORDS, k=50), *words, *dice.choices(WORDS, k=10)],
    "its first half": lambda words, _: words[: len(words) // 2],
    "in other words throughout": lambda words, dice: replaced(words, 1.0, dice),
}


def texts(number: int) -> dict[str, Any]:
    """Copies of 1,000 texts that are found, and ``number`` other texts that are taken for one."""
    dice = random.Random(0)
    known = [dice.choices(WORDS, k=40) for _ in range(1000)]
    index = TextIndex([("b", row, " ".join(words)) for row, words in enumerate(known)], MatchLimits())
    others = [dice.choices(WORDS, k=40) for _ in range(number)]
    alarms = sum(bool(index.find(" ".join(words))) for words in others)
    shares = {}
    for name, copy in TEXTS.items():
        hits = [index.find(" ".join(copy(words, dice))) for words in known]
        shares[name] = share(sum(("b", row) in hit for row, hit in enumerate(hits)), len(known))
    return {"false_alarms": share(alarms, len(others)), "copies": shares}


BUILD = """
import json, resource, sys, time
from pathlib import Path
from rewardlab.cli.data import find_recipe
from rewardlab.curation.build import BuildOptions, build
source, out = Path(sys.argv[1]), Path(sys.argv[2])
options = BuildOptions(similarity=0.9 if sys.argv[3] == "clean" else None)
start_time = time.perf_counter()
report = build(find_recipe(str(source / "map.yaml")), source / "rows.jsonl", out, contamination=None, options=options,
               advance=lambda: None, facts={})
print(json.dumps({"seconds": time.perf_counter() - start_time, "kept": report["kept"],
                  "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
"""
READ = """
import json, resource, sys, time
from pathlib import Path
from rewardlab.data.pairs import PairSet
start_time = time.perf_counter()
number = sum(1 for _ in PairSet(Path(sys.argv[1])))
print(json.dumps({"seconds": time.perf_counter() - start_time, "pairs": number,
                  "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
"""


def speeds(work: Path, number: int) -> dict[str, Any]:
    """Pairs a second and peak memory of building and of reading back; texts of 20 and 2 times 60 words."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    dice = random.Random(0)
    with (work / "rows.jsonl").open("w") as file:
        for n in range(number):
            question, good, bad = (" ".join(dice.choices(WORDS, k=size)) for size in (20, 60, 60))
            file.write(json.dumps({"q": f"{question} {n}", "good": good, "bad": bad}) + "\n")
    (work / "map.yaml").write_text("name: made\nquestion: q\nchosen: good\nrejected: bad\n")
    figures: dict[str, Any] = {}
    for name in ("validated", "clean"):
        done = subprocess.run(
            [sys.executable, "-c", BUILD, str(work), str(work / name), name], check=True, capture_output=True, text=True
        )
        result = json.loads(done.stdout.splitlines()[-1])
        figures[name] = {
            "pairs_a_second": result["kept"] / result["seconds"],
            "kept": result["kept"],
            "peak_mib": result["mib"],
        }
    done = subprocess.run([sys.executable, "-c", READ, str(work / "validated")], check=True, capture_output=True, text=True)
    result = json.loads(done.stdout.splitlines()[-1])
    figures["read"] = {"pairs_a_second": result["pairs"] / result["seconds"], "peak_mib": result["mib"]}
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenes", type=int, default=10_000)
    parser.add_argument("--pairs", type=int, default=200_000, help="to build and read; 0: speeds are kept as they are in --out")
    parser.add_argument("--work", type=Path, default=Path("runs/leaks"))
    parser.add_argument("--out", type=Path, default=Path("eval/results/leaks.json"))
    options = parser.parse_args()
    result: dict[str, Any] = {"command": shlex.join(["python", *sys.argv]), "commit": commit()}
    if options.pairs:
        result |= {"speeds": speeds(options.work, options.pairs), "speeds_commit": result["commit"]}
        print(json.dumps(result["speeds"], indent=1), flush=True)
    elif options.out.exists():
        before = json.loads(options.out.read_text())
        result |= {"speeds": before["speeds"], "speeds_commit": before.get("speeds_commit", before["commit"])}
    result |= leaks(ImageLimits(), options.scenes) | {"texts": texts(options.scenes)}
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
