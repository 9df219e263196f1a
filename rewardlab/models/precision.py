"""In which type weights are kept: adapters while they learn, a checkpoint when it is saved, a model when it only reads."""

from __future__ import annotations

from typing import Any


def adapters_to_float32(model: Any) -> None:
    """Make the weights of a model's adapters that learn float32, in place; a model without adapters stays as it is.

    TRL casts those above 4-bit weights to bfloat16, whose 8 bits of precision hold no step of 1e-5 to a weight of 0.01: most of
    them would never move. Call it before the optimizer is made.
    """
    if not hasattr(model, "peft_config"):
        return
    for weight in model.parameters():
        if weight.requires_grad:
            weight.data = weight.data.float()
