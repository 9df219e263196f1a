"""OpenRLHF: ``--reward.remote_url rewardlab/integrations/openrlhf.py`` (or ``--remote_rm_url``), a file with ``reward_func``.

The server is ``REWARDLAB_URL`` (http://localhost:8000). Images do not travel with the queries: upload them once, and let the
label of a row be ``{"media": ["upload:ID"], "question": "..."}`` as JSON. Samples sent one by one wait there for their group.
"""

from __future__ import annotations

import asyncio
from typing import Any

from rewardlab.errors import EndpointError
from rewardlab.integrations.client import RewardClient


def reward_func(queries: list[str], prompts: list[str], labels: list[Any], **kwargs: Any) -> dict[str, Any]:
    """Return ``{"rewards", "scores", "extra_logs"}``, tensors with a number for each query. Raise EndpointError if there is no
    reward: OpenRLHF tries again, and after its last try ends with an error."""
    import torch

    client = RewardClient()
    response = asyncio.run(client.post("/get_reward", {"query": queries, "prompts": prompts, "labels": labels}))
    if response is None:
        raise EndpointError(f"{client.url}: no reward for {len(queries)} queries; see the log")
    try:
        rewards, scores, logs = response["rewards"], response["scores"], response["extra_logs"].items()
    except (KeyError, TypeError, AttributeError) as error:
        raise EndpointError(
            f"{client.url}/get_reward: the answer has no rewards ({error!r}); expected a `rewardlab serve` at this address"
        ) from error
    extra_logs = {name: torch.tensor(values) for name, values in logs}
    return {"rewards": torch.tensor(rewards), "scores": torch.tensor(scores), "extra_logs": extra_logs}
