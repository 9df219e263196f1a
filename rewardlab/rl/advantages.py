"""Advantages of REINFORCE++ (arXiv 2501.03262), the filter of StableReinforce (arXiv 2505.02835, section 4.1), and advantages
from a value model: GAE (arXiv 1506.02438) and what VC-PPO, VAPO and T-PPO make of it.

Shapes: ``N`` rollouts, ``T`` tokens of the padded completions. ``mask_NT`` is 1 on generated tokens, the end token included; a
token outside it (a user's turn between two of the policy's) is passed over as if it were not there. ``values_NT[:, t]`` is V of
the state *before* token t.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


def token_rewards(rewards_N: Tensor, mask_NT: Tensor, kl_NT: Tensor | None = None, kl_coef: float | Tensor = 0.0) -> Tensor:
    """r_t = 1[t is the last token] R - kl_coef kl_t (arXiv 2501.03262, eq. 4-5); ``kl_NT`` holds k1 = logp - ref_logp.
    ``kl_coef`` is one number, or [N, 1].

    The last token is the last one of the mask, an end token or, in a cut-off output, whatever stood there: nothing is
    rewritten, and holes before it do not move it. A row without tokens earns nothing.
    """
    places_T = torch.arange(1, mask_NT.shape[1] + 1, device=mask_NT.device)
    out_NT = torch.zeros_like(mask_NT, dtype=torch.float32)
    rows_N = torch.arange(len(rewards_N), device=mask_NT.device)
    out_NT[rows_N, ((mask_NT > 0) * places_T).argmax(1)] = rewards_N.float()
    if kl_NT is not None:
        out_NT = out_NT - kl_coef * kl_NT
    return out_NT * mask_NT


def returns_to_go(rewards_NT: Tensor, mask_NT: Tensor) -> Tensor:
    """G_t = sum of the rewards from t on (gamma 1), 0 outside the mask."""
    return rewards_NT.flip(1).cumsum(1).flip(1) * mask_NT


@dataclass(frozen=True)
class Moments:
    """Count, sum and sum of squares of weighted values, in float64; those of several processes add up."""

    values_3: Tensor

    @staticmethod
    def of(values_NT: Tensor, mask_NT: Tensor) -> Moments:
        v, m = values_NT.double(), mask_NT.double()
        return Moments(torch.stack([m.sum(), (v * m).sum(), (v * v * m).sum()]))

    @property
    def mean(self) -> Tensor:
        return self.values_3[1] / self.values_3[0]

    @property
    def std(self) -> Tensor:
        """The deviation of the population (divides by the count)."""
        return (self.values_3[2] / self.values_3[0] - self.mean**2).clamp(min=0).sqrt()


def weights(mask_NT: Tensor, by: str) -> Tensor:
    """Return what each token counts in moments: 1 (``token``, as REINFORCE++ has it), or 1 by the length of its rollout, so
    that long rollouts do not count for more (``sequence``)."""
    mask_NT = mask_NT.double()
    return mask_NT if by == "token" else mask_NT / mask_NT.sum(1, keepdim=True).clamp(min=1)


def whiten(values_NT: Tensor, mask_NT: Tensor, moments: Moments | None = None) -> Tensor:
    """(A - mean) / std over all tokens of the (global) batch; exactly 0 where nothing varies and outside the mask.

    Needs no group: one sample per prompt is enough. ``moments`` may be of several processes, or weighted by :func:`weights`;
    by default long rollouts weigh more, as in REINFORCE++. The paper's epsilon is
    left out: a deviation below 1e-6 of the mean's scale is float noise, which the released code amplifies 10,000 times.
    """
    moments = moments or Moments.of(values_NT, mask_NT)
    mean, std = moments.mean, moments.std
    if not std > 1e-6 * (1 + mean.abs()):
        return torch.zeros_like(values_NT, dtype=torch.float32)
    return (((values_NT.double() - mean) / std) * mask_NT).float()


def filter_outliers(
    advantages_NT: Tensor, mask_NT: Tensor, sigma: float, treatment: str = "delete"
) -> tuple[Tensor, dict[str, float]]:
    """Return what becomes of *whitened* advantages beyond ``sigma``, and what share of tokens that was, by sign.

    ``delete`` sets them to 0 (StableReinforce, eq. 6), ``clip`` to +-sigma, ``keep`` leaves them. The bounds are around 0, the
    mean of whitened values; the released code puts them around the raw mean and so deletes every failure as soon as accuracy
    passes 68 %. On two-valued rewards even the right filter deletes the rarer value once its share is under 1 / (1 +
    sigma^2), 10 % at sigma 3: watch ``advantage/outlier_frac``. Clipping keeps their sign.
    """
    tokens = mask_NT.sum().clamp(min=1)
    low_NT, high_NT = (advantages_NT < -sigma) & (mask_NT > 0), (advantages_NT > sigma) & (mask_NT > 0)
    treated_NT = {
        "delete": lambda: torch.where(low_NT | high_NT, torch.zeros_like(advantages_NT), advantages_NT),
        "clip": lambda: advantages_NT.clamp(-sigma, sigma),
        "keep": lambda: advantages_NT,
    }[treatment]()
    return treated_NT, {
        "advantage/outlier_frac": ((low_NT | high_NT).sum() / tokens).item(),
        "advantage/outlier_frac_negative": (low_NT.sum() / tokens).item(),
        "advantage/outlier_frac_positive": (high_NT.sum() / tokens).item(),
        "advantage/max_abs": (advantages_NT.abs() * mask_NT).max().item() if mask_NT.any() else 0.0,
    }


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
