"""A served judge is replaced twice while TRL's GRPO trains on it: is a reward lost, is a group judged by two judges?

``python eval/serving_swaps.py --first hf:runs/quickstart/rl/final --second hf:runs/quickstart/sft/final``, some minutes. A
policy that was taught to answer is trained by TRL's ``GRPOTrainer`` on rewards of ``rewardlab serve --judge-file``, a process
of its own, while other clients ask it too. The file comes to name the second judge, and later the first again. The judges are
greedy: afterwards every group is rewarded again by servers that nothing happens to, one of each judge. The rewards of a group
must be wholly those of one of them, and those of a client's request those of the judge whose weights the answer names. Writes
``eval/results/serving_swaps.json``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1])]  # for eval.studies, however this is started

import httpx
from serving_drills import body_of, endpoint
from serving_trainers import Recorded, train

from eval.studies import closed_loop as loop
from rewardlab.data.files import write_atomic
from rewardlab.demo.pairs import make_pairs
from rewardlab.integrations.client import RewardClient, chat_text, image_url, read_prompt
from rewardlab.judging.spec import DEMO_JUDGE
from rewardlab.models.checkpoints import commit
from rewardlab.types import PreferencePair

CLIENTS = 4
SWAP_AT = (3, 6)  # reward calls of the trainer, from 1 on, within which the file changes


@dataclass
class Swapped(Recorded):
    """A reward function within two calls of which another judge is named."""

    path: Path = Path()
    names: tuple[str, str] = ("", "")

    async def __call__(self, prompts: list[Any], completions: list[Any], **columns: Any) -> list[float | None]:
        number = len(self.calls) + 1
        if number in SWAP_AT:
            write_atomic(self.path, self.names[1 if number == SWAP_AT[0] else 0] + "\n")
        rewards = await super().__call__(prompts, completions, **columns)
        if number in SWAP_AT:  # the next call meets the new judge, whatever it takes to load
            await self._version(2 if number == SWAP_AT[0] else 3)
        return rewards

    async def _version(self, number: int) -> None:
        async with httpx.AsyncClient(base_url=self.url) as client:
            while (await client.get("/health")).json()["version"] < number:
                await asyncio.sleep(0.2)


@dataclass
class Load:
    """Clients that ask all the while: the body, status, weights and share of every request."""

    url: str
    pairs: Sequence[PreferencePair]
    answers: list[dict[str, Any]] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)

    def ask(self, place: int) -> None:
        number = place
        with httpx.Client(base_url=self.url, timeout=120) as client:
            while not self.stop.is_set():
                pair = self.pairs[number % len(self.pairs)]
                answer = client.post("/v1/judge", json=body_of(pair, 0))
                row = answer.json() if answer.status_code == 200 else {}
                self.answers.append(
                    {
                        "pair": number % len(self.pairs),
                        "status": answer.status_code,
                        "weights": row.get("weights"),
                        "votes": [vote["text"] for vote in row.get("votes", ())],
                    }
                )
                number += CLIENTS


async def groups_of(calls: Sequence[dict[str, Any]], url: str) -> list[list[float | None]]:
    """Return the rewards of every group of the calls, asked of a server again."""
    client, groups = RewardClient(url), []
    for call in calls:
        images = images_of(call)
        for places in grouped(call):
            texts = [chat_text(call["completions"][n]) for n in places]
            groups.append(await client.rewards(chat_text(call["prompts"][places[0]]), texts, images[places[0]]))
    return groups


def images_of(call: dict[str, Any]) -> list[list[Any]]:
    columns = call["columns"]
    rows = columns.get("images") or [None if image is None else [image] for image in columns.get("image") or ()]
    return [row or [] for row in rows] or [read_prompt(prompt)[1] for prompt in call["prompts"]]


def grouped(call: dict[str, Any]) -> list[list[int]]:
    """Return the places of each group of a call: the completions to one question about the same images."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for n, (prompt, images) in enumerate(zip(call["prompts"], images_of(call), strict=True)):
        groups.setdefault((chat_text(prompt), *map(image_url, images)), []).append(n)
    return list(groups.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", required=True, help="hf:FOLDER of the judge that serves at first")
    parser.add_argument("--second", required=True, help="hf:FOLDER of the other")
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--teach", type=int, default=150, help="steps of SFT on answers, before")
    parser.add_argument("--work", type=Path, default=Path("runs/serving_swaps"))
    parser.add_argument("--out", type=Path, default=Path("eval/results/serving_swaps.json"))
    options = parser.parse_args()
    settings = replace(loop.Settings(), steps=options.steps, start=replace(loop.StartSettings(), start_steps=options.teach))
    pairs = [pair for pair in make_pairs(800, seed=5, held_out=False)[0] if pair.question != loop.MANY_WORDED]
    policy = loop.taught_policy(pairs, DEMO_JUDGE, options.work, settings)
    names, path = (options.first, options.second), options.work / "judge.txt"
    write_atomic(path, names[0] + "\n")
    with endpoint(names[0], "--judge-file", str(path)) as (url, _):
        load, reward = Load(url, pairs[:40]), Swapped(url, None, path=path, names=names)
        threads = [threading.Thread(target=load.ask, args=(n,)) for n in range(CLIENTS)]
        for thread in threads:
            thread.start()
        start = time.perf_counter()
        trainer = train(policy, pairs, reward, settings, options.work / "trl")
        seconds = time.perf_counter() - start
        load.stop.set()
        for thread in threads:
            thread.join()
        health = httpx.get(f"{url}/health").json()
    came = [[call["rewards"][n] for n in places] for call in reward.calls for places in grouped(call)]
    with ExitStack() as stack:
        urls = [stack.enter_context(endpoint(name))[0] for name in names]
        weights = [httpx.get(f"{url}/health").json()["weights"] for url in urls]
        expected = [asyncio.run(groups_of(reward.calls, url)) for url in urls]
        said = [
            {n: [vote["text"] for vote in httpx.post(f"{url}/v1/judge", json=body_of(pair, 0), timeout=120).json()["votes"]]
             for n, pair in enumerate(load.pairs)}
            for url in urls
        ]  # fmt: skip
    by = [[group == other for group, other in zip(came, groups, strict=True)] for groups in expected]
    told = [row for row in load.answers if row["status"] == 200]
    result = {
        "command": shlex.join(["python", *sys.argv]),
        "commit": commit(),
        "versions": health["version"],
        "steps": trainer.state.global_step,
        "seconds": seconds,
        "groups": len(came),
        "rewards_lost": sum(value is None for group in came for value in group),
        "groups_of_the_first_judge_alone": sum(a and not b for a, b in zip(*by, strict=True)),
        "groups_of_the_second_judge_alone": sum(b and not a for a, b in zip(*by, strict=True)),
        "groups_that_both_reward_alike": sum(a and b for a, b in zip(*by, strict=True)),
        "groups_of_neither": sum(not a and not b for a, b in zip(*by, strict=True)),
        "requests_of_clients": len(load.answers),
        "requests_that_failed": len(load.answers) - len(told),
        "answers_by_weights": {name: sum(row["weights"] == name for row in told) for name in weights},
        "answers_of_another_judge_than_named": sum(
            row["weights"] not in weights or row["votes"] != said[weights.index(row["weights"])][row["pair"]] for row in told
        ),
    }
    print(json.dumps(result, indent=1))
    write_atomic(options.out, json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
