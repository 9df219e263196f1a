"""Draws of one prompt share its keys and values: each decoding step reads them once, and no draw has a copy.

Attention of a draw is over the prompt and over what the draw has added. The first part is one matrix product for all draws of a
prompt; the two are joined by their sums of exponentials, as in flash attention (arXiv 2205.14135). Called bifurcated attention
in arXiv 2403.08845.

Shapes: ``R`` draws, ``P`` prompts, ``T`` tokens of a prompt with its padding, ``S`` added by a draw, ``H`` heads of keys and
values, ``G`` heads of queries on each of them, ``D`` numbers a head.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache
from transformers.masking_utils import sdpa_mask

from rewardlab.samplers.kv_cache import GrowingLayer

NAME = "rewardlab_shared_prompt"
FAMILIES = ("qwen2_5_vl_text", "qwen3_vl_text")  # whose attention is a softmax over all tokens, and nothing more
MOST_SLOTS = 2  # for each draw; with more, most of what is computed would be of draws that are not there


@dataclass(frozen=True)
class Layout:
    """Which of ``num_prompts`` prompts each draw continues; ``prompt_R`` ascends. The draws of a prompt stand in ``width``
    slots, draw r in slot ``slot_R[r]`` of all."""

    prompt_R: Tensor
    num_prompts: int
    width: int
    slot_R: Tensor

    @staticmethod
    def of(prompt_R: Tensor, num_prompts: int) -> Layout:
        counts_P = torch.bincount(prompt_R, minlength=num_prompts)
        width, starts_P = int(counts_P.max()), counts_P.cumsum(0) - counts_P
        place_R = torch.arange(len(prompt_R), device=prompt_R.device) - starts_P[prompt_R]
        return Layout(prompt_R, num_prompts, width, prompt_R * width + place_R)

    def select(self, rows: Tensor) -> tuple[Layout, Tensor]:
        """Return the layout of some of the draws, in their order, and which prompts they continue."""
        kept_P, prompt_R = self.prompt_R[rows].unique_consecutive(return_inverse=True)
        return Layout.of(prompt_R, len(kept_P)), kept_P

    def by_prompt(self, values_RHGX: Tensor) -> Tensor:
        """Return [P, H, width * G, X], zeros where a prompt has fewer draws than others."""
        (_, h, g, x), slots = values_RHGX.shape, self.num_prompts * self.width
        if slots != len(values_RHGX):
            filled = values_RHGX.new_zeros(slots, h, g, x)
            filled[self.slot_R] = values_RHGX
            values_RHGX = filled
        return values_RHGX.reshape(self.num_prompts, self.width, h, g, x).transpose(1, 2).reshape(self.num_prompts, h, -1, x)

    def by_draw(self, values_PHWX: Tensor) -> Tensor:
        """Return [R, H, G, X] of what :meth:`by_prompt` would give."""
        p, h, _, x = values_PHWX.shape
        rows = values_PHWX.reshape(p, h, self.width, -1, x).transpose(1, 2).reshape(p * self.width, h, -1, x)
        return rows if len(rows) == len(self.slot_R) else rows[self.slot_R]


@dataclass(frozen=True)
class PromptCache:
    """What one layer keeps of the prompts: keys and values [P, H, T, D], where there is padding [P, T], and whose draws are
    whose."""

    keys: Tensor
    values: Tensor
    hidden_PT: Tensor | None
    layout: Layout

    def select(self, layout: Layout, kept_P: Tensor) -> PromptCache:
        """Return those that draws go on from, with the layout of these draws."""
        if len(kept_P) == len(self.keys):
            return replace(self, layout=layout)
        return PromptCache(
            self.keys[kept_P], self.values[kept_P], None if self.hidden_PT is None else self.hidden_PT[kept_P], layout
        )


class SharedPromptLayer(GrowingLayer):
    """A layer of a cache whose ``keys`` and ``values`` are those that the draws have added to their prompts'."""

    def __init__(self, prompts: PromptCache) -> None:
        super().__init__()
        self.prompts = prompts

    def get_seq_length(self) -> int:
        return int(self.prompts.keys.shape[-2]) + self.num_added()

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Return the keys and values of what the draws have added; the keys say after which prompts."""
        keys, values = super().update(key_states, value_states, *args, **kwargs)
        keys.after_prompts = self.prompts  # type: ignore[attr-defined]  # not the layer: it keeps the keys, a cycle
        return keys, values

    def batch_select_indices(self, indices: Tensor) -> None:
        super().batch_select_indices(indices)
        self.prompts = self.prompts.select(*self.prompts.layout.select(indices))


@dataclass
class _Part:
    """Attention to some of the keys: the mean of their values, weighted by exponentials of scores less ``largest``, and the sum
    of these weights."""

    mean: Tensor
    total: Tensor
    largest: Tensor


def is_on_gpu(values: Tensor) -> bool:
    return values.is_cuda


def _scores(queries: Tensor, keys: Tensor, scaling: float) -> Tensor:
    """Return float32 scores, as in flash attention: 16-bit scores would lose precision for large keys. A GPU reads 16-bit keys
    as they are; a copy in float32, anew for each token and layer, would be five times the traffic."""
    if is_on_gpu(keys) and keys.dtype != torch.float32:
        scores: Tensor = torch.bmm(queries.to(keys.dtype).flatten(0, 1), keys.flatten(0, 1).mT, out_dtype=torch.float32)
        return scores.mul_(scaling).view(*keys.shape[:2], *scores.shape[1:])
    return (queries.float() * scaling) @ keys.float().mT


def _part(queries: Tensor, keys: Tensor, values: Tensor, scaling: float, hidden: Tensor | None = None) -> _Part:
    scores = _scores(queries, keys, scaling)
    if hidden is not None:
        scores.masked_fill_(hidden, -torch.inf)
    largest = scores.amax(-1, keepdim=True)
    weights = scores.sub_(largest).exp_()
    total = weights.sum(-1, keepdim=True)
    return _Part((weights.div_(total).to(values.dtype) @ values).float(), total, largest)


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Return what transformers' attention functions do, and no weights: [R, 1, H * G, D] of draws. Without a mask, all of
    ``key`` is visible."""
    if query.shape[2] != 1:
        raise NotImplementedError("samples are decoded one token at a time")
    prompts: PromptCache | None = getattr(key, "after_prompts", None)
    (r, heads, _, d), h = query.shape, key.shape[1]
    queries, scaling = query.reshape(r, h, heads // h, d), d**-0.5 if scaling is None else scaling
    hidden = None if attention_mask is None else attention_mask.logical_not()
    with torch.autocast(query.device.type, enabled=False):  # it would take float32 scores for 16 bits
        added = _part(queries, key, value, scaling, hidden)
        if prompts is None:
            return added.mean.to(query.dtype).reshape(r, 1, heads, d), None
        layout, hidden = prompts.layout, None if prompts.hidden_PT is None else prompts.hidden_PT[:, None, None, :]
        prompt = _part(layout.by_prompt(queries), prompts.keys, prompts.values, scaling, hidden)
    prompt = _Part(*(layout.by_draw(values) for values in (prompt.mean, prompt.total, prompt.largest)))
    largest = torch.maximum(prompt.largest, added.largest)
    of_prompt, of_added = (part.total * (part.largest - largest).exp() for part in (prompt, added))
    output = (prompt.mean * of_prompt + added.mean * of_added) / (of_prompt + of_added)
    return output.to(query.dtype).reshape(r, 1, heads, d), None


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, sdpa_mask)


@contextmanager
def draws_of_prompts(
    model: Any, cache: DynamicCache, mask_PT: Tensor, prompt_R: Tensor, *, fixed: bool = False
) -> Iterator[tuple[bool, bool]]:
    """Have ``cache``, which holds prompts, hold draws of them: draw r of prompt ``prompt_R[r]``, ascending. Within the context
    they are decoded, a token at a time. Yield whether each draw has keys and values of its own, padding included, and whether
    a step can have ``fixed`` shapes: in :data:`FAMILIES`.

    In other families, and where a few prompts have most of the draws, each draw is given a copy.
    """
    configs = _attention_configs(model)
    is_known = bool(configs) and all(type(layer) is GrowingLayer for layer in cache.layers)
    has_copies, fixed = not is_known, fixed and is_known
    if not torch.equal(prompt_R, torch.arange(len(mask_PT), device=prompt_R.device)):
        layout = Layout.of(prompt_R, len(mask_PT))
        has_copies = has_copies or layout.width * layout.num_prompts > MOST_SLOTS * len(prompt_R)
        if has_copies:
            cache.batch_select_indices(prompt_R)
        else:
            hidden_PT = None if bool(mask_PT.all()) else mask_PT == 0
            cache.layers = [SharedPromptLayer(PromptCache(*_of(layer), hidden_PT, layout)) for layer in cache.layers]
    else:
        has_copies = True
    before = [config._attn_implementation for config in configs]
    try:
        for config in configs if fixed or not has_copies else []:
            config._attn_implementation = NAME
        yield has_copies, fixed
    finally:
        for config, name in zip(configs, before, strict=True):
            config._attn_implementation = name


def _of(layer: Any) -> tuple[Tensor, Tensor]:
    return layer.keys, layer.values


def _attention_configs(model: Any) -> list[Any]:
    """Return the configs by which the attention of a model's language part is chosen; none where that is of another kind."""
    if model.config.get_text_config().model_type not in FAMILIES:
        return []
    parts = [part for part in model.modules() if hasattr(part, "layer_idx") and hasattr(part, "num_key_value_groups")]
    return list({id(part.config): part.config for part in parts}.values())
