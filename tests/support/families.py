"""Small random models of other families than the demo's Qwen2.5-VL, with real processors, saved as any checkpoint is."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
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
LINEAR: dict[str, Any] = {
    "layer_types": ["linear_attention", "linear_attention", "full_attention"],
    "head_dim": 16,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "rope_parameters": {**ROPE, "partial_rotary_factor": 0.5},
}


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
    model = Qwen3_5ForConditionalGeneration(_qwen(Qwen3_5Config, tokenizer, LINEAR, VISION_3))
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


def _template(image: str) -> str:
    """Return the demo's chat template with another placeholder of an image."""
    return CHAT_TEMPLATE.replace("<|vision_start|><|image_pad|><|vision_end|>", image)


def _with_tokens(tokenizer: Any, *others: str, **names: str) -> Any:
    """Add special tokens to a tokenizer: those of ``names`` are its attributes, too. Return how it numbers them."""
    for name in (*names.values(), *others):
        tokenizer.add_tokens([AddedToken(name, normalized=False, special=True)])
    tokenizer._set_model_specific_special_tokens(names)
    return tokenizer.convert_tokens_to_ids


def _text(tokenizer: Any, model_type: str, **changes: Any) -> dict[str, Any]:
    token = tokenizer.convert_tokens_to_ids
    ends = {"pad_token_id": token("<|endoftext|>"), "eos_token_id": token("<|im_end|>"), "bos_token_id": None}
    return {"model_type": model_type, **TEXT, **ends, "vocab_size": len(tokenizer), "tie_word_embeddings": False, **changes}


def _saved_other(model: Any, processor: Any, folder: Path) -> Path:
    return _saved(model, processor, folder, processor.tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"]))


MOE: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
SIGHT: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}


def qwen3_vl_moe(tokenizer: Any, folder: Path) -> Path:
    """Four experts, of which two read a token; they are 3-D parameters."""
    torch.manual_seed(0)
    config = _qwen(hf.Qwen3VLMoeConfig, tokenizer, {"head_dim": 8, **MOE}, {**VISION_3, "deepstack_visual_indexes": [0, 1]})
    return _saved_qwen3(hf.Qwen3VLMoeForConditionalGeneration(config), tokenizer, folder)


def qwen3_5_moe(tokenizer: Any, folder: Path) -> Path:
    """Linear attention, experts, and one that reads every token."""
    torch.manual_seed(0)
    text = {**LINEAR, **MOE, "shared_expert_intermediate_size": 16}
    config = _qwen(hf.Qwen3_5MoeConfig, tokenizer, text, VISION_3)
    return _saved_qwen3(hf.Qwen3_5MoeForConditionalGeneration(config), tokenizer, folder)


def _glm(tokenizer: Any, folder: Path, config: Any, model: Any, text: str, vision: str, processor: Any, **more: Any) -> Path:
    torch.manual_seed(0)
    token = _with_tokens(tokenizer, "<|begin_of_image|>", "<|end_of_image|>", "<|video|>", image_token="<|image|>")
    rope = {**ROPE, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 0]}
    sight = {"depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 4, "out_hidden_size": 32}
    made = config(
        text_config=_text(tokenizer, text, rope_parameters=rope, **more),
        vision_config={"model_type": vision, **sight, "patch_size": 14, "image_size": 112},
        image_token_id=token("<|image|>"),
        video_token_id=token("<|video|>"),
        image_start_token_id=token("<|begin_of_image|>"),
        image_end_token_id=token("<|end_of_image|>"),
    )
    images = hf.Glm4vImageProcessor(size={"shortest_edge": 2 * 56 * 56, "longest_edge": 2 * 112 * 112})
    template = _template("<|begin_of_image|><|image|><|end_of_image|>")
    return _saved_other(
        model(made),
        processor(
            image_processor=images, tokenizer=tokenizer, video_processor=hf.Glm4vVideoProcessor(), chat_template=template
        ),
        folder,
    )


def glm4v(tokenizer: Any, folder: Path) -> Path:
    """GLM-4.1V: half of each head is rotated; norms before and behind each part."""
    classes = hf.Glm4vConfig, hf.Glm4vForConditionalGeneration, "glm4v_text", "glm4v_vision", hf.Glm4vProcessor
    return _glm(tokenizer, folder, *classes)


def glm46v(tokenizer: Any, folder: Path) -> Path:
    """GLM-4.6V-Flash: the parts of GLM-4.1V, another processor."""
    classes = hf.Glm46VConfig, hf.Glm46VForConditionalGeneration, "glm4v_text", "glm4v_vision", hf.Glm46VProcessor
    return _glm(tokenizer, folder, *classes)


def glm4v_moe(tokenizer: Any, folder: Path) -> Path:
    """GLM-4.5V: a dense layer, then experts with one that reads every token."""
    classes = hf.Glm4vMoeConfig, hf.Glm4vMoeForConditionalGeneration, "glm4v_moe_text", "glm4v_moe_vision", hf.Glm4vProcessor
    moe = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    return _glm(tokenizer, folder, *classes, **moe)


def internvl(tokenizer: Any, folder: Path) -> Path:
    """An image is one to five tiles of four tokens; nothing in its fields tells how many."""
    torch.manual_seed(0)
    names = {"start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>"}
    token = _with_tokens(tokenizer, **names, video_token="<video>")
    config = hf.InternVLConfig(
        vision_config={**SIGHT, "image_size": [56, 56], "patch_size": [14, 14]},
        text_config=_text(tokenizer, "qwen2"),
        image_token_id=token("<IMG_CONTEXT>"),
        image_seq_length=4,
    )
    images = hf.GotOcr2ImageProcessor(size={"height": 56, "width": 56}, crop_to_patches=True, min_patches=1, max_patches=4)
    processor = hf.InternVLProcessor(
        image_processor=images,
        tokenizer=tokenizer,
        video_processor=hf.InternVLVideoProcessor(),
        image_seq_length=4,
        chat_template=_template("<IMG_CONTEXT>"),
    )
    return _saved_other(hf.InternVLForConditionalGeneration(config), processor, folder)


def _llava(tokenizer: Any, folder: Path, config: Any, model: Any, processor: Any, vision: dict[str, Any], **more: Any) -> Path:
    torch.manual_seed(0)
    token = _with_tokens(tokenizer, "<video>", image_token="<image>")
    made = config(vision_config=vision, text_config=_text(tokenizer, "qwen2"), image_token_index=token("<image>"), **more)
    return _saved_other(model(made), processor(tokenizer=tokenizer, chat_template=_template("<image>")), folder)


CLIP = {"model_type": "clip_vision_model", **SIGHT, "image_size": 56, "patch_size": 14}
SIGLIP = {"model_type": "siglip_vision_model", **SIGHT, "image_size": 56, "patch_size": 14, "vision_use_head": False}
PINPOINTS = [[56, 112], [112, 56], [112, 112]]


def llava(tokenizer: Any, folder: Path) -> Path:
    """LLaVA-1.5: every image at one size, of sixteen tokens."""
    images = hf.CLIPImageProcessor(size={"shortest_edge": 56}, crop_size={"height": 56, "width": 56})
    rule = {"patch_size": 14, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    processor = partial(hf.LlavaProcessor, image_processor=images, **rule)
    return _llava(tokenizer, folder, hf.LlavaConfig, hf.LlavaForConditionalGeneration, processor, CLIP)


def llava_next(tokenizer: Any, folder: Path) -> Path:
    """An image is a small one and its crops, padded to the most crops of a batch."""
    images = hf.LlavaNextImageProcessor(
        size={"shortest_edge": 56}, crop_size={"height": 56, "width": 56}, image_grid_pinpoints=PINPOINTS
    )
    rule = {"patch_size": 14, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    processor = partial(hf.LlavaNextProcessor, image_processor=images, **rule)
    classes = hf.LlavaNextConfig, hf.LlavaNextForConditionalGeneration, processor
    return _llava(tokenizer, folder, *classes, CLIP, image_grid_pinpoints=PINPOINTS)


def llava_onevision(tokenizer: Any, folder: Path) -> Path:
    """Crops of a single image; of several in a row, none."""
    images = hf.LlavaOnevisionImageProcessor(size={"height": 56, "width": 56}, image_grid_pinpoints=PINPOINTS)
    rule = {"num_image_tokens": 16, "vision_feature_select_strategy": "full"}
    videos = hf.LlavaOnevisionVideoProcessor(size={"height": 56, "width": 56})
    processor = partial(hf.LlavaOnevisionProcessor, image_processor=images, video_processor=videos, **rule)
    classes = hf.LlavaOnevisionConfig, hf.LlavaOnevisionForConditionalGeneration, processor
    return _llava(tokenizer, folder, *classes, SIGLIP, image_grid_pinpoints=PINPOINTS, video_token_index=len(tokenizer))


def _idefics(tokenizer: Any, folder: Path, config: Any, model: Any, processor: Any) -> Path:
    torch.manual_seed(0)
    token = _with_tokens(tokenizer, "<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>")
    _with_tokens(tokenizer, *(f"<row_{row + 1}_col_{column + 1}>" for row in range(2) for column in range(2)))
    shapes = config(
        vision_config={**SIGHT, "image_size": 56, "patch_size": 14},
        text_config=_text(tokenizer, "llama"),
        image_token_id=token("<image>"),
        scale_factor=2,
        pad_token_id=token("<|endoftext|>"),
    )
    made = processor(tokenizer=tokenizer, image_seq_len=4, chat_template=_template("<image>"))
    return _saved_other(model(shapes), made, folder)


def idefics3(tokenizer: Any, folder: Path) -> Path:
    """Tiles by row, padded with empty ones."""
    images = hf.Idefics3ImageProcessor(size={"longest_edge": 112}, max_image_size={"longest_edge": 56})
    processor = partial(hf.Idefics3Processor, image_processor=images)
    return _idefics(tokenizer, folder, hf.Idefics3Config, hf.Idefics3ForConditionalGeneration, processor)


def smolvlm(tokenizer: Any, folder: Path) -> Path:
    """Idefics3's tiles; a processor that needs num2words."""
    images = hf.SmolVLMImageProcessor(size={"longest_edge": 112}, max_image_size={"longest_edge": 56})
    processor = partial(hf.SmolVLMProcessor, image_processor=images, video_processor=hf.SmolVLMVideoProcessor())
    return _idefics(tokenizer, folder, hf.SmolVLMConfig, hf.SmolVLMForConditionalGeneration, processor)


PIXTRAL = {"model_type": "pixtral", **SIGHT, "image_size": 112, "patch_size": 14, "head_dim": 8}


def mistral3(tokenizer: Any, folder: Path) -> Path:
    """Images of their own sizes, padded to the largest of a batch, a token at the end of each line."""
    torch.manual_seed(0)
    token = _with_tokens(tokenizer, "[IMG]", "[IMG_BREAK]", "[IMG_END]")
    config = hf.Mistral3Config(
        vision_config=PIXTRAL, text_config=_text(tokenizer, "mistral", head_dim=8), image_token_index=token("[IMG]")
    )
    images = hf.PixtralImageProcessor(size={"longest_edge": 112}, patch_size={"height": 14, "width": 14})
    processor = hf.PixtralProcessor(images, tokenizer, patch_size=14, spatial_merge_size=2, chat_template=_template("[IMG]"))
    return _saved_other(hf.Mistral3ForConditionalGeneration(config), processor, folder)


def pixtral(tokenizer: Any, folder: Path) -> Path:
    """The same images without merging, in LLaVA's class."""
    torch.manual_seed(0)
    token = _with_tokens(tokenizer, "[IMG]", "[IMG_BREAK]", "[IMG_END]")
    config = hf.LlavaConfig(
        vision_config=PIXTRAL,
        text_config=_text(tokenizer, "mistral", head_dim=8),
        image_token_index=token("[IMG]"),
        vision_feature_select_strategy="full",
        vision_feature_layer=-1,
    )
    images = hf.PixtralImageProcessor(size={"longest_edge": 112}, patch_size={"height": 14, "width": 14})
    processor = hf.PixtralProcessor(images, tokenizer, patch_size=14, chat_template=_template("[IMG]"))
    return _saved_other(hf.LlavaForConditionalGeneration(config), processor, folder)


def gemma4(tokenizer: Any, folder: Path) -> Path:
    """Patches with their positions, padded to the most of an image; every image as many tokens as its shape has."""
    torch.manual_seed(0)
    names = {"boi_token": "<|image>", "eoi_token": "<image|>", "image_token": "<|image|>", "audio_token": "<|audio|>"}
    token = _with_tokens(tokenizer, "<|video|>", **names, boa_token="<|audio>", eoa_token="<audio|>")
    layers = ["sliding_attention", "sliding_attention", "full_attention"]
    per_layer = {"vocab_size_per_layer_input": len(tokenizer), "hidden_size_per_layer_input": 8}
    config = hf.Gemma4Config(
        text_config=_text(
            tokenizer, "gemma4_text", head_dim=8, global_head_dim=8, sliding_window=16, layer_types=layers, **per_layer
        ),
        vision_config={**SIGHT, "num_key_value_heads": 4, "head_dim": 8, "patch_size": 14, "pooling_kernel_size": 2},
        audio_config=None,
        image_token_id=token("<|image|>"),
        boi_token_id=token("<|image>"),
        eoi_token_id=token("<image|>"),
        video_token_id=token("<|video|>"),
        audio_token_id=token("<|audio|>"),
    )
    processor = hf.Gemma4Processor(
        feature_extractor=hf.Gemma4AudioFeatureExtractor(),
        image_processor=hf.Gemma4ImageProcessor(patch_size=14, pooling_kernel_size=2, max_soft_tokens=70),
        tokenizer=tokenizer,
        video_processor=hf.Gemma4VideoProcessor(),
        chat_template=_template("<|image|>"),
        image_seq_length=70,
    )
    return _saved_other(hf.Gemma4ForConditionalGeneration(config), processor, folder)


def minicpm_v(tokenizer: Any, folder: Path) -> Path:
    """MiniCPM-V 4.6: patches of all slices packed in one line; a text part with linear attention."""
    torch.manual_seed(0)
    names = {
        f"{part}_{end}_token": f"<{'/' * (end == 'end')}{part}>" for part in ("image", "slice") for end in ("start", "end")
    }
    names |= {"image_id_start_token": "<image_id>", "image_id_end_token": "</image_id>"}
    token = _with_tokens(tokenizer, **names, image_token="<|image|>", video_token="<|video|>")
    rope = {**ROPE, "partial_rotary_factor": 0.5}
    config = hf.MiniCPMV4_6Config(
        text_config=_text(tokenizer, "qwen3_5_text", **{**LINEAR, "rope_parameters": rope}),
        vision_config={**SIGHT, "image_size": 112, "patch_size": 14},
        insert_layer_id=0,
        image_size=112,
        image_token_id=token("<|image|>"),
        video_token_id=token("<|video|>"),
    )
    processor = hf.MiniCPMV4_6Processor(
        image_processor=hf.MiniCPMV4_6ImageProcessor(scale_resolution=112, max_slice_nums=4),
        video_processor=hf.MiniCPMV4_6VideoProcessor(),
        tokenizer=tokenizer,
        chat_template=_template("<|image|>"),
    )
    return _saved_other(hf.MiniCPMV4_6ForConditionalGeneration(config), processor, folder)


def molmo2(tokenizer: Any, folder: Path) -> Path:
    """An image token names the patches behind it by number; tokens of images see each other; their ids have no logits."""
    torch.manual_seed(0)
    vocabulary = len(tokenizer)
    tags = (
        "<im_patch>",
        "<im_col>",
        "<im_start>",
        "<low_res_im_start>",
        "<frame_start>",
        "<im_end>",
        "<frame_end>",
        "<im_low>",
    )
    token = _with_tokens(tokenizer, *tags, image_token="<|image|>", video_token="<|video|>")
    sight = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 8, "intermediate_size": 64}
    config = hf.Molmo2Config(
        text_config=_text(
            tokenizer, "molmo2_text", head_dim=8, vocab_size=vocabulary, additional_vocab_size=len(tokenizer) - vocabulary
        ),
        vision_config={**sight, "num_hidden_layers": 2, "image_size": [56, 56], "patch_size": 14},
        adapter_config={**sight, "vision_feature_layer": [1, 0], "text_hidden_size": 32},
        image_start_token_id=token("<im_start>"),
        low_res_image_start_token_id=token("<low_res_im_start>"),
        image_end_token_id=token("<im_end>"),
        image_patch_id=token("<im_patch>"),
        frame_start_token_id=token("<frame_start>"),
        frame_end_token_id=token("<frame_end>"),
    )
    images = hf.Molmo2ImageProcessor(size={"height": 56, "width": 56}, max_crops=4, overlap_margins=[1, 1])
    videos, template = hf.Molmo2VideoProcessor(), _template("<|image|>")
    processor = hf.Molmo2Processor(image_processor=images, video_processor=videos, tokenizer=tokenizer, chat_template=template)
    return _saved_other(hf.Molmo2ForConditionalGeneration(config), processor, folder)


def ovis2(tokenizer: Any, folder: Path) -> Path:
    """Each patch is a probability distribution over words of a visual vocabulary; tags of an image are words of it, too."""
    torch.manual_seed(0)
    tags = ("<IMG_START>", "<IMG_GRID>", "<IMG_COL>", "<IMG_ROW>", "<IMG_END>")
    token = _with_tokens(tokenizer, "<image>", "<IMG_ATOM>", *tags)
    config = hf.Ovis2Config(
        vision_config={**SIGHT, "image_size": 56, "patch_size": 14, "hidden_stride": 2, "vocab_size": 24},
        text_config=_text(tokenizer, "qwen2"),
        image_token_id=token("<IMG_ATOM>"),
        visual_indicator_token_ids=token(list(tags)),
        vocab_size=len(tokenizer),
        hidden_size=TEXT["hidden_size"],
        tie_word_embeddings=False,
    )
    images = hf.Ovis2ImageProcessor(size={"height": 56, "width": 56}, crop_to_patches=True, max_patches=4)
    template = _template("<image>")
    processor = hf.Ovis2Processor(image_processor=images, tokenizer=tokenizer, chat_template=template, image_seq_length=4)
    return _saved_other(hf.Ovis2ForConditionalGeneration(config), processor, folder)


def lfm2_vl(tokenizer: Any, folder: Path) -> Path:
    """Short convolutions in two of three layers; tiles of patches, padded to the most that one has."""
    torch.manual_seed(0)
    places = (f"<|img_row_{row + 1}_col_{column + 1}|>" for row in range(4) for column in range(4))
    tags = ("<|image_start|>", "<|image_end|>", "<|img_thumbnail|>", *places)
    token = _with_tokens(tokenizer, *tags, image_token="<image>")
    config = hf.Lfm2VlConfig(
        text_config=_text(tokenizer, "lfm2", layer_types=["conv", "conv", "full_attention"], block_auto_adjust_ff_dim=False),
        vision_config={"model_type": "siglip2_vision_model", **SIGHT, "patch_size": 14, "num_patches": 16},
        image_token_id=token("<image>"),
        projector_hidden_size=64,
        tie_word_embeddings=False,
    )
    images = hf.Lfm2VlImageProcessor(
        encoder_patch_size=14, tile_size=56, max_tiles=4, min_image_tokens=2, max_image_tokens=6, max_pixels_tolerance=1.0
    )
    processor = hf.Lfm2VlProcessor(images, tokenizer, chat_template=_template("<image>"))
    return _saved_other(hf.Lfm2VlForConditionalGeneration(config), processor, folder)


def llama4(tokenizer: Any, folder: Path) -> Path:
    """Attention within chunks of 64 tokens, a layer without positions, one expert a token; no module without the head."""
    torch.manual_seed(0)
    tags = ("<|image_start|>", "<|image_end|>", "<|tile_x_separator|>", "<|tile_y_separator|>", "<|image|>")
    token = _with_tokens(tokenizer, *tags, "<|patch|>")
    moe = {"num_local_experts": 4, "intermediate_size_mlp": 64, "interleave_moe_layer_step": 2}
    config = hf.Llama4Config(
        text_config=_text(tokenizer, "llama4_text", head_dim=8, attention_chunk_size=64, no_rope_layer_interval=3, **moe),
        vision_config={
            **SIGHT,
            "image_size": 56,
            "patch_size": 14,
            "intermediate_size": 128,
            "vision_output_dim": 32,
            "projector_input_dim": 32,
            "projector_output_dim": 32,
        },
        boi_token_index=token("<|image_start|>"),
        eoi_token_index=token("<|image_end|>"),
        image_token_index=token("<|patch|>"),
    )
    images = hf.Llama4ImageProcessor(size={"height": 56, "width": 56}, max_patches=4)
    processor = hf.Llama4Processor(images, tokenizer, chat_template=_template("<|image|>"))
    return _saved_other(hf.Llama4ForConditionalGeneration(config), processor, folder)


def kimi_k25(tokenizer: Any, folder: Path) -> Path:
    """Latent attention, whose keys are longer than its values, and experts."""
    torch.manual_seed(0)
    token = _with_tokens(tokenizer, "<|media_begin|>", "<|media_end|>", "<|kimi_k25_video_placeholder|>", "<|media_pad|>")
    latent = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8}
    moe = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_group": 1, "topk_group": 1}
    config = hf.Kimi_K25Config(
        text_config=_text(tokenizer, "deepseek_v3", num_key_value_heads=4, first_k_dense_replace=1, **latent, **moe),
        vision_config={**SIGHT, "patch_size": 14, "pos_emb_height": 8, "pos_emb_width": 8},
        projection_hidden_size=32,
        image_token_id=token("<|media_pad|>"),
        video_token_id=token("<|kimi_k25_video_placeholder|>"),
        vision_start_token_id=token("<|media_begin|>"),
        vision_end_token_id=token("<|media_end|>"),
        tie_word_embeddings=False,
    )
    processor = hf.Kimi_K25Processor(
        image_processor=hf.Kimi_K25ImageProcessor(size={"max_height": 8, "max_width": 8}, max_patches=64),
        tokenizer=tokenizer,
        video_processor=hf.Kimi_K25VideoProcessor(),
        chat_template=_template("<|media_begin|><|media_pad|><|media_end|>"),
    )
    return _saved_other(hf.Kimi_K25ForConditionalGeneration(config), processor, folder)


def _saved(model: Any, processor: Any, folder: Path, ends: list[int]) -> Path:
    _fan_in_init(model)
    pad = processor.tokenizer.pad_token_id
    model.generation_config = GenerationConfig(do_sample=True, temperature=1.0, pad_token_id=pad, eos_token_id=ends)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


OTHERS = (
    qwen3_vl_moe,
    qwen3_5_moe,
    glm4v,
    glm46v,
    glm4v_moe,
    internvl,
    llava,
    llava_next,
    llava_onevision,
    idefics3,
    mistral3,
    pixtral,
    gemma4,
    minicpm_v,
    molmo2,
    ovis2,
    lfm2_vl,
    llama4,
    kimi_k25,
    smolvlm,
)
NO_TRAINING = ("llama4",)  # judges only
NEEDS = {"smolvlm": "num2words"}  # packages of processors


def family(*values: str, daily: bool) -> Any:
    """Return a case of a family, nightly unless ``daily``; skipped without the package that its processor needs."""
    marks = [] if daily else [pytest.mark.nightly]
    return pytest.param(*values, marks=[*marks, *(pytest.mark.extra(NEEDS[name]) for name in values if name in NEEDS)])


FAMILIES = {"qwen2_vl": qwen2_vl, "qwen3_vl": qwen3_vl, "qwen3_5": qwen3_5, "gemma3": gemma3}
FAMILIES |= {make.__name__: make for make in OTHERS}
