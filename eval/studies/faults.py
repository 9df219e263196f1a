"""Two faults of R1-Reward's released code (``yfzhang114/r1_reward`` at 3693413), as functions for a trainer to be made with.

They are here to be measured, not to train with. Shapes as in ``rl/advantages``: ``N`` rollouts, ``T`` tokens.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rewardlab.config import Method
from rewardlab.models.families import FORWARD_KEYS
from rewardlab.rl.advantages import Moments
from rewardlab.training.policy_gradient.algorithm import apply_outlier_rule


def delete_around_raw_mean(
    whitened_NT: Tensor, mask_NT: Tensor, moments: Moments, method: Method
) -> tuple[Tensor, dict[str, float]]:
    """Set whitened advantages outside raw mean +- sigma to 0; return them, and the share of tokens deleted, by side.

    The bounds are around the mean from *before* whitening (``replay_buffer.py:265-271``); the mean of what is compared is 0.
    With rewards of 0.5 and 1.5 every failure is deleted from an accuracy of about 75 % on, where the right filter waits for
    90 %. The released code then also deletes |A| > 10, which these bounds have done already. The method must say
    ``outliers: keep``, and have no KL.
    """
    assert method.outliers == "keep", "the right filter must not come first"
    assert not method.kl_coef, "the raw return of a token is the reward of its rollout only without KL"
    raw_mean, sigma = moments.mean.item(), method.outlier_sigma
    _, metrics = apply_outlier_rule(whitened_NT, mask_NT, moments, method)
    tokens = mask_NT.sum().clamp(min=1)
    low_NT = (whitened_NT < raw_mean - sigma) & (mask_NT > 0)
    high_NT = (whitened_NT > raw_mean + sigma) & (mask_NT > 0)
    return whitened_NT.masked_fill(low_NT | high_NT, 0.0), metrics | {
        "advantage/outlier_frac": ((low_NT | high_NT).sum() / tokens).item(),
        "advantage/outlier_frac_negative": (low_NT.sum() / tokens).item(),
        "advantage/outlier_frac_positive": (high_NT.sum() / tokens).item(),
    }


def hide_images(fields: dict[str, Any]) -> dict[str, Any]:
    """Leave out the image: log-probs of training, old and new, are then computed without it, of rollouts sampled with it.

    As ``experience_maker.py:649`` and ``ppo_trainer.py:371-377`` do: the image's place holds bare placeholder tokens, and
    positions are those of plain text. Ratios start at 1, of a policy that did not sample the rollouts.
    """
    return {name: value for name, value in fields.items() if name not in FORWARD_KEYS}
