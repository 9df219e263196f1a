"""A hard limit on money and tokens: no request is sent that might exceed it, or twice."""

from __future__ import annotations

import asyncio
import math
from typing import Protocol

from rewardlab.config.data import Budget, Prices
from rewardlab.distill.journal import Answer, Journal, Usage
from rewardlab.errors import EndpointError
from rewardlab.types import Completion, Order

MARGIN = 1.2  # the next prompt may be longer than the longest so far by this factor
PILOT = 20  # requests of a first batch, to learn their cost


class BudgetSpentError(Exception):
    """The next request might exceed the budget. This ends a run cleanly."""


class BudgetGuard:
    """Track the money and tokens spent, the most that requests in flight may cost, and whether another one is affordable.

    A chat request may cost ``max_tokens`` of answer and a prompt of 1.2 times the longest so far; the first request is sent
    alone. So the last requests go out few at a time, and less than the most that one may cost is left at the end. A longer
    prompt may exceed the budget. A batch is sized by the mean cost of answers so far (:meth:`likely`): one with much longer
    prompts may exceed the budget. Failures count with the usage that they report; a provider may charge for others.
    """

    def __init__(self, prices: Prices, budget: Budget, max_tokens: int, usage: Usage, longest_prompt: int = 0) -> None:
        self._prices, self._budget, self._max_tokens = prices, budget, max_tokens
        self.usd, self.tokens, self.answers = usage.usd, usage.tokens, usage.answers
        self._longest_prompt = longest_prompt
        self._open = 0
        self._batches: dict[str, int] = {}
        self._changed = asyncio.Event()

    @property
    def limited(self) -> bool:
        return self._budget.usd is not None or self._budget.tokens is not None

    def most(self, number: int = 1) -> tuple[float, int]:
        """Return (US dollars, tokens) that ``number`` requests may cost at most."""
        prompt = int(MARGIN * self._longest_prompt)
        return number * self._prices.usd(prompt, self._max_tokens), number * (prompt + self._max_tokens)

    def affords(self, number: int) -> bool:
        """Return whether ``number`` more requests, beside those in flight, stay within the budget."""
        if not self.limited:
            return True
        if not self._longest_prompt and self._open + number > 1:
            return False
        usd, tokens = self.most(self._open + number)  # only the answer, before the length of a prompt is known
        within_usd = self._budget.usd is None or self.usd + usd <= self._budget.usd
        return within_usd and (self._budget.tokens is None or self.tokens + tokens <= self._budget.tokens)

    async def open(self) -> None:
        """Wait until another request is within the budget. Raises BudgetSpentError if it will never be."""
        while not self.affords(1):
            if not self._open:
                raise BudgetSpentError
            self._changed.clear()
            await self._changed.wait()
        self._open += 1

    @property
    def open_calls(self) -> int:
        """Requests in flight."""
        return self._open

    def close(self) -> None:
        """Count a request as ended."""
        self._open -= 1
        self._changed.set()

    def price(self, completion: Completion) -> float:
        """Return the price of an answer in US dollars."""
        c = completion
        return self._prices.usd(c.num_prompt_tokens, c.num_tokens, c.num_cached_tokens)

    def pay(self, completion: Completion) -> None:
        """Count an answer or a billed failure. Raises EndpointError for an answer without usage if there is a budget."""
        usd, tokens = self.price(completion), completion.num_prompt_tokens + completion.num_tokens
        if not (tokens or completion.failed) and self.limited:
            raise EndpointError("the endpoint's answers report no usage, so a budget cannot be enforced; leave out the budget")
        self.usd, self.tokens = self.usd + usd, self.tokens + tokens
        self.answers += not completion.failed
        self._longest_prompt = max(self._longest_prompt, completion.num_prompt_tokens)

    def likely(self, number: int) -> tuple[float, int]:
        """Return (US dollars, tokens) of a batch of ``number`` requests: the mean of the answers so far, plus four standard
        errors, with half of the most that a request may cost as the standard deviation."""
        usd, tokens = self.most(1)
        spread = 2 * math.sqrt(number)
        return number * self.usd / self.answers + spread * usd, int(number * self.tokens / self.answers + spread * tokens)

    def batch_size(self, most: int) -> int:
        """Return how many requests, at most ``most``, the next batch may hold within the budget, counting sent ones; 0: none.

        Before any answer is known this is a pilot of :data:`PILOT`; after billed failures, as many of it as surely fit."""
        if not self.limited:
            return most
        if not self.answers:
            return self._pilot_size(most) if not self._batches else 0
        size = most
        while size and not self._fits(*self.likely(size)):
            size = size * 9 // 10
        return size

    def _pilot_size(self, most: int) -> int:
        size = min(most, PILOT)
        while size and self.tokens and not self._fits(*self.most(size)):
            size -= 1
        return size

    def _fits(self, usd: float, tokens: int) -> bool:
        batches = [self.likely(number) for number in self._batches.values()]
        limit = self._budget
        return (limit.usd is None or self.usd + usd + sum(batch_usd for batch_usd, _ in batches) <= limit.usd) and (
            limit.tokens is None or self.tokens + tokens + sum(batch_tokens for _, batch_tokens in batches) <= limit.tokens
        )

    @property
    def num_batches(self) -> int:
        """Return the number of sent batches that are not collected."""
        return len(self._batches)

    def add_batch(self, batch: str, number: int) -> None:
        """Count a batch of ``number`` requests as sent."""
        self._batches[batch] = number

    def remove_batch(self, batch: str) -> None:
        """Count a batch as collected."""
        self._batches.pop(batch, None)


class Ledger(Protocol):
    """Journal and budget for all workers, on any machine: every request passes through it before it is sent and after it is
    answered, so that none is sent twice or exceeds the budget."""

    async def answers(self, pair: str) -> list[Answer]:
        """Return the answers about a pair, by attempt."""
        ...

    async def open(self, pair: str, attempt: int, order: Order) -> None:
        """Wait until the request may be sent. Raises BudgetSpentError if it may never be."""
        ...

    async def close(self, pair: str, attempt: int, completion: Completion) -> None:
        """Record the end of a request, answered or failed."""
        ...


class CallLedger:
    """The ledger of one process."""

    def __init__(self, journal: Journal, budget: BudgetGuard) -> None:
        self.journal, self.budget = journal, budget

    async def answers(self, pair: str) -> list[Answer]:
        return self.journal.answers(pair)

    async def open(self, pair: str, attempt: int, order: Order) -> None:
        await self.budget.open()
        self.journal.record_request(pair, attempt, order)

    async def close(self, pair: str, attempt: int, completion: Completion) -> None:
        self.budget.close()
        if self.journal.record_answer(pair, attempt, completion, self.budget.price(completion)) or completion.failed:
            self.budget.pay(completion)
