"""Open the judge that a specification names: through its engine, at its address, or as a panel of several."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from rewardlab.data.urls import parse_address
from rewardlab.errors import ConfigError, missing_package
from rewardlab.judging.judge import GenerativeJudge, ModelJudge
from rewardlab.judging.margins import READ_BY_PROBABILITY, ProbabilityJudge
from rewardlab.judging.spec import ENGINES, PANEL, POOL, SERVED, WITHOUT_SAMPLER, JudgeSpec
from rewardlab.models.checkpoints import card_temperature, load_card, template_of_card
from rewardlab.prompts import DEFAULT_TEMPLATE, load_template
from rewardlab.samplers.base import HF, OPENAI, EngineOptions, Replicas, Sampler
from rewardlab.samplers.request_options import RequestOptions
from rewardlab.samplers.self_verifying import SelfVerifying

OPENAI_URL = "https://api.openai.com/v1"
REMOTE_CALLS = 64  # at a time, of a replica whose engine batches by itself
_OF_OTHERS = {"request": None, "cache": None}


def open_engine(spec: JudgeSpec, options: EngineOptions) -> Sampler:
    """Return the sampler of an engine on its target. Raise what its ``open_sampler`` raises, and MissingPackageError where the
    engine needs an extra that is not installed."""
    try:
        if options.replicas is not None:
            return _open_replicas(spec, options, options.replicas)
        sampler: Sampler = import_module(ENGINES[spec.engine].module).open_sampler(spec.target, options)
    except ModuleNotFoundError as error:
        raise missing_package(error) or error from error
    return sampler


def _open_replicas(spec: JudgeSpec, options: EngineOptions, replicas: Replicas) -> Sampler:
    """Return the sampler of an engine on Ray. One that computes in the replica's process takes a call at a time, and is
    watched by Ray alone."""
    from rewardlab.samplers.ray_replicas import RaySampler

    in_process = spec.engine == HF
    timeout_s = options.restart_after_s or 600.0
    opened = replace(options, replicas=None, restart_after_s=None if in_process else timeout_s)
    if replicas.num_gpus is None and spec.engine == OPENAI:
        replicas = replace(replicas, num_gpus=0)
    calls = 1 if in_process else REMOTE_CALLS
    return RaySampler(partial(open_engine, spec, opened), replicas, calls_at_a_time=calls, timeout_s=timeout_s)


def open_model_judge(spec: str, *, server_key: str = "", **options: Any) -> ModelJudge:
    """Return the judge that ``spec`` names (:mod:`rewardlab.judging.spec`): of an engine, a served one, a panel or a pool.

    ``server_key`` is that of ``http://...`` (by default the environment's REWARDLAB_API_KEY); ``options`` are those of
    :func:`open_generative_judge`. A served judge has its own template, temperature and lengths: what the options say of them
    counts for other members of a panel only. Raise what :func:`open_generative_judge` raises.
    """
    parsed, request, cache = JudgeSpec.parse(spec, *WITHOUT_SAMPLER), options.get("request"), options.get("cache")
    if parsed.engine == SERVED:
        _refuse_request(spec, request)
        _refuse_cache(spec, cache)
        from rewardlab.judging.served import ServedJudge

        return ServedJudge(parsed.target, api_key=server_key or os.environ.get("REWARDLAB_API_KEY", ""))
    if parsed.engine in WITHOUT_SAMPLER:
        from rewardlab.judging.panel import PanelJudge

        nested = [member for member in parsed.members if member.startswith(("panel:", "pool:"))]
        if nested:
            raise ConfigError(f"{spec!r}: a panel has judges for members, no panels; name those of {nested[0]!r} themselves")
        remote = [JudgeSpec.parse(member, *WITHOUT_SAMPLER).engine == OPENAI for member in parsed.members]
        if not any(remote):
            _refuse_request(spec, request)
            _refuse_cache(spec, cache)
        of_endpoints = {"request": request, "cache": cache}
        members = [
            open_model_judge(member, server_key=server_key, **{**options, **(of_endpoints if is_remote else _OF_OTHERS)})
            for member, is_remote in zip(parsed.members, remote, strict=True)
        ]
        return PanelJudge(members, by_log_odds=parsed.engine == POOL, spec=spec)
    return open_generative_judge(spec, **options)


def _refuse_request(spec: str, request: RequestOptions | None) -> None:
    if request is not None and request != RequestOptions():
        raise ConfigError(
            f"{spec!r}: concurrency, deadline, reasoning effort, body and the field of most tokens are of openai: judges; "
            "leave them out"
        )


def _refuse_cache(spec: str, cache: Path | None) -> None:
    if cache is not None:
        raise ConfigError(
            f"{spec!r}: a cache keeps answers of openai: judges, each of which is a draw by a seed of its own; leave it out"
        )


def open_generative_judge(
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
    replicas: Replicas | None = None,
    request: RequestOptions | None = None,
    cache: Path | None = None,
) -> GenerativeJudge:
    """Return the judge that ``spec`` names, of an engine (:mod:`rewardlab.judging.spec`).

    ``request`` is how an ``openai:`` judge is asked beside what is sampled, ``cache`` a folder of answers that it need not be
    asked for again.
    ``template``: by default the one a checkpoint was trained on. ``batch_size`` is of ``hf:``, ``api_key`` of ``openai:``,
    ``engine_args`` of ``vllm:`` (options of ``vllm serve``) and of ``hf:`` (``--dtype``, ``--attn-implementation``).
    ``restart_after_s``: the engine runs in a process of its own, which is started again if it dies or takes more than so many
    seconds. ``replicas``: it is opened so many times on a Ray cluster. A local checkpoint that was trained to give the verdict
    alone is read by probability without ``prob:`` too. Probabilities have the temperature that is stored with the checkpoint
    (``rewardlab bench calibrate``), unless ``prob@TAU:`` names another. Raise ConfigError, CheckpointError, EndpointError.
    """
    parsed = _with_address(JudgeSpec.parse(spec), spec, api_key)
    checkpoint, stored = parsed.checkpoint, 1.0
    if checkpoint is None:
        words = load_template(template or DEFAULT_TEMPLATE)
    else:
        card = load_card(parsed.target, from_hub=True)
        words, stored = template_of_card(card, parsed.target, template), card_temperature(card, parsed.target)
    by_probability = parsed.by_probability or (checkpoint is not None and words.verdict_format == "bare")
    if by_probability and words.verdict_format not in READ_BY_PROBABILITY:
        raise ConfigError(
            f"{spec!r}: probabilities are read where <answer> stands, or of a bare verdict, not in {words.verdict_format}; "
            "leave prob: out"
        )
    if by_probability and parsed.verifies:
        raise ConfigError(f"{spec!r}: a judge that weighs probabilities of single verdicts has no judgment to verify")
    options = request or RequestOptions()
    if parsed.engine != OPENAI:
        _refuse_request(spec, request)
        _refuse_cache(spec, cache)
    is_served = restart_after_s is not None  # to many, whose prompts share a call
    sampler = open_engine(
        parsed, EngineOptions(batch_size, api_key, engine_args, restart_after_s, options, cache, replicas, is_served)
    )
    judge = ProbabilityJudge if by_probability else GenerativeJudge
    return judge(
        SelfVerifying(sampler) if parsed.verifies else sampler,
        words,
        temperature=temperature,
        top_p=top_p,
        max_tokens=max_tokens,
        spec=str(parsed) if parsed.engine == OPENAI else spec,  # with its address: logs of two endpoints are not one
        request=options.identity if parsed.engine == OPENAI else "",
        engine_args=engine_args,
        verdict_temperature=stored if parsed.verdict_temperature is None else parsed.verdict_temperature,
    )


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


def _with_address(parsed: JudgeSpec, spec: str, api_key: str) -> JudgeSpec:
    """Return ``openai:MODEL`` with the address it is asked at: OPENAI_BASE_URL, or else OpenAI's, which takes nobody without a
    key."""
    if parsed.engine != OPENAI or "@" in parsed.target:
        return parsed
    url = _default_url()
    if url == OPENAI_URL and api_key in ("", "none"):
        raise ConfigError(
            f"{spec!r} is asked at {OPENAI_URL}, which takes nobody without a key: set OPENAI_API_KEY, or name another address "
            f"as {spec}@URL"
        )
    return replace(parsed, target=f"{parsed.target}@{url}")
