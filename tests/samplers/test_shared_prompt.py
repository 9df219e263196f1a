"""Draws that share their prompt's keys and values are the draws that have a copy each."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from rewardlab.prompts import build_messages, load_template
from rewardlab.samplers import shared_prompt
from rewardlab.samplers.decode import Draws, draw, draw_uniforms, pick
from rewardlab.samplers.hf import HFSampler
from rewardlab.types import Order
from tests.support import scaled_runs

COUNTS = (1, 5, 2, 4)


def drawn(sampler: HFSampler, **changes: Any) -> Draws:
    """Twelve draws of four prompts, left-padded, with one image, none, and three."""
    prompts = [build_messages(pair, order=Order.GIVEN, template=load_template("plain")) for pair in scaled_runs.mixed()[:4]]
    values: dict[str, Any] = {
        "num_draws": COUNTS,
        "max_tokens": 70,
        "temperature": 1.0,
        "top_p": 0.9,
        "ends": frozenset(range(0, 500, 20)),  # draws end at different steps: rows and whole prompts leave the batch
        "uniforms": draw_uniforms((0,), range(sum(COUNTS)), 70),
    }
    return draw(sampler.model, sampler.encode(prompts), **values | changes)


@pytest.mark.parametrize("name", ["qwen2_5_vl", "qwen3_vl"])
@pytest.mark.parametrize("autocast", [False, True])
def test_draws_as_with_copies(
    name: str, autocast: bool, checkpoint_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler = HFSampler.load(checkpoint_of(name), device="cpu")
    layers: list[Any] = []
    attend = shared_prompt.attend

    def seen(module: Any, query: Any, key: Any, *args: Any, **kwargs: Any) -> Any:
        layers.append(getattr(key, "after_prompt", None))
        return attend(module, query, key, *args, **kwargs)

    monkeypatch.setitem(shared_prompt.AttentionInterface._global_mapping, shared_prompt.NAME, seen)
    config = sampler.model.config.get_text_config()
    before = config._attn_implementation
    with torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext():
        shared = drawn(sampler)
        assert config._attn_implementation == before
        assert all(layer is not None for layer in layers)
        assert len(layers[-1].prompt_keys) < len(COUNTS)  # a prompt whose draws have all ended is let go
        monkeypatch.setattr(shared_prompt, "FAMILIES", ())
        steps = len(layers)
        copied = drawn(sampler)
    assert len(layers) == steps
    assert len({len(tokens) for tokens in shared.tokens}) > 3
    if autocast:  # of two ways to round, one draws otherwise now and then, and goes on otherwise from there
        first = [(a[0], b[0]) for a, b in zip(shared.tokens, copied.tokens, strict=True)]
        assert sum(a == b for a, b in first) >= 11
        return
    assert shared.tokens == copied.tokens
    for a, b in zip(shared.logprobs, copied.logprobs, strict=True):
        torch.testing.assert_close(torch.tensor(a), torch.tensor(b), atol=2e-5, rtol=1e-5)


def test_an_error_leaves_the_model_as_it_was(checkpoint_of: Callable[[str], Path]) -> None:
    sampler = HFSampler.load(checkpoint_of("qwen2_5_vl"), device="cpu")
    config = sampler.model.config.get_text_config()
    before = config._attn_implementation
    with pytest.raises(IndexError):
        drawn(sampler, uniforms=draw_uniforms((0,), range(sum(COUNTS)), 2), ends=frozenset())
    assert config._attn_implementation == before
    assert shared_prompt._users == {}


def test_two_at_a_time_leave_the_model_as_it_was(checkpoint_of: Callable[[str], Path]) -> None:
    sampler = HFSampler.load(checkpoint_of("qwen2_5_vl"), device="cpu")
    configs = shared_prompt._attention_configs(sampler.model)
    before = [config._attn_implementation for config in configs]
    shared_prompt._enter(configs)
    whole = drawn(sampler)  # by another thread, while this one draws
    assert [config._attn_implementation for config in configs] == [shared_prompt.NAME]
    shared_prompt._leave(configs)
    assert [config._attn_implementation for config in configs] == before
    assert whole == drawn(sampler)


@pytest.mark.parametrize("size", [1, 2, 596, 152_064])
def test_picks_are_those_of_one_cumulation(size: int) -> None:
    """Against the plain inversion in float64, with tokens of no probability among the others."""
    generator = torch.Generator().manual_seed(size)
    scores_RV = 3 * torch.randn(64, size, generator=generator)
    scores_RV[torch.rand(64, size, generator=generator) < 0.3] = -torch.inf
    scores_RV[:, 0] = 1.0
    uniforms_R = torch.rand(64, generator=generator, dtype=torch.float64)
    cumulated_RV = scores_RV.double().softmax(-1).cumsum(-1)
    expected = torch.searchsorted(cumulated_RV, uniforms_R[:, None] * cumulated_RV[:, -1:], right=True)[:, 0]
    found = pick(scores_RV, uniforms_R)
    assert (found == expected).float().mean() > 0.95  # float32 weights: a number next to a boundary falls on either side
    reached = cumulated_RV.gather(1, found[:, None])[:, 0]
    torch.testing.assert_close(reached, cumulated_RV.gather(1, expected[:, None])[:, 0], atol=1e-5, rtol=0)


@pytest.mark.parametrize("number", [0.0, 0.5, 1 - 2**-53])
def test_no_number_picks_what_cannot_be(number: float) -> None:
    """The first and the last tokens have no probability, and whole blocks have none."""
    scores_RV = torch.full((2000, 1000), -torch.inf)
    scores_RV[:, 100:992] = torch.randn(2000, 892, generator=torch.Generator().manual_seed(0))  # 992 begins a block
    scores_RV[:, 300:500] = -torch.inf
    found = pick(scores_RV, torch.full((2000,), number, dtype=torch.float64))
    assert scores_RV.gather(1, found[:, None]).isfinite().all()


def test_a_block_whose_two_sums_differ() -> None:
    """One after the other the small weights are lost in float64, all together they are not."""
    scores_RV = torch.full((1, 1000), -torch.inf)
    scores_RV[:, :32] = -36.84  # 0.9 of half the last digit of 1
    scores_RV[:, 0] = 0.0
    assert pick(scores_RV, torch.tensor([1 - 2**-53], dtype=torch.float64)).item() < 32
