"""Checks of a planned run: what its config tells without weights, and what only a trial with weights and data tells."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from rewardlab.config import (
    SCHEMAS,
    DistillConfig,
    EngineConfig,
    EvaluationConfig,
    MethodConfig,
    PolicyConfig,
    RLConfig,
    RMConfig,
    SFTConfig,
    SuiteConfig,
    TrainConfig,
    load_config,
    load_yaml,
)
from rewardlab.data.pair_table import pair_facts, select_pairs
from rewardlab.errors import CheckpointError, ConfigError, RewardlabError
from rewardlab.health.asking import suite_findings, teacher_findings
from rewardlab.health.finding import Finding
from rewardlab.health.given_data import GivenData, read_data, template_of
from rewardlab.health.lengths import BYTES_PER_TOKEN, DataSample
from rewardlab.health.memory import GIB
from rewardlab.health.plan import Plan, needs
from rewardlab.judging.spec import JudgeSpec
from rewardlab.models import precision
from rewardlab.models.checkpoints import check_folder
from rewardlab.models.loading import load_policy
from rewardlab.prompts import build_messages
from rewardlab.rewards.judgment import load_terms
from rewardlab.samplers.base import HF, SamplingParams
from rewardlab.samplers.hf import HFSampler
from rewardlab.training.policy_gradient.rollouts.engine import check_engine
from rewardlab.training.reward_model import train_reward_model
from rewardlab.training.rl import consistency_judge, train_rl
from rewardlab.training.run.folder import micro_batch_size, micro_batches, trackers
from rewardlab.training.run.inputs import pairs_of, unreadable_rows
from rewardlab.training.sft import train_sft
from rewardlab.types import FinishReason, PreferencePair, VerdictStatus
from rewardlab.verdicts.parse import parse_verdict

NUM_JUDGED, NUM_READ = 4, 20
FRAMES = 8  # of a video, for a teacher


def examine_plan(
    path: Path,
    stage: str,
    plan: Plan,
    data: Path | None = None,
    *,
    images: Path | None = None,
    allow_columns: Collection[str] = (),
    allow_without_images: bool = False,
    changes: Mapping[str, Any] | None = None,
    dry: bool = False,
) -> Iterator[Finding]:
    """Yield the findings, one by one. ``images``: where relative paths of media start; ``allow_columns``: columns that may be
    there and are not read; ``changes`` are laid over the config; ``dry`` leaves out all that needs weights."""
    try:
        config = load_config(SCHEMAS[stage], path, changes)
    except ConfigError as error:
        yield Finding("config", "failed", str(error))
        return
    defaults = {name: field.get_default(call_default_factory=True) for name, field in type(config).model_fields.items()}
    differing = sorted(name for name in defaults if getattr(config, name) != defaults[name])
    yield Finding("config", "ok", f"stage {stage}; differs from the defaults in {', '.join(differing) or 'nothing'}")
    if isinstance(config, DistillConfig):
        yield from _teacher(config)
        if data is None:
            yield Finding("cost", "look", "no data given: --data PAIRS says what their judgments would cost")
        else:
            read = partial(pairs_of, images=images, allow_columns=allow_columns, allow_without_images=allow_without_images)
            yield from _try_all("data", lambda: teacher_findings(config, read(data, FRAMES, config.model)))
    if not isinstance(config, TrainConfig):
        return
    yield _try("template", lambda: f"{config.template}, hash {template_of(config).hash}")
    if isinstance(config, RLConfig) and config.reward_terms:
        yield _try("reward terms", lambda: ", ".join(term.name for term in load_terms(config.reward_terms)))
    if isinstance(config, PolicyConfig):
        yield _try("judge", lambda: _judges(config.loaded_judges))
    yield _try("batches", lambda: _batches(config, plan.launch.processes))
    given = GivenData()
    if data is None:
        yield Finding("data", "look", "none given: --data PAIRS has steps and tokens counted, a judgment made and a step taken")
    else:
        try:
            given = read_data(
                data,
                config,
                plan,
                images=images,
                allow_columns=allow_columns,
                allow_without_images=allow_without_images,
            )
        except RewardlabError as error:
            yield Finding("data", "failed", str(error))
        except Exception as error:  # the boundary: whatever a library raises is what would have ended the run
            yield Finding("data", "failed", f"{type(error).__name__}: {error}")
        else:
            if given.sequences == 0:
                what = "no pair is left to train on: expected judgments (SFT), labels, or the tags that `attempts` names (RL)"
                yield Finding("data", "failed", f"{len(given.pairs):,} pairs; {what}")
                return
            yield from _try_all("data", lambda: _data(config, given))
            yield from _try_all("pictures", lambda: _pictures(given.pairs))
    yield from _try_all("memory", lambda: needs(config, plan, given.facts))
    if plan.launch.zero and not dry and find_spec("deepspeed") is None:
        yield Finding(
            "launcher", "look", "DeepSpeed is not installed here: pip install 'rewardlab[deepspeed]' where the run goes"
        )
    yield from _services(config, dry=dry)
    if not dry:
        yield from _try_run(config.model_copy(update={"model": plan.model} if plan.model else {}), plan, given.pairs)


def is_suite(path: Path) -> bool:
    """Return whether a file lists benchmarks. One that cannot be read is none: examining it says why."""
    try:
        return "benchmarks" in load_yaml(path)
    except ConfigError:
        return False


def examine_suite(path: Path, plan: Plan, data: Path | None, changes: Mapping[str, Any] | None = None) -> Iterator[Finding]:
    """Yield the findings on a suite of benchmarks, whose data is in the folder ``data``: how long a judge would take."""
    try:
        suite = load_config(SuiteConfig, path, changes)
    except ConfigError as error:
        yield Finding("config", "failed", str(error))
        return
    yield Finding(
        "config", "ok", f"a suite, {suite.title}: benchmarks {', '.join(entry.benchmark for entry in suite.benchmarks)}"
    )
    if data is None:
        yield Finding(
            "time", "look", "no data given: --data FOLDER, as --root of `rewardlab bench suite`, says how long it takes"
        )
        return
    yield from _try_all("data", lambda: suite_findings(suite, data, plan))


def _try(name: str, check: Callable[[], str | Finding]) -> Finding:
    try:
        result = check()
        return result if isinstance(result, Finding) else Finding(name, "ok", result)
    except RewardlabError as error:
        return Finding(name, "failed", str(error))
    except Exception as error:  # the boundary, as above
        return Finding(name, "failed", f"{type(error).__name__}: {error}")


def _try_all(name: str, check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """Yield the findings of ``check``; what it raises is one more, called ``name``."""
    try:
        yield from check()
    except RewardlabError as error:
        yield Finding(name, "failed", str(error))
    except Exception as error:  # the boundary, as above
        yield Finding(name, "failed", f"{type(error).__name__}: {error}")


def _teacher(config: DistillConfig) -> Iterator[Finding]:
    missing = sorted(name for name in config.api_key_envs if not os.environ.get(name))
    message = f"no {', '.join(missing)} in the environment: fine for a server that asks for none" if missing else "there"
    yield Finding("keys", "look" if missing else "ok", message)


def _batches(config: TrainConfig, processes: int) -> str:
    parts = micro_batches(config, config.batch_size, processes)
    message = f"{config.batch_size} = {processes} x {config.micro_batch_size} x {parts} micro-batches"
    if isinstance(config, MethodConfig):
        micro_batches(config, config.rollout_batch_size, processes)
        message += (
            f"; {config.rollout_batch_size} rollouts between two samplings, {config.rollout_batch_size // processes} each"
        )
        if size := config.value_pretrain_batch_size:
            micro_batch_size(config.micro_batch_size, size, processes)  # raises
    return message


def _data(config: TrainConfig, given: GivenData) -> Iterator[Finding]:
    """Yield how many pairs there are, how long one takes to be read, the steps that they make, and how long they are."""
    start_time = time.perf_counter()
    number = sum(1 for _ in given.pairs[:NUM_READ])
    message = f"{len(given.pairs):,} pairs"
    if (held_out := given.facts.held_out) is not None:
        message += f", {held_out.pairs:,} held out"
    if given.sequences is not None:
        by = "max_steps" if config.max_steps > 0 else f"epochs {config.epochs:g}"
        message += f"; an epoch has {given.sequences:,} sequences: {given.facts.steps:,} optimizer steps of "
        message += f"{config.batch_size} ({by})"
    yield Finding("data", "ok", f"{message}; {1000 * (time.perf_counter() - start_time) / max(1, number):.0f} ms to read one")
    if given.sample is not None:
        yield _tokens(config, given.sample)


def _pictures(pairs: Sequence[PreferencePair]) -> Iterator[Finding]:
    """Yield a finding where pictures cannot be decoded."""
    if errors := unreadable_rows(pairs):
        message = f"{len(errors):,} of {len(pairs):,} pairs cannot be read, such as: {next(iter(errors.values()))}"
        yield Finding("pictures", "failed", f"{message}. `rewardlab data validate` lists them all")


def _tokens(config: TrainConfig, sample: DataSample) -> Finding:
    totals = sample.totals
    message = f"of {len(totals):,} samples: median {sample.median:,}, longest {max(totals):,}, the room of an answer included"
    if not sample.is_exact:
        message += f" (no tokenizer is here: {BYTES_PER_TOKEN:g} bytes of text are taken for a token)"
    if not sample.num_too_long:
        return Finding("tokens", "ok", message)
    message += f"; {sample.num_too_long:,} are longer than max_tokens {config.max_tokens:,} and would be left out"
    return Finding("tokens", "failed" if sample.num_too_long == len(totals) else "look", message)


def _services(config: TrainConfig, *, dry: bool) -> Iterator[Finding]:
    """Yield the findings on what runs beside the trainer: an engine, and the endpoint of the consistency reward."""
    if isinstance(config, MethodConfig) and (engine := config.engine):
        if dry:
            yield Finding("engine", "look", f"{engine.kind}: not looked for in a dry run")
        else:
            yield _try("engine", lambda: _engine(engine))
    if isinstance(config, RLConfig) and config.consistency.weight:
        checker = f"{config.consistency.model} at {config.consistency.base_url}"
        if dry:
            yield Finding("consistency", "look", f"{checker}: not asked in a dry run; consistency.weight=0 does without")
        else:
            yield _try("consistency", lambda: _consistency(config))


def _try_run(config: TrainConfig, plan: Plan, pairs: Sequence[PreferencePair]) -> Iterator[Finding]:
    """Yield the findings that need weights and data: tokens, a judgment, a step."""
    gpus = torch.cuda.device_count()
    device = f"{gpus} x {torch.cuda.get_device_name(0)}" if gpus else f"no GPU; {os.cpu_count()} cores"
    yield Finding("devices", "ok" if gpus else "look", device)
    if config.report_to != "none":
        yield _try("trackers", lambda: ", ".join(trackers(config.report_to)))
    if not pairs:
        return
    try:
        check_folder(config.model)
    except CheckpointError as error:
        yield Finding("weights", "look", f"{error}. Judgment and step are left out; --model NAME says what to try them with")
        return
    if not isinstance(config, RMConfig):  # which writes none
        yield _try("judgment", lambda: _judgment(config, pairs))
    if plan.launch.processes > 1:
        message = (
            f"not taken: it is one of {plan.launch.processes} processes; start the run under its launcher with max_steps: 1"
        )
        yield Finding("one step", "look", message)
    elif isinstance(config, SFTConfig | RLConfig):
        yield _try("one step", lambda: _one_step(config, pairs))


def _judges(names: Sequence[str]) -> str | Finding:
    """Return what the judges are called; a checkpoint folder that is not there yet is to be looked at."""
    specs = [JudgeSpec.parse(name, "rm") for name in names]
    try:
        for spec in specs:
            if spec.engine in (HF, "rm"):
                check_folder(spec.target)
    except CheckpointError as error:
        return Finding("judge", "look", str(error))
    return ", ".join(map(str, specs))


def _engine(engine: EngineConfig) -> str:
    check_engine(engine)
    return f"{engine.kind}: vLLM is there"


def _consistency(config: RLConfig) -> str:
    import asyncio

    judge = consistency_judge(config)
    assert judge is not None
    asyncio.run(judge.check())
    return f"{config.consistency.model} answers at {config.consistency.base_url}"


def _judgment(config: TrainConfig, pairs: Sequence[PreferencePair]) -> str:
    """Make a few real judgments; a base model that writes none is no failure before its cold start."""
    template = template_of(config)
    with tempfile.TemporaryDirectory() as folder:
        sampler = HFSampler(*load_policy(config, Path(folder)))
        sampler.model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
        prompts = [build_messages(pair, order=pair.order, template=template) for pair in pairs[:NUM_JUDGED]]
        start_time = time.perf_counter()
        longest = config.max_completion_length if isinstance(config, MethodConfig) else 512
        with torch.autocast(sampler.model.device.type, torch.bfloat16, enabled=precision.trains_in_bfloat16()):
            completions = sampler.sample(prompts, SamplingParams(1, 1.0, max_tokens=longest))
        seconds = time.perf_counter() - start_time
    texts = [samples[0].text for samples in completions]
    if isinstance(config, PolicyConfig):  # it answers; what its judge makes of that is not asked here
        ended = sum(samples[0].finish is FinishReason.STOP for samples in completions)
        return f"{ended} of {len(texts)} answers ended in {seconds:.1f} s. The first: {texts[0][:200]!r}"
    num_valid = sum(parse_verdict(text, template.verdict_format).status is VerdictStatus.OK for text in texts)
    tokens = sum(samples[0].num_tokens for samples in completions)
    first = texts[0][:200]
    return f"{num_valid} of {len(texts)} have a verdict; {tokens} tokens in {seconds:.1f} s. The first: {first!r}"


def _trial(config: SFTConfig | RLConfig) -> dict[str, Any]:
    """Return what a trial does otherwise than the run: it fits no critic, holds nothing out, and ends at no sign."""
    fit = {"value_pretrain_steps": 0} if isinstance(config, RLConfig) else {}
    health = config.health.model_copy(update={"policy": "warn"})
    return {**fit, "evaluation": EvaluationConfig.model_validate({}), "health": health}


def _one_step(config: SFTConfig | RLConfig, pairs: Sequence[PreferencePair]) -> str:
    """Take one optimizer step of the real run on its first pairs, in a temporary folder."""
    num_pairs = max(2 * config.batch_size, config.rollout_batch_size if isinstance(config, RLConfig) else 0)
    with tempfile.TemporaryDirectory() as folder:
        once, out = config.model_copy(update={"max_steps": 1, "report_to": "none", **_trial(config)}), Path(folder) / "run"
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        start_time = time.perf_counter()
        if isinstance(once, RLConfig):
            hard = [n for n, facts in enumerate(pair_facts(pairs)) if facts.attempts in once.attempts]
            train_rl(select_pairs(pairs, hard[:num_pairs]) if hard else pairs[:num_pairs], once, out)
        elif isinstance(once, RMConfig):
            known = [n for n, facts in enumerate(pair_facts(pairs)) if facts.preferred is not None]
            train_reward_model(select_pairs(pairs, known[:num_pairs]), once, out)
        else:
            judged = [n for n, facts in enumerate(pair_facts(pairs)) if facts.judged]
            train_sft(select_pairs(pairs, judged[:num_pairs]) if judged else pairs[:num_pairs], once, out)
        seconds = time.perf_counter() - start_time
    peak = f", at most {torch.cuda.max_memory_allocated() / GIB:.1f} GiB" if torch.cuda.is_available() else ""
    return f"taken and saved in {seconds:.0f} s, loading included{peak}"
