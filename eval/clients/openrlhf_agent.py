"""OpenRLHF's own SingleTurnAgentExecutor, which asks for the reward of a rollout over HTTP."""

from __future__ import annotations

import asyncio
import json
import urllib.request

from calls import ANSWERS, CHATML, IMAGE, KEY, LONE_URLS, QUESTION, URL, URLS, call
from openrlhf.utils.agent import SingleTurnAgentExecutor

PROMPT = CHATML.format(question=QUESTION)


def with_key(url: str) -> str:
    """Return an address with the key, for a client that sets no header."""
    return url.replace("://", f"://x:{KEY}@") + "/get_reward"


def upload() -> str:
    data = urllib.request.urlopen(IMAGE).read()
    request = urllib.request.Request(f"{URL}/v1/uploads", data, {"Authorization": f"Bearer {KEY}", "Content-Type": "image/png"})
    return str(json.load(urllib.request.urlopen(request))["id"])


def fetched(urls: list[str], prompt: str, label: str = "red") -> list[float]:
    """Return the rewards of two samples, which are sent one by one at the same time."""
    executor = SingleTurnAgentExecutor([with_key(url) for url in urls])

    async def both() -> list[float]:
        calls = [executor._fetch_rewards_via_http([prompt + answer], [prompt], [label]) for answer in ANSWERS]
        return [results[0]["rewards"][0] for results in await asyncio.gather(*calls)]

    return asyncio.run(both())


async def batch() -> list[float]:
    executor = SingleTurnAgentExecutor([with_key(URL)])
    results = await executor._fetch_rewards_via_http([PROMPT + answer for answer in ANSWERS], [PROMPT] * 2, ["red"] * 2)
    return list(results[0]["rewards"])


label = json.dumps({"media": [f"upload:{upload()}"], "question": "Do you see which number is greater?"})
call("one endpoint, a batch", lambda: asyncio.run(batch()), [-1, 1])
call("one endpoint, one by one", lambda: fetched([URL], PROMPT), [-1, 1])
call("one endpoint, an image by the label", lambda: fetched([URL], PROMPT, label), [-1, 1])
call("two endpoints with --peers, one by one", lambda: fetched(URLS, PROMPT), [-1, 1])
call("two endpoints without, one by one", lambda: fetched(LONE_URLS, PROMPT), refused="Request error for 5 times")
