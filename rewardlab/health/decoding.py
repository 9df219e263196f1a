"""When an engine must draw the rollouts instead of the trainer's own decoder: an estimate from shapes, before anything runs.

The own decoder launches every kernel of every token from Python: a decoding step takes the host about a millisecond a layer,
however many rollouts are side by side. An engine replays recorded steps, and is bound by how fast the card reads weights, keys
and values. The rule: an engine is needed where the own decoder makes a rollout batch take more than half as long again, and
worth its memory from a tenth on. Nothing here was measured on a GPU; the constants say what they rest on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pydantic import ValidationError

from rewardlab.config import MethodConfig
from rewardlab.health.cards import GraphicsCard
from rewardlab.health.memory import Setup, kv_bytes
from rewardlab.health.step_time import (
    HOST_S_PER_LAYER,
    cached_seconds,
    decoding_step_seconds,
    reading_seconds,
    training_seconds,
)

ENGINE_STEP_S = 5e-3  # an engine's scheduling and sampling of one step, assumed
ENGINE_SYNC_BYTES_PER_S = 20e9  # to hand an engine new weights on the card, assumed; by a file a tenth of it
FILE_BYTES_PER_S = 2e9
NEEDED, WORTHWHILE = 0.5, 0.1  # shares by which the own decoder lengthens a rollout batch


@dataclass(frozen=True)
class DecodingLoad:
    """What one process does for a rollout batch on ``card``.

    ``weights``: their number; ``kv_bytes``: keys and values of one token; ``prompts``: distinct ones among ``rollouts``, which
    share theirs if ``shares_prompts``; ``at_once``: rollouts side by side in the own decoder; ``training_s``: seconds of
    training on them; ``sync_bytes_per_s``: how an engine takes new weights.
    """

    card: GraphicsCard
    layers: int
    weights: float
    kv_bytes: float
    rollouts: int
    prompts: int
    at_once: int
    prompt_tokens: float
    answer_tokens: int
    training_s: float
    sync_bytes_per_s: float = ENGINE_SYNC_BYTES_PER_S
    shares_prompts: bool = False

    @property
    def cached_at_once(self) -> float:
        """Bytes of keys and values that a step of the own decoder reads, halfway through the answers."""
        prompts = self.at_once * (self.prompts / self.rollouts if self.shares_prompts else 1.0)
        return (prompts * self.prompt_tokens + self.at_once * self.answer_tokens / 2) * self.kv_bytes


@dataclass(frozen=True)
class DecodingTime:
    """Estimated seconds of one rollout batch on one process."""

    own_s: float
    engine_s: float
    training_s: float
    slices: int
    step_s: float
    reading_s: float

    @property
    def lengthens(self) -> float:
        """By what share the own decoder lengthens a rollout batch; 0 where it is the faster one."""
        return max(0.0, (self.own_s - self.engine_s) / (self.engine_s + self.training_s))

    @property
    def needs_engine(self) -> bool:
        return self.lengthens > NEEDED


def decoding_load(setup: Setup, card: GraphicsCard) -> DecodingLoad | None:
    """Return what a process has to do for a rollout batch; None without rollouts.

    Every slice goes on until its longest rollout ends, so answers count as ``max_completion_length``, or the window; with
    ``self_verify`` there are up to three of them.
    """
    if (method := setup.method) is None:
        return None
    rollouts = math.ceil(method.rollout_batch_size / setup.launch.processes)
    by_file = method.engine is not None and method.engine.kind == "serve"
    return DecodingLoad(
        card=card,
        layers=setup.shapes.language.number,
        weights=setup.shapes.total,
        kv_bytes=kv_bytes(setup.shapes),
        rollouts=rollouts,
        prompts=math.ceil(rollouts / method.group_size),
        at_once=min(method.sampling_batch_size or rollouts, rollouts),
        prompt_tokens=setup.lengths.mean_prompt,
        answer_tokens=method.window or setup.answer,
        training_s=training_seconds(setup, card),
        sync_bytes_per_s=FILE_BYTES_PER_S if by_file else ENGINE_SYNC_BYTES_PER_S,
        shares_prompts=setup.shapes.shares_prompts,
    )


def decoding_time(load: DecodingLoad, *, host_s_per_layer: float = HOST_S_PER_LAYER) -> DecodingTime:
    """Return the seconds that drawing and training take.

    Own decoder: slices * steps * the longer of the host's time and that of reading weights, keys and values, and the distinct
    prompts read once a group. Engine: one pass of steps over all rollouts, the same reading, and new weights.
    """
    card, row_bytes = load.card, (load.prompt_tokens + load.answer_tokens / 2) * load.kv_bytes
    slices = math.ceil(load.rollouts / load.at_once)
    step_s = decoding_step_seconds(load.layers, load.weights, load.cached_at_once, card, host_s_per_layer)
    reading_s = reading_seconds(load.weights, load.prompts * load.prompt_tokens, card)
    sync_s = 2 * load.weights / load.sync_bytes_per_s
    engine_step_s = ENGINE_STEP_S + cached_seconds(load.weights, load.rollouts * row_bytes, card)
    engine_s = load.answer_tokens * engine_step_s + reading_s + sync_s
    own_s = slices * load.answer_tokens * step_s + reading_s
    return DecodingTime(own_s, engine_s, load.training_s, slices, step_s, reading_s)


def _obstacle(config: MethodConfig) -> str:
    """Return what it is in a config that no engine goes with."""
    names = [name for name in ("window", "hot_token", "self_verify") if getattr(config, name, None)]
    return names[0] if names else "lora.quantize" if config.lora and config.lora.quantize else "this config"


def engine_kinds(config: MethodConfig) -> list[str]:
    """Return the kinds of engine that a config may be given, by its own rules; [] where none goes with it."""
    kinds = []
    for kind in ("colocate", "serve"):
        if any(getattr(config, name, None) for name in ("window", "hot_token", "self_verify")):
            continue
        changes = {"engine": {"kind": kind}, "importance_cap": 2.0, "sampling_batch_size": None}
        try:
            type(config).model_validate({**config.model_dump(), **changes})
        except ValidationError:
            continue
        kinds.append(kind)
    return kinds


def _cure(config: MethodConfig, kinds: list[str]) -> str:
    words = {"colocate": "colocate", "serve": "serve with cards of its own"}
    unset = ", unset sampling_batch_size" if config.sampling_batch_size else ""
    return f"set engine.kind ({', or '.join(words[kind] for kind in kinds)}) and importance_cap 2{unset}"


def decoding_sentence(config: MethodConfig, load: DecodingLoad, time: DecodingTime) -> str:
    """Return who should draw the rollouts of a config, with the arithmetic."""
    share = f"{time.lengthens:.0%}"
    steps = f"{time.slices} x {load.answer_tokens:,} steps x {1000 * time.step_s:.0f} ms"
    reading = f"{time.reading_s:.0f} s to read {load.prompts:,} prompts"
    sums = (
        f"on an {load.card.name}, the trainer's own decoder would draw a rollout batch in about {time.own_s:,.0f} s a process "
        f"({steps}; {reading}), an engine in {time.engine_s:,.0f} s, beside {time.training_s:,.0f} s of training"
    )
    if config.engine is not None:
        if not time.lengthens:
            return f"{sums}: the engine saves nothing"
        return f"{sums}: a batch would take {share} longer without the engine"
    if time.lengthens <= WORTHWHILE:
        return f"{sums}: the own decoder will do"
    more_at_once = "raise sampling_batch_size as far as memory allows" if time.slices > 1 else "take more processes"
    if not (kinds := engine_kinds(config)):
        return f"{sums}: {share} longer, and no engine goes with {_obstacle(config)}; {more_at_once}"
    if time.needs_engine:
        return f"{sums}: {share} longer, so an engine is needed; {_cure(config, kinds)}, or {more_at_once}"
    return f"{sums}: {share} longer; an engine is worth its memory: {_cure(config, kinds)}"
