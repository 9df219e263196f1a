"""Two faults of R1-Reward's released code (``yfzhang114/r1_reward`` at 3693413), as trainers that have just that fault.

They are here to be measured, not to train with. Shapes as in ``rl/advantages``: ``N`` rollouts, ``T`` tokens.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rewardlab.rl.advantages import Moments
from rewardlab.training.policy_gradient.trainer import PolicyGradientTrainer

IMAGE_ARGUMENTS = frozenset({"pixel_values", "image_grid_thw", "num_images", "mm_token_type_ids"})


def delete_around_raw_mean(
    advantages_NT: Tensor, mask_NT: Tensor, raw_mean: float, sigma: float
) -> tuple[Tensor, dict[str, float]]:
    """Whitened advantages outside ``raw_mean`` +- sigma set to 0, and what share of tokens that was, by side.

    ``raw_mean`` is the mean from *before* whitening (``replay_buffer.py:265-271``); the mean of what is compared is 0. With
    rewards of 0.5 and 1.5 every failure is deleted from an accuracy of about 75 % on, where the right filter waits for 90 %.
    The released code then also deletes |A| > 10, which these bounds have done already.
    """
    tokens = mask_NT.sum().clamp(min=1)
    low_NT = (advantages_NT < raw_mean - sigma) & (mask_NT > 0)
    high_NT = (advantages_NT > raw_mean + sigma) & (mask_NT > 0)
    return advantages_NT.masked_fill(low_NT | high_NT, 0.0), {
        "advantage/outlier_frac": ((low_NT | high_NT).sum() / tokens).item(),
        "advantage/outlier_frac_negative": (low_NT.sum() / tokens).item(),
        "advantage/outlier_frac_positive": (high_NT.sum() / tokens).item(),
    }


class RawMeanFilterTrainer(PolicyGradientTrainer):
    """StableReinforce whose filter has its bounds around the raw mean; its config must say ``outliers: keep``, no KL."""

    def _advantages(
        self, batch: dict[str, Any], inputs: list[dict[str, Any]], rewards_N: Tensor, own: slice
    ) -> tuple[Tensor, dict[str, float]]:
        assert self.args.outliers == "keep", "the right filter must not come first"
        assert not self.beta, "the raw return of a token is the reward of its rollout only without KL"
        whitened_NT, metrics = super()._advantages(batch, inputs, rewards_N, own)
        mask_NT = batch["loss_mask"]
        returns_NT = rewards_N[own][:, None] * mask_NT
        raw = Moments(self.accelerator.reduce(Moments.of(returns_NT, mask_NT).values_3, reduction="sum"))
        filtered_NT, deleted = delete_around_raw_mean(whitened_NT, mask_NT, raw.mean.item(), self.args.sigma)
        return filtered_NT, metrics | deleted


class BlindActorTrainer(PolicyGradientTrainer):
    """The log-probs of training, old and new, are computed without the image; rollouts are sampled with it.

    As ``experience_maker.py:649`` and ``ppo_trainer.py:371-377`` do: the image's place holds bare placeholder tokens, and
    positions are those of plain text. Ratios start at 1, of a policy that did not draw the rollouts.
    """

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        kept = {name: value for name, value in kwargs.items() if name not in IMAGE_ARGUMENTS}
        return super()._get_per_token_logps_and_entropies(*args, **kept)
