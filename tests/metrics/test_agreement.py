"""Agreement against scikit-learn and loops over pairs of ratings; the alternative annotator test as its authors state it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.stats import false_discovery_control, ttest_1samp
from sklearn.metrics import cohen_kappa_score

from rewardlab.metrics.agreement import alternative_annotator_test, cohens_kappa, krippendorffs_alpha

CHOICES = (0, 1, "tie")


def random_table(seed: int, num_items: int, num_raters: int, missing: float) -> list[list[object]]:
    """Choices that lean towards a truth of each item; None where a rater has not rated it."""
    dice = np.random.default_rng(seed)
    truth = dice.integers(0, 3, num_items)
    table = np.where(dice.random((num_items, num_raters)) < 0.5, truth[:, None], dice.integers(0, 3, (num_items, num_raters)))
    absent = dice.random((num_items, num_raters)) < missing
    return [
        [None if gone else CHOICES[code] for code, gone in zip(*row, strict=True)] for row in zip(table, absent, strict=True)
    ]


@pytest.mark.parametrize("seed", range(5))
def test_kappa_is_scikit_learns(seed: int) -> None:
    first, second = zip(*random_table(seed, 60, 2, 0.0), strict=True)
    codes = [[CHOICES.index(choice) for choice in choices] for choices in (first, second)]
    assert cohens_kappa(first, second) == pytest.approx(cohen_kappa_score(*codes))
    weights = np.random.default_rng(seed).random(60)
    assert cohens_kappa(first, second, weights) == pytest.approx(cohen_kappa_score(*codes, sample_weight=weights))


def test_kappa_without_a_second_category_is_undefined() -> None:
    assert cohens_kappa([1, 1], [1, 1]) is None
    assert cohens_kappa([0, 1], [1, 0]) == pytest.approx(-1)


def alpha_by_pairs(table: list[list[object]]) -> float:
    """Krippendorff's definition: disagreement of pairs of ratings within items, over that of pairs of all ratings."""
    items = [[choice for choice in row if choice is not None] for row in table]
    items = [row for row in items if len(row) > 1]
    within = sum(sum(a != b for a, b in itertools.permutations(row, 2)) / (len(row) - 1) for row in items)
    every = [choice for row in items for choice in row]
    across = sum(a != b for a, b in itertools.permutations(every, 2)) / (len(every) - 1)
    return 1 - within / across


@pytest.mark.parametrize("missing", [0.0, 0.3, 0.7])
@pytest.mark.parametrize("seed", range(3))
def test_alpha_is_its_definition(seed: int, missing: float) -> None:
    table = random_table(seed, 40, 4, missing)
    ratings = [[choice for choice in row if choice is not None] for row in table]
    assert krippendorffs_alpha(ratings) == pytest.approx(alpha_by_pairs(table))


def test_alpha_of_one_choice_is_undefined() -> None:
    assert krippendorffs_alpha([[1, 1], [1, 1, 1], [0]]) is None
    assert krippendorffs_alpha([[0, 0], [1, 1]]) == 1


def as_published(ratings: dict, judge: dict, epsilon: float) -> tuple[float, float]:
    """The test in the words of its paper, sections 3.1 to 3.3, with scipy's t-test and correction."""
    p_values, advantages = [], []
    for rater, choices in ratings.items():
        wins, losses = [], []
        for item, choice in choices.items():
            rest = [other[item] for name, other in ratings.items() if name != rater and item in other]
            if rest:
                machine, human = (np.mean([one == two for two in rest]) for one in (judge[item], choice))
                wins.append(float(machine >= human))
                losses.append(float(human >= machine))
        p_values.append(ttest_1samp(np.subtract(losses, wins), epsilon, alternative="less").pvalue)
        advantages.append(np.mean(wins))
    return float((false_discovery_control(p_values, method="by") <= 0.05).mean()), float(np.mean(advantages))


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.2])
@pytest.mark.parametrize("right", [0.4, 0.7, 0.85])
def test_the_alternative_annotator_test_is_its_authors(right: float, epsilon: float) -> None:
    rates = set()
    for seed in range(4):
        dice = np.random.default_rng(seed)
        truth = dice.integers(0, 2, 120)
        items = [str(n) for n in range(120)]
        ratings = {
            f"rater {k}": {
                item: int(t if dice.random() < accuracy else 1 - t)
                for item, t in zip(items, truth, strict=True)
                if dice.random() < 0.8
            }
            for k, accuracy in enumerate((0.75, 0.8, 0.85, 0.7))
        }
        judge = {item: int(t if dice.random() < right else 1 - t) for item, t in zip(items, truth, strict=True)}
        expected = as_published(ratings, judge, epsilon)
        test = alternative_annotator_test(ratings, {item: (choice,) for item, choice in judge.items()}, epsilon=epsilon)
        assert (test.winning_rate, test.advantage) == pytest.approx(expected)
        rates.add(expected[0])
    assert len(rates) > 1 or right != 0.7 or epsilon == 0  # some cells are decided by the seed


def test_a_judge_in_both_orders_has_half_a_choice_in_each() -> None:
    """Of three raters two say 0. The judge says 0 in one order only: it agrees half as often as it would."""
    items = [str(n) for n in range(40)]
    ratings = {"a": dict.fromkeys(items, 0), "b": dict.fromkeys(items, 0), "c": dict.fromkeys(items, 1)}
    test = alternative_annotator_test(ratings, dict.fromkeys(items, (0, None)))
    accuracies = {one.rater: (one.rater_accuracy.accuracy, one.judge_accuracy.accuracy) for one in test.raters}
    assert accuracies == {"a": (0.5, 0.25), "b": (0.5, 0.25), "c": (0.0, 0.5)}
    assert [one.replaceable for one in test.raters] == [False, False, True]
    assert test.winning_rate == pytest.approx(1 / 3)


def test_a_judge_in_both_orders_is_as_one_in_a_random_order() -> None:
    """The advantage is the mean over all ways to draw an order of each item."""
    dice = np.random.default_rng(5)
    items = [str(n) for n in range(4)]
    ratings = {name: {item: int(dice.integers(2)) for item in items} for name in "abc"}
    judge = {item: tuple(int(choice) for choice in dice.integers(0, 2, 2)) for item in items}
    both = alternative_annotator_test(ratings, judge)
    drawn = [
        alternative_annotator_test(ratings, {item: (judge[item][place],) for item, place in zip(items, places, strict=True)})
        for places in itertools.product((0, 1), repeat=len(items))
    ]
    for n, one in enumerate(both.raters):
        assert one.advantage == pytest.approx(np.mean([test.raters[n].advantage for test in drawn]))
        assert one.judge_accuracy.accuracy == pytest.approx(np.mean([test.raters[n].judge_accuracy.accuracy for test in drawn]))


def test_items_of_one_prompt_are_one_draw() -> None:
    """Ten copies of an item say no more than the item."""
    dice = np.random.default_rng(3)
    truth = dice.integers(0, 2, 40)

    def noisy(share: float) -> list[int]:
        return [int(t if dice.random() < share else 1 - t) for t in truth]

    raters, judged = {name: noisy(0.8) for name in "abc"}, noisy(0.78)

    def test(copies: int) -> list[float | None]:
        names = {f"{n}-{copy}": str(n) for copy in range(copies) for n in range(40)}
        ratings = {name: {item: choices[int(names[item])] for item in names} for name, choices in raters.items()}
        judge = {item: (judged[int(prompt)],) for item, prompt in names.items()}
        return [one.p_value for one in alternative_annotator_test(ratings, judge, clusters=names).raters]

    assert test(10) == pytest.approx(test(1))


def test_three_prompts_show_nothing() -> None:
    """Of 36 items a judge agrees with everybody: it may replace raters if these are of four prompts, not of three."""
    items = [str(n) for n in range(36)]
    ratings, judge = {name: dict.fromkeys(items, 0) for name in "ab"}, dict.fromkeys(items, (0,))
    for num_prompts, rate in ((3, 0.0), (4, 1.0)):
        clusters = {item: str(int(item) % num_prompts) for item in items}
        assert alternative_annotator_test(ratings, judge, clusters=clusters).winning_rate == rate


def test_raters_of_few_items_are_not_tested() -> None:
    items = [str(n) for n in range(29)]
    test = alternative_annotator_test({"a": dict.fromkeys(items, 0), "b": dict.fromkeys(items, 0)}, dict.fromkeys(items, (0,)))
    assert (test.winning_rate, test.advantage) == (None, None)
    assert [one.p_value for one in test.raters] == [None, None]
    alone = alternative_annotator_test({"a": dict.fromkeys(items, 0)}, dict.fromkeys(items, (0,)))
    assert alone.raters == ()
