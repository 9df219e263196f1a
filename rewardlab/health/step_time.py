"""Estimated seconds of a run's parts, from shapes: training, a step of the own decoder, an evaluation. Nothing here was
measured on a GPU; the constants say what they rest on."""

from __future__ import annotations

from rewardlab.health.cards import GraphicsCard
from rewardlab.health.memory import Setup, kv_bytes

# Of a decoding step: some 40 kernels and 40 views a layer at 12 microseconds each. The host alone, without a card to launch
# on, needs 0.26 ms (float32) to 0.46 ms (autocast) a layer for a narrow model.
HOST_S_PER_LAYER = 1e-3


def passes_of(setup: Setup) -> float:
    """Return the forward passes' worth of training on each sequence: a backward pass counts as two, gradient checkpointing, old
    and reference log-probs as one each."""
    one, method = 3.0 + setup.config.gradient_checkpointing, setup.method
    if method is None:
        return one
    old = method.iterations > 1 or method.rollout_batch_size > method.batch_size or method.engine is not None
    return method.iterations * one + old + bool(method.kl_coef)


def training_seconds(setup: Setup, card: GraphicsCard) -> float:
    """Return the seconds of arithmetic of a rollout batch, or of an optimizer step where there are no rollouts: two operations
    a weight, token and pass."""
    sequences = (setup.method.rollout_batch_size if setup.method else setup.config.batch_size) / setup.launch.processes
    return 2 * (setup.shapes.total + setup.critic) * sequences * setup.mean_row * passes_of(setup) / card.flops


def reading_seconds(weights: float, tokens: float, card: GraphicsCard) -> float:
    """Return the seconds of one forward pass over ``tokens``."""
    return 2 * weights * tokens / card.flops


def decoding_step_seconds(
    layers: int, weights: float, cached_bytes: float, card: GraphicsCard, host_s_per_layer: float = HOST_S_PER_LAYER
) -> float:
    """Return the seconds in which the own decoder draws a token of every row: the longer of the host's time, and the card's
    to read weights of two bytes and ``cached_bytes`` of keys and values."""
    return max(host_s_per_layer * layers, cached_seconds(weights, cached_bytes, card))


def cached_seconds(weights: float, cached_bytes: float, card: GraphicsCard) -> float:
    """Return the seconds in which a card reads weights of two bytes and ``cached_bytes``."""
    return (2 * weights + cached_bytes) / card.bandwidth


def evaluation_seconds(setup: Setup, card: GraphicsCard) -> float:
    """Return the seconds of one evaluation; 0 where nothing is evaluated. All rows go on until the longest answer ends, so
    answers count as the most tokens they may have."""
    if (load := setup.evaluation) is None:
        return 0.0
    layers, weights = setup.shapes.language.number, setup.shapes.total
    cached = load.rows * (load.lengths.mean_prompt + load.answer / 2) * kv_bytes(setup.shapes)
    steps = load.rounds * load.answer * decoding_step_seconds(layers, weights, cached, card)
    return steps + reading_seconds(weights, load.tokens_read, card)
