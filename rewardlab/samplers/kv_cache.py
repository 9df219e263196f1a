"""A key-value cache that grows in place, in the type that attention computes in.

transformers' dynamic cache concatenates keys and values anew for every token: on a CPU, two thirds of the time of
batched decoding. Here a layer writes into a buffer with room to spare and hands out a view of it.

Under autocast with float32 weights, rotary positions turn keys into float32 again, and attention turns them back at every
step: kept as float32, the cache would take twice the memory for the same numbers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer, LinearAttentionCacheLayerMixin

ROOM = 64  # tokens allocated ahead


class GrowingLayer(DynamicLayer):
    """A DynamicLayer whose ``keys`` and ``values`` are views of buffers that are longer than they are."""

    def __init__(self) -> None:
        super().__init__()
        self._buffers: tuple[Tensor, Tensor] | None = None
        self._place: Tensor | None = None

    def num_added(self) -> int:
        """Return how many tokens ``keys`` and ``values`` are of."""
        return int(super().get_seq_length())

    def fix(self, place: Tensor, room: int) -> int:
        """Make room for ``room`` tokens and return how many the buffers hold. Until :meth:`unfix`, each step writes at
        ``place`` [1], a number on the device, and returns the whole buffers: shapes and addresses do not change."""
        self._buffers = self._make_room((self.keys, self.values), self.num_added(), room)
        self._place = place
        return int(self._buffers[0].shape[-2])

    def unfix(self, length: int) -> None:
        """End :meth:`fix`: ``length`` tokens have been written in all."""
        self._place = None
        if self._buffers is not None:
            self.keys, self.values = (buffer[..., :length, :] for buffer in self._buffers)

    def _make_room(self, new: tuple[Tensor, Tensor], length: int, room: int) -> tuple[Tensor, Tensor]:
        """Return buffers that hold what is cached, with ``room`` for keys and values like ``new``: new ones if ``keys`` are no
        part of them."""
        buffers, keys, values, total = self._buffers, self.keys, self.values, length + room
        stale = buffers is None or length == 0 or keys is None or keys.data_ptr() != buffers[0].data_ptr()
        if buffers is None or stale or buffers[0].shape[-2] < total:
            of_keys, of_values = ((*states.shape[:-2], total + ROOM, states.shape[-1]) for states in new)
            buffers = (new[0].new_zeros(of_keys), new[1].new_zeros(of_values))  # no NaN: hidden values count 0 times
            if length and keys is not None and values is not None:
                buffers[0][..., :length, :] = keys
                buffers[1][..., :length, :] = values
        return buffers

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep some rows, or repeat some; of the buffers, so that the next token finds its room."""
        if self._buffers is not None and self.num_added():
            length = self.num_added()
            self._buffers = (self._buffers[0][indices], self._buffers[1][indices])
            self.keys, self.values = (buffer[..., :length, :] for buffer in self._buffers)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        if self._place is not None and self._buffers is not None:
            for buffer, states in zip(self._buffers, (key_states, value_states), strict=True):
                buffer.index_copy_(-2, self._place, states)
            self.keys, self.values = self._buffers
            return self._buffers
        length = self.num_added()
        self._buffers = self._make_room((key_states, value_states), length, key_states.shape[-2])
        total = length + key_states.shape[-2]
        for buffer, states in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[..., length:total, :] = states
        self.keys, self.values = (buffer[..., :total, :] for buffer in self._buffers)
        return self.keys, self.values


class ComputeTypeCache(DynamicCache):
    """A DynamicCache of any layers that keeps keys and values in autocast's type where autocast is on, else as they come."""

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        device = key_states.device.type
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
            key_states, value_states = key_states.to(dtype), value_states.to(dtype)
        keys, values = super().update(key_states, value_states, layer_idx, *args, **kwargs)
        return keys, values

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep some rows, or repeat some; of the states of linear attention, too, which transformers' own method leaves out."""
        for layer in self.layers:
            has_states = isinstance(layer, LinearAttentionCacheLayerMixin)
            (layer.reorder_cache if has_states else layer.batch_select_indices)(indices)


def growing_cache(model: PreTrainedModel) -> DynamicCache:
    """Return the model's kind of dynamic cache, its plain layers replaced; sliding-window and other layers stay theirs."""
    cache = ComputeTypeCache(config=model.config)
    cache.layers = [GrowingLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache
