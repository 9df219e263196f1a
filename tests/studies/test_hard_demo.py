"""The hard demonstration: answers by an oracle that reads the English, texts that give nothing away, disjoint splits."""

from __future__ import annotations

import random
import re
from collections import Counter

import pytest
from sklearn.datasets import load_digits
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from eval.hard_demo.build import HARD
from eval.hard_demo.grid_tasks import GRID_TASKS, draw_grid_contrast
from eval.hard_demo.grids import Grid, Item, Split, UnlikeGrid
from eval.hard_demo.row_tasks import ROW_TASKS, draw_row_contrast
from eval.hard_demo.rows import DigitRow, scans_of_split
from eval.hard_demo.unlike import CHANGES, draw_unlike
from rewardlab.demo.base_model import train_tokenizer
from rewardlab.demo.build import corpus
from rewardlab.demo.judgments import Truth, grounded_judgment
from rewardlab.demo.pairs import pairs_of_split
from rewardlab.demo.pictures import SHAPES, plural
from rewardlab.demo.server import favored_response
from rewardlab.demo.tasks import NUMBERS
from rewardlab.types import Choice, Order, PreferencePair
from rewardlab.verdicts.parse import follows_format
from rewardlab.verdicts.places import reasoning_of

Drawn = tuple[list[PreferencePair], list[Truth]]
ROWS, COLUMNS = ("top", "middle", "bottom"), ("left", "center", "right")
ONE_STEP = {"left of": -1, "right of": 1, "above": -3, "below": 3}
AHEAD = {"left of": (1, -1), "right of": (1, 1), "above": (0, -1), "below": (0, 1)}


@pytest.fixture(scope="module")
def train() -> Drawn:
    return pairs_of_split(1000, Split.TRAIN, seed=3, difficulty=HARD)


@pytest.fixture(scope="module")
def test() -> Drawn:
    return pairs_of_split(400, Split.TEST, seed=3, difficulty=HARD)


def words_of(item: Item) -> set[str]:
    return {item.fill, item.color, item.shape, "one"}


def only(grid: Grid, phrase: str) -> Item:
    """The one item that a phrase fits; an error if it fits none or several."""
    [item] = [item for item in grid.items if set(phrase.removeprefix("the ").split()) <= words_of(item)]
    return item


def follow(grid: Grid, subject: str) -> Item:
    """What "the shape left of the star above the red cross" leads to."""
    *path, start = re.split(r" (left of|right of|above|below) ", subject)
    item = only(grid, start)
    names, steps = path[::2], path[1::2]
    for name, step in zip(names[::-1], steps[::-1], strict=True):
        [item] = [other for other in grid.items if other.cell == item.cell + ONE_STEP[step]]
        assert name in ("the shape", f"the {item.shape}")
    return item


def place_of(item: Item) -> str:
    return f"{ROWS[item.cell // 3]} {COLUMNS[item.cell % 3]}"


def in_line(item: Item, line: str) -> bool:
    return line.split()[0] == (ROWS[item.cell // 3] if line.endswith("row") else COLUMNS[item.cell % 3])


def holds(question: str, answer: str, grid: Grid) -> bool:
    """Whether an answer is true of a grid: written for this test, by reading the English."""
    q, a = question.rstrip("?"), answer.rstrip(".")
    last = a.split()[-1]
    if m := re.fullmatch(r"What (color|shape) is (.+)", q):
        return last == getattr(follow(grid, m[2]), m[1])
    if m := re.fullmatch(r"Is (.+) solid or hollow", q):
        return last == follow(grid, m[1]).fill
    if m := re.fullmatch(r"Where is the (.+)", q):
        return a == f"It is {place_of(only(grid, m[1]))}"
    if m := re.fullmatch(r"Is there a (.+)", q):
        return any(set(m[1].split()) <= words_of(item) for item in grid.items) == a.startswith("Yes")
    if q == "What is in the image":
        claims = re.findall(r"A (\w+) (\w+) (\w+) is (\w+ \w+)", a)
        assert len(claims) == 2
        return set(claims) <= {(item.fill, item.color, item.shape, place_of(item)) for item in grid.items}
    if m := re.fullmatch(r"How many shapes have the color of the (.+)", q):
        return NUMBERS.index(last) == sum(item.color == only(grid, m[1]).color for item in grid.items)
    if m := re.fullmatch(r"Are there more (.+) in the (.+) or in the (.+)", q):
        words = {plural(shape): shape for shape in SHAPES}
        word = words.get(m[1]) or m[1].removesuffix(" shapes")
        numbers = {line: sum(in_line(i, line) and word in words_of(i) for i in grid.items) for line in m.groups()[1:]}
        return all(numbers[a.removeprefix("In the ")] > n for line, n in numbers.items() if line not in a)
    m = re.fullmatch(r"Is the (.+?) (left of|right of|above|below) or (left of|right of|above|below) the (.+)", q)
    assert m, question
    axis, sign = AHEAD[a.removeprefix("It is ").removesuffix(" it")]
    one, other = (divmod(only(grid, name).cell, 3)[axis] for name in (m[1], m[4]))
    return (one - other) * sign > 0


@pytest.mark.parametrize("task", sorted(GRID_TASKS))
def test_answers_are_true_of_one_picture_and_false_of_the_other(task: str) -> None:
    rng = random.Random(task)
    for level in GRID_TASKS[task][1]:
        for _ in range(60):
            contrast = draw_grid_contrast(rng, task, level, Split.TRAIN)
            for n, picture in enumerate(contrast.pictures):
                assert isinstance(picture, Grid)
                assert holds(contrast.question, contrast.answers[n], picture), (contrast, n)
                assert not holds(contrast.question, contrast.answers[1 - n], picture), (contrast, n)


def test_answers_about_digits() -> None:
    """By scikit-learn's own labels of the scans."""
    rng, labels = random.Random(0), load_digits().target
    for task in [*ROW_TASKS] * 60:
        contrast = draw_row_contrast(rng, task, Split.VALIDATION)
        for n, row in enumerate(contrast.pictures):
            assert isinstance(row, DigitRow)
            left, middle, right = values = [int(labels[scan]) for scan in row.scans]
            by_place = {"left": left, "middle": middle, "right": right}
            summands = [by_place[word] for word in re.findall("left|middle|right", contrast.question)]
            largest = next(place for place, value in by_place.items() if value == max(values))
            true = {
                "read": f"It is {' '.join(NUMBERS[v] for v in values)}.",
                "largest": f"The {largest} one.",
                "sum": f"It is {NUMBERS[sum(summands)]}.",
            }[task]
            assert (contrast.answers[n], contrast.answers[1 - n] == true) == (true, False)


def test_splits_share_nothing(train: Drawn, test: Drawn) -> None:
    """No grid's key, no scan, no image."""
    rng = random.Random(0)
    keys = {
        split: {
            p.key  # type: ignore[attr-defined]
            for task in GRID_TASKS
            for _ in range(8)
            for p in draw_grid_contrast(rng, task, 2 if task != "path" else 3, split).pictures
        }
        for split in (Split.TRAIN, Split.TEST, Split.VALIDATION)
    }
    scans = {split: set(sum(scans_of_split(split), ())) for split in keys}
    validation = pairs_of_split(100, Split.VALIDATION, seed=3, difficulty=HARD)
    images = [{pair.images for pair in drawn[0]} for drawn in (train, test, validation)]
    for a, b in ((0, 1), (0, 2), (1, 2)):
        one, other = list(keys)[a], list(keys)[b]
        assert not keys[one] & keys[other]
        assert not scans[one] & scans[other]
        assert not images[a] & images[b]
    assert sum(map(len, scans.values())) == 1797


def is_a_coin(share: float, n: int) -> bool:
    return abs(share - 0.5) < 3 * (0.25 / n) ** 0.5


def test_nothing_in_the_texts_tells_the_truth(train: Drawn, test: Drawn) -> None:
    """Length and place are coins in every task; a learner of words and word triples stays at chance."""
    pairs = train[0] + test[0]
    for name in sorted({pair.pair_id.rsplit("-", 1)[1] for pair in pairs}):
        mine = [pair for pair in pairs if pair.pair_id.endswith(f"-{name}")]
        assert all(len(p.responses[0]) != len(p.responses[1]) for p in mine)
        longer = sum((len(p.responses[0]) > len(p.responses[1])) == (p.preferred == 0) for p in mine)
        assert is_a_coin(longer / len(mine), len(mine)), name
        assert is_a_coin(sum(p.preferred == 0 for p in mine) / len(mine), len(mine)), name
    texts, labels = zip(
        *(
            (f"{p.question} q1 {' a1 '.join(p.responses[0].split())} q2 {' a2 '.join(p.responses[1].split())}", p.preferred)
            for p in pairs
        ),
        strict=True,
    )
    words = TfidfVectorizer(ngram_range=(1, 3), token_pattern=r"\S+", min_df=2)
    known = words.fit_transform(texts[:1000])
    score = LogisticRegression(max_iter=2000).fit(known, labels[:1000]).score(words.transform(texts[1000:]), labels[1000:])
    assert is_a_coin(score, 400)


def test_judgments(train: Drawn) -> None:
    """Well-formed, right (misread: wrong), readable by the checker; short enough for the stages' limit."""
    tokenizer = train_tokenizer(corpus(train[0][:300], train[1][:300], random.Random(0), HARD), 900)
    lengths = []
    for pair, truth in zip(train[0][:300], train[1][:300], strict=True):
        for misread in (False, True):
            responses = pair.shown(Order.SWAPPED)
            text, choice = grounded_judgment(truth, responses, misread=misread)
            assert follows_format(text)
            assert favored_response(reasoning_of(text)) == (1 if choice is Choice.FIRST else 2)
            assert (responses[choice is Choice.SECOND] == truth.right) is not misread
        lengths.append(len(tokenizer(text)["input_ids"]) + 1)
    assert max(lengths) <= 64
    assert sum(lengths) / len(lengths) <= 45


def test_unlike_pairs() -> None:
    """One change each, or all; answers still true of one picture; what is strange is never asked for by name."""
    rng, seen = random.Random(0), Counter[str]()
    for _ in range(160):
        drawing = draw_unlike(rng)
        contrast, change = drawing.contrast, drawing.category
        seen[change] += 1
        for n, picture in enumerate(contrast.pictures):
            assert isinstance(picture, UnlikeGrid)
            assert picture.restyled == (change in ("unlike_rendering", "unlike_all"))
            assert bool(picture.strange) == (change in ("unlike_shapes", "unlike_all"))
            if change in ("unlike_rendering", "unlike_shapes"):
                assert holds(contrast.question, contrast.answers[n], picture.grid)
                assert not holds(contrast.question, contrast.answers[1 - n], picture.grid)
            for item in picture.grid.items:
                named = re.search(rf"\b({item.shape}|{plural(item.shape)})\b", f"{contrast.question} {contrast.answers[n]}")
                assert item.cell not in picture.strange or named is None
    assert set(seen) == set(CHANGES)
    assert min(seen.values()) > 20
