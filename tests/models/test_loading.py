"""Folders that are no whole vision-language chat model: refused in one sentence, by stages and judges alike."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from rewardlab.config import SFTConfig
from rewardlab.errors import CheckpointError
from rewardlab.models.loading import load_model, load_policy
from rewardlab.models.value_model import ValueModel
from rewardlab.training.run.capabilities import refuse_incapable

Change = Callable[[Path], Any]


def config(part: str = "", **values: Any) -> Change:
    def change(folder: Path) -> None:
        whole = json.loads((folder / "config.json").read_text())
        (whole[part] if part else whole).update(values)
        (folder / "config.json").write_text(json.dumps(whole))

    return change


def as_text_model(folder: Path) -> None:
    (folder / "processor_config.json").unlink()
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    tokenizer = json.loads((folder / "tokenizer_config.json").read_text())
    del tokenizer["processor_class"]
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))


def without_norm(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file({name: weight for name, weight in weights.items() if "norm" not in name}, folder / "model.safetensors")


FOLDERS: dict[str, tuple[Change, str]] = {
    "nothing": (lambda folder: (folder / "config.json").unlink(), "not a checkpoint"),
    "text": (as_text_model, "its processor has no tokenizer and no image processor"),
    "template": (lambda folder: (folder / "chat_template.jinja").unlink(), "its processor has no chat template"),
    "image token": (config(image_token_id=9), "its processor writes no token 9, the image token of config.json"),
    "kind": (config("text_config", hidden_size="32"), "its configuration cannot be loaded"),
}
WEIGHTS: dict[str, tuple[Change, str]] = {
    "none": (lambda folder: (folder / "model.safetensors").unlink(), "cannot be loaded as an image-text model"),
    "damaged": (
        lambda folder: (folder / "model.safetensors").write_bytes(b"\0" * 9),
        "cannot be loaded as an image-text model",
    ),
    "missing": (without_norm, r"weights do not fit config.json: model.language_model.layers.0.\S*norm.weight is missing"),
    "untied": (config(tie_word_embeddings=False), "1 weights do not fit config.json: lm_head.weight is missing"),
    "sizes": (config("vision_config", out_hidden_size=48), r"model.visual.merger.mlp.2.bias has shape \[32\], not \[48\]"),
    "heads": (config("text_config", num_attention_heads=0), "cannot be loaded as an image-text model"),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_that_is_no_chat_model(name: str, tiny_checkpoint: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_checkpoint, tmp_path / "model"))
    change, message = FOLDERS[name]
    change(folder)
    for door in (lambda: refuse_incapable(SFTConfig(model=str(folder))), lambda: load_model(str(folder), device="cpu")):
        with pytest.raises(CheckpointError, match=message):
            door()


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_that_are_not_those_of_the_configuration(name: str, tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Weights that files lack would be random: a judge, a stage and a value model of them are refused."""
    folder = Path(shutil.copytree(tiny_checkpoint, tmp_path / "model"))
    change, message = WEIGHTS[name]
    change(folder)
    for door in (
        lambda: load_model(str(folder), device="cpu"),
        lambda: load_policy(SFTConfig(model=str(folder)), tmp_path),
        lambda: ValueModel.from_pretrained(str(folder)),
    ):
        with pytest.raises(CheckpointError, match=message):
            door()
