"""Runs of SFT and RL as a test and its torchrun children both make them: on any number of processes, killed where asked."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
from transformers import TrainerCallback

from rewardlab.config import ConsistencyConfig, RLConfig, SFTConfig
from rewardlab.data.rows import with_frames
from rewardlab.demo.pairs import make_pairs
from rewardlab.training import rl as rl_module
from rewardlab.training import sft as sft_module
from rewardlab.training.policy_gradient.rollouts.whole import RolloutTrainer
from rewardlab.training.rl import train_rl
from rewardlab.training.sft import train_sft
from rewardlab.types import PreferencePair, choice_of
from rewardlab.verdicts.parse import format_verdict

SHARED: dict[str, Any] = {
    "template": "plain",
    "learning_rate": 1e-3,
    "lr_scheduler": "constant",
    "micro_batch_size": 4,
    "save_steps": 2,
    "max_steps": 4,
    "gradient_checkpointing": False,
}


class KilledError(Exception):
    pass


class KillAtFirstSave(TrainerCallback):
    def on_save(self, *args: Any, **kwargs: Any) -> None:
        raise KilledError


def pairs() -> list[PreferencePair]:
    made = make_pairs(32, seed=0, held_out=False)[0]
    said = [format_verdict(choice_of(pair.preferred or 0, pair.order), "x" * (n % 7)) for n, pair in enumerate(made)]
    return [replace(pair, attempts="2", judgment=text) for pair, text in zip(made, said, strict=True)]


def film(seed: int) -> bytes:
    """Sixteen frames of 56 x 84 px, in a real MP4."""
    buffer, dice = io.BytesIO(), np.random.default_rng(seed)
    with av.open(buffer, "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=8)
        stream.width, stream.height, stream.pix_fmt = 84, 56, "yuv420p"
        for _ in range(16):
            frame = av.VideoFrame.from_ndarray(dice.integers(0, 255, (56, 84, 3), dtype=np.uint8), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return buffer.getvalue()


def mixed() -> list[PreferencePair]:
    """Of every eight: four with one image, two with none, one with three of two sizes, one with a video of four frames."""
    made = pairs()[:16]
    for n, pair in enumerate(made):
        kind = n % 8
        if kind in (1, 5):
            made[n] = replace(pair, images=())
        elif kind == 3:
            larger = with_frames(replace(pair, images=(), videos=(film(n),)), 1).images
            made[n] = replace(pair, images=pair.images * 2 + larger)
        elif kind == 6:
            made[n] = with_frames(replace(pair, images=(), videos=(film(n),)), 4)
    assert sorted({len(pair.images) for pair in made}) == [0, 1, 3, 4]
    return made


def collapsing(from_step: int, times: int) -> tuple[Any, list[tuple[int, float]]]:
    """A ``log`` by which the first ``times`` runs log no verdicts from a step on, and where it notes (step, rate)."""
    log, seen = RolloutTrainer.log, []

    def faulty(self: Any, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            seen.append((self.state.global_step, self.optimizer.param_groups[0]["lr"]))
            if self.state.global_step >= from_step and self.num_rollbacks < times:
                self._count({"reward/invalid_frac": 1.0})
        log(self, logs, start_time)

    return faulty, seen


UNEQUAL = (0.0, 1.0, 0.0, 1.0, 50.0, 3.0, 3.0, 3.0)  # rewards of a batch of eight


def make_unequal(trainer: Any) -> None:
    """Rollouts of the second half of a batch are one token long and paid more, and the first of them much more."""
    draw = trainer._generate_single_turn

    def cut(*args: Any, **kwargs: Any) -> Any:
        tokens, logprobs = draw(*args, **kwargs)
        start = trainer._own(len(tokens)).start
        return [ids[: 12 if start + n < 4 else 1] for n, ids in enumerate(tokens)], logprobs

    trainer._generate_single_turn = cut
    trainer.reward_funcs = [lambda completion_ids, **_: list(UNEQUAL[trainer._own(len(completion_ids))])]


def run(
    stage: str,
    checkpoint: Path,
    out: Path,
    *,
    kill: bool = False,
    data: Sequence[PreferencePair] | None = None,
    unequal: bool = False,
    **changes: Any,
) -> None:
    """Train ``stage`` into ``out``, or go on with it; ``kill`` ends it right after its first checkpoint, ``unequal`` has the
    halves of each batch differ as :func:`make_unequal` says."""
    if stage == "sft":
        config: Any = SFTConfig(model=str(checkpoint), **({**SHARED, "batch_size": 8} | changes))
        module, name, train = sft_module, "ResumableSFTTrainer", train_sft
    else:
        own = {"rollout_batch_size": 8, "batch_size": 8, "max_completion_length": 12}
        own |= {"consistency": ConsistencyConfig(weight=0.0)}
        config = RLConfig(model=str(checkpoint), **(SHARED | own | changes))
        module, name, train = rl_module, "build_trainer", train_rl
    original = getattr(module, name)

    def build(*args: Any, **kwargs: Any) -> Any:
        trainer = original(*args, **kwargs)
        if stage != "sft":
            last: list[float] = []

            def reward(completion_ids: list[list[int]], **_: Any) -> list[float]:
                last[:] = [float(sum(ids) % 2) for ids in completion_ids]
                return [float(sum(ids) % 5) for ids in completion_ids]

            trainer.reward_funcs, trainer.right_of_last_batch = [reward], lambda: list(last)
            trainer.read_of_last_batch = lambda: [True] * len(last)
            if unequal:
                make_unequal(trainer)
        if kill:
            trainer.add_callback(KillAtFirstSave())
        return trainer

    setattr(module, name, build)
    try:
        train(pairs() if data is None else data, config, out)
    except KilledError:
        pass
    finally:
        setattr(module, name, original)


def main(checkpoint: Path, folder: Path, *wanted: str) -> None:
    """``STAGE:NAME`` trains into FOLDER/NAME, ``STAGE:NAME:kill`` begins only."""
    for what in wanted:
        stage, name, *kill = what.split(":")
        if stage == "rl+taken_back":
            RolloutTrainer.log = collapsing(3, 1)[0]  # type: ignore[method-assign]
        data = mixed() if stage.endswith("+mixed") else None
        run(stage.partition("+")[0], checkpoint, folder / name, kill=bool(kill), data=data, **CHANGES.get(stage, {}))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # DeepSpeed's threads sometimes abort an interpreter that ends by itself


# Of a model this small, on a CPU; a request's own seed breaks vLLM's CPU generator where prompts are read in chunks.
VLLM_ARGS = (
    "--max-model-len 1024 --enforce-eager --dtype float32 --block-size 32 --kv-cache-memory-bytes 134217728 "
    "--no-enable-chunked-prefill --max-num-batched-tokens 8192"
)
ENGINE: dict[str, Any] = {"engine": {"kind": "serve", "args": VLLM_ARGS}, "importance_cap": 2.0}
CHANGES: dict[str, dict[str, Any]] = {
    "rl+engine": ENGINE,
    "rl+groups": {"advantage": "grpo", "group_size": 2, "dynamic_sampling": "refill"},
    "rl+windows": {"advantage": "gae", "window": 4, "outliers": "keep", "preclip": None},
    "rl+lora": {"lora": {"r": 4}},
    "rl+unequal": {"unequal": True},
    "rl+taken_back": {"health": {"patience": 2, "policy": "roll_back"}},  # the last of its process: it stays collapsing
    "sft+lora": {"lora": {"r": 4}},
    "sft+mixed": {"micro_batch_size": 1},
    "rl+mixed": {"micro_batch_size": 1},
    # log-probs without gradient, a critic and a reference beside the policy
    "rl+halves+mixed": {
        "micro_batch_size": 1,
        "rollout_batch_size": 16,
        "advantage": "gae",
        "kl_coef": 0.1,
        "outliers": "keep",
    },
}

if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
