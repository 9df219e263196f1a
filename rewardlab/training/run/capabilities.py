"""What a model can do in training, tried on a few prompts before its weights are loaded.

The checkpoint's own processor reads an image, two images of different sizes and a prompt of text alone. A model of its
configuration with two narrow layers of random weights then reads them, together and one by one, and draws from them twice.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers import AutoModelForImageTextToText
from transformers.initialization import no_init_weights

from rewardlab.config import MethodConfig, TrainConfig
from rewardlab.errors import ConfigError
from rewardlab.models.architectures import build_on_meta
from rewardlab.models.families import (
    IMAGE_FIELDS,
    check_fields,
    count_places,
    image_token_id,
    join_images,
    split_images,
    vision_token_ids,
)
from rewardlab.models.loading import (
    check_image_token,
    load_config_of,
    load_processor,
    refuse_dropout_of_experts,
    set_pixels,
)
from rewardlab.models.vision_tower import prepare_vision_tower
from rewardlab.processes import is_main
from rewardlab.reporting.progress import log_line
from rewardlab.samplers.decode import draw, read_logits
from rewardlab.samplers.hf import append_answers, encode, thinking_opening
from rewardlab.types import Message, Part

SIZES = ((96, 144), (224, 160))  # (height, width) px
TOKENS, NEAR = 6, 1e-3  # drawn; log-probs in nats that count as equal in float32
SMALL: dict[str, Any] = {  # keys of a configuration, and their values in a small model
    "intermediate_size": 64,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "num_experts": 4,
    "n_routed_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "top_k_experts": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "mlp_only_layers": [],
    "num_kv_shared_layers": 0,
    "hidden_size_per_layer_input": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "no_rope_layers": [1, 0],
    "deepstack_visual_indexes": [0],
    "fullatt_block_indexes": [1],
    "insert_layer_id": 0,
    "depth": 2,
}


@dataclass(frozen=True)
class Capabilities:
    """``training`` and ``sampling``: why a model cannot be trained on images, or sampled from by the trainer's decoder; None if
    it can. ``report`` says in a sentence what was tried, and what works."""

    report: str
    training: str | None = None
    sampling: str | None = None


_PROBED: dict[str | tuple[bytes, ...], Capabilities] = {}  # in this process, by the files of the configuration, or by name


def refuse_incapable(config: TrainConfig) -> None:
    """Raise ConfigError for a model that a stage cannot train, before its weights are loaded; log what the model can do."""
    report = capability_report(config)
    if is_main():
        log_line(f"{config.model}: {report}")


def capability_report(config: TrainConfig) -> str:
    """Return what was tried of a stage's model, in a sentence. Raise ConfigError for what a stage cannot do without, and
    CheckpointError."""
    if config.pixels:
        set_pixels(load_processor(config.model), config.pixels)
    if config.lora and config.lora.dropout and (model := build_on_meta(config.model)) is not None:
        refuse_dropout_of_experts(config.lora, model, config.freeze)
    abilities = capabilities_of(config.model)
    samples = isinstance(config, MethodConfig) and config.engine is None
    if why := abilities.training or (abilities.sampling if samples else None):
        raise ConfigError(f"{config.model}: {why}")
    return abilities.report + (f"; {abilities.sampling}" if abilities.sampling else "")


def capabilities_of(model: str) -> Capabilities:
    """Return what checkpoint ``model`` can do; for a known configuration, from earlier in this process. Raise
    CheckpointError."""
    folder, names = Path(model), ("config.json", "adapter_config.json", "processor_config.json", "preprocessor_config.json")
    texts = [(folder / name).read_bytes() if (folder / name).exists() else b"" for name in (*names, "chat_template.jinja")]
    key = tuple(texts) if any(texts) else model
    if key not in _PROBED:
        config, processor = load_config_of(model), load_processor(model)
        check_image_token(model, processor, config)
        _PROBED[key] = probe(config, processor)
    return _PROBED[key]


def probe(config: Any, processor: Any) -> Capabilities:
    """Return what a model with this configuration and processor can do."""
    dice = np.random.default_rng(0)
    prompts = [_prompt(dice, SIZES[:1]), _prompt(dice, SIZES), _prompt(dice, ())]
    num_images = [sum(len(message.images) for message in prompt) for prompt in prompts]
    try:
        inputs = encode(processor, prompts)
        rows = _rows(inputs, num_images, image_token_id(config))
    except Exception as error:  # the boundary: a processor of any library
        return Capabilities("", training=f"images cannot be assigned to the rows of a batch ({_said(error)})")
    tokens = " and ".join(map(str, count_places(inputs["input_ids"][:2], image_token_id(config))))
    fields = ", ".join(name for name in IMAGE_FIELDS if name in rows[1])
    opening = "opens <think>" if thinking_opening(processor) else "does not open <think>"
    report = f"{tokens} tokens of one and of two images; {fields}; the chat template {opening}"
    if image_token_id(config) is None:
        report += "; no image token is known that sampling must avoid"
    torch_state = torch.random.get_rng_state()
    try:
        model = small_model(config)
        if model.base_model is model:  # Llama 4
            why = f"{type(model).__name__} has no module without its output head, from which trainers take hidden states"
            return Capabilities(report, training=f"{why}; it can only judge (hf:, prob:)")
        alone_NV = [read_logits(model, row)[0] for row in rows]
        other_V = read_logits(model, encode(processor, [_prompt(dice, SIZES[:1])]))[0]
    except Exception as error:  # the boundary, as above: what cannot be made small may train
        return Capabilities(f"{report}; not tried in a forward pass ({_said(error)})")
    finally:
        torch.random.set_rng_state(torch_state)
    try:
        together_NV = read_logits(model, inputs)
    except Exception as error:  # the boundary, as above
        return Capabilities(report, training=f"a batch of mixed prompts cannot be read ({_said(error)})")
    gap = max(_distance(together_V, alone_V) for together_V, alone_V in zip(together_NV, alone_NV, strict=True))
    sight = _distance(other_V, alone_NV[0])
    if gap > NEAR:
        return Capabilities(report, training=f"log-probs of a prompt differ by {gap:.1g} nats in a batch and alone")
    if sight < 10 * gap or sight == 0:
        return Capabilities(report, training=f"another image moves the log-probs by {sight:.1g} nats: the model is blind")
    report += f"; another image moves log-probs by {sight:.1g} nats"
    try:
        gap = _sampling_gap(model, inputs, rows, processor.tokenizer.pad_token_id or 0)
    except Exception as error:  # the boundary, as above
        return Capabilities(report, sampling=f"two samples of a prompt cannot be drawn ({_said(error)}); set engine.kind")
    if gap > NEAR:
        return Capabilities(report, sampling=f"sampled and recomputed log-probs differ by {gap:.1g} nats; set engine.kind")
    return Capabilities(f"{report}; sampled and recomputed log-probs agree to {gap:.0e}")


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:200]}"


def _prompt(dice: np.random.Generator, sizes: Sequence[tuple[int, int]]) -> list[Message]:
    parts = []
    for size in sizes:
        file = io.BytesIO()
        Image.fromarray(dice.integers(0, 255, (*size, 3), dtype=np.uint8)).save(file, "png")
        parts.append(Part(image=file.getvalue()))
    return [Message("user", (*parts, Part("Which of the two is better?")))]


def _rows(inputs: Mapping[str, Tensor], num_images: Sequence[int], image_token: int | None) -> list[dict[str, Tensor]]:
    """Return each row of a padded batch as a batch of its own. Raise NotImplementedError for a field without a rule."""
    ids_NL, mask_NL = inputs["input_ids"], inputs["attention_mask"].bool()
    check_fields(inputs)
    images = split_images(inputs, num_images, count_places(ids_NL, image_token))
    of_tokens = {name: values for name, values in inputs.items() if values.shape == ids_NL.shape}
    return [
        {name: values[n][mask][None] for name, values in of_tokens.items()} | join_images([images[n]])
        for n, mask in enumerate(mask_NL)
    ]


def _distance(a_V: Tensor, b_V: Tensor) -> float:
    """Return the greatest difference of two rows of log-probs in nats."""
    return float((a_V.log_softmax(-1) - b_V.log_softmax(-1)).abs().max())


def _sampling_gap(model: Any, inputs: dict[str, Tensor], rows: Sequence[dict[str, Tensor]], pad: int) -> float:
    """Return the greatest difference in nats between log-probs of drawn tokens and those of one forward pass, some draws having
    left the batch early."""
    vocabulary = model.get_input_embeddings().weight.shape[0]
    ends = frozenset(range(0, vocabulary, 3))
    dice = torch.Generator().manual_seed(0)
    options: dict[str, Any] = {"max_tokens": TOKENS, "temperature": 1.0, "top_p": 1.0, "ends": ends, "generator": dice}
    draws = draw(model, inputs, num_draws=2, suppress=vision_token_ids(model.config), **options)
    gaps = []
    for n, (tokens, logprobs) in enumerate(zip(draws.tokens, draws.logprobs, strict=True)):
        whole = append_answers(dict(rows[n // 2]), [tokens], pad)
        with torch.no_grad():
            logprobs_LV = model(**whole).logits[0, -len(tokens) - 1 : -1].float().log_softmax(-1)
        again = logprobs_LV.gather(1, torch.tensor(tokens)[:, None])[:, 0]
        gaps.append(float((again - torch.tensor(logprobs)).abs().max()))
    return max(gaps)


def small_model(config: Any) -> Any:
    """Return a float32 model with random weights by a configuration of which :data:`SMALL` and narrow layers are left, in eval
    mode: heads, their rotations, patches and vocabulary keep their sizes."""
    data = config.to_dict()
    width = _shrink(data["text_config"])
    data |= {"hidden_size": width} if data.get("hidden_size") else {}
    if vision := data.get("vision_config"):
        by_tower = "embed_dim" in vision  # Qwen2-VL: the hidden size is the language model's
        of_tower = _shrink(vision)
        vision |= {name: width for name in ("out_hidden_size", *(("hidden_size",) if by_tower else ())) if name in vision}
        vision |= {"intermediate_size": 4 * of_tower} if "intermediate_size" in vision else {}  # Llama 4 folds patches by four
        data |= {"projection_hidden_size": of_tower} if "projection_hidden_size" in data else {}
    if adapter := data.get("adapter_config"):
        _shrink(adapter)
        adapter |= {"text_hidden_size": width, "vision_feature_layer": [1, 0]}
    data |= {name: value for name, value in SMALL.items() if data.get(name) is not None}
    data |= {"audio_config": None} if "audio_config" in data else {}
    with no_init_weights():
        small = type(config).from_dict(data)
        model: Any = AutoModelForImageTextToText.from_config(small, dtype=torch.float32, attn_implementation="sdpa")
    model = prepare_vision_tower(model)
    dice = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim > 1:
                bound = 0.5 if "embed" in name else (3.0 / max(1, weight[0].numel())) ** 0.5
                weight.uniform_(-bound, bound, generator=dice)
            else:
                weight.fill_(0.0 if name.endswith("bias") else 1.0)
    return model.eval()


def _shrink(part: dict[str, Any]) -> int:
    """Narrow a part's layers to two heads and keep two layers, or one of each kind; return their width."""
    heads = "num_attention_heads" if part.get("num_attention_heads") else "num_heads"
    width = "embed_dim" if part.get("embed_dim") else "hidden_size"
    head = part.get("head_dim") or part[width] // part[heads]
    if part.get("num_key_value_heads"):
        part["num_key_value_heads"] = 2 if part["num_key_value_heads"] == part[heads] else 1
    kinds = list(dict.fromkeys(part.get("layer_types") or ()))
    number = max(2, len(kinds))
    part |= {name: value for name, value in SMALL.items() if part.get(name) is not None}
    part |= {heads: 2, width: 2 * head}
    part.pop("per_layer_config", None)  # made anew of the kinds of layers
    part |= {"num_hidden_layers": number} if part.get("num_hidden_layers") else {}
    part |= {"layer_types": [*kinds, *kinds[-1:] * (number - len(kinds))]} if kinds else {}
    return int(2 * head)
