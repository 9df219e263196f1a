"""What it takes to ask a model about pairs, before it is asked: a teacher behind an endpoint, and judges of a suite on a card.

Estimates. What they rest on is said in each sentence: lengths of the data, attempts and lengths of judgments by assumption.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import cast

from rewardlab.benchmarks.passes import AnyJudge
from rewardlab.benchmarks.rows import has_other_images, load_rows
from rewardlab.benchmarks.settings import BenchSettings
from rewardlab.benchmarks.suite import entry_settings
from rewardlab.config import DistillConfig, SFTConfig, SuiteConfig
from rewardlab.data.pair_table import pair_facts
from rewardlab.distill.pipeline import refuse_unfit
from rewardlab.errors import ConfigError
from rewardlab.health.cards import TYPICAL, GraphicsCard
from rewardlab.health.decoding import ENGINE_STEP_S
from rewardlab.health.finding import Finding, Outcome
from rewardlab.health.lengths import BYTES_PER_TOKEN, count_sample
from rewardlab.health.memory import kv_bytes
from rewardlab.health.plan import Plan
from rewardlab.health.shapes import shapes_of
from rewardlab.health.step_time import cached_seconds, reading_seconds
from rewardlab.health.units import hours_text, weights_text
from rewardlab.models.architectures import ARCHITECTURES, build_on_meta
from rewardlab.models.checkpoints import load_template_for
from rewardlab.prompts import Template, load_template
from rewardlab.types import PreferencePair

RIGHT = 0.85  # of judgments agree with the label, at each attempt
JUDGMENT_TOKENS = 690  # the mean of the paper's judgments (arXiv 2505.02835)
VERDICT_TOKENS = 3  # of a template that asks for the verdict alone, its end included
TOKENS_PER_S = 40.0  # of an endpoint's answer to one request
AT_ONCE = 256  # sequences that an engine has side by side
LIKE = "Qwen/Qwen2.5-VL-7B-Instruct"  # whose tokens of pictures are counted where the model's are not known


@dataclass(frozen=True)
class Load:
    """``requests`` of ``prompt`` tokens each, pictures included, and of ``answer`` tokens; ``source`` of the lengths."""

    requests: int
    prompt: float
    answer: float
    source: str

    @property
    def text(self) -> str:
        prompt = f"{self.prompt:,.0f} tokens of prompt ({self.source})"
        return f"{self.requests:,} requests of {prompt} and {self.answer:,.0f} of answer"


def prompt_tokens(pairs: Sequence[PreferencePair], template: Template, model: str) -> tuple[float, str]:
    """Return the mean tokens of prompts, and how they were counted: text by its bytes, pictures by the sizes of a part of the
    data, as ``model`` shows them, or :data:`LIKE` where that is not known. Raise DataError and MediaError."""
    config = ARCHITECTURES.get(model, ARCHITECTURES[LIKE])()
    limits = SFTConfig.model_validate({"max_tokens": None})
    sample = count_sample(pairs, limits, template, config, None, room=0, answers=False)
    of = (
        "" if model in ARCHITECTURES or not any(pair.pictures for pair in sample.spread) else f", pictures as {LIKE} reads them"
    )
    return fmean(
        pair.prompt for pair in sample.spread
    ), f"{BYTES_PER_TOKEN:g} bytes of text a token, in {len(sample.spread):,} pairs{of}"


def teacher_findings(config: DistillConfig, pairs: Sequence[PreferencePair]) -> Iterator[Finding]:
    """Yield what a teacher's judgments of pairs would cost, in tokens, dollars and hours."""
    facts = list(pair_facts(pairs))
    refuse_unfit(len(facts), len({of.pair_id for of in facts}), [of.pair_id for of in facts if of.preferred is None])
    template = load_template(config.template)
    answer = answer_length(template, min(JUDGMENT_TOKENS, config.max_tokens))
    attempts = sum((1 - RIGHT) ** n for n in range(config.max_attempts))
    each = config.votes or attempts
    how = f"{config.votes} votes each" if config.votes else f"{each:.2f} attempts each, {100 * RIGHT:.0f} % of them right"
    prompt, source = prompt_tokens(pairs, template, config.model)
    load = Load(math.ceil(len(facts) * each), prompt, answer, source)
    message = f"{len(facts):,} pairs, {how}: {load.text}"
    message += " (the paper's mean)" if answer == JUDGMENT_TOKENS else ""
    usd = load.requests * config.prices.usd(round(prompt), answer)
    message += f", about {usd:,.2f} US dollars by the config's prices" if usd else "; the config has no prices"
    exceeds = config.budget.usd is not None and usd > config.budget.usd
    outcome: Outcome = "look" if exceeds else "ok"
    if exceeds:
        message += f", more than its budget of {config.budget.usd:,.2f}"
    if config.transport == "batch":
        yield Finding("cost", outcome, f"{message}; a batch is answered within a day")
        return
    seconds = load.requests * answer / TOKENS_PER_S / (config.concurrency * len(config.base_urls))
    message += (
        f"; {hours_text(seconds)} at {TOKENS_PER_S:.0f} tokens a second for each of {config.concurrency} requests at a time"
    )
    message += f" and {len(config.base_urls)} endpoints" if len(config.base_urls) > 1 else ""
    yield Finding("cost", outcome, f"{message}. Attempts, length and rate are assumed")


def suite_findings(suite: SuiteConfig, root: Path, plan: Plan) -> Iterator[Finding]:
    """Yield how long a judge on a card would take for each benchmark of a suite, whose data is in ``root``, and for all.

    Raise DataError and MediaError of the data, ConfigError of the suite.
    """
    name = plan.model or LIKE
    if (model := build_on_meta(name)) is None:
        yield Finding(
            "time", "look", f"{name} is not known; --model names a checkpoint folder or one of {', '.join(ARCHITECTURES)}"
        )
        return
    card, shapes = plan.known_card or TYPICAL, shapes_of(model)
    total = 0.0
    for settings in entry_settings(suite, root, f"hf:{name}"):
        load = benchmark_load(settings, name)
        rounds = math.ceil(load.requests / AT_ONCE)
        cached = min(load.requests, AT_ONCE) * (load.prompt + load.answer / 2) * kv_bytes(shapes)
        drawing = rounds * load.answer * (ENGINE_STEP_S + cached_seconds(shapes.total, cached, card))
        seconds = drawing + reading_seconds(shapes.total, load.requests * load.prompt, card)
        total += seconds
        yield Finding(settings.benchmark, "ok", f"{load.text} at most: {hours_text(seconds)}")
    yield Finding("time", "ok", _total_sentence(total, weights_text(shapes.total), card, plan))


def benchmark_load(settings: BenchSettings, model: str) -> Load:
    """Return what a benchmark asks of a judge that looks: votes and controls of each pair, in its orders. Answers count as long
    as they may be. Raise DataError, MediaError and ConfigError for what the benchmark refuses."""
    if settings.judge.orders == "recorded":
        raise ConfigError(f"{settings.benchmark}: orders=recorded is for recordings (--judge replay:FILE); leave it out")
    rows, _ = load_rows(settings, cast(AnyJudge, SimpleNamespace(sees=True, name=settings.judge.judge, rows=None)))
    pairs = [row.pair for row in rows]
    controls = {"greedy": True, "blank": any(map(has_images, pairs)), "other": has_other_images(pairs)}
    passes = (settings.judge.votes or 1) + sum(controls[name] for name in settings.controls)
    template = load_template_for(model, settings.judge.template)
    prompt, source = prompt_tokens(pairs, template, model)
    orders = 2 if settings.judge.orders in ("auto", "both") else 1
    return Load(len(rows) * orders * passes, prompt, answer_length(template, settings.judge.max_tokens), source)


def has_images(pair: PreferencePair) -> bool:
    return bool(pair.images) or any(pair.response_images)


def answer_length(template: Template, most: int) -> int:
    """Return ``most``, or the few tokens of an answer that is the verdict alone."""
    return min(most, VERDICT_TOKENS) if template.verdict_format == "bare" else most


def _total_sentence(seconds: float, weights: str, card: GraphicsCard, plan: Plan) -> str:
    text = f"{hours_text(seconds)} for a judge of {weights} weights on one {card.name}"
    if plan.known_card is None:
        text += " (--card says which card it is; an H100 is assumed)"
    if plan.price is not None:
        text += f", {seconds / 3600 * plan.price:,.2f} US dollars"
    return f"{text}, by an engine with {AT_ONCE} answers side by side; estimated from shapes, start not counted"
