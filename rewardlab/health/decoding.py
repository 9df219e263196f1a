"""When an engine must draw the rollouts instead of the trainer's own decoder: an estimate from shapes, before anything runs.

The own decoder launches every kernel of every token from Python: a decoding step takes the host about a millisecond a layer,
however many rollouts are side by side. An engine replays recorded steps, and is bound by how fast the card reads weights, keys
and values. The rule: an engine is needed where the own decoder makes a rollout batch take more than half as long again, and
worth its memory from a tenth on. Nothing here was measured on a GPU; the constants say what they rest on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from rewardlab.config import MethodConfig
from rewardlab.training.run.launcher import Launch

# Some 40 kernels and 40 views a layer at 12 microseconds each. The host alone, without a card to launch on, needs 0.26 ms
# (float32) to 0.46 ms (autocast) a layer for a narrow model.
HOST_S_PER_LAYER = 1e-3
ENGINE_STEP_S = 5e-3  # an engine's scheduling and sampling of one step, assumed
ENGINE_SYNC_BYTES_PER_S = 20e9  # to hand an engine new weights on the card, assumed; by a file a tenth of it
FILE_BYTES_PER_S = 2e9
NEEDED, WORTHWHILE = 0.5, 0.1  # shares by which the own decoder lengthens a rollout batch


@dataclass(frozen=True)
class Accelerator:
    """What a card does in bfloat16: operations a second that large products reach, and bytes a second it reads. The defaults
    are of an H100 (350 of 990 TFLOP/s; 3.35 TB/s)."""

    flops: float = 350e12
    bandwidth: float = 3.35e12


@dataclass(frozen=True)
class DecodingLoad:
    """What one process does for a rollout batch. ``weights``: their number; ``kv_bytes``: keys and values of one token;
    ``prompts``: distinct ones among ``rollouts``; ``at_once``: rollouts side by side in the own decoder; ``passes``: forward
    passes' worth of training on each rollout, log-probs included; ``sync_bytes_per_s``: how an engine takes new weights."""

    layers: int
    weights: float
    kv_bytes: float
    rollouts: int
    prompts: int
    at_once: int
    prompt_tokens: int
    answer_tokens: int
    passes: float
    sync_bytes_per_s: float = ENGINE_SYNC_BYTES_PER_S


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


def decoding_load(model: Any, config: MethodConfig, launch: Launch, *, prompt_tokens: int) -> DecodingLoad:
    """Return what a process has to do under a launch; ``model`` may be on the meta device.

    Every slice goes on until its longest rollout ends, so answers count as ``max_completion_length``, or the window; with
    ``self_verify`` there are up to three of them.
    """
    text = model.config.get_text_config()
    head = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    rollouts = math.ceil(config.rollout_batch_size / launch.processes)
    old_logprobs = config.iterations > 1 or config.rollout_batch_size > config.batch_size or config.engine is not None
    passes = config.iterations * (3 + config.gradient_checkpointing) + old_logprobs + bool(config.kl_coef)
    by_file = config.engine is not None and config.engine.kind == "serve"
    return DecodingLoad(
        layers=text.num_hidden_layers,
        weights=sum(weight.numel() for weight in model.parameters()),
        kv_bytes=text.num_hidden_layers * text.num_key_value_heads * head * 2 * 2.0,
        rollouts=rollouts,
        prompts=math.ceil(rollouts / config.group_size),
        at_once=min(config.sampling_batch_size or rollouts, rollouts),
        prompt_tokens=prompt_tokens,
        answer_tokens=(config.window or config.max_completion_length) * (3 if getattr(config, "self_verify", False) else 1),
        passes=passes,
        sync_bytes_per_s=FILE_BYTES_PER_S if by_file else ENGINE_SYNC_BYTES_PER_S,
    )


def decoding_time(
    load: DecodingLoad, card: Accelerator | None = None, *, host_s_per_layer: float = HOST_S_PER_LAYER
) -> DecodingTime:
    """Return the seconds that drawing and training take.

    Own decoder: slices * steps * the longer of the host's time and that of reading weights, keys and values, and the distinct
    prompts read once a group. Engine: one pass of steps over all rollouts, the same reading, and new weights.
    """
    card = card or Accelerator()
    mean_length = load.prompt_tokens + load.answer_tokens / 2

    def memory_s(rows: int) -> float:
        return (2 * load.weights + rows * mean_length * load.kv_bytes) / card.bandwidth

    slices = math.ceil(load.rollouts / load.at_once)
    step_s = max(host_s_per_layer * load.layers, memory_s(load.at_once))
    reading_s = 2 * load.weights * load.prompts * load.prompt_tokens / card.flops
    sync_s = 2 * load.weights / load.sync_bytes_per_s
    engine_s = load.answer_tokens * (ENGINE_STEP_S + memory_s(load.rollouts)) + reading_s + sync_s
    tokens = load.rollouts * (load.prompt_tokens + load.answer_tokens)
    training_s = 2 * load.weights * tokens * load.passes / card.flops
    own_s = slices * load.answer_tokens * step_s + reading_s
    return DecodingTime(own_s, engine_s, training_s, slices, step_s, reading_s)


def _obstacle(config: MethodConfig) -> str | None:
    """Return what no engine goes with, if there is anything of it in a config."""
    names = [name for name in ("window", "hot_token", "self_verify") if getattr(config, name, None)]
    return names[0] if names else "lora.quantize" if config.lora and config.lora.quantize else None


def decoding_sentence(config: MethodConfig, load: DecodingLoad, time: DecodingTime) -> str:
    """Return who should draw the rollouts of a config, with the arithmetic."""
    share = f"{time.lengthens:.0%}"
    steps = f"{time.slices} x {load.answer_tokens:,} steps x {1000 * time.step_s:.0f} ms"
    reading = f"{time.reading_s:.0f} s to read {load.prompts:,} prompts"
    sums = (
        f"the trainer's own decoder would draw a rollout batch in about {time.own_s:,.0f} s a process ({steps}; {reading}), "
        f"an engine in {time.engine_s:,.0f} s, beside {time.training_s:,.0f} s of training"
    )
    if config.engine is not None:
        return f"{sums}: the engine saves {share}" if time.lengthens else f"{sums}: the engine saves nothing"
    if time.lengthens <= WORTHWHILE:
        return f"{sums}: the own decoder will do"
    more_at_once = "raise sampling_batch_size as far as memory allows" if time.slices > 1 else "take more processes"
    if obstacle := _obstacle(config):
        return f"{sums}: {share} longer, and no engine goes with {obstacle}; {more_at_once}"
    cure = "set engine (kind colocate, or serve with cards of its own) and importance_cap 2"
    if time.needs_engine:
        return f"{sums}: {share} longer, so an engine is needed; {cure}, or {more_at_once}"
    return f"{sums}: {share} longer; an engine is worth its memory: {cure}"


def decoding_advice(model: Any, config: MethodConfig, launch: Launch, *, prompt_tokens: int) -> tuple[str, bool]:
    """Return :func:`decoding_sentence` of a model and a launch, and whether it is a warning: an engine is needed, none set."""
    load = decoding_load(model, config, launch, prompt_tokens=prompt_tokens)
    time = decoding_time(load)
    return decoding_sentence(config, load, time), time.needs_engine and config.engine is None
