"""How a judge is named, on the command line and in configs: ``[verify:][prob:]ENGINE:TARGET``, the address of a served judge, a
panel of several, and what no engine answers for.

This is the only parser of it, and :func:`spec_help` the only explanation. An engine is a sampler file with a function
``open_sampler(target, options)`` and one line in :data:`ENGINES`.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rewardlab.data.qwen_video import VideoPolicy
from rewardlab.errors import ConfigError
from rewardlab.models.checkpoints import weights_id
from rewardlab.models.model_config import video_policy_of
from rewardlab.samplers.base import HEADS, HF, OPENAI, SAMPLING_KEYS, VLLM

if TYPE_CHECKING:
    from rewardlab.config.judge import JudgeConfig

DEMO, DEMO_JUDGE = "demo", Path(__file__).parents[1] / "demo" / "judge"  # a name, and the checkpoint it stands for


@dataclass(frozen=True)
class JudgeEngine:
    """What answers: ``module`` opens it, ``form`` explains its TARGET; a local one has a checkpoint for TARGET."""

    module: str
    form: str
    is_local: bool


_OPENAI_FORM = "openai:MODEL@URL (or URL,URL; openai:MODEL alone: at OPENAI_BASE_URL, else OpenAI's own)"
ENGINES = {
    HF: JudgeEngine("rewardlab.samplers.hf", "hf:PATH (a checkpoint folder or hub id)", is_local=True),
    VLLM: JudgeEngine("rewardlab.samplers.vllm", "vllm:PATH (the same through vLLM)", is_local=True),
    HEADS: JudgeEngine("rewardlab.samplers.head", "head:PATH (by the scores of a reward model)", is_local=True),
    OPENAI: JudgeEngine(
        "rewardlab.samplers.openai_api",
        _OPENAI_FORM,
        is_local=False,
    ),
}
SERVED, PANEL, POOL = "http", "panel", "pool"
# Judges without a sampler of their own: they compare pairs, and no text can be drawn from them.
WITHOUT_SAMPLER = (SERVED, PANEL, POOL)
# What only some commands take.
OTHERS = {
    SERVED: "http://HOST:PORT or https://HOST (a running `rewardlab serve`, with the key in REWARDLAB_API_KEY)",
    PANEL: "panel:A,B,C (the majority of several judges; panel:A;B where one holds a comma)",
    POOL: "pool:A,B,C (the mean of their log-odds)",
    "baseline": "baseline:longest|shortest|random|first",
    "replay": "replay:FILE (recorded samples, JSON lines)",
    "rm": "rm:FOLDER (a scalar reward model)",
}
_PREFIXES = (
    "prob:PATH or prob:vllm:PATH (by the probabilities of its verdicts; prob@TAU: with a temperature in place of its own)",
    "verify: before one of these (it verifies and revises its own judgments)",
)


def spec_help(*others: str) -> str:
    """Return what ``--judge`` takes: every engine, every prefix, and the ``others`` of :data:`OTHERS` that a command takes."""
    forms = [f"{DEMO} (the bundled judge)", *(engine.form for engine in ENGINES.values())]
    return ", ".join([*forms, *_PREFIXES, *(OTHERS[name] for name in others)])


@dataclass(frozen=True)
class JudgeSpec:
    """A parsed specification. ``engine`` is a key of :data:`ENGINES` or of :data:`OTHERS`; ``target`` is never empty.

    ``by_probability``: the probabilities of verdicts are weighed instead of verdicts being counted. ``verifies``: the judge
    verifies and revises its own judgments. ``verdict_temperature`` divides the log-odds of verdicts; None: by what is stored
    with the checkpoint.
    """

    engine: str
    target: str
    by_probability: bool = False
    verifies: bool = False
    verdict_temperature: float | None = None

    @staticmethod
    def parse(text: str, *others: str) -> JudgeSpec:
        """Read a specification; of :data:`OTHERS` only ``others`` are taken. ``prob:PATH`` means ``prob:hf:PATH``, and
        :data:`DEMO`, with or without a prefix, ``hf:`` and :data:`DEMO_JUDGE`.

        Raise ConfigError for anything else, and for probabilities of an engine that tells none.
        """
        if SERVED in others and text.startswith(("http://", "https://")):
            return JudgeSpec(SERVED, text)
        unverified = text.removeprefix("verify:")
        rest, temperature = _without_temperature(unverified)
        rest = rest.removeprefix("prob:")
        verifies, by_probability = unverified != text, rest != unverified
        engine, _, target = (f"{HF}:{DEMO_JUDGE}" if rest == DEMO else rest).partition(":")
        if by_probability and engine not in {*ENGINES, *OTHERS, "verify", "prob"}:
            engine, target = HF, rest
        is_other = engine in others and engine != SERVED and rest == text
        if not target.strip() or not (engine in ENGINES or is_other):
            raise ConfigError(f"unknown judge {text!r}; expected {spec_help(*others)}")
        if engine == HEADS and (by_probability or verifies):
            raise ConfigError(f"{text!r}: a head is read by its scores; expected head:PATH alone")
        if by_probability and not ENGINES[engine].is_local:
            raise ConfigError(f"{text!r}: {engine} gives no verdict probabilities; expected prob:PATH or prob:vllm:PATH")
        return JudgeSpec(engine, target, by_probability, verifies, temperature)

    def __str__(self) -> str:
        """Return the shortest text that parses to this."""
        if self.engine == SERVED:
            return self.target
        tau = self.verdict_temperature
        weighs = "prob:" if tau is None else f"prob@{repr(tau).removesuffix('.0')}:"
        prefixes = f"{'verify:' * self.verifies}{weighs * self.by_probability}"
        if self.engine == HF and self.target == str(DEMO_JUDGE):
            return f"{prefixes}{DEMO}"
        engine = "" if self.by_probability and self.engine == HF and self.target != DEMO else f"{self.engine}:"
        return f"{prefixes}{engine}{self.target}"

    @property
    def checkpoint(self) -> Path | None:
        """Return the checkpoint that a local engine loads, which may be a hub id; None for any other judge."""
        return Path(self.target) if self.engine in ENGINES and ENGINES[self.engine].is_local else None

    @property
    def members(self) -> tuple[str, ...]:
        """Return the specifications of a panel's or a pool's members: between semicolons where its target has one, else between
        commas. A member that holds a comma, as ``openai:M@URL,URL`` does, needs semicolons: ``panel:openai:M@URL,URL;hf:PATH``,
        or one at the end of a panel of one."""
        mark = ";" if ";" in self.target else ","
        return tuple(member.strip() for member in self.target.split(mark) if member.strip())


def _without_temperature(text: str) -> tuple[str, float | None]:
    """Return ``prob@TAU:REST`` as ("prob:REST", TAU), any other text as it is with None. Raise ConfigError for a TAU that is no
    positive number."""
    if not text.startswith("prob@"):
        return text, None
    number, _, rest = text.removeprefix("prob@").partition(":")
    try:
        temperature = float(number)
    except ValueError:
        temperature = math.nan
    if not 0 < temperature < math.inf:
        raise ConfigError(f"{text!r}: {number!r} is not a temperature; expected a positive number, as in prob@1:PATH")
    return f"prob:{rest}", temperature


def judge_config(named: str | JudgeConfig, keys: Mapping[str, Any] | None = None, **more: Any) -> JudgeConfig:
    """Return the config of a judge, with ``keys`` and ``more`` over it.

    ``named``: a specification, a YAML file with the keys of :class:`JudgeConfig`, the folder of a benchmark run (its judge), or
    a config. Write ``./demo`` for a folder whose name is a specification. Raise ConfigError for anything else, and for a key or
    value that a judge does not have.
    """
    from rewardlab.config.judge import JudgeConfig  # pydantic, which reading a name does not need
    from rewardlab.config.loading import load_config, merge, nest

    changes = nest({**(keys or {}), **more})
    if isinstance(named, JudgeConfig):
        return load_config(JudgeConfig, None, merge(named.model_dump(exclude_unset=True), changes))
    if not isinstance(named, str):
        raise ConfigError(f"{named!r} is not a judge's spec; expected a spec such as openai:gpt-4o")
    path = Path(named)
    if path.suffix in (".yaml", ".yml") and ":" not in named:
        return load_config(JudgeConfig, path, changes)
    if not _is_spec(named) and (path / "report.json").is_file():
        return load_config(JudgeConfig, None, merge(_config_of_run(path), changes))
    return load_config(JudgeConfig, None, {"judge": named, **changes})


def _is_spec(text: str) -> bool:
    try:
        JudgeSpec.parse(text, *OTHERS)
    except ConfigError:
        return False
    return True


def _config_of_run(folder: Path) -> dict[str, Any]:
    try:
        report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{folder}/report.json: cannot be read ({error}); expected a report of `rewardlab bench run`"
        ) from error
    if not isinstance(report, dict) or not isinstance(report.get("judge_config"), dict):
        raise ConfigError(f"{folder}/report.json: has no judge_config; expected the report of `rewardlab bench run`")
    return dict(report["judge_config"])


_SAMPLING_KEYS = ("template", *SAMPLING_KEYS)
_REQUEST_KEYS = ("concurrency", "deadline_s", "reasoning_effort", "body", "max_tokens_field", "cache", "api_key_env")
# Engine -> the keys of a judge that say how it is queried. Votes, orders and their policy are keys of every judge.
KEYS = {
    HF: {*_SAMPLING_KEYS, "batch_size", "engine_args"},
    VLLM: {*_SAMPLING_KEYS, "engine_args"},
    HEADS: {"template", "batch_size"},
    OPENAI: {*_SAMPLING_KEYS, *_REQUEST_KEYS},
    SERVED: set[str](),
    "baseline": set[str](),
    "replay": {"template"},
}
_KEYS_OF_ALL = {"votes", "orders", "policy", "stop_error"}


def effective_keys(text: str) -> set[str]:
    """Return the keys of :class:`JudgeConfig` that have an effect on the judge of a specification; for a panel, on a member."""
    parsed = JudgeSpec.parse(text, *OTHERS)
    if parsed.engine in (PANEL, POOL):
        return set().union(*(effective_keys(member) for member in parsed.members))
    return KEYS[parsed.engine] | _KEYS_OF_ALL


def check_keys(config: JudgeConfig) -> None:
    """Raise ConfigError for a key without an effect on this judge."""
    if dead := sorted(config.changed - effective_keys(config.judge)):
        raise ConfigError(f"{config.judge!r}: {', '.join(dead)} would have no effect on this judge; leave these out")


def cache_folder(config: JudgeConfig) -> Path | None:
    """Return the folder of answers: the config's, or for judges with an ``openai:`` endpoint that of REWARDLAB_CACHE."""
    from_environment = os.environ.get("REWARDLAB_CACHE")
    if config.cache is not None or not from_environment or "cache" not in effective_keys(config.judge):
        return config.cache and config.cache.expanduser()
    return Path(from_environment)


def named_checkpoint(text: str) -> Path | None:
    """Return the checkpoint folder that a judge's name has, whether it is there or not; None for any other judge, and for what
    is no specification."""
    try:
        return JudgeSpec.parse(text).checkpoint
    except ConfigError:  # a judge made in Python, by another name
        return None


def local_checkpoint(text: str) -> Path | None:
    """Return :func:`named_checkpoint` if it is there."""
    checkpoint = named_checkpoint(text)
    return checkpoint if checkpoint is not None and checkpoint.is_dir() else None


def judge_video_policy(text: str, *others: str) -> VideoPolicy | None:
    """Return how the family of a local checkpoint samples videos, None for any other judge. Raise ConfigError for what is no
    specification."""
    checkpoint = JudgeSpec.parse(text, *others).checkpoint
    return None if checkpoint is None else partial(video_policy_of, str(checkpoint))


def judge_weights_id(text: str) -> str:
    """Return which weights a specification stands for now (:func:`rewardlab.models.checkpoints.weights_id`), "" for a judge
    without local weights, and for a name that is no specification."""
    checkpoint = local_checkpoint(text)
    return "" if checkpoint is None else weights_id(checkpoint)
