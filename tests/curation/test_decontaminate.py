"""Finding what a benchmark contains: photos re-encoded and resized, texts reworded, and nothing that only looks like them."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageEnhance, ImageOps
from sklearn.datasets import load_sample_images
from typer.testing import CliRunner

from rewardlab.cli import app
from rewardlab.config import MatchConfig
from rewardlab.curation.decontaminate import (
    BenchmarkFile,
    BenchmarkPair,
    TextIndex,
    decontaminate,
    find_matches,
    parse_against,
    shingles,
)
from rewardlab.curation.image_hashes import ImageLimits, PictureIndex, picture_of
from rewardlab.data.files import read_lines
from rewardlab.data.pairs import read_pairs, write_parquet
from rewardlab.data.texts import words_of
from rewardlab.errors import ConfigError
from rewardlab.types import PreferencePair

LIMITS = MatchConfig()


class ImageIndex:
    """Encoded images with their rows, to look encoded images up in."""

    def __init__(self, images: list[tuple[str, int, bytes]]) -> None:
        self.index: PictureIndex[tuple[str, int]] = PictureIndex(ImageLimits(), crops=True)
        for name, row, image in images:
            self.index.add(image, (name, row))

    def find(self, image: bytes) -> dict[tuple[str, int], float]:
        return self.index.find(picture_of(image, views=True))


SIDE_PX = 140


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def photos() -> list[Image.Image]:
    """Two dozen pieces of two photographs, blurred and dark ones among them."""
    return [
        Image.fromarray(whole[y : y + SIDE_PX, x : x + SIDE_PX])
        for whole in load_sample_images().images
        for y in range(3, whole.shape[0] - SIDE_PX, SIDE_PX)
        for x in range(7, whole.shape[1] - SIDE_PX, SIDE_PX)
    ]


COPIES: dict[str, Callable[[Image.Image], bytes]] = {
    "the same pixels in another file": lambda photo: encoded(photo, "BMP"),
    "JPEG": lambda photo: encoded(photo, "JPEG", quality=60),
    "WebP": lambda photo: encoded(photo, "WEBP", quality=80),
    "half the size": lambda photo: encoded(photo.resize((SIDE_PX // 2, SIDE_PX // 2))),
    "a little brighter": lambda photo: encoded(ImageEnhance.Brightness(photo).enhance(1.05)),
    "a strip of 5 % cut off": lambda photo: encoded(photo.crop((7, 0, 140, 140))),
    "mirrored": lambda photo: encoded(photo.transpose(Image.Transpose.FLIP_LEFT_RIGHT), "JPEG", quality=85),
    "in grey": lambda photo: encoded(photo.convert("L")),
    "a white border": lambda photo: encoded(ImageOps.expand(photo, 14, "white"), "JPEG", quality=85),
    "letterboxed and mirrored": lambda photo: encoded(
        ImageOps.expand(photo.transpose(Image.Transpose.FLIP_LEFT_RIGHT), (0, 20), "black")
    ),
    "2.5 % cut off all around, as JPEG": lambda photo: encoded(photo.crop((3, 4, 137, 136)), "JPEG", quality=85),
}


@pytest.mark.parametrize("how", COPIES)
def test_copies_of_a_photo_are_found_and_nothing_else(how: str, photos: list[Image.Image]) -> None:
    """At least seven of eight (a piece of sky may be missed), and no other in its place; one upside down is not found."""
    index = ImageIndex([("b", row, encoded(photo)) for row, photo in enumerate(photos)])
    hits = [index.find(COPIES[how](photo)) for photo in photos]
    assert sum(("b", row) in found for row, found in enumerate(hits)) >= 0.875 * len(photos)
    assert all(set(found) <= {("b", row)} for row, found in enumerate(hits))
    if how.startswith("the same"):
        assert all(found == {("b", row): 1.0} for row, found in enumerate(hits))
    else:
        assert all(similarity < 1 for found in hits for similarity in found.values())
    turned = [index.find(encoded(photo.transpose(Image.Transpose.FLIP_TOP_BOTTOM))) for photo in photos]
    assert not any(turned)


TONES: dict[str, Callable[[Image.Image], Image.Image]] = {
    "less contrast": lambda photo: ImageEnhance.Contrast(photo).enhance(0.7),
    "more contrast": lambda photo: ImageEnhance.Contrast(photo).enhance(1.3),
    "gamma": lambda photo: photo.point([round(255 * (level / 255) ** 0.8) for level in range(256)] * 3),
    "brighter": lambda photo: ImageEnhance.Brightness(photo).enhance(1.2),
}


@pytest.mark.parametrize("how", TONES)
def test_photos_in_other_tones(how: str, photos: list[Image.Image]) -> None:
    """Two thirds at least: pieces of sky have too few shades. No other in their place."""
    index = ImageIndex([("b", row, encoded(photo)) for row, photo in enumerate(photos)])
    hits = [index.find(encoded(TONES[how](photo))) for photo in photos]
    assert sum(("b", row) in found for row, found in enumerate(hits)) >= 2 / 3 * len(photos)
    assert all(set(found) <= {("b", row)} for row, found in enumerate(hits))


def test_a_drawing_in_other_tones_is_another() -> None:
    """What a question asks may be the tone: a grey disc is no black one."""
    discs = []
    for level in (0, 60, 120):
        disc = Image.new("RGB", (96, 96), "white")
        ImageDraw.Draw(disc).ellipse((20, 20, 76, 76), fill=(level, level, level))
        discs.append(disc)
    index = ImageIndex([("b", 0, encoded(discs[0]))])
    assert [sorted(index.find(encoded(disc, "BMP"))) for disc in discs] == [[("b", 0)], [], []]


def test_a_text_within_another() -> None:
    """A longer text of the benchmark within an instruction is found; its half, and a general part of it, are not."""
    question = f"{TEXT} and what happens next at the corner of the street"
    around = "You are asked to look at the following question and to answer it in one sentence, with a reason: {} Think first."
    index = TextIndex([("b", 0, question), ("c", 0, "Which of the two dogs is the larger one?")], LIMITS)
    assert list(index.find(around.format(question)).values()) == [0.99]
    assert index.find(question[: len(question) // 2]) == {}
    assert index.find(around.format("Which of the two dogs is the larger one?")) == {}
    assert index.find(f"{around.format('')} {around.format('')}") == {}


def test_flat_pictures_are_not_each_other() -> None:
    """Cards with a shape in one place or another, or none."""
    cards = [Image.new("RGB", (64, 64), "grey")]
    for box in ((4, 4, 28, 28), (36, 36, 60, 60)):
        card = Image.new("RGB", (64, 64), "grey")
        card.paste((200, 30, 30), box)
        cards.append(card)
    index = ImageIndex([("b", row, encoded(card)) for row, card in enumerate(cards)])
    assert [sorted(index.find(encoded(card, "BMP"))) for card in cards] == [[("b", row)] for row in range(3)]


def pages(number: int) -> list[Image.Image]:
    """Different pages of black text on white: the same layout, other words."""
    made = []
    for n in range(number):
        dice, page = np.random.default_rng(n), Image.new("RGB", (400, 520), "white")
        draw = ImageDraw.Draw(page)
        for y in range(20, 500, 16):
            draw.text((20, y), " ".join(dice.choice(TEXT.split(), dice.integers(6, 12))), fill="black")
        made.append(page)
    return made


def charts(number: int) -> list[Image.Image]:
    """Different curves within the same frame."""
    made = []
    for n in range(number):
        chart = Image.new("RGB", (400, 300), "white")
        draw = ImageDraw.Draw(chart)
        draw.rectangle((40, 20, 380, 270), outline="black", width=2)
        heights = 145 + np.cumsum(np.random.default_rng(n).normal(0, 9, 34)).clip(-110, 110)
        draw.line([(45 + 10 * x, float(y)) for x, y in enumerate(heights)], fill=(31, 119, 180), width=3)
        made.append(chart)
    return made


@pytest.mark.parametrize("kind", [pages, charts])
def test_pages_and_charts_are_not_copies_of_each_other(kind: Callable[[int], list[Image.Image]]) -> None:
    """Their copies are found all the same."""
    made = kind(40)
    index = ImageIndex([("b", row, encoded(one)) for row, one in enumerate(made[:20])])
    assert [index.find(encoded(one)) for one in made[20:]] == [{}] * 20
    hits = [index.find(encoded(one.resize((one.width // 2, one.height // 2)), "JPEG", quality=70)) for one in made[:20]]
    assert [sorted(found) for found in hits] == [[("b", row)] for row in range(20)]


TEXT = "the quick brown fox jumps over a lazy dog while seven old men watch it from the far side of the river"


def test_plain_cards() -> None:
    """The same hash of nothing: told apart by their colour."""
    grey, red = (encoded(Image.new("RGB", (64, 64), colour)) for colour in ("grey", "red"))
    index = ImageIndex([("b", 0, grey)])
    assert index.find(red) == {}
    assert index.find(encoded(Image.new("RGB", (80, 80), "grey"), "JPEG")) == {("b", 0): 0.999}


def jaccard(first: frozenset[str], second: frozenset[str]) -> float:
    return len(first & second) / len(first | second)


def test_texts() -> None:
    """Case and punctuation do not count, one changed word of twenty does little; short texts and others are nobody's."""
    text = TEXT
    index = TextIndex([("b", 3, text), ("b", 9, text), ("c", 1, "What is in the image?")], LIMITS)
    assert index.find(text.upper().replace("DOG", "DOG,") + "!") == {("b", 3): 1.0, ("b", 9): 1.0}
    changed = text.replace("far", "near")
    assert index.find(changed) == {("b", 3): jaccard(shingles(text), shingles(changed)), ("b", 9): pytest.approx(17 / 23)}
    assert index.find("What is in the image?") == {}
    assert index.find(" ".join(reversed(TEXT.split()))) == {}
    assert TextIndex([], LIMITS).find(text) == {}


@pytest.mark.nightly
def test_candidates_are_as_by_comparing_all() -> None:
    """Among 300 texts that share words by chance and by copying: what the index finds is what brute force finds."""
    dice = np.random.default_rng(0)
    base = [[f"w{n}" for n in dice.integers(0, 400, 30)] for _ in range(100)]
    texts = [" ".join(words) for words in base]
    for words in base:
        for changes in (1, 2):
            copy = list(words)
            for place in dice.choice(30, changes, replace=False):
                copy[place] = "other"
            texts.append(" ".join(copy))
    index = TextIndex([("b", row, text) for row, text in enumerate(texts)], LIMITS)
    expected, found = set(), set()
    for n, text in enumerate(texts):
        found |= {(n, row) for _, row in index.find(text)}
        expected |= {(n, m) for m, other in enumerate(texts) if jaccard(shingles(text), shingles(other)) >= LIMITS.similarity}
    assert found == expected
    assert len(expected) > 500


def test_a_training_set_is_cleaned(photos: list[Image.Image], tmp_path: Path) -> None:
    """A shared photo, question and answer go, each with its reason; the rest stays as it was.

    The same question about another photo is told and stays; without a photo in the training pair it goes.
    """
    long = "Describe in two sentences what the two people in the foreground of this photograph are doing."
    answer = "Two people are standing next to a stone bridge and one of them points at the temple behind it."

    def pair(n: int, question: str = "What is it?", good: str = "It is a plant.", photo: bytes | None = None) -> PreferencePair:
        shown = encoded(photos[n]) if photo is None else photo
        return PreferencePair(f"p{n}", question, (good, f"It is number {n}."), 0, (shown,), source="A" if n < 3 else "B")

    write_parquet([pair(0), pair(1, question=long), pair(2, good=answer)], tmp_path / "bench.parquet")
    unseen = replace(pair(7, question=long), images=())
    train = [
        pair(5),
        pair(6, photo=encoded(photos[0].crop((7, 0, 140, 140)), "JPEG", quality=85)),
        unseen,
        pair(8, good=answer),
        pair(9, question=long),
    ]
    write_parquet(train, tmp_path / "train.parquet")
    command = ["data", "decontaminate", str(tmp_path / "train.parquet"), "--against", f"pairs={tmp_path / 'bench.parquet'}"]
    done = CliRunner().invoke(app, [*command, "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert "3 of 5 training pairs removed, 2 kept." in done.output
    kept = read_pairs(tmp_path / "out" / "clean.parquet")
    assert kept == [train[0], train[4]]
    taken = [json.loads(line) for line in read_lines(tmp_path / "out" / "contaminated.jsonl")]
    assert [(one["row"], [(m["what"], m["row"]) for m in one["matches"]]) for one in taken] == [
        (1, [("image", 0)]),
        (2, [("prompt", 1)]),
        (3, [("answer", 2)]),
    ]
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["by_benchmark"]["pairs"] == {
        **{"image": 1, "prompt": 1, "answer": 1, "whole pair": 0, "prompt about another image": 1, "boilerplate answer": 0},
        **{"contained": 3, "benchmark_rows": 3},
    }
    assert report["removed_by_source"] == {"B": 3}
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.count("<details") == 3
    again = CliRunner().invoke(app, [*command, "--out", str(tmp_path / "out")])
    assert again.exit_code == 1
    assert "exists already" in str(again.output) + str(again.exception)


REFUSALS = [
    "I'm sorry, but I can't assist with that request.",
    "I cannot help you with making such a thing at home.",
    "As an AI language model, I am not able to give advice on this.",
    "Sorry, I am unable to identify the people in this image.",
]


def test_refusals_and_what_many_prompts_share_are_no_copies() -> None:
    """A safety set keeps its refusals; a true copy of an answer goes, also of one that begins like a refusal and then says
    something; the same pair as a whole goes whatever its answers are."""
    shared, alone = "Both of the two answers describe the same scene equally well.", f"{TEXT} and then everybody goes home."
    long_refusal = f"I'm sorry to hear about that. {TEXT}, {TEXT} and {alone}"
    known = [
        PreferencePair(f"b{n}", f"How is thing number {n} made?", (answer, f"By method {n}."), 0)
        for n, answer in enumerate([*REFUSALS, shared, shared, alone, long_refusal])
    ]
    benchmark = [BenchmarkPair("b", n, pair) for n, pair in enumerate(known)]

    def removed(*answers: str) -> list[bool]:
        train = [PreferencePair(f"t{n}", "Quite another thing", (text, "no"), 0) for n, text in enumerate(answers)]
        matches = find_matches(train, benchmark, LIMITS, lambda _: None)
        return [any(match.contains for match in matches if match.index == n) for n in range(len(train))]

    assert removed(*REFUSALS, shared) == [False] * 5
    assert removed(alone, long_refusal) == [True, True]
    told = find_matches([PreferencePair("t", "q", (REFUSALS[0], "no"), 0)], benchmark, LIMITS, lambda _: None)
    assert [(match.what, match.row, match.contains) for match in told] == [("boilerplate answer", 0, False)]
    whole = find_matches([known[0]], benchmark, LIMITS, lambda _: None)
    assert any(match.what == "whole pair" and match.contains for match in whole)


def test_two_files_of_one_benchmark(demo_pairs: Any, tmp_path: Path) -> None:
    """What either has goes; the report tells them apart, and the same file twice is refused."""
    pairs = demo_pairs[0]
    write_parquet(pairs[:5], tmp_path / "a.parquet")
    write_parquet(pairs[5:10], tmp_path / "b.parquet")
    write_parquet([*pairs[5:7], *pairs[50:60]], tmp_path / "train.parquet")
    both = [BenchmarkFile("pairs", tmp_path / f"{name}.parquet", None) for name in "ab"]
    report = decontaminate(tmp_path / "train.parquet", both, tmp_path / "out", images=None, limits=LIMITS, command="")
    contained = {Path(name.split("(")[1][:-1]).stem: told["contained"] for name, told in report["by_benchmark"].items()}
    assert contained["b"] == report["num_removed"] == 2
    assert contained["a"] == 0
    with pytest.raises(ConfigError, match="same file twice"):
        decontaminate(tmp_path / "train.parquet", both[:1] * 2, tmp_path / "x", images=None, limits=LIMITS, command="")


def test_scripts_without_blanks() -> None:
    """A character is a word there: a long Chinese prompt is found."""
    text = "请描述这张图片中左边的人和右边的狗正在做什么并说明理由"
    assert len(words_of(text)) == len(text)
    assert TextIndex([("b", 1, text)], LIMITS).find(text + "。") == {("b", 1): 1.0}


def test_a_short_pair_that_is_all_the_same() -> None:
    """Five words and fewer are compared with nothing alone; question and both responses together are."""
    known = [BenchmarkPair("b", 4, PreferencePair("x", "What is it?", ("A dog.", "A cat."), 0))]
    same, other = (
        PreferencePair("y", "what is it", ("a cat", "A dog"), 1),
        PreferencePair("z", "What is it?", ("A dog.", "A cow."), 0),
    )
    found = find_matches([same, other], known, LIMITS, lambda _: None)
    assert [(one.index, one.what, one.row, one.contains) for one in found] == [(0, "whole pair", 4, True)]


@pytest.mark.parametrize("spec", ["vl_rewardbench", "=x", "mmlu=x", "pairs=", "pairs=x,"])
def test_bad_specs(spec: str) -> None:
    with pytest.raises(ConfigError, match="--against"):
        parse_against(spec)
