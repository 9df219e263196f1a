"""What makes vision towers fast: one attention call for all windows of a size, and patches as a matrix product."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from inspect import Parameter, signature
from itertools import chain, pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention
from transformers import AttentionInterface

FLOAT_TOWERS = ("Llama4VisionModel",)  # read pixels as they come: in bfloat16, whatever the weights are
PACKED = "rewardlab_flash_sdpa"  # transformers gives packed sequences as a whole to names that contain "flash"


@dataclass(frozen=True)
class Sequences:
    """Packed sequences by length: of each length the places [n * length] of their tokens (None: all, in order), n and the
    length; and the places that put the concatenated results in order (None: they are)."""

    groups: Sequence[tuple[Tensor | None, int, int]]
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
        q, k, v = (x.reshape(len(x), number, length, d).transpose(0, 1) for x in (q, k, v))
        output = scaled_dot_product_attention(q, k, v, dropout_p=dropout, scale=scaling, enable_gqa=key.shape[1] != h)
        outputs.append(output.transpose(1, 2).reshape(number * length, h, d))
    output = torch.cat(outputs) if sequences.order is None else torch.cat(outputs)[sequences.order]
    return output[None], None


AttentionInterface.register(PACKED, attend_packed)


class PatchProjection(nn.Conv3d):
    """A convolution over single patches, on a GPU computed as the matrix product that it is: several versions of cuDNN have no
    fast 16-bit kernel for it (transformers issue 45750)."""

    def forward(self, patches: Tensor) -> Tensor:
        """Return [N, D, 1, 1, 1] of patches [N, C, T, H, W]."""
        is_single = patches.shape[2:] == self.weight.shape[2:]
        return self.product(patches) if patches.is_cuda and is_single else super().forward(patches)

    def product(self, patches: Tensor) -> Tensor:
        return linear(patches.flatten(1), self.weight.flatten(1), self.bias)[:, :, None, None, None]


def _pixels_like_weights(tower: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return args[0].to(next(tower.parameters()).dtype), *args[1:]


def _always_packs(part: nn.Module) -> bool:
    ends = signature(part.forward).parameters.get("cu_seqlens")
    return ends is not None and ends.default is Parameter.empty


def prepare_vision_tower(model: Any) -> Any:
    """Return ``model``. Its vision attention takes :func:`attend_packed` instead of SDPA, its patches :class:`PatchProjection`,
    and :data:`FLOAT_TOWERS` pixels of the weights' type; weights and their names stay."""
    for part in model.modules():
        if type(part).__name__ in FLOAT_TOWERS:
            part.register_forward_pre_hook(_pixels_like_weights)
        config = getattr(part, "config", None)
        if config is not None and getattr(config, "_attn_implementation", None) == "sdpa" and _always_packs(part):
            config._attn_implementation = PACKED
        if type(part) is nn.Conv3d and part.kernel_size == part.stride and part.groups == 1 and not any(part.padding):
            part.__class__ = PatchProjection
    return model
