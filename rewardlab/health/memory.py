"""The memory that a training run needs on each card: one line for each thing that lies there, before anything is loaded."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rewardlab.config import MethodConfig, RLConfig, TrainConfig
from rewardlab.health.evaluation import EvaluationLoad, HeldOutData, evaluation_load
from rewardlab.health.lengths import Lengths, assume_lengths
from rewardlab.health.shapes import TEXT_TOKENS, PictureShape, Shapes, shapes_of
from rewardlab.health.units import weights_text
from rewardlab.models.families import part_pattern
from rewardlab.training.run.parallel import Launch

GIB = 2**30
LIVE_WEIGHTS, BUCKET, SUB_GROUP = 1e9, 5e8, 1e9  # DeepSpeed's defaults: stage3_max_live_parameters, reduce_bucket_size, ...
VLLM_ASLEEP = 2 * GIB  # its context, graphs and workspace, while its weights and cache are put away
NF4_BYTES = 0.516  # of a weight: four bits, and the scales of each 64 of them in eight (QLoRA's double quantisation)


class Phase(StrEnum):
    """When a line of memory is taken: all the time, or in one part of a step. No two parts are at the same time."""

    ALWAYS = "always"
    SAMPLING = "sampling"
    REWARDS = "rewards"
    TRAINING = "training"
    UPDATE = "update"
    EVALUATION = "evaluation"


@dataclass(frozen=True)
class MemoryLine:
    """``size`` bytes of each card for one thing, and how they are counted."""

    what: str
    size: float
    phase: Phase
    how: str


@dataclass(frozen=True)
class Setup:
    """A model under a config and a launch, on cards of ``card`` bytes (0: not known).

    ``learning`` counts the policy's weights that learn, ``critic`` those of a critic beside it. ``lengths`` are those of
    prompts, and of answers that are learnt; ``evaluation``: what is judged while training, if anything is.
    """

    model: Any
    shapes: Shapes
    config: TrainConfig
    launch: Launch
    card: float
    total: int
    learning: int
    critic: int
    lengths: Lengths
    evaluation: EvaluationLoad | None = None

    @property
    def prompt(self) -> int:
        """Return the tokens of the longest prompt, pictures included."""
        return self.lengths.prompt

    @property
    def picture(self) -> PictureShape:
        return self.lengths.picture

    @property
    def answer(self) -> int:
        """Return the most tokens of an answer: of a rollout in all its turns, or of one that is learnt."""
        turns = 3 if isinstance(self.config, RLConfig) and self.config.self_verify else 1
        return self.method.max_completion_length * turns if self.method else self.lengths.answer

    @property
    def mean_row(self) -> float:
        """Return the tokens of prompt and answer in the mean; of a rollout's answer the most."""
        return self.lengths.mean_prompt + (self.answer if self.method else self.lengths.mean_answer)

    @property
    def method(self) -> MethodConfig | None:
        return self.config if isinstance(self.config, MethodConfig) else None

    @property
    def wide(self) -> bool:
        """Whether weights and what flows between layers are float32, under autocast: without DeepSpeed and adapters."""
        return not self.launch.zero and self.config.lora is None

    @property
    def shards(self) -> int:
        """Return over how many processes weights are dealt out."""
        return self.launch.processes if self.launch.zero == 3 else 1

    @property
    def rollouts(self) -> int:
        """Return the rollouts of a rollout batch on each process; 0 without rollouts."""
        return self.method.rollout_batch_size // self.launch.processes if self.method else 0

    @property
    def passes(self) -> tuple[Phase, ...]:
        """Return when the policy's own weights read something: in training, where its own decoder samples, in evaluation."""
        samples = self.method is not None and self.method.engine is None
        evaluates = (Phase.EVALUATION,) if self.evaluation else ()
        return (Phase.TRAINING, *((Phase.SAMPLING,) if samples else ()), *evaluates)

    @property
    def positions(self) -> int:
        """Return the most tokens that the policy learns from at once: of a micro-batch, or of a part of one."""
        most = self.config.micro_batch_size * self.row
        return min(most, max(self.config.micro_batch_tokens or most, self.row))

    @property
    def row(self) -> int:
        """Return the tokens of the longest row: prompt and answer, or, where these are assumed, what ``max_tokens`` lets in."""
        limit, longest = self.config.max_tokens, self.prompt + self.answer
        return min(limit or longest, longest) if self.lengths.is_counted else limit or longest


def counts(model: Any, config: TrainConfig) -> tuple[int, int]:
    """Return (number of weights, number of weights that learn) of a model under a config."""
    total = sum(weight.numel() for weight in model.parameters())
    patterns = [part_pattern(part) for part in config.freeze]

    def is_frozen(name: str) -> bool:
        return any(pattern.search(name) for pattern in patterns)

    if config.lora is None:
        return total, sum(weight.numel() for name, weight in model.named_parameters() if not is_frozen(name))
    linear = [(name, module) for name, module in model.named_modules() if type(module).__name__ == "Linear"]
    adapted = sum(
        config.lora.r * (module.in_features + module.out_features)
        for name, module in linear
        if "lm_head" not in name and not is_frozen(f"{name}.")
    )
    return total + adapted, adapted


def setup_of(
    model: Any,
    config: TrainConfig,
    launch: Launch,
    *,
    card: float = 0.0,
    prompt_tokens: int | None = None,
    lengths: Lengths | None = None,
    held_out: HeldOutData | None = None,
) -> Setup:
    """Return the setup of ``model`` (which may be on the meta device). ``lengths`` are those of the data, ``held_out`` what is
    known of the pairs that are evaluated; by default both are assumed, as :func:`assume_lengths` says."""
    shapes, (total, learning) = shapes_of(model), counts(model, config)
    method = config if isinstance(config, MethodConfig) else None
    lengths = lengths or assume_lengths(model.config, config, prompt_tokens)
    return Setup(
        model=model,
        shapes=shapes,
        config=config,
        launch=launch,
        card=card,
        total=total,
        learning=learning,
        critic=shapes.total - shapes.head if method and method.estimator.critic else 0,
        lengths=lengths,
        evaluation=evaluation_load(config, launch, lengths, held_out, has_grids=shapes.has_grids),
    )


def peak(lines: Sequence[MemoryLine]) -> tuple[Phase, float]:
    """Return the part of a step that needs most, and the bytes it needs with what is there all the time."""
    sums = {phase: sum(line.size for line in lines if line.phase is phase) for phase in Phase}
    highest = max((phase for phase in Phase if phase is not Phase.ALWAYS), key=lambda phase: sums[phase])
    return highest, sums[Phase.ALWAYS] + sums[highest]


def trainer_lines(setup: Setup) -> list[MemoryLine]:
    """Return what the trainer itself lays on each card.

    Without ZeRO, weights that learn, gradients and Adam's two moments are float32 (16 bytes a weight); gradients are freed
    before rollouts are sampled, but for the buckets of several processes. DeepSpeed keeps weights and gradients in bfloat16 and
    shards float32 weights and moments: 2 + 14 / N bytes at stage 2, 16 / N at stage 3.
    """
    parts = (_weights, _optimizer, _gradients, _activations, _pixels, _head, _sampling, _evaluation, _zero_buffers)
    return [line for part in parts for line in part(setup) if line.size]


def _weights(setup: Setup) -> Iterator[MemoryLine]:
    each, kind = (4.0, "float32") if setup.wide else (2.0, "bfloat16")
    dealt = f" / {setup.shards} processes" if setup.shards > 1 else ""
    frozen, trained = setup.total - setup.learning, setup.learning
    if setup.config.lora:
        yield from _below_adapters(setup, frozen)
        each, kind, frozen = (2.0, "bfloat16", 0) if setup.launch.zero else (4.0, "float32", 0)
    size = each * (frozen + trained) / setup.shards
    yield MemoryLine("weights", size, Phase.ALWAYS, f"{_number(frozen + trained)} x {each:g} B ({kind}){dealt}")
    if setup.critic:
        size, how = each * setup.critic / setup.shards, f"{_number(setup.critic)} x {each:g} B ({kind}){dealt}"
        yield MemoryLine("critic's weights", size, Phase.ALWAYS, how)
    if setup.method and setup.method.kl_coef and not setup.config.lora:
        size, how = (
            each * setup.total / setup.shards,
            f"for the KL term, {_number(setup.total)} x {each:g} B ({kind}){dealt}",
        )
        yield MemoryLine("reference model", size, Phase.ALWAYS, how)


def _below_adapters(setup: Setup, frozen: int) -> Iterator[MemoryLine]:
    assert setup.config.lora
    if not setup.config.lora.quantize:
        size = 2.0 * frozen / setup.shards
        yield MemoryLine("weights below adapters", size, Phase.ALWAYS, f"{_number(frozen)} x 2 B (bfloat16)")
        return
    rest = frozen - setup.shapes.linear
    size, how = (
        NF4_BYTES * setup.shapes.linear + 2.0 * rest,
        f"{_number(setup.shapes.linear)} x {NF4_BYTES} B (nf4)",
    )
    yield MemoryLine("weights below adapters", size, Phase.ALWAYS, f"{how}, {_number(rest)} x 2 B (embeddings, norms, head)")
    for phase in setup.passes:
        yield MemoryLine("a layer unpacked", 2.0 * setup.shapes.widest, phase, "the widest one, from nf4 to bfloat16")


def _optimizer(setup: Setup) -> Iterator[MemoryLine]:
    learning = setup.learning + setup.critic
    if not setup.launch.zero:
        yield MemoryLine("optimizer", 8.0 * learning, Phase.ALWAYS, f"Adam's two moments, {_number(learning)} x 8 B (float32)")
    elif not setup.launch.offload:
        how = f"{_number(learning)} x 12 B (float32 weights and two moments) / {setup.launch.processes} processes"
        yield MemoryLine("optimizer", 12.0 * learning / setup.launch.processes, Phase.ALWAYS, how)


def _gradients(setup: Setup) -> Iterator[MemoryLine]:
    learning, launch = setup.learning + setup.critic, setup.launch
    if launch.zero:
        if not launch.offload:
            how = f"{_number(learning)} x 2 B (bfloat16) / {launch.processes} processes"
            yield MemoryLine("gradients", 2.0 * learning / launch.processes, Phase.ALWAYS, how)
        return
    how = f"{_number(learning)} x 4 B (float32)"
    for phase in (Phase.TRAINING, Phase.UPDATE):
        yield MemoryLine("gradients", 4.0 * learning, phase, f"{how}, freed after each step")
    if launch.processes > 1:
        yield MemoryLine("gradient buckets", 4.0 * learning, Phase.ALWAYS, f"of several processes, {how}")


def _activations(setup: Setup) -> Iterator[MemoryLine]:
    config, shapes, tokens = setup.config, setup.shapes, setup.positions
    models = 2 if setup.critic else 1
    per_token = shapes.language.training(setup.wide, config.gradient_checkpointing)
    if config.lora and not setup.launch.zero:  # DeepSpeed has adapters in bfloat16
        per_token += shapes.language.adapted()
    way = "one layer and all layers' inputs" if config.gradient_checkpointing else "of all layers"
    how = f"{f'{models} models x ' if models > 1 else ''}{tokens:,} tokens x {per_token / 2**20:.2f} MiB, {way}"
    yield MemoryLine("activations", models * tokens * per_token, Phase.TRAINING, how)
    if setup.wide:
        copies = 2.0 * (setup.learning + setup.critic - (1 + (setup.critic > 0)) * shapes.embedding)
        for phase in setup.passes:
            how = "of weights that learn, in bfloat16, kept by autocast during a pass"
            yield MemoryLine("copies", max(0.0, copies), phase, how)
    if any("vision" in part or "visual" in part for part in config.freeze):
        return
    patches = models * tokens / setup.row * _pictures(setup) * setup.picture.patches
    per_patch = (
        shapes.vision.outputs(setup.wide) if config.gradient_checkpointing else shapes.vision.training(setup.wide, False)
    )
    yield MemoryLine("vision activations", patches * per_patch, Phase.TRAINING, f"{patches:,.0f} patches of pictures")


def _pictures(setup: Setup) -> float:
    """Return how many pictures the longest row has: where lengths are assumed, what is neither text nor answer is pictures."""
    if setup.lengths.is_counted:
        return setup.lengths.most_pictures
    room = setup.row - setup.answer - TEXT_TOKENS
    return max(1.0, room / setup.picture.tokens) if setup.config.max_tokens and setup.picture.tokens else 1.0


def _pixels(setup: Setup) -> Iterator[MemoryLine]:
    one, million = setup.picture.num_bytes, setup.picture.pixels / 1e6
    if not setup.method:
        yield from _step_pixels(setup)
        return
    pictures = setup.rollouts * setup.lengths.pictures
    how = f"of {setup.rollouts} rollouts: {pictures:.0f} pictures of {million:.2f} MP, float32"
    yield MemoryLine("pixels", 2.0 * pictures * one, Phase.TRAINING, f"{how}, twice while they are dealt out")
    if setup.evaluation:
        yield MemoryLine("pixels of rollouts", pictures * one, Phase.EVALUATION, f"{how}, which stay")
    pictures = _rows_drawn(setup) * setup.lengths.pictures
    if setup.method.engine is None:
        yield MemoryLine("pixels", pictures * one, Phase.SAMPLING, f"of {pictures:.0f} pictures of {million:.2f} MP, float32")


def _step_pixels(setup: Setup) -> Iterator[MemoryLine]:
    """Yield the pixels of supervised samples. transformers' Trainer takes all micro-batches of an optimizer step before it
    reads the first (``get_batch_samples``), and accelerate has moved each to the card by then."""
    config, one, million = setup.config, setup.picture.num_bytes / 2, setup.picture.pixels / 1e6
    pictures = config.batch_size / setup.launch.processes * setup.lengths.pictures
    how = f"of an optimizer step's {pictures:,.0f} pictures of {million:.2f} MP, bfloat16: its micro-batches are all there"
    yield MemoryLine("pixels", pictures * one, Phase.ALWAYS, how)
    if config.batch_size > config.micro_batch_size * setup.launch.processes:
        rows = config.micro_batch_size * _pictures(setup)
        how = f"of {rows:.0f} pictures, as the micro-batch is put together by length"
        yield MemoryLine("a micro-batch's pixels", rows * one, Phase.TRAINING, how)


def _head(setup: Setup) -> Iterator[MemoryLine]:
    """The logits are computed in tiles and never there at once; the head's gradient is added up in float32."""
    if setup.config.lora is None:
        size = 4.0 * setup.shapes.language.hidden * setup.shapes.vocabulary
        yield MemoryLine("head's gradient", size, Phase.TRAINING, "added up in float32 while logits are computed in tiles")


def _rows_drawn(setup: Setup) -> int:
    assert setup.method
    return min(setup.method.sampling_batch_size or setup.rollouts, setup.rollouts)


def _sampling(setup: Setup) -> Iterator[MemoryLine]:
    method, shapes = setup.method, setup.shapes
    if method is None:
        return
    if method.engine is None:
        rows = _rows_drawn(setup)
        prompts = math.ceil(rows / method.group_size)  # of a group, the prompt is read once
        kept = prompts if shapes.shares_prompts else rows
        cache = (kept * setup.prompt + rows * setup.answer) * kv_bytes(shapes)
        how = f"{kept} prompts x {setup.prompt:,} tokens and {rows} answers x {setup.answer:,}, bfloat16"
        yield MemoryLine("keys and values", cache, Phase.SAMPLING, how)
        read = prompts * setup.prompt * shapes.language.reading(setup.wide)
        yield MemoryLine("prompts read", read, Phase.SAMPLING, f"one layer of {prompts} prompts of {setup.prompt:,} tokens")
        yield MemoryLine("next tokens", 16.0 * rows * shapes.vocabulary, Phase.SAMPLING, f"{rows} rows of logits and scores")
        yield from _whole_weights(setup, Phase.SAMPLING)
    elif method.engine.kind == "colocate":
        share = method.engine.gpu_memory_utilization * setup.card
        how = f"gpu_memory_utilization {method.engine.gpu_memory_utilization:g} of the card, its weights and cache within"
        yield MemoryLine("vLLM", share, Phase.SAMPLING, how)
        evaluates = (Phase.EVALUATION,) if setup.evaluation else ()
        for phase in (Phase.REWARDS, Phase.TRAINING, Phase.UPDATE, *evaluates):
            yield MemoryLine("vLLM asleep", VLLM_ASLEEP, phase, "what it keeps of the card")


def _whole_weights(setup: Setup, phase: Phase) -> Iterator[MemoryLine]:
    if setup.launch.zero == 3:
        gathered = 2.0 * (setup.total + setup.critic)
        yield MemoryLine("weights gathered", gathered, phase, "whole on every card to sample, bfloat16")


def _evaluation(setup: Setup) -> Iterator[MemoryLine]:
    """Yield what judging held-out pairs takes: the trainer's own weights answer, ``rows`` prompts side by side."""
    if (load := setup.evaluation) is None:
        return
    shapes, phase, lengths = setup.shapes, Phase.EVALUATION, load.lengths
    length = lengths.prompt + load.answer
    if not load.is_scalar:
        logits = 16.0 * load.rows * shapes.vocabulary
        yield MemoryLine("next tokens", logits, phase, f"{load.rows} rows of logits and scores")
        cache = load.rows * length * kv_bytes(shapes)
        yield MemoryLine("keys and values", cache, phase, f"{load.rows} rows x {length:,} tokens, bfloat16")
    read, how = load.positions
    yield MemoryLine("prompts read", read * shapes.language.reading(setup.wide), phase, f"one layer of {how}")
    pictures = load.rows * lengths.pictures
    how = f"of {pictures:.0f} pictures of {lengths.picture.pixels / 1e6:.2f} MP, float32"
    yield MemoryLine("pixels", pictures * lengths.picture.num_bytes, phase, how)
    yield from _whole_weights(setup, phase)


def kv_bytes(shapes: Shapes) -> float:
    """Return the bytes of one token's keys and values in all layers, in bfloat16."""
    return shapes.language.number * shapes.kv * 2 * 2.0


def _zero_buffers(setup: Setup) -> Iterator[MemoryLine]:
    launch, learning = setup.launch, setup.learning + setup.critic
    if not launch.zero:
        return
    buckets = 2.0 * min(BUCKET, learning)
    if launch.zero == 3:
        live = 2.0 * min(LIVE_WEIGHTS, setup.total + setup.critic) + buckets
        yield MemoryLine("live weights", live, Phase.TRAINING, "gathered for the layers at work, and the gradients' bucket")
    else:
        yield MemoryLine("buckets", 2 * buckets, Phase.TRAINING, "in which gradients and weights travel")
    part = learning / launch.processes if not launch.offload else 0.0
    step = 4.0 * (min(SUB_GROUP, part) if launch.zero == 3 else part)
    yield MemoryLine("step's buffers", step, Phase.UPDATE, "gradients of a part of the weights, in float32")


def _number(number: float) -> str:
    return f"{weights_text(number)} weights"
