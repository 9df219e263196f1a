"""How much memory the images of a rollout batch take: one prompt with an image of a megapixel, 16 rollouts.

``python -m eval.image_memory`` takes one RL step of the packaged judge on a CPU (Linux) and prints the bytes of all tensors of
the batch, each storage once, and the resident memory of the process before, at its highest, and after the batch was made.
"""

from __future__ import annotations

import gc
import io
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import rewardlab.demo
from rewardlab.config import ConsistencyConfig, RLConfig
from rewardlab.demo.pairs import make_pairs
from rewardlab.training.policy_gradient.trainer import PolicyTrainer
from rewardlab.training.rl import train_rl

HEIGHT, WIDTH, GROUP = 1036, 1008, 16


def storages(value: Any) -> dict[int, int]:
    """Return the bytes of each storage behind the tensors of a batch, by address."""
    if isinstance(value, torch.Tensor):
        return {value.untyped_storage().data_ptr(): value.untyped_storage().nbytes()}
    parts: Iterable[Any] = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return {address: size for part in parts for address, size in storages(part).items()}


def resident(line: str) -> float:
    """Return MiB: ``VmRSS`` of now, or ``VmHWM``, the highest since it was reset."""
    status = Path("/proc/self/status").read_text().splitlines()
    return int(next(row for row in status if row.startswith(line)).split()[1]) / 1024


def main() -> None:
    torch.set_num_threads(1)
    buffer = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 255, (HEIGHT, WIDTH, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(buffer, "PNG")
    pair = replace(make_pairs(1, seed=0, held_out=False)[0][0], images=(buffer.getvalue(),))
    make = PolicyTrainer._generate_and_score_completions

    def measured(trainer: Any, rows: list[Any]) -> Any:
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
        before, batch = resident("VmRSS"), make(trainer, rows)
        highest, _ = resident("VmHWM"), gc.collect()
        held = sum(storages(batch).values()) / 2**20
        print(f"{len(rows)} rollouts: {held:.1f} MiB of tensors")
        print(f"resident: {before:.0f} MiB before, {highest:.0f} at most, {resident('VmRSS'):.0f} after")
        return batch

    PolicyTrainer._generate_and_score_completions = measured  # type: ignore[method-assign]
    config = RLConfig(
        model=str(Path(rewardlab.demo.__file__).parent / "judge"),
        template="plain",
        advantage="grpo",
        group_size=GROUP,
        rollout_batch_size=GROUP,
        batch_size=GROUP,
        micro_batch_size=1,
        max_completion_length=8,
        max_steps=1,
        pixels={"min": 3136, "max": 1_048_576},
        consistency=ConsistencyConfig(weight=0.0),
        data_workers=0,
    )
    with tempfile.TemporaryDirectory() as out:
        train_rl([pair], config, Path(out) / "run")


if __name__ == "__main__":
    main()
