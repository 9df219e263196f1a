"""Checks of a planned run: its config, machines and data without weights, then a trial with weights and data."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from rewardlab.config import (
    SCHEMAS,
    DistillConfig,
    DPOConfig,
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
from rewardlab.data.pair_table import pair_facts, select_pairs, without_ties
from rewardlab.data.set_checks import tie_note
from rewardlab.distill.pipeline import refuse_unfit
from rewardlab.errors import CheckpointError, ConfigError, RewardlabError
from rewardlab.health.dataset import (
    BYTES_PER_TOKEN,
    DataFacts,
    DataSample,
    PairCounter,
    data_facts,
    spread_numbers,
    template_of,
    trained_pairs,
)
from rewardlab.health.memory import GIB
from rewardlab.health.plan import Finding, Outcome, Plan, needs
from rewardlab.judging.spec import JudgeSpec
from rewardlab.models import precision
from rewardlab.models.architectures import ARCHITECTURES
from rewardlab.models.checkpoints import check_folder
from rewardlab.models.loading import load_policy
from rewardlab.prompts import build_messages, load_template
from rewardlab.rewards.judgment import load_terms
from rewardlab.samplers.base import HEADS, HF, SamplingParams
from rewardlab.samplers.hf import HFSampler
from rewardlab.training.policy_gradient.rollouts.engine import check_engine
from rewardlab.training.reward_model import train_reward_model
from rewardlab.training.rl import consistency_judge, train_rl
from rewardlab.training.run.capabilities import capability_report
from rewardlab.training.run.folder import micro_batch_size, micro_batches, trackers
from rewardlab.training.run.inputs import unreadable_rows
from rewardlab.training.sft import train_sft
from rewardlab.types import FinishReason, PreferencePair, VerdictStatus
from rewardlab.verdicts.parse import parse_verdict

NUM_JUDGED, NUM_READ = 4, 20
FRAMES = 8  # of a video, for a teacher
PICTURES_LIKE = "Qwen/Qwen2.5-VL-7B-Instruct"  # whose tokens of pictures stand in for those of an unknown teacher
ReadPairs = Callable[[int, str], Sequence[PreferencePair]]  # (frames of a video, model) -> pairs


def examine_plan(
    path: Path,
    stage: str,
    plan: Plan,
    read: ReadPairs | None = None,
    *,
    changes: Mapping[str, Any] | None = None,
    dry: bool = False,
) -> Iterator[Finding]:
    """Yield the findings on a config one by one. ``read``: returns the pairs of the run, None without data; ``changes``
    override keys of the config; ``dry`` leaves out all checks that need weights."""
    try:
        config = load_config(SCHEMAS[stage], path, changes)
    except ConfigError as error:
        yield Finding("config", "failed", str(error))
        return
    defaults = {name: field.get_default(call_default_factory=True) for name, field in type(config).model_fields.items()}
    differing = sorted(name for name in defaults if getattr(config, name) != defaults[name])
    yield Finding("config", "ok", f"stage {stage}; differs from the defaults in {', '.join(differing) or 'nothing'}")
    if isinstance(config, DistillConfig):
        yield from _distillation(config, read)
    if isinstance(config, TrainConfig):
        yield from _training(config, plan, read, dry=dry)


def is_suite(path: Path) -> bool:
    """Return whether a file lists benchmarks; False for one that cannot be read, whose examination says why."""
    try:
        return "benchmarks" in load_yaml(path)
    except ConfigError:
        return False


def examine_suite(path: Path, changes: Mapping[str, Any] | None = None) -> Finding:
    """Return the finding on the config of a suite of benchmarks."""
    try:
        suite = load_config(SuiteConfig, path, changes)
    except ConfigError as error:
        return Finding("config", "failed", str(error))
    names = ", ".join(entry.benchmark for entry in suite.benchmarks)
    return Finding("config", "ok", f"a suite, {suite.title}: benchmarks {names}")


def _training(config: TrainConfig, plan: Plan, read: ReadPairs | None, *, dry: bool) -> Iterator[Finding]:
    yield _try("template", lambda: f"{config.template}, hash {template_of(config).hash}")
    if isinstance(config, RLConfig) and config.reward_terms:
        yield _try("reward terms", lambda: ", ".join(term.name for term in load_terms(config.reward_terms)))
    if isinstance(config, PolicyConfig):
        yield _try("judge", lambda: _judges(config.loaded_judges))
    yield _try("model", lambda: _model(config))
    yield _try("batches", lambda: _batches(config, plan.launch.processes))
    facts = DataFacts()
    if read is None:
        message = "no data: with --data PAIRS steps and tokens are counted, some pairs judged and one step trained"
        yield Finding("data", "look", message)
    else:
        try:
            facts = data_facts(read(config.frames, config.model), config)
        except Exception as error:  # the boundary: whatever a library raises would have ended the run
            yield _failure("data", error)
        else:
            if facts.sequences == 0:
                what = "no pair is left to train on: expected judgments (SFT), labels, or the tags that `attempts` names (RL)"
                yield Finding("data", "failed", f"{len(facts.pairs):,} pairs; {what}")
                return
            yield from _try_all("data", lambda: _data(config, facts))
            yield from _try_all("pictures", lambda: _pictures(facts.pairs))
    yield from _try_all("memory", lambda: needs(config, plan, facts))
    if plan.launch.zero and not dry and find_spec("deepspeed") is None:
        message = "DeepSpeed is not installed here: pip install 'rewardlab[deepspeed]' on the run's machine"
        yield Finding("launcher", "look", message)
    yield from _services(config, dry=dry)
    if not dry:
        yield from _try_run(config, plan, facts.pairs)


def _try(name: str, check: Callable[[], str | Finding]) -> Finding:
    """Return the finding of ``check``, or what it raises as a failure."""
    try:
        result = check()
    except Exception as error:  # the boundary, as above
        return _failure(name, error)
    return result if isinstance(result, Finding) else Finding(name, "ok", result)


def _try_all(name: str, check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """Yield the findings of ``check``, and what it raises as a failure."""
    try:
        yield from check()
    except Exception as error:  # the boundary, as above
        yield _failure(name, error)


def _failure(name: str, error: Exception) -> Finding:
    kind = "" if isinstance(error, RewardlabError) else f"{type(error).__name__}: "
    return Finding(name, "failed", f"{kind}{error}")


# Distillation.


def _distillation(config: DistillConfig, read: ReadPairs | None) -> Iterator[Finding]:
    missing = sorted(name for name in config.api_key_envs if not os.environ.get(name))
    message = f"no {', '.join(missing)} in the environment: only right for a server without keys" if missing else "there"
    yield Finding("keys", "look" if missing else "ok", message)
    if read is None:
        yield Finding("cost", "look", "no data: --data PAIRS gives the most that their judgments can cost")
    else:
        yield _try("cost", lambda: distillation_cost(config, read(FRAMES, config.model)))


def distillation_cost(config: DistillConfig, pairs: Sequence[PreferencePair]) -> Finding:
    """Return the most that a teacher's judgments of ``pairs`` can cost: all attempts, answers of ``max_tokens``. Raise
    DataError or MediaError."""
    num_pairs, pairs = len(pairs), without_ties(pairs)
    tie_note(num_pairs - len(pairs), num_pairs)
    facts = list(pair_facts(pairs))
    unlabelled = [fact.pair_id for fact in facts if fact.preferred is None]
    refuse_unfit(len(facts), len({fact.pair_id for fact in facts}), unlabelled)
    name = config.model if config.model in ARCHITECTURES else PICTURES_LIKE
    limits = SFTConfig.model_validate({"max_tokens": None})
    counter = PairCounter(limits, load_template(config.template), ARCHITECTURES[name](), None, answers=False)
    prompt = fmean(counter.tokens(pairs[n]).prompt for n in spread_numbers(len(pairs)))
    requests = len(facts) * (config.votes or config.max_attempts)
    usd = requests * config.prices.usd(round(prompt), config.max_tokens)
    budget = config.budget.usd
    exceeds = budget is not None and usd > budget
    price = f"at most {usd:,.2f} US dollars by the config's prices" if usd else "the config has no prices"
    message = (
        f"{len(facts):,} pairs: at most {requests:,} requests of {prompt:,.0f} tokens on average ({BYTES_PER_TOKEN:g} bytes of "
        f"text a token, pictures as {name} reads them) with answers of at most {config.max_tokens:,}; {price}"
    )
    over = f", more than its budget of {budget:,.2f}" if exceeds else ""
    return Finding("cost", "look" if exceeds else "ok", message + over)


# A training run without weights.


def _model(config: TrainConfig) -> str | Finding:
    """Return what two layers of random weights can do behind the model's processor; a "look" for a model that is not here."""
    try:
        return capability_report(config)
    except CheckpointError as error:
        if Path(config.model).is_dir():
            raise
        return Finding("model", "look", f"{error}. Images, sampling and the chat template are not checked")


def _batches(config: TrainConfig, processes: int) -> str:
    parts = micro_batches(config, config.batch_size, processes)
    size, rows = config.batch_size, config.micro_batch_size
    message = f"{size} = {processes} x {rows} x {parts} micro-batches"
    if not isinstance(config, MethodConfig):
        return message
    micro_batches(config, config.rollout_batch_size, processes)  # raises
    if config.value_pretrain_batch_size:
        micro_batch_size(rows, config.value_pretrain_batch_size, processes)  # raises
    return f"{message}; rollout batches of {config.rollout_batch_size}, {config.rollout_batch_size // processes} a process"


def _data(config: TrainConfig, facts: DataFacts) -> Iterator[Finding]:
    """Yield the number of pairs, the steps of the run, the time to read a pair, and lengths."""
    start_time = time.perf_counter()
    number = sum(1 for _ in facts.pairs[:NUM_READ])
    read_ms = 1000 * (time.perf_counter() - start_time) / max(1, number)
    held_out = f", {facts.held_out.pairs:,} held out" if facts.held_out else ""
    by = "max_steps" if config.max_steps > 0 else f"epochs {config.epochs:g}"
    steps = (
        f"; an epoch has {facts.sequences:,} sequences: {facts.steps:,} optimizer steps of {config.batch_size} ({by})"
        if facts.sequences is not None
        else ""
    )
    yield Finding("data", "ok", f"{len(facts.pairs):,} pairs{held_out}{steps}; {read_ms:.0f} ms to read one")
    if facts.sample is not None:
        yield _tokens(config, facts.sample)


def _pictures(pairs: Sequence[PreferencePair]) -> Iterator[Finding]:
    """Yield a finding if pictures cannot be decoded."""
    if errors := unreadable_rows(pairs):
        message = f"{len(errors):,} of {len(pairs):,} pairs cannot be read, such as: {next(iter(errors.values()))}"
        yield Finding("pictures", "failed", f"{message}. `rewardlab data validate` lists them all")


def _tokens(config: TrainConfig, sample: DataSample) -> Finding:
    totals, too_long = sample.totals, sample.num_too_long
    by_bytes = "" if sample.is_exact else f" (without a tokenizer: {BYTES_PER_TOKEN:g} bytes of text are a token)"
    message = f"{len(totals):,} samples with room for an answer: median {sample.median:,}, longest {max(totals):,}{by_bytes}"
    outcome: Outcome = "ok"
    if too_long:
        outcome = "failed" if too_long == len(totals) else "look"
        message = f"{message}; {too_long:,} are longer than max_tokens {config.max_tokens:,} and would be left out"
    return Finding("tokens", outcome, message)


def _services(config: TrainConfig, *, dry: bool) -> Iterator[Finding]:
    """Yield the findings on the services of a run: its engine, and the endpoint of the consistency reward."""
    if isinstance(config, MethodConfig) and (engine := config.engine):
        if dry:
            yield Finding("engine", "look", f"{engine.kind}: not checked in a dry run")
        else:
            yield _try("engine", lambda: _engine(engine))
    if isinstance(config, RLConfig) and config.consistency.weight:
        checker = f"{config.consistency.model} at {config.consistency.base_url}"
        if dry:
            yield Finding("consistency", "look", f"{checker}: not checked in a dry run; consistency.weight=0 does without")
        else:
            yield _try("consistency", lambda: _consistency(config))


def _try_run(config: TrainConfig, plan: Plan, pairs: Sequence[PreferencePair]) -> Iterator[Finding]:
    """Yield the findings that need weights and data: devices, trackers, some judgments, one step."""
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
        yield Finding("weights", "look", f"{error}. Judgment and step are skipped; model=NAME tries them with another model")
        return
    if not isinstance(config, RMConfig):
        yield _try("judgment", lambda: _judgment(config, pairs))
    if isinstance(config, DPOConfig):
        message = "skipped: its comparisons are made of votes; start the run with max_steps=1 to try a step"
        yield Finding("one step", "look", message)
    elif plan.launch.processes > 1:
        message = f"skipped: it needs {plan.launch.processes} processes; start the run under its launcher with max_steps: 1"
        yield Finding("one step", "look", message)
    elif isinstance(config, SFTConfig | RLConfig):
        yield _try("one step", lambda: _one_step(config, pairs))


def _judges(names: Sequence[str]) -> str | Finding:
    """Return the names of the judges, or a "look" for a checkpoint folder that does not exist yet."""
    specs = [JudgeSpec.parse(name, "rm") for name in names]
    try:
        for spec in specs:
            if spec.engine in (HF, HEADS, "rm"):
                check_folder(spec.target)
    except CheckpointError as error:
        return Finding("judge", "look", str(error))
    return ", ".join(map(str, specs)) or "none: rules pay for all pairs"


def _engine(engine: EngineConfig) -> str:
    check_engine(engine)
    return f"{engine.kind}: vLLM is installed"


def _consistency(config: RLConfig) -> str:
    import asyncio

    judge = consistency_judge(config)
    assert judge is not None
    asyncio.run(judge.check())
    return f"{config.consistency.model} answers at {config.consistency.base_url}"


def _judgment(config: TrainConfig, pairs: Sequence[PreferencePair]) -> str:
    """Make a few judgments. A base model without verdicts is no failure: SFT is what teaches them."""
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
    if isinstance(config, PolicyConfig):  # it answers questions, it does not judge
        good, what = sum(samples[0].finish is FinishReason.STOP for samples in completions), "answers ended"
    else:
        good = sum(parse_verdict(text, template.verdict_format).status is VerdictStatus.OK for text in texts)
        what = "have a verdict"
    tokens = sum(samples[0].num_tokens for samples in completions)
    return f"{good} of {len(texts)} {what}; {tokens} tokens in {seconds:.1f} s. The first: {texts[0][:200]!r}"


def _trial(config: SFTConfig | RLConfig) -> dict[str, Any]:
    """Return the keys in which a trial differs from the run: no critic's fit, no held-out pairs, a watchdog that only warns."""
    fit = {"value_pretrain_steps": 0} if isinstance(config, RLConfig) else {}
    health = config.health.model_copy(update={"policy": "warn"})
    return {**fit, "evaluation": EvaluationConfig.model_validate({}), "health": health}


def _one_step(config: SFTConfig | RLConfig, pairs: Sequence[PreferencePair]) -> str:
    """Train one optimizer step of the run on its first pairs, in a temporary folder."""
    num_pairs = max(2 * config.batch_size, config.rollout_batch_size if isinstance(config, RLConfig) else 0)
    with tempfile.TemporaryDirectory() as folder:
        once, out = config.model_copy(update={"max_steps": 1, "report_to": "none", **_trial(config)}), Path(folder) / "run"
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        start_time = time.perf_counter()
        some = _first_pairs(once, pairs, num_pairs)
        if isinstance(once, RLConfig):
            train_rl(some, once, out)
        elif isinstance(once, RMConfig):
            train_reward_model(some, once, out)
        else:
            train_sft(some, once, out)
        seconds = time.perf_counter() - start_time
    peak = f", at most {torch.cuda.max_memory_allocated() / GIB:.1f} GiB" if torch.cuda.is_available() else ""
    return f"trained and saved in {seconds:.0f} s, loading included{peak}"


def _first_pairs(config: TrainConfig, pairs: Sequence[PreferencePair], number: int) -> Sequence[PreferencePair]:
    """Return the first pairs that a stage trains on; for RL hard ones, or any if none is tagged."""
    if not isinstance(config, RLConfig):
        return trained_pairs(config, pairs)[:number]
    hard = [n for n, fact in enumerate(pair_facts(pairs)) if fact.attempts in config.attempts]
    return select_pairs(pairs, hard[:number]) if hard else pairs[:number]
