"""A hard limit on money and tokens: no request is sent that might exceed it."""

from __future__ import annotations

import asyncio
import math

from rewardlab.config import DistillConfig
from rewardlab.distill.journal import Spent
from rewardlab.errors import EndpointError
from rewardlab.types import Completion

MARGIN = 1.2  # by how much a prompt may be longer than the longest so far
PILOT = 20  # requests of a first batch, from which to learn what they cost


class BudgetSpentError(Exception):
    """The next request might exceed the budget. Not an error of anyone: it ends a run cleanly."""


class Purse:
    """What is spent, what requests in flight may cost at most, and whether one more can be afforded.

    A batch is sized by what answers cost on average so far (:meth:`likely`): one whose prompts are much longer than those
    before may exceed the budget, a chat only where its prompt is more than a fifth longer than the longest yet.

    A request may cost ``max_tokens`` of answer and a prompt of 1.2 times the longest yet; before any answer is known, one is
    sent alone. So the last requests go out few at a time, and what is left in the end is less than the most that a single one
    may cost. What a provider charges for requests that failed is known to it alone, and not counted.

    """

    def __init__(self, config: DistillConfig, spent: Spent, longest_prompt: int = 0) -> None:
        self._prices, self._budget, self._max_tokens = config.prices, config.budget, config.max_tokens
        self.usd, self.tokens, self.answers = spent.usd, spent.tokens, spent.answers
        self._longest_prompt = longest_prompt
        self._open = 0
        self._away: dict[str, int] = {}
        self._changed = asyncio.Event()

    @property
    def limited(self) -> bool:
        return self._budget.usd is not None or self._budget.tokens is not None

    def most(self, number: int = 1) -> tuple[float, int]:
        """(US dollars, tokens) that so many requests may cost at most."""
        prompt = int(MARGIN * self._longest_prompt)
        return number * self._prices.usd(prompt, self._max_tokens), number * (prompt + self._max_tokens)

    def affords(self, number: int) -> bool:
        """Whether so many requests more, beside those in flight, stay within the budget."""
        if not self.limited:
            return True
        if not self._longest_prompt:
            usd, tokens = self.most()  # of the answer alone
            if (self._budget.usd or usd) < usd or (self._budget.tokens or tokens) < tokens:
                return False
            return self._open + number <= 1
        usd, tokens = self.most(self._open + number)
        within_usd = self._budget.usd is None or self.usd + usd <= self._budget.usd
        return within_usd and (self._budget.tokens is None or self.tokens + tokens <= self._budget.tokens)

    async def open(self) -> None:
        """Wait until one request more is within the budget. Raises BudgetSpentError where it will not be."""
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
        """A request has ended."""
        self._open -= 1
        self._changed.set()

    def price(self, completion: Completion) -> float:
        """Of an answer, in US dollars."""
        c = completion
        return self._prices.usd(c.num_prompt_tokens, c.num_tokens, c.num_cached_tokens)

    def pay(self, completion: Completion) -> None:
        """Count an answer, or one that was paid for and is of no use. Raises EndpointError for an answer without usage where
        there is a budget."""
        usd, tokens = self.price(completion), completion.num_prompt_tokens + completion.num_tokens
        if not (tokens or completion.failed) and self.limited:
            raise EndpointError("the endpoint's answers tell no usage, so that no budget can be kept; leave the budget out")
        self.usd, self.tokens = self.usd + usd, self.tokens + tokens
        self.answers += not completion.failed
        self._longest_prompt = max(self._longest_prompt, completion.num_prompt_tokens)

    def likely(self, number: int) -> tuple[float, int]:
        """(US dollars, tokens) that a batch of so many requests costs: what answers cost on average so far, and four standard
        errors if half of the most that one may cost were the standard deviation."""
        usd, tokens = self.most(1)
        spread = 2 * math.sqrt(number)
        return number * self.usd / self.answers + spread * usd, int(number * self.tokens / self.answers + spread * tokens)

    def batch_size(self, wanted: int) -> int:
        """How many requests of ``wanted`` a batch may hold within the budget, those away counted; 0: none.

        Before any answer is known, a pilot of :data:`PILOT`, whatever it costs."""
        if not self.limited:
            return wanted
        if not self.answers:
            return min(wanted, PILOT) if not self._away else 0
        size = wanted
        while size and not self._fits(*self.likely(size)):
            size = size * 9 // 10
        return size

    def _fits(self, usd: float, tokens: int) -> bool:
        away = [self.likely(number) for number in self._away.values()]
        limit = self._budget
        return (limit.usd is None or self.usd + usd + sum(one for one, _ in away) <= limit.usd) and (
            limit.tokens is None or self.tokens + tokens + sum(one for _, one in away) <= limit.tokens
        )

    @property
    def away(self) -> int:
        """Batches that are away."""
        return len(self._away)

    def send(self, batch: str, number: int) -> None:
        """A batch of so many requests is away."""
        self._away[batch] = number

    def collect(self, batch: str) -> None:
        """It came back."""
        self._away.pop(batch, None)
