"""ms-swift: an outcome reward for ``--external_plugins``.

    # plugin.py
    from swift.rewards import orms
    from rewardlab.integrations.ms_swift import JudgeORM

    class Judge(JudgeORM):
        address = "http://localhost:8000"

    orms["judge"] = Judge  # swift rlhf ... --external_plugins plugin.py --reward_funcs judge

Rows carry ``messages`` and ``images``, as its datasets do. What cannot be judged is None, as in TRL, on whose trainer its own
is built; ``num_failed`` counts it. Tested against ms-swift 4.6's loader and ``compute_rewards_per_func``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from rewardlab.integrations.chats import chat_text, request_rewards
from rewardlab.integrations.client import RewardClient


class JudgeORM:
    """A reward called with the completions of a batch and the columns of its rows."""

    address = "http://localhost:8000"
    options: ClassVar[dict[str, Any]] = {}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.client = RewardClient(self.address, **self.options)

    @property
    def num_failed(self) -> int:
        return self.client.num_failed

    def __call__(self, completions: list[str], **columns: Any) -> list[float | None]:
        questions = [chat_text(_prompt(row)).replace("<image>", "").strip() for row in columns["messages"]]
        images = [row or [] for row in columns.get("images") or [[]] * len(completions)]
        return asyncio.run(request_rewards(self.client, questions, completions, images))


def _prompt(messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return the turns before the one to be rewarded."""
    return messages[:-1] if messages[-1].get("role") == "assistant" else messages
