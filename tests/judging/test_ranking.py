"""Ranking more than two: the fit against scikit-learn, tournaments against brute force, and plans under a noisy judge."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from typer.testing import CliRunner

from rewardlab.cli import app
from rewardlab.errors import ConfigError
from rewardlab.judging.best_of_n import rank_many
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.judging.ranking import (
    PLANS,
    Plan,
    PlayedMatch,
    Ranking,
    bradley_terry,
    fitted_strengths,
    net_win_rates,
    tiers_of,
)
from rewardlab.prompts import load_template
from rewardlab.samplers.scripted import ScriptedSampler
from rewardlab.types import Candidates, Choice, Completion, FinishReason, Message
from rewardlab.verdicts.parse import format_verdict
from tests.support.openai_server import ChatServer, chat_server


def play(plan: Plan, decide: Callable[[int, int], int | None]) -> Ranking:
    matches = next(plan)
    try:
        while True:
            matches = plan.send([decide(i, j) for i, j in matches])
    except StopIteration as end:
        return end.value


def test_strengths_equal_a_logistic_regression() -> None:
    """The same posterior, by another library: a row per game, +1 for the one and -1 for the other, no intercept."""
    dice = np.random.default_rng(0)
    wins = dice.integers(0, 4, (5, 5)) * (1 - np.eye(5, dtype=int))
    rows, labels = [], []
    for i in range(5):
        for j in range(5):
            row = np.zeros(5)
            row[i], row[j] = 1, -1
            for sign in (1, -1):  # each game seen from both sides, so that both classes occur; half the weight each
                rows += [sign * row] * wins[i, j]
                labels += [sign == 1] * wins[i, j]
    fit = LogisticRegression(C=1.5**2, fit_intercept=False, tol=1e-10, max_iter=1000)
    fit.fit(np.array(rows), np.array(labels), sample_weight=np.full(len(rows), 0.5))
    strengths, covariance = bradley_terry(wins.astype(float))
    assert strengths == pytest.approx(fit.coef_[0], abs=1e-4)
    assert (np.linalg.eigvalsh(covariance) > 0).all()
    assert bradley_terry(np.zeros((3, 3)))[0].tolist() == [0, 0, 0]


@given(st.permutations(range(7)), st.sampled_from(["round_robin", "knockout", "adaptive"]), st.integers(2, 7))
def test_a_judge_without_errors_finds_the_best(order: Sequence[int], plan: str, num: int) -> None:
    """Whatever the plan and the places; a round robin finds the whole order."""
    quality = [order.index(n) for n in range(num)]
    found = play(PLANS[plan](num, None), lambda i, j: max(i, j, key=lambda n: quality[n]))
    best_first = sorted(range(num), key=lambda n: -quality[n])
    assert found.best == best_first[0]
    assert sorted(n for tier in found.tiers for n in tier) == list(range(num))
    assert found.undecided == 0
    if plan == "round_robin":
        assert [tier[0] for tier in found.tiers] == best_first
    if plan == "knockout":
        assert found.num_matches == num - 1


@pytest.mark.parametrize("plan", sorted(PLANS))
def test_a_judge_that_decides_nothing_names_nobody(plan: str) -> None:
    """All share the first place, and every comparison is counted as undecided: no coin is flipped."""
    found = play(PLANS[plan](4, None), lambda i, j: None)
    assert found.best is None
    assert found.tiers == ((0, 1, 2, 3),)
    assert found.undecided == found.num_matches > 0


def test_knockout_keeps_both_of_an_undecided_match() -> None:
    """0 and 1 cannot be told apart, each beats the others: they share the first place; 2 and 3 left in different rounds."""
    found = play(PLANS["knockout"](4, None), lambda i, j: None if {i, j} == {0, 1} else min(i, j))
    assert found.tiers[0] == (0, 1)
    assert found.best is None


@pytest.mark.parametrize(("plan", "least"), [("round_robin", 10), ("knockout", 4), ("adaptive", 5)])
def test_a_budget_is_kept(plan: str, least: int) -> None:
    """Never more matches than it, and too small a one is said."""
    with pytest.raises(ValueError, match=f"needs at least {least} comparisons"):
        next(PLANS[plan](5, least - 1))
    dice = random.Random(0)
    for budget in (10, 12, 17):
        found = play(PLANS[plan](5, budget), lambda i, j: dice.choice([i, j, None]))
        assert found.num_matches <= budget
    with pytest.raises(ValueError, match="nothing to rank"):
        next(PLANS[plan](1, None))


@pytest.mark.nightly
def test_a_budget_buys_more_than_a_knockout() -> None:
    """Strengths with a spread of one logit, eight responses, 400 trials: with matches to spare the fit names the best one more
    often than a knockout, which cannot use them."""
    dice = random.Random(1)
    right = dict.fromkeys(("knockout", "adaptive"), 0)
    for _ in range(400):
        strengths = [dice.gauss(0, 1) for _ in range(8)]

        def decide(i: int, j: int, strengths: list[float] = strengths) -> int:
            return i if dice.random() < 1 / (1 + np.exp(strengths[j] - strengths[i])) else j

        for plan in right:
            found = play(PLANS[plan](8, 28), decide)
            right[plan] += found.best == max(range(8), key=lambda n: strengths[n])
    assert right["adaptive"] > right["knockout"] + 20


def test_rings_and_anchors() -> None:
    """A ring ranks by wins less losses; an anchor splits the others into those above and those below it."""
    ring = play(PLANS["circular"](4, None), max)
    assert (ring.num_matches, ring.tiers) == (4, ((3,), (1, 2), (0,)))
    assert play(PLANS["circular"](2, None), max).num_matches == 1
    anchored = play(PLANS["anchored"](4, None), lambda i, j: {0: 0, 1: 3, 2: None}[i])
    assert (anchored.num_matches, anchored.tiers, anchored.undecided) == (3, ((0,), (2, 3), (1,)), 1)


def test_rewards_by_hand() -> None:
    """Wins less losses by the number of judged matches; a match nobody could judge counts for nothing, and a response without
    any other has no reward."""
    played = [PlayedMatch(0, 1, 1.0), PlayedMatch(0, 2, 0.75), PlayedMatch(1, 2, None), PlayedMatch(3, 1, None)]
    assert net_win_rates(4, played) == [0.75, -1.0, -0.5, None]
    strengths, spread = fitted_strengths(4, played)
    assert strengths[3] is None
    assert spread[3] is None
    assert strengths[0] > strengths[2] > strengths[1]
    assert sum(strengths[:3]) == pytest.approx(0, abs=1e-9)
    swapped, _ = fitted_strengths(4, [PlayedMatch(m.second, m.first, None if m.share is None else 1 - m.share) for m in played])
    assert swapped[:3] == pytest.approx(strengths[:3])
    assert net_win_rates(2, []) == [None, None]


def test_a_judge_that_repeats_itself_is_asked_once() -> None:
    """No pair meets twice, and the plan ends when the strongest has met all, whatever is left of the budget."""
    met: list[tuple[int, int]] = []

    def decide(i: int, j: int) -> int:
        met.append((min(i, j), max(i, j)))
        return max(i, j)

    found = play(PLANS["adaptive"](6, 100, repeats=False), decide)
    assert len(set(met)) == len(met) == found.num_matches <= 15
    assert found.best == 5


def test_tiers() -> None:
    assert tiers_of([1, 3, 1, 2]) == ((1,), (3,), (0, 2))


def test_prompts_are_ranked_together() -> None:
    """Each round of all prompts is one call of the judge, both orders of every match; a prompt that is done waits for none."""
    calls = []

    def handler(prompt: tuple[Message, ...], n: int) -> Completion:
        calls.append(prompt)
        shown = prompt[-1].text
        names = sorted("abcde", key=lambda name: shown.find(f"({name})") if f"({name})" in shown else 10**9)[:2]
        return Completion(format_verdict(Choice.FIRST if names[0] < names[1] else Choice.SECOND, "r"), FinishReason.STOP, 5)

    judge = GenerativeJudge(ScriptedSampler(handler), load_template("plain"))
    prompts = [Candidates("x", "Which?", ("(c)", "(a)", "(b)")), Candidates("y", "Which?", ("(e)", "(d)"))]
    found = rank_many(judge, prompts, plan="knockout", budget=None, num_votes=1, seed=0)
    assert [one.best for one in found] == [1, 1]
    assert len(calls) == 2 * (2 + 1)
    with pytest.raises(ConfigError, match="unknown plan"):
        rank_many(judge, prompts, plan="lottery", budget=None, num_votes=1, seed=0)
    with pytest.raises(ConfigError, match="the budget is 1"):
        rank_many(judge, prompts, plan="knockout", budget=1, num_votes=1, seed=0)


def test_who_had_a_bye_plays_first() -> None:
    """Five responses: the fifth waits in the first round and plays in the second."""
    plan = PLANS["knockout"](5, None)
    assert next(plan) == [(0, 1), (2, 3)]
    assert plan.send([0, 2]) == [(4, 0)]
    assert plan.send([4]) == [(2, 4)]


@pytest.mark.parametrize("num", range(3, 12))
@pytest.mark.parametrize("decide", [min, max])
def test_nobody_has_two_byes_in_a_row(num: int, decide: Callable[[int, int], int]) -> None:
    """Whoever wins."""
    plan, left, waited = PLANS["knockout"](num, None), set(range(num)), set[int]()
    matches = next(plan)
    try:
        while True:
            waits = left - {n for match in matches for n in match}
            assert not waits & waited
            winners = [decide(*match) for match in matches]
            left, waited = waits | set(winners), waits
            matches = plan.send(winners)
    except StopIteration:
        assert len(left) == 1


@pytest.mark.slow
def test_answers_that_another_format_reads_are_told(tmp_path: Path) -> None:
    """`rank` names the format, and the command by it finds the verdicts."""
    (tmp_path / "p.jsonl").write_text(json.dumps({"question": "q", "responses": ["a", "b", "c"], "best": 0}) + "\n")
    with chat_server(ChatServer(text="I take [[A]]")) as url:
        command = ["rank", str(tmp_path / "p.jsonl"), "--judge", f"openai:m@{url}", "--plan", "round_robin"]
        unread = CliRunner().invoke(app, [*command, "--out", str(tmp_path / "one")])
        assert unread.exit_code == 1
        sentence = unread.output.split("without a verdict have one in the format double_brackets")[1]
        flags = " ".join(sentence.split()).split("): ")[1].split()[:1]
        read = CliRunner().invoke(app, [*command, *flags, "--out", str(tmp_path / "two")])
    assert read.exit_code == 0, read.output
    assert "double_brackets" not in read.output
