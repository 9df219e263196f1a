"""The cache of keys and values: what it holds, in which type, and that neither changes a draw."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DynamicCache

from rewardlab.prompts import build_messages, load_template
from rewardlab.samplers.decode import Draws, draw, draw_uniforms
from rewardlab.samplers.hf import HFSampler
from rewardlab.samplers.kv_cache import growing_cache
from rewardlab.types import Order


@pytest.fixture(scope="module")
def sampler(tiny_checkpoint: Path) -> HFSampler:
    """Of float32 weights, as a policy that learns has them."""
    return HFSampler.load(tiny_checkpoint, device="cpu")


@pytest.mark.parametrize(("autocast", "dtype"), [(True, torch.bfloat16), (False, torch.float32)])
def test_it_holds_the_compute_type(
    sampler: HFSampler, demo_pairs: Any, monkeypatch: pytest.MonkeyPatch, autocast: bool, dtype: torch.dtype
) -> None:
    """Under autocast, 4 bytes a pair of elements; the draws and log-probs are those of transformers' own cache, bit by bit."""
    pairs = demo_pairs[0][:9]
    inputs = sampler.encode([build_messages(pair, order=Order.GIVEN, template=load_template("plain")) for pair in pairs])
    caches: list[DynamicCache] = []

    def drawn(make: Any) -> Draws:
        def keep(model: Any) -> DynamicCache:
            caches.append(make(model))
            return caches[-1]

        monkeypatch.setattr("rewardlab.samplers.decode.growing_cache", keep)
        with torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext():
            return draw(
                sampler.model,
                inputs,
                num_draws=1,
                max_tokens=70,  # more than the room that is allocated ahead
                temperature=1.0,
                top_p=1.0,
                ends=sampler._ends,
                uniforms=draw_uniforms((0,), range(9), 70),
            )

    assert drawn(growing_cache) == drawn(lambda model: DynamicCache(config=model.config))
    for layer in caches[0].layers:
        assert layer.keys is not None
        assert layer.values is not None
        assert layer.keys.dtype == layer.values.dtype == dtype
