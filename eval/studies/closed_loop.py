"""The loop closed: a policy trained by TRL's own GRPOTrainer on rewards from a running endpoint, and best-of-N by that judge.

Nothing here knows how a judgment comes about: questions and images go out over HTTP through
:mod:`rewardlab.integrations.trl`, rewards come back. The demo's truth measures what became of the policy, on questions that
neither it nor the judge was trained on.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
from datasets import Dataset, Features, List, Value
from datasets import Image as ImageFeature
from trl import GRPOConfig, GRPOTrainer

from eval.studies.policy import Settings as StartSettings
from eval.studies.policy import start_config
from eval.studies.policy_trials import MANY_WORDED, START, is_right
from rewardlab.data.pairs import read_pairs
from rewardlab.demo.build import BASE, TEST, TRAIN
from rewardlab.errors import EndpointError
from rewardlab.integrations.client import RewardClient
from rewardlab.integrations.trl import judge_reward
from rewardlab.models.loading import load_model
from rewardlab.processes import end_with_parent
from rewardlab.prompts import build_messages, load_template
from rewardlab.samplers.base import SamplingParams
from rewardlab.samplers.hf import HFSampler
from rewardlab.training.run.folder import FINAL, is_finished
from rewardlab.training.sft import train_sft
from rewardlab.types import FinishReason, Order, PreferencePair

ANSWER = load_template("answer")


@dataclass(frozen=True)
class Settings:
    """``kl`` is GRPO's beta; ``candidates`` the N of best-of-N; ``num_test`` held-out questions."""

    steps: int = 60
    prompts: int = 16  # a step
    group: int = 4  # answers to each
    learning_rate: float = 1e-4
    kl: float = 0.05
    max_tokens: int = 24
    candidates: int = 8
    num_test: int = 400
    start: StartSettings = field(default_factory=StartSettings)


@contextmanager
def serving(judge: Path, *options: str) -> Iterator[str]:
    """Run ``rewardlab serve`` in another process and yield its address once it is ready. Raise EndpointError if it ends."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "rewardlab.cli", "serve", "--judge", f"hf:{judge}", "--port", str(port), *options]
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=end_with_parent,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        while True:
            if process.poll() is not None:
                raise EndpointError(f"{' '.join(command)}: ended with status {process.returncode}")
            with suppress(httpx.HTTPError):
                if httpx.get(f"{url}/ready", timeout=5).status_code == 200:
                    break
            time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        process.wait(90)


def questions(path: Path) -> list[PreferencePair]:
    """Return the pairs whose question has one right answer."""
    return [pair for pair in read_pairs(path) if pair.question != MANY_WORDED]


def first_policy(run: Path, out: Path, settings: Settings) -> Path:
    """Return the initial policy: the demo's base model, trained on partly wrong answers. Made once in ``out``."""
    return taught_policy(questions(run / "demo" / TRAIN), run / "demo" / BASE, out, settings)


def taught_policy(pairs: Sequence[PreferencePair], base: Path, out: Path, settings: Settings) -> Path:
    """Return a model trained on partly wrong answers to the pairs' questions. Made once in ``out``."""
    if not is_finished(out / START):
        wrong = len(pairs) - round(settings.start.start_right * len(pairs))
        rows = [
            replace(pair, judgment=pair.responses[(pair.preferred or 0) ^ (n < wrong)], order=Order.GIVEN)
            for n, pair in enumerate(pairs)
        ]
        train_sft(rows, start_config(settings.start, base=base), out / START)
    return out / START / FINAL


def dataset(pairs: Sequence[PreferencePair]) -> Dataset:
    """Return TRL's training set: the question as a chat, and its image."""
    features = Features({"prompt": List({"role": Value("string"), "content": Value("string")}), "image": ImageFeature()})
    rows = {
        "prompt": [[{"role": "user", "content": pair.question}] for pair in pairs],
        "image": [{"bytes": pair.images[0], "path": None} for pair in pairs],
    }
    return Dataset.from_dict(rows, features=features)


def train(policy: Path, pairs: Sequence[PreferencePair], url: str, settings: Settings, *, seed: int, out: Path) -> GRPOTrainer:
    """TRL's trainer after its steps; answers to one question are compared with each other by the judge at ``url``."""
    model, processor = load_model(str(policy), device="cpu")
    config = grpo_config(settings, seed=seed, out=out)
    trainer = GRPOTrainer(
        model, reward_funcs=judge_reward(url), args=config, train_dataset=dataset(pairs), processing_class=processor
    )
    trainer.train()
    return trainer


def grpo_config(settings: Settings, *, seed: int, out: Path) -> GRPOConfig:
    return GRPOConfig(
        output_dir=str(out),
        seed=seed,
        max_steps=settings.steps,
        per_device_train_batch_size=settings.prompts * settings.group,
        num_generations=settings.group,
        max_completion_length=settings.max_tokens,
        learning_rate=settings.learning_rate,
        beta=settings.kl,
        report_to="none",
        bf16=False,
        use_cpu=True,
        gradient_checkpointing=False,
        logging_steps=1,
        save_strategy="no",
    )


def answers(
    model: Any, processor: Any, pairs: Sequence[PreferencePair], settings: Settings, *, num: int, seed: int
) -> list[list[str]]:
    """Return ``num`` sampled answers to each question; a truncated one is empty."""
    prompts = [build_messages(pair, order=Order.GIVEN, template=ANSWER) for pair in pairs]
    params = SamplingParams(num, 1.0, max_tokens=settings.max_tokens, seed=seed)
    drawn = HFSampler(model.eval(), processor, batch_size=256).sample(prompts, params)
    return [[answer.text if answer.finish is FinishReason.STOP else "" for answer in row] for row in drawn]


def right_share(answers_of: Sequence[Sequence[str]], pairs: Sequence[PreferencePair]) -> list[float]:
    """Return, for each question, the share (0..1) of its answers that are right."""
    return [sum(is_right(text, pair) for text in row) / len(row) for row, pair in zip(answers_of, pairs, strict=True)]


async def choose_best(answers_of: Sequence[Sequence[str]], pairs: Sequence[PreferencePair], url: str) -> list[str | None]:
    """Return, for each question, the answer with the highest reward (the first of equal ones; None if none was judged).

    Equal answers are sent once. At most 8 questions are sent at a time.
    """
    client, slots = RewardClient(url), asyncio.Semaphore(8)

    async def best(row: Sequence[str], pair: PreferencePair) -> str | None:
        distinct = list(dict.fromkeys(text for text in row if text))
        if len(distinct) < 2:
            return distinct[0] if distinct else None
        async with slots:
            rewards = await client.rewards(pair.question, distinct, pair.images)
        scored = [(reward, -n) for n, reward in enumerate(rewards) if reward is not None]
        return distinct[-max(scored)[1]] if scored else None

    return list(await asyncio.gather(*(best(row, pair) for row, pair in zip(answers_of, pairs, strict=True))))


def best_of_n(answers_of: Sequence[Sequence[str]], pairs: Sequence[PreferencePair], url: str) -> dict[str, list[float]]:
    """Return, for each question, whether the chosen answer is right, and whether any is (the upper bound of any choice)."""
    with ThreadPoolExecutor(1) as thread:  # a notebook has a loop of its own running
        picked = thread.submit(lambda: asyncio.run(choose_best(answers_of, pairs, url))).result()
    return {
        "chosen": [float(text is not None and is_right(text, pair)) for text, pair in zip(picked, pairs, strict=True)],
        "any": [float(share > 0) for share in right_share(answers_of, pairs)],
    }


def held_out(run: Path, settings: Settings) -> list[PreferencePair]:
    return questions(run / "demo" / TEST)[: settings.num_test]
