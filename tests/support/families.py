"""Small random models of other families than the demo's Qwen2.5-VL, with real processors, saved as any checkpoint is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken
from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma3ImageProcessor,
    Gemma3Processor,
    GenerationConfig,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen2VLImageProcessor,
    Qwen2VLProcessor,
    Qwen2VLVideoProcessor,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLProcessor,
    Qwen3VLVideoProcessor,
)

from rewardlab.demo.base_model import CHAT_TEMPLATE, _fan_in_init

GEMMA_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "<start_of_turn>{{ 'model' if message.role == 'assistant' else message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'image' %}<start_of_image>{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<end_of_turn>\n"
    "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)


TEXT: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
}
VISION_3: dict[str, Any] = {
    "depth": 2,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_heads": 4,
    "out_hidden_size": 32,
    "patch_size": 16,
    "num_position_embeddings": 64,
}
ROPE: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}


def _qwen(config: Any, tokenizer: Any, text: dict[str, Any], vision: dict[str, Any]) -> Any:
    """Return the config of a family of Qwen's: ``text`` is what differs from :data:`TEXT`."""
    token = tokenizer.convert_tokens_to_ids
    ends = {"pad_token_id": token("<|endoftext|>"), "eos_token_id": token("<|im_end|>"), "bos_token_id": None}
    return config(
        text_config={**TEXT, **ends, "vocab_size": len(tokenizer), "rope_parameters": ROPE, **text},
        vision_config=vision,
        tie_word_embeddings=True,
        image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
    )


def _saved_qwen(model: Any, tokenizer: Any, folder: Path, processor: Any, images: Any, videos: Any) -> Path:
    made = processor(image_processor=images, tokenizer=tokenizer, video_processor=videos, chat_template=CHAT_TEMPLATE)
    return _saved(model, made, folder, tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"]))


def _saved_qwen3(model: Any, tokenizer: Any, folder: Path) -> Path:
    size = {"shortest_edge": 32 * 32, "longest_edge": 128 * 128}
    images = Qwen2VLImageProcessor(patch_size=16, size=size, image_mean=[0.5] * 3, image_std=[0.5] * 3)
    return _saved_qwen(model, tokenizer, folder, Qwen3VLProcessor, images, Qwen3VLVideoProcessor())


def qwen2_vl(tokenizer: Any, folder: Path) -> Path:
    """Every patch sees its whole image, in every layer."""
    torch.manual_seed(0)
    vision = {"depth": 2, "embed_dim": 32, "hidden_size": 32, "mlp_ratio": 2, "num_heads": 2, "patch_size": 14}
    model = Qwen2VLForConditionalGeneration(_qwen(Qwen2VLConfig, tokenizer, {"num_hidden_layers": 2}, vision))
    images = Qwen2VLImageProcessor(size={"shortest_edge": 56 * 56, "longest_edge": 112 * 112})
    return _saved_qwen(model, tokenizer, folder, Qwen2VLProcessor, images, Qwen2VLVideoProcessor())


def qwen3_vl(tokenizer: Any, folder: Path) -> Path:
    """Deepstack: what the vision tower sees is added to several layers."""
    torch.manual_seed(0)
    config = _qwen(Qwen3VLConfig, tokenizer, {"head_dim": 8}, {**VISION_3, "deepstack_visual_indexes": [0, 1]})
    return _saved_qwen3(Qwen3VLForConditionalGeneration(config), tokenizer, folder)


def qwen3_5(tokenizer: Any, folder: Path) -> Path:
    """Linear attention, which keeps a state of fixed size, in two of three layers."""
    torch.manual_seed(0)
    text = {"layer_types": ["linear_attention", "linear_attention", "full_attention"], "head_dim": 16}
    text |= {"linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4}
    text |= {"rope_parameters": {**ROPE, "partial_rotary_factor": 0.5}}
    model = Qwen3_5ForConditionalGeneration(_qwen(Qwen3_5Config, tokenizer, text, VISION_3))
    return _saved_qwen3(model, tokenizer, folder)


def gemma3(tokenizer: Any, folder: Path) -> Path:
    """Sliding-window layers, attention in both directions within an image, every image at one size and of four tokens."""
    torch.manual_seed(0)
    names = {
        "boi_token": "<start_of_image>",
        "eoi_token": "<end_of_image>",
        "image_token": "<image_soft_token>",
        "bos_token": "<bos>",
    }
    tokenizer.add_tokens([AddedToken(name, normalized=False, special=True) for name in names.values()])
    tokenizer._set_model_specific_special_tokens(names)
    tokenizer.add_tokens([AddedToken(name, normalized=False, special=True) for name in ("<start_of_turn>", "<end_of_turn>")])
    tokenizer.eos_token = "<end_of_turn>"
    token = tokenizer.convert_tokens_to_ids
    config = Gemma3Config(
        text_config={
            **TEXT,
            "vocab_size": len(tokenizer),
            "head_dim": 8,
            "sliding_window": 16,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            "query_pre_attn_scalar": 8,
            "pad_token_id": tokenizer.pad_token_id,
            "eos_token_id": token("<end_of_turn>"),
            "bos_token_id": token("<bos>"),
        },
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "image_size": 56,
            "patch_size": 14,
        },
        mm_tokens_per_image=4,
        boi_token_index=token("<start_of_image>"),
        eoi_token_index=token("<end_of_image>"),
        image_token_index=token("<image_soft_token>"),
        image_token_id=token("<image_soft_token>"),
    )
    processor = Gemma3Processor(
        image_processor=Gemma3ImageProcessor(size={"height": 56, "width": 56}, image_seq_length=4),
        tokenizer=tokenizer,
        chat_template=GEMMA_TEMPLATE,
        image_seq_length=4,
    )
    return _saved(Gemma3ForConditionalGeneration(config), processor, folder, [token("<end_of_turn>")])


def _saved(model: Any, processor: Any, folder: Path, ends: list[int]) -> Path:
    _fan_in_init(model)
    pad = processor.tokenizer.pad_token_id
    model.generation_config = GenerationConfig(do_sample=True, temperature=1.0, pad_token_id=pad, eos_token_id=ends)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


FAMILIES = {"qwen2_vl": qwen2_vl, "qwen3_vl": qwen3_vl, "qwen3_5": qwen3_5, "gemma3": gemma3}
