"""A budget that no request of a run may exceed."""

from __future__ import annotations

from rewardlab.benchmarks.settings import BenchSettings
from rewardlab.benchmarks.spending import Spending
from rewardlab.distill.budget import BudgetGuard, BudgetSpentError
from rewardlab.distill.journal import Usage
from rewardlab.types import Completion


class BudgetGate:
    """Lets a request through where it cannot exceed the budget, whatever its answer's length; see :class:`BudgetGuard`.

    ``spending`` is what earlier parts of the run have spent; it is not changed here.
    """

    def __init__(self, settings: BenchSettings, spending: Spending) -> None:
        usage = Usage(
            spending.requests, spending.prompt, spending.completion, spending.cached, spending.usd(settings.prices), 0
        )
        self._guard = BudgetGuard(settings.prices, settings.budget, settings.max_tokens, usage, spending.longest)

    async def open(self) -> bool:
        """Wait until another request may be sent; False: the budget is spent."""
        try:
            await self._guard.open()
        except BudgetSpentError:
            return False
        return True

    def close(self, completion: Completion) -> None:
        """Pay a completion. Raise EndpointError for an answer without usage where there is a budget."""
        self._guard.close()
        self._guard.pay(completion)


def most_it_may_cost(settings: BenchSettings, num_requests: int) -> str:
    """Return a sentence on the most that a run's answers may cost, before any is asked for."""
    usd = num_requests * settings.prices.usd(0, settings.max_tokens)
    return (
        f"{num_requests:,} requests, each of at most {settings.max_tokens:,} tokens of answer: at most ${usd:,.2f}, prompts "
        "not counted"
    )
