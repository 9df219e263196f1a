"""Checklists: read as they are written, fail-closed, and a verdict that follows from them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rewardlab.judging.margins import ProbabilityJudge
from rewardlab.prompts import load_template
from rewardlab.samplers.scripted import ScriptedSampler
from rewardlab.types import (
    BOTH_ORDERS,
    Choice,
    Completion,
    Criterion,
    FinishReason,
    Order,
    Outcome,
    PreferencePair,
    VerdictStatus,
    Vote,
)
from rewardlab.verdicts.checklist import (
    ClaimCheck,
    ClaimFinding,
    balance,
    checks_of,
    judgments_by_criterion,
    read_checks,
    supported_choice,
    write_checks,
)
from rewardlab.verdicts.parse import follows_format, parse_verdict, until_verdict, verdict_of
from rewardlab.verdicts.votes import judgment

ACCURACY, STYLE = Criterion("accuracy", 2.0), Criterion("style", 0.5)
CHECKS = (
    ClaimCheck(Choice.FIRST, "the star is red", ClaimFinding.TRUE, "accuracy", 2.0, "the star of the image is red"),
    ClaimCheck(Choice.SECOND, "the source is named", ClaimFinding.TRUE, "style", 0.5),
)
WORDS = st.text(st.sampled_from("ab 12.:-[]x()/"), min_size=1, max_size=30).map(str.strip).filter(bool)
NAMES = st.sampled_from(["", "accuracy", "a b", "is it seen?"])
CHECK = st.builds(
    lambda choice, claim, finding, name, weight, reason: ClaimCheck(
        choice, claim, finding, name, weight if name else 1.0, reason
    ),
    st.sampled_from(Choice),
    WORDS,
    st.sampled_from(ClaimFinding),
    NAMES,
    st.sampled_from([1.0, 2.0, 0.5, 0.125, 999.0]),
    WORDS | st.just(""),
)


def text_of(checks: tuple[ClaimCheck, ...], choice: str) -> str:
    return f"<think>{write_checks(checks)}\n</think><answer>{choice}</answer>"


@given(st.lists(CHECK, min_size=1, max_size=6).map(tuple))
def test_checks_are_read_as_they_are_written(checks: tuple[ClaimCheck, ...]) -> None:
    assert read_checks(write_checks(checks)) == checks
    choice = supported_choice(checks)
    for name, digit in ((Choice.FIRST, "1"), (Choice.SECOND, "2")):
        verdict = parse_verdict(text_of(checks, digit), "checklist")
        expected = VerdictStatus.UNSUPPORTED if choice is None else VerdictStatus.CONTRADICTED
        assert (verdict.choice, verdict.status) == ((name, VerdictStatus.OK) if choice is name else (None, expected))


@pytest.mark.slow
@given(st.text(st.sampled_from("Checks:Verifcaton12. \ntrue[]x")), st.lists(CHECK, max_size=3).map(tuple))
def test_no_text_breaks_the_reader(noise: str, checks: tuple[ClaimCheck, ...]) -> None:
    for text in (noise, write_checks(checks) + noise, noise + write_checks(checks)):
        verdict = parse_verdict(f"<think>{text}</think><answer>1</answer>", "checklist")
        assert (verdict.status is VerdictStatus.OK) == (supported_choice(read_checks(text) or ()) is Choice.FIRST)


WHOLE = "Checks:\n1. Response 1: red.\n2. Response 2: blue.\nVerification:\n1. It is red: true\n2. It is red: false"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Checks:\n", ""),
        ("Verification:\n", ""),
        ("Checks:", "Checks"),
        ("Checks:\n", "Checks:\nChecks:\n"),
        ("Checks:\n", "I see.\nChecks:\n"),
        ("2. Response 2: blue.", "3. Response 2: blue."),
        ("2. Response 2: blue.", "2. Response 3: blue."),
        ("2. Response 2: blue.", "2. Responses 1 and 2: blue."),
        ("2. Response 2: blue.\n", ""),
        ("2. Response 2: blue.", "2. [style x0] Response 2: blue."),
        ("2. It is red: false", "2. It is red: perhaps"),
        ("2. It is red: false", "2. It is red: true or false"),
        ("2. It is red: false", "2. It is not true"),
        ("2. It is red: false", "2. It is red: false\n2. It is red: true"),
        ("2. It is red: false", "1. It is red: false"),
        ("\n2. It is red: false", ""),
        ("1. It is red: true\n2. It is red: false", "2. It is red: false\n1. It is red: true"),
    ],
)
def test_anything_else_is_no_checklist(old: str, new: str) -> None:
    assert read_checks(WHOLE) is not None
    assert old in WHOLE
    changed = WHOLE.replace(old, new)
    assert read_checks(changed) is None
    text = f"<think>{changed}</think><answer>1</answer>"
    assert parse_verdict(text, "checklist").status is VerdictStatus.NO_VERDICT
    assert follows_format(text)
    assert not follows_format(text, "checklist")


def test_markdown_blank_lines_and_capitals_do_not_matter() -> None:
    loose = "**Checks:**\n\n1. Response 1: red.\n2. Answer 2: blue.\n### Verification:\n\n1. It is red: True.\n2. FALSE"
    strict = read_checks(WHOLE)
    assert strict is not None
    assert [check.score for check in read_checks(loose) or ()] == [check.score for check in strict]


def test_too_many_checks_are_none() -> None:
    many = (ClaimCheck(Choice.FIRST, "red", ClaimFinding.TRUE),) * 101
    assert read_checks(write_checks(many)) is None
    assert read_checks(write_checks(many[:100])) is not None


def test_weights_decide_and_decimal_ones_can_balance() -> None:
    assert balance(CHECKS) == 1.5
    tenth = [ClaimCheck(Choice.FIRST, "a", ClaimFinding.TRUE, "x", weight) for weight in (0.1, 0.2)]
    assert supported_choice([*tenth, ClaimCheck(Choice.SECOND, "b", ClaimFinding.TRUE, "y", 0.3)]) is None
    assert supported_choice([ClaimCheck(Choice.FIRST, "a", ClaimFinding.UNSEEN)]) is None


def test_a_verdict_without_its_answer_or_cut_off_is_none() -> None:
    reasoning = write_checks(CHECKS)
    assert parse_verdict(f"<think>{reasoning}</think>", "checklist").status is VerdictStatus.NO_VERDICT
    assert parse_verdict(f"<think>{reasoning}<answer>1</answer>", "checklist").status is VerdictStatus.NO_VERDICT
    cut = Completion(text_of(CHECKS, "1"), FinishReason.LENGTH)
    assert verdict_of(cut, "checklist", (ACCURACY,)).status is VerdictStatus.TRUNCATED


@pytest.mark.parametrize(
    ("criteria", "is_read"),
    [
        ((), True),
        ((ACCURACY, STYLE), True),
        ((ACCURACY,), False),  # one that nobody asked for
        ((ACCURACY, STYLE, Criterion("safety")), False),  # one that was not checked
        ((Criterion("accuracy", 3.0), STYLE), False),  # another weight
    ],
)
def test_checks_are_of_the_requested_criteria(criteria: tuple[Criterion, ...], is_read: bool) -> None:
    completion = Completion(text_of(CHECKS, "1"), FinishReason.STOP)
    verdict = verdict_of(completion, "checklist", criteria)
    assert verdict.choice is (Choice.FIRST if is_read else None)
    assert is_read or verdict.rule == "other_criteria"


def test_the_probability_is_read_after_a_verdict_that_follows() -> None:
    text = text_of(CHECKS, "1")
    assert until_verdict(text, "checklist") == text.removesuffix("1</answer>")
    assert until_verdict(text_of(CHECKS, "2"), "checklist") is None


def test_a_probability_does_not_mend_a_checklist() -> None:
    """Of other criteria than those requested, or against the checks, a vote has no verdict, however likely it is."""

    class Even(ScriptedSampler):
        def verdict_margins(self, prompts: Any, beginnings: Any) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.full((len(prompts),), margin), torch.ones(len(prompts))

    pair = PreferencePair("p", "Which?", ("a", "b"), None, criteria=(Criterion("accuracy", 2.0), Criterion("style", 0.5)))
    judge = ProbabilityJudge(Even(lambda prompt, draw: text_of(CHECKS, "1")), load_template("checklist"))
    for margin, rule in ((1.0, "probability"), (0.0, "probability"), (-1.0, "checks_probability")):
        [vote] = judge.compare_many([pair], orders=[(Order.GIVEN,)], num_votes=1, seed=0)[0].votes
        assert (vote.verdict.rule, vote.verdict.choice) == (rule, Choice.FIRST if margin > 0 else None)
        others = replace(pair, criteria=(Criterion("other"),))
        [vote] = judge.compare_many([others], orders=[(Order.GIVEN,)], num_votes=1, seed=0)[0].votes
        assert (vote.verdict.status, vote.verdict.rule, vote.margin) == ("no_verdict", "other_criteria", None)


def test_the_weights_are_those_requested() -> None:
    """A judge rounds them; the requested ones decide."""
    tied = (
        ClaimCheck(Choice.FIRST, "red", ClaimFinding.TRUE, "accuracy", 1.0),
        ClaimCheck(Choice.SECOND, "named", ClaimFinding.TRUE, "style", 1.0),
    )
    criteria = (Criterion("accuracy", 1.004), Criterion("style"))
    assert verdict_of(Completion(text_of(tied, "1"), FinishReason.STOP), "checklist", criteria).choice is Choice.FIRST
    assert verdict_of(Completion(text_of(tied, "1"), FinishReason.STOP), "checklist").status == "unsupported"


def test_results_by_criterion() -> None:
    """In both orders response 0 is right and response 1 in better style; one vote forgets style, one is cut off."""
    texts = {
        Order.GIVEN: text_of(CHECKS, "1"),
        Order.SWAPPED: text_of((ClaimCheck(Choice.SECOND, "red", ClaimFinding.TRUE, "accuracy", 2.0), CHECKS[1]), "2"),
    }
    swapped = (
        ClaimCheck(Choice.SECOND, "red", ClaimFinding.TRUE, "accuracy", 2.0),
        ClaimCheck(Choice.FIRST, "named", ClaimFinding.TRUE, "style", 0.5),
    )
    texts[Order.SWAPPED] = text_of(swapped, "2")

    def vote(order: Order, text: str, finish: FinishReason = FinishReason.STOP) -> Vote:
        completion = Completion(text, finish)
        return Vote(order, verdict_of(completion, "checklist"), completion)

    votes = [vote(order, texts[order]) for order in BOTH_ORDERS]
    results = judgments_by_criterion(judgment("p", votes))
    assert {name: of.outcome for name, of in results.items()} == {
        "accuracy": Outcome.RESPONSE_0,
        "style": Outcome.RESPONSE_1,
    }
    short = vote(Order.GIVEN, text_of(CHECKS[:1], "1"))
    cut = vote(Order.SWAPPED, texts[Order.SWAPPED], FinishReason.LENGTH)
    style = judgments_by_criterion(judgment("p", [*votes, short, cut]))["style"]
    assert [each.verdict.status for each in style.votes] == ["ok", "ok", "no_verdict", "truncated"]
    assert style.outcome is Outcome.NO_MAJORITY
    assert judgments_by_criterion(judgment("p", [cut])) == {}


def test_checks_of_a_text() -> None:
    assert checks_of(text_of(CHECKS, "1")) == CHECKS
    assert checks_of("<think>Response 1 is better.</think><answer>1</answer>") is None
