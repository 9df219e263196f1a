"""Rows without padding, sorted by length and read in parts, are the padded batch: losses, gradients, rollouts, weights."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rewardlab.models.families import TOKEN_FIELDS, join_images
from rewardlab.models.loading import load_model
from rewardlab.models.padding import PassLimits
from rewardlab.training.policy_gradient import trainer as trainer_module
from rewardlab.training.policy_gradient.batch import rollout_widths, sort_steps, split_rollouts
from rewardlab.training.run import length_grouping
from rewardlab.training.run.length_grouping import BatchesAhead, LengthGroupingMixin, RowLayout, group_by_length, join, split
from tests.support import scaled_runs
from tests.support.launching import train_on
from tests.support.weights import flat_weights

FAMILIES = ("qwen3_vl", "gemma3", "qwen2_vl", "qwen2_5_vl")
WHOLE_BATCH = {"micro_batch_size": 8, "max_steps": 2}


def one_of(names: Sequence[str], daily: str) -> list[Any]:
    """Return the names as parameters of which all but one are nightly."""
    return [name if name == daily else pytest.param(name, marks=pytest.mark.nightly) for name in names]


def padded_logprobs(model: Any, ids: Any, mask: Any, fields: Any, width: int, *, passes: Any, autocast: Any) -> Any:
    """Log-probs and entropies of a plain forward pass over the batch as it is padded, in one piece."""
    tokens = {name: fields[name] for name in TOKEN_FIELDS if name in fields}
    pixels = join_images(fields.get("image_rows", []))
    logits = model(input_ids=ids, attention_mask=mask, **tokens, **pixels).logits[:, -width - 1 : -1].float()
    everything_NTV = logits.log_softmax(-1)
    logprobs_NT = everything_NTV.gather(2, ids[:, -width:, None])[..., 0]
    entropies_NT = -(everything_NTV.exp() * everything_NTV).sum(-1)
    return tuple(values.masked_fill(mask[:, -width:] == 0, 0) for values in (logprobs_NT, entropies_NT))


def lines_of(run: Path) -> list[dict[str, float]]:
    return [line for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()) if "loss" in line]


def same(one: Path, other: Path, names: tuple[str, ...]) -> None:
    first, second = lines_of(one), lines_of(other)
    curves = [[{name: line[name] for name in names if name in line} for line in lines] for lines in (first, second)]
    for ours, theirs in zip(*curves, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
    assert all(line["grad_norm"] > 0.01 for line in first)
    a, b = (load_model(str(run / "final"), device="cpu")[0] for run in (one, other))
    torch.testing.assert_close(flat_weights(a), flat_weights(b), atol=1e-4, rtol=1e-3)


RL = ("loss", "grad_norm", "reward", "entropy", "completions/mean_length", "kl/loss", "value/loss")


@pytest.mark.parametrize("name", one_of(FAMILIES, "gemma3"))
def test_rollouts_of_every_family(
    name: str, checkpoint_of: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a reference; rows of text alone beside rows of four images; the second optimizer step is of moved weights."""
    how = {"kl": "k3_loss", "kl_coef": 0.1, "data": scaled_runs.mixed(), "max_steps": 2, "iterations": 2}
    scaled_runs.run("rl", checkpoint_of(name), tmp_path / "sorted", micro_batch_size=2, **how)
    scaled_runs.run("rl", checkpoint_of(name), tmp_path / "parts", micro_batch_size=8, micro_batch_tokens=300, **how)
    monkeypatch.setattr(trainer_module, "completion_logprobs", padded_logprobs)
    monkeypatch.setattr(trainer_module, "sort_steps", lambda batches, per_step: list(batches))
    scaled_runs.run("rl", checkpoint_of(name), tmp_path / "padded", micro_batch_size=8, **how)
    for run in ("sorted", "parts"):
        same(tmp_path / "padded", tmp_path / run, RL)
        assert all(0 <= line["tokens/padding_frac"] < 0.2 for line in lines_of(tmp_path / run))


PARTS: dict[str, dict[str, Any]] = {
    "turns": {"self_verify": True, "advantage": "gae", "outliers": "keep", "kl_coef": 0.1, "max_completion_length": 6},
    "lora": {"lora": {"r": 4}, "kl": "k3_loss", "kl_coef": 0.1},
    "constant": {"average": "constant", "batch_size": 4, "rollout_batch_size": 8, "micro_batch_size": 4},
}


@pytest.mark.parametrize("name", one_of(list(PARTS), "turns"))
def test_parts_are_their_rows(tiny_checkpoint: Path, tmp_path: Path, name: str) -> None:
    """Read one by one, where no row has a neighbour to be padded for, or in parts of several."""
    how = {"data": scaled_runs.mixed(), **WHOLE_BATCH, **PARTS[name]}
    scaled_runs.run("rl", tiny_checkpoint, tmp_path / "parts", **(how | {"micro_batch_tokens": 300}))
    scaled_runs.run("rl", tiny_checkpoint, tmp_path / "rows", **(how | {"micro_batch_size": 1}))
    same(tmp_path / "rows", tmp_path / "parts", RL)


@pytest.mark.parametrize("name", one_of(FAMILIES, "qwen3_vl"))
def test_sft_of_every_family(
    name: str, checkpoint_of: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    how = {"data": scaled_runs.mixed(), "max_steps": 2}
    scaled_runs.run("sft", checkpoint_of(name), tmp_path / "sorted", micro_batch_size=2, **how)
    scaled_runs.run("sft", checkpoint_of(name), tmp_path / "parts", micro_batch_size=8, micro_batch_tokens=300, **how)
    monkeypatch.setattr(length_grouping, "group_by_length", lambda batches, layout, take: batches)
    scaled_runs.run("sft", checkpoint_of(name), tmp_path / "padded", micro_batch_size=2, **how)
    for run in ("sorted", "parts"):
        same(tmp_path / "padded", tmp_path / run, ("loss", "grad_norm"))
        assert lines_of(tmp_path / run)[0]["tokens/padding_frac"] < lines_of(tmp_path / "padded")[0]["tokens/padding_frac"]


@pytest.mark.nightly
def test_two_processes_have_as_many_parts(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Whose rows differ in length; the same as one process that reads row by row."""
    for stage in ("rl", "sft"):
        how = scaled_runs.CHANGES[f"{stage}+parts+mixed"] | {"micro_batch_tokens": None, "micro_batch_size": 1}
        scaled_runs.run(stage, tiny_checkpoint, tmp_path / f"{stage}_alone", data=scaled_runs.mixed(), **how)
    train_on(tiny_checkpoint, tmp_path, "rl+parts+mixed:rl", "sft+parts+mixed:sft")
    for stage, names in (("rl", RL), ("sft", ("loss", "grad_norm"))):
        same(tmp_path / f"{stage}_alone", tmp_path / stage, names)


def test_rows_that_belong_together_stay_together() -> None:
    """Pairs of rows, padded on the left: each with its own image, its label, and its other half in the second block."""
    layout = RowLayout(pad_token=9, image_token=7, side="left", rows_per_sample=2)
    first = {
        "input_ids": torch.tensor([[9, 7, 1], [9, 9, 2], [9, 7, 3], [9, 9, 4]]),
        "attention_mask": torch.tensor([[0, 1, 1], [0, 0, 1], [0, 1, 1], [0, 0, 1]]),
        "labels": torch.tensor([[-100, -100, 10], [-100, -100, 20], [-100, -100, 30], [-100, -100, 40]]),
        "pixel_values": torch.tensor([[[0.1]], [[0.3]]]),
    }
    second = {
        "input_ids": torch.tensor([[7, 1, 1, 5], [9, 9, 9, 6], [7, 1, 1, 5], [9, 9, 9, 8]]),
        "attention_mask": torch.tensor([[1, 1, 1, 1], [0, 0, 0, 1], [1, 1, 1, 1], [0, 0, 0, 1]]),
        "labels": torch.tensor([[-100, -100, -100, 50], [-100, -100, -100, 60], [-100, -100, -100, 70], [-100] * 3 + [80]]),
        "pixel_values": torch.tensor([[[0.5]], [[0.7]]]),
    }
    long, short = group_by_length([first, second], layout)
    assert long["input_ids"].tolist() == [[7, 1, 1, 5], [9, 9, 7, 1], [7, 1, 1, 5], [9, 9, 7, 3]]
    assert long["labels"][:, -1].tolist() == [50, 10, 70, 30]
    assert long["pixel_values"].flatten().tolist() == pytest.approx([0.5, 0.1, 0.7, 0.3])
    assert short["input_ids"].tolist() == [[2], [6], [4], [8]]
    assert "pixel_values" not in short
    again = join(split(second, layout), layout)
    assert {name: values.tolist() for name, values in again.items()} == {name: v.tolist() for name, v in second.items()}
    with pytest.raises(NotImplementedError, match=r"no rule assigns \['audio'\]"):
        split({**first, "audio": torch.zeros(3)}, layout)


def _batch(values: np.ndarray) -> dict[str, torch.Tensor]:
    """Rows of one image and a token, the values as pixels."""
    ids = torch.tensor([[7, 1]] * len(values))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": torch.from_numpy(values)}


class _Loop:
    """What a Trainer does of it: takes the batches of a step."""

    def get_batch_samples(self, batches: Iterator[Any], number: int, device: Any) -> Any:
        return list(islice(batches, number)), None


class _Grouped(LengthGroupingMixin, _Loop):
    def __init__(self) -> None:
        self.layout, self._ahead = RowLayout(pad_token=9, image_token=7, side="right"), BatchesAhead(iter(()))


def test_the_next_steps_batches_are_taken_while_one_trains() -> None:
    """In their order, each once, over the border of epochs; and with no more pixels in memory than those of a step."""
    trainer, arrays = _Grouped(), list[weakref.ref[np.ndarray]]()

    def made(number: float) -> Any:
        values = np.array([[number], [number + 0.5]])
        arrays.append(weakref.ref(values))
        return _batch(values)

    def epoch(number: int) -> Iterator[Any]:
        for n in range(5):
            yield made(10 * number + n)

    seen, behind = [], []
    for number in range(2):
        batches = epoch(number)
        for of_step in (3, 2):
            micro_batches, _ = trainer.get_batch_samples(batches, of_step, None)
            assert len(micro_batches) == of_step
            for micro_batch in micro_batches:
                seen += micro_batch["pixel_values"].flatten().tolist()
                behind.append(sum(array() is not None for array in arrays))
                assert len(micro_batches) == of_step
    assert seen == [10 * number + n + half for number in range(2) for n in range(5) for half in (0, 0.5)]
    assert behind == [0, 1, 2, 0, 0] * 2  # of the next step: none before a micro-batch was read, and all but one at the end


def test_a_step_of_one_batch_is_left_as_it_is() -> None:
    trainer, batch = _Grouped(), _batch(np.ones((2, 1)))
    assert trainer.get_batch_samples(iter([batch]), 1, None)[0] == [batch]
    assert trainer.get_batch_samples(iter([]), 1, None)[0] == []


def test_rollouts_stay_in_their_optimizer_step() -> None:
    """Four micro-batches of two rollouts, two a step: sorted within the step, with their images; counts stay whole."""
    widths = [[2, 4], [1, 3], [1, 1], [4, 2]]
    micro_batches = [
        {
            "prompt_mask": torch.ones(2, 1, dtype=torch.long),
            "completion_mask": torch.tensor([[1] * (width - 1) + [0] * (5 - width) for width in of_batch]),
            "image_rows": [{"pixel_values": torch.tensor([[float(width)]])} if width % 2 else {} for width in of_batch],
            "num_items_in_batch": torch.tensor(7),
        }
        for of_batch in widths
    ]
    parts = sort_steps(micro_batches, 2)
    assert [rollout_widths(part) for part in parts] == [[4, 3], [2, 1], [4, 2], [1, 1]]
    pixels = [[row["pixel_values"].item() if row else None for row in part["image_rows"]] for part in parts]
    assert pixels == [[None, 3.0], [None, 1.0], [None, None], [1.0, 1.0]]
    assert all(part["num_items_in_batch"] == 7 for part in parts)
    assert sort_steps(parts, 2) == parts  # those of one length in their order: nothing is moved, nor copied
    halves = split_rollouts(parts[0], PassLimits(positions=4))
    assert [half["image_rows"] for half in halves] == [[{}], [{"pixel_values": torch.tensor([[3.0]])}]]
