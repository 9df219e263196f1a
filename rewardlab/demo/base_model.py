"""The tiny base model: a real Qwen2.5-VL, built from a config, with a tokenizer trained on the spot.

1.2 M parameters, the real classes for model, processor, image processor and tokenizer, saved as a checkpoint folder like
any other. Two departures from the defaults decide whether so narrow a model learns at all: fan-in initialisation (the
default standard deviation of 0.02 starves it) and tied embeddings.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import (
    GenerationConfig,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2Tokenizer,
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
)
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

IMAGE_PX = 56
SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
# As in Qwen3's vocabulary, a tag is one token, and not a special one: decoding keeps it.
TAG_TOKENS = ("<think>", "</think>", "<answer>", "</answer>")
CHAT_TEMPLATE = (Path(__file__).parent / "chat_template.jinja").read_text(encoding="utf-8")


def train_tokenizer(corpus: Iterable[str], vocab_size: int) -> Qwen2Tokenizer:
    """Train a byte-level BPE in Qwen's form; a small corpus yields fewer merges than ``vocab_size`` asks for."""
    bpe = Tokenizer(models.BPE())
    bpe.normalizer = normalizers.NFC()
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bpe.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=vocab_size, show_progress=False, initial_alphabet=alphabet))
    model = json.loads(bpe.to_str())["model"]
    options: dict[str, Any] = {
        "vocab": model["vocab"],
        "merges": [tuple(merge) for merge in model["merges"]],
        "unk_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "extra_special_tokens": list(SPECIAL_TOKENS[1:]),
        "model_max_length": 32768,
    }
    tokenizer = Qwen2Tokenizer(**options)
    tokenizer.add_tokens([AddedToken(tag, normalized=False, special=False) for tag in TAG_TOKENS])
    return tokenizer


def build_processor(tokenizer: Qwen2Tokenizer) -> Qwen2_5_VLProcessor:
    size = {"shortest_edge": IMAGE_PX * IMAGE_PX, "longest_edge": 4 * IMAGE_PX * IMAGE_PX}
    return Qwen2_5_VLProcessor(
        image_processor=Qwen2VLImageProcessor(size=size),
        tokenizer=tokenizer,
        video_processor=Qwen2VLVideoProcessor(),
        chat_template=CHAT_TEMPLATE,
    )


def build_model(tokenizer: Qwen2Tokenizer, *, hidden: int, layers: int, seed: int) -> Qwen2_5_VLForConditionalGeneration:
    """Return a Qwen2.5-VL with random weights: ``layers`` text layers of width ``hidden`` (a multiple of 32), two of vision."""
    torch.manual_seed(seed)

    def token(text: str) -> int:
        return int(tokenizer.get_vocab()[text])

    head = hidden // 4
    sections = [head // 2 - 2 * (3 * head // 16), 3 * head // 16, 3 * head // 16]  # of M-RoPE, as 16:24:24 is of 128
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": hidden,
        "intermediate_size": 3 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 8192,
        "pad_token_id": token("<|endoftext|>"),
        "eos_token_id": token("<|im_end|>"),
        "bos_token_id": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": sections},
    }
    width = 16 * (3 * hidden // 64)  # a multiple of 16, so that its rotary halves pair up
    vision = {
        "depth": 2,
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_heads": 4,
        "out_hidden_size": hidden,
        "patch_size": 14,
        "window_size": 112,
        "fullatt_block_indexes": [1],
    }
    config = Qwen2_5_VLConfig(
        text_config=text,
        vision_config=vision,
        tie_word_embeddings=True,
        image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
    )
    model = Qwen2_5_VLForConditionalGeneration(config)
    _fan_in_init(model)
    model.generation_config = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        pad_token_id=token("<|endoftext|>"),
        eos_token_id=[token("<|im_end|>"), token("<|endoftext|>")],
    )
    return model


@torch.no_grad()
def _fan_in_init(model: torch.nn.Module) -> None:
    for name, weight in model.named_parameters():
        if weight.dim() >= 2:
            std = 0.1 if "embed_tokens" in name else weight[0].numel() ** -0.5
            torch.nn.init.normal_(weight, std=std)


def save_model(folder: Path, model: Qwen2_5_VLForConditionalGeneration, processor: Qwen2_5_VLProcessor) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
