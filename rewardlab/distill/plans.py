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


def at_least(difficulties: Sequence[Difficulty], attempts: int) -> list[int]:
    """Return the places of pairs that took the teacher ``attempts`` or more; unsolved ones count as four, untagged ones are
    left out.
    """
    return [n for n, d in enumerate(difficulties) if d.attempts is not None and d.attempts >= attempts and not d.suspect]


def of_tiers(difficulties: Sequence[Difficulty], tiers: Sequence[Tier]) -> list[int]:
    return [n for n, d in enumerate(difficulties) if d.tier in tiers and not d.suspect]


def hardest(difficulties: Sequence[Difficulty], domains: Sequence[str], share: float) -> list[int]:
    """Return those of the lowest student rates, standardised within each domain; suspects are taken out before the share is
    counted.
    """
    rows = [n for n, d in enumerate(difficulties) if d.student_rate is not None and not d.suspect]
    places = hardest_within([difficulties[n].student_rate or 0.0 for n in rows], [domains[n] for n in rows], share)
    return [rows[n] for n in places]


def weighted(difficulties: Sequence[Difficulty], share: float, seed: int) -> list[int]:
    """Draw a share of those with a student rate, without replacement, those of middling rate most."""
    rows = [n for n, d in enumerate(difficulties) if d.student_rate is not None and not d.suspect]
    if not (number := round(share * len(rows))):
        return []
    weights = difficulty_weights(torch.tensor([difficulties[n].student_rate for n in rows], dtype=torch.float64))
    places = torch.multinomial(weights, number, replacement=False, generator=torch.Generator().manual_seed(seed))
    return sorted(rows[n] for n in places.tolist())


def mixture(difficulties: Sequence[Difficulty], shares: dict[Tier, float], seed: int) -> list[int]:
    """Return the most pairs of which each tier has its share (they add up to 1): the scarcest tier decides."""
    by_tier = {tier: of_tiers(difficulties, [tier]) for tier in shares}
    total = min(int(len(by_tier[tier]) / share + 1e-9) for tier, share in shares.items() if share)
    rng = random.Random(seed)
    sizes = {tier: min(len(by_tier[tier]), round(share * total)) for tier, share in shares.items()}
    return sorted(n for tier, size in sizes.items() for n in rng.sample(by_tier[tier], size))


def parse_plan(text: str) -> Plan:
    """Return the plan of that name. Raises ConfigError."""
    name, _, rest = text.replace(" ", "").partition(":")
    if name == "all":
        return lambda difficulties, domains, seed: [n for n, d in enumerate(difficulties) if not d.suspect]
    if name in ("attempts>=2", "attempts>=3", "attempts>=4"):
        return lambda difficulties, domains, seed: at_least(difficulties, int(name[-1]))
    if name == "tiers":
        tiers = [_tier(piece, text) for piece in rest.split(",")]
        return lambda difficulties, domains, seed: of_tiers(difficulties, tiers)
    if name == "hardest":
        share = _share(rest, text)
        return lambda difficulties, domains, seed: hardest(difficulties, domains, share)
    if name == "rlcs":
        share = _share(rest, text)
        return lambda difficulties, domains, seed: weighted(difficulties, share, seed)
    if name == "mix":
        pieces = [piece.partition("=") for piece in rest.split(",")]
        shares = {_tier(tier, text): _share(value, text) for tier, _, value in pieces}
        if abs(sum(shares.values()) - 1) > 1e-6:
            raise ConfigError(f"plan {text!r}: the shares add up to {sum(shares.values()):g}; expected 1")
        return lambda difficulties, domains, seed: mixture(difficulties, shares, seed)
    raise ConfigError(
        f"unknown plan {text!r}; expected all, attempts>=2, tiers:medium,hard, hardest:0.1, rlcs:0.5 or mix:easy=0.2,hard=0.8"
    )
