"""The mean of the weights of several checkpoints as one checkpoint (model soups, arXiv 2203.05482).

Weights are read and written tensor by tensor: memory holds one tensor, however large the model.
"""

from __future__ import annotations

import json
import math
import shutil
import struct
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from rewardlab.data.files import whole_folder, write_atomic
from rewardlab.errors import CheckpointError
from rewardlab.models import precision
from rewardlab.models.checkpoints import CARD, commit, read_card, versions, weights_id
from rewardlab.models.model_card import adapter_base, write_model_card
from rewardlab.processes import command_line

CONFIGS = (  # of the architecture, the tokenizer, the chat template, and the size of images
    "config.json",
    "tokenizer.json",
    "chat_template.jinja",
    "processor_config.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
)
_VOLATILE = {"transformers_version", "_name_or_path", "use_cache", "padding", "truncation"}  # they change no judgment
_COPIED_SUFFIXES, _NOT_COPIED = {".json", ".jinja", ".txt", ".model"}, {CARD, "trainer_state.json"}
_OF_CARDS = ("stage", "template", "template_hash", "template_text", "base")
_DTYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


@dataclass(frozen=True)
class _Checkpoint:
    """A checkpoint folder, its card, and by the name of each tensor the open file that holds it, with that file's name."""

    folder: Path
    card: Mapping[str, Any]
    tensors: Mapping[str, tuple[str, Any]]

    def header(self, name: str) -> tuple[str, list[int]]:
        """Return the dtype, by its name in safetensors files (such as "BF16"), and the shape of a tensor."""
        part = self.tensors[name][1].get_slice(name)
        return part.get_dtype(), part.get_shape()


def average_checkpoints(folders: Sequence[Path], out: Path, *, dtype: str = "auto") -> Path:
    """Save the mean of the weights of ``folders`` as checkpoint ``out``; return ``out``.

    Means are computed in float32 and rounded once, to ``dtype``: "auto" is that of each weight. Integer weights must be equal.
    Processor and configuration are those of the last folder. The card names all folders; that of a run's ``checkpoint-N`` is
    the card of its ``final``. Raise CheckpointError for fewer than two folders, adapters, differences in architecture,
    tokenizer, processor, chat template or prompt template, and if ``out`` exists.
    """
    if len({folder.resolve() for folder in folders}) < max(2, len(folders)):
        raise CheckpointError(f"{', '.join(map(str, folders))}: a mean needs two or more different checkpoints")
    if out.exists():
        raise CheckpointError(f"{out}: exists; choose another --out")
    target = None if dtype == "auto" else getattr(torch, dtype)
    with ExitStack() as files:
        *others, last = checkpoints = [_open(folder, files) for folder in folders]
        for other in others:
            if difference := _difference(other, last):
                raise CheckpointError(f"{other.folder} and {last.folder} cannot be averaged: {difference}")
        partial = files.enter_context(whole_folder(out))
        for path in last.folder.iterdir():
            if path.suffix in _COPIED_SUFFIXES and path.name not in _NOT_COPIED:
                shutil.copy(path, partial)
        placed = {name: file for name, (file, _) in last.tensors.items()}
        size = sum(_write_means(checkpoints, partial / file, target) for file in {*placed.values()})
        for index in partial.glob("*.safetensors.index.json"):
            listed = {"metadata": {"total_size": size}, "weight_map": placed}
            write_atomic(index, json.dumps(listed, indent=2, sort_keys=True) + "\n")
        if target is not None:
            precision.write_config_dtype(partial, target)
        _write_card(checkpoints, partial)
        write_model_card(partial)
    return out


def _open(folder: Path, files: ExitStack) -> _Checkpoint:
    """Return the checkpoint in ``folder``; ``files`` closes its weights. Raise CheckpointError."""
    card, final = read_card(folder), folder.parent / "final"
    if adapter_base(folder) is not None:
        raise CheckpointError(f"{folder}: is an adapter, and a mean of adapters is not that of their models: merge each first")
    if card is None and folder.name.startswith("checkpoint-") and final.is_dir():
        card = read_card(final)
    if card is None:
        raise CheckpointError(f"{folder}: no {CARD} in it (for a checkpoint-N, in the run's final): finish the run first")
    tensors: dict[str, tuple[str, Any]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            file = files.enter_context(safe_open(path, "pt"))
        except SafetensorError as error:
            raise CheckpointError(f"{path}: cannot be read ({error}); restore the file") from error
        tensors |= dict.fromkeys(file.keys(), (path.name, file))
    if not tensors:
        raise CheckpointError(f"{folder}: has no weights (*.safetensors)")
    return _Checkpoint(folder, card, tensors)


def _difference(a: _Checkpoint, b: _Checkpoint) -> str:
    """Return in words why two checkpoints have no mean; "" if they have."""
    if a.card.get("template_hash") != b.card.get("template_hash"):
        return f"prompt templates {a.card.get('template')!r} and {b.card.get('template')!r} have different texts or formats"
    for name in CONFIGS:
        texts = [path.read_bytes() if path.exists() else b"" for path in (a.folder / name, b.folder / name)]
        if texts[0] != texts[1] and (keys := _unequal_keys(*texts)) != []:
            return f"their {name} differs" + (f" in {', '.join(keys[:3])}" if keys else "")
    for name in sorted(a.tensors.keys() | b.tensors.keys()):
        if not (name in a.tensors and name in b.tensors):
            return f"weight {name} is in one of them only"
        (dtype, shape), (other_dtype, other_shape) = a.header(name), b.header(name)
        if (dtype, shape) != (other_dtype, other_shape):
            return f"weight {name} is {dtype} {shape} and {other_dtype} {other_shape}"
        if dtype not in _DTYPES and not torch.equal(*(part.tensors[name][1].get_tensor(name) for part in (a, b))):
            return f"weight {name} of dtype {dtype} differs"
    return ""


def _unequal_keys(a: bytes, b: bytes) -> list[str] | None:
    """Return the keys in which two JSON objects differ, except those that change no judgment; None if they are no objects."""
    try:
        ours, theirs = dict(json.loads(a)), dict(json.loads(b))
    except (ValueError, TypeError):
        return None
    return [key for key in sorted(ours.keys() | theirs.keys()) if key not in _VOLATILE and ours.get(key) != theirs.get(key)]


def _write_means(checkpoints: Sequence[_Checkpoint], path: Path, target: torch.dtype | None) -> int:
    """Write the means of the weights that the last checkpoint has in a file of this name; return their bytes.

    A safetensors file is the length of its header (8 bytes), the header, and the tensors; its own library writes whole files
    from memory.
    """
    last, end = checkpoints[-1], 0
    dtypes: dict[str, torch.dtype | None] = {}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for name in [name for name, (file, _) in last.tensors.items() if file == path.name]:
        stored, shape = last.header(name)
        dtypes[name] = dtype = (target or _DTYPES[stored]) if stored in _DTYPES else None  # None: of integers, which are equal
        size = last.tensors[name][1].get_tensor(name).nbytes if dtype is None else math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": stored if dtype is None else _NAMES[dtype], "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, dtype in dtypes.items():
            weight = last.tensors[name][1].get_tensor(name) if dtype is None else _mean(checkpoints, name).to(dtype)
            weight.reshape(-1).view(torch.uint8).numpy().tofile(file)
    return end


def _mean(checkpoints: Sequence[_Checkpoint], name: str) -> Tensor:
    """Return the mean of a weight, in float32 or a wider dtype. Raise CheckpointError for one that is not finite."""
    total: Tensor | None = None
    for checkpoint in checkpoints:
        weight = checkpoint.tensors[name][1].get_tensor(name)
        if total is None:
            total = torch.zeros(weight.shape, dtype=torch.promote_types(weight.dtype, torch.float32))
        total += weight
    assert total is not None
    if not total.isfinite().all():
        parts = [str(part.folder) for part in checkpoints if not part.tensors[name][1].get_tensor(name).isfinite().all()]
        raise CheckpointError(f"{', '.join(parts)}: weight {name} has nan or inf, and so would the mean; leave it out")
    return total.div_(len(checkpoints))


def _write_card(checkpoints: Sequence[_Checkpoint], folder: Path) -> None:
    """Write what all checkpoints have in common, the stage of the last, and the list of them."""
    card = {name: checkpoints[-1].card[name] for name in _OF_CARDS if name in checkpoints[-1].card}
    if any(checkpoint.card.get("base") != card.get("base") for checkpoint in checkpoints):
        card.pop("base", None)
    averaged = [{"folder": str(part.folder), "weights": weights_id(part.folder)} for part in checkpoints]
    card |= {"versions": versions(), "commit": commit(), "command": command_line(), "averaged": averaged}
    write_atomic(folder / CARD, json.dumps(card, indent=1) + "\n")
