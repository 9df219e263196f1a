"""verl's own RewardLoopWorker on groups of samples, one request for each: a line of JSON with the scores of every step.

Standard input is a list of steps, each a list of [question, [response, ...]].
"""

from __future__ import annotations

import asyncio
import json
import sys

from verl_worker import item, worker


async def step(groups: list[tuple[str, list[str]]]) -> list[float]:
    samples = [(question, response) for question, responses in groups for response in responses]
    results = await asyncio.gather(*(worker("vllm").compute_score_disrm(item(text, question)) for question, text in samples))
    return [float(result["reward_score"]) for result in results]


for groups in json.load(sys.stdin):
    print("begins", flush=True)
    print(json.dumps(asyncio.run(step(groups))), flush=True)
