"""Options of what an endpoint costs, and of how much a run may."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Optional

import typer

from rewardlab.errors import ConfigError

if TYPE_CHECKING:
    from rewardlab.config.data import Budget, Prices

Price = Annotated[
    str,
    typer.Option(
        "--price",
        metavar="PROMPT,COMPLETION",
        help="US dollars per million tokens of prompts and of answers, or PROMPT,CACHED,COMPLETION: the report has the cost.",
    ),
]
BudgetUsd = Annotated[
    Optional[float],
    typer.Option("--budget-usd", min=0.0, help="Most US dollars that the run may cost, controls included; needs --price."),
]
BudgetTokens = Annotated[
    Optional[int], typer.Option("--budget-tokens", min=1, help="Most tokens of prompts and answers, controls included.")
]


def parse_prices(text: str) -> Prices:
    """Return the prices of ``PROMPT,COMPLETION`` or ``PROMPT,CACHED,COMPLETION``; "" is none. Raise ConfigError for anything
    else."""
    from rewardlab.config.data import NO_PRICES, Prices

    if not text:
        return NO_PRICES
    try:
        values = [float(part) for part in text.split(",")]
        if len(values) not in (2, 3):
            raise ValueError("not two or three numbers")
        return Prices(prompt=values[0], cached_prompt=values[1] if len(values) == 3 else None, completion=values[-1])
    except ValueError as error:
        raise ConfigError(
            f"--price {text}: expected PROMPT,COMPLETION in US dollars per million tokens, such as 2.5,10"
        ) from error


def parse_budget(usd: float | None, tokens: int | None) -> Budget:
    """Return the budget. Raise ConfigError for one of nothing."""
    from rewardlab.config.data import Budget

    if usd == 0:
        raise ConfigError("--budget-usd 0: nothing can be asked for it; leave it out for no limit")
    return Budget(usd=usd, tokens=tokens)
