"""Means of checkpoints: the mean of every tensor, in its dtype and file; other models are refused in a sentence."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from rewardlab.cli.train import merge_command
from rewardlab.errors import CheckpointError, ConfigError, OutputError
from rewardlab.models.averaging import average_checkpoints
from rewardlab.models.checkpoints import CARD, read_card, write_card
from rewardlab.models.loading import load_model
from rewardlab.prompts import load_template
from rewardlab.reporting.cards import README
from tests.support.weights import flat_weights

Weights = dict[str, Tensor]


def random_weights(seed: int) -> Weights:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    return {
        "embed": draw(5, 3).bfloat16(),
        "norm": draw(3),
        "scale": draw(),
        "half": draw(0, 2).half(),
        "places": torch.arange(4),
        "head": draw(2, 5).bfloat16(),
    }


def write_checkpoint(folder: Path, weights: Weights, *, template: str = "plain") -> Path:
    """Write a checkpoint in two shards."""
    folder.mkdir(parents=True)
    names = sorted(weights)
    shards = {"model-1.safetensors": names[:3], "model-2.safetensors": names[3:]}
    for file, held in shards.items():
        save_file({name: weights[name] for name in held}, folder / file, {"format": "pt"})
    index = {"metadata": {"total_size": 1}, "weight_map": {name: file for file, held in shards.items() for name in held}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps({"model_type": "some", "dtype": "bfloat16", "use_cache": len(names) > 6}))
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"a": 0}}, "padding": None}))
    write_card(
        folder, template=load_template(template), stage="rl", base="owner/base", step=3, verdict_temperature={"tau": 2.0}
    )
    return folder


@pytest.fixture
def three(tmp_path: Path) -> list[Path]:
    return [write_checkpoint(tmp_path / f"run{seed}" / "final", random_weights(seed)) for seed in range(3)]


def read(folder: Path) -> Weights:
    return {name: weight for path in folder.glob("*.safetensors") for name, weight in load_file(path).items()}


def test_the_mean_of_every_tensor(three: list[Path], tmp_path: Path) -> None:
    """In float32, rounded once to the dtype of the weight, in the files that the checkpoints have."""
    parts = [random_weights(seed) for seed in range(3)]
    mean = read(average_checkpoints(three, tmp_path / "mean"))
    assert mean.keys() == parts[0].keys()
    for name, weight in mean.items():
        expected = torch.stack([part[name].double() for part in parts]).mean(0)
        assert weight.dtype == parts[0][name].dtype
        torch.testing.assert_close(weight, expected.float().to(weight.dtype), rtol=1e-6, atol=1e-7)
    index = json.loads((tmp_path / "mean" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(weight.nbytes for weight in mean.values())
    assert {path.name for path in (tmp_path / "mean").glob("*.safetensors")} == set(index["weight_map"].values())


def test_bfloat16_is_rounded_once(tmp_path: Path) -> None:
    """1, 1 + 1/64 and 1 + 1/64 + 1/128 have the mean 1.0130; sums in bfloat16 would end at another number."""
    values = (1.0, 1 + 1 / 64, 1 + 3 / 128)
    folders = [write_checkpoint(tmp_path / str(n), {"w": torch.tensor([v]).bfloat16()}) for n, v in enumerate(values)]
    mean = read(average_checkpoints(folders, tmp_path / "mean"))["w"]
    assert mean.item() == torch.tensor(sum(values) / 3).bfloat16().item()


def test_another_dtype(three: list[Path], tmp_path: Path) -> None:
    mean = average_checkpoints(three, tmp_path / "mean", dtype="float32")
    weights = read(mean)
    assert {name for name, weight in weights.items() if weight.dtype != torch.float32} == {"places"}
    expected = torch.stack([random_weights(seed)["embed"].float() for seed in range(3)]).mean(0)
    torch.testing.assert_close(weights["embed"], expected)
    assert json.loads((mean / "config.json").read_text())["dtype"] == "float32"
    index = json.loads((mean / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(weight.nbytes for weight in weights.values())


def test_the_card_names_the_checkpoints(three: list[Path], tmp_path: Path) -> None:
    """Its template and base stay; facts of one checkpoint, such as its step and fitted temperature, do not."""
    mean = average_checkpoints(three, tmp_path / "mean")
    card = read_card(mean)
    assert card is not None
    assert [part["folder"] for part in card["averaged"]] == [str(folder) for folder in three]
    assert (card["template"], card["stage"], card["base"]) == ("plain", "rl", "owner/base")
    assert not {"step", "verdict_temperature"} & card.keys()
    assert str(three[1]) in (mean / README).read_text()


def change_json(name: str, **values: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    return change


def change_weights(**values: Tensor | None) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        for path in folder.glob("*.safetensors"):
            weights = {name: values.get(name, weight) for name, weight in load_file(path).items()}
            save_file({name: weight for name, weight in weights.items() if weight is not None}, path, {"format": "pt"})

    return change


REFUSED = {
    "architecture": (change_json("config.json", model_type="other"), "config.json differs in model_type"),
    "tokenizer": (change_json("tokenizer.json", model={"vocab": {"b": 0}}), "tokenizer.json differs in model"),
    "chat template": (lambda folder: (folder / "chat_template.jinja").write_text("x"), "chat_template.jinja differs"),
    "prompt template": (change_json(CARD, template_hash="0"), "prompt templates"),
    "shape": (change_weights(norm=torch.zeros(4)), r"weight norm is F32 \[4\] and F32 \[3\]"),
    "dtype": (change_weights(norm=torch.zeros(3).half()), r"weight norm is F16 \[3\]"),
    "weights": (change_weights(norm=None), "weight norm is in one of them only"),
    "integers": (change_weights(places=torch.ones(4, dtype=torch.long)), "weight places of dtype I64 differs"),
    "not finite": (change_weights(norm=torch.tensor([1.0, torch.nan, 0])), "run1/final: weight norm has nan or inf"),
    "no text": (lambda folder: (folder / "config.json").write_bytes(b"\xff"), "config.json differs"),
    "card of another kind": (lambda folder: (folder / CARD).write_text("[1]"), "not valid JSON"),
    "adapter": (
        lambda folder: (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "b"}'),
        "merge each first",
    ),
    "no card": (lambda folder: (folder / CARD).unlink(), "no rewardlab.json"),
    "broken file": (
        lambda folder: (folder / "model-1.safetensors").write_bytes(b"\0" * 9),
        "model-1.safetensors: cannot be read",
    ),
    "no weights": (lambda folder: [path.unlink() for path in folder.glob("*.safetensors")], "has no weights"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what: str, three: list[Path], tmp_path: Path) -> None:
    change, message = REFUSED[what]
    change(three[1])
    with pytest.raises(CheckpointError, match=message):
        average_checkpoints(three, tmp_path / "mean")
    assert not list(tmp_path.glob("mean*"))


@pytest.mark.parametrize("index", ["{", '{"weight_map": {}}'])
def test_the_index_is_written_anew(index: str, three: list[Path], tmp_path: Path) -> None:
    """Whatever that of the checkpoints holds."""
    (three[2] / "model.safetensors.index.json").write_text(index)
    mean = average_checkpoints(three, tmp_path / "mean")
    listed = json.loads((mean / "model.safetensors.index.json").read_text())
    assert listed["weight_map"] == {name: path.name for path in mean.glob("*.safetensors") for name in load_file(path)}
    assert not list(mean.glob(".*"))


def test_a_folder_that_cannot_be_written(three: list[Path], tmp_path: Path) -> None:
    """In a file, and while another process writes it: a sentence, and what that has written stays. A killed one's goes."""
    with pytest.raises(OutputError, match="cannot be written"):
        average_checkpoints(three, three[0] / "config.json" / "mean")
    partial = tmp_path / "mean.partial"
    partial.mkdir()
    (partial / "model-9.safetensors").write_text("")
    hold = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-S", "-c", hold, str(partial / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(OutputError, match="another process is writing in it"):
            average_checkpoints(three, tmp_path / "mean")
        other.kill()
    assert (partial / "model-9.safetensors").exists()
    assert not list(average_checkpoints(three, tmp_path / "mean").glob("model-9*"))


def test_settings_that_change_no_judgment(three: list[Path], tmp_path: Path) -> None:
    change_json("config.json", use_cache=True, transformers_version="0")(three[0])
    change_json("tokenizer.json", padding={"length": 9})(three[0])
    average_checkpoints(three, tmp_path / "mean")


def test_too_few(three: list[Path], tmp_path: Path) -> None:
    for folders in (three[:1], [three[0], three[1], three[0]]):
        with pytest.raises(CheckpointError, match="two or more different"):
            average_checkpoints(folders, tmp_path / "mean")


def test_the_last_checkpoints_of_a_run(three: list[Path], tmp_path: Path) -> None:
    """By step, not by name; an incomplete one is none; the card is that of the finished run."""
    run = three[0].parent
    for step, seed in ((2, 5), (6, 6), (10, 7)):
        folder = write_checkpoint(run / f"checkpoint-{step}", random_weights(seed))
        (folder / CARD).unlink()
        (folder / "trainer_state.json").write_text('{"global_step": 1}')
    shutil.copytree(run / "checkpoint-10", run / "checkpoint-12")
    (run / "checkpoint-12" / "trainer_state.json").unlink()
    merge_command([run], tmp_path / "mean", last=2)
    expected = (random_weights(6)["norm"] + random_weights(7)["norm"]) / 2
    torch.testing.assert_close(read(tmp_path / "mean")["norm"], expected)
    with pytest.raises(ConfigError, match=r"3 complete checkpoints.*fewer than 4"):
        merge_command([run], tmp_path / "four", last=4)
    shutil.rmtree(three[0])
    with pytest.raises(CheckpointError, match="finish the run first"):
        merge_command([run], tmp_path / "two", last=2)


def test_a_model_loads_from_its_mean(tiny_checkpoint: Path, tmp_path: Path) -> None:
    folders, before = [], []
    for seed in range(2):
        folder = Path(shutil.copytree(tiny_checkpoint, tmp_path / str(seed)))
        torch.manual_seed(seed)
        for path in folder.glob("*.safetensors"):
            save_file({n: w + torch.randn_like(w) for n, w in load_file(path).items()}, path, {"format": "pt"})
        write_card(folder, template=load_template("plain"), stage="sft")
        folders.append(folder)
        before.append(flat_weights(load_model(str(folder), device="cpu")[0]))
    mean = flat_weights(load_model(str(average_checkpoints(folders, tmp_path / "mean")), device="cpu")[0])
    torch.testing.assert_close(mean, (before[0] + before[1]) / 2)
