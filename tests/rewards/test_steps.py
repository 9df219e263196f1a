"""Steps, their first bad one, a threshold that guessing does not reach, rewards at step ends: by hand and by brute force."""

from __future__ import annotations

import itertools
import math
import random

import pytest
import torch
from scipy.stats import binom

from rewardlab.rewards.steps import (
    chance_of_at_least,
    first_bad,
    has_footing,
    judgment_steps,
    least_correct_or_raise,
    process_rewards,
    step_counts,
    step_ends,
    step_labels,
    token_ends,
)

TEXTS = [
    ("squares: one. Response 1: one, wrong. So 2", ["squares: one.", "Response 1: one, wrong.", "So 2"]),
    ("It costs 1.5 euros! Really?  Yes", ["It costs 1.5 euros!", "Really?", "Yes"]),
    (
        "1. The cat is red.\n2) The dog is not.\n\n---\n- So 1 wins",
        ["1. The cat is red.", "2) The dog is not.", "---\n- So 1 wins"],
    ),
    ('He says "it is red." That is so.', ['He says "it is red."', "That is so."]),
    ("第一个对。第二个错！", ["第一个对。", "第二个错！"]),
    ("no mark at all", ["no mark at all"]),
    ("One. ...", ["One."]),
    ("\n\n--- ***\n", []),
    ("", []),
]


@pytest.mark.parametrize(("text", "steps"), TEXTS)
def test_steps(text: str, steps: list[str]) -> None:
    """Worked by hand."""
    ends = step_ends(text)
    assert [text[a:b].lstrip() for a, b in itertools.pairwise([0, *ends])] == steps


def test_what_says_nothing_changes_nothing() -> None:
    """Lines of dashes and list marks between the steps: as many steps, with the same last words."""
    plain, dressed = "A is red. B is blue.\nC wins.", "# \n1. A is red. \n---\n2. B is blue.\n\n***\n3. C wins.\n---"
    assert len(step_ends(plain)) == len(step_ends(dressed)) == 3
    for (text, a), (other, b) in zip(
        [(plain, e) for e in step_ends(plain)], [(dressed, e) for e in step_ends(dressed)], strict=True
    ):
        assert text[a - 5 : a] == other[b - 5 : b]


def test_the_verdict_is_no_step() -> None:
    """Nor is what stands in front of the reasoning; a reasoning that was never closed has no steps."""
    text = "Well. <think>A. is red. So B.</think><answer>2</answer>"
    assert [text[:end][-6:] for end in judgment_steps(text)] == ["s red.", " So B."]
    assert judgment_steps("<think>A is red. So B.") == judgment_steps("A is red. <answer>1</answer>") == []


def test_token_ends() -> None:
    """The token that holds the last character, by brute force over random cuts of a text."""
    rng = random.Random(0)
    text = "One is red. Two is not! So 1.5 wins\nThe end."
    ends = step_ends(text)
    for _ in range(200):
        cuts = sorted(rng.sample(range(len(text) + 1), rng.randint(1, 20)))
        pieces = [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])]
        holder = [next(n for n in range(len(pieces)) if len("".join(pieces[: n + 1])) >= end) for end in ends]
        assert token_ends(ends, pieces) == holder
        assert all(pieces[token] for token in token_ends(ends, pieces))
    with pytest.raises(ValueError, match="ends at character 5"):
        token_ends([5], ["abc"])
    assert token_ends([], []) == []


@pytest.mark.parametrize("n", range(41))
def test_every_monotone_oracle(n: int) -> None:
    """Exhaustive: the true first bad step, or none, with at most ceil(log2 n) + 1 queries and never one of the empty prefix."""
    for bad in [*range(1, n + 1), None]:
        asked: list[int] = []

        def feasible(k: int, bad: int | None = bad, asked: list[int] = asked) -> bool:
            asked.append(k)
            return bad is None or k < bad

        assert first_bad(n, feasible) == bad
        assert len(asked) <= (math.ceil(math.log2(n)) + 1 if n else 0)
        assert 0 not in asked


def test_any_oracle_gives_a_boundary() -> None:
    """All 2^9 answers to nine prefixes, monotone or not."""
    for answers in itertools.product([False, True], repeat=9):
        feasible = [True, *answers]
        bad = first_bad(9, feasible.__getitem__)
        if bad is None:
            assert feasible[9]
        else:
            assert feasible[bad - 1]
            assert not feasible[bad]


def test_threshold() -> None:
    """15 of 20, by chance .0207 (the published figure); scipy's binomial for others; too few draws are refused."""
    assert least_correct_or_raise(20, 0.025) == 15
    assert chance_of_at_least(15, 20) == pytest.approx(0.0207, abs=5e-5)
    for num, alpha, guess in itertools.product((8, 20, 40), (0.01, 0.05), (0.5, 0.25)):
        for right in range(num + 1):
            assert chance_of_at_least(right, num, guess) == pytest.approx(binom.sf(right - 1, num, guess), abs=1e-12)
        assert least_correct_or_raise(num, alpha, guess) == binom.isf(alpha, num, guess) + 1
    with pytest.raises(ValueError, match="take more samples"):
        least_correct_or_raise(5, 0.025)


def test_any_of_k_is_useless() -> None:
    """A judge that guesses passes "any of 20 is right" always and the test hardly ever; one that is always wrong, neither."""
    assert chance_of_at_least(1, 20) > 1 - 1e-6
    assert chance_of_at_least(least_correct_or_raise(20, 0.025), 20) < 0.025
    # Of a reasoning whose first half is sound (always right) and whose second misleads to a guess, n = 8 steps, the first bad
    # step is 5. "Any of K" says that nothing is wrong.
    chances = [1.0] * 5 + [0.5] * 4
    rng = random.Random(0)

    def found(least: int) -> int | None:
        return first_bad(8, lambda k: sum(rng.random() < chances[k] for _ in range(20)) >= least)

    assert [found(1) for _ in range(200)] == [None] * 200
    assert sum(found(15) == 5 for _ in range(200)) > 180


def test_footing() -> None:
    """A guesser and a judge of positions have none; a judge who knows has; either order must carry it."""
    assert not has_footing(10, 10, 20, 0.025)
    assert not has_footing(20, 0, 20, 0.025)
    assert not has_footing(20, 10, 20, 0.025)
    assert has_footing(20, 11, 20, 0.025)
    assert has_footing(14, 13, 20, 0.025)
    assert not has_footing(13, 13, 20, 0.025)  # 26 of 40 happen to a guesser in one of 25


def test_labels() -> None:
    """+1 and then -1, never back."""
    assert step_labels(4, None) == [1, 1, 1, 1]
    assert step_labels(4, 3) == [1, 1, -1, -1]
    assert step_labels(4, 1) == [-1] * 4
    assert step_labels(0, None) == []


def test_rewards_by_hand() -> None:
    """On step ends only, by the number of steps, by the outcome; beyond 1 is clamped; two steps in one token both count."""
    mask_NT = torch.ones(3, 5, dtype=torch.long)
    counts_NT = step_counts([[1, 4], [2, 2], []], mask_NT)
    scores_NT = torch.tensor([[9.0, 1.0, 9.0, 9.0, -3.0], [9.0, 9.0, 0.5, 9.0, 9.0], [9.0] * 5])
    rewards_NT = process_rewards(scores_NT, counts_NT, torch.tensor([0.0, 1.0, 0.0]))
    expected = torch.tensor([[0, 0.125, 0, 0, -0.125], [0, 0, 0.0125, 0, 0], [0, 0, 0, 0, 0]])
    torch.testing.assert_close(rewards_NT, expected)


@pytest.mark.parametrize("seed", range(5))
def test_no_number_of_steps_earns_more(seed: int) -> None:
    """Sums within -1..1 at weight 1, whatever the scores and however many steps; weight 0 pays exactly nothing."""
    generator = torch.Generator().manual_seed(seed)
    scores_NT = 5 * torch.randn(64, 40, generator=generator)
    ends = [list(range(n % 41)) for n in range(64)]
    counts_NT, right_N = step_counts(ends, torch.ones(64, 40)), torch.arange(64) % 2
    sums_N = process_rewards(scores_NT, counts_NT, right_N, wrong_weight=1.0, right_weight=1.0).sum(1)
    assert sums_N.abs().max() <= 1 + 1e-6
    torch.testing.assert_close(
        process_rewards(torch.ones(64, 40), counts_NT, right_N).sum(1)[1:41],
        torch.where(right_N.bool(), 0.025, 0.25)[1:41],
    )
    assert not process_rewards(scores_NT, counts_NT, right_N, wrong_weight=0.0, right_weight=0.0).any()
