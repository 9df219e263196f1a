"""A judge's engine is killed and stopped under TRL's GRPO and verl's reward worker: is a reward wrong, is one lost?

``python eval/serving_trainers.py``, some minutes. The judge that travels with the package judges. A policy begun from its
weights and taught to answer is trained by TRL's ``GRPOTrainer`` on rewards of ``rewardlab serve``, a process of its own,
through :func:`rewardlab.integrations.trl.judge_reward`. In the middle of two reward calls the engine's process gets SIGKILL,
and later SIGSTOP. The judge is greedy: afterwards every reward is asked for again, of a server that nothing happened to, and
must be the same. ``undisturbed`` is the same run without signals.

With ``--verl PYTHON``, an interpreter that has verl, its ``RewardLoopWorker`` asks for rewards of the same questions without
pictures, one request for each sample, while the same happens. Writes ``eval/results/serving_trainers.json``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1])]  # for eval.studies, however this is started

import httpx
import psutil
from serving_drills import endpoint, engine_of
from trl import GRPOTrainer

from eval.studies import closed_loop as loop
from rewardlab.data.files import write_atomic
from rewardlab.demo.pairs import make_pairs
from rewardlab.integrations.trl import judge_reward
from rewardlab.judging.spec import DEMO, DEMO_JUDGE
from rewardlab.models.checkpoints import commit
from rewardlab.models.loading import load_model
from rewardlab.types import PreferencePair

SIGNS = {3: signal.SIGKILL, 6: signal.SIGSTOP}  # by reward call, from 1 on
MOST_GROUPS = 150
ENGINE_TIMEOUT_S = 15.0  # after which an engine that says nothing is started again


def _signal(server: psutil.Process, sign: signal.Signals) -> None:
    os.kill(engine_of(server).pid, sign)


@dataclass
class Recorded:
    """A reward function that keeps what it was asked and what came, and lets something happen to the engine meanwhile."""

    url: str
    server: psutil.Process | None
    calls: list[dict[str, Any]] = field(default_factory=list)
    __name__: str = "judge"

    async def __call__(self, prompts: list[Any], completions: list[Any], **columns: Any) -> list[float | None]:
        number, start = len(self.calls) + 1, time.perf_counter()
        if self.server and (sign := SIGNS.get(number)):
            threading.Timer(0.05, _signal, (self.server, sign)).start()
        rewards = await judge_reward(self.url)(prompts, completions, **columns)
        seconds = time.perf_counter() - start
        self.calls.append(
            {"prompts": prompts, "completions": completions, "columns": columns, "rewards": rewards, "seconds": seconds}
        )
        return rewards


def train(policy: Path, pairs: Sequence[PreferencePair], reward: Recorded, settings: loop.Settings, out: Path) -> GRPOTrainer:
    """TRL's trainer after its steps."""
    model, processor = load_model(str(policy), device="cpu")
    trainer = GRPOTrainer(
        model,
        reward_funcs=reward.__call__,
        args=loop.grpo_config(settings, seed=0, out=out),
        train_dataset=loop.dataset(pairs),
        processing_class=processor,
    )
    trainer.train()
    return trainer


def again(calls: Sequence[dict[str, Any]], judge: str) -> list[list[float | None]]:
    """Return the rewards of the same calls by a server that nothing happens to."""
    with endpoint(judge) as (url, _):
        reward = judge_reward(url)
        return [asyncio.run(_of(reward, call)) for call in calls]


async def _of(reward: Any, call: dict[str, Any]) -> list[float | None]:
    return list(await reward(call["prompts"], call["completions"], **call["columns"]))


def run(policy: Path, pairs: Sequence[PreferencePair], judge: str, settings: loop.Settings, out: Path, *, signs: bool) -> Any:
    with endpoint(judge, "--engine-timeout", str(ENGINE_TIMEOUT_S)) as (url, process):
        reward = Recorded(url, process if signs else None)
        start = time.perf_counter()
        trainer = train(policy, pairs, reward, settings, out)
        seconds = time.perf_counter() - start
    expected = again(reward.calls, judge)
    came = [value for call in reward.calls for value in call["rewards"]]
    right = [value for values in expected for value in values]
    return {
        "steps": trainer.state.global_step,
        "reward_calls": len(reward.calls),
        "rewards": len(came),
        "not_zero": sum(bool(value) for value in came),
        "none": came.count(None),
        "none_of_an_undisturbed_server": right.count(None),
        "other_than_of_an_undisturbed_server": sum(a != b for a, b in zip(came, right, strict=True)),
        "seconds": seconds,
        "seconds_of_reward_calls": [call["seconds"] for call in reward.calls],
    }


def verl_scores(python: Path, url: str, steps: Sequence[Any], process: psutil.Process | None) -> list[float]:
    """Return verl's scores of all steps; the engine of ``process`` is killed and stopped in two of them."""
    names = ("CLIENTS_IMAGE", "CLIENTS_URLS", "CLIENTS_LONE_URLS")
    environment = {**os.environ, "CLIENTS_URL": url, "CLIENTS_KEY": "none", **dict.fromkeys(names, "")}
    command = [str(python), str(Path(__file__).parent / "clients" / "verl_samples.py")]
    scores, number = list[float](), 0
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True) as child:
        assert child.stdin
        assert child.stdout
        child.stdin.write(json.dumps(steps))
        child.stdin.close()
        for line in child.stdout:
            if line.startswith("["):
                scores += json.loads(line)
            elif line.startswith("begins"):
                number += 1
                if process and (sign := SIGNS.get(number)):
                    threading.Timer(0.1, _signal, (process, sign)).start()
    return scores


def verl_drill(python: Path, pairs: Sequence[PreferencePair]) -> dict[str, Any]:
    """Groups of four answers to questions of which the judge has a verdict without their pictures."""
    options = ("--group-size", "4", "--engine-timeout", str(ENGINE_TIMEOUT_S))
    with endpoint(DEMO, *options) as (url, _):
        by_question = {pair.question: pair for pair in pairs}  # of one prompt, whose samples would meet, one group
        groups = [
            (text, [*pair.responses, pair.responses[0] + " Yes.", "I do not know."]) for text, pair in by_question.items()
        ]
        known = [group for group in groups[:MOST_GROUPS] if _has_rewards(url, *group)]
        steps = [known[n : n + 16] for n in range(0, len(known) // 16 * 16, 16)]
        right = verl_scores(python, url, steps, None)
    with endpoint(DEMO, *options) as (url, process):
        start = time.perf_counter()
        came = verl_scores(python, url, steps, process)
        seconds = time.perf_counter() - start
    return {
        "steps": len(steps),
        "rewards": len(came),
        "not_zero": sum(map(bool, came)),
        "none": len(right) - len(came),
        "none_of_an_undisturbed_server": sum(map(len, (responses for step in steps for _, responses in step))) - len(right),
        "other_than_of_an_undisturbed_server": sum(a != b for a, b in zip(came, right, strict=False)),
        "seconds": seconds,
    }


def _has_rewards(url: str, question: str, responses: Sequence[str]) -> bool:
    answer = httpx.post(f"{url}/v1/rewards", json={"question": question, "responses": responses}, timeout=60)
    return answer.status_code == 200 and None not in answer.json()["rewards"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--teach", type=int, default=150, help="steps of SFT on answers, before")
    parser.add_argument("--verl", type=Path, help="a Python that has verl 0.9.1")
    parser.add_argument("--work", type=Path, default=Path("runs/serving_trainers"))
    parser.add_argument("--out", type=Path, default=Path("eval/results/serving_trainers.json"))
    options = parser.parse_args()
    settings = replace(loop.Settings(), steps=options.steps, start=replace(loop.StartSettings(), start_steps=options.teach))
    pairs = [pair for pair in make_pairs(800, seed=5, held_out=False)[0] if pair.question != loop.MANY_WORDED]
    policy = loop.taught_policy(pairs, DEMO_JUDGE, options.work, settings)
    result: dict[str, Any] = {"command": shlex.join(["python", *sys.argv]), "commit": commit()}
    for name, signs in (("TRL, undisturbed", False), ("TRL, killed and stopped", True)):
        result[name] = run(policy, pairs, DEMO, settings, options.work / name.split()[-1], signs=signs)
        print(name, json.dumps(result[name]), flush=True)
    if options.verl:
        result["verl, killed and stopped"] = verl_drill(options.verl, pairs)
        print(json.dumps(result["verl, killed and stopped"]), flush=True)
    write_atomic(options.out, json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
