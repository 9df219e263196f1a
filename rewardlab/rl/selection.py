"""Which prompts to draw and which rollouts to keep. Pure plans over numbers; the trainer acts on them.

Shapes: ``N`` rollouts, ``P`` prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

TIERS = ("very_hard", "hard", "medium", "easy")
TIER_BOUNDS = (0.25, 0.6, 0.9)
"""Pass rates at which a prompt is ``hard``, ``medium``, ``easy``: RLCS (arXiv 2507.01006) gives no bounds, these are ours.
``hard`` reaches above one half, for a verdict between two answers is right half of the time by chance."""

_RATIO_DECAY, _MOST = 0.9, 8.0  # neither is published


@dataclass(frozen=True)
class RatioEMA:
    """How many times the needed prompts to draw, so that enough groups are mixed without a second round.

    The moving average of 1 / (1 - decided_frac), the share of groups all right or all wrong (ratio EMA of
    GLM-4.1V-Thinking, arXiv 2507.01006). ``weight`` is the share of the average that batches have filled so far: divided by
    it, the first batches count in full (as Adam's moments do), where an average begun at 1 would leave some
    twenty batches short.
    """

    total: float = 0.0
    weight: float = 0.0

    @property
    def factor(self) -> float:
        """The factor, 1 to 8; 1 before the first batch."""
        return self.total / self.weight if self.weight else 1.0

    def update(self, decided_frac: float) -> RatioEMA:
        """Return the average after a batch of which ``decided_frac``, 0 to 1, of the groups were decided."""
        ratio = 1 / max(1 - decided_frac, 1 / _MOST)
        total = _RATIO_DECAY * self.total + (1 - _RATIO_DECAY) * ratio
        return RatioEMA(total, _RATIO_DECAY * self.weight + 1 - _RATIO_DECAY)


def prior_counts(attempts: str) -> tuple[float, float]:
    """Return the (right, wrong) answers that a difficulty tag stands for, by Laplace's rule one of each more than the teacher
    gave: ``1`` to ``3`` is the attempt that was right, ``unsolved`` three wrong ones, an empty tag none.

    So the pass rate of a prompt that was not sampled yet is 2/3, 1/2, 2/5, 1/5, or 1/2.
    """
    if attempts == "unsolved":
        return 1.0, 4.0
    return (2.0, float(attempts)) if attempts else (1.0, 1.0)


def updated_counts(counts_2: Tensor, num_correct: float, num_wrong: float, *, decay: float = 0.5) -> Tensor:
    """Return a prompt's counts [right, wrong] after a group of rollouts; earlier ones are worth ``decay`` of what they were.

    A prompt is met again by another policy, so what was seen of it grows old; a tag, which is worth two to five answers, is
    soon outweighed by a group of eight.
    """
    return decay * counts_2 + counts_2.new_tensor([num_correct, num_wrong])


def pass_rates(counts_P2: Tensor) -> Tensor:
    """Return [P] the share of right answers among the counts [P, 2], whose rows must not be 0."""
    return counts_P2[:, 0] / counts_P2.sum(1)


def tier_numbers(pass_rates_P: Tensor) -> Tensor:
    """Return [P] the place of each prompt's tier in :data:`TIERS`; a rate on a bound is in the easier tier."""
    return torch.bucketize(pass_rates_P, torch.tensor(TIER_BOUNDS, dtype=pass_rates_P.dtype), right=True)


def difficulty_weights(pass_rates_P: Tensor, *, least: float = 0.05) -> Tensor:
    """4 p (1 - p), at least ``least``: prompts of middling difficulty are drawn most, none never (RLCS, arXiv 2507.01006).

    The paper weighs tiers and does not say by how much; this is the variance of one rollout's rightness, and so what a group
    can teach. ``pass_rates_P`` in 0..1, best taken over several rounds: the verdict is a coin to one who cannot see, so a rate
    from two or three samples says little.
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
