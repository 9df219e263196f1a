"""Turn-independent optimisation (PAG, arXiv 2506.10406): each turn has its own reward, and none reaches another turn.

Shapes: ``N`` dialogues, ``T`` tokens, ``K`` turns of the policy. ``turns_NT`` is 0 on tokens the policy did not sample (the
user's turns, padding) and k on those of its turn k, from 1 on. In a verified judgment, turn 1 is the judgment, 2 its
verification, 3 the revised judgment.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

NUM_TURNS, VERIFICATION = 3, 2


def turn_rewards(
    first: Sequence[float],
    first_correct: Sequence[bool],
    says_correct: Sequence[bool | None],
    revised: Sequence[float | None],
    *,
    bonus: float = 1.0,
) -> Tensor:
    """Return [N, 3] what each turn earns; 0 for a turn that was not taken.

    A judgment earns its own reward; a verification 1 where it says of the judgment what is so, 0 where not or where it says
    neither; a revised judgment (None: there was none) its reward, and ``bonus`` times what it gained over the first: from
    wrong to right 1 + bonus, from right to wrong -bonus (on rewards of 0 and 1; the paper's alpha is 1).
    """
    rows = [
        [
            reward,
            float(verification is not None and verification == correct),
            0.0 if revision is None else revision + bonus * (revision - reward),
        ]
        for reward, correct, verification, revision in zip(first, first_correct, says_correct, revised, strict=True)
    ]
    return torch.tensor(rows)


def segments(turns_NT: Tensor) -> list[Tensor]:
    """Return one mask [N, T] per turn."""
    return [(turns_NT == turn).to(turns_NT.dtype) for turn in range(1, NUM_TURNS + 1)]


def at_turn_ends(rewards_NK: Tensor, turns_NT: Tensor) -> Tensor:
    """Return [N, T] with each turn's reward on its last token."""
    following_NT = torch.cat([turns_NT[:, 1:], torch.zeros_like(turns_NT[:, :1])], 1)
    ends_NT = (turns_NT > 0) & (following_NT != turns_NT)
    rewards_NT = rewards_NK.to(turns_NT.device).gather(1, (turns_NT - 1).clamp(min=0).long())
    return rewards_NT * ends_NT
