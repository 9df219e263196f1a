"""A planned run against its machines: whether it fits the cards, the disk and the host.

Each function returns the finding of one question, with what each number counts as its details. Without a machine to compare
with, the outcome is "look".
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import torch

from rewardlab.config import MethodConfig, PolicyConfig, RLConfig, SFTConfig, TrainConfig
from rewardlab.health.dataset import DataFacts, HeldOutData
from rewardlab.health.memory import (
    GIB,
    MemoryLine,
    Phase,
    Setup,
    colocated_model,
    memory_lines,
    peak,
    setup_of,
    weights_text,
)
from rewardlab.judging.spec import JudgeSpec
from rewardlab.models.architectures import ARCHITECTURES, build_on_meta
from rewardlab.models.loading import adapter_coverage
from rewardlab.processes import memory_here
from rewardlab.samplers.base import VLLM
from rewardlab.training.run.evaluation import sequences_at_once
from rewardlab.training.run.parallel import Launch

CARD_FRACTION = 0.95  # of a card may be planned: CUDA, NCCL and fragmentation take the rest
CHECKER_GIB = 2.0  # keys and values of a served judge of consistency, whose prompts are short
PROCESSES_PER_MACHINE = 8  # at most: they share a machine's memory
PROCESS_BASE, WORKER_BASE = 3 * GIB, GIB // 2  # Python, torch and CUDA in a process; in a data worker
ROW_GROUP = 64 << 20  # bytes of Parquet, read whole for any pair in it
PHASES = {
    Phase.ALWAYS: "all the time",
    Phase.SAMPLING: "while sampling",
    Phase.REWARDS: "while rewards are computed",
    Phase.TRAINING: "while a micro-batch is read",
    Phase.UPDATE: "while the optimizer steps",
    Phase.EVALUATION: "while held-out pairs are judged",
}
Outcome = Literal["ok", "look", "failed"]


@dataclass(frozen=True)
class Finding:
    """The result of one check. ``look`` is no failure: the user decides. ``details`` are lines below the message."""

    name: str
    outcome: Outcome
    message: str
    details: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """The machines of a planned run: GiB of each card (default: this machine's), and of each machine's own memory (default:
    this machine's if it has cards). ``out``: the run's folder, whose disk is checked.
    """

    launch: Launch = field(default_factory=Launch)
    memory_gib: float | None = None
    out: Path | None = None
    host_gib: float | None = None

    @property
    def card_gib(self) -> float | None:
        """Return the GiB of a card, None if unknown."""
        if self.memory_gib is None and torch.cuda.is_available():
            return float(torch.cuda.get_device_properties(0).total_memory / GIB)
        return self.memory_gib

    @property
    def machine_gib(self) -> float | None:
        """Return the GiB of a machine's own memory, None if unknown."""
        if self.host_gib is None and torch.cuda.is_available():
            return memory_here() / GIB
        return self.host_gib


def plan_setup(config: TrainConfig, plan: Plan, facts: DataFacts | None = None) -> Setup | None:
    """Return the setup of a plan; None for a model that is neither here nor known by name."""
    if (model := build_on_meta(config.model)) is None:
        return None
    facts, card = facts or DataFacts(), (plan.card_gib or 0) * GIB
    return setup_of(model, config, plan.launch, card=card, lengths=facts.lengths, held_out=facts.held_out)


def needs(config: TrainConfig, plan: Plan, facts: DataFacts | None = None) -> Iterator[Finding]:
    """Yield the findings on memory, disk and host of a plan; a single one for an unknown model."""
    try:
        setup = plan_setup(config, plan, facts)
    except (AttributeError, TypeError, KeyError, IndexError) as error:  # a configuration that shapes.py does not know
        message = f"no estimate: the doctor does not know the shapes of {config.model} ({type(error).__name__}: {error})"
        yield Finding("memory", "look", f"{message}; start with micro_batch_size: 1 and watch the card")
        return
    if setup is None:
        message = (
            f"{config.model} is neither a checkpoint here nor known by name: set model to what it will be, a folder or one of "
            f"{', '.join(ARCHITECTURES)}"
        )
        yield Finding("memory", "look", message)
        return
    yield _memory(setup, plan)
    if config.lora:
        yield Finding("adapters", "ok", adapter_coverage(config.lora, setup.model, config.freeze))
    if facts is None or facts.lengths is None:
        yield from _unbounded_pictures(config)
    yield from _consistency_card(setup, plan)
    yield _disk(setup, plan.out)
    yield _host(setup, plan)


# Memory of a card.


def _memory(setup: Setup, plan: Plan) -> Finding:
    lines, available = memory_lines(setup), plan.card_gib
    phase, needed = peak(lines)
    of_card = "" if available is None else f" of {available:.0f}"
    message = (
        f"{_weights(setup)}; prompts of {setup.prompt:,} tokens ({setup.lengths.source}); "
        f"at most {needed / GIB:.1f}{of_card} GiB a card, {PHASES[phase]}"
    )
    outcome: Outcome = "failed"
    if available is None:
        outcome, why = "look", "; not compared with a card: set --memory GIB"
    elif impossible := _vllm_judge(setup.config) or _small_engine(setup, available):
        why = f"; {impossible}"
    elif needed / GIB > (planned := CARD_FRACTION * available):
        why = f", more than the {planned:.0f} that may be planned: {_cure(setup, available)}"
    else:
        outcome, why = "ok", ""
    return Finding("memory", outcome, message + why, tuple(_rows(lines)))


def _weights(setup: Setup) -> str:
    """Return the numbers of weights and of trained weights, those of a critic included."""
    critic = f" and a critic's {weights_text(setup.critic)}" if setup.critic else ""
    return f"{weights_text(setup.total)} weights{critic}, {weights_text(setup.learning + setup.critic)} are trained"


def _rows(lines: list[MemoryLine]) -> Iterator[str]:
    """Yield the table: what is always taken, then each part of a step with its sum."""
    always = sum(line.size for line in lines if line.phase is Phase.ALWAYS)
    for phase in Phase:
        of_phase = [line for line in lines if line.phase is phase]
        if not of_phase:
            continue
        total = sum(line.size for line in of_phase) + (0 if phase is Phase.ALWAYS else always)
        yield f"{total / GIB:7.1f}  {PHASES[phase]}{'' if phase is Phase.ALWAYS else ', with the above'}"
        yield from (f"{line.size / GIB:13.2f}  {line.what}: {line.how}" for line in of_phase)


def _vllm_judge(config: TrainConfig) -> str | None:
    names = config.loaded_judges if isinstance(config, PolicyConfig) else ()
    name = next((name for name in names if JudgeSpec.parse(name, "rm").engine == VLLM), None)
    if name is None:
        return None
    spec = JudgeSpec.parse(name)
    return (
        f"judge: {name} would start vLLM on every GPU of the trainer: serve it on another GPU "
        f"(vllm serve {spec.target}) and set judge: openai:{spec.target}@http://HOST:PORT/v1, or judge: prob:{spec.target}"
    )


def _small_engine(setup: Setup, available: float) -> str | None:
    engine = setup.method.engine if setup.method else None
    if engine is None or engine.kind != "colocate":
        return None
    memory, weights = engine.gpu_memory_utilization * available, 2.0 * setup.total / engine.tensor_parallel / GIB
    if memory >= weights:
        return None
    return (
        f"vLLM's part of a card, gpu_memory_utilization x {available:.0f} = {memory:.1f} GiB, is less than its weights there, "
        f"{weights:.1f}: raise gpu_memory_utilization or tensor_parallel"
    )


def _cure(setup: Setup, available: float) -> str:
    """Return config keys, and a larger launch if these are not enough, that make the run fit; else other remedies."""
    config, changes = setup.config, dict[str, Any]()
    for change in _smaller(config):
        smaller = {**changes, **change}
        if (needed := _peak_gib(setup, smaller)) < _peak_gib(setup, changes):
            changes = smaller
            if needed <= CARD_FRACTION * available:
                return f"{_as_keys(changes)} needs {needed:.1f}"
    for launch in _larger(setup.launch):
        if (needed := _peak_gib(setup, changes, launch)) <= CARD_FRACTION * available:
            return f"{' with '.join(filter(None, (_launch_words(launch), _as_keys(changes))))} needs {needed:.1f}"
    judge = ", a judge on another machine (openai:MODEL@URL)" if isinstance(config, PolicyConfig) else ""
    lora = "" if config.lora or setup.critic else ", lora"
    return f"more processes under ZeRO-3{judge}{lora}, or a smaller model"


def _as_keys(changes: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={str(value).lower()}" for name, value in changes.items())


def _peak_gib(setup: Setup, changes: Mapping[str, Any], launch: Launch | None = None) -> float:
    config, load = _with_changes(setup.config, changes), setup.evaluation
    lengths = setup.lengths if setup.lengths.is_counted else None
    held_out = HeldOutData(load.pairs, load.lengths) if load else None
    changed = setup_of(setup.model, config, launch or setup.launch, card=setup.card, lengths=lengths, held_out=held_out)
    return peak(memory_lines(changed))[1] / GIB


def _with_changes(config: TrainConfig, changes: Mapping[str, Any]) -> TrainConfig:
    """Return a config with some keys changed; a key with a dot belongs to a part of the config."""
    update: dict[str, Any] = {}
    for name, value in changes.items():
        part, _, key = name.rpartition(".")
        update[part or name] = getattr(config, part).model_copy(update={key: value}) if part else value
    return config.model_copy(update=update)


def _smaller(config: TrainConfig) -> Iterator[Mapping[str, Any]]:
    """Yield changes that save memory and do not change the training."""
    if not config.gradient_checkpointing:
        yield {"gradient_checkpointing": True}
    yield from ({"micro_batch_size": rows} for rows in (2, 1) if rows < config.micro_batch_size)
    if isinstance(config, SFTConfig | RLConfig) and config.evaluation.is_on:
        most = sequences_at_once(config)
        yield from ({"evaluation.batch_size": rows} for rows in (32, 16, 8) if rows < most)
    if isinstance(config, MethodConfig) and config.engine is None:
        yield from ({"sampling_batch_size": rows} for rows in (64, 32, 16, 8) if rows < (config.sampling_batch_size or 10**9))
    if isinstance(config, PolicyConfig):
        yield from ({"judge_batch_size": rows} for rows in (32, 16, 8) if rows < config.judge_batch_size)


def _larger(launch: Launch) -> Iterator[Launch]:
    """Yield launches that shard more: ZeRO-3 on as many processes, its optimizer offloaded to the host, more processes."""
    many = max(2, launch.processes)
    yield Launch(many, 3)
    yield Launch(many, 3, offload=True)
    yield from (Launch(many * times, 3) for times in (2, 4, 8))


def _launch_words(launch: Launch) -> str:
    name = "zero3_offload" if launch.offload else "zero3"
    return f"configs/accelerate/{name}.yaml on {launch.processes} cards"


def _unbounded_pictures(config: TrainConfig) -> Iterator[Finding]:
    """Yield a finding if neither pixels nor max_tokens bounds a sample."""
    if config.pixels is None and config.max_tokens is None and not Path(config.model).is_dir():
        message = (
            "no pixels and no max_tokens: pictures are as large as the checkpoint's processor allows (Qwen2.5-VL: 12.8 MP, "
            "16,384 tokens), and memory is estimated for a megapixel; set pixels.max, or max_tokens"
        )
        yield Finding("pictures", "look", message)


def _consistency_card(setup: Setup, plan: Plan) -> Iterator[Finding]:
    """Yield whether a judge of consistency on this machine fits beside the run."""
    config, available = setup.config, plan.card_gib
    if not isinstance(config, RLConfig) or not config.consistency.weight or available is None:
        return
    if urlsplit(config.consistency.base_url).hostname not in ("127.0.0.1", "localhost", "::1"):
        return
    judge = colocated_model(config.consistency.model, setup)
    need = judge.weight_bytes * judge.shapes.total / GIB + CHECKER_GIB
    left = CARD_FRACTION * available - peak(memory_lines(setup))[1] / GIB
    outcome: Outcome = "look" if left < need else "ok"
    fits = {
        "look": (
            f"the run leaves {max(0.0, left):.1f}: give it a card of its own (CUDA_VISIBLE_DEVICES of vllm serve), or "
            "base_url of another machine"
        ),
        "ok": f"the run leaves {left:.1f} (--gpu-memory-utilization {need / available:.2f})",
    }[outcome]
    message = f"{config.consistency.model} at {config.consistency.base_url} needs {need:.1f} GiB on a card of this machine"
    yield Finding("consistency's card", outcome, f"{message}; {fits}")


# The disk: checkpoints, of which one more exists than is kept while it is saved.


@dataclass(frozen=True)
class DiskLine:
    """``size`` bytes in the run's folder, and how they are counted."""

    what: str
    size: float
    how: str


def checkpoint_bytes(setup: Setup) -> float:
    """Return the bytes of one checkpoint: weights and the optimizer's state.

    DeepSpeed writes its float32 weights and two moments, its bfloat16 weights, and these once more as ``model.safetensors``.
    """
    trained, total = setup.learning + setup.critic, setup.total + setup.critic
    if setup.config.lora:
        return 12.0 * trained
    return 12.0 * trained + 4.0 * total if setup.launch.zero else 4.0 * total + 8.0 * trained


def disk_lines(setup: Setup) -> list[DiskLine]:
    """Return upper bounds of what the run's folder holds: checkpoints and the final weights never exist all at once."""
    config, one = setup.config, checkpoint_bytes(setup)
    number = config.save_total_limit + 1
    how = f"{number} x {size_text(one)}: save_total_limit {config.save_total_limit}, and the one being saved"
    total = setup.learning if config.lora else setup.total
    each = 2.0 if setup.launch.zero else 4.0
    weights, kind = each * total, f"{weights_text(total)} x {each:g} B, before it is rounded to its dtype"
    lines = [DiskLine("checkpoints", number * one, how), DiskLine("final", weights, kind)]
    if setup.evaluation and isinstance(config, SFTConfig | RLConfig) and config.evaluation.keep_best:
        how = f"3 x {size_text(weights)}: the best, the previous best until the next checkpoint, the one being saved"
        lines.append(DiskLine("best", 3 * weights + each * setup.critic, how + (" with the critic" if setup.critic else "")))
    if setup.critic:
        lines.append(DiskLine("critic", each * setup.critic, f"{weights_text(setup.critic)} x {each:g} B, beside final"))
    if setup.method and setup.method.value_pretrain_steps:
        fitted = 4.0 * setup.total + 12.0 * setup.critic
        lines.append(DiskLine("value", config.save_total_limit * fitted, "checkpoints of the critic's pre-training"))
    if setup.method and setup.method.engine and setup.method.engine.kind == "serve":
        lines.append(DiskLine("engine", 2 * 4.0 * setup.total, "weights for vllm serve, old and new"))
    return lines


def size_text(size: float) -> str:
    """Return bytes on disk, in decimal units: "133 GB", "16.6 GB", "0.9 MB"."""
    if size >= 1e8:
        return f"{size / 1e9:.0f} GB" if size >= 1e11 else f"{size / 1e9:.1f} GB"
    return f"{size / 1e6:.1f} MB"


def _disk(setup: Setup, out: Path | None) -> Finding:
    lines = disk_lines(setup)
    needed = _total(lines)
    details = tuple(f"{size_text(line.size):>12}  {line.what}: {line.how}" for line in lines)
    message = f"at most {size_text(needed)} in the run's folder"
    if out is None:
        return Finding("disk", "look", f"{message}; not compared with a disk: set --out FOLDER", details)
    existing = next(folder for folder in (out.absolute(), *out.absolute().parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    message = f"{message}, {size_text(free)} free at {existing}"
    if free >= needed:
        return Finding("disk", "ok", message, details)
    fewer = replace(setup, config=setup.config.model_copy(update={"save_total_limit": 1}))
    cure = "save_total_limit=1, or " if _total(disk_lines(fewer)) <= free else ""
    return Finding("disk", "failed", f"{message}: {cure}another --out", details)


def _total(lines: Sequence[DiskLine]) -> float:
    return sum(line.size for line in lines)


# Memory of the host.


def host_bytes(setup: Setup) -> dict[str, float]:
    """Return the bytes of host memory that one process needs, by purpose.

    Data stay on disk. A process of RL holds the pictures of one rollout batch, decoded and as float32 pixels; other stages hold
    one optimizer step's as bfloat16 pixels, and each data worker those of two micro-batches, decoded and in float32. Each
    reader holds a row group.
    """
    lengths, workers = setup.lengths, setup.config.data_workers
    sample = lengths.pictures * (3.0 * lengths.megapixels * 1e6 + setup.picture.num_bytes)
    samples = setup.rollouts if setup.method else 2 * setup.config.micro_batch_size * max(1, workers)
    step = setup.config.batch_size / setup.launch.processes * lengths.pictures * setup.picture.num_bytes / 2
    of_workers = 0.0 if setup.method else workers * WORKER_BASE + step
    trained, processes = setup.learning + setup.critic, setup.launch.processes
    return {
        "base": PROCESS_BASE,
        "weights during loading": 0.0 if setup.launch.zero == 3 else 4.0 * setup.total,
        "optimizer": 16.0 * trained / processes if setup.launch.offload else 0.0,
        "data": samples * sample + max(1, workers) * ROW_GROUP + of_workers,
    }


def _host(setup: Setup, plan: Plan) -> Finding:
    parts = {name: size for name, size in host_bytes(setup).items() if size}
    each, processes = sum(parts.values()) / GIB, min(setup.launch.processes, PROCESSES_PER_MACHINE)
    counted = ", ".join(f"{name} {size / GIB:.1f}" for name, size in parts.items())
    number = f"for the {processes} on a machine" if processes > 1 else "in all"
    message = f"at most {each:.0f} GiB a process, {each * processes:.0f} {number}: {counted}"
    if (available := plan.machine_gib) is None:
        return Finding("host memory", "look", f"{message}; not compared with a machine: set --host-memory GIB")
    message = f"{message}; the machine has {available:.0f}"
    if each * processes <= available:
        return Finding("host memory", "ok", message)
    cure = "a machine with more" if setup.config.data_workers < 2 else "a machine with more, or fewer data_workers"
    return Finding("host memory", "failed", f"{message}: {cure}")
