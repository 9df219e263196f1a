"""Journal and purse as one: what every request passes through before it is sent and when it is answered."""

from __future__ import annotations

from typing import Protocol

from rewardlab.distill.budget import Purse
from rewardlab.distill.journal import Answer, Journal
from rewardlab.types import Completion, Order


class Ledger(Protocol):
    """One for all who ask, wherever they run: no call is asked twice, and none that the budget does not bear."""

    async def answers(self, pair: str) -> list[Answer]:
        """What is known about a pair, by attempt."""
        ...

    async def open(self, pair: str, attempt: int, shown: Order) -> None:
        """To be waited for before a request is sent. Raises BudgetSpentError where it may not be."""
        ...

    async def close(self, pair: str, attempt: int, completion: Completion) -> None:
        """A request has ended, answered or failed."""
        ...


class LocalLedger:
    """Of one process."""

    def __init__(self, journal: Journal, purse: Purse) -> None:
        self.journal, self.purse = journal, purse

    async def answers(self, pair: str) -> list[Answer]:
        return self.journal.answers(pair)

    async def open(self, pair: str, attempt: int, shown: Order) -> None:
        await self.purse.open()
        self.journal.ask(pair, attempt, shown)

    async def close(self, pair: str, attempt: int, completion: Completion) -> None:
        self.purse.close()
        if self.journal.answer(pair, attempt, completion, self.purse.price(completion)) or completion.failed:
            self.purse.pay(completion)
