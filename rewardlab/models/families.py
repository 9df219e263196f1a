"""The differences between families of vision-language models: image tokens, fields of a forward pass, positions, parts.

Qwen's families pass one stack of patches for all images (``image_grid_thw`` says how many each image has) and rotate
positions by three coordinates; Gemma 3 passes one entry of pixels per image and marks the tokens of images in
``token_type_ids``. A family is new here only by the names of its fields (:data:`IMAGE_FIELDS`) and of its image token
(:data:`PATCH_TOKENS`).

Shapes: ``N`` rows, ``T`` tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

# Inputs of a forward pass besides tokens and their mask: one number per token, and fields of images with the rule that assigns
# their entries to rows.
TOKEN_FIELDS = ("mm_token_type_ids", "token_type_ids")
IMAGE_FIELDS = {
    "pixel_values": "an entry per image; per tile if there are more; patches, if a field below gives their numbers",
    "image_grid_thw": "an entry per image, whose product is the number of its patches in pixel_values",
    "target_sizes": "an entry per tile, whose product is the number of its patches, packed along the last axis of pixel_values",
    "spatial_shapes": "an entry per tile, as of pixel_values and its mask; the product is the number of its patches",
    "image_num_crops": "an entry per image, the number of its entries in pixel_values",
    "image_grids": "an entry per image: height and width, in tokens, of the small image and of the crops",
    "image_token_pooling": "an entry per image token, the numbers of its patches in pixel_values; in a row they begin at 0",
    "image_sizes": "an entry per image",
    "image_position_ids": "an entry per image",
    "batch_num_images": "the number of images of each row that has any",
    "pixel_attention_mask": "an entry per row, as of pixel_values, both padded with empty tiles; per tile with spatial_shapes",
}
POOLING = "image_token_pooling"
IMAGE_ROWS = "image_rows"  # a list of the image fields of each row, {} for a row without images
FORWARD_KEYS = (*IMAGE_FIELDS, *TOKEN_FIELDS, IMAGE_ROWS)

# Names of parts in transformers; any other name of a part is a regular expression.
PARTS = {
    "vision": r"\b(visual|vision_tower|vision_model)\.(?!.*merger)",
    "merger": r"\b((visual|vision_tower)\.(.*\.)?(\w*merger|deepstack_merger_list)\.|"
    r"(model\.merger|(multi_modal|mm)_projector|connector|embed_vision|visual_embeddings_table)\.|image_newline$)",
    "language": r"\b(language_model|text_model|lm_head)\b",
}

TAGS = 2  # tokens before and behind an image
# By the processor, if what it repeats for each patch is not what stands for an image in a prompt.
PATCH_TOKENS = {
    "Gemma3Processor": "<image_soft_token>",
    "Molmo2Processor": "<im_patch>",
    "Ovis2Processor": "<IMG_ATOM>",
    "Llama4Processor": "<|patch|>",
}
ImageRow = Mapping[str, Tensor] | tuple[Mapping[str, Tensor], ...]
Fields = dict[str, Any]  # of a processor, of TRL or of a batch: tensors, arrays, or lists of one list per row


# Tokens.


def vision_token_ids(config: Any) -> list[int]:
    """Return the tokens of images and video, which a judge must not generate; without those that have no logit (Molmo 2)."""
    names = ("video_token_id", "vision_start_token_id", "vision_end_token_id")
    tokens = [image_token_id(config), *(getattr(config, name, None) for name in names)]
    tokens += list(getattr(config, "visual_indicator_token_ids", ()))
    number = config.get_text_config().vocab_size
    return [token for token in tokens if isinstance(token, int) and token < number]


def image_token_id(config: Any) -> int | None:
    """Return the token that is repeated for each patch of an image, None for a model without one."""
    names = ("image_token_id", "image_token_index")
    return next((token for name in names if isinstance(token := getattr(config, name, None), int)), None)


def patch_token_id(processor: Any) -> int | None:
    """Return the token that a processor repeats for each patch of an image (:data:`PATCH_TOKENS`)."""
    if token := PATCH_TOKENS.get(type(processor).__name__):
        return int(processor.tokenizer.convert_tokens_to_ids(token))
    return getattr(processor, "image_token_id", None)


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


def count_image_tokens(processor: Any, sizes: Sequence[tuple[int, int]], *, by_formula: bool = True) -> list[int]:
    """Return the number of tokens of each image of (height, width) px if it is the only one of its prompt: by the processor's
    own formula, or without ``by_formula`` from what it makes of a grey image."""
    if by_formula:
        return list(processor._get_num_multimodal_tokens(image_sizes=list(sizes)).num_image_tokens)
    chat = [{"role": "user", "content": [{"type": "image"}]}]
    text = text_before(processor) + str(processor.apply_chat_template(chat, tokenize=False, add_generation_prompt=True))
    [rest] = count_text_tokens(processor, [text], [""], [1])
    images = [Image.new("RGB", (width, height), "grey") for height, width in sizes]
    return [processor(text=[text], images=[[image]], return_tensors="pt")["input_ids"].shape[1] - rest for image in images]


def text_before(processor: Any) -> str:
    """Return what a processor puts before each text: an end token for Molmo 2, "" for most."""
    ids, text_ids = (read(text=["."])["input_ids"][0] for read in (processor, processor.tokenizer))
    return str(processor.tokenizer.decode(ids[: max(0, len(ids) - len(text_ids))]))


def has_token_formula(processor: Any) -> bool:
    """Return whether the processor has a formula of image tokens, and it holds for an image: some leave out the tags around."""
    if not hasattr(processor, "_get_num_multimodal_tokens"):
        return False
    sizes = [(100, 260)]
    return count_image_tokens(processor, sizes) == count_image_tokens(processor, sizes, by_formula=False)


def most_image_tokens(processor: Any) -> int | None:
    """Return the most tokens of an image of any size, with the tags that the processor adds; None if unknown."""
    images = processor.image_processor
    if fixed := getattr(processor, "image_seq_length", None):
        tiles = getattr(images, "max_patches", None) or 0  # of that many tokens, besides the whole image, with a tag each
        return int(fixed) * (tiles + 1) + TAGS + tiles
    size, patch, merge = (getattr(images, name, None) for name in ("size", "patch_size", "merge_size"))
    if not isinstance(patch, int) or not merge or not size or "longest_edge" not in size:
        return None
    return int(size["longest_edge"]) // int(patch * merge) ** 2


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


def count_places(ids_NT: Tensor, token: int | None) -> list[int]:
    """Return how often each row has a token, 0 for None."""
    return [0] * len(ids_NT) if token is None else [int(count) for count in ids_NT.eq(token).sum(1)]


def split_images(
    fields: Mapping[str, Any], num_images: Sequence[int] | None, image_tokens: Sequence[int]
) -> list[dict[str, Tensor]]:
    """Return the image fields of each row, {} for a row without images, by the rules of :data:`IMAGE_FIELDS`.

    ``num_images``: images of each row, None if unknown. ``image_tokens``: image tokens of each row, by which tiles are
    assigned, and images if their number is unknown. Raise NotImplementedError if the numbers do not match.
    """
    if fields.get("pixel_values") is None:
        return [{} for _ in image_tokens]
    tensors = {name: _tensor(fields[name]) for name in IMAGE_FIELDS if fields.get(name) is not None}
    if _is_padded_by_row(tensors):
        return [_without_empty_tiles(tensors, n) for n in range(len(image_tokens))]
    patches, rows = _patches(tensors), []
    numbers = _several_per_entry(tensors, patches)
    for part in _entries_by_row(tensors, num_images, image_tokens, patches):
        row = {name: tensor[part.start : part.stop] for name, tensor in tensors.items()}
        for name, number in numbers.items():
            first, length = int(number[: part.start].sum()), int(number[part.start : part.stop].sum())
            row[name] = tensors[name].narrow(_axis(tensors, name), first, length)
        if POOLING in row:
            first_crop = int(tensors["image_num_crops"][: part.start].sum())
            row[POOLING] = _renumber(row[POOLING], -first_crop * tensors["pixel_values"].shape[1])
        if "batch_num_images" in tensors:
            row["batch_num_images"] = torch.tensor([len(part)], device=tensors["pixel_values"].device)
        rows.append(row if part else {})
    return rows


def join_images(rows: Sequence[ImageRow]) -> dict[str, Tensor]:
    """Return the image fields of some rows as a model takes them, {} if no row has images. Smaller images and fewer tiles are
    padded. A row may be a tuple of fields, of which each has some of its images."""
    parts = [part for row in rows for part in (row if isinstance(row, tuple) else (row,)) if part]
    if len(parts) > 1 and POOLING in parts[0]:
        ends = accumulate(part["pixel_values"].shape[:2].numel() for part in parts)
        parts = [{**part, POOLING: _renumber(part[POOLING], first)} for part, first in zip(parts, [0, *ends], strict=False)]
    return {name: _join([part[name] for part in parts], name, _axis(parts[0], name)) for name in (parts[0] if parts else ())}


def _is_padded_by_row(fields: Mapping[str, Any]) -> bool:
    return "pixel_attention_mask" in fields and "spatial_shapes" not in fields


def _axis(fields: Mapping[str, Any], name: str) -> int:
    """Return the axis along which a row's entries of a field are joined to another's: tiles of a padded row, packed patches, or
    the first."""
    if not name.startswith("pixel_"):
        return 0
    return 1 if _is_padded_by_row(fields) else -1 if "target_sizes" in fields else 0


def _patches(tensors: Mapping[str, Tensor]) -> Tensor | None:
    """Return the number of patches of each image, or tile; of Molmo 2 that of tokens; None if no field says it."""
    if "image_grids" in tensors:
        return tensors["image_grids"].view(-1, 2, 2).prod(2).sum(1)
    sizes = next((tensors[name] for name in ("image_grid_thw", "target_sizes", "spatial_shapes") if name in tensors), None)
    return None if sizes is None else sizes.prod(1)


def _several_per_entry(tensors: Mapping[str, Tensor], patches: Tensor | None) -> dict[str, Tensor]:
    """Return how many entries of each image (or tile) there are in the fields that have several."""
    if patches is None or "spatial_shapes" in tensors:
        return {}
    if "image_num_crops" in tensors:
        return {"pixel_values": tensors["image_num_crops"], POOLING: patches}
    return {"pixel_values": patches * (tensors["pixel_values"].shape[-2] if "target_sizes" in tensors else 1)}


def _renumber(patches: Tensor, first: int) -> Tensor:
    """Return numbers of patches with ``first`` added; those below 0 stand for none."""
    return torch.where(patches >= 0, patches + first, patches)


def _join(parts: Sequence[Tensor], name: str, axis: int) -> Tensor:
    if len(parts) == 1:
        return parts[0]
    shape = [max(part.shape[n] for part in parts) for n in range(parts[0].ndim)]
    shape[axis] = 0  # of the joined axis nothing is padded
    filler = -1 if name == "image_position_ids" else 0
    padded = []
    for part in parts:
        missing = [max(0, full - size) for full, size in zip(shape, part.shape, strict=True)]
        padding = [edge for number in reversed(missing) for edge in (0, number)]
        padded.append(nn.functional.pad(part, padding, value=filler) if any(missing) else part)
    return torch.cat(padded, axis)


def _without_empty_tiles(tensors: Mapping[str, Tensor], row: int) -> dict[str, Tensor]:
    """Return the tiles [1, tiles, ...] of a row, whose padding is at the end."""
    number = int(tensors["pixel_attention_mask"][row].flatten(1).any(1).sum())
    return {name: tensor[row : row + 1, :number] for name, tensor in tensors.items()} if number else {}


def _entries_by_row(
    tensors: Mapping[str, Tensor], num_images: Sequence[int] | None, image_tokens: Sequence[int], patches: Tensor | None
) -> list[range]:
    """Return the consecutive entries of each row: images, or tiles."""
    number = len(tensors["pixel_values"] if patches is None else patches)
    if num_images is not None and number == sum(num_images) and "target_sizes" not in tensors:
        ends = list(accumulate(num_images))
    elif patches is not None:
        ends = [images.stop for images in images_of_tokens(image_tokens, patches.tolist())]
    else:
        total = max(1, sum(image_tokens))
        is_even = set(tensors) == {"pixel_values"} and not any(count * number % total for count in image_tokens)
        ends = [count * number // total for count in accumulate(image_tokens)] if is_even else [0]
    if ends[-1] != number:
        known = "an unknown number of" if num_images is None else sum(num_images)
        raise NotImplementedError(f"{number} entries of {sorted(tensors)} for {known} images: no rule assigns them")
    return [range(first, end) for first, end in zip([0, *ends], ends, strict=False)]


def images_of_tokens(image_tokens: Sequence[int], patches: Sequence[int]) -> list[range]:
    """Return the consecutive images (or tiles) of each row, given its image tokens and the patches of each image."""
    merged = sum(patches) // max(1, sum(image_tokens))  # patches behind one token
    images, image = [], 0
    for count in image_tokens:
        first, remaining = image, count * merged
        while remaining > 0:
            remaining -= patches[image]
            image += 1
        images.append(range(first, image))
    return images


def with_image_rows(
    fields: Mapping[str, Any], prompt_ids: Sequence[Sequence[int]], images: Sequence[Any] | None, image_token: int | None
) -> Fields:
    """Return a processor's fields of unpadded prompts in the form that is sliced by row: token fields, and ``image_rows``, the
    image fields of each row. ``images`` are those of each prompt, None if no prompt has any: then it is {}.

    Raise NotImplementedError for a field without a rule.
    """
    if images is None:
        return {}
    check_fields(fields)
    counts = [sum(token == image_token for token in ids) for ids in prompt_ids]
    rows = split_images(fields, [len(of_prompt or ()) for of_prompt in images], counts)
    shared = share_rows(rows, [of_prompt or () for of_prompt in images])
    return {name: fields[name] for name in TOKEN_FIELDS if name in fields} | {IMAGE_ROWS: shared}


def share_rows(rows: Sequence[Mapping[str, Tensor]], images: Sequence[Sequence[Any]]) -> list[dict[str, Tensor]]:
    """Return the image fields of rows, copied from the tensors that they are parts of. Rows with the same ``images`` (objects)
    share one copy: the pixels of a prompt are held once, not once per rollout."""
    copies: dict[tuple[int, ...], dict[str, Tensor]] = {}
    keys = [tuple(map(id, of_row)) for of_row in images]
    for key, row in zip(keys, rows, strict=True):
        if key not in copies:
            copies[key] = {name: tensor.clone() for name, tensor in row.items()}
    return [copies[key] for key in keys]


def image_fields_of_rows(batch: Mapping[str, Any], rows: Sequence[int]) -> Fields:
    """Return the image fields of some rows of a batch with ``image_rows``, in the order of ``rows``; {} without images."""
    of_rows = batch.get(IMAGE_ROWS)
    return join_images([of_rows[row] for row in rows]) if of_rows else {}


def select_fields(fields: Mapping[str, Any], rows: Sequence[int], lengths: Sequence[int]) -> Fields:
    """Return the fields (:func:`with_image_rows`) of some prompts, whose token ids have grown to ``lengths`` by text."""
    selected: Fields = {
        name: [list(fields[name][row]) + [0] * (n - len(fields[name][row])) for row, n in zip(rows, lengths, strict=True)]
        for name in TOKEN_FIELDS
        if name in fields
    }
    return selected | ({IMAGE_ROWS: [fields[IMAGE_ROWS][row] for row in rows]} if IMAGE_ROWS in fields else {})


def add_images(
    fields: Mapping[str, Any],
    images: Sequence[Mapping[str, Tensor]],
    token_ids: Sequence[Sequence[int]],
    image_token: int | None,
) -> Fields:
    """Return the fields (:func:`with_image_rows`) of some rows with those of more ``images`` behind the prompts' own, {} for a
    row without; tokens in ``token_ids`` of these images are marked."""
    if not any(images):
        return dict(fields)
    marked: Fields = {
        name: [
            [kind or int(token == image_token) for kind, token in zip(kinds, ids, strict=True)]
            for kinds, ids in zip(fields[name], token_ids, strict=True)
        ]
        for name in TOKEN_FIELDS
        if name in fields
    }
    return marked | {IMAGE_ROWS: with_images(fields[IMAGE_ROWS], images)}


def with_images(rows: Sequence[Mapping[str, Tensor]], images: Sequence[Mapping[str, Tensor]]) -> list[ImageRow]:
    """Return the image fields of rows with those of more images behind their own; none is copied."""
    return [(row, more) if more else row for row, more in zip(rows, images, strict=True)]


def prompt_batch(
    prompt_ids: Sequence[list[int]], fields: Mapping[str, Any], rows: Sequence[int], pad: int
) -> dict[str, Tensor]:
    """Return some of the prompts as a model reads them, left-padded. ``fields``: see :func:`with_image_rows`."""
    tokens = [torch.tensor(prompt_ids[row], dtype=torch.long) for row in rows]
    mask = left_pad([torch.ones_like(ids) for ids in tokens], 0)
    selected = select_fields(fields, rows, list(map(len, tokens)))
    images = join_images(selected.pop(IMAGE_ROWS, []))
    batch = {"input_ids": left_pad(tokens, pad), "attention_mask": mask} | images
    return batch | {name: left_pad([torch.as_tensor(row) for row in value], 0) for name, value in selected.items()}


def images_by_prompt(images: Any) -> list[list[Any]] | None:
    """Return the images of each prompt; None if no prompt has any."""
    return [of_prompt or [] for of_prompt in images] if images and any(images) else None


def check_fields(fields: Iterable[str]) -> None:
    """Raise NotImplementedError for a field of a processor without a rule."""
    if unknown := set(fields) - {*IMAGE_FIELDS, *TOKEN_FIELDS, "input_ids", "attention_mask"}:
        raise NotImplementedError(f"no rule assigns {sorted(unknown)} to the images of a row")


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
    """Return the module that embeds images (``get_image_features``) for its language model."""
    return next(part for part in model.modules() if hasattr(part, "get_image_features") and _language_module(part))


def _language_module(part: Any) -> Any:
    return getattr(part, "language_model", None) or getattr(part, "text_model", None)


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
    _language_module(inner).register_forward_pre_hook(before_language, with_kwargs=True, prepend=True)


def _tensors(features: Any) -> list[Tensor]:
    """Return the image features that the language model reads, without hidden states."""
    if isinstance(features, Tensor):
        return [features]
    if hasattr(features, "items"):
        features = [part for name, part in features.items() if name not in ("last_hidden_state", "hidden_states", "attentions")]
    return [tensor for part in features or () for tensor in _tensors(part)]
