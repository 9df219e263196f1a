"""Rollouts by the decoder that benchmarks and serves the judge: a prompt is read once for all its rollouts of this process."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from torch import Tensor

from rewardlab.models.families import Fields, prompt_batch, vision_token_ids
from rewardlab.models.processed_images import image_key
from rewardlab.samplers.base import SamplingParams
from rewardlab.samplers.decode import HotToken, draw
from rewardlab.samplers.shared_prefix import group_numbers
from rewardlab.training.policy_gradient.rollouts.whole import Samples


@dataclass(frozen=True)
class Prompts:
    """One prompt a rollout, repeated where several rollouts are drawn of it: token ids, the images of each (None where no
    prompt has any), the model inputs made of them, and the token that pads."""

    ids: Sequence[list[int]]
    images: Any
    fields: Fields
    pad: int

    def numbers(self) -> tuple[list[int], list[int]]:
        """Return two numbers of each prompt, in the order in which they first occur: one that equals another's where both
        have the same token ids and images, one where they have the same images."""
        images = group_numbers([tuple(map(image_key, pictures or ())) for pictures in self.images or [()] * len(self.ids)])
        return group_numbers(list(zip(map(tuple, self.ids), images, strict=True))), images


def plan_slices(prompts: Sequence[int], images: Sequence[int], size: int) -> list[list[int]]:
    """Return rows to draw side by side: at most ``size``, in as few slices as there can be.

    ``prompts`` and ``images`` number what each row reads. Prompts with the same images stay together where that takes no more
    slices; failing that, the rows of each prompt; failing that, as many of them as there is room for. One slice more costs
    more than a prompt read twice: all its decoding steps.
    """
    rows = sorted(range(len(prompts)), key=lambda row: (images[row], prompts[row]))
    fewest = math.ceil(len(rows) / size)
    for unit in (images.__getitem__, prompts.__getitem__, int):
        slices = _pack([list(members) for _, members in groupby(rows, unit)], size)
        if len(slices) == fewest and max(map(len, slices), default=0) <= size:
            break
    return slices


def _pack(units: Sequence[list[int]], size: int) -> list[list[int]]:
    """Return the units in slices of at most ``size`` rows, each in the first that has room; a longer unit is a slice."""
    slices: list[list[int]] = []
    for unit in units:
        room = next((rows for rows in slices if len(rows) + len(unit) <= size), None)
        if room is None:
            slices.append(list(unit))
        else:
            room += unit
    return slices


def decode_rollouts(
    policy: Any,
    prompts: Prompts,
    uniforms_NT: Tensor,
    params: SamplingParams,
    *,
    ends: frozenset[int],
    batch_size: int | None = None,
    hot_token: HotToken | None = None,
) -> Samples:
    """Return one completion of each prompt, sampled by inverse CDF of its row of ``uniforms_NT``, at most ``batch_size`` side
    by side (None: all).

    In float32 what is drawn does not depend on which rows are side by side, nor on how often a prompt occurs; of 16 bits they
    decide how sums are rounded. Equal prompts are read once, and what prompts about the same images begin with alike is read
    once for them. No token that stands for an image is drawn.
    """
    by_prompt, by_image = prompts.numbers()
    tokens: list[list[int]] = [[] for _ in prompts.ids]
    logprobs: list[list[float]] = [[] for _ in prompts.ids]
    for rows in plan_slices(by_prompt, by_image, batch_size or len(prompts.ids)):
        repeats = [list(members) for _, members in groupby(rows, by_prompt.__getitem__)]
        leaders = [members[0] for members in repeats]
        batch = prompt_batch(prompts.ids, prompts.fields, prompts.images, leaders, prompts.pad)
        draws = draw(
            policy,
            {name: value.to(uniforms_NT.device) for name, value in batch.items()},
            num_draws=[len(members) for members in repeats],
            **params.fields,
            ends=ends,
            suppress=vision_token_ids(policy.config),
            hot=hot_token,
            groups=group_numbers([by_image[row] for row in leaders]),
            uniforms=uniforms_NT[rows],
        )
        for n, row in enumerate(rows):
            tokens[row], logprobs[row] = draws.tokens[n], draws.logprobs[n]
    return tokens, logprobs
