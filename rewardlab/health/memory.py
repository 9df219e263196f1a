"""How much memory a training run asks of each device: an estimate from shapes, before anything is loaded."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import rewardlab.torchvision_cpu  # noqa: F401  (before transformers)

# isort: split
from rewardlab.config import MethodConfig, TrainConfig
from rewardlab.training.loading import PARTS

GIB = 2**30


@dataclass(frozen=True)
class Estimate:
    """Bytes on each device, by what for; what a step needs while it reads, and while it samples, is not there at once."""

    weights: float
    gradients: float
    moments: float
    reading: float
    sampling: float

    @property
    def total(self) -> float:
        return self.weights + self.gradients + self.moments + max(self.reading, self.sampling)


def counts(model: Any, config: TrainConfig) -> tuple[int, int]:
    """(weights, weights that learn) of a model under a config."""
    total = sum(weight.numel() for weight in model.parameters())
    patterns = [re.compile(PARTS.get(part, part)) for part in config.freeze]

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


def estimate(
    model: Any, config: TrainConfig, *, processes: int, zero: int, prompt_tokens: int, offload: bool = False
) -> Estimate:
    """Of ``model`` (it may be without memory of its own) on ``processes`` devices under ZeRO stage 0, 2 or 3.

    Without ZeRO weights that learn, their gradients and Adam's two moments are float32, 16 bytes, and autocast keeps a bfloat16
    copy for the time of a pass. DeepSpeed has weights and gradients in bfloat16, and float32 weights, which count as moments
    here, and moments dealt out: 2 + 14 / N bytes at stage 2, 16 / N at stage 3. Weights below adapters are bfloat16, or half a
    byte. Reading: activations in bfloat16, checkpointed by layer where the config says so, logits of the answer in float32.
    Sampling: the rollouts that are drawn side by side, one layer of their prompts and the cache of keys and values in bfloat16,
    and under ZeRO-3 the gathered weights.
    """
    total, learning = counts(model, config)
    models = 2 if isinstance(config, MethodConfig) and config.advantage == "gae" else 1  # a critic beside the policy
    frozen = 0.55 if config.lora and config.lora.quantize else 2.0 if config.lora or zero else 4.0
    if zero:
        weights = (frozen * (total - learning) + 2.0 * learning) / (processes if zero == 3 else 1)
        gradients, moments, copies = 2.0 * learning / processes, 12.0 * learning / processes, 0.0
        if offload:  # to the host, the optimizer's share of the gradients as well
            gradients = moments = 0.0
    else:
        weights, gradients, moments = frozen * (total - learning) + 4.0 * learning, 4.0 * learning, 8.0 * learning
        copies = 2.0 * learning
    text = model.config.get_text_config()
    answer = config.max_completion_length if isinstance(config, MethodConfig) else 512
    length = prompt_tokens + answer
    layer = 14 * text.hidden_size * 2.0  # bytes a token that a layer keeps for its backward pass, roughly
    kept = text.hidden_size * 2.0 if config.gradient_checkpointing else layer
    tokens = config.micro_batch_size * length
    reading = (
        models * tokens * (text.num_hidden_layers * kept + layer) + config.micro_batch_size * answer * text.vocab_size * 4.0
    )
    sampling = 0.0
    if isinstance(config, MethodConfig) and config.engine is None:
        rows = min(config.rollouts_at_once or math.inf, config.rollout_batch_size / processes)
        heads = text.num_key_value_heads * (getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads)
        sampling = rows * (length * text.num_hidden_layers * heads * 2 * 2.0 + prompt_tokens * layer)
        if zero == 3:
            sampling += 2.0 * total
    return Estimate(models * weights, models * gradients, models * moments, reading + copies, sampling + copies)
