"""The implementation of attention that a model uses."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
from transformers import AutoModelForImageTextToText
from transformers.utils import is_flash_attn_2_available, is_flash_attn_3_available

from rewardlab.errors import ConfigError

# name in transformers -> module, package on the index, the first two numbers of a card's compute capability that it runs on
_FLASH = {
    "flash_attention_2": ("flash_attn", "flash-attn", (8, 0)),
    "flash_attention_3": ("flash_attn_interface", "flash-attn-3", (9, 0)),
}
ATTENTIONS = ("auto", *_FLASH, "sdpa", "eager")


def check_attention(name: str) -> None:
    """Raise ConfigError for flash attention without its package or a suitable CUDA card."""
    if name not in _FLASH or _runs_here(name):
        return
    module, package, capability = _FLASH[name]
    if find_spec(module) is None:
        raise ConfigError(
            f"attn_implementation: {name} is not installed here: pip install {package} --no-build-isolation, or "
            "attn_implementation: auto"
        )
    raise ConfigError(
        f"attn_implementation: {name} needs a GPU of compute capability {capability[0]}.{capability[1]} or higher and "
        f"a version of {package} that transformers supports; use attn_implementation: auto"
    )


def choose_attention(name: str, config: Any, *, in_16_bits: bool) -> str | None:
    """Return ``attn_implementation`` of ``from_pretrained`` for a model of ``config``.

    ``auto``: flash attention if it is installed, card and family support it and the model computes ``in_16_bits``; else None,
    transformers' choice, which is sdpa if the family has it. Raise ConfigError for unavailable flash attention.
    """
    if name == "auto":
        allowed = in_16_bits and _family_has_flash(config)
        return next((flash for flash in _FLASH if allowed and _runs_here(flash)), None)
    check_attention(name)
    if name in _FLASH and not in_16_bits:
        raise ConfigError(
            f"attn_implementation: {name} computes in 16 bits, and this model is loaded in float32: load it in bfloat16 "
            "('engine_args=--dtype bfloat16'), or use attn_implementation: auto"
        )
    return name


def disable_cudnn_attention() -> None:
    """Have SDPA of this process use no kernel of cuDNN, which PyTorch prefers on an H100.

    With a mask, as in every padded batch, its gradients in 16 bits are less exact than those of the other kernels (cosine to
    float32 of the packaged judge 0.979, of the others 0.9999), and at some lengths they are NaN (PyTorch issue 196678)."""
    torch.backends.cuda.enable_cudnn_sdp(False)


def attention_of(model: Any) -> str:
    """Return transformers' name of the implementation that a loaded model uses."""
    return str(model.config._attn_implementation)


def _runs_here(name: str) -> bool:
    is_there = is_flash_attn_2_available() if name == "flash_attention_2" else is_flash_attn_3_available()
    return bool(is_there) and torch.cuda.get_device_capability() >= _FLASH[name][2]


def _family_has_flash(config: Any) -> bool:
    family = AutoModelForImageTextToText._model_mapping.get(type(config), None)
    return bool(getattr(family, "_supports_flash_attn", False))
