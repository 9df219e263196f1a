"""verl: a reward manager that sees whole groups and the images in their prompts; ``extra_info`` need not hold anything.

    reward.num_workers=1
    reward.reward_manager.source=importlib
    reward.reward_manager.name=JudgeGroups
    reward.reward_manager.module.path=pkg://rewardlab.integrations.verl_groups

The server is ``REWARDLAB_URL`` (http://localhost:8000). verl scores one sample at a time: those of one ``uid`` wait here for
each other until ``rollout.n`` have come (``rollout.val_kwargs.n`` in validation), so that there must be one worker. A single
sample needs an ``anchor`` in ``extra_info``. ``policy_signs`` counts the signs that the server sees of a policy that pleases
the judge rather than gets better. Written for verl 0.9.1 and tested in its loop.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from verl import DataProto
from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase

from rewardlab.errors import EndpointError
from rewardlab.integrations.chats import chat_images, chat_text
from rewardlab.integrations.client import RewardClient


class JudgeGroups(RewardManagerBase):
    """Rewards in -1..1. Raises EndpointError for a sample without a reward: verl has no samples without."""

    def __init__(self, config: Any, tokenizer: Any, compute_score: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, tokenizer, compute_score)
        self.client = RewardClient(os.environ.get("REWARDLAB_URL", "http://localhost:8000"))
        rollout = config.actor_rollout_ref.rollout
        self._sizes = {False: int(rollout.n), True: int(rollout.get("val_kwargs", {}).get("n", 1))}
        self._waiting: dict[tuple[str, bool], list[tuple[str, asyncio.Future[float | None]]]] = {}

    async def run_single(self, data: DataProto) -> dict[str, Any]:
        item = data[-1:][0]
        rows = item.non_tensor_batch
        ids = item.batch["responses"]
        length = int(item.batch["attention_mask"][-ids.shape[-1] :].sum())
        response = await asyncio.to_thread(self.tokenizer.decode, ids[:length], skip_special_tokens=True)
        turns, info = list(rows["raw_prompt"]), rows.get("extra_info") or {}
        is_validation = bool(item.meta_info.get("validate", False))
        if self._sizes[is_validation] == 1:
            reward = (await self._rewards(turns, [response], info.get("anchor")))[0]
        else:
            reward = await self._group_reward((str(rows["uid"]), is_validation), turns, response)
        if reward is None:
            raise EndpointError(f"{self.client.url}: no reward for a sample; see the log")
        return {"reward_score": reward, "reward_extra_info": {"score": reward, "policy_signs": float(len(self.client.signs))}}

    async def _group_reward(self, key: tuple[str, bool], turns: list[Any], response: str) -> float | None:
        future: asyncio.Future[float | None] = asyncio.get_running_loop().create_future()
        group = self._waiting.setdefault(key, [])
        group.append((response, future))
        if len(group) == self._sizes[key[1]]:
            del self._waiting[key]
            try:
                rewards = await self._rewards(turns, [text for text, _ in group])
            except BaseException as error:
                self._settle(group, error)
                raise
            self._settle(group, rewards)
        async with asyncio.timeout(self.client.deadline_s):  # a rollout that is lost must not hold the others for good
            return await future

    @staticmethod
    def _settle(group: list[tuple[str, asyncio.Future[float | None]]], result: list[float | None] | BaseException) -> None:
        for index, (_, future) in enumerate(group):
            if future.done():
                continue
            if isinstance(result, BaseException):
                future.set_exception(EndpointError(f"the group's rewards failed: {result!r}"))
                future.exception()  # a cancelled caller does not fetch it
            else:
                future.set_result(result[index])

    async def _rewards(self, turns: list[Any], responses: list[str], anchor: str | None = None) -> list[float | None]:
        if len(responses) == 1 and not anchor:
            raise EndpointError("one sample of a prompt cannot be compared with anything: give extra_info an 'anchor'")
        options = {"strategy": "anchor", "anchor": anchor} if anchor else {}
        return await self.client.rewards(chat_text(turns), responses, chat_images(turns), **options)
