"""TRL's own GRPOTrainer, whose reward function is this project's: two steps of a small policy that writes digits."""

from __future__ import annotations

import re
import tempfile
from typing import Any

import rewardlab  # noqa: F401  (before transformers)

# isort: split

import torch
from calls import KEY, SEEN_QUESTION, URL, call
from datasets import Dataset
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor
from trl import GRPOConfig, GRPOTrainer

from rewardlab.integrations.trl import judge_reward
from rewardlab.judging.spec import DEMO_JUDGE

STEPS, SIZE = 2, 4
GROUPS = list[tuple[list[str], list[float | None]]]()
judge = judge_reward(URL, api_key=KEY, votes=2)
processor = AutoProcessor.from_pretrained(DEMO_JUDGE)
others = [n for token, n in processor.tokenizer.get_vocab().items() if not re.fullmatch("[0-9]", token)]


async def reward(prompts: list[Any], completions: list[Any], **columns: Any) -> list[float | None]:
    rewards = await judge(prompts, completions, **columns)
    texts = [completion[0]["content"] for completion in completions]
    GROUPS.extend((texts[n : n + SIZE], rewards[n : n + SIZE]) for n in range(0, len(texts), SIZE))
    return rewards


def trained() -> tuple[int, bool]:
    """Return the number of judged groups, and whether every step has a loss."""
    questions = [f"{SEEN_QUESTION} ({n})" for n in range(SIZE)]
    image = Image.new("RGB", (32, 32), "red")
    rows = [{"prompt": [{"role": "user", "content": question}], "image": image} for question in questions]
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder,
            max_steps=STEPS,
            per_device_train_batch_size=2 * SIZE,
            num_generations=SIZE,
            max_completion_length=4,
            generation_kwargs={"suppress_tokens": others},
            report_to="none",
            use_cpu=True,
            bf16=False,
            logging_steps=1,
            save_strategy="no",
            disable_tqdm=True,
        )
        model = AutoModelForImageTextToText.from_pretrained(DEMO_JUDGE)
        dataset = Dataset.from_list(rows)
        trainer = GRPOTrainer(model, reward_funcs=reward, args=config, train_dataset=dataset, processing_class=processor)
        trainer.train()
    losses = [row["loss"] for row in trainer.state.log_history if "rewards/reward/mean" in row]
    return len(GROUPS), len(losses) == STEPS and bool(torch.isfinite(torch.tensor(losses)).all())


def expected(texts: list[str]) -> list[float]:
    """Return the mean of 1, 0 and -1 for each other response with a smaller, equal and greater number."""
    numbers = [int((re.findall(r"\d+", text) or ["0"])[-1]) for text in texts]
    return [sum((one > other) - (one < other) for other in numbers) / (len(numbers) - 1) for one in numbers]


call("GRPOTrainer, two steps of two groups with images", trained, (2 * STEPS, True))
found = [[None if reward is None else round(reward, 6) for reward in rewards] for _, rewards in GROUPS]
call("their rewards", lambda: found, [[round(value, 6) for value in expected(texts)] for texts, _ in GROUPS])
call("and they differ", lambda: all(len(set(rewards)) > 1 for rewards in found), True)
