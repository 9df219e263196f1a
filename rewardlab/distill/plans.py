"""Which pairs to train on next, by their difficulty: small pure plans, each from what is known of the pairs to places in the
list.

``attempts>=2``         the paper's: those the teacher did not solve at once (arXiv 2505.02835)
``tiers:medium,hard``   all of some tiers
``hardest:0.1``         the tenth that the student does worst on within each source and category (Pre-PPO, arXiv 2503.22230)
``rlcs:0.5``            half, drawn with weights 4 p (1 - p) of the student's rate p (arXiv 2507.01006)
``mix:easy=0.2,hard=0.8``  as many as there can be with these shares of tiers, drawn by the seed
``all``

Suspects, whose label the student contradicts every time, are in none of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import torch

from rewardlab.distill.difficulty import Difficulty, Tier
from rewardlab.errors import ConfigError
from rewardlab.rl.selection import difficulty_weights, hardest_within

Plan = Callable[[Sequence[Difficulty], Sequence[str], int], list[int]]


def _share(text: str, plan: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise ConfigError(f"plan {plan!r}: expected a share from 0 to 1 after the colon, got {text!r}")
    return share


def _tier(text: str, plan: str) -> Tier:
    try:
        return Tier(text.strip())
    except ValueError as error:
        raise ConfigError(f"plan {plan!r}: no tier {text!r}; expected one of {', '.join(Tier)}") from error


def at_least(known: Sequence[Difficulty], attempts: int) -> list[int]:
    """Those that took the teacher so many attempts or more; unsolved ones count as four, untagged ones are left out."""
    return [n for n, one in enumerate(known) if one.attempts is not None and one.attempts >= attempts and not one.suspect]


def of_tiers(known: Sequence[Difficulty], tiers: Sequence[Tier]) -> list[int]:
    return [n for n, one in enumerate(known) if one.tier in tiers and not one.suspect]


def hardest(known: Sequence[Difficulty], domains: Sequence[str], share: float) -> list[int]:
    """The lowest student rates, standardised within each domain; suspects are taken out before the share is counted."""
    rows = [n for n, one in enumerate(known) if one.student_rate is not None and not one.suspect]
    chosen = hardest_within([known[n].student_rate or 0.0 for n in rows], [domains[n] for n in rows], share)
    return [rows[n] for n in chosen]


def weighted(known: Sequence[Difficulty], share: float, seed: int) -> list[int]:
    """A share of those with a student rate, drawn without replacement, those of middling rate most."""
    rows = [n for n, one in enumerate(known) if one.student_rate is not None and not one.suspect]
    if not (number := round(share * len(rows))):
        return []
    weights = difficulty_weights(torch.tensor([known[n].student_rate for n in rows], dtype=torch.float64))
    drawn = torch.multinomial(weights, number, replacement=False, generator=torch.Generator().manual_seed(seed))
    return sorted(rows[n] for n in drawn.tolist())


def mixture(known: Sequence[Difficulty], shares: dict[Tier, float], seed: int) -> list[int]:
    """The most pairs of which each tier has its share (they add up to 1): the scarcest tier decides."""
    of = {tier: of_tiers(known, [tier]) for tier in shares}
    total = min(int(len(of[tier]) / share + 1e-9) for tier, share in shares.items() if share)
    dice = random.Random(seed)
    return sorted(n for tier, share in shares.items() for n in dice.sample(of[tier], min(len(of[tier]), round(share * total))))


def parse_plan(text: str) -> Plan:
    """The plan of that name. Raises ConfigError."""
    name, _, rest = text.replace(" ", "").partition(":")
    if name == "all":
        return lambda known, domains, seed: [n for n, one in enumerate(known) if not one.suspect]
    if name in ("attempts>=2", "attempts>=3", "attempts>=4"):
        return lambda known, domains, seed: at_least(known, int(name[-1]))
    if name == "tiers":
        tiers = [_tier(one, text) for one in rest.split(",")]
        return lambda known, domains, seed: of_tiers(known, tiers)
    if name == "hardest":
        share = _share(rest, text)
        return lambda known, domains, seed: hardest(known, domains, share)
    if name == "rlcs":
        drawn = _share(rest, text)
        return lambda known, domains, seed: weighted(known, drawn, seed)
    if name == "mix":
        pieces = [one.partition("=") for one in rest.split(",")]
        shares = {_tier(tier, text): _share(value, text) for tier, _, value in pieces}
        if abs(sum(shares.values()) - 1) > 1e-6:
            raise ConfigError(f"plan {text!r}: the shares add up to {sum(shares.values()):g}; expected 1")
        return lambda known, domains, seed: mixture(known, shares, seed)
    raise ConfigError(
        f"unknown plan {text!r}; expected all, attempts>=2, tiers:medium,hard, hardest:0.1, rlcs:0.5 or mix:easy=0.2,hard=0.8"
    )
