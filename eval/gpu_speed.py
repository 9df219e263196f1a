"""Models of stated shapes with random weights, and what times a trainer on one device: tools of `eval/gpu_truth.py`.

Speed does not depend on what a model knows: architectures are the published ones, weights are random, the tokenizer is trained
on the spot. A step's time is split into sampling, scoring and training.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import rewardlab  # noqa: F401  (before transformers, see rewardlab/models/torchvision_cpu.py)

# isort: split
import torch
from PIL import Image
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from transformers import (
    AutoModelForImageTextToText,
    GenerationConfig,
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
)
from transformers.trainer_callback import PrinterCallback, TrainerCallback
from transformers.trainer_utils import SaveStrategy
from trl import GRPOTrainer
from trl import SFTConfig as TRLSFTConfig

from eval.step_time import StepTimer, trl_grpo
from rewardlab.config import RLConfig, SFTConfig, TrainConfig
from rewardlab.data.images import encode_png
from rewardlab.demo.base_model import CHAT_TEMPLATE, train_tokenizer
from rewardlab.demo.build import corpus
from rewardlab.demo.pairs import make_pairs
from rewardlab.health.dataset import Lengths
from rewardlab.health.memory import peak, setup_of, trainer_lines
from rewardlab.health.shapes import picture_shape
from rewardlab.models.architectures import config_of
from rewardlab.models.attention import disable_cudnn_attention
from rewardlab.models.families import part_pattern
from rewardlab.models.vision_tower import prepare_vision_tower
from rewardlab.prompts import build_messages, load_template
from rewardlab.rewards.rollout import RewardFunction, Rollout, Scored, Trajectory
from rewardlab.samplers.hf import encode
from rewardlab.training.policy_gradient.rollouts.sampling import Sampling, WholeRollouts
from rewardlab.training.rl import build_trainer, judgment_reward_of, rl_rows
from rewardlab.training.run.folder import common_arguments
from rewardlab.training.run.parallel import Launch
from rewardlab.training.run.rows import PromptReader, dialogue_dataset
from rewardlab.training.sft import ResumableSFTTrainer, sft_dialogues
from rewardlab.types import Order, PreferencePair

GIB = 2**30
PLAIN = load_template("plain")
Row = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class Shape:
    """A published architecture, or one with ``layers`` text layers of width ``hidden`` and two blocks of vision of width
    ``vision`` instead of its own."""

    model: str
    layers: int | None = None
    hidden: int = 0
    vision: int = 0

    def config(self) -> Any:
        """Return the configuration; heads are 128 and 80 wide, as those of the published models."""
        config = config_of(self.model)
        if self.layers is None:
            return config
        text, sight, heads = config.text_config, config.vision_config, self.hidden // 128
        text.num_hidden_layers, text.hidden_size, text.intermediate_size = self.layers, self.hidden, 3 * self.hidden
        text.num_attention_heads, text.num_key_value_heads, text.vocab_size = heads, max(1, heads // 2), 2048
        text.layer_types = text.layer_types[: self.layers]
        sight.depth, sight.fullatt_block_indexes, sight.out_hidden_size = 2, [1], self.hidden
        sight.hidden_size, sight.intermediate_size, sight.num_heads = self.vision, 2 * self.vision, self.vision // 80
        return config


_3B, _7B = "Qwen/Qwen2.5-VL-3B-Instruct", "Qwen/Qwen2.5-VL-7B-Instruct"
SHAPES = {
    "tiny": Shape(_3B, layers=2, hidden=128, vision=160),  # 2 million weights
    "small": Shape(_3B, layers=16, hidden=512, vision=640),  # 70 million,
    "3b": Shape(_3B),
    "7b": Shape(_7B),
}


def now(device: str) -> float:
    """Return seconds, once the device has done what it was told."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


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


def bandwidth(device: str) -> float:
    """Return the bytes a second that the device reads and writes in a large copy, the median of ten."""
    source = torch.zeros(2**28 if device == "cuda" else 2**22, device=device)
    target, times = torch.empty_like(source), []
    for _ in range(10):
        start = now(device)
        target.copy_(source)
        times.append(now(device) - start)
    return 2 * source.numel() * source.element_size() / statistics.median(times)


def free_memory() -> None:
    """Let go of what is garbage, on the card too."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def make_tokenizer() -> Any:
    """Return a tokenizer trained on the demonstration's texts."""
    pairs, truths = make_pairs(200, seed=0, held_out=False)
    return train_tokenizer(corpus(pairs, truths, random.Random(0)), 900)


def make_model(shape: Shape, image_px: int, device: str, dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    """Return a model with random weights and its processor; pictures have at most ``image_px`` squared pixels."""
    disable_cudnn_attention()
    config, tokenizer = shape.config(), make_tokenizer()
    token = tokenizer.convert_tokens_to_ids
    names = {"image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>"}
    names |= {"vision_start_token_id": "<|vision_start|>", "vision_end_token_id": "<|vision_end|>"}
    for name, text in names.items():
        setattr(config, name, token(text))
    config.text_config.eos_token_id, config.text_config.pad_token_id = token("<|im_end|>"), token("<|endoftext|>")
    torch.manual_seed(0)
    with torch.device(device):
        model = prepare_vision_tower(AutoModelForImageTextToText.from_config(config, dtype=dtype))
    ends = {"eos_token_id": token("<|im_end|>"), "pad_token_id": token("<|endoftext|>")}
    model.generation_config = GenerationConfig(do_sample=True, **ends)
    size = {"shortest_edge": 784, "longest_edge": image_px**2}
    processor = Qwen2_5_VLProcessor(
        image_processor=Qwen2VLImageProcessor(size=size),
        tokenizer=tokenizer,
        video_processor=Qwen2VLVideoProcessor(),
        chat_template=CHAT_TEMPLATE,
    )
    processor.tokenizer.padding_side = "left"
    return model, processor


def never_end(model: Any) -> None:
    """Have no rollout end before its time: its end token is none of the tokenizer's."""
    model.generation_config.eos_token_id = model.config.get_text_config().vocab_size - 1


@contextmanager
def forward_kept(model: Any) -> Iterator[None]:
    """Take off again what trainers lay around a model's forward pass: autocast, conversions to float32, a fused head; and
    accelerate's mark, with which the next trainer would leave autocast out."""
    forward = vars(model).get("forward")
    try:
        yield
    finally:
        for name in ("forward", "_original_forward", "_is_accelerate_prepared"):
            vars(model).pop(name, None)
        if forward is not None:
            model.forward = forward
        model.zero_grad(set_to_none=True)


def noisy_pairs(number: int, image_px: int, answer: int) -> list[PreferencePair]:
    """Return pairs with a picture of ``image_px`` each and judgments of ``answer`` words."""
    judgment = " ".join(random.Random(0).choices(["the", "red", "circle", "is", "left"], k=answer))
    pairs = make_pairs(number, seed=0, held_out=False)[0]
    pictures = [encode_png(Image.effect_noise((image_px, image_px), 60).convert("RGB")) for _ in pairs]
    return [
        replace(pair, images=(picture,), attempts="2", judgment=judgment) for pair, picture in zip(pairs, pictures, strict=True)
    ]


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


@dataclass(frozen=True)
class Weights:
    """How many weights of each part do a product for each token (``language``: layers, no head and no embeddings) or patch."""

    language: int
    vision: int

    @staticmethod
    def of(model: Any) -> Weights:
        vision, language = (part_pattern(part) for part in ("vision", "language"))
        sizes = {name: weight.numel() for name, weight in model.named_parameters()}
        outside = ("embed_tokens", "lm_head")
        layers = [n for name, n in sizes.items() if language.search(name) and not any(part in name for part in outside)]
        return Weights(sum(layers), sum(n for name, n in sizes.items() if vision.search(name)))


class Reads:
    """Tokens and patches that a model has read in passes with gradient, padding left out; counted without a wait for a card.
    ``in_bfloat16``: whether outputs of its first and last layers were bfloat16 in these."""

    def __init__(self, model: Any) -> None:
        self._tokens: list[torch.Tensor] = []
        self._patches: list[int] = []
        self.in_bfloat16 = True
        layers = [part for part in model.modules() if isinstance(part, torch.nn.Linear)]
        self._hooks = [model.register_forward_pre_hook(self._read, with_kwargs=True)]
        self._hooks += [layer.register_forward_hook(self._see) for layer in (layers[0], layers[-2])]  # the last is the head

    def _see(self, module: Any, args: Any, output: torch.Tensor) -> None:
        self.in_bfloat16 &= output.dtype == torch.bfloat16 or not torch.is_grad_enabled()

    def _read(self, module: Any, args: Any, inputs: dict[str, Any]) -> None:
        if torch.is_grad_enabled():
            self._tokens.append(inputs["attention_mask"].sum())
            pixels = inputs.get("pixel_values")
            self._patches.append(0 if pixels is None else len(pixels))

    def operations(self, weights: Weights) -> float:
        """Return the floating-point operations of these passes: eight a weight and token or patch, as activations are computed
        again. The head and attention's own products are not counted."""
        tokens = int(torch.stack(self._tokens).sum())
        return 8.0 * (weights.language * tokens + weights.vision * sum(self._patches))

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()


class Timers:
    """What times a training on ``device``: its steps, and sampling and scoring within them."""

    def __init__(self, device: str) -> None:
        self.device, self.step = device, StepTimer(partial(now, device))
        self.sampling, self.scoring = Stopwatch(device), Stopwatch(device)


def train(trainer: Any, timers: Timers, rate: float, config: TrainConfig, lengths: Lengths) -> Row:
    """Train, and return medians over steps, the first left out; a step is timed without the optimizer's update.
    ``preparing_s``: making prompts and scored samples into a batch. ``rate``: the device's operations a second.
    ``doctor_gib``: the doctor's estimate of the peak for rows of ``lengths``."""
    trainer.remove_callback(PrinterCallback)
    trainer.args.save_strategy = SaveStrategy.NO  # weights and Adam of 3B are 49 GiB
    if timers.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    reads, weights, rollouts = Reads(trainer.model), Weights.of(trainer.model), Stopwatch(timers.device)
    if make := getattr(trainer, "_generate_and_score_completions", None):
        trainer._generate_and_score_completions = lambda inputs: rollouts.time(partial(make, inputs))
    try:
        trainer.train()
    finally:
        reads.remove()
    operations = reads.operations(weights) / max(1, len(timers.step.seconds))
    step, sampling, scoring, whole = (
        statistics.median(seconds[1:] or seconds or [0.0])
        for seconds in (timers.step.seconds, timers.sampling.seconds, timers.scoring.seconds, rollouts.seconds)
    )
    training = step - whole
    row: Row = {"step_s": step, "sampling_s": sampling, "scoring_s": scoring, "preparing_s": whole - sampling - scoring}
    row["training_s"] = training
    row |= {"num_steps": len(timers.step.seconds), "mfu": operations / training / rate}
    row["in_bfloat16"] = float(reads.in_bfloat16)
    if timers.device == "cuda":
        row["peak_gib"] = torch.cuda.max_memory_allocated() / GIB
        row["doctor_gib"] = peak(trainer_lines(setup_of(trainer.model, config, Launch(), lengths=lengths)))[1] / GIB
    return row


@dataclass(frozen=True)
class Sizes:
    """What is trained on in one step: rollouts or samples, in micro-batches; tokens of an answer; steps that are timed."""

    batch: int = 16
    micro: int = 2
    answer: int = 256
    steps: int = 3
    image_px: int = 448


def shared_keys(sizes: Sizes) -> dict[str, Any]:
    keys: dict[str, Any] = {"template": "plain", "max_steps": sizes.steps + 1, "save_steps": 10_000, "learning_rate": 1e-6}
    return keys | {"batch_size": sizes.batch, "micro_batch_size": sizes.micro}


class ProfileLastStep(TrainerCallback):
    """Profiles the last step of a training: ``row`` has its seconds, those in which the device worked, and the operations and
    kernels that took most of them."""

    def __init__(self, device: str) -> None:
        kinds = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device == "cuda")
        self._device, self._profile = device, profile(activities=kinds, record_shapes=True)
        self._start = 0.0
        self.row: Row = {}

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == state.max_steps - 1:
            self._start = now(self._device)
            self._profile.start()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step < state.max_steps - 1:
            return
        seconds = now(self._device) - self._start
        self._profile.stop()
        on_cpu = self._device == "cpu"
        kernels, operations = self._most(on_cpu, by_shape=False), self._most(True, by_shape=True)
        self.row = {"profiled_s": seconds, "kernels_s": sum(kernels.values())}
        self.row |= {"kernels": list(kernels.items())[:25], "operations": list(operations.items())[:25]}
        if not on_cpu:
            self.row["launches"] = sum(
                event.count for event in self._profile.key_averages() if event.device_type != DeviceType.CPU
            )

    def _most(self, operations: bool, by_shape: bool) -> dict[str, float]:
        """Return the seconds on the device of each kernel, or of each operation of PyTorch without those it calls."""
        seconds: dict[str, float] = {}
        for event in self._profile.key_averages(group_by_input_shape=by_shape):
            if (event.device_type == DeviceType.CPU) == operations:
                time = event.self_cpu_time_total if self._device == "cpu" else event.self_device_time_total
                name = f"{event.key} {event.input_shapes}" if by_shape else event.key
                seconds[name] = seconds.get(name, 0.0) + time / 1e6
        return dict(sorted(seconds.items(), key=lambda item: -item[1]))


def profile_sft(model: Any, processor: Any, sizes: Sizes, device: str, rate: float, out: Path) -> Row:
    """Return where the time of an SFT step goes."""
    last = ProfileLastStep(device)
    return time_sft(model, processor, replace(sizes, steps=1), device, rate, out, [last]) | last.row


def time_sft(
    model: Any,
    processor: Any,
    sizes: Sizes,
    device: str,
    rate: float,
    out: Path,
    callbacks: Sequence[TrainerCallback] = (),
) -> Row:
    """Return the time of an SFT step, its memory and its MFU."""
    pairs, timers = noisy_pairs(4 * sizes.batch, sizes.image_px, sizes.answer), Timers(device)
    config = SFTConfig(model="m", **shared_keys(sizes))
    processor.tokenizer.padding_side = "right"
    try:
        with forward_kept(model):
            trainer = ResumableSFTTrainer(
                model=model.train(),
                args=TRLSFTConfig(max_length=None, **common_arguments(config, out)),
                train_dataset=dialogue_dataset(PromptReader(pairs, PLAIN), sft_dialogues(pairs, PLAIN)),
                processing_class=processor,
                callbacks=[timers.step, *callbacks],
            )
            return train(trainer, timers, rate, config, count_lengths(model, processor, pairs, config, sizes))
    finally:
        processor.tokenizer.padding_side = "left"


class NeverEnd(TrainerCallback):
    """Has no rollout end before its time: transformers takes the tokenizer's end token back as training begins."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        never_end(self._model)


def count_lengths(model: Any, processor: Any, pairs: Sequence[PreferencePair], config: TrainConfig, sizes: Sizes) -> Lengths:
    """Return the lengths of these pairs as the doctor counts those of data."""
    prompts = [build_messages(pair, order=Order.GIVEN, template=PLAIN) for pair in pairs[:8]]
    longest = int(encode(processor, prompts)["input_ids"].shape[1])
    picture = picture_shape(model.config, sizes.image_px**2)
    return Lengths(longest, sizes.answer, 1.0, 1.0, picture, sizes.image_px**2 / 1e6, "counted", is_counted=True)


def rl_config(sizes: Sizes) -> RLConfig:
    return RLConfig(
        model="m",
        **shared_keys(sizes),
        rollout_batch_size=sizes.batch,
        group_size=2,
        advantage="grpo",
        max_completion_length=sizes.answer,
        consistency={"weight": 0.0},  # type: ignore[arg-type]
    )


def time_rl(name: str, model: Any, processor: Any, sizes: Sizes, device: str, rate: float, out: Path) -> Row:
    """Return the time of an RL step of our trainer, or of TRL's GRPO ("trl"), of the same shapes, rows and reward."""
    config, timers = rl_config(sizes), Timers(device)
    pairs = noisy_pairs(4 * sizes.batch, sizes.image_px, sizes.answer)
    rows = rl_rows(pairs, PLAIN, both_orders=True)
    processor.tokenizer.padding_side = "left"
    never_end(model)
    reward = TimedReward(judgment_reward_of(config, PLAIN, model, out), timers.scoring)
    callbacks = [timers.step, NeverEnd(model)]
    with forward_kept(model):
        if name == "trl":
            make = partial(TimedGRPO, watch=timers.sampling)
            trainer = trl_grpo(rows, config, model, processor, reward, out, make=make, callbacks=callbacks)
        else:
            rollouts = TimedRollouts(timers.sampling)
            trainer = build_trainer(
                rows, config, model, processor, PLAIN, out, reward=reward, callbacks=callbacks, rollouts=rollouts
            )
        return train(trainer, timers, rate, config, count_lengths(model, processor, pairs, config, sizes))
