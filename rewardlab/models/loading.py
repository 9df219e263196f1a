"""Loading of checkpoints: model and processor, quantisation, frozen parts, adapters, the size of images."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from PIL import Image
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor, BitsAndBytesConfig
from transformers.integrations import deepspeed
from transformers.utils import logging

from rewardlab.config import LoraConfig, MethodConfig, PixelConfig, TrainConfig
from rewardlab.data.files import whole_folder
from rewardlab.errors import CheckpointError, ConfigError
from rewardlab.models import precision
from rewardlab.models.attention import choose_attention, disable_cudnn_attention
from rewardlab.models.checkpoints import CARD, check_folder, weights_id
from rewardlab.models.families import always_run_vision_tower, count_places, image_token_id, part_pattern
from rewardlab.models.hub import hub_options, why_absent
from rewardlab.models.model_card import write_model_card
from rewardlab.models.vision_tower import prepare_vision_tower
from rewardlab.processes import is_main, num_processes
from rewardlab.reporting.progress import log_line


def load_processor(path: str) -> Any:
    """Return the processor of a checkpoint, padding on the left as generation needs. Raise CheckpointError if there is none."""
    check_folder(path)
    try:
        processor = AutoProcessor.from_pretrained(path, **hub_options(path))
    except Exception as error:  # the boundary: files of any library
        raise CheckpointError(f"{path}: its processor cannot be loaded ({why_absent(path, error)})") from error
    parts = ("tokenizer", "image_processor", "chat_template")
    if missing := [part.replace("_", " ") for part in parts if getattr(processor, part, None) is None]:
        raise CheckpointError(f"{path}: its processor has no {' and no '.join(missing)}; expected a vision-language chat model")
    processor.tokenizer.padding_side = "left"
    return processor


def check_image_token(path: str, processor: Any, config: Any) -> None:
    """Raise CheckpointError for a processor that does not write the image token of the configuration: the model would be
    blind."""
    chat = [{"role": "user", "content": [{"type": "image"}]}]
    text = processor.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    ids_1L = processor(text=[text], images=[[Image.new("RGB", (56, 56), "grey")]], return_tensors="pt")["input_ids"]
    token = image_token_id(config)
    if token is not None and count_places(ids_1L, token) == [0]:
        raise CheckpointError(
            f"{path}: its processor writes no token {token}, the image token of config.json, for an image: the model would be "
            "blind; restore the files of one checkpoint"
        )


def load_config_of(path: str) -> Any:
    """Return the configuration of a checkpoint folder or hub id; of an adapter, that of the model below it. Raise
    CheckpointError."""
    adapter = Path(path) / "adapter_config.json"
    if adapter.exists():
        return load_config_of(json.loads(adapter.read_text(encoding="utf-8"))["base_model_name_or_path"])
    check_folder(path)
    try:
        return AutoConfig.from_pretrained(path, **hub_options(path))
    except Exception as error:  # the boundary, as above
        raise CheckpointError(f"{path}: its configuration cannot be loaded ({why_absent(path, error)})") from error


def output_dtype(model: str, dtype: str) -> torch.dtype:
    """Return the dtype to save a successor of checkpoint ``model`` in: ``dtype``, or for "auto" the checkpoint's. Raise
    CheckpointError."""
    return precision.config_dtype(load_config_of(model)) if dtype == "auto" else _dtype(dtype)


def _dtype(name: str) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def this_device() -> str:
    """Return the device of this process: its GPU, or the CPU."""
    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if torch.cuda.is_available() else "cpu"


def load_model(
    path: str, *, device: str | None = None, dtype: str = "auto", attention: str = "auto", autocast: bool = False
) -> tuple[Any, Any]:
    """Return (model in eval mode, processor) of a checkpoint folder or hub id, on ``device`` (default: this process's).

    ``dtype``: "auto" is the checkpoint's own on a GPU, float32 on a CPU. ``attention``: see
    :func:`rewardlab.models.attention.choose_attention`; ``autocast``: the model will compute in 16 bits whatever its weights.
    Raise CheckpointError if it cannot be loaded, ConfigError for unavailable flash attention.
    """
    logging.disable_progress_bar()  # we show our own
    disable_cudnn_attention()
    target = device or this_device()
    config, processor = load_config_of(path), load_processor(path)
    check_image_token(path, processor, config)
    if dtype == "auto" and target == "cpu":
        dtype = "float32"
    is_half = (precision.config_dtype(config) if dtype == "auto" else _dtype(dtype)) != torch.float32
    kernel = choose_attention(attention, config, in_16_bits=autocast or is_half)
    model = read_model(path, dtype=dtype, attn_implementation=kernel)
    return prepare_vision_tower(model.eval() if target == "cpu" else model.to(target).eval()), processor


def read_model(path: str, kind: Any = AutoModelForImageTextToText, **options: Any) -> Any:
    """Return the model of a checkpoint with all of its weights, by ``kind``'s ``from_pretrained``. Raise CheckpointError if it
    cannot be loaded, and if its files lack weights of its configuration or have them in other shapes, which would be random."""
    options |= {"output_loading_info": True, "ignore_mismatched_sizes": True}
    try:
        model, report = kind.from_pretrained(path, **options, **hub_options(path))
    except ImportError:
        raise
    except Exception as error:  # the boundary, as above
        raise CheckpointError(f"{path}: cannot be loaded as an image-text model ({why_absent(path, error)})") from error
    wrong = [f"{name} is missing" for name in sorted(report["missing_keys"])]
    wrong += [f"{name} has shape {list(ours)}, not {list(theirs)}" for name, ours, theirs in sorted(report["mismatched_keys"])]
    if wrong:
        raise CheckpointError(
            f"{path}: {len(wrong):,} weights do not fit config.json: {', '.join(wrong[:3])}; restore the files"
        )
    return model


@contextmanager
def without_zero3_init() -> Iterator[None]:
    """Load whole weights inside this context, even if ZeRO-3 would shard them during loading."""
    config, deepspeed._hf_deepspeed_config_weak_ref = deepspeed._hf_deepspeed_config_weak_ref, None
    try:
        yield
    finally:
        deepspeed._hf_deepspeed_config_weak_ref = config


def load_policy(config: TrainConfig, out: Path) -> tuple[Any, Any]:
    """Return (model, processor) of ``config.model`` for training, with its frozen parts and pixel budget.

    An adapter is merged into its base model, which is saved in ``out/base``: a new adapter names that folder as its base. Raise
    CheckpointError and ConfigError.
    """
    path = config.model
    if (Path(path) / "adapter_config.json").exists():
        path = str(_merged_base(Path(path), (out / "base").resolve(), config.dtype))
    if config.lora and Path(path).exists():  # an adapter records its base, and is loaded from other folders
        path = str(Path(path).resolve())
    if config.lora and config.lora.quantize:
        model, processor = _quantised(path, config.attn_implementation), load_processor(path)
    else:
        half = precision.trains_in_bfloat16()
        model, processor = load_model(path, device="cpu", attention=config.attn_implementation, autocast=half)
        if config.lora and half:
            model = model.to(torch.bfloat16)  # peft keeps the adapters in float32
    if config.pixels:
        before = dict(processor.image_processor.size)
        set_pixels(processor, config.pixels)
        now = processor.image_processor.size
        if _engine_reads_checkpoint(config) and any(before.get(edge) != now[edge] for edge in now):
            raise ConfigError(
                f"pixels: vLLM uses the processor of {path}, whose pixels are {before}; train the cold start with the "
                "same pixels, or leave them out here"
            )
    freeze(model, config.freeze)
    if num_processes() > 1:
        always_run_vision_tower(model, processor)
    return model, processor


def prepare_reference(model: Any, processor: Any) -> None:
    """Have a reference model that TRL has loaded round as the policy does, and all processes use its weights in one order."""
    prepare_vision_tower(model)
    if num_processes() > 1:
        always_run_vision_tower(model, processor)


def _merged_base(adapter: Path, base: Path, dtype: str) -> Path:
    """Return folder ``base`` once it contains the model merged with ``adapter``; a model of another adapter is replaced."""
    source = f"{adapter.resolve()} {weights_id(adapter)} {dtype}"
    mark = base / "merged_from.txt"

    def is_ready() -> bool:
        return mark.exists() and mark.read_text(encoding="utf-8") == source

    if is_main() and not is_ready():
        new = base.with_name("base.new")
        for folder in (base, new):
            shutil.rmtree(folder, ignore_errors=True)
        merge_adapter(adapter, new, dtype=dtype)
        (new / mark.name).write_text(source, encoding="utf-8")
        new.rename(base)
    while not is_ready():  # the main process of this run is making it
        time.sleep(0.5)
    return base


def _engine_reads_checkpoint(config: TrainConfig) -> bool:
    """Return whether vLLM loads the checkpoint and its processor itself."""
    return isinstance(config, MethodConfig) and config.engine is not None and config.engine.kind != "serve"


def _quantised(path: str, attention: str) -> Any:
    """Return the model with its linear layers in NF4, 4 bits a weight (QLoRA, arXiv 2305.14314)."""
    disable_cudnn_attention()
    compute = torch.bfloat16 if precision.trains_in_bfloat16() else torch.float32
    nf4 = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=compute
    )
    kernel = choose_attention(attention, load_config_of(path), in_16_bits=compute == torch.bfloat16)
    try:
        return prepare_vision_tower(read_model(path, quantization_config=nf4, dtype=compute, attn_implementation=kernel))
    except ImportError as error:
        raise ConfigError(f"lora.quantize needs bitsandbytes: pip install 'rewardlab[qlora]' ({error})") from error


def merge_adapter(adapter: Path, out: Path, *, dtype: str = "auto") -> Path:
    """Merge a LoRA adapter into the model it was trained on and save both as one checkpoint; return ``out``.

    Weights are summed in float32 and rounded once, to ``dtype``: "auto" is that of the model. The card is copied.
    Raise CheckpointError if it is no adapter, and if ``out`` exists.
    """
    import peft

    adapter_config = adapter / "adapter_config.json"
    if not adapter_config.exists():
        raise CheckpointError(f"{adapter}: not an adapter (no adapter_config.json in it); a whole checkpoint needs no merging")
    if out.exists():
        raise CheckpointError(f"{out}: exists; choose another --out")
    name = json.loads(adapter_config.read_text(encoding="utf-8"))["base_model_name_or_path"]
    try:
        with without_zero3_init():
            base, _ = load_model(name, device="cpu")
    except CheckpointError as error:
        raise CheckpointError(f"{adapter}: its base model is missing: {error}") from error
    small = output_dtype(name, dtype)
    merged = peft.PeftModel.from_pretrained(base, str(adapter)).merge_and_unload().to(small)
    with whole_folder(out) as partial:
        merged.save_pretrained(partial)
        precision.write_config_dtype(partial, small)
        load_processor(str(adapter)).save_pretrained(partial)
        card = adapter / CARD
        if card.exists():
            (partial / CARD).write_bytes(card.read_bytes())
        write_model_card(partial)
    return out


def set_pixels(processor: Any, pixels: PixelConfig) -> None:
    """Bound the size of images in the processor, which is saved with every checkpoint and used by vLLM, too. Raise ConfigError
    for a family whose processor has no such bounds."""
    size = dict(processor.image_processor.size or {})
    if not size.keys() >= {"shortest_edge", "longest_edge"}:
        name = type(processor).__name__
        raise ConfigError(f"pixels: {name} does not bound an image's pixels (its size: {size or 'none'}); set pixels to null")
    processor.image_processor.size = {"shortest_edge": pixels.min, "longest_edge": pixels.max}


def freeze(model: Any, parts: list[str]) -> int:
    """Freeze ``parts`` (of :data:`rewardlab.models.families.PARTS`, or regular expressions of parameter names); return the
    number of frozen weights. Raise ConfigError for a part without parameters, and if nothing is left to train."""
    frozen = 0
    for part in parts:
        weights = [weight for name, weight in model.named_parameters() if part_pattern(part).search(name)]
        if not weights:
            some = [name for name, _ in model.named_parameters()][::50]
            raise ConfigError(f"freeze: no parameter of {type(model).__name__} matches {part!r}; names look like {some[:4]}")
        for weight in weights:
            weight.requires_grad_(False)
            frozen += weight.numel()
    if not any(weight.requires_grad for weight in model.parameters()):
        raise ConfigError(f"freeze: {parts} leaves nothing of {type(model).__name__} to train")
    return frozen


def peft_config(lora: LoraConfig | None, model: Any, frozen: list[str]) -> Any:
    """Return a peft config, or None for full fine-tuning. No layer of a ``frozen`` part gets an adapter."""
    if lora is None:
        return None
    import peft

    excluded = [name for name, _ in model.named_modules() if any(part_pattern(part).search(f"{name}.") for part in frozen)]
    chosen = adapted_weights(lora, model, frozen)
    experts = sorted({".".join(name.split(".")[-2:]) for name, weight in chosen if is_expert(name, weight)})
    refuse_dropout_of_experts(lora, model, frozen)
    if is_main():
        log_line(adapter_coverage(lora, model, frozen))
    modules: str | list[str] = lora.target_modules
    converted = _converted_names(model) if experts else set()
    if converted:
        linear = [name.removesuffix(".weight") for name, weight in chosen if not is_expert(name, weight)]
        modules = [name for name in linear if name.split(".")[-1] not in converted]
        experts += [f"{name}.weight" for name in linear if name.split(".")[-1] in converted]
    return peft.LoraConfig(
        target_parameters=experts or None,
        r=lora.r,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=modules,
        exclude_modules=excluded or None,
        task_type="CAUSAL_LM",
    )


def adapted_weights(lora: LoraConfig, model: Any, frozen: Sequence[str]) -> list[tuple[str, nn.Parameter]]:
    """Return (name, weight) of what adapters are added to: chosen linear layers, and with "all-linear" the experts of a
    mixture, which are 3-D parameters [experts, in, out] or [experts, out, in]. The output head has none."""
    heads = {id(model.get_output_embeddings())}
    patterns = [part_pattern(part) for part in frozen]

    def is_chosen(name: str) -> bool:
        targets = lora.target_modules
        if isinstance(targets, str):
            return targets == "all-linear" or re.fullmatch(targets, name) is not None
        return any(name == target or name.endswith(f".{target}") for target in targets)

    chosen = [
        (f"{name}.weight", cast(nn.Parameter, module.weight))
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and id(module) not in heads and is_chosen(name)
    ]
    if lora.target_modules == "all-linear":
        chosen += [(name, weight) for name, weight in model.named_parameters() if is_expert(name, weight)]
    return [(name, weight) for name, weight in chosen if not any(pattern.search(name) for pattern in patterns)]


def _converted_names(model: Any) -> set[str]:
    """Return the names of linear layers that peft takes for experts, as old checkpoints of some mixtures name them (GLM-4.5V):
    with "all-linear" it would leave out every layer of that name and adapt the router."""
    from peft.utils import transformers_weight_conversion as conversion

    family = conversion._MODEL_TO_CONVERSION_PATTERN.get(model.config.model_type, "")
    return set(conversion._MOE_TARGET_MODULE_MAPPING.get(family, ()))


def is_expert(name: str, weight: nn.Parameter) -> bool:
    """Return whether a parameter is of all experts of a layer: no linear layer, so that nf4 leaves it as it is."""
    return ".experts." in name and len(getattr(weight, "ds_shape", weight.shape)) == 3  # ZeRO-3 flattens what it shards


def refuse_dropout_of_experts(lora: LoraConfig, model: Any, frozen: Sequence[str]) -> None:
    """Raise ConfigError for a dropout if experts have adapters."""
    if lora.dropout and any(is_expert(name, weight) for name, weight in adapted_weights(lora, model, frozen)):
        raise ConfigError(f"lora.dropout {lora.dropout}: adapters of experts have none; set it to 0")


def adapter_coverage(lora: LoraConfig, model: Any, frozen: Sequence[str]) -> str:
    """Return in words which fraction of the weights has adapters, and which stays in 16 bits under ``lora.quantize``."""

    def size(weights: Iterable[nn.Parameter]) -> int:
        return sum(math.prod(getattr(weight, "ds_shape", weight.shape)) for weight in weights)

    chosen, total = adapted_weights(lora, model, frozen), size(model.parameters())
    with_experts = any(is_expert(name, weight) for name, weight in chosen)
    message = f"adapters on {size(weight for _, weight in chosen) / total:.1%} of the weights"
    experts = size(weight for name, weight in model.named_parameters() if is_expert(name, weight))
    if experts:
        message += f"; experts are {experts / total:.1%}, {'with' if with_experts else 'without'} adapters"
        message += ", and nf4 leaves them in 16 bits" if lora.quantize else ""
    return message


def merged_weights(
    model: Any, gather: Callable[[Sequence[nn.Parameter]], AbstractContextManager[None]]
) -> Iterator[tuple[str, Tensor]]:
    """Yield (name as in a checkpoint, weight) of a peft model with its adapters merged; the model stays as it is.

    peft merges in place and unmerges, which rounds bfloat16 weights twice: after some hundred times half of them have changed.
    Here each weight is merged into a copy, equal to peft's bit by bit. ``gather`` is entered around the weights that each
    needs, on every process.
    """
    layers = {_weight_below(name, layer): layer for name, layer in model.named_modules() if hasattr(layer, "get_delta_weight")}
    for name, weight in model.named_parameters():
        if model.prefix in name or "original_module" in name:  # adapters, and modules that have a trained copy
            continue
        layer = layers.get(name)
        with gather([weight] if layer is None else list(layer.parameters())):
            plain = name.removeprefix("base_model.model.").replace(".base_layer", "")
            yield plain, weight.data if layer is None else _merged(layer, weight)


def _weight_below(name: str, layer: Any) -> str:
    """Return the name of the weight that an adapted ``layer`` changes: experts have a layer around a layer for each."""
    part, below = layer, name
    while hasattr(part, "base_layer"):
        part, below = part.base_layer, f"{below}.base_layer"
    return f"{below}.{getattr(layer, 'parameter_name', 'weight')}"


@torch.no_grad()
def _merged(layer: Any, weight: nn.Parameter) -> Tensor:
    merged = weight.detach().clone()
    for adapter in layer.active_adapters:
        merged += layer.get_delta_weight(adapter)
    return merged
