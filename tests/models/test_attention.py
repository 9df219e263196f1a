"""Which attention is chosen, and what is refused, without a card and as if there were one."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, BertConfig

from rewardlab.errors import ConfigError
from rewardlab.judging.spec import DEMO_JUDGE
from rewardlab.models import attention
from rewardlab.models.attention import check_attention, choose_attention
from rewardlab.models.loading import load_model

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


def test_no_attention_of_cudnn() -> None:
    """Its gradients are inexact, or NaN, with masks: whoever loads a model leaves it out."""
    torch.backends.cuda.enable_cudnn_sdp(True)
    load_model(str(DEMO_JUDGE), device="cpu")
    assert not torch.backends.cuda.cudnn_sdp_enabled()
