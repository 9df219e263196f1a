"""How the policy is sampled."""

from __future__ import annotations

from dataclasses import dataclass

from rewardlab.config import EngineConfig
from rewardlab.samplers.decode import HotToken


@dataclass(frozen=True)
class SamplingOptions:
    """How the policy is sampled. ``hot_token``: one early token is drawn hot (FIRE), and not trained on. ``batch_size``:
    completions that the trainer's own decoder makes side by side; None: all. ``engine``: a ``vllm serve`` of its own instead of
    the decoder. ``num_rollbacks``: how often this run was taken back; other draws are then made."""

    hot_token: HotToken | None = None
    batch_size: int | None = None
    engine: EngineConfig | None = None
    num_rollbacks: int = 0
    orders_per_pair: int = 1
