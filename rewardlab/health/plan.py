"""A planned run against its machines: does it fit the cards, the disk and the host. What is compared with nothing is "look".

Each function returns the finding of one question, with what each number counts below it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch

from rewardlab.config import MethodConfig, PolicyConfig, RLConfig, SFTConfig, TrainConfig
from rewardlab.health.beside import beside_lines, judge_beside
from rewardlab.health.cards import TYPICAL, GraphicsCard, local_card
from rewardlab.health.disk import disk_lines
from rewardlab.health.evaluation import HeldOutData
from rewardlab.health.feeding import host_bytes
from rewardlab.health.finding import Finding
from rewardlab.health.lengths import Lengths
from rewardlab.health.memory import GIB, MemoryLine, Phase, Setup, peak, setup_of, trainer_lines
from rewardlab.health.speed import A_MACHINE, speed_findings
from rewardlab.health.units import size_text, weights_text
from rewardlab.judging.spec import JudgeSpec
from rewardlab.models.architectures import ARCHITECTURES, build_on_meta
from rewardlab.processes import memory_here
from rewardlab.samplers.base import VLLM
from rewardlab.training.run.evaluation import sequences_at_once
from rewardlab.training.run.parallel import Launch

CARD_SHARE = 0.95  # of a card may be planned: CUDA's own, NCCL and what the allocator cannot use take the rest
CHECKER_GIB = 2.0  # keys and values of a served judge of consistency, whose prompts are short
PHASES = {
    Phase.ALWAYS: "all the time",
    Phase.SAMPLING: "while sampling",
    Phase.REWARDS: "while rewards are computed",
    Phase.TRAINING: "while a micro-batch is read",
    Phase.UPDATE: "while the optimizer steps",
    Phase.EVALUATION: "while held-out pairs are judged",
}


@dataclass(frozen=True)
class Plan:
    """The machines a run is planned for. ``card``: None: this machine's, if it is known; ``memory_gib`` of each device (None:
    the card's); ``host_gib`` of each machine's own memory (None: this machine's, if it has cards).

    ``model`` replaces the config's model if that names a folder that does not exist yet; ``out`` is the run's folder, whose
    disk is looked at; ``price``: US dollars of a card's hour.
    """

    launch: Launch = field(default_factory=Launch)
    memory_gib: float | None = None
    model: str | None = None
    out: Path | None = None
    card: GraphicsCard | None = None
    host_gib: float | None = None
    price: float | None = None

    @property
    def card_gib(self) -> float | None:
        """Return the GiB of a card, or None where neither the plan nor this machine says."""
        if self.memory_gib is None and self.card is not None:
            return self.card.memory_gib
        if self.memory_gib is None and torch.cuda.is_available():
            return float(torch.cuda.get_device_properties(0).total_memory / GIB)
        return self.memory_gib

    @property
    def known_card(self) -> GraphicsCard | None:
        """Return the card, or None where neither the plan nor this machine says which it is."""
        return self.card or local_card()

    @property
    def machine_gib(self) -> float | None:
        """Return the GiB of a machine's own memory, or None where neither the plan nor this machine says."""
        if self.host_gib is None and torch.cuda.is_available():
            return memory_here() / GIB
        return self.host_gib


@dataclass(frozen=True)
class DataFacts:
    """What is known of a run's data: lengths, the pairs that are held out, optimizer steps. None: it is assumed."""

    lengths: Lengths | None = None
    held_out: HeldOutData | None = None
    steps: int | None = None


def plan_setup(config: TrainConfig, plan: Plan, facts: DataFacts | None = None) -> Setup | None:
    """Return the setup of a plan; None for a model that is neither here nor known by name."""
    if (model := build_on_meta(plan.model or config.model)) is None:
        return None
    facts, card = facts or DataFacts(), (plan.card_gib or 0) * GIB
    return setup_of(model, config, plan.launch, card=card, lengths=facts.lengths, held_out=facts.held_out)


def memory_lines(setup: Setup) -> list[MemoryLine]:
    """Return all that lies on each card in a run."""
    return [*trainer_lines(setup), *beside_lines(setup)]


def needs(config: TrainConfig, plan: Plan, facts: DataFacts | None = None) -> Iterator[Finding]:
    """Yield the findings on memory, disk, host and speed of a plan; one only, of a model that is not known."""
    setup, facts = plan_setup(config, plan, facts), facts or DataFacts()
    if setup is None:
        message = (
            f"{plan.model or config.model} is neither a checkpoint here nor known by name: --model says what it will be, a "
        )
        yield Finding("memory", "look", f"{message}folder or one of {', '.join(ARCHITECTURES)}")
        return
    yield _memory(setup, plan)
    if facts.lengths is None:
        yield from _unbounded_pictures(config)
    yield from _beside_consistency(setup, plan)
    yield _disk(setup, plan.out)
    yield _host(setup, plan)
    card = plan.known_card
    yield from speed_findings(setup, card or TYPICAL, is_given=card is not None, steps=facts.steps, price=plan.price)


# Memory of a card.


def _memory(setup: Setup, plan: Plan) -> Finding:
    lines, available = memory_lines(setup), plan.card_gib
    phase, needed = peak(lines)
    message = f"{_weights(setup)}; prompts of {setup.prompt:,} tokens ({setup.lengths.source})"
    message += f"; at most {needed / GIB:.1f}"
    details = tuple(_rows(lines))
    if available is None:
        message += f" GiB a card, {PHASES[phase]}; compared with no card: --card or --memory says what there is"
        return Finding("memory", "look", message, details)
    message += f" of {available:.0f} GiB a card, {PHASES[phase]}"
    if (impossible := _vllm_judge(setup.config)) is not None:
        return Finding("memory", "failed", f"{message}; {impossible}", details)
    if needed / GIB > CARD_SHARE * available:
        cure = f"more than the {CARD_SHARE * available:.0f} that may be planned: {_cure(setup, available)}"
        return Finding("memory", "failed", f"{message}, {cure}", details)
    if (short := _short_share(setup, available)) is not None:
        return Finding("memory", "failed", f"{message}; {short}", details)
    return Finding("memory", "ok", message, details)


def _weights(setup: Setup) -> str:
    """Return how many weights there are, and how many of them learn: the policy's and a critic's."""
    critic = f" and a critic's {weights_text(setup.critic)}" if setup.critic else ""
    return f"{weights_text(setup.total)} weights{critic}, {weights_text(setup.learning + setup.critic)} learn"


def _rows(lines: list[MemoryLine]) -> Iterator[str]:
    """Yield the table: what is there all the time, then each part of a step with its sum."""
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
        f"judge: {name} would start a vLLM on every card beside the trainer: serve it on a card of its own "
        f"(vllm serve {spec.target}) and set judge: openai:{spec.target}@http://HOST:PORT/v1, or judge: prob:{spec.target}"
    )


def _short_share(setup: Setup, available: float) -> str | None:
    engine = setup.method.engine if setup.method else None
    if engine is None or engine.kind != "colocate":
        return None
    share, shard = engine.gpu_memory_utilization * available, 2.0 * setup.total / engine.tensor_parallel / GIB
    if share >= shard:
        return None
    return (
        f"vLLM's share of a card, gpu_memory_utilization x {available:.0f} = {share:.1f} GiB, is less than the weights it "
        f"holds there, {shard:.1f}: raise it, or tensor_parallel"
    )


def _cure(setup: Setup, available: float) -> str:
    """Return keys, and a launch if these are not enough, that make the run fit; else what is left to do."""
    config, changes = setup.config, dict[str, Any]()
    for change in _smaller(config):
        smaller = {**changes, **change}
        if (needed := _peak_gib(setup, smaller)) < _peak_gib(setup, changes):
            changes = smaller
            if needed <= CARD_SHARE * available:
                return f"{_as_keys(changes)} needs {needed:.1f}"
    for launch in _larger(setup.launch):
        if (needed := _peak_gib(setup, changes, launch)) <= CARD_SHARE * available:
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
    """Return a config with other values of some keys; those with a dot are of a part of it."""
    update: dict[str, Any] = {}
    for name, value in changes.items():
        part, _, key = name.rpartition(".")
        update[part or name] = getattr(config, part).model_copy(update={key: value}) if part else value
    return config.model_copy(update=update)


def _smaller(config: TrainConfig) -> Iterator[Mapping[str, Any]]:
    """Yield changes that need less memory and leave the run what it is."""
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
    """Yield launches that deal out more: ZeRO-3 on as many processes, its optimizer in the host's memory, more processes."""
    many = max(2, launch.processes)
    yield Launch(many, 3)
    yield Launch(many, 3, offload=True)
    yield from (Launch(many * times, 3) for times in (2, 4, 8))


def _launch_words(launch: Launch) -> str:
    name = "zero3_offload" if launch.offload else "zero3"
    return f"configs/accelerate/{name}.yaml on {launch.processes} cards"


def _unbounded_pictures(config: TrainConfig) -> Iterator[Finding]:
    """Yield a finding where neither pixels nor max_tokens bounds what one sample can be."""
    if config.pixels is None and config.max_tokens is None and not Path(config.model).is_dir():
        message = "no pixels and no max_tokens: pictures are as large as the checkpoint's processor lets them be (Qwen2.5-VL: "
        message += "12.8 MP, 16,384 tokens), and memory is estimated for a megapixel; set pixels.max, or max_tokens"
        yield Finding("pictures", "look", message)


def _beside_consistency(setup: Setup, plan: Plan) -> Iterator[Finding]:
    """Yield where a judge of consistency on this machine can lie: it needs weights and a cache of its own."""
    config, available = setup.config, plan.card_gib
    if not isinstance(config, RLConfig) or not config.consistency.weight or available is None:
        return
    if urlsplit(config.consistency.base_url).hostname not in ("127.0.0.1", "localhost", "::1"):
        return
    judge = judge_beside(config.consistency.model, setup)
    need = judge.weight_bytes * judge.shapes.total / GIB + CHECKER_GIB
    left = CARD_SHARE * available - peak(memory_lines(setup))[1] / GIB
    message = f"{config.consistency.model} at {config.consistency.base_url} needs {need:.1f} GiB on a card of this machine"
    if left < need:
        message += (
            f", and the run leaves {max(0.0, left):.1f}: give it a card of its own (CUDA_VISIBLE_DEVICES of vllm serve), "
        )
        yield Finding("consistency's card", "look", message + "or base_url of another machine")
    else:
        share = need / available
        yield Finding("consistency's card", "ok", f"{message}; beside the run {left:.1f} are left (a share of {share:.2f})")


# Disk and host.


def _disk(setup: Setup, out: Path | None) -> Finding:
    lines = disk_lines(setup)
    needed = sum(line.size for line in lines)
    details = tuple(f"{size_text(line.size):>12}  {line.what}: {line.how}" for line in lines)
    message = f"at most {size_text(needed)} in the run's folder"
    if out is None:
        return Finding("disk", "look", f"{message}; compared with no disk: --out FOLDER says where", details)
    there = next(folder for folder in (out.absolute(), *out.absolute().parents) if folder.exists())
    free = shutil.disk_usage(there).free
    message += f", {size_text(free)} free at {there}"
    if free >= needed:
        return Finding("disk", "ok", message, details)
    fewer = replace(setup, config=setup.config.model_copy(update={"save_total_limit": 1}))
    cure = "save_total_limit=1, or " if sum(line.size for line in disk_lines(fewer)) <= free else ""
    return Finding("disk", "failed", f"{message}: {cure}another --out", details)


def _host(setup: Setup, plan: Plan) -> Finding:
    parts = {name: size for name, size in host_bytes(setup).items() if size}
    each, processes = sum(parts.values()) / GIB, min(setup.launch.processes, A_MACHINE)
    counted = ", ".join(f"{name} {size / GIB:.1f}" for name, size in parts.items())
    number = f"for the {processes} on a machine" if processes > 1 else "in all"
    message = f"at most {each:.0f} GiB a process, {each * processes:.0f} {number}: {counted}"
    if (available := plan.machine_gib) is None:
        return Finding("host memory", "look", f"{message}; compared with no machine: --host-memory GIB says what it has")
    message += f"; the machine has {available:.0f}"
    if each * processes <= available:
        return Finding("host memory", "ok", message)
    cure = "a machine with more" if setup.config.data_workers < 2 else "a machine with more, or fewer data_workers"
    return Finding("host memory", "failed", f"{message}: {cure}")
