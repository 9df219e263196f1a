"""Open the judge that a specification names: through its engine, at its address, or as a panel of several."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib import import_module
from typing import Any

from rewardlab.config.judge import JudgeConfig
from rewardlab.data.urls import parse_address
from rewardlab.errors import ConfigError, missing_package
from rewardlab.judging.judge import GenerativeJudge, ModelJudge
from rewardlab.judging.lists import ListJudge
from rewardlab.judging.margins import READ_BY_PROBABILITY, ProbabilityJudge
from rewardlab.judging.spec import (
    ENGINES,
    PANEL,
    POOL,
    SERVED,
    WITHOUT_SAMPLER,
    JudgeSpec,
    cache_folder,
    check_keys,
    effective_keys,
    judge_config,
)
from rewardlab.models.checkpoints import card_temperature, load_card, template_of_card
from rewardlab.prompts import DEFAULT_TEMPLATE, Template, load_template, require_judgments, require_one_turn, require_pairs
from rewardlab.samplers.base import HEADS, OPENAI, EngineOptions, Sampler, SelfVerifying
from rewardlab.verdicts.lists import LIST_FORMATS, SCORES

OPENAI_URL = "https://api.openai.com/v1"


def open_engine(spec: JudgeSpec, options: EngineOptions) -> Sampler:
    """Return the sampler of an engine on its target. Raise what its ``open_sampler`` raises, and MissingPackageError where the
    engine needs an extra that is not installed."""
    try:
        sampler: Sampler = import_module(ENGINES[spec.engine].module).open_sampler(spec.target, options)
    except ModuleNotFoundError as error:
        raise missing_package(error) or error from error
    return sampler


def open_model_judge(judge: str | JudgeConfig, *, api_key: str = "", server_key: str = "", **keys: Any) -> ModelJudge:
    """Return a judge of an engine, a served one, a panel or a pool.

    ``judge``: what :func:`rewardlab.judging.spec.judge_config` takes; ``keys``: those of a config, over it. ``api_key`` is for
    ``openai:`` (default: the variable that ``api_key_env`` names), ``server_key`` for ``http://...`` (default: the variable
    REWARDLAB_API_KEY). Raise ConfigError for a key without an effect on this judge, and what :func:`open_generative_judge`
    raises.
    """
    config = judge_config(judge, keys)
    parsed = JudgeSpec.parse(config.judge, *WITHOUT_SAMPLER)
    check_keys(config)
    if parsed.engine == SERVED:
        from rewardlab.judging.served import ServedJudge

        return ServedJudge(parsed.target, api_key=server_key or os.environ.get("REWARDLAB_API_KEY", ""), config=config)
    if parsed.engine not in WITHOUT_SAMPLER:
        return open_generative_judge(config, api_key=api_key)
    from rewardlab.judging.panel import PanelJudge

    if nested := [member for member in parsed.members if member.startswith(("panel:", "pool:"))]:
        raise ConfigError(
            f"{config.judge!r}: members of a panel must be judges, not panels; name the members of {nested[0]!r} themselves"
        )
    values = config.model_dump(exclude_defaults=True)
    members = [
        open_model_judge(
            JudgeConfig.model_validate(
                {name: values[name] for name in values.keys() & effective_keys(member)} | {"judge": member}
            ),
            api_key=api_key,
            server_key=server_key,
        )
        for member in parsed.members
    ]
    return PanelJudge(members, by_log_odds=parsed.engine == POOL, config=config)


def open_generative_judge(
    judge: str | JudgeConfig,
    *,
    api_key: str = "",
    restart_after_s: float | None = None,
    **keys: Any,
) -> GenerativeJudge:
    """Return the judge of an engine; ``judge``, ``api_key`` and ``keys`` as for :func:`open_model_judge`.

    ``restart_after_s``: the engine runs in a process of its own, restarted if it dies or takes more than so many seconds.
    A local checkpoint that was trained to give the verdict alone is read by probability without ``prob:`` too. Probabilities
    have the temperature that is stored with the checkpoint (``rewardlab bench calibrate``), unless ``prob@TAU:`` names
    another. Raise ConfigError, CheckpointError, EndpointError.
    """
    config = judge_config(judge, keys)
    key = api_key or os.environ.get(config.api_key_env) or "none"
    parsed = _with_address(JudgeSpec.parse(config.judge), config, key)
    check_keys(config)
    checkpoint, stored = parsed.checkpoint, 1.0
    if checkpoint is None:
        template = load_template(config.template or DEFAULT_TEMPLATE)
    else:
        card = load_card(parsed.target, from_hub=True)
        template, stored = template_of_card(card, parsed.target, config.template), card_temperature(card, parsed.target)
    if parsed.engine == HEADS:
        template = replace(template, verdict_format=SCORES)
    by_probability = parsed.by_probability or (checkpoint is not None and template.verdict_format == "bare")
    if by_probability and template.verdict_format not in READ_BY_PROBABILITY:
        raise ConfigError(
            f"{config.judge!r}: probabilities need an <answer> tag or a bare verdict, not the format "
            f"{template.verdict_format}; leave prob: out"
        )
    if by_probability or parsed.verifies:
        what = "prob:" if by_probability else "verify:"
        require_pairs(require_one_turn(template, what), what)
    if by_probability and parsed.verifies:
        raise ConfigError(f"{config.judge!r}: a judge by verdict probabilities writes no judgment to verify")
    is_served = restart_after_s is not None  # to many clients, whose prompts share a call
    query = config.model_copy(update={"cache": cache_folder(config)})
    sampler = open_engine(parsed, EngineOptions(query, key, restart_after_s, is_served))
    if parsed.engine == OPENAI:
        config = judge_config(config, judge=str(parsed))  # with its address: logs of two endpoints are not one
    return judge_kind(template, by_probability)(
        SelfVerifying(sampler) if parsed.verifies else sampler,
        template,
        config,
        verdict_temperature=stored if parsed.verdict_temperature is None else parsed.verdict_temperature,
    )


def judge_kind(template: Template, by_probability: bool = False) -> type[GenerativeJudge]:
    """Return the kind of judge that a template asks for. Raise ConfigError for one that asks for no judgment."""
    if require_judgments(template, "a judge").verdict_format in LIST_FORMATS:
        return ListJudge
    return ProbabilityJudge if by_probability or template.verdict_format == "bare" else GenerativeJudge


def endpoint_hosts(spec: str) -> set[str]:
    """Return the HOST or HOST:PORT of every endpoint that a judge or the members of a panel are asked at. Raise ConfigError for
    what is no specification or address."""
    parsed = JudgeSpec.parse(spec, *WITHOUT_SAMPLER)
    if parsed.engine in (PANEL, POOL):
        return set().union(*(endpoint_hosts(member) for member in parsed.members))
    if parsed.engine == SERVED:
        return {parse_address(parsed.target).netloc.decode()}
    if parsed.engine != OPENAI:
        return set()
    return {parse_address(url).netloc.decode() for url in (parsed.target.partition("@")[2] or _default_url()).split(",")}


def _default_url() -> str:
    """Return the address of ``openai:MODEL``: OPENAI_BASE_URL, or else OpenAI's."""
    return os.environ.get("OPENAI_BASE_URL", "").strip() or OPENAI_URL


def _with_address(parsed: JudgeSpec, config: JudgeConfig, api_key: str) -> JudgeSpec:
    """Return ``openai:MODEL`` with its address: OPENAI_BASE_URL, or else OpenAI's, which needs a key."""
    if parsed.engine != OPENAI or "@" in parsed.target:
        return parsed
    url = _default_url()
    if url == OPENAI_URL and api_key == "none":
        raise ConfigError(
            f"{config.judge!r} is queried at {OPENAI_URL}, which needs a key: set {config.api_key_env}, or name another "
            f"address as {config.judge}@URL"
        )
    return replace(parsed, target=f"{parsed.target}@{url}")
