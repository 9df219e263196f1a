"""Prompts whose first image is the same and whose second is another: nothing that hangs on the second is shared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rewardlab.samplers.base import SamplingParams
from rewardlab.samplers.hf import HFSampler
from rewardlab.types import Message, Part


def test_a_second_image_is_its_own(tiny_checkpoint: Path, demo_pairs: Any) -> None:
    """Margins and greedy log-probs together are those alone, and differ between the two."""
    sampler = HFSampler.load(tiny_checkpoint, batch_size=8, device="cpu")
    images = [pair.images[0] for pair in demo_pairs[0][:3]]
    prompts = [
        (Message("user", (Part(image=images[0]), Part(image=images[n]), Part(text="Which is better, 1 or 2?"))),)
        for n in (1, 2)
    ]
    together = sampler.verdict_margins(prompts, ["", ""])[0]
    alone = torch.cat([sampler.verdict_margins([prompt], [""])[0] for prompt in prompts])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=0)
    assert abs(float(alone[0] - alone[1])) > 1e-4
    params = SamplingParams(temperature=0, max_tokens=4)
    both = [row[0] for row in sampler.sample(prompts, params)]
    for prompt, one in zip(prompts, both, strict=True):
        assert one.logprobs == pytest.approx(sampler.sample([prompt], params)[0][0].logprobs, abs=1e-4)


def test_an_image_behind_what_differs_is_read_with_each(tiny_checkpoint: Path, demo_pairs: Any) -> None:
    """One image behind two beginnings: what the prompts share ends before it, and each is as if it were alone."""
    sampler = HFSampler.load(tiny_checkpoint, batch_size=8, device="cpu")
    image = demo_pairs[0][0].images[0]
    prompts = [
        (Message("user", (Part(text=text), Part(image=image), Part(text="Which is better, 1 or 2?"))),)
        for text in ("1: red, 2: blue.", "1: blue, 2: red.")
    ]
    together = sampler.verdict_margins(prompts, ["", ""])[0]
    alone = torch.cat([sampler.verdict_margins([prompt], [""])[0] for prompt in prompts])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=0)
    assert abs(float(alone[0] - alone[1])) > 1e-4
