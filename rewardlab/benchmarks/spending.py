"""Tokens and money of every answer of a run that was paid for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rewardlab.benchmarks.report_model import Cost
from rewardlab.config.data import NO_PRICES, Prices
from rewardlab.types import Completion


@dataclass
class Spending:
    """Requests that were answered or failed, and their tokens; ``cached`` are among ``prompt``. ``longest`` is the longest
    prompt in tokens."""

    requests: int = 0
    prompt: int = 0
    cached: int = 0
    completion: int = 0
    longest: int = 0

    def add(self, completion: Completion) -> None:
        """Count a completion; an answer of an earlier run costs nothing now."""
        if completion.from_cache:
            return
        self.requests += 1
        self.prompt += completion.num_prompt_tokens
        self.cached += completion.num_cached_tokens
        self.completion += completion.num_tokens
        self.longest = max(self.longest, completion.num_prompt_tokens)

    def plus(self, cost: Cost) -> Spending:
        """Return what this and another run came to; the longest prompt is this one's."""
        prompt, completion = self.prompt + cost.prompt_tokens, self.completion + cost.completion_tokens
        return Spending(self.requests + cost.requests, prompt, self.cached + cost.cached_tokens, completion, self.longest)

    def usd(self, prices: Prices) -> float:
        """Return the price in US dollars."""
        return prices.usd(self.prompt, self.completion, self.cached)

    def cost(self, prices: Prices) -> Cost:
        """Return what a report holds of it; without prices no money."""
        usd = None if prices == NO_PRICES else self.usd(prices)
        return Cost(self.requests, self.prompt, self.completion, self.cached, usd)


def sum_costs(costs: Sequence[Cost]) -> Cost:
    """Return what several runs came to; money where it is known of all."""
    known = [cost.usd for cost in costs if cost.usd is not None]
    return Cost(
        sum(cost.requests for cost in costs),
        sum(cost.prompt_tokens for cost in costs),
        sum(cost.completion_tokens for cost in costs),
        sum(cost.cached_tokens for cost in costs),
        sum(known) if known and len(known) == len(costs) else None,
    )
