"""Sampling many completions of each prompt from a transformers model.

``generate()`` copies every prompt K times before it reads any, and steps finished rows until the last one is done. Here a
prompt, images included, is read once; its K draws share its cache; finished rows leave the batch. What prompts about the same
images begin with alike is read once for all of them.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.nn.functional import pad

from rewardlab.models.families import has_grids, image_token_id, rope_module, rope_positions
from rewardlab.samplers.kv_cache import GrowingLayer, growing_cache
from rewardlab.samplers.shared_prefix import split_prefixes
from rewardlab.samplers.shared_prompt import draws_of_prompts

BELOW_1 = 1 - 1e-12
P = ParamSpec("P")
R = TypeVar("R")
_locks: WeakKeyDictionary[Any, threading.Lock] = WeakKeyDictionary()
_guard = threading.Lock()
COMPACT_BELOW = 0.75  # drop finished rows from the batch once fewer than this share are alive
COMPACT_FIXED_BELOW = 0.5  # where that costs a new graph
SYNC_EVERY = 8  # tokens, on a GPU, which falls idle whenever the host waits for one of its numbers


@dataclass(frozen=True)
class HotToken:
    """One early token is drawn much hotter than the rest (FIRE, arXiv 2410.21236), among the ``top_k`` likeliest.

    ``position`` 0 is the very first token. Where a judge always opens with ``<think>``, that token is not free: heat it and the
    format breaks; ``position`` 1 is the first one that decides anything.
    """

    temperature: float
    top_k: int = 16
    position: int = 0

    def __post_init__(self) -> None:
        if self.temperature <= 0 or self.top_k < 1 or self.position < 0:
            raise ValueError(f"a hot token needs temperature > 0, top_k >= 1 and position >= 0, got {self}")


@dataclass(frozen=True)
class Draws:
    """``tokens[r]`` and ``logprobs[r]`` of each draw, those of one prompt next to each other: row ``r = prompt * K + draw`` for
    K draws of each. An end token, where reached, is the last one. Log-probs of a model that gives no numbers are NaN."""

    tokens: list[list[int]]
    logprobs: list[list[float]]


def next_token_logits(logits_RV: Tensor, temperature: float, top_p: float, suppress: Tensor | None) -> Tensor:
    """Return logits to sample from: suppressed tokens out, divided by the temperature (unless greedy), top_p's tail out."""
    logits_RV = logits_RV.float()
    if suppress is not None:
        logits_RV = logits_RV.index_fill(1, suppress, -torch.inf)
    if temperature > 0:
        logits_RV = logits_RV / temperature
    if top_p < 1:
        ordered_RV, index_RV = logits_RV.sort(descending=True)
        before_RV = ordered_RV.softmax(-1).cumsum(-1) - ordered_RV.softmax(-1)
        dropped_RV = torch.zeros_like(logits_RV, dtype=torch.bool).scatter(1, index_RV, before_RV >= top_p)
        logits_RV = logits_RV.masked_fill(dropped_RV, -torch.inf)
    return logits_RV


def hot_logits(logits_RV: Tensor, hot: HotToken, suppress: Tensor | None) -> Tensor:
    """Return the logits of the hot token: the ``top_k`` likeliest, divided by its temperature."""
    logits_RV = next_token_logits(logits_RV, hot.temperature, 1.0, suppress)
    least_R1 = logits_RV.topk(min(hot.top_k, logits_RV.shape[1]), dim=1).values[:, -1:]
    return logits_RV.masked_fill(logits_RV < least_R1, -torch.inf)


def draw_uniforms(key: Sequence[int], rows: Sequence[int], number: int) -> Tensor:
    """Return [len(rows), number] float64 in [0, 1), each row by ``key`` and its own number alone, whatever the other rows."""
    return torch.from_numpy(np.stack([np.random.default_rng([*key, row]).random(number) for row in rows]))


def pick(scores_RV: Tensor, uniforms_R: Tensor) -> Tensor:
    """Return [R] tokens by inverting the distribution: each is the first whose cumulated probability exceeds its number.

    Probabilities are added up in float64, first in blocks: of a vocabulary of 152,064 only one block a row is cumulated. Of
    scores that are no numbers it is any token.
    """
    (rows, size), block = scores_RV.shape, math.isqrt(scores_RV.shape[1] - 1) + 1
    weights_RV = (scores_RV.float() - scores_RV.amax(-1, keepdim=True)).exp_()
    weights_RBW = pad(weights_RV, (0, -size % block)).view(rows, -1, block)
    ends_RB = weights_RBW.sum(-1, dtype=torch.float64).cumsum(-1)
    aims_R1 = uniforms_R.double()[:, None] * ends_RB[:, -1:]
    # Clamped for what is no number: an index beyond the end would end the process of a card.
    block_R1 = torch.searchsorted(ends_RB, aims_R1, right=True).clamp(max=ends_RB.shape[1] - 1)
    index_R1W = block_R1[:, :, None].expand(-1, -1, block)
    cumulated_RW = weights_RBW.gather(1, index_R1W)[:, 0].double().cumsum(-1)
    aims_R1 = aims_R1 - pad(ends_RB, (1, 0)).gather(1, block_R1)
    aims_R1 = torch.minimum(aims_R1, cumulated_RW[:, -1:] * BELOW_1)  # the two sums of a block may differ in their last digits
    tokens_R1 = block_R1 * block + torch.searchsorted(cumulated_RW, aims_R1, right=True)
    return tokens_R1[:, 0].clamp(max=size - 1)


def _read_shared(
    model: Any, inputs: dict[str, Tensor], cache: Any, groups: Sequence[int] | None
) -> tuple[Tensor, Tensor | None, Tensor]:
    """:func:`_read_prompts`, and the attention mask of what the cache then holds.

    Where ``groups`` says which prompts show the same images, what those begin with alike is read once.
    """
    plain = all(type(layer) is GrowingLayer for layer in cache.layers)  # a sliding window would count the padding between
    shared = split_prefixes(inputs, groups, image_token_id(model.config)) if groups and plain else None
    if shared is None:
        return *_read_prompts(model, inputs, cache), inputs["attention_mask"]
    _, offset = _read_prompts(model, shared.prefix, cache)
    cache.batch_select_indices(shared.group)
    offset = None if offset is None else offset[shared.group]
    mask = torch.cat([shared.prefix["attention_mask"][shared.group], shared.rest_mask], 1)
    positions = (mask.cumsum(1) - 1)[:, -shared.rest_ids.shape[1] :]
    output = model(
        input_ids=shared.rest_ids,
        attention_mask=mask,
        position_ids=rope_positions(positions, offset),
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
    )
    return output.logits[:, -1], offset, mask


def _read_prompts(model: Any, inputs: dict[str, Tensor], cache: Any) -> tuple[Tensor, Tensor | None]:
    """Return the logits after each prompt, and [rows, 1] what M-RoPE adds to a text position after images (None: nothing)."""
    rope = rope_module(model)
    if rope is not None:
        rope.rope_deltas = None
    extra = {}
    if rope is None or not has_grids(inputs):  # plain positions that skip the padding, as those of the decoding steps do
        extra["position_ids"] = (inputs["attention_mask"].cumsum(1) - 1).clamp(min=0)
    output = model(**inputs, **extra, past_key_values=cache, use_cache=True, logits_to_keep=1)
    return output.logits[:, -1], getattr(rope, "rope_deltas", None)


def _one_at_a_time(function: Callable[P, R]) -> Callable[P, R]:
    """Have threads wait for each other where they decode by one model, the first argument: it remembers where its images
    stand, and by which attention it decodes."""

    @wraps(function)
    def alone(*args: P.args, **kwargs: P.kwargs) -> R:
        with _guard:
            lock = _locks.setdefault(args[0], threading.Lock())
        with lock:
            return function(*args, **kwargs)

    return alone


@_one_at_a_time
@torch.no_grad()  # in inference mode, autocast would turn all weights into 16 bits again for each token
def read_logits(model: Any, inputs: dict[str, Tensor], groups: Sequence[int] | None = None) -> Tensor:
    """Return [rows, V] float32 logits of the token after each left-padded prompt; ``groups`` as of :func:`draw`."""
    return _read_shared(model, inputs, growing_cache(model), groups)[0].float()


class Steps:
    """Reads one more token of each draw at a time, ``num_tokens`` at most; ``cache`` holds the keys and values, ``mask_RT``
    hides padding in them.

    ``fixed``: shapes and addresses stay the same until the buffers are full or draws leave. A GPU then replays one graph of
    kernels; launched one by one, those of 3B take 20 times as long as reading the weights.
    """

    def __init__(self, model: Any, cache: Any, mask_RT: Tensor | None, num_tokens: int, *, fixed: bool) -> None:
        self._model, self._cache, self._mask_RT, self._fixed = model, cache, mask_RT, fixed
        self._num_tokens = num_tokens
        self._capacity = self._length = 0  # tokens that the buffers hold, tokens written; no capacity: shapes are not fixed
        self._has_read = False
        self._graph: torch.cuda.CUDAGraph | None = None

    def read(self, tokens_R: Tensor, positions: Tensor) -> Tensor:
        """Return [R, V] logits of the tokens that follow, valid until the next call. ``positions``: :func:`rope_positions`."""
        if not self._fixed or not self._has_read:  # the first pass makes the buffers, and what a card makes at a first pass
            self._has_read = True
            if self._mask_RT is not None:
                self._mask_RT = pad(self._mask_RT, (0, 1), value=1)
            return self._forward(tokens_R[:, None], positions, self._mask_RT)
        if self._capacity <= self._length:
            self._fix(tokens_R, positions)
        self._tokens.copy_(tokens_R[:, None])
        self._positions.copy_(positions)
        self._place.fill_(self._length)
        self._length += 1
        graph = self._graph or self._capture()
        graph.replay()
        return self._logits

    def select(self, kept: Tensor) -> None:
        """Go on with some of the draws."""
        self._unfix()
        self._cache.batch_select_indices(kept)
        self._mask_RT = None if self._mask_RT is None else self._mask_RT[kept]

    def _forward(self, tokens_R1: Tensor, positions: Tensor, mask: Tensor | None) -> Tensor:
        output = self._model(
            input_ids=tokens_R1, attention_mask=mask, position_ids=positions, past_key_values=self._cache, use_cache=True
        )
        logits: Tensor = output.logits[:, -1]
        return logits

    def _fix(self, tokens_R: Tensor, positions: Tensor) -> None:
        """Make room for as many tokens as there are, or may come, and for the inputs of a step."""
        self._unfix()
        self._length = self._cache.layers[0].num_added()
        self._tokens, self._positions = torch.empty_like(tokens_R[:, None]), torch.empty_like(positions).contiguous()
        self._place = torch.zeros(1, dtype=torch.long, device=tokens_R.device)
        room = min(max(1, self._length), self._num_tokens)
        (self._capacity,) = {layer.fix(self._place, room) for layer in self._cache.layers}
        self._index_C = torch.arange(self._capacity, device=tokens_R.device)
        mask_RT = self._index_C[None] >= 0 if self._mask_RT is None else self._mask_RT > 0
        self._shown_RC = pad(mask_RT, (0, self._capacity - mask_RT.shape[1]), value=True)

    def _unfix(self) -> None:
        for layer in self._cache.layers if self._capacity else []:
            layer.unfix(self._length)
        self._capacity, self._graph = 0, None

    def _fixed_step(self) -> Tensor:
        visible_RC = (self._index_C <= self._place) & self._shown_RC
        return self._forward(self._tokens, self._positions, visible_RC.expand(len(self._tokens), -1)[:, None, None, :])

    def _capture(self) -> torch.cuda.CUDAGraph:
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._logits = self._fixed_step()
        return self._graph


def has_fixed_steps(model: Any) -> bool:
    """Return whether decoding steps keep their shapes: on a GPU, unless layers gather or dequantise weights in a pass."""
    weight = next(model.parameters())
    is_plain = not isinstance(model, FSDPModule) and not hasattr(weight, "ds_id") and not getattr(model, "is_quantized", False)
    return weight.is_cuda and is_plain


def steps_per_wait(device: torch.device) -> int:
    """Return after how many tokens of each row the decoder looks which rows have ended. On a CPU a look costs nothing."""
    return 1 if device.type == "cpu" else SYNC_EVERY


@_one_at_a_time
@torch.no_grad()  # in inference mode, autocast would turn all weights into 16 bits again for each token
def draw(
    model: Any,
    inputs: dict[str, Tensor],
    *,
    num_draws: int | Sequence[int],
    max_tokens: int,
    temperature: float,
    top_p: float,
    ends: frozenset[int],
    suppress: Sequence[int] = (),
    generator: torch.Generator | None = None,
    hot: HotToken | None = None,
    groups: Sequence[int] | None = None,
    uniforms: Tensor | None = None,
) -> Draws:
    """Sample ``num_draws`` completions of each left-padded prompt, or as many of each as it lists. ``temperature`` 0 is greedy
    but for a hot token.

    ``uniforms`` [draws of all prompts, max_tokens], numbers in [0, 1), decide the draws instead of ``generator``: see
    :func:`draw_uniforms`.

    ``groups`` numbers the prompts, equally where they show the same images: see :mod:`rewardlab.samplers.shared_prefix`.
    ``logprobs`` are the model's own at ``temperature`` (1 when greedy), before suppression and top_p: what a trainer computes.
    The host waits for a GPU once every :data:`SYNC_EVERY` tokens; at each token if every draw has a padded prompt of its own:
    transformers looks at the mask then.
    """
    cache = growing_cache(model)
    logits, offset, mask = _read_shared(model, inputs, cache, groups)
    repeats = torch.as_tensor(num_draws, device=mask.device).expand(len(mask))
    prompt = torch.arange(len(mask), device=mask.device).repeat_interleave(repeats)
    prompt_mask, logits, mask, lengths = mask, logits[prompt], mask[prompt], mask.sum(1)[prompt]
    offset = None if offset is None else offset[prompt]
    rows = torch.arange(len(mask), device=mask.device)
    stop = torch.tensor(sorted(ends), device=mask.device)
    suppressed = torch.tensor(list(suppress), device=mask.device) if suppress else None
    alive = torch.ones_like(rows, dtype=torch.bool)
    tokens_RT = torch.zeros(len(rows), max_tokens, dtype=torch.long, device=mask.device)
    logprobs_RT = torch.zeros(len(rows), max_tokens, device=mask.device)
    with draws_of_prompts(model, cache, prompt_mask, prompt, fixed=has_fixed_steps(model)) as (has_copies, fixed):
        padded = has_copies and not bool(prompt_mask.all())
        steps = Steps(model, cache, mask if padded else None, max_tokens, fixed=fixed)
        for step in range(max_tokens):
            heat = hot if hot is not None and step == hot.position else None
            if heat is None:
                scores = next_token_logits(logits, temperature, top_p, suppressed)
            else:
                scores = hot_logits(logits, heat, suppressed)
            if temperature > 0 or heat is not None:
                if uniforms is None:
                    numbers = torch.rand(len(rows), generator=generator, dtype=torch.float64, device=rows.device)
                else:
                    numbers = uniforms[rows, step]
                tokens = pick(scores, numbers)
            else:
                tokens = scores.argmax(-1)
            policy = logits.float() / (temperature or 1.0)
            tokens_RT[rows, step] = tokens
            logprobs_RT[rows, step] = policy.gather(1, tokens[:, None])[:, 0] - policy.logsumexp(-1)
            alive = alive & ~torch.isin(tokens, stop)
            if step == max_tokens - 1:
                break
            if (step + 1) % steps_per_wait(rows.device) == 0:
                num_alive = int(alive.sum())  # the one place where the program waits for a card
                if num_alive == 0:
                    break
                if num_alive < (COMPACT_FIXED_BELOW if fixed else COMPACT_BELOW) * len(rows):
                    kept = alive.nonzero()[:, 0]
                    steps.select(kept)
                    tokens, rows, lengths, alive = (part[kept] for part in (tokens, rows, lengths, alive))
                    offset = None if offset is None else offset[kept]
            logits = steps.read(tokens, rope_positions(lengths[:, None] + step, offset))
    return _until_ends(tokens_RT[:, : step + 1], logprobs_RT[:, : step + 1], stop)


def _until_ends(tokens_RT: Tensor, logprobs_RT: Tensor, stop: Tensor) -> Draws:
    """Return each row up to its first end token, or all of it."""
    ends_RT = torch.isin(tokens_RT, stop)
    lengths = torch.where(ends_RT.any(1), ends_RT.int().argmax(1) + 1, tokens_RT.shape[1]).tolist()
    columns = (tokens_RT.tolist(), logprobs_RT.tolist())
    tokens, logprobs = ([row[:length] for row, length in zip(rows, lengths, strict=True)] for rows in columns)
    return Draws(tokens, logprobs)
