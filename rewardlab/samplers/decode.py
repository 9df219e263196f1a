"""Sampling many completions of each prompt from a transformers model.

``generate()`` copies every prompt K times before it reads any, and steps finished rows until the last one is done. Here a
prompt, images included, is read once; its cache is copied K times; finished rows leave the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rewardlab.samplers.kv_cache import growing_cache

COMPACT_BELOW = 0.75  # drop finished rows from the batch once fewer than this share are alive


@dataclass(frozen=True)
class Draws:
    """``tokens[r]`` and ``logprobs[r]`` of row ``r = prompt * K + draw``; an end token, where reached, is the last one."""

    tokens: list[list[int]]
    logprobs: list[list[float]]


def next_token_logits(logits_RV: Tensor, temperature: float, top_p: float, suppress: Sequence[int]) -> Tensor:
    """Logits to sample from: suppressed tokens out, divided by the temperature (unless greedy), the tail beyond top_p out."""
    logits_RV = logits_RV.float()
    if suppress:
        logits_RV = logits_RV.index_fill(1, torch.tensor(list(suppress), device=logits_RV.device), -torch.inf)
    if temperature > 0:
        logits_RV = logits_RV / temperature
    if top_p < 1:
        ordered_RV, index_RV = logits_RV.sort(descending=True)
        before_RV = ordered_RV.softmax(-1).cumsum(-1) - ordered_RV.softmax(-1)
        dropped_RV = torch.zeros_like(logits_RV, dtype=torch.bool).scatter(1, index_RV, before_RV >= top_p)
        logits_RV = logits_RV.masked_fill(dropped_RV, -torch.inf)
    return logits_RV


def _rope_offset(model: Any, rows: int, device: torch.device) -> Tensor | None:
    """[rows, 1] what M-RoPE models add to a text position after images; None for models with plain positions."""
    inner = getattr(model, "model", model)
    offset = getattr(inner, "rope_deltas", None)
    if offset is None:
        return None
    return offset.to(device).expand(rows, 1) if offset.shape[0] != rows else offset.to(device)


@torch.inference_mode()
def draw(
    model: Any,
    inputs: dict[str, Tensor],
    *,
    num_draws: int,
    max_tokens: int,
    temperature: float,
    top_p: float,
    ends: frozenset[int],
    suppress: Sequence[int] = (),
    generator: torch.Generator | None = None,
) -> Draws:
    """``num_draws`` completions of each left-padded prompt in ``inputs``. ``temperature`` 0 is greedy.

    ``logprobs`` are the model's own at ``temperature`` (1 when greedy), before suppression and top_p: what a trainer computes.
    """
    mask = inputs["attention_mask"]
    cache = growing_cache(model)
    output = model(**inputs, past_key_values=cache, use_cache=True, logits_to_keep=1)
    offset = _rope_offset(model, len(mask), mask.device)
    if num_draws > 1:
        cache.batch_repeat_interleave(num_draws)
    logits = output.logits[:, -1].repeat_interleave(num_draws, 0)
    mask = mask.repeat_interleave(num_draws, 0)
    offset = None if offset is None else offset.repeat_interleave(num_draws, 0)
    rows = torch.arange(len(mask), device=mask.device)
    stop = torch.tensor(sorted(ends), device=mask.device)
    draws = Draws([[] for _ in rows], [[] for _ in rows])
    for step in range(max_tokens):
        scores = next_token_logits(logits, temperature, top_p, suppress)
        if temperature > 0:
            tokens = torch.multinomial(scores.softmax(-1), 1, generator=generator)[:, 0]
        else:
            tokens = scores.argmax(-1)
        policy = (logits.float() / (temperature or 1.0)).log_softmax(-1)
        logprobs = policy.gather(1, tokens[:, None])[:, 0]
        alive = ~torch.isin(tokens, stop)
        _record(draws, rows, tokens, logprobs)
        if not alive.any() or step == max_tokens - 1:
            break
        logits, mask, offset, rows = _advance(model, cache, tokens, alive, mask, offset, rows)
    tokens_of = [_cut(tokens, ends) for tokens in draws.tokens]
    return Draws(tokens_of, [p[: len(t)] for t, p in zip(tokens_of, draws.logprobs, strict=True)])


def _cut(tokens: list[int], ends: frozenset[int]) -> list[int]:
    """Up to and including the first end token: a finished row may have been stepped a little further."""
    for n, token in enumerate(tokens):
        if token in ends:
            return tokens[: n + 1]
    return tokens


def _record(draws: Draws, rows: Tensor, tokens: Tensor, logprobs: Tensor) -> None:
    for row, token, logprob in zip(rows.tolist(), tokens.tolist(), logprobs.tolist(), strict=True):
        draws.tokens[row].append(token)
        draws.logprobs[row].append(logprob)


def _advance(
    model: Any, cache: Any, tokens: Tensor, alive: Tensor, mask: Tensor, offset: Tensor | None, rows: Tensor
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """One decoding step; compacts the batch first where enough rows have finished."""
    if alive.float().mean() < COMPACT_BELOW:
        keep = alive.nonzero()[:, 0]
        cache.batch_select_indices(keep)
        tokens, mask, rows = tokens[keep], mask[keep], rows[keep]
        offset = None if offset is None else offset[keep]
    mask = torch.cat([mask, mask.new_ones(len(mask), 1)], 1)
    positions = mask.sum(1, keepdim=True) - 1
    if offset is not None:
        positions = (positions + offset)[None].expand(3, -1, -1)
    output = model(
        input_ids=tokens[:, None], attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True
    )
    return output.logits[:, -1], mask, offset, rows
