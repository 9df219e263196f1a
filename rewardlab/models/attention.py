"""The implementation of attention that a model uses."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from inspect import signature
from itertools import chain, pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AutoModelForImageTextToText
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


def attention_of(model: Any) -> str:
    """Return transformers' name of the implementation that a loaded model uses."""
    return str(model.config._attn_implementation)


def _runs_here(name: str) -> bool:
    is_there = is_flash_attn_2_available() if name == "flash_attention_2" else is_flash_attn_3_available()
    return bool(is_there) and torch.cuda.get_device_capability() >= _FLASH[name][2]


def _family_has_flash(config: Any) -> bool:
    family = AutoModelForImageTextToText._model_mapping.get(type(config), None)
    return bool(getattr(family, "_supports_flash_attn", False))


# Windows of pictures.

PACKED = "rewardlab_flash_sdpa"  # transformers gives packed sequences as a whole to names that contain "flash"


@dataclass(frozen=True)
class Sequences:
    """Packed sequences by length: of each length the places [n * length] of their tokens (None: all, in order), n and the
    length; and the places that put the concatenated results in order (None: they are)."""

    groups: list[tuple[Tensor | None, int, int]]
    order: Tensor | None

    @staticmethod
    def of(ends: Tensor) -> Sequences:
        """``ends``: [sequences + 1] cumulative lengths from 0. They are read once for all layers of a pass."""
        sequences: Sequences | None = getattr(ends, "sequences", None)
        if sequences is None:
            by_length: dict[int, list[range]] = {}
            for start, end in pairwise(ends.tolist()):
                by_length.setdefault(end - start, []).append(range(start, end))
            by_length.pop(0, None)
            if len(by_length) == 1:
                ((length, ranges),) = by_length.items()
                sequences = Sequences([(None, len(ranges), length)], None)
            else:
                places = [torch.tensor([*chain(*ranges)], device=ends.device) for ranges in by_length.values()]
                groups = [(place, len(ranges), n) for place, (n, ranges) in zip(places, by_length.items(), strict=True)]
                sequences = Sequences(groups, torch.cat(places).argsort())
            ends.sequences = sequences  # type: ignore[attr-defined]
        return sequences


def attend_packed(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    cu_seq_lens_q: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Return SDPA within each of the packed sequences [1, H, S, D] as [1, S, H, D], with one call for all of one length.

    transformers makes a call for each window of a picture: for two pictures 448 pixels wide 28 layers x 32 windows a pass.
    """
    if cu_seq_lens_q is None:
        raise ValueError("attend_packed needs cu_seq_lens_q: it is for the vision attention of packed pictures")
    sequences, (_, h, _, d) = Sequences.of(cu_seq_lens_q), query.shape
    outputs = []
    for place, number, length in sequences.groups:
        q, k, v = (x[0] if place is None else x[0, :, place] for x in (query, key, value))
        q, k, v = (x.reshape(h, number, length, d).transpose(0, 1) for x in (q, k, v))
        output = scaled_dot_product_attention(q, k, v, dropout_p=dropout, scale=scaling)
        outputs.append(output.transpose(1, 2).reshape(number * length, h, d))
    output = torch.cat(outputs) if sequences.order is None else torch.cat(outputs)[sequences.order]
    return output[None], None


AttentionInterface.register(PACKED, attend_packed)


def pack_windows(model: Any) -> Any:
    """Return ``model``, whose vision attention of packed pictures takes :func:`attend_packed` where it would take SDPA."""
    for part in model.modules():
        config = getattr(part, "config", None)
        if getattr(config, "_attn_implementation", None) == "sdpa" and "cu_seqlens" in signature(part.forward).parameters:
            config._attn_implementation = PACKED
    return model
