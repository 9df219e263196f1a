"""verl: a reward manager that sees whole groups and the images in their prompts; ``extra_info`` need not hold anything.

    reward.num_workers=1
    reward.reward_manager.source=importlib
    reward.reward_manager.name=JudgeGroups
    reward.reward_manager.module.path=pkg://rewardlab.integrations.verl_groups

The server is ``REWARDLAB_URL`` (http://localhost:8000). verl scores one sample at a time: those of one ``uid`` wait here for
each other until ``rollout.n`` have come (``rollout.val_kwargs.n`` in validation), so that there must be one worker. A single
sample needs an ``anchor`` in ``extra_info``. Written for verl 0.9.1 and tested in its loop.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from verl import DataProto
from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase

from rewardlab.errors import EndpointError
from rewardlab.integrations.chats import read_prompt
from rewardlab.integrations.client import RewardClient


@dataclass
class SampleGroup:
    """Samples of one prompt, and who waits for the reward of each; ``timer`` ends the wait for others, ``task`` judges all."""

    timer: asyncio.TimerHandle
    members: list[tuple[str, asyncio.Future[float | None]]] = field(default_factory=list)
    task: asyncio.Task[None] | None = None

    def fail(self, error: Exception) -> None:
        for _, future in self.members:
            if not future.done():
                future.set_exception(error)


class JudgeGroups(RewardManagerBase):
    """Rewards in -1..1. Raise EndpointError for a sample without a reward: verl has no samples without. Raise DataError for a
    prompt with a place of an image that did not come with it."""

    def __init__(self, config: Any, tokenizer: Any, compute_score: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, tokenizer, compute_score)
        self.client = RewardClient()
        rollout = config.actor_rollout_ref.rollout
        self._sizes = {False: int(rollout.n), True: int(rollout.get("val_kwargs", {}).get("n", 1))}
        self._waiting: dict[tuple[str, bool], SampleGroup] = {}

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
        return {"reward_score": reward, "reward_extra_info": {"score": reward}}

    async def _group_reward(self, key: tuple[str, bool], turns: list[Any], response: str) -> float | None:
        """Return the reward of a sample among its group. Raise EndpointError if the group is not whole within the client's
        deadline, and what judging raises, which has that deadline for itself."""
        loop = asyncio.get_running_loop()
        if (group := self._waiting.get(key)) is None:
            group = self._waiting[key] = SampleGroup(loop.call_later(self.client.deadline_s, self._dissolve, key))
        future: asyncio.Future[float | None] = loop.create_future()
        member = (response, future)
        group.members.append(member)
        if len(group.members) == self._sizes[key[1]]:
            del self._waiting[key]
            group.timer.cancel()
            group.task = loop.create_task(self._judge(group, turns))
        try:
            return await future
        except asyncio.CancelledError:
            if self._waiting.get(key) is group:  # another try of this sample takes its place
                group.members.remove(member)
                if not group.members:
                    del self._waiting[key]
                    group.timer.cancel()
            raise

    def _dissolve(self, key: tuple[str, bool]) -> None:
        group = self._waiting.pop(key)
        group.fail(
            EndpointError(
                f"{len(group.members)} of the {self._sizes[key[1]]} samples of a prompt came within {self.client.deadline_s:g} "
                "s (REWARDLAB_DEADLINE_S): none of them has a reward; all must come to one worker (reward.num_workers=1)"
            )
        )

    async def _judge(self, group: SampleGroup, turns: list[Any]) -> None:
        try:
            rewards = await self._rewards(turns, [text for text, _ in group.members])
        except Exception as error:  # the boundary: every member gets it
            group.fail(error)
            return
        for (_, future), reward in zip(group.members, rewards, strict=True):
            if not future.done():
                future.set_result(reward)

    async def _rewards(self, turns: list[Any], responses: list[str], anchor: str | None = None) -> list[float | None]:
        if len(responses) == 1 and not anchor:
            raise EndpointError("a single sample of a prompt cannot be compared: give extra_info an 'anchor'")
        options = {"strategy": "anchor", "anchor": anchor} if anchor else {}
        question, images = read_prompt(turns)
        return await self.client.rewards(question, responses, images, **options)
