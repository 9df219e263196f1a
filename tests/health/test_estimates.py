"""The estimate of a training step against torch's own memory tracker, on fake tensors of real widths."""

from __future__ import annotations

import pytest

from eval.doctor_estimates import Case, compare


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "autocast", "checkpointing"),
    [
        ("Qwen/Qwen2.5-VL-3B-Instruct", True, True),
        ("Qwen/Qwen3-VL-8B-Instruct", False, False),
        pytest.param("Qwen/Qwen3-VL-8B-Instruct", True, True, marks=pytest.mark.nightly),
        pytest.param("Qwen/Qwen3-VL-8B-Instruct", False, True, marks=pytest.mark.nightly),
    ],
)
def test_a_step_of_one_layer(model: str, autocast: bool, checkpointing: bool) -> None:
    """Weights, gradients, moments, activations of both towers: within a tenth of what the tracker sees at its height."""
    [line] = compare(model, [Case(autocast, checkpointing, rows=2, tokens=4096, pixels=0)], layers=1)
    off = float(line.split("|")[-2].removesuffix(" % ").strip().removesuffix(" %"))
    assert abs(off) < 10, line


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Module is None:UserWarning")  # the tracker's hooks, of experts
@pytest.mark.parametrize(
    ("model", "case"),
    [
        pytest.param("Qwen/Qwen3-VL-8B-Instruct", Case(True, True, 2, 4096, 0, lora=True), marks=pytest.mark.nightly),
        ("Qwen/Qwen3-VL-8B-Instruct", Case(False, True, 2, 4096, 0, processes=4)),
        pytest.param("Qwen/Qwen3-VL-30B-A3B-Instruct", Case(True, True, 2, 4096, 0, lora=True), marks=pytest.mark.nightly),
        pytest.param("Qwen/Qwen3-VL-30B-A3B-Instruct", Case(True, False, 2, 4096, 0, lora=True), marks=pytest.mark.nightly),
    ],
)
def test_adapters_and_shards(model: str, case: Case) -> None:
    """Adapters in float32 over bfloat16 weights, of experts too; one of four processes of FSDP2."""
    [line] = compare(model, [case], layers=1)
    off = float(line.split("|")[-2].removesuffix(" % ").strip().removesuffix(" %"))
    assert abs(off) < 10, line
