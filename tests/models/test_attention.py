"""Which attention is chosen, and what is refused, without a card and as if there were one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, BertConfig

from rewardlab.errors import ConfigError
from rewardlab.judging.spec import DEMO_JUDGE
from rewardlab.models import attention
from rewardlab.models.attention import check_attention, choose_attention
from rewardlab.models.families import vision_language_module
from rewardlab.models.loading import load_model

GRIDS = [[(1, 32, 32), (1, 32, 32)], [(1, 30, 22), (1, 8, 8), (3, 20, 34)]]  # patches; windows of 8 x 8, narrower at the edges
QWEN = AutoConfig.from_pretrained(DEMO_JUDGE)


def test_without_flash_attention() -> None:
    """transformers' own choice, or what is asked for; flash attention is refused with the package to install."""
    assert choose_attention("auto", QWEN, in_16_bits=True) is None
    assert choose_attention("eager", QWEN, in_16_bits=False) == "eager"
    with pytest.raises(ConfigError, match=r"flash_attention_2 is not installed here: pip install flash-attn .*auto"):
        check_attention("flash_attention_2")
    with pytest.raises(ConfigError, match="pip install flash-attn-3"):
        choose_attention("flash_attention_3", QWEN, in_16_bits=True)


@pytest.mark.parametrize(
    ("card", "packages", "chosen"),
    [((8, 0), (2, 3), "flash_attention_2"), ((9, 0), (3,), "flash_attention_3"), ((8, 0), (3,), None), ((7, 5), (2, 3), None)],
)
def test_with_flash_attention(
    card: tuple[int, int], packages: tuple[int, ...], chosen: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the card runs, in 16 bits, for a family that has it. Packages and card are stood in for."""
    for number in (2, 3):
        monkeypatch.setattr(attention, f"is_flash_attn_{number}_available", lambda number=number: number in packages)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: card)
    assert choose_attention("auto", QWEN, in_16_bits=True) == chosen
    assert choose_attention("auto", QWEN, in_16_bits=False) is None
    assert choose_attention("auto", BertConfig(), in_16_bits=True) is None
    if chosen:
        assert choose_attention(chosen, QWEN, in_16_bits=True) == chosen
        with pytest.raises(ConfigError, match="--dtype bfloat16"):
            choose_attention(chosen, QWEN, in_16_bits=False)
    else:
        monkeypatch.setattr(attention, "find_spec", lambda name: name)
        with pytest.raises(ConfigError, match=r"flash_attention_3 needs a GPU of compute capability 9\.0"):
            check_attention("flash_attention_3")


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

    sdpa = attention.scaled_dot_product_attention
    monkeypatch.setattr(attention, "scaled_dot_product_attention", counted)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", counted)
    torch.manual_seed(0)
    patches = torch.randn(sum(t * h * w for t, h, w in grids), tower.patch_embed.proj.weight[0].numel(), requires_grad=True)
    results = []
    for kind in (attention.PACKED, "sdpa"):
        if kind == attention.PACKED:
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
    assert counts[attention.PACKED] < counts["sdpa"]


def test_the_name_of_packed_attention_is_not_saved(checkpoint_of: Callable[[str], Path], tmp_path: Path) -> None:
    load_model(str(checkpoint_of("qwen2_5_vl")), device="cpu")[0].save_pretrained(tmp_path)
    assert attention.PACKED not in (tmp_path / "config.json").read_text(encoding="utf-8")
