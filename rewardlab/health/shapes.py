"""What a model's shapes say of the memory of one token and of one picture, before a single weight is read.

The bytes of a layer are counted from the tensors that transformers' decoder layers of Qwen keep; ``eval/doctor_estimates.py``
compares them with torch's own memory tracker on fake tensors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from rewardlab.samplers.shared_prompt import FAMILIES

MEGAPIXEL = 1_003_520  # the largest picture where neither config nor checkpoint says: 1,280 tokens of Qwen2.5-VL
TEXT_TOKENS = 768  # of a prompt, beside its picture: a question and two responses
ANSWER_TOKENS = 1024  # of a supervised sample: the judgments of the paper have 690 in the mean


@dataclass(frozen=True)
class Layers:
    """A stack of transformer layers. ``normed``: elements a token that queries and keys have where each head is normalised;
    ``gated``: an inner layer multiplies two projections, instead of one that goes through an activation."""

    number: int
    hidden: int
    inner: int
    normed: int = 0
    gated: bool = True

    def kept(self, wide: bool) -> float:
        """Return the bytes a token that one layer keeps for its backward pass; ``wide``: float32 between the layers."""
        return (8.0 if self.gated else 4.0) * self.inner + (35.0 if wide else 25.0) * self.hidden + 12.0 * self.normed

    def outputs(self, wide: bool) -> float:
        """Return the bytes a token of what all layers are given: all that stays of them with gradient checkpointing."""
        return self.number * (4.0 if wide else 2.0) * self.hidden

    def training(self, wide: bool, checkpointing: bool) -> float:
        """Return the most bytes a token in a step: what all layers keep, and the gradients of the one that is computed."""
        kept = self.outputs(wide) + self.kept(wide) if checkpointing else self.number * self.kept(wide)
        return kept + 4.0 * self.inner

    def adapted(self) -> float:
        """Return the bytes a token that adapters add to the layer that is computed: peft hands each the layer's input in
        float32, of which the widest, the inner layer's, is there beside its gradient."""
        return 4.0 * self.inner + 8.0 * self.hidden

    def reading(self, wide: bool) -> float:
        """Return the most bytes a token while one layer reads, without gradient."""
        return 6.0 * self.inner + (12.0 if wide else 6.0) * self.hidden + 6.0 * self.normed


@dataclass(frozen=True)
class PictureShape:
    """What one picture costs: tokens of the language model, patches of the vision tower, bytes of its float32 pixels."""

    tokens: int
    patches: int
    pixels: int
    num_bytes: int


@dataclass(frozen=True)
class Shapes:
    """The sizes of a model that memory depends on. ``kv`` are the elements of a token's keys in one layer, as many as of its
    values; ``embedding`` and ``head`` the weights of both ends (``head`` 0: it is the embedding); ``widest`` those of the
    largest linear layer between. ``has_grids``: pictures are shown at their own size, as Qwen's are. ``shares_prompts``: draws
    of one prompt share its keys and values in the own decoder."""

    total: int
    linear: int
    embedding: int
    head: int
    widest: int
    vocabulary: int
    kv: int
    language: Layers
    vision: Layers
    has_grids: bool
    shares_prompts: bool = False


def shapes_of(model: Any) -> Shapes:
    """Return the shapes of a model, which may be on the meta device."""
    text = model.config.get_text_config()
    head_dim = getattr(text, "qk_head_dim", None) or getattr(text, "head_dim", None)  # the first: latent attention
    head_dim = head_dim or text.hidden_size // text.num_attention_heads
    linear = {n: m.weight.numel() for n, m in model.named_modules() if type(m).__name__ == "Linear" and "lm_head" not in n}
    has_norms = any(name.endswith("q_norm") for name, _ in model.named_modules())
    normed = head_dim * (text.num_attention_heads + text.num_key_value_heads) if has_norms else 0
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    return Shapes(
        total=sum(weight.numel() for weight in model.parameters()),
        linear=sum(linear.values()),
        embedding=embedding.numel(),
        head=0 if head is embedding else head.numel(),
        widest=max(linear.values()),
        vocabulary=text.vocab_size,
        kv=head_dim * text.num_key_value_heads,
        language=Layers(text.num_hidden_layers, text.hidden_size, _inner(text, text.hidden_size), normed),
        vision=_vision(model),
        has_grids=hasattr(getattr(model.config, "vision_config", None), "spatial_merge_size"),
        shares_prompts=text.model_type in FAMILIES,
    )


def _inner(config: Any, hidden: int) -> int:
    """Return the elements a token that an inner layer has: of all experts that read it, or of a dense layer."""
    if expert := getattr(config, "moe_intermediate_size", None):
        chosen = getattr(config, "num_experts_per_tok", None) or getattr(config, "top_k_experts", None) or 0
        shared = getattr(config, "shared_expert_intermediate_size", None)
        return int(chosen * expert + (shared or expert * (getattr(config, "n_shared_experts", None) or 0)))
    return int(getattr(config, "intermediate_size", None) or hidden * getattr(config, "mlp_ratio", 4))


def _vision(model: Any) -> Layers:
    vision = getattr(model.config, "vision_config", None)
    if vision is None:
        return Layers(0, 0, 0)
    number = getattr(vision, "depth", None) or vision.num_hidden_layers
    hidden = getattr(vision, "embed_dim", None) or vision.hidden_size  # Qwen2-VL's hidden size is the language model's
    gated = any("vis" in name and name.endswith("gate_proj") for name, _ in model.named_modules())
    return Layers(number, hidden, _inner(vision, hidden), gated=gated)


# Most tiles of an image besides the whole one, by the model type: as many as its pixels fill; Idefics3 enlarges all images.
TILES = {
    **{"internvl": 12, "minicpmv4_6": 9, "llava_next": 4, "llava_onevision": 9},
    **{"idefics3": 16, "smolvlm": 16, "molmo2": 8, "ovis2": 12},
}
PER_TOKEN = {"minicpmv4_6": 16, "molmo2": 4}  # patches behind a token, if no configuration says it
ENLARGES = ("idefics3", "smolvlm")
SOFT_TOKENS = 280  # of Gemma 4, at most


def picture_shape(config: Any, pixels: int) -> PictureShape:
    """Return the cost of an image of ``pixels`` under a model's configuration: at its own size, in tiles, or at the one size of
    a family."""
    vision, family = getattr(config, "vision_config", None), config.model_type
    if vision is None:
        return PictureShape(0, 0, 0, 0)
    patch, frames = _side(vision.patch_size), _side(getattr(vision, "temporal_patch_size", 1))
    merge = getattr(vision, "spatial_merge_size", None) or getattr(config, "spatial_merge_size", None)
    merge = merge or getattr(config, "downsample_factor", None)
    if kernel := getattr(vision, "merge_kernel_size", None):
        merge = _side(kernel)
    if merge is None and vision.model_type == "pixtral":
        merge = 1
    if merge is None and (pool := getattr(vision, "pooling_kernel_size", None)):
        merge, pixels = pool, min(pixels, SOFT_TOKENS * (pool * patch) ** 2)
    if merge is None:
        tile = _side(config.image_size if family == "minicpmv4_6" else vision.image_size) ** 2
        most = TILES.get(family, 0)
        tiles = most if family in ENLARGES else min(most, math.ceil(pixels / tile))
        pixels = tile * (1 + (tiles if tiles > 1 else 0))
        per_token = PER_TOKEN.get(family) or round(getattr(config, "downsample_ratio", 1) ** -2)
        per_token *= getattr(config, "scale_factor", 1) ** 2 * getattr(vision, "hidden_stride", 1) ** 2
        tokens = getattr(config, "mm_tokens_per_image", pixels // patch**2 // per_token)
        return PictureShape(tokens, pixels // patch**2, pixels, pixels * 3 * 4)
    patches = pixels // patch**2
    return PictureShape(patches // merge**2, patches, pixels, pixels * 3 * 4 * frames)


def _side(value: Any) -> int:
    """Return the side of a square from a number, a pair or a mapping."""
    if isinstance(value, dict):
        value = list(value.values())
    return int(value if isinstance(value, int) else value[0])
