"""Which prompts to draw and which rollouts to keep. Pure plans over numbers; the trainer acts on them.

Shapes: ``N`` rollouts, ``P`` prompts.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def oversampling(previous: float, decided_frac: float, *, decay: float = 0.9, most: float = 8.0) -> float:
    """Return how many times the needed prompts to draw, so that enough groups are mixed without a second round.

    The moving average of 1 / (1 - decided_frac), the share of groups all right or all wrong (ratio EMA of
    GLM-4.1V-Thinking, arXiv 2507.01006; the decay is not published). Between 1 and ``most``.
    """
    factor = 1 / max(1 - decided_frac, 1 / most)
    return min(most, max(1.0, decay * previous + (1 - decay) * factor))


def difficulty_weights(pass_rates_P: Tensor, *, least: float = 0.05) -> Tensor:
    """4 p (1 - p), at least ``least``: prompts of middling difficulty are drawn most, none never (RLCS, arXiv 2507.01006).

    ``pass_rates_P`` in 0..1, best taken over several rounds: the verdict is a coin to one who cannot see, so a rate from two
    or three samples says little.
    """
    return (4 * pass_rates_P * (1 - pass_rates_P)).clamp(min=least)


def hardest_within(scores: Sequence[float], domains: Sequence[str], share: float) -> list[int]:
    """Return the indices of the ``share`` of prompts with the lowest scores, after standardising within each domain.

    Pre-PPO selection (arXiv 2503.22230): prompts whose answers the reward model scores low leave most to learn and least to
    hack. Scores of different domains are not comparable, so each is centred and scaled first; one without spread counts as
    average. Ties go by position. ``share`` 0 selects none, 1 all.
    """
    values, names = torch.tensor(scores, dtype=torch.float64), list(domains)
    standard = torch.zeros_like(values)
    for name in set(names):
        members = torch.tensor([domain == name for domain in names])
        spread = values[members].std(correction=0)
        if spread > 0:
            standard[members] = (values[members] - values[members].mean()) / spread
    order = torch.argsort(standard, stable=True)
    return sorted(order[: round(share * len(values))].tolist())


def overlong_penalty(lengths_N: Tensor, *, longest: int, margin: int) -> Tensor:
    """0 up to ``longest - margin`` tokens, linearly down to -1 at ``longest``, -1 beyond (DAPO, arXiv 2503.14476, eq. 13)."""
    return ((longest - margin - lengths_N.float()) / margin).clamp(min=-1, max=0)


def balance_groups(num_correct: Sequence[float], size: int, number: int) -> list[int]:
    """Return up to ``number`` groups of ``size`` rollouts whose right and wrong rollouts add up to about the same number.

    ``num_correct`` is the number of right rollouts of each group; returns indices, in order. Each time the group that brings
    the totals nearest to each other is taken, of equals the one that is itself most even, for it has most to learn from: they
    end within ``size`` of each other where the groups allow it (GLM-4.1V-Thinking, arXiv 2507.01006, which does not say how
    it balances).
    """
    candidates, selection = list(range(len(num_correct))), list[int]()
    surplus = 0.0  # right less wrong rollouts so far
    while candidates and len(selection) < number:
        surpluses = {n: 2 * num_correct[n] - size for n in candidates}
        best = min(candidates, key=lambda n: (abs(surplus + surpluses[n]), abs(surpluses[n])))
        surplus += surpluses[best]
        candidates.remove(best)
        selection.append(best)
    return sorted(selection)
