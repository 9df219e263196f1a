"""Open the judge that a specification names, through the engine it names."""

from __future__ import annotations

from importlib import import_module

from rewardlab.errors import ConfigError
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.judging.margins import READ_BY_PROBABILITY, ProbabilityJudge
from rewardlab.judging.spec import ENGINES, JudgeSpec
from rewardlab.models.checkpoints import load_template_for
from rewardlab.prompts import DEFAULT_TEMPLATE, load_template
from rewardlab.samplers.base import EngineOptions, Sampler
from rewardlab.samplers.self_verifying import SelfVerifying


def open_engine(spec: JudgeSpec, options: EngineOptions) -> Sampler:
    """Return the sampler of an engine on its target. Raise what its ``open_sampler`` raises."""
    sampler: Sampler = import_module(ENGINES[spec.engine].module).open_sampler(spec.target, options)
    return sampler


def open_judge(
    spec: str,
    *,
    template: str | None = None,
    temperature: float = 1.0,
    top_p: float = 1.0,
    max_tokens: int = 1024,
    batch_size: int = 64,
    api_key: str = "none",
    engine_args: str = "",
    restart_after_s: float | None = None,
) -> GenerativeJudge:
    """Return the judge that ``spec`` names (:mod:`rewardlab.judging.spec`).

    ``template``: by default the one a checkpoint was trained on. ``batch_size`` is of ``hf:``, ``api_key`` of ``openai:``,
    ``engine_args`` (options of ``vllm serve``) of ``vllm:``. ``restart_after_s``: the engine runs in a process of its own,
    which is started again if it dies or takes more than so many seconds. A local checkpoint that was trained to give the
    verdict alone is read by probability without ``prob:`` too. Raise ConfigError, CheckpointError, EndpointError.
    """
    parsed = JudgeSpec.parse(spec)
    checkpoint = parsed.checkpoint
    words = load_template(template or DEFAULT_TEMPLATE) if checkpoint is None else load_template_for(parsed.target, template)
    by_probability = parsed.by_probability or (checkpoint is not None and words.verdict_format == "bare")
    if by_probability and words.verdict_format not in READ_BY_PROBABILITY:
        raise ConfigError(
            f"{spec!r}: probabilities are read where <answer> stands, or of a bare verdict, not in {words.verdict_format}; "
            "leave prob: out"
        )
    if by_probability and parsed.verifies:
        raise ConfigError(f"{spec!r}: a judge that weighs probabilities of single verdicts has no judgment to verify")
    sampler = open_engine(parsed, EngineOptions(batch_size, api_key, engine_args, restart_after_s))
    judge = ProbabilityJudge if by_probability else GenerativeJudge
    return judge(
        SelfVerifying(sampler) if parsed.verifies else sampler,
        words,
        temperature=temperature,
        top_p=top_p,
        max_tokens=max_tokens,
        spec=spec,
    )
