"""The memory that a training run needs on each card: a line for each thing that takes some, estimated from shapes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import torch

from rewardlab.config import DPOConfig, MethodConfig, PolicyConfig, RLConfig, RMConfig, SFTConfig, TrainConfig
from rewardlab.health.dataset import HeldOutData, Lengths, assume_lengths
from rewardlab.health.shapes import TEXT_TOKENS, PictureShape, Shapes, shapes_of
from rewardlab.judging.spec import JudgeSpec
from rewardlab.models.architectures import build_on_meta, config_of
from rewardlab.models.families import part_pattern
from rewardlab.models.loading import adapted_weights, is_expert
from rewardlab.prompts import load_template
from rewardlab.samplers.base import HF, VLLM
from rewardlab.training.run.evaluation import sequences_at_once
from rewardlab.training.run.held_out import answer_tokens
from rewardlab.training.run.parallel import Launch

GIB = 2**30
LIVE_WEIGHTS, BUCKET, SUB_GROUP = 1e9, 5e8, 1e9  # DeepSpeed's defaults: stage3_max_live_parameters, reduce_bucket_size, ...
VLLM_ASLEEP = 2 * GIB  # its context, graphs and workspace, while its weights and cache are put away
NF4_BYTES = 0.516  # of a weight: four bits, and the scales of each 64 of them in eight (QLoRA's double quantisation)
SCORING_BYTES = 2.0  # a weight of a reward model or process reward model, which cards hold in bfloat16
VLLM_SHARE = 0.9  # of a card, vLLM's default


class Phase(StrEnum):
    """When a line of memory is taken: all the time, or in one part of a step. Parts never overlap."""

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
class EvaluationLoad:
    """One evaluation on one process: ``rows`` prompts at once, both orders of a pair, with answers of at most ``answer`` tokens
    (0: probabilities or scores are read). ``pairs`` are those of all processes.

    ``shares``: the common beginning of both orders, pictures first, is read once. ``is_scalar``: a head scores each response,
    without cached keys and values and without logits.
    """

    lengths: Lengths
    pairs: int
    rows: int
    answer: int
    shares: bool
    is_scalar: bool

    @property
    def positions(self) -> tuple[int, str]:
        """Return the most tokens that are read at once, and of what, in words."""
        prompt, half = self.lengths.prompt, self.rows // 2
        if not self.shares:
            return self.rows * prompt, f"{self.rows} prompts of {prompt:,} tokens"
        rest = prompt - round(self.lengths.pictures * self.lengths.picture.tokens)
        if half * prompt >= self.rows * rest:
            return half * prompt, f"{half} prompts of {prompt:,} tokens, read once for both orders"
        return self.rows * rest, f"{self.rows} prompts' {rest:,} tokens after their pictures, which both orders share"


def evaluation_load(
    config: TrainConfig, lengths: Lengths, held_out: HeldOutData | None, *, has_grids: bool
) -> EvaluationLoad | None:
    """Return the load of an evaluation, None if nothing is evaluated; by default of ``num_pairs`` pairs of the given lengths.
    ``has_grids``: the model's family shares the beginning of prompts."""
    if not isinstance(config, SFTConfig | RLConfig) or not config.evaluation.is_on:
        return None
    is_scalar = isinstance(config, RMConfig)
    lengths, pairs = (held_out.lengths, held_out.pairs) if held_out else (lengths, config.evaluation.num_pairs)
    writes = not is_scalar and load_template(config.template).verdict_format != "bare"
    rows = 2 * min(max(1, sequences_at_once(config) // 2), pairs)
    return EvaluationLoad(lengths, pairs, rows, answer_tokens(config) if writes else 0, has_grids and not is_scalar, is_scalar)


@dataclass(frozen=True)
class Setup:
    """A model under a config and a launch, on cards of ``card`` bytes (0: unknown).

    ``learning`` counts the policy's trained weights, ``critic`` the weights of a critic. ``lengths``: those of prompts and of
    supervised answers; ``evaluation``: what is judged while training, if anything.
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
        """Return the most tokens of an answer: of a rollout in all its turns, or of a supervised one."""
        if isinstance(self.config, RLConfig):
            template = load_template(self.config.template)
            turns = 3 if self.config.self_verify else template.num_turns
            looks = self.looks * self.picture.tokens
            return self.config.max_completion_length * turns + looks + (self.config.forced_answer_length or 0)
        return self.method.max_completion_length if self.method else self.lengths.answer

    @property
    def looks(self) -> int:
        """Return the most parts of images that a judgment is shown."""
        template = load_template(self.config.template)
        return template.num_turns - 1 if template.looks else 0

    @property
    def method(self) -> MethodConfig | None:
        return self.config if isinstance(self.config, MethodConfig) else None

    @property
    def wide(self) -> bool:
        """Return whether weights and activations are float32, under autocast: without DeepSpeed and adapters."""
        return not self.launch.zero and self.config.lora is None

    @property
    def shards(self) -> int:
        """Return the number of processes that shard the weights."""
        return self.launch.processes if self.launch.zero == 3 else 1

    @property
    def rollouts(self) -> int:
        """Return the rollouts of a rollout batch on each process; 0 without rollouts."""
        return self.method.rollout_batch_size // self.launch.processes if self.method else 0

    @property
    def passes(self) -> tuple[Phase, ...]:
        """Return the phases in which the policy's own weights compute."""
        samples = self.method is not None and self.method.engine is None
        evaluates = (Phase.EVALUATION,) if self.evaluation else ()
        return (Phase.TRAINING, *((Phase.SAMPLING,) if samples else ()), *evaluates)

    @property
    def positions(self) -> int:
        """Return the most tokens in one training pass: a micro-batch, or a part of one."""
        most = self.config.micro_batch_size * self.row
        return min(most, max(self.config.micro_batch_tokens or most, self.row))

    @property
    def is_one_pass(self) -> bool:
        """Return whether a step is one forward and one backward pass: no gradients are there while activations are made."""
        batch = self.config.micro_batch_size * self.launch.processes
        return self.config.batch_size == batch and self.positions == self.config.micro_batch_size * self.row

    @property
    def row(self) -> int:
        """Return the tokens of the longest row: prompt and answer, or ``max_tokens`` if these are assumed."""
        limit, longest = self.config.max_tokens, self.prompt + self.answer
        return min(limit or longest, longest) if self.lengths.is_counted else limit or longest


def counts(model: Any, config: TrainConfig) -> tuple[int, int]:
    """Return (number of weights, number of trained weights) of a model under a config."""
    total = sum(weight.numel() for weight in model.parameters())
    patterns = [part_pattern(part) for part in config.freeze]

    def is_frozen(name: str) -> bool:
        return any(pattern.search(name) for pattern in patterns)

    if config.lora is None:
        return total, sum(weight.numel() for name, weight in model.named_parameters() if not is_frozen(name))
    shapes = [weight.shape for _, weight in adapted_weights(config.lora, model, config.freeze)]
    adapted = sum(config.lora.r * math.prod(shape[:-2]) * sum(shape[-2:]) for shape in shapes)  # of each expert
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
    """Return the setup of ``model`` (which may be on the meta device). ``lengths`` and ``held_out`` come from data; by default
    they are assumed (:func:`assume_lengths`)."""
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
        evaluation=evaluation_load(config, lengths, held_out, has_grids=shapes.has_grids),
    )


def peak(lines: Sequence[MemoryLine]) -> tuple[Phase, float]:
    """Return the part of a step that needs most, and its bytes with those that are always taken."""
    sums = {phase: sum(line.size for line in lines if line.phase is phase) for phase in Phase}
    highest = max((phase for phase in Phase if phase is not Phase.ALWAYS), key=lambda phase: sums[phase])
    return highest, sums[Phase.ALWAYS] + sums[highest]


def memory_lines(setup: Setup) -> list[MemoryLine]:
    """Return all memory of a run on each card."""
    return [*trainer_lines(setup), *colocated_lines(setup)]


def trainer_lines(setup: Setup) -> list[MemoryLine]:
    """Return the memory of the trainer itself on each card.

    Without ZeRO, trained weights, gradients and Adam's two moments are float32 (16 bytes a weight); gradients are freed
    before rollouts are sampled, but for the buckets of several processes. DeepSpeed keeps weights and gradients in bfloat16 and
    shards float32 weights and moments: 2 + 14 / N bytes at stage 2, 16 / N at stage 3.
    """
    parts = (_weights, _optimizer, _gradients, _activations, _pixels, _head, _sampling, _evaluation, _zero_buffers)
    return [line for part in parts for line in part(setup) if line.size]


def _weight_line(
    what: str, number: float, each: float, kind: str, phase: Phase = Phase.ALWAYS, *, processes: int = 1, why: str = ""
) -> MemoryLine:
    """Return the line of so many weights of ``each`` bytes, sharded over ``processes``."""
    sharded = f" / {processes} processes" if processes > 1 else ""
    return MemoryLine(what, each * number / processes, phase, f"{why}{_number(number)} x {each:g} B ({kind}){sharded}")


def _weights(setup: Setup) -> Iterator[MemoryLine]:
    each, kind = (4.0, "float32") if setup.wide else (2.0, "bfloat16")
    frozen, trained = setup.total - setup.learning, setup.learning
    if setup.config.lora:
        yield from _below_adapters(setup, frozen)
        each, kind, frozen = (2.0, "bfloat16", 0) if setup.launch.zero else (4.0, "float32", 0)
    yield _weight_line("weights", frozen + trained, each, kind, processes=setup.shards)
    if setup.critic:
        yield _weight_line("critic's weights", setup.critic, each, kind, processes=setup.shards)
    has_kl = setup.method is not None and setup.method.kl_coef > 0
    compares = isinstance(setup.config, DPOConfig) and setup.config.has_reference
    if (has_kl or compares) and not setup.config.lora:
        why = "for the KL term, " if has_kl else "for the log-ratios, "
        yield _weight_line("reference model", setup.total, each, kind, processes=setup.shards, why=why)


def _below_adapters(setup: Setup, frozen: int) -> Iterator[MemoryLine]:
    assert setup.config.lora
    if not setup.config.lora.quantize:
        yield _weight_line("weights below adapters", frozen, 2.0, "bfloat16", processes=setup.shards)
        return
    linear, rest = setup.shapes.linear, frozen - setup.shapes.linear
    how = f"{_number(linear)} x {NF4_BYTES} B (nf4), {_number(rest)} x 2 B (embeddings, norms, head)"
    yield MemoryLine("weights below adapters", NF4_BYTES * linear + 2.0 * rest, Phase.ALWAYS, how)
    for phase in setup.passes:
        yield MemoryLine("a layer unpacked", 2.0 * setup.shapes.widest, phase, "the widest one, from nf4 to bfloat16")


def _optimizer(setup: Setup) -> Iterator[MemoryLine]:
    trained, processes = setup.learning + setup.critic, setup.launch.processes
    if not setup.launch.zero:
        yield _weight_line("optimizer", trained, 8.0, "float32", why="Adam's two moments, ")
    elif not setup.launch.offload:
        yield _weight_line("optimizer", trained, 12.0, "float32 weights and two moments", processes=processes)


def _gradients(setup: Setup) -> Iterator[MemoryLine]:
    trained, launch = setup.learning + setup.critic, setup.launch
    if not launch.zero:
        training = _weight_line("gradients", trained, 4.0, "float32", Phase.TRAINING, why="freed after each step, ")
        if setup.is_one_pass:
            made = [line for line in _activations(setup) if line.phase is Phase.TRAINING]
            freed = sum(line.size for line in made if line.what in ("activations", "copies"))
            how = f"{training.how}, less what one pass frees while they are made"
            training = replace(training, size=max(0.0, training.size - freed), how=how)
        yield training
        yield _weight_line("gradients", trained, 4.0, "float32", Phase.UPDATE, why="freed after each step, ")
        if launch.processes > 1:
            yield _weight_line("gradient buckets", trained, 4.0, "float32", why="of several processes, ")
    elif not launch.offload:
        yield _weight_line("gradients", trained, 2.0, "bfloat16", processes=launch.processes)


def _expert_changes(setup: Setup) -> Iterator[MemoryLine]:
    """Yield the line of what peft computes of the experts' adapters: the experts with their change, and the gradient of that,
    in 16 bits, in each layer whole; without checkpointing the changed experts of all layers stay."""
    if setup.config.lora is None:
        return
    adapted = adapted_weights(setup.config.lora, setup.model, setup.config.freeze)
    experts = sum(weight.numel() for name, weight in adapted if is_expert(name, weight))
    if experts == 0:
        return
    layers = setup.shapes.language.number
    size = 2.0 * (experts / layers + (experts / layers if setup.config.gradient_checkpointing else experts))
    how = f"experts with their adapters' change, and its gradient, {experts / layers / 1e9:.2f} B weights a layer x 2 B each"
    yield MemoryLine("changes of experts", size, Phase.TRAINING, how)


def _activations(setup: Setup) -> Iterator[MemoryLine]:
    config, shapes, tokens = setup.config, setup.shapes, setup.positions
    models = 2 if setup.critic else 1
    per_token = shapes.language.training(setup.wide, config.gradient_checkpointing)
    if config.lora and not setup.launch.zero:  # DeepSpeed has adapters in bfloat16
        per_token += shapes.language.adapted()
    way = "one layer and all layers' inputs" if config.gradient_checkpointing else "of all layers"
    how = f"{f'{models} models x ' if models > 1 else ''}{tokens:,} tokens x {per_token / 2**20:.2f} MiB, {way}"
    yield MemoryLine("activations", models * tokens * per_token, Phase.TRAINING, how)
    yield from _expert_changes(setup)
    if setup.wide:
        copies = 2.0 * (setup.learning + setup.critic - (1 + (setup.critic > 0)) * shapes.embedding)
        for phase in setup.passes:
            how = "of trained weights, in bfloat16, kept by autocast during a pass"
            yield MemoryLine("copies", max(0.0, copies), phase, how)
    if any("vision" in part or "visual" in part for part in config.freeze):
        return
    patches = models * tokens / setup.row * _pictures(setup) * setup.picture.patches
    per_patch = (
        shapes.vision.outputs(setup.wide) if config.gradient_checkpointing else shapes.vision.training(setup.wide, False)
    )
    yield MemoryLine("vision activations", patches * per_patch, Phase.TRAINING, f"{patches:,.0f} patches of pictures")


def _pictures(setup: Setup) -> float:
    """Return the pictures of the longest row; if lengths are assumed, all of it but text and answer is pictures."""
    if setup.lengths.is_counted:
        return setup.lengths.most_pictures
    room = setup.row - setup.answer - TEXT_TOKENS
    return max(1.0, room / setup.picture.tokens) if setup.config.max_tokens and setup.picture.tokens else 1.0


def _pixels(setup: Setup) -> Iterator[MemoryLine]:
    one, million = setup.picture.num_bytes, setup.picture.pixels / 1e6
    if not setup.method:
        yield from _step_pixels(setup)
        return
    pictures = setup.rollouts * (setup.lengths.pictures + setup.looks)
    how = f"of {setup.rollouts} rollouts: {pictures:.0f} pictures of {million:.2f} MP, float32"
    yield MemoryLine("pixels", 2.0 * pictures * one, Phase.TRAINING, f"{how}, twice while they are split")
    if setup.evaluation:
        yield MemoryLine("pixels of rollouts", pictures * one, Phase.EVALUATION, f"{how}, kept")
    pictures = _rows_sampled(setup) * (setup.lengths.pictures + setup.looks)
    if setup.method.engine is None:
        yield MemoryLine("pixels", pictures * one, Phase.SAMPLING, f"of {pictures:.0f} pictures of {million:.2f} MP, float32")


def _step_pixels(setup: Setup) -> Iterator[MemoryLine]:
    """Yield the pixels of supervised samples. transformers' Trainer loads all micro-batches of an optimizer step before it
    computes the first (``get_batch_samples``), and accelerate moves each to the card."""
    config, one, million = setup.config, setup.picture.num_bytes / 2, setup.picture.pixels / 1e6
    pictures = config.batch_size / setup.launch.processes * setup.lengths.pictures
    how = f"of an optimizer step's {pictures:,.0f} pictures of {million:.2f} MP, bfloat16: all its micro-batches are loaded"
    yield MemoryLine("pixels", pictures * one, Phase.ALWAYS, how)
    if config.batch_size > config.micro_batch_size * setup.launch.processes:
        rows = config.micro_batch_size * _pictures(setup)
        how = f"of {rows:.0f} pictures, while the micro-batch is collated by length"
        yield MemoryLine("a micro-batch's pixels", rows * one, Phase.TRAINING, how)


def _head(setup: Setup) -> Iterator[MemoryLine]:
    """Yield the head's gradient, summed in float32. Logits are computed in tiles, never all at once."""
    if setup.config.lora is None:
        size = 4.0 * setup.shapes.language.hidden * setup.shapes.vocabulary
        yield MemoryLine("head's gradient", size, Phase.TRAINING, "summed in float32 while logits are computed in tiles")


def _rows_sampled(setup: Setup) -> int:
    assert setup.method
    return min(setup.method.sampling_batch_size or setup.rollouts, setup.rollouts)


def _sampling(setup: Setup) -> Iterator[MemoryLine]:
    method, shapes = setup.method, setup.shapes
    if method is None:
        return
    if method.engine is None:
        rows = _rows_sampled(setup)
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
            yield MemoryLine("vLLM asleep", VLLM_ASLEEP, phase, "what it keeps while asleep")


def _whole_weights(setup: Setup, phase: Phase) -> Iterator[MemoryLine]:
    if setup.launch.zero == 3:
        gathered = 2.0 * (setup.total + setup.critic)
        yield MemoryLine("weights gathered", gathered, phase, "whole on every card to sample, bfloat16")


def _evaluation(setup: Setup) -> Iterator[MemoryLine]:
    """Yield the memory of judging held-out pairs with the trainer's own weights."""
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
        yield MemoryLine("live weights", live, Phase.TRAINING, "gathered for the current layers, and the gradients' bucket")
    else:
        yield MemoryLine("buckets", 2 * buckets, Phase.TRAINING, "for sending gradients and weights")
    part = learning / launch.processes if not launch.offload else 0.0
    step = 4.0 * (min(SUB_GROUP, part) if launch.zero == 3 else part)
    yield MemoryLine("step's buffers", step, Phase.UPDATE, "gradients of a part of the weights, in float32")


def weights_text(number: float) -> str:
    """Return a number of weights: "8.29 B", "74.4 M", "74.4 k"."""
    if number >= 1e8:
        return f"{number / 1e9:.2f} B"
    return f"{number / 1e6:.3g} M" if number >= 1e5 else f"{number / 1e3:.3g} k"


def _number(number: float) -> str:
    return f"{weights_text(number)} weights"


# Models beside the trainer: the judge of a policy, a reward model, a process reward model.


@dataclass(frozen=True)
class ColocatedModel:
    """A model beside the trainer that reads rollouts: its shapes, bytes per weight, and its name in a table."""

    shapes: Shapes
    weight_bytes: float
    how: str


def colocated_model(path: str, setup: Setup, *, weight_bytes: float | None = None) -> ColocatedModel:
    """Return the model at ``path``; one that does not exist yet is assumed to be as large as the policy, in bfloat16.
    ``weight_bytes``: bytes per weight once loaded (default: those of its checkpoint)."""
    if (model := build_on_meta(path)) is None:
        return ColocatedModel(setup.shapes, weight_bytes or 2.0, "not there yet: as large as the policy")
    dtype = getattr(config_of(path), "dtype", None)
    stored = float(dtype.itemsize) if isinstance(dtype, torch.dtype) else 2.0
    return ColocatedModel(shapes_of(model), weight_bytes or stored, path)


def colocated_lines(setup: Setup) -> list[MemoryLine]:
    """Return the memory of judges and reward models on each card."""
    config = setup.config
    if isinstance(config, RLConfig) and config.process_reward:
        reader = colocated_model(config.process_reward, setup, weight_bytes=SCORING_BYTES)
        return _scorer(setup, reader, "process reward model", "rollouts", config.micro_batch_size)
    if not isinstance(config, PolicyConfig):
        return []
    judges = [JudgeSpec.parse(name, "rm") for name in config.loaded_judges]
    if not judges:
        return []
    spec = judges[0]
    if spec.engine == "rm":
        reader = colocated_model(spec.target, setup, weight_bytes=SCORING_BYTES)
        return _scorer(setup, reader, "reward model", "responses", min(config.judge_batch_size, 2 * setup.rollouts))
    local = _judges(setup, config, [colocated_model(judge.target, setup) for judge in judges if judge.engine == HF])
    if spec.engine == VLLM:
        how = f"vLLM takes {VLLM_SHARE:g} of a card by itself, in every process"
        return [MemoryLine("judge", VLLM_SHARE * setup.card, Phase.ALWAYS, how), *local]
    return local


def _whole(what: str, reader: ColocatedModel, *, head: bool) -> MemoryLine:
    number = reader.shapes.total - (0 if head else reader.shapes.head)
    how = f"{number / 1e9:.2f} B weights x {reader.weight_bytes:g} B, whole on every card; {reader.how}"
    return MemoryLine(what, number * reader.weight_bytes, Phase.ALWAYS, how)


def _judges(setup: Setup, config: PolicyConfig, readers: Sequence[ColocatedModel]) -> list[MemoryLine]:
    """Return the weights of judges, and the largest batch of judgments: they judge in turn."""
    if not readers:
        return []
    lines = [_judge(setup, config, reader) for reader in readers]
    largest = max(lines, key=lambda of_one: sum(line.size for line in of_one[1:]))
    return [lines[0][0], *largest[1:], *(replace(of_one[0], what="another judge's weights") for of_one in lines[1:])]


def _judge(setup: Setup, config: PolicyConfig, reader: ColocatedModel) -> list[MemoryLine]:
    """Return a judge's weights and one batch of judgments: a picture, two responses, and what the judge writes."""
    rows = min(config.judge_batch_size, 2 * config.judge_votes * setup.rollouts)
    prompt = setup.prompt + 2 * setup.answer
    length, wide = prompt + config.judge_max_tokens, reader.weight_bytes > 2
    cache = rows * length * kv_bytes(reader.shapes) * (2 if wide else 1)
    read = rows * prompt * reader.shapes.language.reading(wide)
    return [
        _whole("judge's weights", reader, head=True),
        MemoryLine("judge's keys and values", cache, Phase.REWARDS, f"judge_batch_size {rows} x {length:,} tokens"),
        MemoryLine("judge's prompts read", read, Phase.REWARDS, f"one layer of {rows} prompts of {prompt:,} tokens"),
    ]


def _scorer(setup: Setup, reader: ColocatedModel, what: str, texts: str, rows: int) -> list[MemoryLine]:
    length = setup.prompt + setup.answer
    read = rows * length * reader.shapes.language.reading(False)
    how = f"one layer of {rows} {texts} of {length:,} tokens"
    return [_whole(what, reader, head=False), MemoryLine(f"its {texts} read", read, Phase.REWARDS, how)]
