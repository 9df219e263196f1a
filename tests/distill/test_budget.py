"""The limit on money and tokens, worked by hand: what a request may cost, when it waits, and what counts as spent."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rewardlab.distill.budget import BudgetGuard, BudgetSpentError, CallLedger
from rewardlab.distill.journal import Journal, Usage
from rewardlab.errors import EndpointError
from rewardlab.types import Completion, FinishReason, Order
from tests.support.distillation import config_for

NOTHING = Usage(answers=0, prompt_tokens=0, completion_tokens=0, cached_tokens=0, usd=0.0, wasted_tokens=0)
PRICES = {"prompt": 2.0, "cached_prompt": 1.0, "completion": 10.0}
LEFT_OUT = Completion("", FinishReason.ERROR, 50, 100, error="HTTP 200: content_filter")


def guard(usage: Usage = NOTHING, longest_prompt: int = 0, max_tokens: int = 100, **budget: float) -> BudgetGuard:
    config = config_for("http://x/v1", prices=PRICES, budget=budget, max_tokens=max_tokens)
    return BudgetGuard(config.prices, config.budget, config.max_tokens, usage, longest_prompt)


def answer(prompt: int, tokens: int, cached: int = 0) -> Completion:
    return Completion("yes", FinishReason.STOP, tokens, prompt, num_cached_tokens=cached)


def test_what_a_request_may_cost() -> None:
    """A prompt of 1.2 times the longest, and all tokens of an answer; in US dollars by the prices of each."""
    one = guard(longest_prompt=1000, tokens=10_000)
    assert one.most() == one.most(1) == (pytest.approx((1200 * 2 + 100 * 10) / 1e6), 1300)
    assert one.most(3) == (pytest.approx(3 * 3400 / 1e6), 3900)


def test_the_budget_is_reached_and_not_passed() -> None:
    """The last request that fits fits exactly; those in flight count at the most that they may cost."""
    tokens = guard(longest_prompt=1000, tokens=3900)
    assert (tokens.affords(3), tokens.affords(4)) == (True, False)
    asyncio.run(tokens.open())
    assert (tokens.affords(2), tokens.affords(3)) == (True, False)
    assert tokens.open_calls == 1
    asyncio.run(tokens.open())
    assert (tokens.open_calls, tokens.affords(1), tokens.affords(2)) == (2, True, False)
    usd = guard(longest_prompt=1000, usd=0.0103)
    assert (usd.affords(3), usd.affords(4)) == (True, False)
    spent = Usage(answers=9, prompt_tokens=2000, completion_tokens=500, cached_tokens=0, usd=0.0, wasted_tokens=200)
    assert (guard(spent, 1000, tokens=4000).affords(1), guard(spent, 1000, tokens=3999).affords(1)) == (True, False)


def test_both_limits_hold() -> None:
    """Each of the two ends a run, whatever the other leaves."""
    assert not guard(longest_prompt=1000, tokens=1299, usd=100).affords(1)
    assert not guard(longest_prompt=1000, tokens=1_000_000, usd=0.0033).affords(1)
    assert guard(longest_prompt=1000, tokens=1300, usd=0.0035).affords(1)
    assert guard().affords(1_000_000)
    assert [guard().limited, guard(usd=1).limited, guard(tokens=1).limited] == [False, True, True]


def test_before_any_answer_a_request_goes_alone() -> None:
    """Nobody knows yet how long prompts are; a budget below the answer alone is for none."""
    config = config_for("http://x/v1", budget={"tokens": 10_000})
    new = BudgetGuard(config.prices, config.budget, config.max_tokens, NOTHING)
    assert (new.affords(1), new.affords(2)) == (True, False)
    first = guard(tokens=1000)
    assert (first.affords(1), first.affords(2)) == (True, False)
    asyncio.run(first.open())
    assert not first.affords(1)
    assert (guard(tokens=100).affords(1), guard(tokens=99).affords(1)) == (True, False)
    assert (guard(usd=0.001).affords(1), guard(usd=0.0009).affords(1)) == (True, False)
    spent = Usage(answers=9, prompt_tokens=2000, completion_tokens=500, cached_tokens=0, usd=0.01, wasted_tokens=200)
    assert (guard(spent, tokens=2800).affords(1), guard(spent, tokens=2799).affords(1)) == (True, False)
    assert (guard(spent, usd=0.0111).affords(1), guard(spent, usd=0.0109).affords(1)) == (True, False)


def test_a_request_waits_for_those_in_flight() -> None:
    """It goes once they have cost less than they might have; with none in flight there is nothing to wait for."""

    async def run() -> list[str]:
        budget, events = guard(longest_prompt=100, max_tokens=880, tokens=1000), []
        await budget.open()

        async def second() -> None:
            await budget.open()
            events.append("second")

        task = asyncio.create_task(second())
        await asyncio.sleep(0)
        events.append("first ends")
        budget.close()
        await task
        assert budget.open_calls == 1
        budget.close()
        budget.pay(answer(100, 0))
        with pytest.raises(BudgetSpentError):
            await budget.open()
        return events

    assert asyncio.run(run()) == ["first ends", "second"]


def test_what_is_paid() -> None:
    """By kind of token; the longest prompt so far is what the next one is measured by, and a failure is no answer."""
    budget = guard(tokens=10_000)
    assert budget.price(answer(1000, 100, cached=400)) == pytest.approx((600 * 2 + 400 * 1 + 100 * 10) / 1e6)
    budget.pay(answer(1000, 100))
    budget.pay(answer(500, 50))
    budget.pay(LEFT_OUT)
    assert (budget.tokens, budget.answers) == (1800, 2)
    assert budget.usd == pytest.approx((1600 * 2 + 200 * 10) / 1e6)
    assert budget.most()[1] == 1300


def test_an_answer_without_usage() -> None:
    """No budget can be kept by it; without a budget, and of a failure, it is none that matters."""
    nothing = Completion("yes", FinishReason.STOP)
    with pytest.raises(EndpointError, match=r"^the endpoint's answers report no usage.*leave out the budget$"):
        guard(tokens=1000).pay(nothing)
    guard().pay(nothing)
    failed = guard(tokens=1000)
    failed.pay(Completion("", FinishReason.TIMEOUT))
    assert (failed.tokens, failed.answers) == (0, 0)


def test_the_size_of_a_batch() -> None:
    """The mean so far and four standard errors of half the most; batches that are away are counted; 0 where none fits."""
    seen = Usage(answers=10, prompt_tokens=1000, completion_tokens=200, cached_tokens=0, usd=0.004, wasted_tokens=0)
    budget = guard(seen, longest_prompt=100, max_tokens=80, tokens=5000)
    assert budget.likely(4) == (pytest.approx(4 * 0.0004 + 4 * 0.00104), 4 * 120 + 4 * 200)
    assert budget.batch_size(4) == 4
    assert (
        budget.batch_size(100) == 17
    )  # of 100, 90, ... 19, 17: 17 * 120 + 2 * sqrt(17) * 200 is 3689 of 3800 left, of 19 4023
    budget.add_batch("a", 4)
    budget.add_batch("b", 9)
    assert (budget.num_batches, budget.batch_size(4)) == (2, 0)
    budget.remove_batch("b")
    budget.remove_batch("b")
    assert (budget.num_batches, budget.batch_size(4)) == (1, 4)
    usd = guard(seen, longest_prompt=100, max_tokens=80, usd=0.0098)
    assert (guard(seen, 100, 80, tokens=2480).batch_size(4), guard(seen, 100, 80, tokens=2479).batch_size(4)) == (4, 3)
    assert (usd.batch_size(4), guard(seen, 100, 80, usd=0.0097).batch_size(4)) == (4, 3)
    usd.add_batch("a", 4)
    assert usd.batch_size(4) == 0


def test_a_pilot_comes_first() -> None:
    """Twenty requests whatever they cost, once; without a budget all at once."""
    budget = guard(tokens=10)
    assert (budget.batch_size(100), budget.batch_size(7)) == (20, 7)
    budget.add_batch("pilot", 20)
    assert budget.batch_size(100) == 0
    assert guard().batch_size(100) == 100


def test_a_pilot_after_failures_that_were_billed() -> None:
    """As many as fit at the most that they may cost: 120 of a prompt and 100 of an answer each, 850 of 1000 being left."""
    budget = guard(tokens=1000)
    budget.pay(LEFT_OUT)
    assert (budget.batch_size(100), budget.batch_size(2)) == (3, 2)
    for _ in range(5):
        budget.pay(LEFT_OUT)
    assert budget.batch_size(100) == 0


@pytest.fixture
def ledger(tmp_path: Path) -> Any:
    with Journal(tmp_path / "journal.sqlite", {}) as journal:
        yield CallLedger(journal, guard(tokens=10_000))


def test_a_failure_that_was_paid_for_is_spent(ledger: CallLedger) -> None:
    """A filtered answer costs what its usage says; an answer to an attempt that has one is not counted again."""

    async def run() -> None:
        await ledger.open("p", 1, Order.GIVEN)
        assert (ledger.journal.counts()["asked"], ledger.budget.open_calls) == (1, 1)
        await ledger.close("p", 1, LEFT_OUT)
        assert (ledger.budget.tokens, ledger.budget.answers, ledger.budget.open_calls) == (150, 0, 0)
        assert ledger.budget.usd == pytest.approx((100 * 2 + 50 * 10) / 1e6)
        assert ledger.journal.usage().wasted_tokens == 150
        for _ in range(2):
            await ledger.open("p", 1, Order.GIVEN)
            await ledger.close("p", 1, answer(100, 20))
        assert (ledger.budget.tokens, ledger.budget.answers) == (270, 1)
        assert ledger.journal.usage().usd == pytest.approx(ledger.budget.usd)
        assert ledger.journal.usage().tokens == ledger.budget.tokens
        assert [(a.attempt, a.text) for a in await ledger.answers("p")] == [(1, "yes")]

    asyncio.run(run())


def test_what_the_budget_refuses_is_not_recorded(tmp_path: Path) -> None:
    """A request that is not sent is none."""
    with Journal(tmp_path / "journal.sqlite", {}) as journal:
        ledger = CallLedger(journal, guard(tokens=99))
        with pytest.raises(BudgetSpentError):
            asyncio.run(ledger.open("p", 1, Order.GIVEN))
        assert journal.counts()["asked"] == 0
