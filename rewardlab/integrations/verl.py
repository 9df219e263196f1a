"""verl: ``reward.custom_reward_function.path=rewardlab/integrations/verl.py`` and ``.name=compute_score``.

The server is ``REWARDLAB_URL`` (http://localhost:8000). verl sends one sample at a time and passes neither prompt nor
image: put ``question`` and ``images`` (paths, data URLs or upload ids) into the dataset's ``extra_info``. Samples of one prompt
wait on the server for each other: start it with ``--group-size`` at ``rollout.n``; for validation with one sample a prompt
give ``anchor``, a response to compare with. :mod:`rewardlab.integrations.verl_groups` needs none of this.

``criteria`` to judge by (names, or name, weight and description) must be the same in all rows: verl logs their rewards beside
the score, and expects every sample to have the same parts.
"""

from __future__ import annotations

import math
from typing import Any

from rewardlab.errors import DataError, EndpointError
from rewardlab.integrations.client import RewardClient, group_key, image_urls


async def compute_score(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any] | None = None, **kwargs: Any
) -> dict[str, float]:
    """Return ``score`` of a sample, in -1..1, and ``judge_reward/NAME`` of each criterion, NaN where the judge's checks name
    others. Raise DataError without question, EndpointError without reward."""
    info = extra_info or {}
    if not info.get("question"):
        raise DataError(f"{data_source}: extra_info has no 'question'; the judge needs the question")
    client = RewardClient()
    images = info.get("images")  # may be an array, which has no truth value
    (urls,) = await image_urls([() if images is None else images])
    label = {"question": info["question"], "media": list(urls)}
    if info.get("anchor"):
        label["anchor"] = info["anchor"]
    criteria = [] if info.get("criteria") is None else list(info["criteria"])
    if criteria:
        label["criteria"] = criteria
    question = str(info["question"])
    body = {"query": [question + solution_str], "prompts": [question], "labels": [label]}
    answer = await client.post("/get_reward", body, group=group_key(question))
    rewards = answer.get("rewards") if isinstance(answer, dict) else None
    if not isinstance(rewards, list) or not isinstance(rewards[0], int | float):
        raise EndpointError(f"{client.url}: no reward for a sample of {data_source}; see the log")
    logged = {name: values[0] for name, values in (answer.get("extra_logs") or {}).items()}
    names = [f"judge_reward/{(each if isinstance(each, str) else each['name']).strip()}" for each in criteria]
    return {"score": float(rewards[0]), **{name: float(logged.get(name, math.nan)) for name in names}}
