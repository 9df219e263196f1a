"""Does the watchdog see a sampler with other weights than the trainer's, and no healthy one?

    python -m eval.stale_sampler --out eval/results/stale_sampler

RL of the packaged judge, 32 rollouts a batch, two optimizer steps each. From the fourth batch on the sampler has the weights of
three batches ago (`stale`), or noise of 0.05 deviations on every tensor (`wrong`). It computes in float32, as the trainer does,
or in bfloat16, as an engine. Finished runs in OUT.json are kept. Writes OUT.json and OUT.md.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import deque
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from rewardlab.config import RLConfig, load_config
from rewardlab.data.files import read_complete_lines, write_atomic
from rewardlab.demo.pairs import make_pairs
from rewardlab.models.checkpoints import commit
from rewardlab.reporting.tables import markdown_table
from rewardlab.training.policy_gradient.trainer import PolicyTrainer
from rewardlab.training.rl import train_rl

FIRST_FAULT, STEPS_PER_BATCH, AGE, NOISE = 4, 2, 3, 0.05
SEEDS = {"stale": range(5), "wrong": range(5), "healthy": range(20, 35)}
STEPS = {"healthy": 24, "stale": 12, "wrong": 12}
PRECISIONS = ("bfloat16", "float32")
Weights = dict[str, Tensor]


class FaultySampler:
    """The trainer's decoder with the weights of ``kind``, computing in ``precision``."""

    def __init__(self, kind: str, precision: str) -> None:
        self._kind, self._in_16_bits, self._decode = kind, precision == "bfloat16", PolicyTrainer._sample_decoder
        self._past: deque[Weights] = deque(maxlen=AGE + 1)
        self._batches = 0

    def _weights(self, now: Weights) -> Weights:
        if self._kind == "healthy" or self._batches < FIRST_FAULT:
            return now
        if self._kind == "stale":
            return self._past[0]
        return {name: weight + self._noise(weight) for name, weight in now.items()}

    def _noise(self, weight: Tensor) -> Tensor:
        if not weight.is_floating_point() or weight.numel() < 2:
            return torch.zeros_like(weight)
        return NOISE * weight.std() * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))

    def sample(self, trainer: Any, *inputs: Any) -> Any:
        """Return what the trainer's decoder samples with other weights; the trainer keeps its own."""
        model = trainer.accelerator.unwrap_model(trainer.model)
        now = {name: weight.detach().clone() for name, weight in model.state_dict().items()}
        self._past.append(now)
        self._batches += 1
        model.load_state_dict(self._weights(now))
        try:
            with torch.autocast("cpu", dtype=torch.bfloat16) if self._in_16_bits else nullcontext():
                return self._decode(trainer, *inputs)
        finally:
            model.load_state_dict(now)


def run(kind: str, precision: str, seed: int) -> dict[str, Any]:
    """Return the relative gap of each rollout batch of a run, and the batches at which the watchdog names the sampler."""
    changes = {
        "model": "rewardlab/demo/judge",
        "rollout_batch_size": 16 * STEPS_PER_BATCH,
        "batch_size": 16,
        "micro_batch_size": 16,
        "max_steps": STEPS[kind],
        "save_steps": STEPS[kind],
        "warmup_steps": 0,
        "consistency.weight": 0,
        "importance": {"mode": "sequence_mask"},
        "max_completion_length": 48,
        "health.policy": "warn",
        "seed": seed,
    }
    pairs = [replace(pair, attempts="2") for pair in make_pairs(200, seed=0, held_out=False)[0]]
    sampler = FaultySampler(kind, precision)
    with (
        tempfile.TemporaryDirectory() as folder,
        patch.object(PolicyTrainer, "_sample_decoder", lambda *args: sampler.sample(*args)),
    ):
        out = Path(folder) / "run"
        train_rl(pairs, load_config(RLConfig, "tiny/rl", changes), out)
        rows = read_complete_lines(out / "metrics.jsonl")
        gaps = [row["importance/relative_gap"] for row in rows if "importance/relative_gap" in row]
        alarms = [row["step"] for row in read_complete_lines(out / "health.jsonl") if "sampler" in row["signs"]]
    batches = [(step - 1) // STEPS_PER_BATCH + 1 for step in alarms]
    return {"gaps": gaps, "alarms": batches}


def table(runs: dict[str, Any]) -> str:
    """Return the results, Markdown."""
    names = (
        "sampler",
        "computes in",
        "runs",
        "named",
        "batch of the alarm",
        "relative gap, healthy",
        "in the first two batches of the fault",
    )
    rows = []
    for kind in SEEDS:
        for precision in PRECISIONS:
            done = [runs[key] for key in (f"{kind} {precision} {seed}" for seed in SEEDS[kind]) if key in runs]
            if not done:
                continue
            since = 1 if kind == "healthy" else FIRST_FAULT
            delays = [str(part["alarms"][0] - since + 1) if part["alarms"] else "–" for part in done]
            fault = len(done[0]["gaps"]) if kind == "healthy" else FIRST_FAULT - 1
            spans = [[gap for part in done for gap in part["gaps"][cut]] for cut in (slice(fault), slice(fault, fault + 2))]
            text = [f"{min(gaps):.2g} to {max(gaps):.2g}" if gaps else "–" for gaps in spans]
            named = sum(bool(part["alarms"]) for part in done)
            rows.append((kind, precision, str(len(done)), str(named), ", ".join(delays), *text))
    return "\n".join(markdown_table(names, rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("eval/results/stale_sampler"))
    parser.add_argument("--most", type=int, default=None, help="maximum number of runs of this call")
    args = parser.parse_args()
    path = args.out.with_suffix(".json")
    record = json.loads(path.read_text()) if path.exists() else {"runs": {}}
    jobs = [(kind, precision, seed) for precision in PRECISIONS for kind in SEEDS for seed in SEEDS[kind]]
    for job in [job for job in jobs if "{} {} {}".format(*job) not in record["runs"]][: args.most]:
        record["runs"]["{} {} {}".format(*job)] = done = run(*job)
        record["commit"] = commit()
        write_atomic(path, json.dumps(record, indent=1) + "\n")
        print(*job, done["alarms"], flush=True)
    title = "# Does the watchdog see a sampler with other weights than the trainer's?"
    text = (
        f"`python -m eval.stale_sampler`, commit {record['commit']}; a batch is 32 rollouts, the fault begins with the fourth."
    )
    write_atomic(args.out.with_suffix(".md"), f"{title}\n\n{text}\n\n{table(record['runs'])}\n")


if __name__ == "__main__":
    main()
