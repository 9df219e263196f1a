"""Draws of one prompt share its keys and values: each decoding step reads them once, and no draw has a copy.

Attention of a draw is over the prompt and over what the draw has said. The first part is one matrix product for all draws of a
prompt; the two are joined by their sums of exponentials, as in flash attention (arXiv 2205.14135). Called bifurcated attention
in arXiv 2403.08845.

Shapes: ``R`` draws, ``P`` prompts, ``T`` tokens of a prompt with its padding, ``S`` said by a draw, ``H`` heads of keys and
values, ``G`` heads of queries on each of them, ``D`` numbers a head.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from rewardlab.samplers.kv_cache import GrowingLayer

NAME = "rewardlab_shared_prompt"
FAMILIES = ("qwen2_5_vl_text", "qwen3_vl_text")  # whose attention is a softmax over all tokens, and nothing more
_guard = threading.Lock()
_users: dict[int, tuple[int, str]] = {}  # of a config: how many draws are under way, and the attention it has otherwise


@dataclass(frozen=True)
class Layout:
    """Which prompt each draw continues: ``prompt_R`` ascends, and has every number below ``num_prompts``. The draws of a prompt
    stand in ``width`` slots, draw r in slot ``slot_R[r]`` of all."""

    prompt_R: Tensor
    num_prompts: int
    width: int
    slot_R: Tensor

    @staticmethod
    def of(prompt_R: Tensor) -> Layout:
        counts_P = torch.bincount(prompt_R)
        width, starts_P = int(counts_P.max()), counts_P.cumsum(0) - counts_P
        place_R = torch.arange(len(prompt_R), device=prompt_R.device) - starts_P[prompt_R]
        return Layout(prompt_R, len(counts_P), width, prompt_R * width + place_R)

    def select(self, rows: Tensor) -> tuple[Layout, Tensor]:
        """Return the layout of some of the draws, in their order, and which prompts they continue."""
        kept_P, prompt_R = self.prompt_R[rows].unique_consecutive(return_inverse=True)
        return Layout.of(prompt_R), kept_P

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


class SharedPromptLayer(GrowingLayer):
    """A layer of a cache whose ``keys`` and ``values`` are those that the draws have added to their prompts'."""

    def __init__(self, prompt: GrowingLayer, mask_PT: Tensor, layout: Layout) -> None:
        super().__init__()
        self.prompt_keys: Any = prompt.keys
        self.prompt_values: Any = prompt.values
        self.layout = layout
        self.hidden_PT = None if bool(mask_PT.all()) else mask_PT == 0

    def get_seq_length(self) -> int:
        return int(self.prompt_keys.shape[-2]) + self.num_added()

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Return the keys and values of what the draws have said; the keys say whose prompts they go on from."""
        keys, values = super().update(key_states, value_states, *args, **kwargs)
        keys.after_prompt = self  # type: ignore[attr-defined]
        return keys, values

    def batch_select_indices(self, indices: Tensor) -> None:
        super().batch_select_indices(indices)
        self.layout, kept_P = self.layout.select(indices)
        if len(kept_P) < len(self.prompt_keys):
            self.prompt_keys, self.prompt_values = self.prompt_keys[kept_P], self.prompt_values[kept_P]
            self.hidden_PT = None if self.hidden_PT is None else self.hidden_PT[kept_P]


@dataclass
class _Part:
    """Sums over some of the keys: of values weighted by exponentials of scores less ``largest``, and of these weights."""

    weighted: Tensor
    total: Tensor
    largest: Tensor


def _part(queries: Tensor, keys: Tensor, values: Tensor, scaling: float, hidden: Tensor | None = None) -> _Part:
    scores = (queries @ keys.transpose(-1, -2)).float().mul_(scaling)
    if hidden is not None:
        scores.masked_fill_(hidden, -torch.inf)
    largest = scores.amax(-1, keepdim=True)
    weights = scores.sub_(largest).exp_()
    return _Part((weights.to(values.dtype) @ values).float(), weights.sum(-1, keepdim=True), largest)


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Return what transformers' attention functions do: [R, 1, H * G, D], and no weights. Keys and values that do not come from
    a :class:`SharedPromptLayer` are attended to by SDPA."""
    layer: SharedPromptLayer | None = getattr(key, "after_prompt", None)
    if layer is None:
        output: Tensor = sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)[0]
        return output, None
    if query.shape[2] != 1:
        raise NotImplementedError("draws of one prompt are decoded a token at a time")
    (r, heads, _, d), h, layout = query.shape, key.shape[1], layer.layout
    scaling, queries = d**-0.5 if scaling is None else scaling, query.reshape(r, h, heads // h, d)
    hidden = None if layer.hidden_PT is None else layer.hidden_PT[:, None, None, :]
    prompt = _part(layout.by_prompt(queries), layer.prompt_keys, layer.prompt_values, scaling, hidden)
    prompt = _Part(*(layout.by_draw(values) for values in (prompt.weighted, prompt.total, prompt.largest)))
    added = _part(queries, key, value, scaling)
    largest = torch.maximum(prompt.largest, added.largest)
    of_prompt, of_added = (prompt.largest - largest).exp(), (added.largest - largest).exp()
    output = prompt.weighted * of_prompt + added.weighted * of_added
    output = output / (prompt.total * of_prompt + added.total * of_added)
    return output.to(query.dtype).reshape(r, 1, heads, d), None


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, sdpa_mask)


@contextmanager
def draws_of_prompts(model: Any, cache: DynamicCache, mask_PT: Tensor, prompt_R: Tensor) -> Iterator[bool]:
    """Have ``cache``, which holds prompts, hold draws of them: draw r of prompt ``prompt_R[r]``, ascending. Within the context
    they are decoded, a token at a time. Yield whether the model must be given the attention mask then.

    In families other than :data:`FAMILIES` each draw is given a copy of its prompt.
    """
    if torch.equal(prompt_R, torch.arange(len(mask_PT), device=prompt_R.device)):
        yield True
        return
    configs = _attention_configs(model)
    if not configs or any(type(layer) is not GrowingLayer for layer in cache.layers):
        cache.batch_select_indices(prompt_R)
        yield True
        return
    layout = Layout.of(prompt_R)
    cache.layers = [SharedPromptLayer(layer, mask_PT, layout) for layer in cache.layers]
    _enter(configs)
    try:
        yield False
    finally:
        _leave(configs)


def _attention_configs(model: Any) -> list[Any]:
    """Return the configs by which the attention of a model's language part is chosen; none where that is of another kind."""
    if model.config.get_text_config().model_type not in FAMILIES:
        return []
    parts = [part for part in model.modules() if hasattr(part, "layer_idx") and hasattr(part, "num_key_value_groups")]
    return list({id(part.config): part.config for part in parts}.values())


def _enter(configs: list[Any]) -> None:
    with _guard:
        for config in configs:
            number, before = _users.get(id(config), (0, config._attn_implementation))
            _users[id(config)] = number + 1, before
            config._attn_implementation = NAME


def _leave(configs: list[Any]) -> None:
    with _guard:
        for config in configs:
            number, before = _users.pop(id(config))
            if number > 1:
                _users[id(config)] = number - 1, before
            else:
                config._attn_implementation = before
