"""The memory that a training run needs on each device: an estimate from shapes, before anything is loaded."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from rewardlab.config import MethodConfig, TrainConfig
from rewardlab.models.families import part_pattern
from rewardlab.training.run.launcher import Launch

GIB = 2**30


@dataclass(frozen=True)
class Estimate:
    """Bytes on each device, by purpose. A step never needs ``reading`` and ``sampling`` at the same time."""

    weights: float
    gradients: float
    moments: float
    reading: float
    sampling: float

    @property
    def total(self) -> float:
        return self.weights + self.gradients + self.moments + max(self.reading, self.sampling)


def counts(model: Any, config: TrainConfig) -> tuple[int, int]:
    """Return (number of weights, number of weights that learn) of a model under a config."""
    total = sum(weight.numel() for weight in model.parameters())
    patterns = [part_pattern(part) for part in config.freeze]

    def is_frozen(name: str) -> bool:
        return any(pattern.search(name) for pattern in patterns)

    if config.lora is None:
        return total, sum(weight.numel() for name, weight in model.named_parameters() if not is_frozen(name))
    linear = [(name, module) for name, module in model.named_modules() if type(module).__name__ == "Linear"]
    adapted = sum(
        config.lora.r * (module.in_features + module.out_features)
        for name, module in linear
        if "lm_head" not in name and not is_frozen(f"{name}.")
    )
    return total + adapted, adapted


def _frozen_bytes(model: Any, config: TrainConfig, zero: int, frozen: int) -> float:
    """Return the bytes of the ``frozen`` weights that do not learn."""
    if config.lora and config.lora.quantize:
        linear: int = sum(
            m.weight.numel() for name, m in model.named_modules() if type(m).__name__ == "Linear" and "lm_head" not in name
        )
        return 0.55 * linear + 2.0 * (frozen - linear)  # embeddings, norms and the head are not quantised
    return (2.0 if config.lora or zero else 4.0) * frozen


def estimate(model: Any, config: TrainConfig, launch: Launch, *, prompt_tokens: int, card: float = 0.0) -> Estimate:
    """Return the estimate for ``model`` (which may be on the meta device) under a launch, on devices of ``card`` bytes.

    Without ZeRO, weights that learn, their gradients and Adam's two moments are float32 (16 bytes a weight), autocast keeps a
    bfloat16 copy during a pass, and several processes add 4 bytes for gradient buckets. DeepSpeed keeps weights and gradients
    in bfloat16 and shards float32 weights (counted as moments here) and moments: 2 + 14 / N bytes at stage 2, 16 / N at
    stage 3. Weights below adapters are bfloat16, or half a byte if quantized. A KL term needs a second model as reference,
    except with adapters. Reading: activations in bfloat16 of ``max_tokens``, or of a prompt and its answer, checkpointed by
    layer if the config says so, and the answer's logits in float32. Sampling: for all rollouts drawn side by side, one layer
    of their prompts and the cache of keys and values in bfloat16, and under ZeRO-3 the gathered weights; or the share of the
    card that vLLM takes in the same process. A process reward model is not counted.
    """
    total, learning = counts(model, config)
    method = config if isinstance(config, MethodConfig) else None
    models = 2 if method and method.advantage == "gae" else 1  # a critic beside the policy
    weights = _frozen_bytes(model, config, launch.zero, total - learning)
    if launch.zero:
        weights += 2.0 * learning
        gradients, moments, copies = 2.0 * learning / launch.processes, 12.0 * learning / launch.processes, 0.0
        if launch.offload:
            gradients = moments = 0.0
    else:
        weights += 4.0 * learning
        gradients, moments, copies = (8.0 if launch.processes > 1 else 4.0) * learning, 8.0 * learning, 2.0 * learning
    weights *= models
    if method and method.kl_coef and method.lora is None:
        weights += (2.0 if launch.zero else 4.0) * total
    if launch.zero == 3:
        weights /= launch.processes
    text = model.config.get_text_config()
    answer = method.max_completion_length if method else 512
    length = prompt_tokens + answer
    layer = 14 * text.hidden_size * 2.0  # bytes a token that a layer keeps for its backward pass, roughly
    layer_output = text.hidden_size * 2.0 if config.gradient_checkpointing else layer
    tokens = config.micro_batch_size * (config.max_tokens or length)
    reading = models * tokens * (text.num_hidden_layers * layer_output + layer)
    reading += config.micro_batch_size * answer * text.vocab_size * 4.0
    sampling = 0.0
    if method and method.engine is None:
        rows = min(method.sampling_batch_size or math.inf, method.rollout_batch_size / launch.processes)
        heads = text.num_key_value_heads * (getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads)
        sampling = rows * (length * text.num_hidden_layers * heads * 2 * 2.0 + prompt_tokens * layer)
        if launch.zero == 3:
            sampling += models * 2.0 * total
    elif method and method.engine and method.engine.kind == "colocate":
        sampling = method.engine.gpu_memory_utilization * card
    return Estimate(weights, models * gradients, models * moments, reading + copies, sampling + copies)
