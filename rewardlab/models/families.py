"""The differences between families of vision-language models: image tokens, fields of a forward pass, positions, parts.

Qwen's families pass one stack of patches for all images (``image_grid_thw`` says how many each image has) and rotate
positions by three coordinates; Gemma 3 passes one entry of pixels per image and marks the tokens of images in
``token_type_ids``. A new family is added here, and in :mod:`rewardlab.models.architectures` for the doctor.

Shapes: ``N`` rows, ``T`` tokens.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

# Inputs of a forward pass besides tokens and their mask: one number per token, fields of images, images per row.
TOKEN_FIELDS = ("mm_token_type_ids", "token_type_ids")
IMAGE_FIELDS = ("pixel_values", "image_grid_thw")
FORWARD_KEYS = (*IMAGE_FIELDS, *TOKEN_FIELDS, "num_images")

# Names of parts in transformers; any other name of a part is a regular expression.
PARTS = {
    "vision": r"\b(visual|vision_tower|vision_model)\.(?!.*merger)",
    "merger": r"\b(visual\.(.*\.)?(merger|deepstack_merger_list)|multi_modal_projector)\.",
    "language": r"\b(language_model|lm_head)\b",
}

Fields = dict[str, Any]  # of a processor, of TRL or of a batch: tensors, arrays, or lists of one list per row


# Tokens.


def vision_token_ids(config: Any) -> list[int]:
    """Return the tokens of images and video, which a judge must not generate."""
    names = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    tokens = [getattr(config, name, None) for name in names]
    return [token for token in tokens if isinstance(token, int)]


def image_token_id(config: Any) -> int | None:
    """Return the token that is repeated for each patch of an image, None for a model without one."""
    return getattr(config, "image_token_id", None)


def end_token_ids(model: Any) -> frozenset[int]:
    """Return the tokens that end a completion, by the checkpoint's generation config."""
    ends = model.generation_config.eos_token_id
    return frozenset(ends if isinstance(ends, list) else [ends])


def count_text_tokens(processor: Any, prompts: Sequence[str], answers: Sequence[str], num_images: Sequence[int]) -> list[int]:
    """Return the numbers of tokens of rendered prompts with their answers, without image tokens but with the tags around."""
    placeholders = 1  # tokens that stand for an image until the processor repeats them
    if sequence := getattr(processor, "full_image_sequence", None):  # Gemma 3: the placeholder becomes text of one length
        prompts = [prompt.replace(processor.boi_token, sequence) for prompt in prompts]
        placeholders = processor.image_seq_length
    texts = [prompt + answer for prompt, answer in zip(prompts, answers, strict=True)]
    counts = _count_tokens(processor.tokenizer, texts)
    return [count - placeholders * images for count, images in zip(counts, num_images, strict=True)]


def _count_tokens(tokenizer: Any, texts: Sequence[str]) -> list[int]:
    """Return the number of tokens of each text, without building lists of ids and offsets, which is slower."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:  # written in Python
        return [len(ids) for ids in tokenizer(list(texts), add_special_tokens=False)["input_ids"]]
    backend.no_truncation()  # the tokenizer sets both again at its next call
    backend.no_padding()
    return [len(tokens) for tokens in backend.encode_batch_fast(list(texts), add_special_tokens=False)]


def count_image_tokens(processor: Any, sizes: Sequence[tuple[int, int]]) -> list[int]:
    """Return the number of tokens of each image of (height, width) px, without decoding it."""
    return list(processor._get_num_multimodal_tokens(image_sizes=list(sizes)).num_image_tokens)


def most_image_tokens(processor: Any) -> int | None:
    """Return the most tokens of an image of any size; None if unknown."""
    if fixed := getattr(processor, "image_seq_length", None):
        return int(fixed)
    images = processor.image_processor
    size, merged = getattr(images, "size", {}), getattr(images, "patch_size", 0) * getattr(images, "merge_size", 0)
    return int(size["longest_edge"]) // merged**2 if merged and "longest_edge" in size else None


# Rows and their images.


def left_pad(rows: Sequence[Tensor], filler: int) -> Tensor:
    """Return [N, longest] of N rows of different length, ``filler`` before the shorter ones."""
    width = max(map(len, rows))
    padded = rows[0].new_full((len(rows), width), filler)
    for n, row in enumerate(rows):
        padded[n, width - len(row) :] = row
    return padded


def has_grids(inputs: Mapping[str, Any]) -> bool:
    """Return whether images come as one stack of patches and the grid of each."""
    return "image_grid_thw" in inputs


def select_images(fields: Mapping[str, Any], images: Sequence[int], num_images: int) -> dict[str, Tensor]:
    """Return the pixels of some of a batch's ``num_images`` images, and their grids if patches are stacked; {} for none.

    Raise NotImplementedError for pixels in a form that no rule covers.
    """
    if not images:
        return {}
    pixels, first, last = _tensor(fields["pixel_values"]), images[0], images[-1] + 1
    adjacent = list(images) == list(range(first, last))  # then without a copy
    if fields.get("image_grid_thw") is None:
        if pixels.size(0) != num_images:
            raise NotImplementedError(f"{pixels.size(0)} entries of pixels for {num_images} images: no rule assigns them")
        return {"pixel_values": pixels[first:last] if adjacent else pixels[list(images)]}
    grids = _tensor(fields["image_grid_thw"])
    starts = [0, *accumulate(grids.prod(1).tolist())]
    if adjacent:
        return {"image_grid_thw": grids[first:last], "pixel_values": pixels[starts[first] : starts[last]]}
    patches = torch.cat([pixels[starts[image] : starts[image + 1]] for image in images])
    return {"image_grid_thw": grids[list(images)], "pixel_values": patches}


def images_of_rows(rows: Sequence[Tensor], grids: Tensor, image_token: int) -> list[range]:
    """Return the consecutive images of each row of tokens, given the ``grids`` of all images."""
    patches = grids.prod(1).tolist()
    counts = [int((row == image_token).sum()) for row in rows]
    merged = sum(patches) // max(1, sum(counts))  # patches behind one token
    images, image = [], 0
    for count in counts:
        first, remaining = image, count * merged
        while remaining > 0:
            remaining -= patches[image]
            image += 1
        images.append(range(first, image))
    return images


def images_by_row(fields: Mapping[str, Any], rows: Sequence[Tensor], image_token: int | None) -> list[range]:
    """Return the consecutive images of each row of tokens. Raise NotImplementedError for a model without an image token."""
    if fields.get("pixel_values") is None:
        return [range(0)] * len(rows)
    if image_token is None:
        raise NotImplementedError("a prompt has images but no image token")
    if has_grids(fields):
        return images_of_rows(rows, fields["image_grid_thw"], image_token)
    counts = [int((row == image_token).sum()) for row in rows]
    per_image = sum(counts) // len(fields["pixel_values"])
    ends = [count // per_image for count in accumulate(counts)]
    return [range(first, end) for first, end in zip([0, *ends], ends, strict=False)]


def image_fields_of_rows(batch: Mapping[str, Any], rows: Sequence[int]) -> Fields:
    """Return the pixels of some rows of a batch, in the order of ``rows``, with grids and numbers of images; {} without
    images."""
    num_images = batch.get("num_images")
    if batch.get("pixel_values") is None or num_images is None:
        return {}
    starts = [0, *accumulate(num_images)]
    if not (images := [image for row in rows for image in range(starts[row], starts[row + 1])]):
        return {}
    return {**select_images(batch, images, starts[-1]), "num_images": [num_images[row] for row in rows]}


def select_fields(fields: Mapping[str, Any], images: Any, rows: Sequence[int], lengths: Sequence[int]) -> Fields:
    """Return the multimodal fields of some prompts, whose token ids have grown to ``lengths`` by text.

    ``images`` are those of each prompt, None if no prompt has any. Raise NotImplementedError for an unknown field.
    """
    if images is None:
        return {}
    _check_names(fields)
    counts = [len(of_prompt or ()) for of_prompt in images]
    selected: Fields = {
        name: [list(fields[name][row]) + [0] * (n - len(fields[name][row])) for row, n in zip(rows, lengths, strict=True)]
        for name in TOKEN_FIELDS
        if name in fields
    }
    if "pixel_values" in fields:
        indices = [sum(counts[:row]) + n for row in rows for n in range(counts[row])]
        selected |= select_images(fields, indices, sum(counts))
    return selected


def prompt_batch(
    prompt_ids: Sequence[list[int]], fields: Mapping[str, Any], images: Any, rows: Sequence[int], pad: int
) -> dict[str, Tensor]:
    """Return some of the prompts as a model reads them, left-padded.

    ``images`` are those of each prompt, None if no prompt has any. Raise NotImplementedError for an unknown field.
    """
    tokens = [torch.tensor(prompt_ids[row], dtype=torch.long) for row in rows]
    mask = left_pad([torch.ones_like(ids) for ids in tokens], 0)
    batch = {"input_ids": left_pad(tokens, pad), "attention_mask": mask}
    by_prompt = [()] * len(prompt_ids) if images is None else images
    for name, value in select_fields(fields, by_prompt, rows, list(map(len, tokens))).items():
        batch[name] = left_pad([torch.as_tensor(row) for row in value], 0) if name in TOKEN_FIELDS else value
    return batch


def images_by_prompt(images: Any) -> list[list[Any]] | None:
    """Return the images of each prompt; None if no prompt has any."""
    return [of_prompt or [] for of_prompt in images] if images and any(images) else None


def _check_names(fields: Mapping[str, Any]) -> None:
    if unknown := set(fields) - {*IMAGE_FIELDS, *TOKEN_FIELDS}:
        raise NotImplementedError(f"no rule assigns {sorted(unknown)}")


def _tensor(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value))


# Positions.


def rope_module(model: nn.Module) -> Any | None:
    """Return the module with ``rope_deltas``, the offset of M-RoPE for text after images, which it keeps between calls; None
    without M-RoPE."""
    return next((module for module in model.modules() if hasattr(module, "rope_deltas")), None)


def rope_positions(positions_NT: Tensor, offset_N1: Tensor | None) -> Tensor:
    """Return the positions of text that a model takes: [3, N, T] with the offset of M-RoPE, or unchanged without it."""
    return positions_NT if offset_N1 is None else (positions_NT + offset_N1)[None].expand(3, -1, -1)


# Parts.


def part_pattern(part: str) -> re.Pattern[str]:
    """Return the pattern of parameter names of a part of :data:`PARTS`, or of a regular expression."""
    return re.compile(PARTS.get(part, part))


def vision_language_module(model: nn.Module) -> Any:
    """Return the module that embeds images (``get_image_features``) for its ``language_model``."""
    return next(part for part in model.modules() if hasattr(part, "get_image_features") and hasattr(part, "language_model"))


def image_fields(inputs: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return a processor's outputs that belong to images."""
    return {name: inputs[name] for name in IMAGE_FIELDS if name in inputs}


# Micro-batches without an image.


def always_run_vision_tower(model: nn.Module, processor: Any) -> None:
    """Make forward passes of ``model`` without pixels run the vision tower on a grey square, with a weight of 0.

    Other processes may have images and wait, in DDP's reduction or ZeRO-3's gathering, for this one's vision tower. Hooks run
    it within the module that DDP or DeepSpeed wraps, after the words are embedded: all processes use weights in one order.
    """
    inner = vision_language_module(model)
    square = image_fields(processor.image_processor(images=[Image.new("RGB", (56, 56), "grey")], return_tensors="pt"))
    is_blind = [False]

    def before(module: Any, args: Any, kwargs: Any) -> None:
        decoding = kwargs.get("past_key_values") is not None
        is_blind[0] = kwargs.get("pixel_values") is None and not decoding  # without a gradient, too: ZeRO-3 gathers weights

    def before_language(module: Any, args: Any, kwargs: Any) -> Any:
        if not is_blind[0]:
            return None
        is_blind[0] = False
        embedded = kwargs["inputs_embeds"]
        inputs = {key: value.to(embedded.device) for key, value in square.items()}
        inputs["pixel_values"] = inputs["pixel_values"].to(embedded.dtype)
        zero: Any = 0.0 * sum(part.sum() for part in _tensors(inner.get_image_features(**inputs)))
        return args, {**kwargs, "inputs_embeds": embedded + zero.to(embedded)}

    inner.register_forward_pre_hook(before, with_kwargs=True, prepend=True)
    inner.language_model.register_forward_pre_hook(before_language, with_kwargs=True, prepend=True)


def _tensors(features: Any) -> list[Tensor]:
    """Return the image features that the language model reads, without hidden states."""
    if isinstance(features, Tensor):
        return [features]
    if hasattr(features, "items"):
        features = [part for name, part in features.items() if name not in ("last_hidden_state", "hidden_states", "attentions")]
    return [tensor for part in features or () for tensor in _tensors(part)]
