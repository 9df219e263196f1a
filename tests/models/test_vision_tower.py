"""A vision tower that is prepared gives what it gave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Exaone4_5_VisionConfig, RadioConfig
from transformers.models.exaone4_5.modeling_exaone4_5 import Exaone4_5_VisionAttention
from transformers.models.radio.modeling_radio import RadioAttention

from rewardlab.models import vision_tower
from rewardlab.models.families import vision_language_module
from rewardlab.models.loading import load_model

GRIDS = [[(1, 32, 32), (1, 32, 32)], [(1, 30, 22), (1, 8, 8), (3, 20, 34)]]  # patches; windows of 8 x 8, narrower at the edges


@pytest.mark.parametrize("grids", GRIDS)
@pytest.mark.parametrize("name", ["qwen2_5_vl", "qwen3_vl"])
def test_windows_of_equal_size_in_one_call(
    name: str, grids: list[tuple[int, int, int]], checkpoint_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A vision tower gives what it gives with a call for each window, and the same gradients, with fewer calls."""
    tower = vision_language_module(load_model(str(checkpoint_of(name)), device="cpu")[0]).visual
    counts: Counter[str] = Counter()

    def counted(*args: Any, **kwargs: Any) -> Any:
        counts[tower.config._attn_implementation] += 1
        return sdpa(*args, **kwargs)

    sdpa = vision_tower.scaled_dot_product_attention
    monkeypatch.setattr(vision_tower, "scaled_dot_product_attention", counted)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", counted)
    torch.manual_seed(0)
    patches = torch.randn(sum(t * h * w for t, h, w in grids), tower.patch_embed.proj.weight[0].numel(), requires_grad=True)
    results = []
    for kind in (vision_tower.PACKED, "sdpa"):
        if kind == vision_tower.PACKED:
            assert tower.config._attn_implementation == kind
        tower.config._attn_implementation = kind
        output = tower(patches, grid_thw=torch.tensor(grids)).pooler_output
        output.square().mean().backward()
        weights = [weight.grad for weight in tower.parameters() if weight.grad is not None]
        results.append([output.detach(), patches.grad, *weights])
        patches.grad = None
        tower.zero_grad()
    for packed, one_by_one in zip(*results, strict=True):
        assert torch.equal(packed, one_by_one)
    assert counts[vision_tower.PACKED] < counts["sdpa"]


def test_a_saved_config_has_no_name_of_ours(checkpoint_of: Callable[[str], Path], tmp_path: Path) -> None:
    load_model(str(checkpoint_of("qwen2_5_vl")), device="cpu")[0].save_pretrained(tmp_path)
    assert vision_tower.PACKED not in (tmp_path / "config.json").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["qwen2_5_vl", "qwen3_vl"])
def test_a_patch_is_a_matrix_product(name: str, checkpoint_of: Callable[[str], Path]) -> None:
    projection = vision_language_module(load_model(str(checkpoint_of(name)), device="cpu")[0]).visual.patch_embed.proj
    assert isinstance(projection, vision_tower.PatchProjection)
    patches = torch.randn(50, *projection.weight.shape[1:], generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(projection.product(patches), projection(patches), atol=1e-5, rtol=1e-5)


def test_heads_that_share_keys() -> None:
    """Vision towers with fewer heads of keys than of queries give what they gave."""
    config = Exaone4_5_VisionConfig(hidden_size=64, num_heads=4, num_key_value_heads=2)
    config._attn_implementation = "sdpa"
    attention, states, angles = Exaone4_5_VisionAttention(config), torch.randn(24, 64), torch.randn(24, 16)
    ends = torch.tensor([0, 8, 16, 24])
    before = attention(states, ends, position_embeddings=(angles.cos(), angles.sin()))
    vision_tower.prepare_vision_tower(attention)
    assert config._attn_implementation == vision_tower.PACKED
    assert torch.equal(attention(states, ends, position_embeddings=(angles.cos(), angles.sin())), before)


def test_an_attention_that_may_not_pack_stays() -> None:
    config = RadioConfig(hidden_size=64, num_attention_heads=4)
    config._attn_implementation = "sdpa"
    attention, states = RadioAttention(config), torch.randn(2, 8, 64)
    before = attention(states)[0]
    assert torch.equal(vision_tower.prepare_vision_tower(attention)(states)[0], before)
