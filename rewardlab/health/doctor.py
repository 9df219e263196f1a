"""What can be known of a run before money is spent on it; with weights and data, what only trying tells."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch

from rewardlab.checkpoints import load_template_for
from rewardlab.config import SCHEMAS, DistillConfig, MethodConfig, RLConfig, SFTConfig, TrainConfig, load_config
from rewardlab.data.pairs import read_pairs
from rewardlab.errors import CheckpointError, ConfigError, RewardlabError
from rewardlab.health.memory import GIB, Estimate, counts, estimate
from rewardlab.models.architectures import ARCHITECTURES, build_on_meta
from rewardlab.models.loading import check_folder, load_policy
from rewardlab.prompts import build_messages, load_template
from rewardlab.samplers.base import SamplingParams
from rewardlab.samplers.hf import HFSampler
from rewardlab.training.policy_gradient.rollouts.engine import check_engine
from rewardlab.training.rl import consistency_judge, train_rl
from rewardlab.training.run.folder import trackers
from rewardlab.training.run.launcher import Launch
from rewardlab.training.run.preflight import TokenCounter, processor_of
from rewardlab.training.sft import train_sft
from rewardlab.types import PreferencePair, VerdictStatus
from rewardlab.verdicts.parse import parse_verdict

Outcome = Literal["ok", "look", "failed"]
PROMPT_TOKENS = 2048  # of a pair with one image of a megapixel, where no data say better
NUM_JUDGED, NUM_COUNTED = 4, 500


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: ``look`` is no failure, but for somebody to decide."""

    name: str
    outcome: Outcome
    said: str


@dataclass(frozen=True)
class Plan:
    """Where a run is meant to go, on devices of how many GiB (None: this machine's, if any).

    ``model`` is what is trained, where the config names a folder that is yet to be.
    """

    launch: Launch = field(default_factory=Launch)
    memory_gib: float | None = None
    model: str | None = None


def stage_of(path: Path, named: str | None = None) -> str:
    """``named``, else ``rl`` of ``configs/rl/x.yaml`` and of ``rl.yaml``. Raises ConfigError where none is a stage."""
    for name in (named,) if named else (path.stem, path.parent.name):
        if name in SCHEMAS:
            return name
    if named:
        raise ConfigError(f"--stage {named}: no such stage; expected one of {sorted(SCHEMAS)}")
    raise ConfigError(
        f"{path}: neither its name nor its folder says of what stage it is; add --stage, one of {sorted(SCHEMAS)}"
    )


def examine(path: Path, stage: str, plan: Plan, data: Path | None = None, *, dry: bool = False) -> Iterator[Finding]:
    """The findings, as they come. Without weights: everything but what ``dry`` leaves out."""
    try:
        config = load_config(SCHEMAS[stage], path)
    except ConfigError as error:
        yield Finding("config", "failed", str(error))
        return
    usual = {name: field.get_default(call_default_factory=True) for name, field in type(config).model_fields.items()}
    given = {name for name in usual if getattr(config, name) != usual[name]}
    yield Finding("config", "ok", f"stage {stage}; differs from the defaults in {', '.join(sorted(given)) or 'nothing'}")
    if isinstance(config, DistillConfig):
        yield from _teacher(config)
    if not isinstance(config, TrainConfig):
        return
    yield _try("template", lambda: f"{config.template}, hash {load_template(config.template).hash}")
    yield _try("batches", lambda: _batches(config, plan.launch.processes))
    yield _try("memory", lambda: _memory(config, plan))
    if plan.launch.zero and not dry and find_spec("deepspeed") is None:
        yield Finding(
            "launcher", "look", "DeepSpeed is not installed here: pip install 'rewardlab[deepspeed]' where the run goes"
        )
    if not dry:
        yield from _tried(config.model_copy(update={"model": plan.model} if plan.model else {}), plan, data)


def _try(name: str, ask: Callable[[], str | Finding]) -> Finding:
    try:
        found = ask()
        return found if isinstance(found, Finding) else Finding(name, "ok", found)
    except RewardlabError as error:
        return Finding(name, "failed", str(error))
    except Exception as error:  # the boundary: whatever a library raises is what would have ended the run
        return Finding(name, "failed", f"{type(error).__name__}: {error}")


def _teacher(config: DistillConfig) -> Iterator[Finding]:
    missing = sorted(name for name in config.api_key_envs if not os.environ.get(name))
    said = f"no {', '.join(missing)} in the environment: fine for a server that asks for none" if missing else "there"
    yield Finding("keys", "look" if missing else "ok", said)


def _batches(config: TrainConfig, processes: int) -> str:
    def parts(sequences: int) -> int:
        at_once = config.micro_batch_size * processes
        if sequences % at_once:
            raise ConfigError(
                f"a batch of {sequences} cannot be dealt out to {processes} processes by {config.micro_batch_size}; "
                "change micro_batch_size or the number of processes"
            )
        return sequences // at_once

    said = f"{config.batch_size} = {processes} x {config.micro_batch_size} x {parts(config.batch_size)} micro-batches"
    if isinstance(config, MethodConfig):
        said += f"; {config.rollout_batch_size} rollouts between two samplings, {config.rollout_batch_size // processes} each"
        parts(config.rollout_batch_size)
    return said


def _memory(config: TrainConfig, plan: Plan) -> Finding:
    model = build_on_meta(plan.model or config.model)
    if model is None:
        said = f"{plan.model or config.model} is neither a checkpoint here nor known by name: --model says what it will be, a "
        said += f"folder or one of {', '.join(ARCHITECTURES)}"
        return Finding("memory", "look", said)
    total, learning = counts(model, config)
    there = plan.memory_gib
    if there is None and torch.cuda.is_available():
        there = torch.cuda.get_device_properties(0).total_memory / GIB
    found = estimate(model, config, plan.launch, prompt_tokens=PROMPT_TOKENS, card=(there or 0) * GIB)
    said = f"{total / 1e9:.2f} B weights, {learning / 1e9:.2f} B learn; with prompts of {PROMPT_TOKENS:,} tokens, estimated "
    said += f"GiB a device: {_shown(found)}"
    if there is None:
        return Finding("memory", "ok", f"{said} (say --memory to hold it against a card)")
    if found.total / GIB > 0.95 * there:
        own = ", fewer sampling_batch_size, an engine" if isinstance(config, MethodConfig) else ""
        cure = f"more processes under ZeRO, a smaller micro_batch_size{own}, or lora"
        return Finding("memory", "failed", f"{said}, more than the {there:.0f} there are: {cure}")
    engine = config.engine if isinstance(config, MethodConfig) else None
    if engine and engine.kind == "colocate":
        share, needed = engine.gpu_memory_utilization * there, 2.0 * total / engine.tensor_parallel / GIB
        if share < needed:
            cure = f"{needed:.1f}: raise it, or tensor_parallel"
            short = f"gpu_memory_utilization x {there:.0f} = {share:.1f} GiB, is less than the weights it holds there"
            return Finding("memory", "failed", f"{said}; vLLM's share of a card, {short}, {cure}")
    return Finding("memory", "ok", f"{said} of {there:.0f}")


def _shown(found: Estimate) -> str:
    parts = {name: getattr(found, name) / GIB for name in ("weights", "gradients", "moments", "reading", "sampling")}
    return ", ".join(f"{name} {value:.1f}" for name, value in parts.items()) + f"; at most {found.total / GIB:.1f}"


def _tried(config: TrainConfig, plan: Plan, data: Path | None) -> Iterator[Finding]:
    """What takes weights and data: tokens, a judgment, the consistency judge, a step."""
    gpus = torch.cuda.device_count()
    device = f"{gpus} x {torch.cuda.get_device_name(0)}" if gpus else f"no GPU; {os.cpu_count()} cores"
    yield Finding("devices", "ok" if gpus else "look", device)
    if config.report_to != "none":
        yield _try("trackers", lambda: ", ".join(trackers(config.report_to)))
    if data is None:
        yield Finding("data", "look", "none given: --data PAIRS has tokens counted, a judgment made and a step taken")
        return
    pairs: list[PreferencePair] = []
    yield _try("data", lambda: f"{len(pairs.extend(read_pairs(data, frames=config.frames)) or pairs):,} pairs")
    if isinstance(config, MethodConfig) and (engine := config.engine):
        yield _try("engine", lambda: f"{check_engine(engine) or engine.kind}: vLLM is there")
    if isinstance(config, RLConfig) and config.consistency.weight:
        yield _try("consistency", lambda: _asked(config))
    if not pairs:
        return
    try:
        check_folder(config.model)
    except CheckpointError as error:
        yield Finding(
            "weights", "look", f"{error}. Tokens, judgment and step are left out; --model NAME says what to try them with"
        )
        return
    yield _try("tokens", lambda: _tokens(config, pairs))
    yield _try("judgment", lambda: _judged(config, pairs))
    if plan.launch.processes > 1:
        said = f"not taken: it is one of {plan.launch.processes} processes; start the run under its launcher with max_steps: 1"
        yield Finding("one step", "look", said)
    elif isinstance(config, SFTConfig | RLConfig):
        yield _try("one step", lambda: _stepped(config, pairs))


def _tokens(config: TrainConfig, pairs: list[PreferencePair]) -> Finding:
    told = _counted(config, pairs)
    said = f"of {len(told):,} samples: median {told[len(told) // 2]:,}, longest {told[-1]:,}, the room of an answer included"
    beyond = sum(tokens > config.max_tokens for tokens in told) if config.max_tokens else 0
    if not beyond:
        return Finding("tokens", "ok", said)
    left = f"{said}; {beyond:,} are longer than max_tokens {config.max_tokens:,} and would be left out"
    return Finding("tokens", "failed" if beyond == len(told) else "look", left)


def _counted(config: TrainConfig, pairs: list[PreferencePair]) -> list[int]:
    """Tokens of some of the pairs, the shortest first."""
    counter, template = TokenCounter(processor_of(config)), load_template(config.template)
    room = config.max_completion_length if isinstance(config, MethodConfig) else 0
    some = pairs[:: max(1, len(pairs) // NUM_COUNTED)]
    return sorted(counter.sample(p, p.order, template, answer=p.judgment, room=room).total for p in some)


def _asked(config: RLConfig) -> str:
    import asyncio

    judge = consistency_judge(config)
    assert judge is not None
    asyncio.run(judge.check())
    return f"{config.consistency.model} answers at {config.consistency.base_url}"


def _judged(config: TrainConfig, pairs: list[PreferencePair]) -> str:
    """A few real judgments; a base model that writes none is no failure before its cold start."""
    template = load_template_for(config.model, config.template)
    with tempfile.TemporaryDirectory() as folder:
        sampler = HFSampler(*load_policy(config, Path(folder)))
        sampler.model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
        prompts = [build_messages(pair, order=pair.order, template=template) for pair in pairs[:NUM_JUDGED]]
        begun = time.perf_counter()
        longest = config.max_completion_length if isinstance(config, MethodConfig) else 512
        drawn = sampler.sample(prompts, SamplingParams(1, 1.0, max_tokens=longest))
        seconds = time.perf_counter() - begun
    read = [parse_verdict(one[0].text, template.verdict_format).status is VerdictStatus.OK for one in drawn]
    tokens = sum(one[0].num_tokens for one in drawn)
    first = drawn[0][0].text[:200]
    return f"{sum(read)} of {len(read)} have a verdict; {tokens} tokens in {seconds:.1f} s. The first: {first!r}"


def _stepped(config: SFTConfig | RLConfig, pairs: list[PreferencePair]) -> str:
    """One optimizer step of the real run on its first pairs, in a folder that is thrown away."""
    needed = max(2 * config.batch_size, config.rollout_batch_size if isinstance(config, RLConfig) else 0)
    changes: dict[str, Any] = {"max_steps": 1, "report_to": "none"}
    with tempfile.TemporaryDirectory() as folder:
        once, out = config.model_copy(update=changes), Path(folder) / "run"
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        begun = time.perf_counter()
        if isinstance(once, RLConfig):
            train_rl([pair for pair in pairs if pair.attempts in once.attempts][:needed] or pairs[:needed], once, out)
        else:
            train_sft([pair for pair in pairs if pair.judgment][:needed] or pairs[:needed], once, out)
        seconds = time.perf_counter() - begun
    peak = f", at most {torch.cuda.max_memory_allocated() / GIB:.1f} GiB" if torch.cuda.is_available() else ""
    return f"taken and saved in {seconds:.0f} s, loading included{peak}"
