"""Advantages from a value model: GAE (arXiv 1506.02438) and what VC-PPO, VAPO and T-PPO make of it.

Shapes: ``N`` rollouts, ``T`` tokens. ``mask_NT`` is 1 on tokens the policy generated; a token outside it (a user's turn
between two of the policy's) is passed over as if it were not there. ``values_NT[:, t]`` is V of the state *before* token t.
"""

from __future__ import annotations

import torch
from torch import Tensor


def gae(
    rewards_NT: Tensor,
    values_NT: Tensor,
    mask_NT: Tensor,
    *,
    lam: float | Tensor,
    gamma: float = 1.0,
    finished_N: Tensor | None = None,
) -> Tensor:
    """A_t = sum of (gamma lam)^k delta_{t+k}, with delta_t = r_t + gamma V_{t+1} - V_t; 0 outside the mask.

    ``lam`` is one number or one per rollout [N]. After the last token V is 0, for the rollout has ended. Where
    ``finished_N`` says that it was only cut off, V there is taken to be that of the last state seen (EGAE, arXiv
    2506.15050): the last delta is then r_t + (gamma - 1) V_t, and a policy is not punished for the cut.
    """
    lam_N = torch.as_tensor(lam, dtype=torch.float64, device=values_NT.device).expand(len(values_NT))
    rewards_NT, values_NT, inside_NT = rewards_NT.double(), values_NT.double(), mask_NT > 0
    next_value_N = _value_after_the_end(values_NT, inside_NT, finished_N)
    next_advantage_N = torch.zeros_like(next_value_N)
    out_NT = torch.zeros_like(values_NT)
    for t in reversed(range(values_NT.shape[1])):
        delta_N = rewards_NT[:, t] + gamma * next_value_N - values_NT[:, t]
        advantage_N = delta_N + gamma * lam_N * next_advantage_N
        out_NT[:, t] = torch.where(inside_NT[:, t], advantage_N, 0.0)
        next_advantage_N = torch.where(inside_NT[:, t], advantage_N, next_advantage_N)
        next_value_N = torch.where(inside_NT[:, t], values_NT[:, t], next_value_N)
    return out_NT.float()


def _value_after_the_end(values_NT: Tensor, inside_NT: Tensor, finished_N: Tensor | None) -> Tensor:
    """Return [N] 0 for finished rollouts, the last value for those cut off."""
    if finished_N is None:
        return values_NT.new_zeros(len(values_NT))
    steps_T = torch.arange(1, values_NT.shape[1] + 1, device=values_NT.device)
    last_N1 = (inside_NT * steps_T).argmax(1, keepdim=True)
    last_value_N = values_NT.gather(1, last_N1)[:, 0]
    return torch.where(finished_N.bool(), 0.0, last_value_N)


def value_targets(rewards_NT: Tensor, values_NT: Tensor, mask_NT: Tensor, *, lam: float = 1.0, gamma: float = 1.0) -> Tensor:
    """Return what the critic is fitted to: A + V with a separate ``lam`` (VC-PPO's decoupled GAE, arXiv 2503.01491).

    At ``lam`` 1 this is the return to go, whatever the critic says: no bias of the critic feeds itself.
    """
    return (gae(rewards_NT, values_NT, mask_NT, lam=lam, gamma=gamma) + values_NT) * mask_NT


def length_adaptive_lambda(lengths_N: Tensor, *, alpha: float = 0.05, floor: float = 0.95) -> Tensor:
    """lam = 1 - 1 / (alpha l), at least ``floor`` (VAPO, arXiv 2504.05118): sum of lam^t = alpha l.

    Without the floor it is 0 or less up to 20 tokens (at alpha 0.05) and 0.8 at 100: for outputs as short as a judge's it
    would blind the policy to a reward that stands on the last token. The floor is T-PPO's.
    """
    return (1 - 1 / (alpha * lengths_N.double().clamp(min=1))).clamp(min=floor).float()


def value_sums(values_NT: Tensor, returns_NT: Tensor, mask_NT: Tensor) -> Tensor:
    """Return [5] count, sums of G, G^2, G - V and (G - V)^2 over tokens, in float64; those of several processes add up."""
    m, g = mask_NT.double(), returns_NT.double()
    rest = g - values_NT.double()
    return torch.stack([m.sum(), (g * m).sum(), (g * g * m).sum(), (rest * m).sum(), (rest * rest * m).sum()])


def explained_variance_of(sums_5: Tensor) -> float | None:
    """:func:`explained_variance` of the sums of :func:`value_sums`."""
    count, g, gg, rest, rest2 = (float(value) for value in sums_5)
    if not count:
        return None
    variance = gg / count - (g / count) ** 2
    if variance <= 1e-9 * (1 + gg / count):
        return None
    return 1 - max(0.0, rest2 / count - (rest / count) ** 2) / variance


def explained_variance(values_NT: Tensor, returns_NT: Tensor, mask_NT: Tensor) -> float | None:
    """1 - Var(G - V) / Var(G) over tokens: 1 for a perfect critic, 0 for a constant. None where all returns are equal."""
    return explained_variance_of(value_sums(values_NT, returns_NT, mask_NT))
