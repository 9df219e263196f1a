"""Advantages of REINFORCE++ (arXiv 2501.03262) and the filter of StableReinforce (arXiv 2505.02835, section 4.1).

Shapes: ``N`` rollouts, ``T`` tokens of the padded completions. ``mask_NT`` is 1 on generated tokens, the end token included.
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
