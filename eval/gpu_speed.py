"""Step times, tokens a second, MFU and peak memory of SFT and StableReinforce on one GPU, beside plain TRL GRPO: by hand.

    python eval/gpu_speed.py --model Qwen/Qwen2.5-VL-3B-Instruct --image-px 448 --answer 256

The architecture is the published one, its weights are random, the tokenizer is trained on the spot: speed does not depend on
what a model knows. Rollouts never end early, so that both trainers sample as many tokens. A step's time is split into sampling,
scoring and training. MFU is six floating-point operations a weight and token of the forward and backward passes (two more where
activations are computed again), by the rate of a bfloat16 matrix product measured in the same run. Without a GPU it says so and
ends; ``--on-cpu`` tries the script itself, with a model of a few layers.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import rewardlab  # noqa: F401  (before transformers, see rewardlab/models/torchvision_cpu.py)

# isort: split
import torch
from PIL import Image
from step_time import StepTimer, trl_grpo
from transformers import AutoModelForImageTextToText, GenerationConfig, Qwen2_5_VLProcessor, Qwen2VLImageProcessor
from transformers.trainer_callback import PrinterCallback
from trl import GRPOTrainer
from trl import SFTConfig as TRLSFTConfig

from rewardlab.config import RLConfig, SFTConfig
from rewardlab.data.images import encode_png
from rewardlab.data.pairs import write_parquet
from rewardlab.demo.base_model import CHAT_TEMPLATE, save_model, train_tokenizer
from rewardlab.demo.build import corpus
from rewardlab.demo.pairs import make_pairs
from rewardlab.models.architectures import config_of
from rewardlab.models.checkpoints import commit
from rewardlab.prompts import load_template
from rewardlab.rewards.rollout import RewardFunction, Rollout, Scored, Trajectory
from rewardlab.training.policy_gradient.rollouts.whole import Sampling, WholeRollouts
from rewardlab.training.rl import build_trainer, judgment_reward_of, rl_rows
from rewardlab.training.run.folder import common_arguments
from rewardlab.training.run.rows import PromptReader, dialogue_dataset
from rewardlab.training.sft import ResumableSFTTrainer, sft_dialogues
from rewardlab.types import PreferencePair

ROOT = Path(__file__).parents[1]
GIB = 2**30
PLAIN = load_template("plain")
T = TypeVar("T")


def matmul_flops(device: str) -> float:
    """Return the operations a second of a square bfloat16 product, the median of ten."""
    size = 8192 if device == "cuda" else 512
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    times = []
    for _ in range(10):
        start = now(device)
        a @ b
        times.append(now(device) - start)
    return 2 * size**3 / statistics.median(times)


def now(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def make_inputs(options: argparse.Namespace) -> tuple[Any, Any, list[PreferencePair]]:
    """Return a model with random weights, its processor, and pairs with pictures of ``image_px`` and answers of a real
    length."""
    pairs, truths = make_pairs(options.pairs, seed=0, held_out=False)
    tokenizer = train_tokenizer(corpus(pairs, truths, random.Random(0)), 900)
    config = config_of(options.model)
    token = tokenizer.convert_tokens_to_ids
    if options.on_cpu:
        config.text_config.num_hidden_layers, config.text_config.hidden_size = 2, 512
        config.text_config.num_attention_heads, config.text_config.num_key_value_heads = 4, 2
        config.text_config.intermediate_size, config.text_config.vocab_size = 512, 2048
        config.text_config.layer_types = config.text_config.layer_types[:2]
        config.vision_config.depth, config.vision_config.out_hidden_size = 2, 512
    names = {"image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>"}
    names |= {"vision_start_token_id": "<|vision_start|>", "vision_end_token_id": "<|vision_end|>"}
    for name, text in names.items():
        setattr(config, name, token(text))
    config.text_config.eos_token_id, config.text_config.pad_token_id = token("<|im_end|>"), token("<|endoftext|>")
    torch.manual_seed(0)
    with torch.device("cuda" if not options.on_cpu else "cpu"):
        model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    never = config.text_config.vocab_size - 1  # not a token of the tokenizer: no rollout ends before its time
    model.generation_config = GenerationConfig(do_sample=True, eos_token_id=never, pad_token_id=token("<|endoftext|>"))
    size = {"shortest_edge": 784, "longest_edge": options.image_px**2}
    from transformers import Qwen2VLVideoProcessor

    processor = Qwen2_5_VLProcessor(
        image_processor=Qwen2VLImageProcessor(size=size),
        tokenizer=tokenizer,
        video_processor=Qwen2VLVideoProcessor(),
        chat_template=CHAT_TEMPLATE,
    )
    picture = encode_png(Image.effect_noise((options.image_px, options.image_px), 60).convert("RGB"))
    answer = " ".join(random.Random(0).choices(["the", "red", "circle", "is", "left"], k=options.answer))
    return model, processor, [replace(pair, images=(picture,), attempts="2", judgment=answer) for pair in pairs]


class Stopwatch:
    """Seconds of every call that it makes, in ``seconds``."""

    def __init__(self, device: str) -> None:
        self._device = device
        self.seconds: list[float] = []

    def time(self, call: Callable[[], T]) -> T:
        start = now(self._device)
        result = call()
        self.seconds.append(now(self._device) - start)
        return result


class TimedRollouts(WholeRollouts):
    """Whole rollouts whose sampling is timed."""

    def __init__(self, watch: Stopwatch) -> None:
        self._watch = watch

    def complete(
        self, prompt_ids: list[list[int]], images: Any, fields: dict[str, Any], sampling: Sampling
    ) -> list[Trajectory]:
        return self._watch.time(partial(super().complete, prompt_ids, images, fields, sampling))


class TimedGRPO(GRPOTrainer):  # type: ignore[misc]
    """TRL's trainer whose sampling is timed."""

    def __init__(self, *, watch: Stopwatch, **trl: Any) -> None:
        self._watch = watch
        super().__init__(**trl)

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        return self._watch.time(partial(super()._generate_single_turn, *args, **kwargs))


class TimedReward:
    """A reward function whose calls are timed."""

    __name__ = "timed_reward"

    def __init__(self, reward: RewardFunction, watch: Stopwatch) -> None:
        self._reward, self._watch = reward, watch

    def __call__(self, rollouts: Sequence[Rollout], step: int) -> Scored:
        return self._watch.time(partial(self._reward, rollouts, step))


class Timers:
    """What times a training on ``device``: its steps, and sampling and scoring within them."""

    def __init__(self, device: str) -> None:
        self.device, self.step = device, StepTimer(partial(now, device))
        self.sampling, self.scoring = Stopwatch(device), Stopwatch(device)


def train(trainer: Any, timers: Timers, *, tokens: int, weights: int, rate: float) -> dict[str, float]:
    """Train, and return medians over steps, the first left out; ``tokens`` are trained on in one."""
    trainer.remove_callback(PrinterCallback)
    if timers.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    trainer.train()
    step, sampling, scoring = (
        statistics.median(seconds[1:]) if seconds else 0.0
        for seconds in (timers.step.seconds, timers.sampling.seconds, timers.scoring.seconds)
    )
    training = step - sampling - scoring
    peak = torch.cuda.max_memory_allocated() / GIB if timers.device == "cuda" else 0.0
    return {
        "step_s": step,
        "sampling_s": sampling,
        "scoring_s": scoring,
        "training_s": training,
        "tokens_per_s": tokens / step,
        "mfu_of_training": 8 * weights * tokens / training / rate,  # activations are computed again
        "peak_gib": peak,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="Qwen/Qwen2.5-VL-3B-Instruct")
    parser.add_argument("--image-px", type=int, default=448)
    parser.add_argument("--answer", type=int, default=256, help="tokens of a rollout, words of a judgment")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--micro", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=64)
    parser.add_argument("--on-cpu", action="store_true", help="try the script with a small model")
    parser.add_argument("--save", type=Path, help="write the model, and the pairs that it is timed on, to this folder, and end")
    parser.add_argument("--out", type=Path, default=ROOT / "eval" / "results" / "gpu_speed.json")
    options = parser.parse_args()
    if not torch.cuda.is_available() and not options.on_cpu:
        sys.exit("not measured: no GPU here (torch.cuda.is_available() is false)")
    device = "cpu" if options.on_cpu else "cuda"
    shared: dict[str, Any] = {"model": options.model, "template": "plain", "max_steps": options.steps + 1, "save_steps": 10_000}
    shared |= {"batch_size": options.batch, "micro_batch_size": options.micro, "learning_rate": 1e-6}
    model, processor, pairs = make_inputs(options)
    if options.save:
        save_model(options.save / "model", model.to(torch.bfloat16), processor)
        write_parquet(pairs, options.save / "pairs.parquet")
        return
    rate, results = matmul_flops(device), {}
    weights = sum(weight.numel() for weight in model.parameters())
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        processor.tokenizer.padding_side = "right"
        rows = dialogue_dataset(PromptReader(pairs, PLAIN), sft_dialogues(pairs, PLAIN))
        timers = Timers(device)
        trainer = ResumableSFTTrainer(
            model=model.train(),
            args=TRLSFTConfig(max_length=None, **common_arguments(SFTConfig(**shared), out)),
            train_dataset=rows,
            processing_class=processor,
            callbacks=[timers.step],
        )
        length = sum(trainer.data_collator([rows[0]])["attention_mask"].sum(1).tolist())
        results["sft"] = train(trainer, timers, tokens=options.batch * length, weights=weights, rate=rate)
        del trainer
        processor.tokenizer.padding_side = "left"
        rl = RLConfig(
            **shared,
            rollout_batch_size=options.batch,
            group_size=2,
            advantage="grpo",
            outliers="keep",
            max_completion_length=options.answer,
            consistency={"weight": 0.0},  # type: ignore[arg-type]
        )
        rows = rl_rows(pairs, PLAIN, both_orders=True)
        for name in ("rewardlab", "trl grpo"):
            timers = Timers(device)
            reward = TimedReward(judgment_reward_of(rl, PLAIN, model, out), timers.scoring)
            callbacks = [timers.step]
            if name == "trl grpo":
                make = partial(TimedGRPO, watch=timers.sampling)
                trainer = trl_grpo(rows, rl, model, processor, reward, out, make=make, callbacks=callbacks)
            else:
                rollouts = TimedRollouts(timers.sampling)
                trainer = build_trainer(
                    rows, rl, model, processor, PLAIN, out, reward=reward, callbacks=callbacks, rollouts=rollouts
                )
            results[name] = train(trainer, timers, tokens=options.batch * length, weights=weights, rate=rate)
            del trainer
    result = {
        "commit": commit(),
        "command": " ".join(["python", *sys.argv]),
        "device": torch.cuda.get_device_name(0) if device == "cuda" else "cpu",
        "weights": weights,
        "matmul_tflops": rate / 1e12,
        "ratio_to_trl": results["rewardlab"]["step_s"] / results["trl grpo"]["step_s"],
        "measured": results,
    }
    print(json.dumps(result, indent=1))
    if device == "cuda":
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
