"""The demonstration is what it says: truths hold in the pixels, texts give nothing away, splits share nothing."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from rewardlab.demo import pictures, tasks
from rewardlab.demo.judgments import Truth, grounded_judgment, shallow_judgment
from rewardlab.demo.pairs import make_pairs
from rewardlab.demo.pictures import COLORS, SHAPES, Scene
from rewardlab.demo.server import TeacherConfig, check_consistency
from rewardlab.rewards.consistency import consistency_prompt
from rewardlab.types import Choice, Order, PreferencePair
from rewardlab.verdicts.parse import follows_format, parse_verdict
from rewardlab.verdicts.places import reasoning_of

ROOT = Path(__file__).parents[2]
Drawn = tuple[list[PreferencePair], list[Truth]]


@pytest.fixture(scope="module")
def train() -> Drawn:
    return make_pairs(4000, seed=3, held_out=False)


@pytest.fixture(scope="module")
def held_out() -> Drawn:
    return make_pairs(1000, seed=3, held_out=True)


def holds(question: str, answer: str, scene: Scene) -> bool:
    """Whether an answer is true of a scene: written for this test, by reading the English."""
    q, a = question.rstrip("?").split(), answer.rstrip(".").split()
    names, things = {t.name for t in scene.things}, scene.things
    if question.startswith("What color is the"):
        return {t.color for t in things if t.shape == q[-1]} == {a[-1]}
    if question.startswith("What shape is"):
        return {t.shape for t in things if t.color == q[-1]} == {a[1]}
    if question.startswith("Where is the"):
        return [t.place for t in things if t.name == " ".join(q[-2:])] == [" ".join(a[2:])]
    if question.startswith("Is there a"):
        return (" ".join(q[-2:]) in names) == (a[0] == "Yes,")
    if question == "What is in the image?":
        return {" ".join(a[1:3]), " ".join(a[5:7])} <= names
    if question.startswith("How many"):
        shape = {pictures.plural(s): s for s in SHAPES}[q[2]]
        return sum(t.shape == shape for t in things) == tasks.NUMBERS.index(a[-1])
    if question.startswith("Is the"):
        return _relation_holds(q, a, scene)
    counts = Counter(t.shape for t in things)
    left, right = (next(s for s in SHAPES if pictures.plural(s) == word) for word in (q[-3], q[-1]))
    most = left if counts[left] > counts[right] else right
    assert question.startswith("Are there more"), question
    return pictures.plural(most) in answer.split() or pictures.plural(most) in answer


def _relation_holds(q: list[str], a: list[str], scene: Scene) -> bool:
    by_name = {t.name: t for t in scene.things}
    one, other = by_name[f"{q[2]} {q[3]}"], by_name[f"{q[-2]} {q[-1]}"]
    (row, column), (other_row, other_column) = divmod(one.cell, 2), divmod(other.cell, 2)
    return {"left": column < other_column, "right": column > other_column, "above": row < other_row, "below": row > other_row}[
        a[2]
    ]


@pytest.mark.parametrize("task", sorted(tasks.SCENE_TASKS))
def test_answers_are_true_of_one_picture_and_false_of_the_other(task: str) -> None:
    """For 300 draws at every level, by an oracle that reads the English and not the generator's keys."""
    rng = random.Random(task)
    for level in tasks.SCENE_TASKS[task][1]:
        for _ in range(100):
            contrast = tasks.draw_scene_contrast(rng, task, level, held_out=False)
            for n, picture in enumerate(contrast.pictures):
                assert isinstance(picture, Scene)
                assert holds(contrast.question, contrast.answers[n], picture), (contrast, n)
                assert not holds(contrast.question, contrast.answers[1 - n], picture), (contrast, n)


@pytest.mark.parametrize("task", sorted(tasks.DIGIT_TASKS))
def test_digit_answers(task: str) -> None:
    """The truth is checked by scikit-learn's own labels of the two scans."""
    rng, labels = random.Random(task), load_digits().target
    for _ in range(200):
        contrast = tasks.draw_digit_contrast(rng, task, held_out=True)
        for n, card in enumerate(contrast.pictures):
            assert isinstance(card, pictures.Card)
            left, right = (int(labels[scan]) for scan in card.scans)
            words = tasks.NUMBERS
            answer_of_task = {"read": f"It is {words[left]} {words[right]}.", "sum": f"It is {words[left + right]}."}
            answer_of_task["larger"] = f"The {'left' if left > right else 'right'} one."
            assert contrast.answers[n] == answer_of_task[task]
            assert contrast.answers[1 - n] != answer_of_task[task]


def test_pictures_show_the_scene() -> None:
    """Each cell's dominant paint is the thing's colour, and nothing is painted where nothing is."""
    rng = random.Random(0)
    for _ in range(100):
        scene = pictures.random_scene(rng, rng.choice((2, 3, 4)))
        pixels = np.asarray(pictures.render_scene(scene, rng)).astype(int)
        by_cell = {thing.cell: thing for thing in scene.things}
        for cell in range(4):
            row, column = divmod(cell, 2)
            patch = pixels[row * 28 + 10 : row * 28 + 18, column * 28 + 10 : column * 28 + 18].reshape(-1, 3)
            middle = np.median(patch, axis=0)
            thing = by_cell.get(cell)
            if thing is None:
                assert middle.min() > 215
            else:
                nearest = min(COLORS, key=lambda name: float(np.abs(middle - COLORS[name]).sum()))
                assert nearest == thing.color


def test_splits_share_no_scene_and_no_scan(train: Drawn, held_out: Drawn) -> None:
    """Splits are kept apart by the drawn scene's key, by the scans, and by the images' bytes."""
    rng = random.Random(0)
    keys: dict[bool, set[str]] = {False: set(), True: set()}
    for split in keys:
        for task, (_, levels, _) in tasks.SCENE_TASKS.items():
            for _ in range(150):
                contrast = tasks.draw_scene_contrast(rng, task, rng.choice(levels), held_out=split)
                keys[split] |= {p.key for p in contrast.pictures if isinstance(p, Scene)}
    assert not keys[False] & keys[True]
    a, b = (set(sum(pictures.scans_by_digit(split), ())) for split in (False, True))
    assert not a & b
    assert len(a | b) == 1797
    assert not {p.images for p in train[0]} & {p.images for p in held_out[0]}


def test_the_same_seed_gives_the_same_pairs() -> None:
    """To the byte; another seed does not."""
    assert make_pairs(50, seed=5, held_out=False) == make_pairs(50, seed=5, held_out=False)
    assert make_pairs(50, seed=5, held_out=False)[0] != make_pairs(50, seed=6, held_out=False)[0]


def interval(share: float, n: int) -> float:
    """Three standard errors of a fair coin."""
    return 3 * (0.25 / n) ** 0.5 - abs(share - 0.5)


def test_nothing_in_the_texts_tells_the_truth(train: Drawn, held_out: Drawn) -> None:
    """Length and place of the preferred answer are coins, in every task; equal lengths do not occur."""
    pairs = train[0] + held_out[0]
    for name in sorted({pair.pair_id.rsplit("-", 1)[1] for pair in pairs}):
        mine = [pair for pair in pairs if pair.pair_id.endswith(f"-{name}")]
        longest = [len(p.responses[0]) > len(p.responses[1]) for p in mine]
        assert all(len(p.responses[0]) != len(p.responses[1]) for p in mine)
        assert interval(sum(won == (p.preferred == 0) for won, p in zip(longest, mine, strict=True)) / len(mine), len(mine)) > 0
        assert interval(sum(p.preferred == 0 for p in mine) / len(mine), len(mine)) > 0


def test_a_learner_of_text_alone_stays_at_chance(train: Drawn, held_out: Drawn) -> None:
    """Logistic regression on words and word pairs of question and both answers, 4,000 to learn from."""

    def texts(pairs: list[PreferencePair]) -> list[str]:
        return [
            f"{p.question} q1 {' a1 '.join(p.responses[0].split())} q2 {' a2 '.join(p.responses[1].split())}" for p in pairs
        ]

    def labels(pairs: list[PreferencePair]) -> list[int]:
        return [int(p.preferred or 0) for p in pairs]

    words = TfidfVectorizer(ngram_range=(1, 3), token_pattern=r"\S+", min_df=2)
    learner = LogisticRegression(max_iter=2000).fit(words.fit_transform(texts(train[0])), labels(train[0]))
    score = learner.score(words.transform(texts(held_out[0])), labels(held_out[0]))
    assert interval(score, len(held_out[0])) > 0


def test_teacher_is_of_mixed_quality(train: Drawn) -> None:
    """Errors rise with the level; some right judgments are shallow; all are well-formed."""
    pairs, truths = train
    config, wrong, shallow_right = TeacherConfig(), Counter[int](), 0
    rng = random.Random(0)
    for pair, truth in zip(pairs, truths, strict=True):
        text = config.judge(truth, pair.responses, rng)
        assert follows_format(text)
        choice = parse_verdict(text, "think_answer").choice
        right = (choice is Choice.FIRST) == (pair.preferred == 0)
        wrong[truth.level] += not right
        shallow_right += right and "Response 1:" not in text
    rates = [wrong[level] / sum(t.level == level for t in truths) for level in (1, 2, 3)]
    assert all(a < b for a, b in pairwise(rates))
    assert 0.1 < shallow_right / len(pairs) < 0.45


@pytest.mark.parametrize("misread", [False, True])
def test_checker_knows_agreement_from_contradiction(demo_pairs: Any, misread: bool) -> None:
    """Grounded and shallow reasoning, in the verdict given and in the opposite one."""
    rng = random.Random(0)
    for pair, truth in zip(*demo_pairs, strict=True):
        text, choice = grounded_judgment(truth, pair.shown(Order.SWAPPED), misread=misread)
        for reasoning in (reasoning_of(text),):
            assert check_consistency(consistency_prompt(pair.question, reasoning, choice)) == "1"
            assert check_consistency(consistency_prompt(pair.question, reasoning, choice.swap())) == "0"
        bluff, chosen = shallow_judgment(rng, contradict=1.0)
        assert check_consistency(consistency_prompt(pair.question, reasoning_of(bluff), chosen)) == "0"
    assert check_consistency(consistency_prompt("q", "Both are fine.", Choice.FIRST)) == "unclear"


def test_grounded_judgments_are_right(demo_pairs: Any) -> None:
    """And misread ones wrong, in either order."""
    for pair, truth in zip(*demo_pairs, strict=True):
        for order in Order:
            for misread in (False, True):
                choice = grounded_judgment(truth, pair.shown(order), misread=misread)[1]
                response = pair.shown(order)[0 if choice is Choice.FIRST else 1]
                assert (response == truth.right) is not misread


def test_the_scans_are_those_of_scikit_learn() -> None:
    """Bit for bit, pictures and labels."""
    bunch = pytest.importorskip("sklearn.datasets").load_digits()
    images, labels = pictures.collection()
    assert images.shape == (1797, 8, 8)
    np.testing.assert_array_equal(images, bunch.images)
    np.testing.assert_array_equal(labels, bunch.target)


def test_the_demonstration_needs_no_scikit_learn() -> None:
    code = "import sys; sys.modules['sklearn'] = None; from rewardlab.demo.pictures import collection; collection()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
