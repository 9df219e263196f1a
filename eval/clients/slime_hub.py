"""slime's own remote_rm and batched_async_rm."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from calls import ANSWERS, CHATML, KEY, QUESTION, URL, call
from slime.rollout import rm_hub
from slime.utils.types import Sample

ADDRESS = URL.replace("://", f"://x:{KEY}@") + "/slime"
args = SimpleNamespace(rm_url=ADDRESS, rm_type="remote_rm", custom_rm_path=None)


def rewarded(prompt: Any, *, batched: bool) -> list[float]:
    samples = [Sample(prompt=prompt, response=answer, label="red") for answer in ANSWERS]

    async def both() -> list[float]:
        rm_hub._shared_session = None
        try:
            if batched:
                return list(await rm_hub.batched_async_rm(args, samples))
            return list(await asyncio.gather(*(rm_hub.remote_rm(args, sample) for sample in samples)))
        finally:
            session: Any = rm_hub._shared_session
            await session.close()

    return asyncio.run(both())


call("remote_rm, a prompt as text", lambda: rewarded(CHATML.format(question=QUESTION), batched=False), [-1, 1])
call("remote_rm, a prompt as messages", lambda: rewarded([{"role": "user", "content": QUESTION}], batched=False), [-1, 1])
call("batched_async_rm", lambda: rewarded(CHATML.format(question="And which is greater?"), batched=True), [-1, 1])
