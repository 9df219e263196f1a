"""Does a served judge improve a policy? ``python -m eval.studies closed_loop``

TRL's own GRPOTrainer trains a tiny policy on rewards from a running endpoint, and the endpoint picks the best of N answers. The
trainer knows nothing about judgments: questions and images go out over HTTP through :mod:`rewardlab.integrations.trl`, and
rewards come back. The demonstration's truth measures the policy on questions that neither it nor the judge was trained on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset, Features, List, Value
from datasets import Image as ImageFeature
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from eval.endpoints import JUDGING, endpoint
from eval.studies.policy import Settings as StartSettings
from eval.studies.policy import start_config
from eval.studies.policy_trials import START, is_right, questions, right_answers
from eval.studies.study import Quickstart, make_once
from eval.studies.tables import mean_of
from rewardlab.integrations.client import RewardClient
from rewardlab.integrations.trl import judge_reward
from rewardlab.metrics.intervals import mean_interval
from rewardlab.models.checkpoints import commit
from rewardlab.models.loading import load_model
from rewardlab.samplers.base import SamplingParams
from rewardlab.training.run.folder import FINAL, is_finished
from rewardlab.training.sft import train_sft
from rewardlab.types import Order, PreferencePair


@dataclass(frozen=True)
class Settings:
    """``kl`` is GRPO's beta; ``candidates`` the N of best of N; ``num_test`` held-out questions."""

    steps: int = 60
    prompts: int = 16  # a step
    group: int = 4  # answers to each
    learning_rate: float = 1e-4
    kl: float = 0.05
    max_tokens: int = 24
    candidates: int = 8
    num_test: int = 400
    start: StartSettings = field(default_factory=StartSettings)


def first_policy(quickstart: Quickstart, out: Path, settings: Settings) -> Path:
    """Return the initial policy: the demonstration's base model, trained on partly wrong answers. Made once in ``out``."""
    return taught_policy(questions(quickstart.train), quickstart.base, out, settings)


def taught_policy(pairs: Sequence[PreferencePair], base: Path, out: Path, settings: Settings) -> Path:
    """Return ``base`` trained on partly wrong answers to the questions of pairs. Made once in ``out``."""
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


def train(
    policy: Path,
    pairs: Sequence[PreferencePair],
    reward: Callable[..., Awaitable[list[float | None]]],
    settings: Settings,
    *,
    seed: int,
    out: Path,
    callbacks: Sequence[TrainerCallback] = (),
) -> GRPOTrainer:
    """Return TRL's trainer after its steps; ``reward`` compares the answers to one question with each other."""
    model, processor = load_model(str(policy), device="cpu")
    config = GRPOConfig(
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
    trainer = GRPOTrainer(
        model,
        reward_funcs=reward,
        args=config,
        train_dataset=dataset(pairs),
        processing_class=processor,
        callbacks=list(callbacks),
    )
    trainer.train()
    return trainer


def answers(
    model: Any, processor: Any, pairs: Sequence[PreferencePair], settings: Settings, *, num: int, seed: int
) -> list[list[str]]:
    """Return ``num`` sampled answers to each question; a truncated one is empty."""
    return right_answers(model, processor, pairs, SamplingParams(num, 1.0, max_tokens=settings.max_tokens, seed=seed))[1]


def accuracies(answers_of: Sequence[Sequence[str]], pairs: Sequence[PreferencePair]) -> list[float]:
    """Return, for each question, the fraction of its answers that are right."""
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
    """Return, for each question, whether the chosen answer is right, and whether any is (the upper bound of a choice)."""
    with ThreadPoolExecutor(1) as thread:  # a notebook has a loop of its own running
        picked = thread.submit(lambda: asyncio.run(choose_best(answers_of, pairs, url))).result()
    return {
        "chosen": [float(text is not None and is_right(text, pair)) for text, pair in zip(picked, pairs, strict=True)],
        "any": [float(share > 0) for share in accuracies(answers_of, pairs)],
    }


def held_out(quickstart: Quickstart, settings: Settings) -> list[PreferencePair]:
    return questions(quickstart.test)[: settings.num_test]


def over_questions(scores: Sequence[float]) -> dict[str, Any]:
    return {"mean": float(np.mean(scores)), "interval": list(mean_interval(scores))}


def run_closed_loop(run: Path, out: Path, settings: Settings, num_seeds: int) -> dict[str, Any]:
    """Return the results before and after training; a finished seed is kept in ``out``.

    Intervals of one policy are over questions, those of trained policies over seeds (Student's).
    """
    quickstart = Quickstart(run)
    quickstart.require("rl", files=(quickstart.train, quickstart.test))
    pairs, test = questions(quickstart.train), held_out(quickstart, settings)
    policy = first_policy(quickstart, out, settings)
    with endpoint(f"hf:{quickstart.judge('rl')}", *JUDGING, "policy=weighted") as (url, _):
        model, processor = load_model(str(policy), device="cpu")
        texts = answers(model, processor, test, settings, num=settings.candidates, seed=1)
        began = time.perf_counter()
        best, before = best_of_n(texts, test, url), accuracies(texts, test)
        seconds = time.perf_counter() - began

        def trial(seed: int) -> dict[str, Any]:
            clock = time.perf_counter()
            trainer = train(policy, pairs, judge_reward(url), settings, seed=seed, out=out / f"seed_{seed}")
            logs = [row for row in trainer.state.log_history if "reward" in row]
            after = answers(trainer.model, processor, test, settings, num=settings.candidates, seed=1)
            return {
                "sampled": float(np.mean(accuracies(after, test))),
                "chosen": float(np.mean(best_of_n(after, test, url)["chosen"])),
                "reward_std": [row["reward_std"] for row in logs],
                "kl": [row.get("kl") for row in logs],
                "seconds": time.perf_counter() - clock,
            }

        trials = [
            make_once(out / f"{settings.steps}_steps_seed_{seed}.json", lambda seed=seed: trial(seed))  # type: ignore[misc]
            for seed in range(num_seeds)
        ]
    return {
        "command": "python -m eval.studies closed_loop",
        "commit": commit(),
        "questions": len(test),
        "candidates": settings.candidates,
        "steps": settings.steps,
        "answers_a_step": settings.prompts * settings.group,
        "before": {
            "sampled": over_questions(before),
            "best_of_n": over_questions(best["chosen"]),
            "any_of_n": over_questions(best["any"]),
            "gain": over_questions([a - b for a, b in zip(best["chosen"], before, strict=True)]),
            "seconds": seconds,
        },
        "after": {name: mean_of([trial[name] for trial in trials]) for name in ("sampled", "chosen")},
        "change": mean_of([trial["sampled"] - float(np.mean(before)) for trial in trials]),
        "trials": trials,
    }
