"""The estimators of advantages as values: what each one computes and needs. Configs read this table without loading torch.

Adding an estimator: its function in ``rl/groups.py``, its name and its declaration here, its step in ``rl/reference.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

Advantage = Literal["reinforce_pp", "reinforce_pp_baseline", "grpo", "dr_grpo", "rloo", "gae"]


@dataclass(frozen=True)
class Estimator:
    """One way from rewards to advantages.

    ``function`` names a function of ``rl/groups.py``, (rewards [G], group numbers [G]) -> [G]; None: no groups are compared.
    ``kl_in_reward``: whether the KL divergence may be subtracted from the reward (``kl: k1_reward``); if not, it is in the loss
    or refused. ``by_token``: every token has a return of its own, from which its KL divergence is subtracted, and advantages
    are whitened over the batch; otherwise a response is one action with one advantage, and its KL divergence is subtracted from
    its reward before ``function`` compares the group. ``critic``: advantages are made of a critic's values.
    """

    function: str | None
    kl_in_reward: bool
    by_token: bool = False
    critic: bool = False

    @property
    def needs_groups(self) -> bool:
        return self.function is not None

    def relative(self, rewards_G: Tensor, groups_G: Tensor) -> Tensor:
        """Return what ``function`` makes of the rewards of groups."""
        from rewardlab.rl import groups

        assert self.function is not None
        relative_G: Tensor = getattr(groups, self.function)(rewards_G, groups_G)
        return relative_G


ESTIMATORS: dict[Advantage, Estimator] = {
    "reinforce_pp": Estimator(None, kl_in_reward=True, by_token=True),
    "reinforce_pp_baseline": Estimator("centered", kl_in_reward=True, by_token=True),
    "grpo": Estimator("standardized", kl_in_reward=False),
    "dr_grpo": Estimator("centered", kl_in_reward=False),
    "rloo": Estimator("leave_one_out", kl_in_reward=True),
    "gae": Estimator(None, kl_in_reward=True, by_token=True, critic=True),
}
