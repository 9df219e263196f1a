"""Laws that hold for every input: exchanging responses, reading back what was written, reducing votes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rewardlab.metrics.accuracy import (
    Labeled,
    any_correct,
    pair_score,
    undecided_score,
    valid_majority_scores,
    vote_accuracy,
)
from rewardlab.prompts import TEMPLATE_FORMATS, build_messages, load_template, render
from rewardlab.types import (
    Choice,
    Completion,
    FinishReason,
    Order,
    Outcome,
    PreferencePair,
    Verdict,
    VerdictStatus,
    Vote,
    choice_of,
    response_at,
)
from rewardlab.verdicts.lists import SCALES
from rewardlab.verdicts.parse import format_verdict, parse_verdict, verdict_of
from rewardlab.verdicts.votes import VALID, judgment, majority, majority_of_valid, share_for_0

orders = st.sampled_from(Order)
choices = st.sampled_from(Choice)
texts = st.text(min_size=1, max_size=40)
pairs = st.builds(
    PreferencePair,
    pair_id=texts,
    question=texts,
    responses=st.tuples(texts, texts),
    preferred=st.sampled_from([0, 1, None]),
    images=st.lists(st.binary(max_size=4), max_size=2).map(tuple),
    order=orders,
)


@st.composite
def verdicts(draw: st.DrawFn) -> Verdict:
    choice = draw(st.none() | choices)
    invalid = [status for status in VerdictStatus if status is not VerdictStatus.OK]
    return Verdict(choice, VerdictStatus.OK if choice else draw(st.sampled_from(invalid)))


votes = st.builds(Vote, order=orders, verdict=verdicts(), completion=st.just(Completion("", FinishReason.STOP)))


@given(choices, orders, st.sampled_from([0, 1]))
def test_choice_and_response_are_inverse(choice: Choice, order: Order, response: int) -> None:
    """Under any order; exchanging the order exchanges the response."""
    assert choice_of(response_at(choice, order), order) is choice
    assert response_at(choice_of(response, order), order) == response
    assert response_at(choice, order.swap()) == 1 - response_at(choice, order)


@given(pairs)
def test_swap_undoes_itself_and_keeps_what_is_shown(pair: PreferencePair) -> None:
    """A swapped pair prefers the same text and, in its own order, shows the same texts."""
    swapped = pair.swap()
    assert swapped.swap() == pair
    assert swapped.shown(swapped.order) == pair.shown(pair.order)
    if pair.preferred is not None:
        assert swapped.responses[swapped.preferred] == pair.responses[pair.preferred]


@given(pairs, orders)
def test_a_swapped_pair_in_the_other_order_is_the_same_prompt(pair: PreferencePair, order: Order) -> None:
    """To the token: the prompt depends on what is shown and on nothing else."""
    template = load_template("r1_reward")
    same = build_messages(pair.swap(), order=order.swap(), template=template)
    assert build_messages(pair, order=order, template=template) == same


harmless = texts.filter(lambda text: "<" not in text)  # control tokens and tags are altered, as they should be


@given(harmless, harmless, harmless, st.sampled_from(sorted(TEMPLATE_FORMATS)))
def test_slots_are_filled_once(question: str, first: str, second: str, name: str) -> None:
    """Braces in a question or an answer are plain text: each that has a slot stands in the prompt, unchanged."""
    template = load_template(name)
    text = render(template, question + "{first}{second}", first + "{question}", second)
    both = ["{first}", "{second}"]
    slots = both[:1] if name in ("single", *SCALES) else [] if name in ("answer", "best", "ordering") else both
    assert [slot for slot in ("{first}", "{second}") if slot in template.text] == slots
    assert question + "{first}{second}" in text
    assert first + "{question}" in text or "{first}" not in slots
    assert second in text or "{second}" not in slots


@given(choices, st.text(st.characters(exclude_characters="<>"), min_size=1, max_size=80))
def test_verdicts_are_read_as_written(choice: Choice, reasoning: str) -> None:
    """parse(format(v)) == v."""
    assert parse_verdict(format_verdict(choice, reasoning), "think_answer").choice is choice


@given(st.text(max_size=200), st.sampled_from(FinishReason))
def test_reading_never_raises_and_a_choice_is_always_ok(text: str, finish: FinishReason) -> None:
    """Any text, however it ended; what did not end by itself has no choice."""
    verdict = verdict_of(Completion(text, finish), "think_answer")
    assert (verdict.choice is not None) == (verdict.status is VerdictStatus.OK)
    if finish is not FinishReason.STOP:
        assert verdict.choice is None


TAGS = ["<think>", "</think>", "<answer>", "</answer>", "1", "2", " or ", "\n", "x"]
TEXTS = st.lists(st.sampled_from(TAGS), max_size=4).map("".join)


def answers_in(tail: str) -> Iterator[str]:
    """What follows each opening tag that does not stand inside an answer; a stray closing tag opens nothing."""
    while "<answer>" in tail:
        rest = tail.partition("<answer>")[2]
        yield rest
        tail = rest.partition("</answer>")[2]


@example("<answer>1</answer></answer>")
@example("<answer>1</answer><answer>")
@example("<answer>1<answer>2</answer>")
@given(st.tuples(TEXTS, st.just("<think>x</think>"), TEXTS, st.sampled_from(("<answer>1</answer>", "")), TEXTS).map("".join))
def test_a_choice_needs_its_own_closed_tag_after_the_reasoning(text: str) -> None:
    """Whatever the tags' arrangement: a verdict is the last closed answer after the last closed reasoning."""
    verdict = parse_verdict(text, "think_answer")
    if verdict.choice is not None:
        tail = text.rpartition("</think>")[2]
        assert "<think>" not in tail
        closed = [part.partition("</answer>") for part in answers_in(tail)]
        last = [content for content, end, _ in closed if end][-1]
        assert last.strip() == ("1" if verdict.choice is Choice.FIRST else "2")


@given(st.lists(votes, max_size=12), st.randoms())
def test_votes_commute(cast: list[Vote], rng: object) -> None:
    """The order in which votes arrive changes nothing."""
    mixed = list(cast)
    rng.shuffle(mixed)  # type: ignore[attr-defined]
    assert majority(mixed) is majority(cast)
    assert share_for_0(mixed) == share_for_0(cast)


@given(st.lists(votes, max_size=12))
def test_exchanging_the_responses_exchanges_the_judgment(cast: list[Vote]) -> None:
    """Outcome and share turn over; a tie stays one; more than half of the votes asked decide, and nothing else does."""
    judged = judgment("p", cast)
    assert judgment("p", [vote.swap() for vote in cast]).outcome is judged.swap().outcome
    if judged.share_0 is not None:
        assert judged.swap().share_0 == pytest.approx(share_for_0([vote.swap() for vote in cast]))
    counts = Counter(vote.winner for vote in cast)
    expected = [n for n in (0, 1) if counts[n] > len(cast) / 2]
    assert judged.outcome.winner == (expected[0] if expected else None)


@given(st.lists(votes, max_size=12), st.lists(votes, max_size=4))
def test_votes_without_a_verdict_never_help(cast: list[Vote], more: list[Vote]) -> None:
    """A winner by the votes asked is that of the valid ones, and has a share; more votes without a verdict make no winner; and
    failures are no tie."""
    outcome = majority(cast)
    if outcome.winner is not None:
        assert outcome is majority_of_valid(cast)
        assert share_for_0(cast) is not None
    unread = [vote for vote in more if vote.winner is None]
    assert majority([*cast, *unread]).winner in (None, outcome.winner)
    failed = [vote for vote in cast if vote.verdict.status not in VALID]
    if 2 * len(failed) > len(cast):
        assert outcome in (Outcome.NO_MAJORITY, Outcome.NO_VALID_VOTE)
        assert share_for_0(cast) is None


@given(st.lists(votes, min_size=1, max_size=12), st.sampled_from([0, 1]))
def test_a_vote_without_a_verdict_counts_as_a_wrong_one(cast: list[Vote], preferred: int) -> None:
    """To the digit, for every number of votes: in the place of each stands a vote for the worse response."""
    wrong = [
        replace(vote, verdict=Verdict(choice_of(1 - preferred, vote.order), VerdictStatus.OK)) if vote.winner is None else vote
        for vote in cast
    ]
    before, after = (Labeled(judgment("p", each), preferred, "") for each in (cast, wrong))
    for k in (None, *range(1, min(total for _, _, total in before.tallies) + 1)):
        assert pair_score(before, k) == pair_score(after, k)


@given(st.lists(votes, min_size=1, max_size=2), st.sampled_from([0, 1]))
def test_of_one_vote_both_rules_are_one(cast: list[Vote], preferred: int) -> None:
    """Of one vote in each order both majorities are the same, and what is undecided has no verdict."""
    one_each = list({vote.order: vote for vote in cast}.values())
    item = Labeled(judgment("p", one_each), preferred, "")
    right, decided = valid_majority_scores(item)
    assert (pair_score(item), undecided_score(item)) == (right, 1 - decided)


@given(st.integers(0, 4), st.integers(0, 4), st.integers(0, 3), st.data())
def test_vote_accuracy_is_the_mean_over_all_subsets(right: int, wrong: int, neither: int, data: st.DataObject) -> None:
    """Against enumeration of every subset of K votes."""
    pool = [1] * right + [-1] * wrong + [0] * neither
    if not pool:
        with pytest.raises(ValueError, match="between 1 and the 0"):
            vote_accuracy(0, 0, 1)
        return
    k = data.draw(st.integers(1, len(pool)))
    subsets = list(combinations(pool, k))
    ahead = sum(s.count(1) > k / 2 for s in subsets)
    assert vote_accuracy(right, len(pool), k) == pytest.approx(ahead / len(subsets))
    assert any_correct(right, len(pool), k) == pytest.approx(sum(1 in s for s in subsets) / len(subsets))
